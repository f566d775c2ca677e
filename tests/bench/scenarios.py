"""What is measured: loadgen's arguments and fakellm's pace for each scenario, and the body of an agent.

Knows no gateway. `b` and `a` are buffered, `s` and `l` streams at a fixed pace, `f` streams as fast as they go.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

# A gateway that always streams upstream gets one token in one write, so that a buffered scenario costs one request.
_AT_ONCE = "itl_us=0&ttft_us=0&burst=64"
_PACED = "itl_us=20000&ttft_us=0&burst=1"
_FLOOD = "itl_us=0&ttft_us=0&burst=1"
_QUICK = "-d 1 -w 0.2"
_SPREAD = "-m stream -n 50 -d 1.5 -w 0.1 -g 1000"
AGENT_FILE = "agent.json"
_TEXT = "def read(self): the “file” is read,\n    and its lines are kept in order, naïve or not; then the tests run\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One measurement: what loadgen does, and how fakellm answers."""

    load: str
    pace: str
    has_agent_body: bool = False

    @property
    def is_stream(self) -> bool:
        """True if answers are streamed to the client."""
        return "-m stream" in self.load


def _buffered() -> dict[str, Scenario]:
    found = {}
    for label, size in (("", 800), ("_30k", 30_000), ("_300k", 300_000)):
        for clients in (1, 16, 64):
            load = f"-n 1 -c {clients} -b {size} {_QUICK}"
            found[f"b{clients}{label}"] = Scenario(load=load, pace=_AT_ONCE)
    return found


SCENARIOS = {
    **_buffered(),
    "a1": Scenario(load=f"-c 1 {_QUICK}", pace=_AT_ONCE, has_agent_body=True),
    "a16": Scenario(load=f"-c 16 {_QUICK}", pace=_AT_ONCE, has_agent_body=True),
    # 50 tokens a stream, one each 20 ms, starts spread over a second: latencies below saturation
    "s1": Scenario(load="-m stream -n 50 -c 1 -d 2 -w 0.1", pace=_PACED),
    "s16": Scenario(load=f"{_SPREAD} -c 16", pace=_PACED),
    "s64": Scenario(load=f"{_SPREAD} -c 64", pace=_PACED),
    "s256": Scenario(load=f"{_SPREAD} -c 256", pace=_PACED),
    # long streams at the same pace: what a chunk costs without the request around it
    "l64": Scenario(load="-m stream -n 150 -c 64 -d 3 -w 0.1", pace=_PACED),
    # every event in a write of its own, turn by turn over the streams: throughput
    "f1": Scenario(load=f"-m stream -n 2000 -c 1 {_QUICK}", pace=_FLOOD),
    "f16": Scenario(load=f"-m stream -n 500 -c 16 {_QUICK}", pace=_FLOOD),
    "f64": Scenario(load=f"-m stream -n 200 -c 64 {_QUICK}", pace=_FLOOD),
    "f256": Scenario(load=f"-m stream -n 50 -c 256 {_QUICK}", pace=_FLOOD),
}


def agent_body(model: str, *, messages: int = 80, tools: int = 24) -> bytes:
    """Return a request like a coding agent's late in a task: about 100 kB of turns, calls, results and tools."""
    turns: list[dict[str, Any]] = [{"role": "system", "content": _prose(0, 4000)}, _user(0)]
    number = 0
    while len(turns) < messages:
        number += 1
        turns += _user_turn(number) if number % 8 == 0 else _tool_turn(number, tools)
    body = {
        "model": model,
        "messages": turns[:messages],
        "tools": [_tool(index) for index in range(tools)],
        "tool_choice": "auto",
        "temperature": 0.2,
        "top_p": 0.95,
        "max_tokens": 1,
    }
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _user(number: int) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": _prose(number, 400)}]}


def _user_turn(number: int) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": _prose(number, 600)}, _user(number)]


def _tool_turn(number: int, tools: int) -> list[dict[str, Any]]:
    identity = f"call_{number:04d}"
    arguments = json.dumps({"path": f"src/module_{number}.py", "text": _prose(number, 300), "line": number})
    function = {"name": f"tool_{number % tools}", "arguments": arguments}
    return [
        {
            "role": "assistant",
            "content": _prose(number, 120),
            "tool_calls": [{"id": identity, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": identity, "content": _prose(number, 1200)},
    ]


def _tool(index: int) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "path": {"type": "string", "description": "File to work on, relative to the root of the project."},
        "text": {"type": "string", "description": _prose(index, 120)},
        "line": {"type": "integer", "minimum": 1, "description": "First line, counted from 1."},
        "mode": {"type": "string", "enum": ["read", "write", "append"], "default": "read"},
        "where": {
            "type": "object",
            "properties": {"start": {"type": "integer"}, "end": {"type": "integer"}},
            "required": ["start"],
        },
    }
    parameters = {"type": "object", "properties": properties, "required": ["path"], "additionalProperties": False}
    function = {"name": f"tool_{index}", "description": _prose(index, 500), "parameters": parameters}
    return {"type": "function", "function": function}


def _prose(seed: int, size: int) -> str:
    start = seed % len(_TEXT)
    return ((_TEXT[start:] + _TEXT[:start]) * (size // len(_TEXT) + 1))[:size]
