"""FastMCP's client, as its page shows it, against the control MCP: fast.py ADDRESS; BROWSER signs in."""

import asyncio
import json
import sys

from fastmcp import Client


async def main(address):
    async with Client(address, auth="oauth") as client:
        said = {"tools": sorted(tool.name for tool in await client.list_tools())}
        made = await client.call_tool("box_create", {"name": "by-fastmcp"})
        said["made"] = made.structured_content["state"]
        listed = await client.call_tool("box_list", {})
        said["listed"] = [box["name"] for box in listed.structured_content["boxes"]]
        one_more = await client.call_tool("box_create", {"name": "second"}, raise_on_error=False)
        said["one_more"] = one_more.is_error
        deleted = await client.call_tool("box_delete", {"box": "by-fastmcp", "confirm": True})
        said["deleted"] = not deleted.is_error
    print(json.dumps(said))


asyncio.run(main(sys.argv[1]))
