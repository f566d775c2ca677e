"""The stream of Completions: canonical events to `text_completion` frames.

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
from deck_plugins.openai_wire import render_error, render_usage

from .logprobs import Logprobs
from .parse import Reply
from .render import completion_id, finish_reason

_DONE = b"data: [DONE]\n\n"


class TextProjector:
    """One streamed answer; every frame has the same id, created and model."""

    def __init__(self, parsed: Parsed, head: ReplyHead) -> None:
        self._reply: Reply = parsed.reply
        self._logprobs = None if self._reply.logprobs is None else Logprobs(self._reply.logprobs)
        self._base: dict[str, Any] = {
            "id": completion_id(head),
            "object": "text_completion",
            "created": head.created,
            "model": head.model,
        }
        if self._reply.service_tier:
            self._base["service_tier"] = "default"
        usage = ',"usage":null' if self._reply.include_usage else ""
        self._suffix = (',"index":0,"logprobs":null,"finish_reason":null}]' + usage + "}\n\n").encode()
        self._set_prefix()

    def _set_prefix(self) -> None:
        self._prefix = b"data: " + json.dumps(self._base)[:-1] + b',"choices":[{"text":'

    def feed(self, event: Event) -> bytes:
        """Return the frames for `event`."""
        match event:
            case PartDelta():
                return self._delta(event)
            case PartStart() | PartEnd():
                return b""
            case Start():
                return self._start(event)
            case Progress():
                return self._progress(event)
            case Finish():
                return self._finish(event)
            case Failed():
                return b"data: " + json.dumps(render_error(event.error)) + b"\n\n"
            case _:
                assert_never(event)

    def heartbeat(self) -> bytes:
        """Return a chunk with no text."""
        return self._prefix + b'""' + self._suffix

    def _start(self, event: Start) -> bytes:
        if event.fingerprint:
            self._base["system_fingerprint"] = event.fingerprint
            self._set_prefix()
        return b""

    def _delta(self, event: PartDelta) -> bytes:
        if event.logprobs or (event.timings and self._reply.timings):
            return self._decorated(event)
        return self._prefix + json.dumps(event.text) + self._suffix

    def _decorated(self, event: PartDelta) -> bytes:
        choice = _choice(event.text)
        if event.logprobs and self._logprobs is not None:
            choice["logprobs"] = self._logprobs.convert(event.logprobs)
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
        return self._chunk([_choice("")], **{f"{event.stage}_progress": event.detail})

    def _finish(self, event: Finish) -> bytes:
        extra = {"timings": event.timings} if event.timings and self._reply.timings else {}
        frames = self._chunk([{**_choice(""), "finish_reason": finish_reason(event.reason)}], **extra)
        if self._reply.include_usage:
            frames += self._chunk([], usage=render_usage(event.usage))
        return frames + _DONE


def _choice(text: str) -> dict[str, Any]:
    return {"text": text, "index": 0, "logprobs": None, "finish_reason": None}
