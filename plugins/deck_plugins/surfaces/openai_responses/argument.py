"""The one string in the arguments of a call, decoded while its JSON is still coming in pieces."""

from __future__ import annotations

import re
from enum import Enum, auto

from deck.api import json

_SPACE = " \t\r\n"
_PLAIN = re.compile(r'[^"\\]+')
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LONE = "\ufffd"


class _State(Enum):
    BEFORE = auto()  # the object has not begun
    KEY = auto()  # a key comes, or the object's end
    COLON = auto()
    VALUE = auto()
    STRING = auto()  # inside the string that is wanted
    REST = auto()  # behind it, where nothing counts any more
    STRANGE = auto()  # not the object that was asked for


class StringArgument:
    """Give the value of the member `name` of a JSON object, piece by piece, whatever the slicing.

    A text that is not such an object, or whose member is no string, is given as it stands, all of it at the end.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._state = _State.BEFORE
        self._raw: list[str] = []
        self._rest = ""
        self._high = ""
        self._wanted = False

    def feed(self, piece: str) -> str:
        """Return what `piece` adds to the value."""
        if self._state in (_State.REST, _State.STRANGE):
            self._raw.append(piece)
            return ""
        self._raw.append(piece)
        text, self._rest = self._rest + piece, ""
        found: list[str] = []
        at = 0
        while at < len(text) and self._state not in (_State.REST, _State.STRANGE):
            if self._state is _State.STRING:
                at = self._inside(text, at, found)
            elif text[at] in _SPACE:
                at += 1
            else:
                at = self._step(text, at)
            if at < 0:
                break
        return "".join(found)

    def end(self) -> str:
        """Return what is left once no more will come."""
        if self._state in (_State.STRING, _State.REST):
            high, self._high = self._high, ""
            return _LONE if high else ""
        return self.raw

    @property
    def raw(self) -> str:
        """All that was fed."""
        return "".join(self._raw)

    def _step(self, text: str, at: int) -> int:
        """Take one token outside the wanted string; -1 = it is not complete yet and waits in `_rest`."""
        match self._state:
            case _State.BEFORE:
                self._state = _State.KEY if text[at] == "{" else _State.STRANGE
                return at + 1
            case _State.COLON:
                self._state = _State.VALUE if text[at] == ":" else _State.STRANGE
                return at + 1
            case _State.KEY:
                return self._key(text, at)
            case _:
                return self._value(text, at)

    def _key(self, text: str, at: int) -> int:
        if text[at] == ",":
            return at + 1
        if text[at] != '"':
            self._state = _State.STRANGE
            return at
        end = _string_end(text, at)
        if end < 0:
            return self._wait(text, at)
        try:
            self._wanted = json.loads(text[at:end]) == self._name
        except ValueError:
            self._wanted = False
        self._state = _State.COLON
        return end

    def _value(self, text: str, at: int) -> int:
        if self._wanted:
            self._state = _State.STRING if text[at] == '"' else _State.STRANGE
            return at + 1
        end = _value_end(text, at)
        if end < 0:
            return self._wait(text, at)
        self._state = _State.KEY
        return end

    def _wait(self, text: str, at: int) -> int:
        self._rest = text[at:]
        return -1

    def _inside(self, text: str, at: int, found: list[str]) -> int:
        plain = _PLAIN.match(text, at)
        if plain is not None:
            self._put(plain[0], found)
            return plain.end()
        if text[at] == '"':
            if self._high:
                self._put("", found)
            self._state = _State.REST
            return at + 1
        if at + 1 == len(text):
            return self._wait(text, at)
        letter = text[at + 1]
        if letter != "u":
            self._put(_ESCAPES.get(letter, "\\" + letter), found)
            return at + 2
        if at + 6 > len(text):
            return self._wait(text, at)
        self._code(text[at + 2 : at + 6], found)
        return at + 6

    def _code(self, digits: str, found: list[str]) -> None:
        if not _HEX.fullmatch(digits):
            self._put("\\u" + digits, found)
            return
        code = int(digits, 16)
        if 0xD800 <= code < 0xDC00:
            if self._high:
                found.append(_LONE)
            self._high = chr(code)
        elif 0xDC00 <= code < 0xE000:
            pair = (self._high + chr(code)).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            self._high = ""
            found.append(pair)
        else:
            self._put(chr(code), found)

    def _put(self, text: str, found: list[str]) -> None:
        """Add text; the half of a pair that stands before it has lost its other half."""
        if self._high:
            found.append(_LONE)
            self._high = ""
        found.append(text)


def _string_end(text: str, at: int) -> int:
    """Return where the string that begins at `at` ends, -1 = not in this text."""
    at += 1
    while at < len(text):
        if text[at] == "\\":
            at += 2
        elif text[at] == '"':
            return at + 1
        else:
            at += 1
    return -1


def _value_end(text: str, at: int) -> int:
    """Return where the value that begins at `at` ends, -1 = not in this text."""
    depth = 0
    while at < len(text):
        letter = text[at]
        if letter == '"':
            at = _string_end(text, at)
            if at < 0:
                return -1
            if not depth:
                return at
            continue
        if letter in "{[":
            depth += 1
        elif letter in "}]":
            if not depth:
                return at
            depth -= 1
            if not depth:
                return at + 1
        elif letter == "," and not depth:
            return at
        at += 1
    return -1
