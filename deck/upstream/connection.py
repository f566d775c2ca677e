"""One HTTP/1.1 connection to a server: it sends a request and fills the answer it is carrying.

It knows framing, time limits and back-pressure. It does not know where connections come from, when one is reused,
or what a body means.
"""

import asyncio
import math
from collections.abc import AsyncIterable
from typing import Protocol, cast

import httptools
import httpx

from deck.outbox import outbox_of
from deck.upstream.answer import RawResponse, TimeLimits

_ONE_WRITE = 64 * 1024  # up to here joining head and body is cheaper than a second buffer
_NO_BODY = frozenset((204, 304))


class Owner(Protocol):
    """What a connection tells the pool that holds it."""

    def give_back(self, connection: "Connection") -> None:
        """Take back a connection that can carry another exchange."""

    def forget(self, connection: "Connection") -> None:
        """Drop a connection that is closed or about to be; may be called twice."""


class Connection(asyncio.Protocol):
    """A connection that carries one exchange at a time."""

    # fmt: off
    __slots__ = (
        "_answered", "_complete", "_high_water", "_keep", "_left", "_loose", "_max_head", "_outbox", "_owner",
        "_parser", "_protest", "_request_sent", "_response", "_reused", "_timer", "_transport", "_write_timer",
        "closed", "idle_since", "is_held_back", "is_stale", "is_writing", "looks_at", "loop", "target",
    )
    # fmt: on

    def __init__(
        self, owner: Owner, target: object, loop: asyncio.AbstractEventLoop, *, high_water: int, max_head: int
    ) -> None:
        self.loop = loop
        self._outbox = outbox_of(loop)
        self.target = target
        self.closed: asyncio.Future[None] = loop.create_future()
        self.idle_since = 0.0
        self.is_stale = False
        self.is_writing = False
        self._owner = owner
        self._high_water = high_water
        self._max_head = max_head
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._response: RawResponse | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.looks_at = math.inf
        self._left = 0
        self._reused = False
        self.is_held_back = False
        self._reset()

    def _reset(self) -> None:
        self._answered = False
        self._complete = False
        self._keep = False
        self._request_sent = False
        self._protest: str | None = None
        self._loose = 0

    @property
    def is_usable(self) -> bool:
        """Whether the connection is open, as far as is known."""
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, head: bytes, body: bytes, limits: TimeLimits, *, bodiless: bool) -> RawResponse:
        """Send a whole request and return its answer as soon as the head is there.

        `is_stale` then tells whether a failure came from the connection having been closed while idle.
        """
        response = self._begin(limits, bodiless)
        transport = self._transport
        assert transport is not None
        self._request_sent = True
        if len(body) <= _ONE_WRITE:
            self._outbox.write(transport, head + body)
        else:
            transport.writelines((head, body))
        while not (response._has_head or response._error is not None):
            await response._wait(limits.head)
        if not response._has_head:
            assert response._error is not None
            raise response._error
        return response

    async def exchange_stream(
        self, head: bytes, body: AsyncIterable[bytes], limits: TimeLimits, *, bodiless: bool
    ) -> RawResponse:
        """Do what `exchange` does with a framed body that is produced on the way; an early answer stops the sending."""
        response = self._begin(limits, bodiless)
        try:
            await self._send_pieces(response, head, body)
        except BaseException:
            response.close()
            raise
        return await self._until_head(response)

    async def _send_pieces(self, response: RawResponse, head: bytes, body: AsyncIterable[bytes]) -> None:
        transport = self._transport
        assert transport is not None
        transport.write(head)
        async for piece in body:
            if response._settled():
                return
            transport.write(piece)
            while self.is_writing and not response._settled():
                await response._wait(None)
        self._request_sent = True

    def _begin(self, limits: TimeLimits, bodiless: bool) -> RawResponse:
        if not self.is_usable:
            self.is_stale = self._reused
            raise httpx.RemoteProtocolError("the server closed the connection before the request was sent")
        self._reset()
        self._response = response = RawResponse(self, limits, bodiless)
        return response

    async def _until_head(self, response: RawResponse) -> RawResponse:
        while not response._settled():
            await response._wait(response._limits.head)
        if not response._has_head:
            assert response._error is not None
            raise response._error
        return response

    def fail(self, error: httpx.TransportError) -> None:
        """End the running exchange, if any, with `error` and abort the connection."""
        response = self._response
        if response is not None:
            self._response = None
            response._error = error
            response._detach()
        self.abort()

    def abort(self) -> None:
        """Close at once, without sending what is still buffered."""
        self._owner.forget(self)
        self._stop_write_timer()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.looks_at = math.inf
        if self._transport is not None:
            self._transport.abort()

    def look_at(self, due: float) -> None:
        """See at that time whether the answer is late; one lazy timer serves the connection for as long as it lives."""
        if self._timer is not None:
            if self.looks_at <= due:
                return
            self._timer.cancel()
        self.looks_at = due
        self._timer = self.loop.call_at(due, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self.looks_at = math.inf
        due = self._response._expire(self.loop.time()) if self._response is not None else None
        if due is not None:
            self.look_at(due)

    def resume_reading(self) -> None:
        """Take bytes from the socket again after the reader has caught up."""
        if self.is_held_back:
            self.is_held_back = False
            assert self._transport is not None
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses

    def data_received(self, data: bytes) -> None:
        """Parse, then settle what the bytes led to."""
        response, parser = self._response, self._parser
        if response is None or parser is None:
            self.abort()  # nothing was asked: whatever comes next on this connection cannot be trusted
            return
        self._answered = True
        self._loose += len(data)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self._keep = False
            self._protest = self._protest or f"malformed response: {exc}"
        if self._complete or (response.is_streamed and response._chunks):
            self._outbox.expect()
        if self._complete:
            self._finish(response)
            return
        response._wake()
        if self._protest is not None:
            self.fail(httpx.RemoteProtocolError(self._protest))
        elif self._loose > self._max_head:
            self.fail(httpx.RemoteProtocolError(f"more than {self._max_head} bytes of response head"))
        elif response._size > self._high_water and not self.is_held_back:
            self.is_held_back = True
            assert self._transport is not None
            self._transport.pause_reading()

    def eof_received(self) -> None:
        """Treat a half-closed connection as closed."""
        self._end(None)
        self.abort()  # a plain close would first wait for the request to be written out

    def connection_lost(self, exc: Exception | None) -> None:
        """Settle everything; asyncio calls this once, and last."""
        self._end(exc)
        self._stop_write_timer()
        self._owner.forget(self)
        self._parser = None  # it holds bound methods of this object
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        """Start the write limit's clock."""
        self.is_writing = True
        self._watch_writing()

    def resume_writing(self) -> None:
        """Start the head limit's clock: the request is out."""
        self.is_writing = False
        self._stop_write_timer()
        if self._response is not None:
            self._response._since = self.loop.time()
            self._response._wake()

    def on_message_begin(self) -> None:
        """Notice an answer nobody asked for behind the one that is complete."""
        if self._complete:
            self._keep = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header."""
        response = self._response
        if response is not None and not response._has_head:  # trailers are dropped
            response.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Publish the head, unless it is an interim one."""
        response, parser = self._response, self._parser
        if response is None or parser is None or response._has_head:
            return
        status = parser.get_status_code()
        if status == 101:
            self._protest = "the server switched protocols unasked"
        if status < 200:
            return
        # Of the bytes in hand some may be the body's: only if they are many is the head counted by itself.
        if self._loose > self._max_head and _size(response.headers) > self._max_head:
            self._protest = f"more than {self._max_head} bytes of response head"
            return
        response.status = status
        response._has_head = True
        self._loose = 0
        if response._bodiless:
            self._complete = True
            self._keep = parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        """Buffer a piece of the body."""
        response = self._response
        if response is None or self._complete:
            self._keep = False
            return
        self._loose = 0
        response._chunks.append(data)
        response._size += len(data)

    def on_message_complete(self) -> None:
        """Mark the answer as whole; what follows in the same read is checked first."""
        response, parser = self._response, self._parser
        if response is None or parser is None or self._complete:
            return
        if response._has_head:
            self._complete = True
            self._keep = parser.should_keep_alive()  # right only inside the callbacks
        else:
            response.headers.clear()  # an interim response

    def _finish(self, response: RawResponse) -> None:
        """Hand the finished answer over to its reader and the connection back to its owner."""
        transport = self._transport
        assert transport is not None
        self._response = None
        response._complete = True
        response._detach()
        if self._write_timer is not None:
            self._stop_write_timer()
        if not self._keep or not self._request_sent or transport.is_closing() or transport.get_write_buffer_size():
            self.abort()
            return
        if response._bodiless:
            self._parser = httptools.HttpResponseParser(self)  # the old one waits for the body that was announced
        if self.is_held_back:
            self.resume_reading()
        self._reused = True
        self._owner.give_back(self)

    def _end(self, exc: Exception | None) -> None:
        """Settle the running exchange when the peer has closed."""
        response = self._response
        if response is None:
            return
        self.is_stale = self._reused and not self._answered
        if response._has_head and exc is None and _ends_with_close(response):
            self._response = None
            response._complete = True
            response._detach()
        else:
            self.fail(_ending_error(response, exc, self._answered))

    def _watch_writing(self) -> None:
        response = self._response
        if response is None or response._has_head or response._limits.write is None or self._transport is None:
            return
        self._left = self._transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(response._limits.write, self._check_writing)

    def _check_writing(self) -> None:
        self._write_timer = None
        response = self._response
        if response is None or response._has_head or self._transport is None:
            return
        if self._transport.get_write_buffer_size() < self._left:
            self._watch_writing()
            return
        self.fail(httpx.WriteTimeout(f"no byte of the request was taken within {response._limits.write:g} s"))

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def _size(headers: list[tuple[bytes, bytes]]) -> int:
    return sum(len(name) + len(value) for name, value in headers)


def _ends_with_close(response: RawResponse) -> bool:
    """Whether the body's end is the connection's (RFC 9112, section 6.3)."""
    coding = response.header(b"transfer-encoding")
    if coding is not None:
        return not coding.lower().rstrip().endswith(b"chunked")
    return response.header(b"content-length") is None


def _ending_error(response: RawResponse, exc: Exception | None, answered: bool) -> httpx.TransportError:
    if isinstance(exc, BrokenPipeError):
        return httpx.WriteError(f"the server closed the connection while the request was being sent: {exc}")
    if exc is not None:
        return httpx.ReadError(f"the connection broke: {exc}")
    if response._has_head:
        length = response.header(b"content-length")
        promised = f"{length.decode('latin-1')} bytes announced" if length is not None else "no last chunk"
        return httpx.RemoteProtocolError(f"peer closed connection without sending complete message body ({promised})")
    if answered:
        return httpx.RemoteProtocolError("peer closed connection inside the response head")
    return httpx.RemoteProtocolError("server disconnected without sending a response")
