"""Looks for written calls in a text that comes in pieces of any size: what of it is text, and what calls.

What may become a call is held back until that is known; what only looked like one is let go unharmed. What is found
never depends on how the text was cut. A call in a code fence, or behind a backtick that is open in its line, is quoted:
it is text. Knows no events and no request.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from deck.kit.syntax import Found, Syntax

# No call that a model wrote is longer; a text that is gets no second look.
LONGEST_CALL = 256 * 1024
# A text with more false beginnings than this is about calls, and holds none.
MOST_TRIES = 512
_QUOTING = re.compile(r"`+|\n")
_NOT_BLANK = re.compile(r"\S")


@dataclass(frozen=True, slots=True)
class Match:
    """Calls in a text, and the text that they took, with the blanks before it."""

    found: Found
    text: str


@dataclass(frozen=True, slots=True)
class Rules:
    """Syntaxes, prepared: a pattern of all openers, and whose each opener is, the first of them first.

    `firsts` are the characters that openers begin with, `telling` these and the backtick.
    """

    openers: re.Pattern[str]
    of_opener: dict[str, tuple[Syntax, ...]]
    firsts: re.Pattern[str]
    telling: re.Pattern[str]
    longest: int


@lru_cache(maxsize=128)
def rules_of(syntaxes: tuple[Syntax, ...]) -> Rules:
    """Return the syntaxes, prepared for `Scan`; at least one."""
    literals = sorted({opener for syntax in syntaxes for opener in syntax.openers}, key=len, reverse=True)
    firsts = "".join(sorted({literal[0] for literal in literals}))
    whose = {
        literal: tuple(syntax for syntax in syntaxes if any(literal.startswith(opener) for opener in syntax.openers))
        for literal in literals
    }
    return Rules(
        openers=re.compile("|".join(map(re.escape, literals))),
        of_opener=whose,
        firsts=re.compile(f"[{re.escape(firsts)}]"),
        telling=re.compile(f"[{re.escape(firsts)}`]"),
        longest=len(literals[0]),
    )


class Scan:
    """One text after another; `end` closes each."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._begin()

    def _begin(self) -> None:
        self._held = ""
        self._more: list[str] = []
        self._size = 0
        self._due = self._look = 0
        self._is_fresh = True
        self._tries = 0
        self._ticks = 0
        self._inline = 0
        self._is_fenced = False
        self._waits: Syntax | None = None
        self._is_quoting = False

    @property
    def is_pending(self) -> bool:
        """True while a call may have begun that is not complete."""
        return self._waits is not None

    @property
    def is_marked(self) -> bool:
        """True while what may have begun has marks that stand for nothing but a call."""
        return self._waits is not None and self._waits.anywhere

    def more(self, text: str) -> list[str | Match]:
        """Take more of the text; return what is settled."""
        if self._waits is None:
            self._held += text
            if self._rules.telling.search(self._held) is None:
                return self._plain()
            return self._pieces(is_end=False)
        # While a call is awaited, pieces are only gathered. It is read again when it has grown by an eighth and a
        # closer has come, and when it has grown by a quarter, since it may be seen to be none: so a long one does not
        # cost the square of its length.
        self._more.append(text)
        self._size += len(text)
        if self._size < self._due and self._size <= LONGEST_CALL:
            return []
        if self._size > LONGEST_CALL or self._has_closer():
            return self._pieces(is_end=False)
        pieces = self._pieces(is_end=False) if self._size >= self._look else []
        self._due = self._size + self._size // 256
        return pieces

    def _plain(self) -> list[str | Match]:
        """Let go text in which no opener can begin and nothing is quoted, but for the blanks at its end."""
        held = self._held
        end = self._before_blanks(0, len(held))
        if not end:
            return []
        text, self._held = held[:end], held[end:]
        self._is_fresh = False
        self._close_ticks()
        if self._inline and "\n" in text:
            self._inline = 0
        return [text]

    def end(self) -> list[str | Match]:
        """Return what is left of the text: it is over."""
        self._gather()
        pieces = self._pieces(is_end=True)
        self._begin()
        return pieces

    def cut(self) -> tuple[list[str | Match], str]:
        """Return what is settled, and the beginning of a call that will never be complete; the text is over."""
        pieces = self._pieces(is_end=False)
        if self._waits is None:
            return [*pieces, *self.end()], ""
        left = self._held
        if self._is_quoting:
            self._take(pieces, 0, len(left))
            left = ""
        self._begin()
        return pieces, left

    def _has_closer(self) -> bool:
        """Tell whether what awaits may be closed by what came since the last look."""
        assert self._waits is not None
        start = max(0, len(self._held) - max(map(len, self._waits.closers)))
        self._gather()
        return any(self._held.find(closer, start) >= 0 for closer in self._waits.closers)

    def _gather(self) -> None:
        if self._more:
            self._held += "".join(self._more)
            self._more = []

    def _pieces(self, *, is_end: bool) -> list[str | Match]:
        self._gather()
        pieces: list[str | Match] = []
        begin = at = 0  # of the text that is let go, and of the search
        while True:
            place = self._next(at) if self._tries < MOST_TRIES else -1
            if place < 0 or (not is_end and self._may_open(place, longer=True)):
                self._waits = None
                end = len(self._held) if is_end else self._kept(at)
                self._pass(at, end)
                self._take(pieces, begin, end)
                self._held = self._held[end:]
                return pieces
            self._pass(at, place)
            is_quoted = self._is_quoted(place)
            found = None if self._is_fenced else self._read(place, is_end=is_end)
            if self._waits is not None:
                self._is_quoting = is_quoted
                end = self._before_blanks(begin, place)
                self._take(pieces, begin, end)
                self._held = self._held[end:]
                self._size = len(self._held)
                self._due = self._size + self._size // 8
                self._look = self._size + self._size // 4
                return pieces
            if found is None:
                self._pass(place, place + 1)
                at = place + 1
                continue
            if is_quoted:
                at = place + found.length
                self._is_fresh = False
                continue
            end = self._before_blanks(begin, place)
            self._take(pieces, begin, end)
            begin = at = place + found.length
            pieces.append(Match(found, self._held[end:begin]))
            self._is_fresh, self._ticks = False, 0

    def _next(self, at: int) -> int:
        """Return where the next opener stands that may count, else -1."""
        for found in self._rules.openers.finditer(self._held, at):
            if any(syntax.anywhere for syntax in self._rules.of_opener[found[0]]) or self._is_start(at, found.start()):
                return found.start()
        return -1

    def _read(self, place: int, *, is_end: bool) -> Found | None:
        """Return the calls that stand at a place; a syntax that may find some later is waited for."""
        self._waits = None
        opener = self._rules.openers.match(self._held, place)
        assert opener is not None
        is_whole = len(self._held) - place <= LONGEST_CALL
        text = self._held[place : place + LONGEST_CALL]
        is_start = self._is_start(place, place)
        for syntax in self._rules.of_opener[opener[0]]:
            if not syntax.anywhere and not is_start:
                continue
            found = syntax.read(text, is_end=is_end and is_whole)
            if isinstance(found, Found):
                self._tries += not found.calls
                return found
            if found and is_whole and not is_end:
                self._waits = syntax
                return None
        self._tries += 1
        return None

    def _is_start(self, at: int, place: int) -> bool:
        """Tell whether nothing but blanks was said before a place; up to `at` that is known."""
        return self._is_fresh and not _NOT_BLANK.search(self._held, at, place)

    def _pass(self, at: int, end: int) -> None:
        """Take note of the text between two places: whether anything is said, and of the fences in it."""
        if end <= at:
            return
        if self._is_fresh:
            self._is_fresh = not _NOT_BLANK.search(self._held, at, end)
        if not self._ticks and not self._inline and self._held.find("`", at, end) < 0:
            return
        last = at
        for found in _QUOTING.finditer(self._held, at, end):
            if found.start() > last:
                self._close_ticks()
            if found[0][0] == "`":
                self._ticks += len(found[0])
            else:
                self._close_ticks()
                self._inline = 0  # such code ends with its line
            last = found.end()
        if last < end or (last == end and self._held[end - 1] != "`"):
            self._close_ticks()

    def _close_ticks(self) -> None:
        """Take note of a row of backticks that is complete."""
        if self._ticks >= 3 and not self._inline:
            self._is_fenced = not self._is_fenced
        elif self._ticks and not self._is_fenced:
            self._inline = 0 if self._inline == self._ticks else self._inline or self._ticks
        self._ticks = 0

    def _is_quoted(self, place: int) -> bool:
        if self._held[place] != "`":
            self._close_ticks()
        return self._is_fenced or self._inline > 0

    def _before_blanks(self, begin: int, place: int) -> int:
        """Return where the line breaks before a place begin: between text and call they belong to the syntax.

        So do blanks at the start of an answer; others are text, and are not held back.
        """
        end = place
        while end > begin and self._held[end - 1].isspace():
            end -= 1
        if self._is_fresh and end == begin:
            return begin
        found = self._held.find("\n", end, place)
        return place if found < 0 else found

    def _take(self, pieces: list[str | Match], begin: int, end: int) -> None:
        if end > begin:
            pieces.append(self._held[begin:end])

    def _kept(self, at: int) -> int:
        """Return where the end of the text begins that may be the beginning of an opener, with the blanks before it."""
        held = self._held
        if self._tries >= MOST_TRIES:
            return len(held)
        place = len(held)
        for found in self._rules.firsts.finditer(held, max(at, len(held) - self._rules.longest + 1)):
            if self._may_open(found.start()):
                place = found.start()
                break
        return self._before_blanks(at, place)

    def _may_open(self, place: int, *, longer: bool = False) -> bool:
        """Tell whether the text from a place on may grow into an opener, or into a longer one than it is."""
        if len(self._held) - place >= self._rules.longest:
            return False
        rest = self._held[place:]
        return any(
            literal.startswith(rest)
            and not (longer and literal == rest)
            and (any(syntax.anywhere for syntax in syntaxes) or self._is_start(0, place))
            for literal, syntaxes in self._rules.of_opener.items()
        )
