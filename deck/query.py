"""The query of Deck's own routes: read strictly by those that operate, reported by those that only show."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, unquote_plus

from deck.body import ClientGone
from deck.errors import DeckError, ErrorKind, invalid
from deck.http import Receive, Scope, header
from deck.normalize.report import Report

_MOST_PARAMETERS = 16
_MOST_DIGITS = 18
_BODY_TIMEOUT = 10.0
_SWITCHES = {"": True, "true": True, "1": True, "false": False, "0": False}
_SHOWN = 50


def read(scope: Scope, known: Sequence[str] = ()) -> dict[str, str]:
    """Return the query's parameters.

    Raises:
        DeckError: one is not among `known`, or stands twice.
    """
    found: dict[str, str] = {}
    for name, value in parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True):
        if name not in known:
            raise invalid(f"this route has no query parameter {name[:_SHOWN]!r}; {_told(known)}", name[:_SHOWN])
        if name in found:
            raise invalid(f"the query parameter {name!r} stands twice; send it once", name)
        found[name] = value
    return found


def _told(known: Sequence[str]) -> str:
    """Say which parameters a route has."""
    if not known:
        return "it has no query parameters"
    return f"its query parameters are {', '.join(f'?{name}' for name in known)}"


def switch(query: Mapping[str, str], name: str) -> bool:
    """Return whether a parameter is given and not switched off.

    Raises:
        DeckError: its value is neither true nor false.
    """
    if name not in query:
        return False
    found = _SWITCHES.get(query[name])
    if found is None:
        message = f"{name}: expected nothing, true, 1, false or 0, got {query[name][:_SHOWN]!r}"
        raise invalid(message, name)
    return found


def number(query: Mapping[str, str], name: str) -> int | None:
    """Return a parameter's whole number, None = it is not given.

    Raises:
        DeckError: its value is none.
    """
    if name not in query:
        return None
    text = query[name]
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise invalid(f"{name}: expected a whole number, got {text[:_SHOWN]!r}", name)
    return int(text)


async def refuse_body(scope: Scope, receive: Receive, known: Sequence[str] = ()) -> None:
    """Refuse what a client sends in the body of a route that reads none; `known` are its query's parameters.

    Raises:
        DeckError: the body is not empty, or does not come.
        ClientGone: the client disconnected.
    """
    fault = invalid(f"this route takes no body; {_told(known)}")
    if (header(scope, b"content-length") or b"").strip(b" 0"):
        raise fault
    if header(scope, b"transfer-encoding") is None:
        return
    try:
        async with asyncio.timeout(_BODY_TIMEOUT):
            if not await _is_empty(receive):
                raise fault
    except TimeoutError as exc:
        raise DeckError(ErrorKind.REQUEST_TIMEOUT, "the body did not end; this route takes none") from exc


async def _is_empty(receive: Receive) -> bool:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if message.get("body"):
            return False
        if not message.get("more_body", False):
            return True


def ignore(query: bytes, report: Report) -> None:
    """Report the parameters of a route that reads none, though clients send some."""
    for item in query.decode("latin-1").split("&")[:_MOST_PARAMETERS]:
        if name := unquote_plus(item.partition("=")[0]):
            report.ignored(f"?{name}", "this route reads no query", field="other")
