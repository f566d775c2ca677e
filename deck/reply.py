"""Writes one answer to the client: status, headers, frames, heartbeats; it knows ASGI and no wire."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from deck import json
from deck.http import Send
from deck.turn import Turn

_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
_NO_BODY = b""


class Reply:
    """The client's side of one exchange.

    Args:
        send: ASGI's.
        headers: gives the headers every answer carries, asked when the answer starts.
        turn: the short cut past ASGI, where Deck's own server offers it.
    """

    # fmt: off
    __slots__ = (
        "_frame", "_headers", "_interval", "_is_writing", "_last", "_loop", "_send", "_task", "_timer", "_turn",
        "status",
    )
    # fmt: on

    def __init__(
        self, send: Send, headers: Callable[[], Iterable[tuple[bytes, bytes]]], turn: Turn | None = None
    ) -> None:
        self._send = send
        self._headers = headers
        self._turn = turn
        self.status: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._frame: Callable[[], bytes | None] | None = None
        self._interval = 0.0
        self._task: asyncio.Task[None] | None = None
        self._is_writing = False
        self._last = 0.0

    @property
    def has_started(self) -> bool:
        """True once a status was sent."""
        return self.status is not None

    async def json(self, status: int, body: Any, extra: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send a whole JSON answer."""
        content = json.dumps(body)
        self.status = status
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(content)),
            *self._headers(),
            *extra,
        ]
        turn = self._turn
        if turn is not None and not turn.is_full:
            turn.answer(status, headers, content)
            return
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": content})

    def put(self, data: bytes) -> Awaitable[None] | None:
        """Send frames at once if the client takes them, else return `frames` to be awaited."""
        turn = self._turn
        if turn is None or turn.is_full or self._task is not None:
            return self.frames(data)
        if self._loop is not None:
            self._last = self._loop.time()
        if self.status is None:
            self.status = 200
            turn.start(200, [*_STREAM_HEADERS, *self._headers()], data)
        else:
            turn.write(data)
        return None

    async def frames(self, data: bytes) -> None:
        """Send frames of a stream, starting it with 200 if need be; they follow a heartbeat that is on its way."""
        self._is_writing = True
        try:
            await self.settle()
            await self._write(data)
        finally:
            self._is_writing = False

    async def _write(self, data: bytes) -> None:
        self._last = asyncio.get_running_loop().time()
        if self.status is None:
            self.status = 200
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": [*_STREAM_HEADERS, *self._headers()]}
            )
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Begin an answer that is no stream of frames; `frames` and `end` send its body."""
        self.quiet()
        await self.settle()
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *self._headers()]})

    def cut(self) -> None:
        """End the client's connection in the middle of an answer that cannot be ended well."""
        self.quiet()
        if self._turn is not None:
            self._turn.cut()

    async def end(self) -> None:
        """End the stream."""
        self.quiet()
        if self._task is not None:
            await self.settle()
        turn = self._turn
        if turn is not None and turn.has_begun and not turn.is_full:
            turn.finish()
            return
        await self._send({"type": "http.response.body", "body": _NO_BODY, "more_body": False})

    def beat(self, interval: float, frame: Callable[[], bytes | None]) -> None:
        """Send `frame()` whenever nothing was sent for `interval` seconds; None = not now."""
        self._loop = loop = asyncio.get_running_loop()
        self._last = loop.time()
        self._interval = interval
        self._frame = frame
        self._timer = loop.call_later(interval, self._tick)

    def _tick(self) -> None:
        loop, interval = self._loop, self._interval
        assert loop is not None
        assert self._frame is not None
        silent = loop.time() - self._last
        # While a write waits for a slow client a heartbeat would only overtake it.
        is_free = not self._is_writing and (self._task is None or self._task.done())
        if silent + 0.001 >= interval and is_free:
            data = self._frame()
            if data:
                self._task = loop.create_task(self._write(data))
            silent = 0.0
        self._timer = loop.call_later(max(interval - silent, 0.01), self._tick)

    def quiet(self) -> None:
        """Send no more heartbeats."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._frame = None

    async def settle(self) -> None:
        """Wait until a heartbeat that is being written is out, so that nothing is written into its middle."""
        if self._task is not None:
            if not self._task.done():
                await asyncio.shield(self._task)
            self._task = None
