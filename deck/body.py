"""A client's request body, read from ASGI: bounded in size and time, whatever coding it has.

Knows HTTP: type, length, codings. Does not know what the body says.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, Protocol

import zstandard

from deck.errors import DeckError, ErrorKind, invalid
from deck.http import Receive, Scope
from deck.turn import Turn

# So much output is held at a time, and so much is made before other exchanges get their turn.
_PIECE = 64 * 1024
_TURN = 1024 * 1024
# zstd has no bound on output: four bytes can stand for a block of 128 KiB, so 256 for 8 MiB.
_ZSTD_SLICE = 256
# https://www.rfc-editor.org/rfc/rfc9659: a zstd content coding has a window of at most 8 MB.
_ZSTD_WINDOW = 8 * 1024 * 1024
_MOST_CODINGS = 2
# Each member or frame costs a new decoder, even an empty one of nine bytes; bgzip makes one for each 64 KiB.
_MOST_MEMBERS = 4096
_ACCEPTED = "accepted are gzip, deflate, zstd, at most two of them, and identity"


class ClientGone(Exception):
    """The client left before its body was complete; there is nobody to answer."""


class _TooManyMembers(Exception):
    def __init__(self) -> None:
        super().__init__(f"it has more than {_MOST_MEMBERS} members")


class _Coding(Protocol):
    def feed(self, content: bytes) -> Iterator[bytes]:
        """Yield what `content` decodes to, in pieces of bounded size."""
        ...

    def end(self) -> None:
        """Check that nothing is missing.

        Raises:
            EOFError: the coding's own end was not reached.
        """
        ...


# What clients that send JSON say, letter by letter; any other type is judged by `read_body`.
_USUAL_TYPES = (b"application/json", None, b"application/json; charset=utf-8", b"application/json;charset=utf-8")


def whole_body(turn: Turn, headers: Mapping[bytes, bytes] | None, limit: int) -> bytes | None:
    """Return a body that has arrived already, is in no coding and within the limit.

    None = `read_body` must read or judge it; nothing was taken then.

    Args:
        turn: of the request.
        headers: of the request, by lower-case name; None = one stands twice.
        limit: bytes that it may have.
    """
    if (
        headers is None
        or turn.size > limit
        or headers.get(b"content-type") not in _USUAL_TYPES
        or b"content-encoding" in headers
    ):
        return None
    return turn.take_whole()


async def read_body(
    scope: Scope, receive: Receive, *, limit: int, timeout: float, form: Literal["json", "multipart"] = "json"
) -> bytes:
    """Return the whole body, decoded.

    Args:
        scope: of the request.
        receive: of the request.
        limit: bytes that it may have, as sent and after each decoding.
        timeout: seconds in which all of it must arrive.
        form: what it must be; the type of a form is for `deck.multipart` to judge.

    Raises:
        DeckError: `UNSUPPORTED_MEDIA`, `TOO_LARGE`, `REQUEST_TIMEOUT`, or `INVALID_REQUEST` for what cannot be decoded.
        ClientGone: the client disconnected.
    """
    if form == "json":
        _check_type(scope)
    codings = _codings(scope)
    _check_length(scope, limit)
    try:
        async with asyncio.timeout(timeout):
            return await _read(receive, _Decoding(codings, limit), limit)
    except TimeoutError as exc:
        raise DeckError(
            ErrorKind.REQUEST_TIMEOUT, f"the body did not arrive within {timeout:g} s; send it faster or smaller"
        ) from exc


async def _read(receive: Receive, decoding: _Decoding, limit: int) -> bytes:
    pieces: list[bytes] = []
    sent = turn = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk: bytes = message.get("body", b"")
        sent += len(chunk)
        if sent > limit:
            raise _too_large("the body is", limit)
        for piece in decoding.feed(chunk):
            if piece:
                pieces.append(piece)
            turn += len(piece)
            if turn >= _TURN or not piece:
                turn = 0
                await asyncio.sleep(0)
        if not message.get("more_body", False):
            break
    if sent:
        decoding.end()
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _check_type(scope: Scope) -> None:
    sent = _values(scope, b"content-type")
    kind = sent[0].partition(";")[0].strip().lower() if sent else ""
    if kind in ("", "application/json", "text/plain") or kind.endswith("+json"):
        return
    raise DeckError(ErrorKind.UNSUPPORTED_MEDIA, f"Content-Type {kind[:100]!r} is not supported; send application/json")


def _codings(scope: Scope) -> list[str]:
    """Return the codings in the order they were applied."""
    listed = [item.strip().lower() for value in _values(scope, b"content-encoding") for item in value.split(",")]
    names = [name.removeprefix("x-") if name == "x-gzip" else name for name in listed]
    codings = [name for name in names if name not in ("", "identity")]
    unknown = next((name for name in codings if name not in _CODINGS), None)
    if unknown is not None:
        raise DeckError(
            ErrorKind.UNSUPPORTED_MEDIA, f"Content-Encoding {unknown[:100]!r} is not supported; {_ACCEPTED}"
        )
    if len(codings) > _MOST_CODINGS:
        raise DeckError(ErrorKind.UNSUPPORTED_MEDIA, f"Content-Encoding names {len(codings)} codings; {_ACCEPTED}")
    return codings


def _check_length(scope: Scope, limit: int) -> None:
    for value in _values(scope, b"content-length"):
        if not (value.isascii() and value.isdigit()):
            raise invalid(f"Content-Length {value[:100]!r} is not a number of bytes")
        if len(value.lstrip("0")) > len(str(limit)) or int(value) > limit:
            raise _too_large(f"the body is of {value[:20]} bytes,", limit)


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for key, value in scope["headers"] if key.lower() == name]


def _too_large(what: str, limit: int) -> DeckError:
    shown = f"{limit // 1024**2} MiB" if limit % 1024**2 == 0 else f"{limit} bytes"
    return DeckError(
        ErrorKind.TOO_LARGE, f"{what} larger than the limit of {shown}; send less (shorter history, media)"
    )


class _Decoding:
    """All codings of one body, the last applied first; each stage is held to the limit."""

    def __init__(self, codings: list[str], limit: int) -> None:
        self._names = list(reversed(codings))
        self._stages = [_CODINGS[name]() for name in self._names]
        self._made = [0] * len(self._stages)
        self._limit = limit

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        if not self._stages:
            if chunk:
                yield chunk
            return
        for piece in _slices(chunk, _PIECE):
            yield from self._through(0, piece)
            # Input may make no output, as a row of empty members does: an empty piece lets the reader look up.
            yield b""

    def _through(self, stage: int, content: bytes) -> Iterator[bytes]:
        if stage == len(self._stages):
            yield content
            return
        try:
            for piece in self._stages[stage].feed(content):
                self._made[stage] += len(piece)
                if self._made[stage] > self._limit:
                    raise _too_large(f"the body is, decoded from {self._names[stage]},", self._limit)
                for part in _slices(piece, _PIECE):
                    yield from self._through(stage + 1, part)
        except (zlib.error, zstandard.ZstdError, _TooManyMembers) as exc:
            raise invalid(f"the body is not valid {self._names[stage]}, as Content-Encoding says: {exc}") from exc

    def end(self) -> None:
        for name, stage in zip(self._names, self._stages, strict=True):
            try:
                stage.end()
            except EOFError as exc:
                raise invalid(f"the body ends before its {name} coding does: it was cut") from exc


class _Zlib:
    """gzip, with any number of members, or deflate; `wbits` as zlib has it."""

    def __init__(self, wbits: int) -> None:
        self._wbits = wbits
        self._stream = zlib.decompressobj(wbits)
        self._members = 1

    def feed(self, content: bytes) -> Iterator[bytes]:
        while content:
            if self._stream.eof:
                self._members = _next_member(self._members)
                self._stream = zlib.decompressobj(self._wbits)
            piece = self._stream.decompress(content, _PIECE)
            while piece:
                yield piece
                # A full piece may have left output inside zlib, with or without input.
                piece = self._stream.decompress(self._stream.unconsumed_tail, _PIECE) if not self._stream.eof else b""
            content = self._stream.unused_data

    def end(self) -> None:
        if not self._stream.eof:
            raise EOFError


class _Deflate:
    """deflate, in the zlib wrapping that the RFC wants or bare, as some clients send it."""

    def __init__(self) -> None:
        self._head = b""
        self._stream: _Zlib | None = None

    def feed(self, content: bytes) -> Iterator[bytes]:
        if self._stream is None:
            content = self._head = self._head + content
            if len(content) < 2:
                return
            is_wrapped = content[0] & 0x0F == zlib.DEFLATED and int.from_bytes(content[:2], "big") % 31 == 0
            self._stream = _Zlib(zlib.MAX_WBITS if is_wrapped else -zlib.MAX_WBITS)
        yield from self._stream.feed(content)

    def end(self) -> None:
        if self._stream is None:
            raise EOFError
        self._stream.end()


class _Zstd:
    """zstd, with any number of frames."""

    def __init__(self) -> None:
        self._maker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._stream = self._maker.decompressobj()
        self._members = 1

    def feed(self, content: bytes) -> Iterator[bytes]:
        for part in _slices(content, _ZSTD_SLICE):
            rest = part
            while rest:
                if self._stream.eof:
                    self._members = _next_member(self._members)
                    self._stream = self._maker.decompressobj()
                yield self._stream.decompress(rest)
                rest = self._stream.unused_data if self._stream.eof else b""

    def end(self) -> None:
        if not self._stream.eof:
            raise EOFError


def _next_member(members: int) -> int:
    if members == _MOST_MEMBERS:
        raise _TooManyMembers
    return members + 1


def _slices(content: bytes, size: int) -> Iterator[bytes]:
    # zlib copies what it has not used yet at each call, and zstd makes as much as its input allows: give both little.
    if len(content) <= size:
        yield content
        return
    view = memoryview(content)
    for start in range(0, len(content), size):
        yield bytes(view[start : start + size])


_CODINGS: dict[str, Callable[[], _Coding]] = {
    "gzip": lambda: _Zlib(zlib.MAX_WBITS | 16),
    "deflate": _Deflate,
    "zstd": _Zstd,
}
