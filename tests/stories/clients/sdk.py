"""The public Python SDK of MCP against the control MCP: sdk.py ENDPOINT; BROWSER signs in.

It lists, calls, renews its token when that is over, and is shut out by the person, who then lets it in again.
"""

import asyncio
import contextlib
import http.server
import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
import webbrowser

from mcp import ClientSession, MCPError
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata

ENDPOINT = sys.argv[1]
CONTROL = f"{ENDPOINT}/cocoonbox.mcp/control"


class Memory:
    """Where the SDK keeps what it has."""

    tokens = client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client):
        self.client = client


class Callback(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.came = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


def console(*words):
    """What the person does at the console."""
    person = os.path.join(os.path.dirname(__file__), "person.py")
    told = subprocess.run([sys.executable, person, "call", ENDPOINT, *words], capture_output=True, check=True)
    return json.loads(told.stdout)


def status_with(token):
    request = urllib.request.Request(CONTROL, b"{}", {"authorization": f"Bearer {token}"})
    try:
        return urllib.request.urlopen(request, timeout=30).status
    except urllib.error.HTTPError as error:
        return error.code


async def main():
    listener = http.server.HTTPServer(("127.0.0.1", 0), Callback)
    waiting = []

    async def ask(address):
        waiting.append(threading.Thread(target=listener.handle_request))
        waiting[-1].start()
        webbrowser.open(address)

    async def answer():
        await asyncio.to_thread(waiting[-1].join, 30)
        came = listener.came
        return AuthorizationCodeResult(code=came["code"], state=came["state"], iss=came["iss"])

    memory = Memory()
    redirect = f"http://127.0.0.1:{listener.server_port}/callback"
    metadata = OAuthClientMetadata(
        client_name="A story's SDK", redirect_uris=[redirect], token_endpoint_auth_method="none"
    )
    signed_in = OAuthClientProvider(CONTROL, metadata, memory, ask, answer)
    said = {}

    @contextlib.asynccontextmanager
    async def session():
        async with (
            create_mcp_http_client(auth=signed_in) as http_client,
            streamable_http_client(CONTROL, http_client=http_client) as streams,
            ClientSession(*streams[:2]) as open_session,
        ):
            said["server"] = (await open_session.initialize()).server_info.name
            yield open_session

    async def boxes(of):
        return (await of.call_tool("box_list", {})).structured_content["boxes"]

    async with session() as first:
        said["tools"] = sorted(tool.name for tool in (await first.list_tools()).tools)
        said["boxes"] = await boxes(first)
        old = memory.tokens
        # as if its hour had passed
        signed_in.context.token_expiry_time = 1
        await boxes(first)
        new = memory.tokens
        said["renewed"] = old.access_token != new.access_token and old.refresh_token != new.refresh_token
        said["asked"] = len(waiting)

        said["in"] = status_with(new.access_token)
        agent = console("GET", "agents")["agents"][0]
        console("DELETE", f"agents/{agent['id']}")
        said["out"] = status_with(new.access_token)
        # it asks the person again; its session went with what it was allowed before
        try:
            await boxes(first)
        except MCPError as error:
            said["over"] = str(error)
        said["asked_again"] = len(waiting)
    async with session() as second:
        said["boxes_again"] = await boxes(second)
    said["agents"] = [one["client_name"] for one in console("GET", "agents")["agents"]]
    print(json.dumps(said))


asyncio.run(asyncio.wait_for(main(), 100))
