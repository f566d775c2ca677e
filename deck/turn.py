"""One request and its answer on a client's connection: ASGI's `receive` and `send`, and a short cut beside them.

Knows how an answer is framed. Does not know what it says, nor how a request is parsed: the connection fills it. ASGI
has no way to say that a body is whole, that the client has left, or that head and body are ready at once; the short
cut has, and stands in `scope["deck.turn"]`.
"""

from __future__ import annotations

import asyncio
import http
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from deck.http import Message, Receive, Scope, Send

_log = logging.getLogger("uvicorn.error")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CONTROLS = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_NO_NAME = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9A-Za-z]")
_STATUS = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in http.HTTPStatus}
_BODILESS = (204, 304)
_FAULT = b"Internal Server Error"

Headers = Iterable[tuple[bytes, bytes]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Carrier(Protocol):
    """What a turn asks of the connection that carries it."""

    is_full: bool
    is_paused: bool

    def write(self, data: bytes) -> None:
        """Write to the client."""
        ...

    def write_piece(self, data: bytes) -> None:
        """Write a piece of a stream to the client."""
        ...

    def close(self) -> None:
        """Close when all is written."""
        ...

    def abort(self) -> None:
        """Reset the connection: nobody may take its end for an answer's."""
        ...

    def resume_reading(self) -> None:
        """Let the client send on."""
        ...

    async def drained(self) -> None:
        """Wait until the client takes more."""
        ...

    def ended(self, turn: Turn) -> None:
        """Go on to the next request: the answer is complete."""
        ...


class Turn:
    """A request that is being received and answered; its connection alone fills it.

    `headers` are those of the request by name, None = one stands twice. `size` is how many bytes of the body wait to be
    read, `task` the one that answers. A client of HTTP/1.0 takes no
    chunks: its stream ends with the connection.
    """

    __slots__ = (
        "_carrier",
        "_chunked",
        "_is_framed",
        "_left",
        "_pieces",
        "_waiter",
        "expects_continue",
        "has_begun",
        "has_news",
        "headers",
        "is_complete",
        "is_gone",
        "is_head",
        "is_whole",
        "keep_alive",
        "on_gone",
        "size",
        "takes_chunks",
        "task",
    )

    def __init__(
        self,
        carrier: Carrier,
        headers: Mapping[bytes, bytes] | None,
        is_head: bool,
        keep_alive: bool,
        expects_continue: bool,
        takes_chunks: bool = True,
    ) -> None:
        self._carrier = carrier
        self.headers = headers
        self.keep_alive = keep_alive
        self.takes_chunks = takes_chunks
        self.expects_continue = expects_continue
        self.is_head = is_head
        self.is_whole = False
        self.is_gone = False
        self.has_begun = False
        self.is_complete = False
        self.has_news = False
        self.on_gone: Callable[[], None] | None = None
        self.task: asyncio.Task[None] | None = None
        self._pieces: list[bytes] = []
        self.size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._chunked = self._is_framed = False
        self._left = 0

    # What the connection tells.

    def feed(self, piece: bytes) -> int:
        """Take a piece of the body; return how many bytes wait to be read."""
        self._pieces.append(piece)
        self.size += len(piece)
        self.has_news = True
        if self._waiter is not None:
            self._wake()
        return self.size

    def end(self) -> None:
        """Note that the body is whole."""
        self.is_whole = self.has_news = True
        if self._waiter is not None:
            self._wake()

    def leave(self) -> None:
        """Note that the client has left."""
        if self.is_gone:
            return
        self.is_gone = True
        self._wake()
        if self.on_gone is not None and not self.is_complete:
            self.on_gone()

    def _wake(self) -> None:
        self.has_news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # The short cut.

    def take_whole(self) -> bytes | None:
        """Return the body if all of it is here and none was read yet, else None."""
        if not self.is_whole or self.is_gone:
            return None
        if self._carrier.is_paused:
            self._carrier.resume_reading()  # else nobody would see the client leave
        pieces, self._pieces = self._pieces, []
        self.size = 0
        self.has_news = False
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def watch(self, on_gone: Callable[[], None]) -> None:
        """Call back when the client leaves before the answer is complete, at once if it has."""
        self.on_gone = on_gone
        if self.is_gone:
            on_gone()

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer; `headers` say its length."""
        if not self.is_gone:
            head = self._head(status, headers)
            self.has_begun = True
            self._carrier.write(head + body)
            self._complete()

    def start(self, status: int, headers: Headers, data: bytes) -> None:
        """Begin a stream with its first bytes."""
        if not self.is_gone:
            head = self._head(status, headers)
            self.has_begun = True
            self._chunked = self.takes_chunks
            if self._chunked:
                head = b"%btransfer-encoding: chunked\r\n\r\n%x\r\n" % (head[:-2], len(data))
                data = b"%b\r\n" % data
            self._carrier.write_piece(head + data)

    def write(self, data: bytes) -> None:
        """Send more of a stream."""
        if not self.is_gone:
            self._carrier.write_piece(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def finish(self) -> None:
        """End a stream."""
        if not self.is_gone:
            if self._chunked:
                self._carrier.write_piece(b"0\r\n\r\n")
            self._complete()

    def cut(self) -> None:
        """End the connection without ending the answer, so that the client sees that it is not whole."""
        if not self.is_gone and not self.is_complete:
            self.on_gone = None
            self.is_gone = True
            self._carrier.abort() if self.has_begun and not self._has_end() else self._carrier.close()

    def _has_end(self) -> bool:
        """Tell whether the client can see by the framing that an answer was cut."""
        return self._chunked or self._is_framed

    @property
    def is_full(self) -> bool:
        """True while the client takes less than it is sent."""
        return self._carrier.is_full and not self.is_gone

    async def drained(self) -> None:
        """Wait until the client takes more, or has left."""
        await self._carrier.drained()

    def _head(self, status: int, headers: Headers) -> bytes:
        pieces, lines = [_STATUS[status]], 2
        for name, value in headers:
            pieces += (name, b": ", value, b"\r\n")
            lines += 1
        if not self.keep_alive:
            pieces.append(b"connection: close\r\n")
            lines += 1
        pieces.append(b"\r\n")
        head = b"".join(pieces)
        if head.count(b"\n") != lines or head.count(b"\r") != lines or b"\0" in head:
            raise ValueError("a header holds a line end")
        return head

    def _complete(self) -> None:
        self.is_complete = self.has_news = True
        if self._waiter is not None:
            self._wake()
        if not self.keep_alive:
            self._carrier.close()
        self._carrier.ended(self)

    # ASGI.

    async def run(self, app: App, scope: Scope, tasks: set[asyncio.Task[None]]) -> None:
        """Have the application answer; whatever it leaves undone ends the connection.

        `tasks` are the server's; the one that runs this leaves them at its end.
        """
        try:
            await app(scope, self.receive, self.send)
        except Exception as exc:
            _log.error("the application failed", exc_info=exc)
            self._give_up()
        except BaseException:
            self._give_up()
            raise
        else:
            if not self.is_complete and not self.is_gone:
                _log.error("the application did not answer to the end")
                self._give_up()
        finally:
            self.on_gone = None
            task, self.task = self.task, None
            assert task is not None
            tasks.discard(task)

    def _give_up(self) -> None:
        if self.has_begun or self.is_gone:
            self._carrier.close()
            return
        self.keep_alive = False
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(_FAULT))]
        self.answer(500, headers, b"" if self.is_head else _FAULT)

    async def receive(self) -> Message:
        """Return more of the body, or that the client has left or was answered."""
        if self.expects_continue and not self.has_begun and not self.is_gone:
            self.expects_continue = False
            self._carrier.write(_CONTINUE)
        if not self.is_gone and not self.is_complete:
            self._carrier.resume_reading()
            if not self.has_news:
                self._waiter = asyncio.get_running_loop().create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
            self.has_news = False
        if self.is_gone or self.is_complete:
            return {"type": "http.disconnect"}
        if self.is_whole:
            self._carrier.resume_reading()  # else nobody would see the client leave
        body = b"".join(self._pieces)
        self._pieces, self.size = [], 0
        return {"type": "http.request", "body": body, "more_body": not self.is_whole}

    async def send(self, message: Message) -> None:
        """Send what an application says by ASGI; after the client has left, nothing.

        Raises:
            RuntimeError: the message may not stand here, or a header is malformed.
        """
        if self.is_full:
            await self.drained()
        if self.is_gone:
            return
        kind = message["type"]
        if self.is_complete or kind != ("http.response.body" if self.has_begun else "http.response.start"):
            raise RuntimeError(f"unexpected ASGI message {kind!r}")
        if not self.has_begun:
            self._begin(message["status"], list(message.get("headers", ())))
        else:
            self._continue(message.get("body", b""), is_last=not message.get("more_body", False))

    def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        is_framed = False
        for name, value in headers:
            if _NO_NAME.search(name) or _CONTROLS.search(value):
                raise RuntimeError(f"malformed header {name!r}")
            match name.lower():
                case b"content-length":
                    self._left, is_framed = int(value), True
                case b"connection" if value.lower() == b"close":
                    self.keep_alive = False
        headers = [header for header in headers if header[0].lower() != b"connection"]
        self._is_framed = is_framed
        self._chunked = self.takes_chunks and not is_framed and not self.is_head and status not in _BODILESS
        if self._chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        head = self._head(status, headers)
        self.has_begun = True
        self._carrier.write(head)

    def _continue(self, body: bytes, *, is_last: bool) -> None:
        if self._chunked:
            if body:
                self._carrier.write(b"%x\r\n%b\r\n" % (len(body), body))
            if is_last:
                self._carrier.write(b"0\r\n\r\n")
        elif not self.is_head and not self._is_framed:
            self._carrier.write(body)
        elif not self.is_head:
            self._left -= len(body)
            if self._left < 0 or (is_last and self._left):
                raise RuntimeError("the body is not as long as its content-length says")
            self._carrier.write(body)
        if is_last:
            self._complete()
