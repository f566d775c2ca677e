"""The stream of Chat Completions: canonical events to `chat.completion.chunk` frames.

Frames are put together from pieces encoded once, since this runs for every token.
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
    json,
)
from deck_plugins.openai_wire import entry, render_error, render_usage

from .parse import Reply
from .render import completion_id, finish_reason

_DONE = b"data: [DONE]\n\n"


class ChatProjector:
    """One streamed answer; every frame has the same id, created and model; the role stands in the first only."""

    def __init__(self, parsed: Parsed, head: ReplyHead) -> None:
        self._reply: Reply = parsed.reply
        self._base = {
            "id": completion_id(head),
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
        }
        if self._reply.service_tier:
            self._base["service_tier"] = "default"
        self._tail = ',"usage":null}\n\n' if self._reply.include_usage else "}\n\n"
        self._prefix = self._suffix = b""
        self._opened = False
        self._kind = "text"
        self._call = -1

    def _set_prefix(self) -> None:
        opening = json.dumps(self._base)[:-1] + b',"choices":[{"index":0,"delta":'
        self._prefix = b"data: " + opening
        self._suffix = (',"logprobs":null,"finish_reason":null}]' + self._tail).encode()

    def feed(self, event: Event) -> bytes:
        """Return the frames for `event`."""
        match event:
            case PartDelta():
                return self._delta(event)
            case PartStart():
                return self._open() + self._part(event)
            case PartEnd():
                return b""
            case Start():
                return self._start(event)
            case Progress():
                return self._progress(event)
            case Finish():
                return self._open() + self._finish(event)
            case Failed():
                return b"data: " + json.dumps(render_error(event.error)) + b"\n\n"
            case _:
                assert_never(event)

    def heartbeat(self) -> bytes:
        """Return an empty delta, after the role if that was not sent yet."""
        return self._open() + self._frame(b"{}")

    def _start(self, event: Start) -> bytes:
        if event.fingerprint and not self._opened:
            self._base["system_fingerprint"] = event.fingerprint
        return self._open()

    def _open(self) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        self._set_prefix()
        return self._frame(b'{"role":"assistant","content":""}')

    def _frame(self, delta: bytes) -> bytes:
        return self._prefix + delta + self._suffix

    def _part(self, event: PartStart) -> bytes:
        self._kind = event.kind
        if event.kind != "tool_call":
            return b""
        self._call += 1
        if self._reply.legacy_functions:
            if self._call:
                return b""
            return self._frame(json.dumps({"function_call": {"name": event.tool_name, "arguments": ""}}))
        head = {
            "index": self._call,
            "id": f"call_{event.tool_id}",
            "type": "function",
            "function": {"name": event.tool_name, "arguments": ""},
        }
        return self._frame(json.dumps({"tool_calls": [head]}))

    def _delta(self, event: PartDelta) -> bytes:
        text = json.dumps(event.text)
        if self._kind == "text":
            delta = b'{"content":' + text + b"}"
        elif self._kind == "reasoning":
            if self._reply.hide_reasoning:
                return b""
            delta = b'{"reasoning_content":' + text + b"}"
        elif not self._reply.legacy_functions:
            delta = b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}' % (self._call, text)
        elif self._call == 0:
            delta = b'{"function_call":{"arguments":' + text + b"}}"
        else:
            return b""
        if event.logprobs or (event.timings and self._reply.timings):
            return self._decorated(delta, event)
        return self._prefix + delta + self._suffix

    def _decorated(self, delta: bytes, event: PartDelta) -> bytes:
        choice: dict[str, Any] = {"index": 0, "delta": json.loads(delta), "logprobs": None, "finish_reason": None}
        top = self._reply.top_logprobs
        if event.logprobs and top is not None:
            choice["logprobs"] = {"content": [entry(item, top) for item in event.logprobs], "refusal": None}
        if event.logprobs and self._reply.token_ids:
            choice["token_ids"] = [item["id"] for item in event.logprobs if "id" in item]
        extra = {"timings": event.timings} if event.timings and self._reply.timings else {}
        return self._chunk([choice], **extra)

    def _chunk(self, choices: list[dict[str, Any]], **extra: Any) -> bytes:
        body = {**self._base, "choices": choices}
        if self._reply.include_usage:
            body["usage"] = None
        return b"data: " + json.dumps({**body, **extra}) + b"\n\n"

    def _progress(self, event: Progress) -> bytes:
        if not self._reply.progress or event.detail is None:
            return b""
        choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}
        return self._open() + self._chunk([choice], **{f"{event.stage}_progress": event.detail})

    def _finish(self, event: Finish) -> bytes:
        reason = finish_reason(event.reason, self._reply)
        choice: dict[str, Any] = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": reason}
        extra = {"timings": event.timings} if event.timings and self._reply.timings else {}
        frames = self._chunk([choice], **extra)
        if self._reply.include_usage:
            frames += self._chunk([], usage=render_usage(event.usage))
        return frames + _DONE
