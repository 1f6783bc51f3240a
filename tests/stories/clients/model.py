"""A language model that does as it is told: it speaks Anthropic's Messages and OpenAI's Responses, as streams.

model.py prints the address that it serves. Of a prompt it obeys each `[[NAME {JSON}]]` in turn, a call of the tool that
an MCP server offers under NAME; then it says what the calls brought, one after the other. A tool that it is not offered
it says to be missing.
"""

import http.server
import itertools
import json
import re

COUNT = itertools.count()


def texts(content):
    """The texts of a message or of a tool's result, in all their shapes."""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content or [])


def decide(turns, tools):
    """Returns the next call, or what is to be said. `turns` are pairs of a role and a text; `tools` maps names to what
    a call names."""
    said = [text for role, text in turns if role == "user" and "[[" in text]
    calls = re.findall(r"\[\[(\w+) ({.*?})\]\]", said[-1]) if said else []
    brought = [text for role, text in turns if role == "tool"]
    for name, arguments in calls[len(brought):]:
        if name not in tools:
            return None, f"there is no {name}"
        return tools[name], json.loads(arguments)
    return None, "\n".join(brought) or "nothing was asked"


class Model(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = {"/v1/messages": messages, "/v1/responses": responses}[self.path.split("?")[0]]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for event in answer(body):
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())

    def log_message(self, *_):
        pass


def messages(body):
    turns = []
    for message in body["messages"]:
        parts = message["content"]
        for part in [{"type": "text", "text": parts}] if isinstance(parts, str) else parts:
            if part["type"] == "tool_result":
                turns.append(("tool", texts(part.get("content"))))
            elif part["type"] == "text":
                turns.append((message["role"], part["text"]))
    tools = {tool["name"].rsplit("__", 1)[-1]: tool["name"] for tool in body.get("tools", []) if "__" in tool["name"]}
    name, what = decide(turns, tools)
    number = next(COUNT)
    if name:
        block = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(what)}
    else:
        block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": what}
    usage = {"input_tokens": 1, "output_tokens": 1}
    start = {
        "id": f"msg_{number}", "type": "message", "role": "assistant", "model": body["model"], "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": usage,
    }
    stop = {"stop_reason": "tool_use" if name else "end_turn", "stop_sequence": None}
    yield {"type": "message_start", "message": start}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": stop, "usage": usage}
    yield {"type": "message_stop"}


def responses(body):
    turns = []
    for item in body["input"]:
        if item["type"] == "message":
            turns.append((item["role"], texts(item["content"])))
        elif item["type"] == "function_call_output":
            turns.append(("tool", texts(item["output"])))
    spaces = [tool for tool in body["tools"] if tool["type"] == "namespace" and tool["name"].startswith("mcp__")]
    tools = {tool["name"]: (space["name"], tool["name"]) for space in spaces for tool in space["tools"]}
    call, what = decide(turns, tools)
    number = next(COUNT)
    if call:
        item = {
            "type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "status": "completed",
            "namespace": call[0], "name": call[1], "arguments": json.dumps(what),
        }
    else:
        content = [{"type": "output_text", "text": what, "annotations": []}]
        item = {
            "type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": content,
        }
    answer = {"id": f"resp_{number}", "object": "response", "created_at": 0, "model": body["model"]}
    usage = {
        "input_tokens": 1, "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 1, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 2,
    }
    yield {"type": "response.created", "response": {**answer, "status": "in_progress", "output": []}}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    yield {"type": "response.completed", "response": {**answer, "status": "completed", "output": [item], "usage": usage}}


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
