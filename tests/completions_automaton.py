"""The grammar of a Completions stream as a checker of client bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from chat_automaton import StreamFault, frames, need

FINISHES = {"stop", "length", "content_filter"}
_MEMBERS = {"text", "index", "logprobs", "finish_reason"}
_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")

__all__ = ["StreamFault", "TextStream", "check"]


@dataclass
class TextStream:
    """What a valid stream said."""

    text: str = ""
    finish: str | None = None
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    logprobs: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in _LISTS})
    chunks: list[dict[str, Any]] = field(default_factory=list)
    is_done: bool = False


def check(data: bytes, *, include_usage: bool = False) -> TextStream:
    """Read a whole stream.

    Raises:
        StreamFault: at the first place that breaks the grammar.
    """
    stream, fixed = TextStream(), None
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
        need(mark["object"] == "text_completion" and str(mark["id"]).startswith("cmpl-"), "object or id")
        need(fixed in (None, mark), "id, created or model changed")
        fixed = mark
        _chunk(stream, chunk, include_usage=include_usage)
    need(stream.is_done or stream.error, "the stream ends without [DONE] and without an error")
    return stream


def _chunk(stream: TextStream, chunk: dict[str, Any], *, include_usage: bool) -> None:
    if not chunk["choices"]:
        need(include_usage and stream.finish is not None and stream.usage is None, "a usage chunk out of place")
        stream.usage = chunk["usage"]
        return
    need(not include_usage or chunk.get("usage", 0) is None, "usage must be null before the usage chunk")
    need(include_usage or "usage" not in chunk, "usage that was not asked for")
    need(stream.finish is None, "a choice after the finish")
    need(len(chunk["choices"]) == 1, "choices")
    choice = chunk["choices"][0]
    need(set(choice) - {"token_ids"} == _MEMBERS and choice["index"] == 0, "members of the choice")
    need(isinstance(choice["text"], str), "text")
    stream.text += choice["text"]
    if choice["logprobs"] is not None:
        need(set(choice["logprobs"]) == set(_LISTS), "members of logprobs")
        need(len({len(items) for items in choice["logprobs"].values()}) == 1, "lists of unequal length")
        for name, items in choice["logprobs"].items():
            stream.logprobs[name] += items
    if choice["finish_reason"] is not None:
        need(choice["finish_reason"] in FINISHES, "finish_reason")
        need(choice["text"] == "", "the finish chunk has text")
        stream.finish = choice["finish_reason"]
