"""Somebody at a browser, as far as signing in goes: the pages' own calls, and where they lead.

person.py password ENDPOINT LINK      sets PERSON_PASSWORD by a one-time link
person.py allow|deny ADDRESS          signs in as PERSON_NAME, answers what the address asks, and goes where it leads;
                                      PERSON_SAW names a file that keeps what was asked
person.py ask ADDRESS                 signs in and prints what the address asks, or why it is refused
person.py call ENDPOINT METHOD PATH   signs in, calls the console's JSON, and prints the answer
person.py register ENDPOINT REDIRECT  registers a client and prints its id
person.py agent ENDPOINT              an outside agent from its first 401 to its end, with a person who allows it
"""

import base64
import hashlib
import http.server
import json
import os
import secrets
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

NAME = os.environ.get("PERSON_NAME", "admin")
PASSWORD = os.environ["PERSON_PASSWORD"]


class Browser:
    def __init__(self, origin):
        self.origin, self.cookie = origin, ""

    def call(self, method, path, body=None):
        headers = {"content-type": "application/json", "cookie": self.cookie}
        if method != "GET":
            headers["origin"] = self.origin
            headers["sec-fetch-site"] = "same-origin"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.origin}/cb/api/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            set_cookie = answer.headers.get("set-cookie")
            if set_cookie:
                self.cookie = set_cookie.split(";")[0]
            text = answer.read()
            return json.loads(text) if text else None

    def sign_in(self):
        self.call("POST", "login", {"name": NAME, "password": PASSWORD})
        return self


def origin_of(address):
    parts = urllib.parse.urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}"


def ask(browser, address):
    return browser.call("POST", "oauth/check", {"query": urllib.parse.urlsplit(address).query})


def answer(verb, address):
    """Does what a person does on the consent page; returns where the browser goes."""
    browser = Browser(origin_of(address)).sign_in()
    query = urllib.parse.urlsplit(address).query
    asked = ask(browser, address)
    if "PERSON_SAW" in os.environ:
        with open(os.environ["PERSON_SAW"], "a") as saw:
            saw.write(json.dumps(asked) + "\n")
    if "redirect" in asked:
        return asked["redirect"]
    return browser.call("POST", f"oauth/{'approve' if verb == 'allow' else 'deny'}", {"query": query})["redirect"]


def get(address, headers=None):
    return urllib.request.urlopen(urllib.request.Request(address, headers=headers or {}), timeout=30)


def follow(address):
    """Goes to a client's own address. Some open a browser before they listen: it is late, as people are."""
    for _ in range(100):
        try:
            return get(address)
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError):
                raise
            time.sleep(0.1)
    return get(address)


def form(address, members):
    return json.load(urllib.request.urlopen(address, urllib.parse.urlencode(members).encode(), timeout=30))


def refused(work):
    try:
        work()
    except urllib.error.HTTPError as error:
        return error
    raise SystemExit("this must be refused")


class Mcp:
    """A client of streamable HTTP, revision 2025-11-25."""

    def __init__(self, address, token):
        self.address, self.token, self.session, self.number = address, token, None, 0

    def ask(self, method, params=None, notice=False):
        message = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        if not notice:
            self.number += 1
            message["id"] = self.number
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "authorization": f"Bearer {self.token}",
            "mcp-protocol-version": "2025-11-25",
        }
        if self.session:
            headers["mcp-session-id"] = self.session
        request = urllib.request.Request(self.address, json.dumps(message).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as told:
            self.session = told.headers.get("mcp-session-id", self.session)
            if notice:
                return None
            if "event-stream" not in told.headers.get("content-type", ""):
                return json.load(told)
            for line in told:
                if line.startswith(b"data:") and line[5:].strip():
                    found = json.loads(line[5:])
                    if found.get("id") == self.number:
                        return found
        raise SystemExit(f"no answer to {method}")

    def begin(self):
        client = {"name": "story", "version": "1"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        found = self.ask("initialize", hello)["result"]
        self.ask("notifications/initialized", notice=True)
        return found

    def tool(self, name, arguments=None):
        return self.ask("tools/call", {"name": name, "arguments": arguments or {}})["result"]


def register(door, redirect):
    metadata = json.dumps({"client_name": "A story's agent", "redirect_uris": [redirect]}).encode()
    request = urllib.request.Request(door, metadata, {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=30))["client_id"]


def agent(endpoint):
    control = f"{endpoint}/cocoonbox.mcp/control"
    challenge = refused(lambda: get(control)).headers["www-authenticate"]
    metadata = challenge.split('resource_metadata="')[1].split('"')[0]
    resource = json.load(get(metadata))
    server = json.load(get(resource["authorization_servers"][0] + "/.well-known/oauth-authorization-server"))
    came = {}

    class Callback(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            came.update(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    listener = http.server.HTTPServer(("127.0.0.1", 0), Callback)
    waiting = threading.Thread(target=listener.handle_request)
    waiting.start()
    redirect = f"http://127.0.0.1:{listener.server_port}/cb"
    client = register(server["registration_endpoint"], "http://127.0.0.1/cb")
    verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(16)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    query = urllib.parse.urlencode({
        "response_type": "code", "client_id": client, "redirect_uri": redirect, "state": state, "scope": "boxes",
        "code_challenge": challenge, "code_challenge_method": "S256", "resource": control,
    })
    get(answer("allow", f"{server['authorization_endpoint']}?{query}"))
    waiting.join()
    assert came["state"] == state and came["iss"] == server["issuer"], came
    tokens = form(server["token_endpoint"], {
        "grant_type": "authorization_code", "client_id": client, "code": came["code"], "redirect_uri": redirect,
        "code_verifier": verifier, "resource": control,
    })
    mcp = Mcp(control, tokens["access_token"])
    said = {"server": mcp.begin()["serverInfo"]["name"]}
    said["tools"] = sorted(tool["name"] for tool in mcp.ask("tools/list")["result"]["tools"])
    said["before"] = mcp.tool("box_list")["structuredContent"]["boxes"]
    made = mcp.tool("box_create", {"name": "by-agent"})
    said["made"] = made["structuredContent"]["state"]
    said["after"] = [box["name"] for box in mcp.tool("box_list")["structuredContent"]["boxes"]]
    said["one_more"] = mcp.tool("box_create", {"name": "second"})["content"][0]["text"]
    fresh = form(server["token_endpoint"], {
        "grant_type": "refresh_token", "client_id": client, "refresh_token": tokens["refresh_token"],
    })
    mcp = Mcp(control, fresh["access_token"])
    mcp.begin()
    said["deleted"] = mcp.tool("box_delete", {"box": "by-agent", "confirm": True}).get("isError", False)
    listed = Browser(endpoint).sign_in().call("GET", "agents")["agents"]
    said["listed"] = [(one["client_name"], one["client_host"], one["seen"]) for one in listed]
    form_body = urllib.parse.urlencode({"token": fresh["refresh_token"], "client_id": client}).encode()
    urllib.request.urlopen(server["revocation_endpoint"], form_body, timeout=30)
    said["revoked"] = refused(lambda: mcp.ask("tools/list")).code
    print(json.dumps(said, sort_keys=True))


def main(verb, place, *more):
    if verb == "password":
        link = more[0].rsplit("=", 1)[-1]
        Browser(place).call("POST", "login/link", {"link": link, "password": PASSWORD})
    elif verb in ("allow", "deny"):
        follow(answer(verb, place)).read()
    elif verb == "ask":
        browser = Browser(origin_of(place)).sign_in()
        try:
            print(json.dumps(ask(browser, place)))
        except urllib.error.HTTPError as error:
            print(json.dumps({"refused": error.code, **json.load(error)}))
    elif verb == "where":
        print(answer("allow", place))
    elif verb == "call":
        print(json.dumps(Browser(place).sign_in().call(*more)))
    elif verb == "register":
        print(register(f"{place}/cocoonbox.oauth/register", more[0]))
    elif verb == "agent":
        agent(place)
    else:
        raise SystemExit(__doc__)


main(*sys.argv[1:])
