"""Thoughts that llama-server left in the text become reasoning parts, while the answer streams."""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from deck.canon.events import Event, Failed, Finish, PartDelta, PartEnd, PartKind, PartStart
from deck.kit.parts import PartWriter
from deck.normalize.repairs import LEAKED_THINKING
from deck.normalize.report import Report


class _TextFilter(abc.ABC):
    """A filter of the text of text parts; all else passes, its indices counted anew."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._writer = PartWriter()
        self._kind: PartKind = "text"
        self._logprobs: tuple[Mapping[str, Any], ...] = ()
        self._timings: Mapping[str, Any] | None = None
        self._is_noted = False
        self._is_plain = False  # nothing more can be found in this text
        self._passes = -1  # the part whose pieces stay as they are, to its end
        self._fresh: PartStart | None = None  # a text that has begun, and nothing of it came yet

    def feed(self, event: Event) -> Iterable[Event]:
        """Return what becomes of `event`."""
        if isinstance(event, PartDelta):
            if event.index == self._passes:
                return (event,)
            start, self._fresh = self._fresh, None
            if start is not None and self._lets_pass(start, event):
                return (start, event)
            self._delta(event)
        elif isinstance(event, PartStart):
            self._passes = -1
            self._kind = event.kind
            self._fresh = None
            if event.kind == "tool_call":
                self._writer.open_call(event.tool_id, event.tool_name)
            elif event.kind == "text":
                self._fresh = event
                return ()
        elif isinstance(event, PartEnd):
            self._end_part(event)
        else:
            if isinstance(event, Failed):
                if self._kind == "text":
                    self.end()  # what is open stays open, being incomplete
            elif self._logprobs and isinstance(event, Finish):
                self._writer.rest("text", self._logprobs, is_last=True)
                self._writer.close()
            return [*self._writer.taken(), event] if self._writer.events else (event,)
        return self._writer.taken()

    def _end_part(self, event: PartEnd) -> None:
        if self._kind == "text" and event.index != self._passes:
            self.end()
        if self._logprobs and event.index != self._passes and self._writer.rest(self._kind, self._logprobs):
            self._logprobs = ()
        self._writer.close()

    def is_plain(self, beginning: str) -> bool:
        """Tell whether a text that begins so is certainly let through as it is, whatever follows."""
        return False

    def _lets_pass(self, start: PartStart, event: PartDelta) -> bool:
        """Tell whether a text that begins with this piece passes as it is."""
        owes = self._logprobs or self._timings  # of tags at the end of the part before
        if event.text and not owes and self.is_plain(event.text) and self._writer.pass_whole(start):
            self._passes = event.index
            return True
        self.begin()
        return False

    def _delta(self, event: PartDelta) -> None:
        if self._kind == "tool_call":
            self._writer.more_of_call(event.text, event.timings)
            return
        is_plain = self._kind == "reasoning" or self._is_plain
        if is_plain and event.text and not self._logprobs:
            if self._writer.pass_on(self._kind, event):
                self._passes = event.index
            return
        self._logprobs += event.logprobs
        self._timings = event.timings or self._timings
        if is_plain:
            self.write(self._kind, event.text)
        else:
            self.more(event.text)

    def write(self, kind: PartKind, text: str) -> None:
        self._writer.text(kind, text, self._logprobs, self._timings)
        if text:
            self._logprobs, self._timings = (), None

    def note(self) -> None:
        if not self._is_noted:
            self._is_noted = True
            self._report.changed(
                "messages",
                "thoughts that the model wrote into its text are sent as reasoning",
                shown="text>reasoning",
                field=LEAKED_THINKING,
            )

    @abc.abstractmethod
    def begin(self) -> None:
        """Start on a new text."""

    @abc.abstractmethod
    def more(self, text: str) -> None:
        """Take more of the text."""

    @abc.abstractmethod
    def end(self) -> None:
        """Let go what is held: the text is over."""


class ThinkTags(_TextFilter):
    """`<think>…</think>` at the beginning of a text is reasoning; anywhere else the tags are what was said.

    A closing tag alone at the beginning, left behind when the thoughts before it were taken out, is removed.

    Args:
        report: gets a note.
        tags: pairs of an opening and a closing tag.
    """

    _held = _closer = ""
    _is_after = _has_thought = False

    def __init__(self, report: Report, tags: Sequence[tuple[str, str]] = (("<think>", "</think>"),)) -> None:
        super().__init__(report)
        self._tags = tags
        self._firsts = _firsts(tuple(tags))

    def begin(self) -> None:
        """Start on a new text."""
        self._held = ""
        self._closer = ""
        self._is_plain = False
        self._is_after = False
        self._has_thought = False

    def is_plain(self, beginning: str) -> bool:
        """Tell whether a text begins as no tag does."""
        return beginning[0] not in self._firsts and not beginning[0].isspace()

    def more(self, text: str) -> None:
        """Take more of the text."""
        if self._is_plain:
            self.write("text", text)
            return
        self._held += text
        while self._goes_on():
            pass

    def _goes_on(self) -> bool:
        """Take a step; true = what is left may hold another."""
        return bool(self._held) and not self._is_plain and bool(self._closer or self._open()) and self._think()

    def _open(self) -> bool:
        """Tell whether thoughts have begun; text that begins otherwise is let go."""
        said = self._held.lstrip()
        for opener, closer in self._tags:
            if said.startswith(opener):
                self._held, self._closer, self._has_thought = said[len(opener) :], closer, False
                self.note()
                return True
            if said.startswith(closer) and not self._is_after:
                self._held, self._is_after = said[len(closer) :], True
                self.note()
                return self._open()
        if said and not self._may_begin(said):
            if self._is_after:
                self._held = said  # the line breaks behind the thoughts are part of how they are written
            self._plain()
        return False

    def _may_begin(self, said: str) -> bool:
        """Tell whether a text may become a tag."""
        # Without a generator, since every answer comes by here.
        for pair in self._tags:  # noqa: SIM110
            if pair[0].startswith(said) or pair[1].startswith(said):
                return True
        return False

    def _think(self) -> bool:
        """Let go what was thought; true = the thoughts are over."""
        if not self._has_thought:
            self._held = self._held.lstrip()
        thought, closer, rest = self._held.partition(self._closer)
        if closer:
            self.write("reasoning", thought.rstrip())
            self._held, self._closer, self._is_after = rest, "", True
            return True
        kept = len(self._held) - _kept(self._held, (self._closer,))
        # The line break before the closing tag is part of how it is written.
        thought = self._held[:kept].rstrip()
        self.write("reasoning", thought)
        self._has_thought = self._has_thought or bool(thought)
        self._held = self._held[len(thought) :]
        return False

    def _plain(self) -> None:
        text, self._held, self._is_plain = self._held, "", True
        self.write("text", text)

    def end(self) -> None:
        """Let go what is held: the text is over."""
        if self._closer:
            self.write("reasoning", self._held.rstrip())
        elif not self._is_after or self._held.strip():
            self.write("text", self._held)
        self.begin()


class _Marked(_TextFilter):
    """A text in which marks say what kind of part follows; `_mark` reads the one that stands at a place."""

    _held = ""
    _block: PartKind = "text"
    _is_marked = False

    def __init__(self, report: Report, marks: Sequence[str]) -> None:
        super().__init__(report)
        self._marks = tuple(marks)
        self._pattern = re.compile("|".join(re.escape(mark) for mark in sorted(marks, key=len, reverse=True)))

    def begin(self) -> None:
        """Start on a new text."""
        self._held = ""
        self._block = "text"
        self._is_marked = False

    def more(self, text: str) -> None:
        """Take more of the text."""
        self._held += text
        self._go(is_end=False)

    def end(self) -> None:
        """Let go what is held: the text is over."""
        self._go(is_end=True)
        self.begin()

    def _go(self, *, is_end: bool) -> None:
        begin = at = 0
        while found := self._pattern.search(self._held, at):
            length = self._mark(found.start(), found[0], is_end=is_end)
            if length is None:
                self.write(self._block, self._held[begin : found.start()])
                self._held = self._held[found.start() :]
                return
            if not length:
                at = found.start() + 1
                continue
            kind = self._next
            self.write(self._block, self._held[begin : found.start()])
            begin = at = found.start() + length
            self._block, self._is_marked = kind or "text", kind is not None
        end = len(self._held) - (0 if is_end else _kept(self._held, self._marks))
        end = max(end, at)
        self.write(self._block, self._held[begin:end])
        self._held = self._held[end:]

    _next: PartKind | None = None

    @abc.abstractmethod
    def _mark(self, place: int, mark: str, *, is_end: bool) -> int | None:
        """Return how long the mark at a place is, with its kind in `_next`; 0 = it is text, None = more must come."""


class HarmonyChannels(_Marked):
    """Channels of the harmony format in a text: `analysis` is reasoning, `final` and `commentary` are text.

    Marks are `<|start|>assistant<|channel|>NAME<|message|>…<|end|>`; a header of another form stays as it was said.
    """

    _ENDS = ("<|end|>", "<|return|>", "<|call|>")
    _HEADER = re.compile(r"(?:<\|start\|>assistant)?\s*<\|channel\|>(analysis|final|commentary)\s*<\|message\|>")
    _LONGEST = 128

    def __init__(self, report: Report) -> None:
        super().__init__(report, ("<|start|>", "<|channel|>", *self._ENDS))

    def _mark(self, place: int, mark: str, *, is_end: bool) -> int | None:
        if mark in self._ENDS:
            self._next = None
            return len(mark) if self._is_marked else 0
        found = self._HEADER.match(self._held, place)
        if found is not None:
            self._next = "reasoning" if found[1] == "analysis" else "text"
            self.note()
            return found.end() - place
        is_whole = self._held.find("<|message|>", place, place + self._LONGEST) >= 0
        return 0 if is_end or is_whole or len(self._held) - place > self._LONGEST else None


class BlockMarks(_Marked):
    """Blocks of text that a mark opens and another closes: what kind of part each is stands in its opening mark.

    Args:
        report: gets a note.
        openers: the kind of part that each opening mark begins.
        closers: marks that end a block.
    """

    def __init__(self, report: Report, openers: Mapping[str, PartKind], closers: Sequence[str]) -> None:
        super().__init__(report, (*openers, *closers))
        self._openers = openers

    def _mark(self, place: int, mark: str, *, is_end: bool) -> int | None:
        rest = self._held[place : place + 64]
        if not is_end and any(other != rest and other.startswith(rest) for other in self._marks):
            return None
        self._next = self._openers.get(mark)
        if self._next is None and not self._is_marked:
            return 0
        self.note()
        return len(mark)


def think_tags(*tags: tuple[str, str]) -> Callable[[Report], ThinkTags]:
    """Return what makes a filter for pairs of tags."""
    return partial(ThinkTags, tags=tags)


def block_marks(openers: Mapping[str, PartKind], closers: Sequence[str]) -> Callable[[Report], BlockMarks]:
    """Return what makes a filter for marked blocks."""
    return partial(BlockMarks, openers=openers, closers=closers)


@lru_cache(maxsize=64)
def _firsts(tags: tuple[tuple[str, str], ...]) -> frozenset[str]:
    """Return the first characters of tags."""
    return frozenset(tag[0] for pair in tags for tag in pair)


def _kept(text: str, marks: Sequence[str]) -> int:
    """Return the length of the end of `text` that may be the beginning of a mark."""
    firsts, longest = _beginnings(tuple(marks))
    for found in firsts.finditer(text, max(0, len(text) - longest + 1)):
        rest = text[found.start() :]
        if any(mark.startswith(rest) for mark in marks):
            return len(rest)
    return 0


@lru_cache(maxsize=64)
def _beginnings(marks: tuple[str, ...]) -> tuple[re.Pattern[str], int]:
    """Return a pattern of the first characters of marks, and the length of the longest."""
    firsts = "".join(sorted({mark[0] for mark in marks}))
    return re.compile(f"[{re.escape(firsts)}]"), max(map(len, marks))
