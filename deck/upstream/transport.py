"""Our own HTTP/1.1 client: a fast call for the hot path, and httpx's transport interface over the same.

It knows how a request head is written and when a request may be sent a second time. It does not know what the bodies
hold, and follows no redirects, cookies or proxies.
"""

import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Self

import httpx

from deck.upstream.answer import RawResponse as RawResponse
from deck.upstream.answer import TimeLimits as TimeLimits
from deck.upstream.connection import Connection
from deck.upstream.pool import Pool, PoolLimits
from deck.upstream.pool import Target as Target

_DEFAULT_LIMITS = TimeLimits()
_SLICE = 64 * 1024  # of an upload, written at a time
_FRAMING = frozenset((b"content-length", b"transfer-encoding"))
_WITH_BODY = frozenset(("POST", "PUT", "PATCH"))
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_HEAD = re.compile(rb"%b [!-~]++ HTTP/1\.1\r\n(?:%b: [^\r\n\0]*+\r\n)++\r\n" % (_TOKEN, _TOKEN))


class Prepared:
    """What is the same in every POST to one route of a server.

    Args:
        target: where it listens.
        path: the route.
        headers: all but the framing.
        limits: of the exchange.

    Raises:
        httpx.LocalProtocolError: The path or a header would break the request head.
    """

    __slots__ = ("head", "limits", "target")

    def __init__(
        self, target: Target, path: str, headers: Sequence[tuple[bytes, bytes]], limits: TimeLimits = _DEFAULT_LIMITS
    ) -> None:
        self.target = target
        self.head = render_head(target, "POST", path, headers, b"")[:-2]
        self.limits = limits


class LostError(httpx.ConnectError):
    """Nobody listens any more; the request may have been heard before, on a connection that was kept alive."""


class Transport(httpx.AsyncBaseTransport):
    """Pooled keep-alive connections over TCP, TLS and UNIX sockets; belongs to one event loop.

    A request that fails on a reused connection before any byte of its answer is sent once more on a fresh one:
    llama-server closes a connection after 5 s idle or 100 requests, and may do so while the request is under way.
    """

    def __init__(
        self,
        *,
        keepalive: float = 4.0,
        max_idle_per_target: int = 256,
        max_connections: int = 1024,
        high_water: int = 256 * 1024,
        max_head: int = 64 * 1024,
        ssl_context: ssl.SSLContext | None = None,
        uds: str | None = None,
    ) -> None:
        """Set the limits.

        Args:
            keepalive: Seconds after which an idle connection is not used any more.
            max_idle_per_target: Idle connections to hold for one target.
            max_connections: Connections in all; a request beyond them waits `TimeLimits.pool` seconds for one.
            high_water: Body bytes to buffer for a slow reader before the server is held back.
            max_head: Most bytes of a response head.
            ssl_context: How to speak TLS; the default trusts the system's authorities.
            uds: A UNIX socket for every request that comes through httpx.
        """
        limits = PoolLimits(
            keepalive=keepalive,
            max_idle_per_target=max_idle_per_target,
            max_connections=max_connections,
            high_water=high_water,
            max_head=max_head,
        )
        self._pool = Pool(limits, ssl_context)
        self._uds = uds

    async def send(
        self,
        target: Target,
        method: str,
        path: str,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes = b"",
        limits: TimeLimits = _DEFAULT_LIMITS,
    ) -> RawResponse:
        """Send a request and return its answer as soon as the response head is there.

        Host and the framing headers are written here: a `Host` among `headers` wins, framing headers are ignored.

        Raises:
            httpx.LocalProtocolError: The method, path or a header would break the request head.
            httpx.TransportError: The exchange failed; the subclass says where.
        """
        length = len(body) if body or method in _WITH_BODY else None
        head = render_head(
            target, method, path, headers, b"content-length: %d\r\n" % length if length is not None else b""
        )
        return await self._exchange(target, head, body, limits, bodiless=method == "HEAD")

    def post(self, prepared: Prepared, body: bytes) -> Coroutine[Any, Any, RawResponse]:
        """Do what `send` does for a request whose head was made before; only the length of its body is new.

        Raises:
            httpx.TransportError: The exchange failed; the subclass says where.
        """
        head = b"%bcontent-length: %d\r\n\r\n" % (prepared.head, len(body))
        return self._exchange(prepared.target, head, body, prepared.limits, bodiless=False)

    async def _exchange(
        self, target: Target, head: bytes, body: bytes, limits: TimeLimits, *, bodiless: bool
    ) -> RawResponse:
        connection = self._pool.reuse(target) or await self._pool.open(target, limits)
        try:
            return await connection.exchange(head, body, limits, bodiless=bodiless)
        except httpx.TransportError:
            if not connection.is_stale:
                raise
        connection = await self._opened_again(target, limits)
        return await connection.exchange(head, body, limits, bodiless=bodiless)

    async def upload(
        self,
        target: Target,
        path: str,
        headers: Sequence[tuple[bytes, bytes]],
        pieces: Sequence[bytes | memoryview],
        limits: TimeLimits = _DEFAULT_LIMITS,
    ) -> RawResponse:
        """Do what `send` does for a POST whose body lies in pieces: none is copied, and the server sets the pace.

        Raises:
            httpx.LocalProtocolError: The path or a header would break the request head.
            httpx.TransportError: The exchange failed; the subclass says where.
        """
        length = sum(len(piece) for piece in pieces)
        head = render_head(target, "POST", path, headers, b"content-length: %d\r\n" % length)
        connection = self._pool.reuse(target) or await self._pool.open(target, limits)
        try:
            return await connection.exchange_stream(head, _slices(pieces), limits, bodiless=False)
        except httpx.TransportError:
            if not connection.is_stale:
                raise
        connection = await self._opened_again(target, limits)
        return await connection.exchange_stream(head, _slices(pieces), limits, bodiless=False)

    async def _opened_again(self, target: Target, limits: TimeLimits) -> Connection:
        """Return a fresh connection for a request that was lost on an older one."""
        try:
            return await self._pool.open(target, limits, fresh=True)
        except httpx.ConnectError as exc:
            raise LostError(str(exc)) from exc.__cause__

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer httpx's client; the response body is streamed."""
        url = request.url
        tls = url.scheme == "https"
        target = Target(host=url.host, port=url.port or (443 if tls else 80), uds=self._uds, tls=tls)
        limits = _limits_of(request)
        path = url.raw_path.decode("ascii")
        try:
            body = request.content
        except httpx.RequestNotRead:
            raw = await self._send_stream(target, request, path, limits)
        else:
            raw = await self.send(target, request.method, path, request.headers.raw, body, limits)
        return httpx.Response(raw.status, headers=raw.headers, stream=_Body(raw))

    async def _send_stream(self, target: Target, request: httpx.Request, path: str, limits: TimeLimits) -> RawResponse:
        """Send a body that cannot be sent twice, therefore always on a fresh connection."""
        stream = request.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        announced = request.headers.get("content-length")
        length = int(announced) if announced is not None else None
        framing = b"transfer-encoding: chunked\r\n" if length is None else b"content-length: %d\r\n" % length
        head = render_head(target, request.method, path, request.headers.raw, framing)
        connection: Connection = await self._pool.open(target, limits, fresh=True)
        async with aclosing(_framed(stream, length)) as body:
            return await connection.exchange_stream(head, body, limits, bodiless=request.method == "HEAD")

    @property
    def stats(self) -> tuple[int, int]:
        """The numbers of idle and of active connections."""
        return self._pool.stats

    def close_target(self, target: Target) -> None:
        """Close every connection to a server that is going away; its running exchanges end with an error."""
        self._pool.close_target(target)

    async def aclose(self) -> None:
        """Abort everything; later requests fail with `httpx.ConnectError`."""
        await self._pool.aclose()

    async def __aenter__(self) -> Self:
        return self


class _Body(httpx.AsyncByteStream):
    """A response body as httpx reads it."""

    def __init__(self, raw: RawResponse) -> None:
        self._raw = raw

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self._raw.next_chunk():
            yield chunk

    async def aclose(self) -> None:
        self._raw.close()


def render_head(
    target: Target, method: str, path: str, headers: Sequence[tuple[bytes, bytes]], framing: bytes
) -> bytes:
    """Return the request head.

    Raises:
        httpx.LocalProtocolError: Something in it would break the head or smuggle a header in.
    """
    lines: list[bytes] = []
    has_host = False
    for name, value in headers:
        key = name.lower()
        if key in _FRAMING:
            continue
        if key == b"host":
            has_host = True
        lines.append(b"%b: %b\r\n" % (name, value))
    host = "" if has_host else f"host: {target.authority}\r\n"
    try:
        start = f"{method} {path} HTTP/1.1\r\n{host}".encode("ascii")
    except UnicodeEncodeError as exc:
        raise httpx.LocalProtocolError(f"the request line or host is not ASCII: {method!r} {path!r}") from exc
    head = b"".join((start, *lines, framing, b"\r\n"))
    # Each line ends once: a CR LF inside a name, value or path makes one line too many.
    count = len(lines) + 2 + (not has_host) + (framing != b"")
    if head.count(b"\r\n") != count or _HEAD.fullmatch(head) is None:
        raise httpx.LocalProtocolError(
            f"the request line, a header name or a header value holds a forbidden character: {method!r} {path!r}"
        )
    return head


async def _slices(pieces: Sequence[bytes | memoryview]) -> AsyncIterator[bytes]:
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), _SLICE):
            yield bytes(view[start : start + _SLICE])


async def _framed(body: AsyncIterable[bytes], length: int | None) -> AsyncGenerator[bytes, None]:
    """Yield `body` as it goes over the wire: as chunks, or plain and checked against its announced length."""
    sent = 0
    async for piece in body:
        sent += len(piece)
        if length is not None and sent > length:
            raise httpx.LocalProtocolError(f"the request body is longer than its announced {length} bytes")
        if piece:
            yield piece if length is not None else b"%x\r\n%b\r\n" % (len(piece), piece)
    if length is None:
        yield b"0\r\n\r\n"
    elif sent < length:
        raise httpx.LocalProtocolError(f"the request body ended after {sent} of its announced {length} bytes")


def _limits_of(request: httpx.Request) -> TimeLimits:
    timeout: dict[str, float | None] = request.extensions.get("timeout", {})
    read = timeout.get("read")
    return TimeLimits(
        pool=timeout.get("pool"), connect=timeout.get("connect"), write=timeout.get("write"), head=read, read=read
    )
