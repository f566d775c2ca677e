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
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
# 256 is no multiple of 62: the first eight letters are a little likelier, which ids bear.
_AS_LETTER = bytes(ord(_LETTERS[byte % 62]) for byte in range(256))


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header of that lower-case name."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def request_id(scope: Scope) -> str:
    """Return the client's `x-request-id` if it is a plain one, else a new id."""
    sent = header(scope, b"x-request-id")
    if sent is not None and _REQUEST_ID.fullmatch(sent):
        return sent.decode()
    return new_request_id()


def new_request_id() -> str:
    """Return an id no other request has."""
    return "req_" + secrets.token_hex(12)


def alphanumerics(count: int) -> str:
    """Return so many random letters and digits."""
    return secrets.token_bytes(count).translate(_AS_LETTER).decode("ascii")


def normal_path(path: str) -> str:
    """Return a path as Deck's routes write it: without `/v1`, doubled or trailing slashes."""
    parts = [part for part in path.split("/") if part]
    while parts and parts[0] == "v1":
        parts = parts[1:]
    return "/" + "/".join(parts)
