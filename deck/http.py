"""The few ASGI shapes that Deck's raw callables share."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_POOL = 4096
_MOST_PATHS, _LONGEST_PATH = 256, 128
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
# 256 is no multiple of 62: the first eight letters are a little likelier, which ids bear.
_AS_LETTER = bytes(ord(_LETTERS[byte % 62]) for byte in range(256))


class _Randomness:
    """Random bytes, asked of the system many at a time."""

    def __init__(self) -> None:
        self._pool = b""
        self._at = 0

    def take(self, count: int) -> bytes:
        at = self._at
        if at + count > len(self._pool):
            self._pool, at = secrets.token_bytes(_POOL), 0
        self._at = at + count
        return self._pool[at : self._at]


_random = _Randomness()


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header of that lower-case name."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def request_id(scope: Scope) -> str:
    """Return the client's `x-request-id` if it is a plain one, else a new id."""
    return request_id_of(header(scope, b"x-request-id"))


def request_id_of(sent: bytes | None) -> str:
    """Return the id that a client sent if it is a plain one, else a new id."""
    if sent is not None and _REQUEST_ID.fullmatch(sent):
        return sent.decode()
    return new_request_id()


def identities(sent: bytes | None) -> tuple[str, str]:
    """Return an exchange's id, which is the client's if it sent a plain one, and 40 random letters and digits."""
    if sent is not None:
        return request_id_of(sent), alphanumerics(40)
    random = _random.take(52)
    return "req_" + random[:12].hex(), random[12:].translate(_AS_LETTER).decode("ascii")


def new_request_id() -> str:
    """Return an id no other request has."""
    return "req_" + _random.take(12).hex()


def alphanumerics(count: int) -> str:
    """Return so many random letters and digits."""
    return _random.take(count).translate(_AS_LETTER).decode("ascii")


def normal_path(path: str) -> str:
    """Return a path as Deck's routes write it: without `/v1`, doubled or trailing slashes."""
    return _PATHS.get(path) or _normal(path)


_PATHS: dict[str, str] = {}


def _normal(path: str) -> str:
    parts = [part for part in path.split("/") if part]
    while parts and parts[0] == "v1":
        parts = parts[1:]
    found = "/" + "/".join(parts)
    if len(path) <= _LONGEST_PATH and len(_PATHS) < _MOST_PATHS:
        _PATHS[path] = found
    return found
