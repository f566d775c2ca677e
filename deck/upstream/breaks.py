"""What a broken connection to a server is called; names of exceptions and paths of sockets are no client's business."""

from __future__ import annotations

import os
import socket
import ssl

import httpx

_SILENT = "broke off: it closed the connection without an answer"
# What the transport says, by its beginning; the first row that fits decides.
_PROTOCOL = (
    ("peer closed connection", "broke off: it closed the connection in the middle of its answer"),
    ("server disconnected", _SILENT),
    ("the server closed the connection before", _SILENT),
)


def told_break(exc: httpx.HTTPError) -> str:
    """Return what a server did, in words that follow its name."""
    match exc:
        case httpx.ConnectTimeout():
            return "cannot be connected to in time"
        case httpx.ConnectError():
            cause = _cause(exc.__cause__)
            return f"cannot be connected to: {cause}" if cause else "cannot be connected to"
        case httpx.RemoteProtocolError():
            said = str(exc)
            found = (words for start, words in _PROTOCOL if said.startswith(start))
            return next(found, f"broke off: it sent no good HTTP: {said}")
        case httpx.ReadError():
            return "broke off: the connection to it broke"
        case httpx.WriteError():
            return "broke off: it closed the connection while it was being asked"
        case _:
            return f"could not be asked: {exc}"


def _cause(exc: BaseException | None) -> str | None:
    """Return why there is no connection, without the address, None = nobody said."""
    if isinstance(exc, ssl.SSLError | socket.gaierror):
        return exc.strerror
    return os.strerror(exc.errno) if isinstance(exc, OSError) and exc.errno else None
