"""An outside agent that knows nothing but the address of the control MCP.

agent.py whole ENDPOINT   from its first 401 to its end, with the person of person.py, who allows it
agent.py asks ENDPOINT    prints the address to open and waits for what comes of it; allowed, it makes a box, prints
                          "made", reads a line, prints "open" with a stream and a call under way, and then how each
                          of them ended and what still works
agent.py beside ENDPOINT OTHER
                          is allowed at one server, prints "open" with a stream open at the other, and then how that
                          ended and what the other says to a further call
"""

import base64
import hashlib
import http.client
import http.server
import json
import secrets
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request

from person import Browser, answer, form, get, refused, register


class Mcp:
    """A client of streamable HTTP, revision 2025-11-25."""

    def __init__(self, address, token):
        self.address, self.token, self.session, self.number = address, token, None, 0

    def send(self, message):
        """Sends a message, or asks for the stream of events where there is none."""
        headers = {
            "accept": "text/event-stream" if message is None else "application/json, text/event-stream",
            "authorization": f"Bearer {self.token}",
            "content-type": "application/json",
            "mcp-protocol-version": "2025-11-25",
        }
        if self.session:
            headers["mcp-session-id"] = self.session
        data = None if message is None else json.dumps(message).encode()
        told = urllib.request.urlopen(urllib.request.Request(self.address, data, headers), timeout=60)
        self.session = told.headers.get("mcp-session-id", self.session)
        return told

    def begin_call(self, method, params=None):
        self.number += 1
        return self.send({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params or {}})

    def ask(self, method, params=None):
        with self.begin_call(method, params) as told:
            if "event-stream" not in told.headers.get("content-type", ""):
                return json.load(told)
            for found in events(told):
                if found.get("id") == self.number:
                    return found
        raise SystemExit(f"no answer to {method}")

    def begin(self):
        client = {"name": "story", "version": "1"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        found = self.ask("initialize", hello)["result"]
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"}).close()
        return found

    def tool(self, name, arguments=None):
        return self.ask("tools/call", {"name": name, "arguments": arguments or {}})["result"]


def events(told):
    for line in told:
        if line.startswith(b"data:") and line[5:].strip():
            yield json.loads(line[5:])


class Client:
    """A client of the authorization server, which it finds by the resource that refuses it."""

    def __init__(self, endpoint):
        self.control = f"{endpoint}/cocoonbox.mcp/control"
        challenge = refused(lambda: get(self.control)).headers["www-authenticate"]
        metadata = challenge.split('resource_metadata="')[1].split('"')[0]
        resource = json.load(get(metadata))
        self.server = json.load(get(resource["authorization_servers"][0] + "/.well-known/oauth-authorization-server"))
        self.id = register(self.server["registration_endpoint"], "http://127.0.0.1/cb")
        self.verifier, self.state = secrets.token_urlsafe(48), secrets.token_urlsafe(16)
        self.came = came = {}

        class Callback(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                came.update(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
                self.send_response(200)
                self.send_header("content-type", "text/html")
                self.end_headers()
                self.wfile.write(b'<!doctype html><link rel="icon" href="data:,"><p>The agent has its answer.</p>')

            def log_message(self, *_):
                pass

        self.listener = http.server.HTTPServer(("127.0.0.1", 0), Callback)
        self.listener.timeout = 120
        self.waiting = threading.Thread(target=self.listener.handle_request, daemon=True)
        self.waiting.start()
        self.redirect = f"http://127.0.0.1:{self.listener.server_port}/cb"

    def address(self):
        """What the person is to open."""
        digest = hashlib.sha256(self.verifier.encode()).digest()
        query = urllib.parse.urlencode({
            "response_type": "code", "client_id": self.id, "redirect_uri": self.redirect, "state": self.state,
            "scope": "boxes", "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256", "resource": self.control,
        })
        return f"{self.server['authorization_endpoint']}?{query}"

    def answered(self):
        """What came back; good or not, it is for this request and from this server."""
        self.waiting.join()
        assert self.came["state"] == self.state and self.came["iss"] == self.server["issuer"], self.came
        return self.came

    def tokens(self):
        return form(self.server["token_endpoint"], {
            "grant_type": "authorization_code", "client_id": self.id, "code": self.came["code"],
            "redirect_uri": self.redirect, "code_verifier": self.verifier, "resource": self.control,
        })

    def refresh(self, token):
        members = {"grant_type": "refresh_token", "client_id": self.id, "refresh_token": token}
        return form(self.server["token_endpoint"], members)

    def revoke(self, token):
        members = urllib.parse.urlencode({"token": token, "client_id": self.id}).encode()
        urllib.request.urlopen(self.server["revocation_endpoint"], members, timeout=30)


def whole(endpoint):
    client = Client(endpoint)
    get(answer("allow", client.address()))
    client.answered()
    tokens = client.tokens()
    mcp = Mcp(client.control, tokens["access_token"])
    said = {"server": mcp.begin()["serverInfo"]["name"]}
    said["tools"] = sorted(tool["name"] for tool in mcp.ask("tools/list")["result"]["tools"])
    said["before"] = mcp.tool("box_list")["structuredContent"]["boxes"]
    made = mcp.tool("box_create", {"name": "by-agent"})
    said["made"] = made["structuredContent"]["state"]
    said["after"] = [box["name"] for box in mcp.tool("box_list")["structuredContent"]["boxes"]]
    said["one_more"] = mcp.tool("box_create", {"name": "second"})["content"][0]["text"]
    fresh = client.refresh(tokens["refresh_token"])
    mcp = Mcp(client.control, fresh["access_token"])
    mcp.begin()
    said["deleted"] = mcp.tool("box_delete", {"box": "by-agent", "confirm": True}).get("isError", False)
    listed = Browser(endpoint).sign_in().call("GET", "agents")["agents"]
    said["listed"] = [(one["client_name"], one["client_host"], one["seen"]) for one in listed]
    client.revoke(fresh["refresh_token"])
    said["revoked"] = refused(lambda: mcp.ask("tools/list")).code
    print(json.dumps(said, sort_keys=True))


def say(words):
    print(words, flush=True)


def end_of(told):
    """Reads an open exchange until it is over, and returns how that was."""
    try:
        last = None
        for last in events(told):
            pass
        return "answered" if last and "id" in last else "ended"
    except TimeoutError:
        return "silent"
    except (OSError, http.client.HTTPException):
        return "cut"


def asks(endpoint):
    client = Client(endpoint)
    say(client.address())
    came = client.answered()
    if "error" in came:
        say(json.dumps({"error": came["error"]}))
        return
    tokens = client.tokens()
    mcp = Mcp(client.control, tokens["access_token"])
    mcp.begin()
    made = mcp.tool("box_create", {"name": "by-agent"})["structuredContent"]
    said = {"made": made["state"]}
    said["sees"] = [box["name"] for box in mcp.tool("box_list")["structuredContent"]["boxes"]]
    said["more"] = [mcp.tool("box_create", {"name": name}).get("isError", False) for name in ("second", "third")]
    say("made")
    sys.stdin.readline()

    stream = mcp.send(None)
    save = {"name": "box_save", "arguments": {"box": "by-agent"}, "_meta": {"progressToken": "p"}}
    call = mcp.begin_call("tools/call", save)
    # the first that is told of it: it is under way
    assert next(events(call))["method"] == "notifications/progress"
    say("open")
    ends = {}
    read = [
        threading.Thread(target=lambda name=name, told=told: ends.update({name: end_of(told)}))
        for name, told in (("stream", stream), ("call", call))
    ]
    for one in read:
        one.start()
    for one in read:
        one.join()
    said["ends"] = ends
    further = refused(lambda: mcp.ask("tools/list"))
    said["further"] = [further.code, 'error="invalid_token"' in further.headers["www-authenticate"]]
    again = refused(lambda: client.refresh(tokens["refresh_token"]))
    said["refresh"] = [again.code, json.load(again)["error"]]
    say(json.dumps(said))


def beside(endpoint, other):
    client = Client(endpoint)
    get(answer("allow", client.address()))
    client.answered()
    tokens = client.tokens()
    # what one server gave out is refreshed at the other
    client.server["token_endpoint"] = client.server["token_endpoint"].replace(endpoint, other)
    token = client.refresh(tokens["refresh_token"])["access_token"]
    mcp = Mcp(f"{other}/cocoonbox.mcp/control", token)
    mcp.begin()
    stream = mcp.send(None)
    say("open")
    say(json.dumps({"stream": end_of(stream), "further": refused(lambda: mcp.ask("tools/list")).code}))


if __name__ == "__main__":
    {"whole": whole, "asks": asks, "beside": beside}[sys.argv[1]](*sys.argv[2:])
