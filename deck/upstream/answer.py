"""One answer being read, and the time limits it keeps.

It knows waiting and what has arrived. It does not know framing: the connection that carries it fills it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from deck.upstream.connection import Connection

_TICK = 0.001  # uvloop's clock counts whole milliseconds, so a timer may fire this early


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """Seconds an exchange may spend in each phase; None waits for ever.

    Attributes:
        pool: Waiting for a free connection when all are busy.
        connect: Name look-up, connection and TLS handshake.
        write: Without any progress while the request is being sent.
        head: From the end of the request to the response head.
        read: Between two pieces of the body, counted only while somebody waits for one.
    """

    pool: float | None = 5.0
    connect: float | None = 5.0
    write: float | None = 30.0
    head: float | None = None
    read: float | None = None


class RawResponse:
    """One answer: status, headers (names in lower case), and a body that is read by one reader.

    `is_streamed` may be set to tell that each piece leads to a write at once, not only the last one.
    Whoever receives it must read it to its end or close it: an unread answer holds its connection.
    """

    # fmt: off
    __slots__ = (
        "_bodiless", "_chunks", "_complete", "_connection", "_error", "_has_head", "_limit", "_limits", "_since",
        "_size", "_waiter", "headers", "is_streamed", "status",
    )
    # fmt: on

    def __init__(self, connection: Connection, limits: TimeLimits, bodiless: bool) -> None:
        self.status = 0
        self.is_streamed = False
        self.headers: list[tuple[bytes, bytes]] = []
        self._connection: Connection | None = connection
        self._limits = limits
        self._bodiless = bodiless
        self._has_head = False
        self._complete = False
        self._chunks: list[bytes] = []
        self._size = 0
        self._error: httpx.TransportError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._limit: float | None = None
        self._since = 0.0

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of the header `name` (in lower case)."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    @property
    def is_complete(self) -> bool:
        """True once the last byte has arrived, read or not."""
        return self._complete

    def take(self) -> bytes | None:
        """Return what `next_chunk` would, None if that would wait.

        Raises:
            httpx.TransportError: As `next_chunk` does.
        """
        chunks = self._chunks
        if chunks:
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            chunks.clear()
            self._size = 0
            connection = self._connection
            if connection is not None and connection.is_held_back:
                connection.resume_reading()
            return data
        if self._error is not None:
            raise self._error
        return b"" if self._complete else None

    async def next_chunk(self) -> bytes:
        """Return what has arrived since the last call, joined, or `b""` at the orderly end.

        Raises:
            httpx.ReadError: The connection broke, or this answer was closed.
            httpx.RemoteProtocolError: The body is malformed or ended early.
            httpx.ReadTimeout: The read limit passed without a byte.
        """
        while (data := self.take()) is None:
            await self.more()
        return data

    def more(self) -> Coroutine[Any, Any, None]:
        """Wait until `take` has something to return.

        Raises:
            asyncio.CancelledError: The answer is closed then.
        """
        return self._wait(self._limits.read)

    async def read(self, limit: int | None = None) -> bytes:
        """Return the whole remaining body.

        Args:
            limit: Most bytes to accept; a longer body aborts the connection.

        Raises:
            httpx.RemoteProtocolError: Also when the body is longer than `limit`.
        """
        parts: list[bytes] = []
        size = 0
        while chunk := await self.next_chunk():
            size += len(chunk)
            if limit is not None and size > limit:
                self.close()
                raise httpx.RemoteProtocolError(f"the response body is longer than {limit} bytes")
            parts.append(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Drop what is unread; abort the connection at once if the answer was unfinished."""
        if self._connection is not None:
            self._connection.fail(httpx.ReadError("the response was closed before its end"))
        self._chunks.clear()
        self._size = 0

    async def aclose(self) -> None:
        """Do what `close` does, for `async with` and httpx."""
        self.close()

    async def _wait(self, limit: float | None) -> None:
        """Wait until something changes: head, body, end, error, or room to write."""
        assert self._waiter is None, "an answer has one reader"
        connection = self._connection
        if connection is None:
            return
        self._limit = limit
        if limit is not None:
            self._since = now = connection.loop.time()
            if now + limit < connection.looks_at:
                connection.look_at(now + limit)
        self._waiter = waiter = connection.loop.create_future()
        try:
            await waiter
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._waiter = None

    def _settled(self) -> bool:
        return self._has_head or self._error is not None

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _expire(self, now: float) -> float | None:
        """Fail if nothing has come in time; return when to look again, None = nobody waits."""
        connection, limit = self._connection, self._limit
        if connection is None or limit is None or self._waiter is None or self._waiter.done():
            return None
        if connection.is_writing:  # the write limit watches until the request is out
            self._since = now
        due = self._since + limit
        if now < due - _TICK:
            return due
        what = "more of the response body" if self._has_head else "response head"
        connection.fail(httpx.ReadTimeout(f"no {what} within {limit:g} s"))
        return None

    def _detach(self) -> None:
        self._connection = None
        self._wake()
