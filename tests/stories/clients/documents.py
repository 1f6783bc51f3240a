"""Hosts that publish documents over TLS: documents.py FOLDER NAME...

What is in FOLDER/HOST/PATH is at https://HOST/PATH. FOLDER/ca.pem is the authority that vouches for each NAME.
"""

import http.server
import pathlib
import ssl
import sys

import trustme

FOLDER = pathlib.Path(sys.argv[1])


class Documents(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        file = FOLDER / self.headers["host"] / self.path.lstrip("/")
        text = file.read_bytes() if file.is_file() else b"{}"
        self.send_response(200 if file.is_file() else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *request):
        # who does not trust a host hangs up
        if not isinstance(sys.exc_info()[1], ssl.SSLError):
            super().handle_error(*request)


authority = trustme.CA()
authority.cert_pem.write_to_path(FOLDER / "ca.pem")
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
authority.issue_cert(*sys.argv[2:]).configure_cert(tls)
server = Server(("0.0.0.0", 443), Documents)
# the handshake is its thread's work
server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print("ready", flush=True)
server.serve_forever()
