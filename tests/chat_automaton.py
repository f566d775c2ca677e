"""The grammar of a Chat Completions stream as a checker of client bytes: what the SDK's helpers do not notice."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

FINISHES = {"stop", "length", "tool_calls", "content_filter", "function_call"}


class StreamFault(Exception):
    """The stream breaks its grammar."""


@dataclass
class ChatStream:
    """What a valid stream said."""

    text: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    chunks: list[dict[str, Any]] = field(default_factory=list)
    is_done: bool = False


def need(holds: object, why: str) -> None:
    if not holds:
        raise StreamFault(why)


def frames(data: bytes) -> list[str]:
    text = data.decode("utf-8")
    need("\r" not in text, "CR in a frame")
    need(not data or text.endswith("\n\n"), "the last frame is not closed")
    found = []
    for frame in text.split("\n\n")[:-1]:
        need(frame.startswith("data: ") and "\n" not in frame, f"not one data line: {frame!r}")
        found.append(frame[6:])
    return found


def check(data: bytes, *, include_usage: bool = False) -> ChatStream:
    """Read a whole stream.

    Raises:
        StreamFault: at the first place that breaks the grammar.
    """
    stream, fixed = ChatStream(), None
    for payload in frames(data):
        need(not stream.is_done and stream.error is None, "a frame after the end")
        if payload == "[DONE]":
            need(stream.finish is not None, "[DONE] before a finish")
            need((stream.usage is not None) == include_usage, "usage chunk present or absent against the wish")
            stream.is_done = True
            continue
        chunk = json.loads(payload)
        if "error" in chunk:
            need(set(chunk["error"]) == {"message", "type", "param", "code"}, "error members")
            stream.error = chunk["error"]
            continue
        stream.chunks.append(chunk)
        mark = {key: chunk.get(key) for key in ("id", "object", "created", "model")}
        need(mark["object"] == "chat.completion.chunk", "object")
        need(fixed in (None, mark), "id, created or model changed")
        _chunk(stream, chunk, is_first=fixed is None, include_usage=include_usage)
        fixed = mark
    need(stream.is_done or stream.error, "the stream ends without [DONE] and without an error")
    return stream


def _chunk(stream: ChatStream, chunk: dict[str, Any], *, is_first: bool, include_usage: bool) -> None:
    if not chunk["choices"]:
        need(include_usage and stream.finish is not None and stream.usage is None, "a usage chunk out of place")
        stream.usage = chunk["usage"]
        return
    need(not include_usage or chunk.get("usage", 0) is None, "usage must be null before the usage chunk")
    need(include_usage or "usage" not in chunk, "usage that was not asked for")
    need(len(chunk["choices"]) == 1 and chunk["choices"][0]["index"] == 0, "choices")
    need(stream.finish is None, "a choice after the finish")
    choice = chunk["choices"][0]
    delta = choice["delta"]
    need(("role" in delta) == is_first, "the role stands in the first chunk and nowhere else")
    stream.text += delta.get("content") or ""
    stream.reasoning += delta.get("reasoning_content") or ""
    for item in delta.get("tool_calls", ()):
        _call(stream, item)
    if choice["finish_reason"] is not None:
        need(choice["finish_reason"] in FINISHES, "finish_reason")
        need(delta == {}, "the finish chunk has a delta")
        stream.finish = choice["finish_reason"]


def _call(stream: ChatStream, item: dict[str, Any]) -> None:
    if "id" in item:
        need(item["index"] == len(stream.calls), "a tool index with a gap, or a repeated id")
        need(item["type"] == "function" and item["function"]["name"] and item["id"], "the head of a call")
        stream.calls.append({"id": item["id"], "name": item["function"]["name"], "arguments": ""})
    else:
        need(item["index"] == len(stream.calls) - 1, "a return to an earlier call")
        need(set(item) == {"index", "function"} and set(item["function"]) == {"arguments"}, "a later piece of a call")
    stream.calls[-1]["arguments"] += item["function"]["arguments"]
