"""The least MCP server over standard input and output: one tool, which reads a note."""

import json
import sys
from typing import Any

TOOL = {
    "name": "read_note",
    "description": "Read a note",
    "inputSchema": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]},
}


def answer(method: str, params: dict[str, Any]) -> dict[str, object]:
    match method:
        case "initialize":
            about = {"name": "notes", "version": "1"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            return {"content": [{"type": "text", "text": f"{params['arguments']['title']}: purple-4711"}]}
        case _:
            return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"], message.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
