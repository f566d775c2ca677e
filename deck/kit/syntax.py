"""What a syntax of written calls is, and what one finds: calls, in the spellings that models use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from deck import json
from deck.kit.cursor import Cursor, NeedsMore, NotACall

_NAMES = ("name", "function", "tool_name", "tool")
_ARGUMENTS = ("arguments", "parameters", "args", "input")
_NAMESPACE = re.compile(r"^(?:functions|tools)\.|:\d+$")
# Python's spellings, which models fall into.
_LITERALS = {"True": True, "False": False, "None": None}


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call as a model wrote it.

    `arguments` is the JSON text of an object, or the bare text of each, not yet typed. `written` is the text that it
    was read from. A call that is broken in the midst of sound ones has no name.
    """

    name: str
    arguments: str | Mapping[str, str] = "{}"
    written: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """A text begins with calls, which take `length` characters of it; none = marks that mean nothing."""

    calls: tuple[WrittenCall, ...]
    length: int


class Syntax(Protocol):
    """One way in which models write calls.

    `openers` begin a call. `closers` end it: a text is not read again before one has come. `anywhere` is false where
    an opener counts only at the start of an answer's text, since ordinary text contains it too.
    """

    @property
    def openers(self) -> Sequence[str]:
        """What begins a call."""
        ...

    @property
    def closers(self) -> Sequence[str]:
        """What ends one."""
        ...

    @property
    def anywhere(self) -> bool:
        """Whether an opener counts anywhere."""
        ...

    def read(self, text: str, *, is_end: bool) -> Found | bool:
        """Return what `text`, which begins with an opener, holds; `is_end` says that no more comes.

        True = it may become a call. False = it is none. What is found, or that it is none, never depends on how much
        more of the text is there.
        """
        ...


class Grammar:
    """A syntax whose `calls` reads them off a cursor.

    Args:
        openers: what begins a call; it stands in what `calls` reads.
        closers: what ends one; a text without any is not read again.
        anywhere: false where an opener is ordinary text unless it begins the answer.
    """

    def __init__(self, openers: Sequence[str], closers: Sequence[str], *, anywhere: bool = True) -> None:
        self.openers = tuple(openers)
        self.closers = tuple(closers)
        self.anywhere = anywhere

    def read(self, text: str, *, is_end: bool) -> Found | bool:
        """Return the calls that `text` begins with; True = it may become one, False = it is none."""
        cursor = Cursor(text, is_end=is_end)
        try:
            calls = self.calls(cursor)
        except NeedsMore:
            return True
        except NotACall:
            return False
        return Found(tuple(calls), cursor.at) if calls else False

    def calls(self, cursor: Cursor) -> list[WrittenCall]:
        """Read calls.

        Raises:
            NotACall: it is something else.
            NeedsMore: it may become a call.
        """
        raise NotACall


class Stray:
    """Marks that a model leaves behind where no call is: they are no text, and are taken out.

    Args:
        marks: special tokens of the model, which nobody writes.
    """

    def __init__(self, *marks: str) -> None:
        self.openers = self.closers = marks
        self.anywhere = True

    def read(self, text: str, *, is_end: bool) -> Found | bool:
        """Return the mark that `text` begins with."""
        return Found((), max(len(mark) for mark in self.openers if text.startswith(mark)))


def call_of(value: Any, written: str = "") -> WrittenCall:
    """Return the call that a decoded `{"name": …, "arguments": {…}}` is, in the spellings that models use.

    Raises:
        NotACall: it is something else.
    """
    if not isinstance(value, dict):
        raise NotACall
    for wrapper in ("function", "tool_call"):
        if isinstance(value.get(wrapper), dict):
            value = value[wrapper]
    name = next((value[key] for key in _NAMES if isinstance(value.get(key), str)), None)
    if name is None:
        raise NotACall
    arguments: Any = next((value[key] for key in _ARGUMENTS if key in value), None)
    if arguments is None and not value.keys() <= {*_NAMES, *_ARGUMENTS, "type", "id"}:
        raise NotACall  # what else stands there would be lost
    if isinstance(arguments, str):
        try:
            arguments = json.loads_exact(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            raise NotACall from None
    if not isinstance(arguments, dict | None):
        raise NotACall
    return WrittenCall(bare_name(name), encoded(arguments or {}), written)


def calls_of(value: Any, written: str = "") -> list[WrittenCall]:
    """Return the calls of one decoded object or of an array of them."""
    if isinstance(value, list):
        return [call_of(item, encoded(item)) for item in value]
    return [call_of(value, written)]


def bare_name(name: str) -> str:
    """Return a function's name without the namespace that some models put before it and the number behind it."""
    return _NAMESPACE.sub("", name.strip())


def unframed(text: str) -> str:
    """Return a value without the one line break that a syntax puts on either side."""
    return text.removeprefix("\n").removesuffix("\n")


def typed(values: Mapping[str, str], schema: Mapping[str, Any]) -> str:
    """Return arguments that were written as bare text as JSON, by the types that the tool's schema gives them."""
    properties = schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    return encoded({key: _typed(text, known.get(key)) for key, text in values.items()})


def encoded(value: Any) -> str:
    """Return the JSON of what a model wrote.

    Raises:
        NotACall: it has none.
    """
    try:
        return json.dumps_exact(value)
    except (ValueError, TypeError, RecursionError):
        raise NotACall from None


def _typed(text: str, schema: Any) -> Any:
    """Return a value; where the schema allows text, or the value is no JSON, it is the text itself."""
    kinds = _kinds(schema)
    if "string" in kinds and not (text.strip() == "null" and "null" in kinds):
        return text
    try:
        value = json.loads_exact(text)
        encoded(value)
    except (ValueError, RecursionError, NotACall):
        return _LITERALS.get(text.strip(), text)
    # Nobody said what it is: a number that is meant as text would lose its form.
    return value if kinds or isinstance(value, dict | list) else text


def _kinds(schema: Any) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    said = schema.get("type")
    kinds = {said} if isinstance(said, str) else set()
    if isinstance(said, list):
        kinds = {kind for kind in said if isinstance(kind, str)}
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            kinds |= {kind for item in schema[key] for kind in _kinds(item)}
    return kinds


def same_call(name: str, arguments: str) -> tuple[str, Any]:
    """Return what two calls have in common if they are the same: name, and arguments in one spelling."""
    try:
        return name, json.loads_exact(arguments)
    except (ValueError, RecursionError):
        return name, arguments
