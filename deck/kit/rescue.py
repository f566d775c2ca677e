"""Finds calls that llama-server left in the text or in the thoughts, while the answer streams.

Nothing is looked for when the request offers no tools, and no call is made of a name that was not offered. A call
among the thoughts counts only where the answer is nothing but thoughts: else the model was only thinking of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deck.canon.events import (
    Event,
    Failed,
    Finish,
    FinishReason,
    PartDelta,
    PartEnd,
    PartKind,
    PartStart,
    Progress,
    Start,
)
from deck.canon.request import ChatRequest
from deck.kit.parts import PartWriter
from deck.kit.scan import Match, Scan, rules_of
from deck.kit.syntax import Syntax, WrittenCall, same_call, typed
from deck.normalize.ids import digest9
from deck.normalize.repairs import RESCUED_CALL
from deck.normalize.report import Report

_CUT = (FinishReason.LENGTH, FinishReason.CONTEXT)


def offered(request: ChatRequest) -> frozenset[str]:
    """Return the names that a call may have."""
    choice = request.tool_choice
    if choice is not None and choice.mode == "none":
        return frozenset()
    names = {tool.name for tool in request.tools}
    return frozenset(names if choice is None or choice.names is None else names.intersection(choice.names))


def rescue_of(syntaxes: Sequence[Syntax], request: ChatRequest, report: Report, seed: str) -> Rescue | None:
    """Return the filter for an answer, None = there is nothing to look for."""
    if not request.tools or not offered(request):
        return None
    if request.output is not None:
        # The client asked for JSON: an answer that is nothing else is what it asked for.
        syntaxes = [syntax for syntax in syntaxes if syntax.anywhere]
    return Rescue(syntaxes, request, report, seed) if syntaxes else None


class Rescue:
    """A filter that turns calls written as text into calls.

    Args:
        syntaxes: how the model writes them, at least one; of two that begin alike, the first is tried first.
        request: as it was sent; it offers tools.
        report: gets a note for each call that is found, and for what is left out.
        seed: makes the ids of the calls.
    """

    def __init__(self, syntaxes: Sequence[Syntax], request: ChatRequest, report: Report, seed: str) -> None:
        self._names = offered(request)
        self._schemas = {tool.name: tool.parameters for tool in request.tools}
        self._takes_one = request.parallel_tool_calls is False
        self._notes = _Notes(report)
        self._seed = seed
        self._writer = PartWriter()
        self._scan = Scan(rules_of(tuple(syntaxes)))
        self._kind: PartKind = "text"
        self._is_over = False  # a text ended, and what it holds back is not settled
        self._thought: list[str | Match] = []
        self._blank = ""
        self._after_call = False
        self._logprobs: tuple[Mapping[str, Any], ...] = ()
        self._timings: Mapping[str, Any] | None = None
        self._has_spoken = False
        self._rescued: list[tuple[str, Any]] = []
        self._given: list[tuple[str, Any]] = []
        self._held_call: tuple[PartStart, list[PartDelta]] | None = None
        self._call = ["", ""]

    def feed(self, event: Event) -> Iterator[Event]:
        """Return what becomes of `event`."""
        match event:
            case PartDelta():
                self._delta(event)
            case PartStart():
                self._start(event)
            case PartEnd():
                self._end()
            case Finish():
                self._settle(event.reason)
                if self._logprobs:
                    self._writer.rest("text", self._logprobs, is_last=True)
                self._writer.close()
                yield from self._writer.taken()
                yield self._finish(event)
                return
            case Failed():
                self._break()
                yield from self._writer.taken()
                yield event
                return
            case Start() | Progress():
                yield event
                return
        yield from self._writer.taken()

    def _start(self, event: PartStart) -> None:
        if event.kind == "text" and self._thought:
            self._finish_text()  # whether anything is said decides what the calls among the thoughts are
        else:
            self._settle(None)
        self._kind = event.kind
        if event.kind == "tool_call":
            self._call = [event.tool_name, ""]
            self._has_spoken = True
            if self._rescued:
                self._held_call = (event, [])
            else:
                self._writer.open_call(event.tool_id, event.tool_name)

    def _delta(self, event: PartDelta) -> None:
        if self._kind == "tool_call":
            self._call[1] += event.text
            if self._held_call is not None:
                self._held_call[1].append(event)
            else:
                self._writer.more_of_call(event.text, event.timings)
            return
        self._logprobs += event.logprobs
        self._timings = event.timings or self._timings
        self._take(self._scan.more(event.text))

    def _end(self) -> None:
        if self._kind == "tool_call":
            self._end_call()
        else:
            self._is_over = True

    def _end_call(self) -> None:
        """Close a call that llama-server read, or leave it out when it also stood in the text."""
        call = same_call(self._call[0], self._call[1] or "{}")
        held, self._held_call = self._held_call, None
        if held is not None:
            if call in self._rescued:
                self._rescued.remove(call)
                self._notes.twice(self._call[0])
                return
            self._open_held(*held)
        self._given.append(call)
        self._writer.close()

    def _finish_text(self, reason: FinishReason | None = None) -> None:
        """Settle what a text that is over holds back; `reason` says that the answer is over as well, and why."""
        if not self._is_over:
            return
        self._is_over = False
        if reason in _CUT and self._scan.is_pending:
            is_marked = self._scan.is_marked
            pieces, left = self._scan.cut()
            if left and not is_marked and not any(name in left for name in self._names):
                pieces, left = [*pieces, left], ""  # ordinary text that only begins as a call may
            self._take(pieces)
            if left:
                self._notes.cut(len(left))
                self._logprobs = ()
            return
        self._take(self._scan.end())
        if self._logprobs and self._writer.rest(self._kind, self._logprobs):
            self._logprobs = ()

    def _settle(self, reason: FinishReason | None) -> None:
        """Settle all that is held back; what follows is another part, or the end of the answer."""
        self._finish_text(reason)
        thought, self._thought = self._thought, []
        are_calls = bool(thought) and reason is not None and reason not in _CUT and not self._has_spoken
        for piece in thought:
            if isinstance(piece, str):
                self._write(piece, "reasoning")
            elif not are_calls:
                self._write(piece.text, "reasoning")
        if are_calls:
            for piece in thought:
                if isinstance(piece, Match):
                    self._write_calls(piece, "thoughts")
        self._say(self._blank)
        self._blank = ""
        self._writer.close()
        self._after_call = False

    def _break(self) -> None:
        """Let go what is held back of an answer that broke off; what is open stays open, being incomplete."""
        if self._kind == "tool_call":
            held, self._held_call = self._held_call, None
            if held is not None:
                self._open_held(*held)
            return
        was_over, self._is_over = self._is_over, True
        self._finish_text(FinishReason.LENGTH)
        self._break_off()
        self._say(self._blank)
        self._blank = ""
        if was_over:
            self._writer.close()

    def _open_held(self, start: PartStart, deltas: Sequence[PartDelta]) -> None:
        self._writer.open_call(start.tool_id, start.tool_name)
        for delta in deltas:
            self._writer.more_of_call(delta.text, delta.timings)

    def _take(self, pieces: Sequence[str | Match]) -> None:
        for piece in pieces:
            if isinstance(piece, Match):
                piece = self._judged(piece)
            if self._kind == "reasoning":
                if self._thought or isinstance(piece, Match):
                    self._thought.append(piece)
                else:
                    self._write(piece, "reasoning")
            elif isinstance(piece, str):
                self._say(piece)
            else:
                self._break_off()
                self._write_calls(piece, "text")

    def _judged(self, match: Match) -> str | Match:
        """Return calls of which one was offered at least; others are the text that they were, marks are nothing."""
        if not match.found.calls:
            mark = match.text.lstrip()
            self._notes.stray(mark)
            return match.text.removesuffix(mark)
        return match if any(self._may_be(call) for call in match.found.calls) else match.text

    def _may_be(self, call: WrittenCall) -> bool:
        """Tell whether a call may be made: of a name that was offered, and the only one where no second is wanted."""
        is_full = self._takes_one and bool(self._given or self._rescued)
        return call.name in self._names and not is_full

    def _say(self, text: str) -> None:
        """Write text of the answer; blanks behind a call belong to its syntax."""
        if self._after_call:
            text = text.lstrip()
        if self._thought and self._kind == "text":
            self._blank += text
            if not self._blank.strip():
                return
            text, self._blank = self._blank, ""
            self._has_spoken = True
            self._break_off()
        if text:
            self._after_call = False
            self._has_spoken = self._has_spoken or bool(text.strip())
            self._write(text, "text")

    def _break_off(self) -> None:
        """Let go the calls among the thoughts: the answer goes on without them."""
        thought, self._thought = self._thought, []
        for piece in thought:
            self._write(piece if isinstance(piece, str) else piece.text, "reasoning")

    def _write(self, text: str, kind: PartKind) -> None:
        self._writer.text(kind, text, self._logprobs, self._timings)
        if text:
            self._logprobs, self._timings = (), None

    def _write_calls(self, match: Match, where: str) -> None:
        self._logprobs = ()
        for call in match.found.calls:
            if not call.name:
                self._notes.broken()
            elif not self._may_be(call):
                self._write(call.written, "text")
            else:
                self._write_call(call, where)
        self._after_call = True

    def _write_call(self, call: WrittenCall, where: str) -> None:
        arguments = call.arguments
        if not isinstance(arguments, str):
            arguments = typed(arguments, self._schemas.get(call.name) or {})
        key = same_call(call.name, arguments)
        if key in self._given:
            self._given.remove(key)
            self._notes.twice(call.name)
            return
        self._writer.call(digest9(f"{self._seed}:rescued:{self._notes.rescued}"), call.name, arguments)
        self._has_spoken = True
        self._rescued.append(key)
        self._notes.found(call.name, where)

    def _finish(self, event: Finish) -> Finish:
        if self._notes.rescued and event.reason is FinishReason.STOP:
            return Finish(FinishReason.TOOL_CALLS, event.usage, event.stop_sequence, event.timings)
        return event


class _Notes:
    """What the report is told; `rescued` counts the calls."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.rescued = 0
        self._strays: set[str] = set()

    def found(self, name: str, where: str) -> None:
        self.rescued += 1
        reason = f"a call of {name} that the model wrote into its {where} is sent as a call"
        self._report.changed("tools", reason, shown=f"{where}>tool_calls", field=RESCUED_CALL)

    def twice(self, name: str) -> None:
        self._out(f"the model wrote its call of {name} into the text as well; it is sent once")

    def cut(self, length: int) -> None:
        self._out(f"the limit cut a call that the model wrote; its {length} characters are left out")

    def stray(self, mark: str) -> None:
        if mark in self._strays:
            return
        self._strays.add(mark)
        self._out(f"a mark that stands for nothing is left out: {mark}")

    def broken(self) -> None:
        self._out("a call that the model wrote cannot be read; it is left out")

    def _out(self, reason: str) -> None:
        self._report.changed("tools", reason, shown="text>out", field="tools")
