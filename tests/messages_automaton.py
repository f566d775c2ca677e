"""The grammar of a Messages stream as a checker of client bytes: what the SDK's helpers do not notice."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

STOPS = {"end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"}
# The reasons that may leave the input of the last call unfinished.
CUT = {"max_tokens", "model_context_window_exceeded"}
USAGE = {"input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"}
DELTAS = {
    "text": {"text_delta": "text"},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "tool_use": {"input_json_delta": "partial_json"},
}
EMPTY = {
    "text": {"type": "text", "text": "", "citations": None},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}


class StreamFault(Exception):
    """The stream breaks its grammar."""


@dataclass
class MessagesStream:
    """What a valid stream said; `content` as the buffered object would have it, `cut` the fragment of a cut input.

    A call without any input is `{}`, or was cut before it began.
    """

    message: dict[str, Any] = field(default_factory=dict)
    content: list[dict[str, Any]] = field(default_factory=list)
    cut: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    pings: int = 0
    is_done: bool = False

    @property
    def text(self) -> str:
        """All text, whatever stands between its blocks."""
        return "".join(block["text"] for block in self.content if block["type"] == "text")

    @property
    def thinking(self) -> str:
        """All thoughts."""
        return "".join(block["thinking"] for block in self.content if block["type"] == "thinking")

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls as blocks."""
        return [block for block in self.content if block["type"] == "tool_use"]


def need(holds: object, why: str) -> None:
    if not holds:
        raise StreamFault(why)


def frames(data: bytes) -> list[dict[str, Any]]:
    """Return the events; each frame has two lines that name the same type."""
    text = data.decode("utf-8")
    need("\r" not in text, "CR in a frame")
    need(not data or text.endswith("\n\n"), "the last frame is not closed")
    found = []
    for frame in text.split("\n\n")[:-1]:
        lines = frame.split("\n")
        need(len(lines) == 2, f"not two lines: {frame!r}")
        need(lines[0].startswith("event: ") and lines[1].startswith("data: "), f"not event and data: {frame!r}")
        body = json.loads(lines[1][6:])
        need(isinstance(body, dict) and body.get("type") == lines[0][7:], f"event and type differ: {frame!r}")
        found.append(body)
    return found


class _Reader:
    """The automaton; `index` and `block` are of the block that is open."""

    def __init__(self) -> None:
        self.stream = MessagesStream()
        self.block: dict[str, Any] | None = None
        self.pieces: list[str] = []
        self.state = "new"

    def feed(self, body: dict[str, Any]) -> None:
        need(self.state not in ("ended", "failed"), "a frame after the end")
        self.stream.events.append(body)
        kind = body["type"]
        if kind == "error":
            self.error(body)
            return
        if kind == "ping":
            need(body == {"type": "ping"}, "a ping with members")
            need(self.state != "new", "a ping before message_start")
            self.stream.pings += 1
            return
        need(hasattr(self, f"on_{kind}"), f"unknown event {kind!r}")
        getattr(self, f"on_{kind}")(body)

    def error(self, body: dict[str, Any]) -> None:
        need(set(body) <= {"type", "error", "request_id"}, "error members")
        need(set(body["error"]) == {"type", "message"} and all(body["error"].values()), "error members")
        self.stream.error = body["error"]
        self.state = "failed"

    def on_message_start(self, body: dict[str, Any]) -> None:
        need(self.state == "new", "message_start twice")
        message = body["message"]
        need(message["type"] == "message" and message["role"] == "assistant", "not an assistant's message")
        need(message["id"].startswith("msg_01") and len(message["id"]) == 28, "message id")
        need(message["content"] == [] and message["model"], "message_start with content, or without a model")
        need(message["stop_reason"] is None and message["stop_sequence"] is None, "message_start with a stop")
        _usage(message["usage"])
        self.stream.message = message
        self.state = "open"

    def on_content_block_start(self, body: dict[str, Any]) -> None:
        need(self.state == "open", f"content_block_start while {self.state}")
        need(body["index"] == len(self.stream.content), "an index with a gap, or twice")
        block = body["content_block"]
        need(block["type"] in DELTAS, "a block of unknown type")
        if block["type"] == "tool_use":
            need(set(block) == {"type", "id", "name", "input"} and block["input"] == {}, "the head of a call")
            need(block["id"].startswith("toolu_") and len(block["id"]) == 15 and block["name"], "the head of a call")
            need(block["id"] not in {call["id"] for call in self.stream.calls}, "a tool id twice")
        else:
            need(block == EMPTY[block["type"]], "a block that does not begin empty")
        self.block, self.pieces = dict(block), []
        self.stream.content.append(self.block)
        self.state = "block"

    def on_content_block_delta(self, body: dict[str, Any]) -> None:
        need(self.state == "block" and self.block is not None, "a delta without an open block")
        assert self.block is not None
        need(body["index"] == len(self.stream.content) - 1, "a delta for another block")
        delta, kind = body["delta"], self.block["type"]
        need(delta["type"] in DELTAS[kind], f"{delta['type']} in a block of {kind}")
        member = DELTAS[kind][delta["type"]]
        need(set(delta) == {"type", member} and isinstance(delta[member], str), "delta members")
        need(not self.block.get("signature"), "a delta after the signature")
        if kind == "tool_use":
            self.pieces.append(delta[member])
        else:
            self.block[member] += delta[member]

    def on_content_block_stop(self, body: dict[str, Any]) -> None:
        need(self.state == "block" and self.block is not None, "content_block_stop without an open block")
        assert self.block is not None
        need(body["index"] == len(self.stream.content) - 1, "the stop of another block")
        need(not self.stream.cut, "a block after one that was cut")
        if self.block["type"] == "tool_use":
            self.finish_call()
        elif self.block["type"] == "thinking":
            need(self.block["signature"], "thinking without a signature")
        self.block, self.state = None, "open"

    def finish_call(self) -> None:
        assert self.block is not None
        text = "".join(self.pieces)
        self.stream.cut = None if text else ""
        try:
            self.block["input"] = json.loads(text or "{}")
        except ValueError:
            self.stream.cut = text
            return
        need(isinstance(self.block["input"], dict), "an input that is no object")

    def on_message_delta(self, body: dict[str, Any]) -> None:
        need(self.state == "open", f"message_delta while {self.state}")
        need(set(body["delta"]) == {"stop_reason", "stop_sequence"}, "delta members")
        stream = self.stream
        stream.stop_reason, stream.stop_sequence = body["delta"]["stop_reason"], body["delta"]["stop_sequence"]
        need(stream.stop_reason in STOPS, "stop_reason")
        need((stream.stop_sequence is not None) == (stream.stop_reason == "stop_sequence"), "stop_sequence")
        need(stream.stop_reason != "tool_use" or stream.calls, "tool_use without a call")
        need(stream.stop_reason not in ("end_turn", "stop_sequence") or not stream.calls, "a call, but no tool_use")
        need(not stream.cut or stream.stop_reason in CUT, "an input that is no JSON")
        if stream.stop_reason not in CUT:
            stream.cut = None
        _usage(body["usage"])
        stream.usage = body["usage"]
        self.state = "closing"

    def on_message_stop(self, body: dict[str, Any]) -> None:
        need(self.state == "closing", f"message_stop while {self.state}")
        need(body == {"type": "message_stop"}, "message_stop with members")
        self.stream.is_done = True
        self.state = "ended"


def _usage(usage: dict[str, Any]) -> None:
    need(set(usage) == USAGE, "usage members")
    need(all(type(count) is int and count >= 0 for count in usage.values()), "usage counts")


def check(data: bytes) -> MessagesStream:
    """Read a whole stream.

    Raises:
        StreamFault: at the first place that breaks the grammar.
    """
    reader = _Reader()
    for body in frames(data):
        reader.feed(body)
    need(reader.state in ("ended", "failed"), "the stream ends without message_stop and without an error")
    return reader.stream
