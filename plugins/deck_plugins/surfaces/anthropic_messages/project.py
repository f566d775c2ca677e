"""The stream of Messages: canonical events to events of the wire.

Frames of deltas are put together from pieces encoded once, since that runs for every token.
"""

from __future__ import annotations

from typing import Any, assert_never

from deck.api import (
    Event,
    Failed,
    Finish,
    Parsed,
    PartDelta,
    PartEnd,
    PartStart,
    Progress,
    ReplyHead,
    Start,
    Usage,
    json,
)

from .parse import Reply
from .render import empty_message, render_error, stop_of, usage_of
from .signature import seal, signature

_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":'
_DELTAS = {
    "text": (b"text_delta", b"text"),
    "reasoning": (b"thinking_delta", b"thinking"),
    "tool_call": (b"input_json_delta", b"partial_json"),
}
_SUFFIX = b"}}\n\n"


class MessagesProjector:
    """One streamed answer.

    `message_start` is held back until the tokens of the prompt are known, which it tells, or something else must be
    said. A block of text or thinking opens with its first letter, so that none is empty.
    """

    def __init__(self, parsed: Parsed, head: ReplyHead) -> None:
        self._reply: Reply = parsed.reply
        self._head = head
        self._is_started = False
        self._prompt, self._cached = 0, 0
        self._blocks = 0
        self._kind = "text"
        self._prefix: bytes | None = None
        self._hidden: list[str] = []

    def feed(self, event: Event) -> bytes:
        """Return the frames for `event`."""
        match event:
            case PartDelta():
                return self._delta(event.text)
            case PartStart():
                return self._part(event)
            case PartEnd():
                return self._end()
            case Start():
                return b""
            case Progress():
                return self._progress(event)
            case Finish():
                return self._finish(event)
            case Failed():
                return _frame("error", render_error(event.error))
            case _:
                assert_never(event)

    def heartbeat(self) -> bytes:
        """Return a ping, after the beginning of the message if that was not sent yet."""
        return self._start() + _PING

    def _start(self) -> bytes:
        if self._is_started:
            return b""
        self._is_started = True
        message = empty_message(self._head, self._prompt, self._cached)
        return _frame("message_start", {"type": "message_start", "message": message})

    def _progress(self, event: Progress) -> bytes:
        if event.stage != "prompt" or event.detail is None:
            return b""
        total, cached = event.detail.get("total"), event.detail.get("cache")
        self._prompt = total if isinstance(total, int) else 0
        self._cached = cached if isinstance(cached, int) else 0
        return self._start()

    def _part(self, event: PartStart) -> bytes:
        self._kind = event.kind
        if event.kind != "tool_call":
            return self._start()
        block = {"type": "tool_use", "id": f"toolu_{event.tool_id}", "name": event.tool_name, "input": {}}
        return self._start() + self._open(block)

    def _open(self, block: dict[str, Any]) -> bytes:
        self._prefix = _DELTA % (self._blocks, *_DELTAS[self._kind])
        started = {"type": "content_block_start", "index": self._blocks, "content_block": block}
        return _frame("content_block_start", started)

    def _delta(self, text: str) -> bytes:
        if not text:
            return b""
        opening = b"" if self._prefix is not None else self._open(_empty_block(self._kind))
        if self._kind == "reasoning" and self._reply.hides_thinking:
            self._hidden.append(text)
            return opening
        assert self._prefix is not None
        return opening + self._prefix + json.dumps(text) + _SUFFIX

    def _end(self) -> bytes:
        if self._prefix is None:
            return b""
        index, self._prefix = self._blocks, None
        self._blocks += 1
        ending = _frame("content_block_stop", {"type": "content_block_stop", "index": index})
        if self._kind != "reasoning":
            return ending
        signed_with = seal("".join(self._hidden)) if self._reply.hides_thinking else signature(self._head, index)
        self._hidden.clear()
        delta = {"type": "signature_delta", "signature": signed_with}
        signed = {"type": "content_block_delta", "index": index, "delta": delta}
        return _frame("content_block_delta", signed) + ending

    def _finish(self, event: Finish) -> bytes:
        usage: Usage = event.usage
        if not self._is_started:
            self._prompt, self._cached = usage.prompt, usage.cached or 0
        reason, sequence = stop_of(event, self._reply)
        delta = {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": usage_of(usage.prompt, usage.cached or 0, usage.completion),
        }
        return self._start() + _frame("message_delta", delta) + _STOP


def _empty_block(kind: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": "", "citations": None}


def _frame(name: str, body: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), json.dumps(body))
