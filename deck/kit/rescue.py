"""Finds calls that llama-server left in the text or in the thoughts, while the answer streams.

What may become a call is held back until that is known; what only looked like one is let go unharmed. Nothing is looked
for when the request offers no tools.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from deck import json
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
from deck.normalize.ids import digest9
from deck.normalize.report import Report

# No call that a model wrote is longer; a text that is gets no second look.
LONGEST_CALL = 256 * 1024
FIELD = "rescued_call"
# Python's spellings, which models fall into.
_LITERALS = {"True": True, "False": False, "None": None}


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call as a model wrote it; `arguments` is the JSON text of an object, or the text of each, not yet typed."""

    name: str
    arguments: str | Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Found:
    """A text begins with calls, which take `length` characters of it."""

    calls: tuple[WrittenCall, ...]
    length: int


class Syntax(Protocol):
    """One way in which models write calls.

    `openers` begin a call. `closers` end it: a text without one is not read again. `anywhere` is false where an opener
    counts only at the start of an answer's text, since ordinary text contains it too.
    """

    openers: Sequence[str]
    closers: Sequence[str]
    anywhere: bool

    def read(self, text: str, *, is_end: bool) -> Found | bool:
        """Return what `text`, which begins with an opener, holds; `is_end` says that no more comes.

        True = it may become a call. False = it is none.
        """
        ...


def offered(request: ChatRequest) -> frozenset[str]:
    """Return the names that a call may have."""
    choice = request.tool_choice
    if choice is not None and choice.mode == "none":
        return frozenset()
    names = {tool.name for tool in request.tools}
    return frozenset(names if choice is None or choice.names is None else names.intersection(choice.names))


def typed(values: Mapping[str, str], schema: Mapping[str, Any]) -> str:
    """Return arguments that were written as bare text as JSON, by the types that the tool's schema gives them."""
    properties = schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    return json.dumps({key: _typed(text, known.get(key)) for key, text in values.items()}).decode()


def _typed(text: str, schema: Any) -> Any:
    """Return a value; where the schema allows text, or the value is no JSON, it is the text itself."""
    kinds = _kinds(schema)
    if "string" in kinds and not (text.strip() == "null" and "null" in kinds):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return _LITERALS.get(text.strip(), text)
    # Nobody said what it is: a number that is meant as text would lose its form.
    return value if kinds or isinstance(value, dict | list) else text


def _kinds(schema: Any) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    said = schema.get("type")
    kinds = {said} if isinstance(said, str) else set(said) if isinstance(said, list) else set()
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            kinds |= {kind for item in schema[key] for kind in _kinds(item)}
    return kinds


class Rescue:
    """A filter that turns calls written as text into calls.

    Args:
        syntaxes: how the model writes them; the first whose opener stands earliest is tried first.
        request: as it was sent.
        report: gets a note for each call that is found.
        seed: makes the ids of the calls.
    """

    def __init__(self, syntaxes: Sequence[Syntax], request: ChatRequest, report: Report, seed: str) -> None:
        self._names = offered(request)
        self._schemas = {tool.name: tool.parameters for tool in request.tools}
        self._report = report
        self._seed = seed
        self._writer = PartWriter()
        self._scan = _Scan(syntaxes, self._names)
        self._kind: PartKind = "text"
        self._last: PartDelta | None = None
        self._rescued = 0

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
                yield from self._writer.taken()
                yield self._finish(event)
                return
            case Start() | Progress() | Failed():
                yield from self._writer.taken()
                yield event
                return
        yield from self._writer.taken()

    def _start(self, event: PartStart) -> None:
        self._kind = event.kind
        if event.kind == "tool_call":
            self._writer.open_call(event.tool_id, event.tool_name)

    def _delta(self, event: PartDelta) -> None:
        if self._kind == "tool_call":
            self._writer.more_of_call(event.text, event.timings)
        elif not self._names:
            self._writer.text(self._kind, event.text, event.logprobs, event.timings)
        else:
            self._last = event
            self._write(self._scan.more(event.text))

    def _end(self) -> None:
        if self._kind != "tool_call" and self._names:
            self._write(self._scan.end())
        self._writer.close()

    def _write(self, pieces: Sequence[str | WrittenCall]) -> None:
        for piece in pieces:
            if isinstance(piece, str):
                last = self._last
                self._writer.text(self._kind, piece, last.logprobs if last else (), last.timings if last else None)
                continue
            arguments = piece.arguments
            if not isinstance(arguments, str):
                arguments = typed(arguments, self._schemas.get(piece.name) or {})
            self._writer.call(digest9(f"{self._seed}:rescued:{self._rescued}"), piece.name, arguments)
            self._rescued += 1
            what = "thoughts" if self._kind == "reasoning" else "text"
            self._report.changed(
                "tools",
                f"a call of {piece.name} that the model wrote into its {what} is sent as a call",
                shown=f"{what}>tool_calls",
                field=FIELD,
            )

    def _finish(self, event: Finish) -> Finish:
        if self._rescued and event.reason is FinishReason.STOP:
            return Finish(FinishReason.TOOL_CALLS, event.usage, event.stop_sequence, event.timings)
        return event


class _Scan:
    """The text of one part after another: what of it is text, and what calls."""

    def __init__(self, syntaxes: Sequence[Syntax], names: Collection[str]) -> None:
        self._syntaxes = syntaxes
        self._names = names
        self._held = ""
        self._pending: list[Syntax] = []
        self._is_fresh = True
        self._after_call = False

    def more(self, text: str) -> list[str | WrittenCall]:
        before = len(self._held)
        self._held += text
        if self._pending and not self._may_close(before):
            return []
        return self._pieces(is_end=False)

    def end(self) -> list[str | WrittenCall]:
        pieces = self._pieces(is_end=True)
        self._is_fresh, self._after_call, self._pending = True, False, []
        return pieces

    def _may_close(self, before: int) -> bool:
        closers = [closer for syntax in self._pending for closer in syntax.closers]
        window = self._held[max(0, before - max(map(len, closers))) :]
        return len(self._held) > LONGEST_CALL or any(closer in window for closer in closers)

    def _pieces(self, *, is_end: bool) -> list[str | WrittenCall]:
        pieces: list[str | WrittenCall] = []
        while self._held:
            if self._after_call:
                # The line break between two calls, or after the last, is part of how they are written.
                self._held = self._held.lstrip()
                if not self._held:
                    break
            place, syntaxes = self._opened()
            if not syntaxes:
                kept = "" if is_end else self._beginning()
                self._let_go(pieces, len(self._held) - len(kept))
                break
            self._let_go(pieces, place)
            found = self._read(syntaxes, is_end=is_end or len(self._held) > LONGEST_CALL)
            if self._pending:
                return pieces
            if found is None:
                self._let_go(pieces, 1)
                continue
            pieces += found.calls
            self._held = self._held[found.length :]
            self._after_call, self._is_fresh = True, False
        return pieces

    def _read(self, syntaxes: Sequence[Syntax], *, is_end: bool) -> Found | None:
        """Return the calls that the held text begins with; those who may find some later are pending."""
        self._pending = []
        for syntax in syntaxes:
            found = syntax.read(self._held, is_end=is_end)
            if found is True and not is_end:
                self._pending.append(syntax)
            elif isinstance(found, Found) and all(call.name in self._names for call in found.calls):
                self._pending = []
                return found
        return None

    def _let_go(self, pieces: list[str | WrittenCall], length: int) -> None:
        if not length:
            return
        text, self._held = self._held[:length], self._held[length:]
        self._after_call = False
        self._is_fresh = self._is_fresh and not text.strip()
        if pieces and isinstance(pieces[-1], str):
            pieces[-1] += text
        else:
            pieces.append(text)

    def _opened(self) -> tuple[int, list[Syntax]]:
        """Return where the first opener stands, and whose it is or may be."""
        first, whose = -1, list[Syntax]()
        for syntax in self._syntaxes:
            places = (self._held.find(opener) for opener in syntax.openers)
            fits = [place for place in places if place >= 0 and (syntax.anywhere or self._is_start(place))]
            if not fits or (whose and min(fits) > first):
                continue
            if not whose or min(fits) < first:
                first, whose = min(fits), []
            whose.append(syntax)
        return first, whose

    def _is_start(self, place: int) -> bool:
        return self._is_fresh and not self._held[:place].strip()

    def _beginning(self) -> str:
        """Return the end of the held text that may be the beginning of an opener."""
        longest = 0
        for syntax in self._syntaxes:
            for opener in syntax.openers:
                for length in range(min(len(opener) - 1, len(self._held)), longest, -1):
                    place = len(self._held) - length
                    if self._held.endswith(opener[:length]) and (syntax.anywhere or self._is_start(place)):
                        longest = length
                        break
        return self._held[len(self._held) - longest :] if longest else ""
