"""The stream of Responses: canonical events to typed, numbered events with one item open at a time.

The frames of a delta are put together from pieces encoded once, since this runs for every token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from deck.api import (
    Event,
    Failed,
    Finish,
    FinishReason,
    Parsed,
    PartDelta,
    PartEnd,
    PartStart,
    Progress,
    ReplyHead,
    Start,
    json,
)
from deck_plugins.openai_wire import render_error

from .argument import StringArgument
from .parse import Reply
from .render import CUT, Item, failure, finished, item_of, logprobs_of, output_text, response, status_of

_DONE = b"data: [DONE]\n\n"
_DELTAS = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function": "response.function_call_arguments",
    "custom": "response.custom_tool_call_input",
}
_FINALS = {"message": "text", "reasoning": "text", "function": "arguments", "custom": "input"}
_IN_PARTS = frozenset({"message", "reasoning"})


class _Open:
    """The item that is open: what it said so far, and the pieces of its deltas' frames."""

    __slots__ = ("argument", "has_ended", "index", "item", "logprobs", "pieces", "prefix", "suffix")

    def __init__(self, item: Item, index: int) -> None:
        self.item = item
        self.index = index
        self.pieces: list[str] = []
        self.logprobs: list[dict[str, Any]] = []
        self.argument: StringArgument | None = item.argument
        self.has_ended = False
        name = f"{_DELTAS[item.kind]}.delta"
        self.prefix = b'event: %b\ndata: {"type":"%b","sequence_number":' % (name.encode(), name.encode())
        self.suffix = b"," + json.dumps(self.place())[1:-1] + b',"delta":'

    def place(self) -> dict[str, Any]:
        """Return the members that say where an event belongs."""
        place: dict[str, Any] = {"item_id": self.item.id, "output_index": self.index}
        return place | {"content_index": 0} if self.item.kind in _IN_PARTS else place

    def part(self, text: str) -> dict[str, Any]:
        """Return the content part."""
        if self.item.kind == "message":
            return output_text(text, self.logprobs)
        return {"type": "reasoning_text", "text": text}


class ResponsesProjector:
    """One streamed answer; every event has the next number, from 0.

    An item opens with its first text and is closed by what follows it, since only then is it known whether it is whole.
    """

    def __init__(self, parsed: Parsed, head: ReplyHead) -> None:
        self._reply: Reply = parsed.reply
        self._head = head
        self._number = 0
        self._is_opened = False
        self._part: PartStart | None = None
        self._open: _Open | None = None
        self._output: list[dict[str, Any]] = []
        self._waiting: list[dict[str, Any]] = []

    def feed(self, event: Event) -> bytes:
        """Return the frames for `event`."""
        match event:
            case PartDelta():
                return self._delta(event)
            case PartStart():
                return self._begin() + self._start_part(event)
            case PartEnd():
                return self._end_part()
            case Start():
                return self._begin()
            case Progress():
                return self._progress(event)
            case Finish():
                return self._begin() + self._finish(event)
            case Failed():
                return self._begin() + self._fail(event)
            case _:
                assert_never(event)

    def heartbeat(self) -> bytes:
        """Return one more `response.in_progress`, after `response.created` if that was not sent yet."""
        return self._begin() or self._event("response.in_progress", response=self._state("in_progress"))

    def _event(self, name: str, /, **members: Any) -> bytes:
        body = json.dumps({"type": name, "sequence_number": self._number, **members})
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (name.encode(), body)

    def _state(self, status: str, /, **members: Any) -> dict[str, Any]:
        return response(self._reply, self._head, status, **members)

    def _begin(self) -> bytes:
        if self._is_opened:
            return b""
        self._is_opened = True
        state = self._state("in_progress")
        return self._event("response.created", response=state) + self._event("response.in_progress", response=state)

    def _progress(self, event: Progress) -> bytes:
        if not self._reply.progress or event.detail is None:
            return b""
        begun, state = self._begin(), self._state("in_progress")
        told = {f"{event.stage}_progress": event.detail}
        return begun + self._event("response.in_progress", response=state, **told)

    def _start_part(self, event: PartStart) -> bytes:
        self._part, self._waiting = event, []
        return self._open_item(event) if event.kind == "tool_call" else b""

    def _open_item(self, start: PartStart) -> bytes:
        closed = self._close(None)
        index = len(self._output)
        opened = self._open = _Open(item_of(start, index, self._reply, self._head), index)
        item = opened.item.shown("", "in_progress")
        frames = closed + self._event("response.output_item.added", output_index=index, item=item)
        if opened.item.kind in _IN_PARTS:
            frames += self._event("response.content_part.added", **opened.place(), part=opened.part(""))
        self._part = None
        return frames

    def _delta(self, event: PartDelta) -> bytes:
        frames = b""
        if self._part is not None:
            if self._part.kind == "reasoning" and self._reply.hide_reasoning:
                if not event.text:
                    return b""
                frames, self._open = self._close(None), None
                return frames
            if not event.text:
                self._waiting += logprobs_of(event.logprobs, self._reply.top_logprobs)
                return b""
            frames = self._open_item(self._part)
        opened = self._open
        assert opened is not None
        text = event.text if opened.argument is None else opened.argument.feed(event.text)
        entries = self._waiting
        if event.logprobs and self._reply.top_logprobs is not None and opened.item.kind == "message":
            entries = entries + logprobs_of(event.logprobs, self._reply.top_logprobs)
        if entries:
            self._waiting = []
            opened.logprobs += entries
        if not text and not entries:
            return frames
        timings = event.timings if self._reply.timings else None
        return frames + self._delta_frame(opened, text, entries, timings)

    def _delta_frame(
        self, opened: _Open, text: str, entries: list[dict[str, Any]], timings: Mapping[str, Any] | None
    ) -> bytes:
        opened.pieces.append(text)
        number = str(self._number).encode()
        self._number += 1
        tail = b"}\n\n"
        if opened.item.kind == "message":
            tail = (b',"logprobs":%b}\n\n' % json.dumps(entries)) if entries else b',"logprobs":[]}\n\n'
        if timings:
            tail = b',"timings":' + json.dumps(timings) + tail
        return opened.prefix + number + opened.suffix + json.dumps(text) + tail

    def _end_part(self) -> bytes:
        if self._part is not None and self._part.kind == "text" and self._waiting:
            # A text of nothing but tokens' entries, which the whole answer shows too.
            frames = self._open_item(self._part)
            assert self._open is not None
            self._open.logprobs += self._waiting
            frames += self._delta_frame(self._open, "", self._waiting, None)
            self._waiting, self._open.has_ended = [], True
            return frames
        self._part = None
        if self._open is not None:
            self._open.has_ended = True
        return b""

    def _close(self, reason: FinishReason | None) -> bytes:
        """End the open item; `reason` ended the answer with it."""
        opened, self._open = self._open, None
        if opened is None:
            return b""
        item, frames = opened.item, b""
        if opened.argument is not None and (rest := opened.argument.end()):
            frames = self._delta_frame(opened, rest, [], None)
        text = "".join(opened.pieces)
        raw = text if opened.argument is None else opened.argument.raw
        place, status = opened.place(), status_of(item, raw, reason)
        logprobs = {"logprobs": opened.logprobs} if item.kind == "message" else {}
        name = {"name": item.named.name} if item.kind == "function" and item.named else {}
        final = {_FINALS[item.kind]: text}
        frames += self._event(f"{_DELTAS[item.kind]}.done", **place, **final, **name, **logprobs)
        if item.kind in _IN_PARTS:
            frames += self._event("response.content_part.done", **place, part=opened.part(text))
        shown = item.shown(text, status, opened.logprobs)
        self._output.append(shown)
        return frames + self._event("response.output_item.done", output_index=opened.index, item=shown)

    def _finish(self, event: Finish) -> bytes:
        frames = self._close(event.reason)
        extra = {"timings": event.timings} if event.timings and self._reply.timings else {}
        body = finished(self._reply, self._head, event.reason, self._output, event.usage) | extra
        name = "response.incomplete" if event.reason in CUT else "response.completed"
        return frames + self._event(name, response=body) + _DONE

    def _fail(self, event: Failed) -> bytes:
        """End in the wire's two events of a failure; an item that is not whole stays open."""
        is_whole = self._open is not None and self._open.has_ended
        frames = self._close(None) if is_whole else b""
        error = render_error(event.error)["error"]
        flat = {name: error[name] for name in ("code", "message", "param")}
        frames += self._event("error", **flat, error=error)
        state = self._state("failed", output=self._output, error=failure(event.error))
        return frames + self._event("response.failed", response=state) + _DONE
