"""Reads a text that a model may not have finished: what is asked for is there, is not there, or may still come."""

from __future__ import annotations

import re
from typing import Any

from deck import json

_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]|"', re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]*")
_SPACE = re.compile(r"\s*")
_DEEPEST = 128
_LONGEST_TAG = 512


class NotACall(Exception):
    """The text is something else."""


class NeedsMore(Exception):
    """The text ends before it is clear what it is."""


class Tag:
    """A tag: a literal, what stands behind it, and `>`.

    Args:
        literal: how it begins.
        rest: a pattern of what follows up to the `>`.
        begun: a pattern of all beginnings of that.
    """

    __slots__ = ("begun", "whole")

    def __init__(self, literal: str, rest: str, begun: str) -> None:
        self.whole = re.compile(f"{re.escape(literal)}{rest}>")
        for letter in reversed(literal):
            begun = f"(?:{re.escape(letter)}{begun})?"
        self.begun = re.compile(begun)


class Cursor:
    """A place in a text; `is_end` says that nothing follows it."""

    __slots__ = ("at", "is_end", "text")

    def __init__(self, text: str, *, is_end: bool) -> None:
        self.text = text
        self.is_end = is_end
        self.at = 0

    @property
    def is_done(self) -> bool:
        """True at the end of the text."""
        return self.at >= len(self.text)

    def space(self) -> None:
        """Pass over blanks and line breaks."""
        found = _SPACE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def maybe(self, *literals: str) -> str:
        """Pass over the first of `literals` that stands here, and return it; "" = none does.

        Raises:
            NeedsMore: one may still come.
        """
        rest = None if self.is_end else self.text[self.at : self.at + max(map(len, literals))]
        for literal in literals:
            if self.text.startswith(literal, self.at):
                self.at += len(literal)
                return literal
            if rest is not None and literal.startswith(rest):
                raise NeedsMore
        return ""

    def stands(self, literal: str) -> bool:
        """Tell whether a literal stands here.

        Raises:
            NeedsMore: it may still come.
        """
        here = self.at
        found = bool(self.maybe(literal))
        self.at = here
        return found

    def take(self, *literals: str) -> str:
        """Pass over one of `literals`, which must stand here.

        Raises:
            NotACall: none does.
            NeedsMore: one may still come.
        """
        found = self.maybe(*literals)
        if not found:
            raise NotACall
        return found

    def until(self, *literals: str, within: int | None = None) -> str:
        """Return the text before the nearest of `literals`, and pass over it.

        Args:
            literals: what ends the text.
            within: the most characters that may stand before it, None = any number.

        Raises:
            NeedsMore: none stands in the text yet.
            NotACall: none will.
        """
        last = len(self.text) if within is None else self.at + within
        found = [(self.text.find(literal, self.at, last + len(literal)), literal) for literal in literals]
        places = [(place, literal) for place, literal in found if place >= 0]
        if not places:
            is_over = within is not None and len(self.text) >= last + max(map(len, literals))
            raise NotACall if is_over else self.short()
        place, literal = min(places)
        before = self.text[self.at : place]
        self.at = place + len(literal)
        return before

    def rest(self, *literals: str) -> str:
        """Return the text before the nearest of `literals`, and pass over it; at the end, all there is.

        Raises:
            NeedsMore: none stands in the text yet.
        """
        try:
            return self.until(*literals)
        except NotACall:
            found, self.at = self.text[self.at :], len(self.text)
            return found

    def tag(self, tag: Tag) -> re.Match[str]:
        """Pass over the tag that stands here, up to its `>`, and return how its pattern matches all of it.

        Raises:
            NotACall: another text stands here.
            NeedsMore: the tag may not be complete.
        """
        end = self.text.find(">", self.at, self.at + _LONGEST_TAG)
        if end < 0:
            is_begun = tag.begun.fullmatch(self.text, self.at, self.at + _LONGEST_TAG) is not None
            raise self.short() if is_begun and len(self.text) - self.at < _LONGEST_TAG else NotACall
        found = tag.whole.fullmatch(self.text, self.at, end + 1)
        if found is None:
            raise NotACall
        self.at = end + 1
        return found

    def since(self, place: int) -> str:
        """Return the text from a place to here."""
        return self.text[place : self.at]

    def name(self) -> str:
        """Return the name that stands here, as models write names of functions.

        Raises:
            NotACall: none stands here.
            NeedsMore: it may go on.
        """
        found = _NAME.match(self.text, self.at)
        if found is None:
            if self.is_done:
                raise self.short()
            raise NotACall
        if found.end() == len(self.text) and not self.is_end:
            raise NeedsMore
        self.at = found.end()
        return found[0]

    def value(self) -> tuple[Any, str]:
        """Return the JSON object or array that stands here: decoded, and its own text.

        Raises:
            NotACall: something else stands here.
            NeedsMore: it is not closed yet.
        """
        if self.is_done:
            raise self.short()
        if self.text[self.at] not in "{[":
            raise NotACall
        end = self._closing()
        raw = self.text[self.at : end]
        try:
            value = json.loads_exact(raw)
        except (ValueError, RecursionError):
            raise NotACall from None
        self.at = end
        return value, raw

    def _closing(self) -> int:
        depth = 0
        for found in _STRUCTURE.finditer(self.text, self.at):
            match found[0]:
                case "{" | "[":
                    depth += 1
                    if depth > _DEEPEST:
                        raise NotACall
                case "}" | "]":
                    depth -= 1
                    if not depth:
                        return found.end()
                case '"':
                    break  # a text that is not closed yet
                case _:
                    pass  # a whole text
        raise self.short()

    def short(self) -> Exception:
        """Return what it means that the text is too short."""
        return NotACall() if self.is_end else NeedsMore()
