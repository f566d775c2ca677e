"""Real servers, scripted in each test, over loopback and UNIX sockets, for the tests of the transport; no tests."""

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from deck.upstream.transport import RawResponse, Target, TimeLimits, Transport

DEADLINE = 10.0
SHORT = TimeLimits(connect=5, write=0.05, head=0.05, read=0.05)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
SLICES = [1, 7, 64, 1 << 20]

Run = Callable[[Coroutine[Any, Any, Any]], Any]
Handler = Callable[["Peer"], Awaitable[None]]


def run_on(loop_factory: Callable[[], asyncio.AbstractEventLoop], main: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end or a deadline; afterwards neither task nor socket may be left."""
    unhandled: list[dict[str, Any]] = []

    async def bounded() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        async with asyncio.timeout(DEADLINE):
            result = await main
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left
        return result

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        result = runner.run(bounded())
    gc.collect()
    assert not unhandled, unhandled
    return result


@pytest.fixture(params=["asyncio", "uvloop"])
def every_loop(request: pytest.FixtureRequest) -> Run:
    factory = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}[request.param]
    return lambda main: run_on(factory, main)


@dataclass
class Request:
    method: bytes
    path: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def get(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]


@dataclass
class Peer:
    """The server's side of one connection."""

    server: "Server"
    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def head(self) -> Request:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[:-2]
        method, path, _ = lines[0].split(b" ")
        headers = [(name, value) for name, _, value in (line.partition(b": ") for line in lines[1:])]
        request = Request(method, path, headers, b"")
        self.server.requests.append(request)
        await self.server.tell()
        return request

    async def request(self) -> Request:
        request = await self.head()
        if length := request.get(b"content-length"):
            request.body = await self.reader.readexactly(int(length[0]))
        elif request.get(b"transfer-encoding"):
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                request.body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readexactly(2)
        return request

    async def send(self, data: bytes, step: int = 1 << 20) -> None:
        for at in range(0, len(data), step):
            self.writer.write(data[at : at + step])
            await self.writer.drain()
            if step < 1 << 20:
                await asyncio.sleep(0)

    async def closed(self) -> None:
        """Wait until the client has closed."""
        with suppress(ConnectionError):
            while await self.reader.read(1 << 16):
                pass

    def pause(self) -> None:
        transport = self.writer.transport
        assert hasattr(transport, "pause_reading")
        transport.pause_reading()

    def reset(self) -> None:
        self.writer.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0"
        )
        self.writer.transport.abort()


@dataclass
class Server:
    """A server that runs one script for each connection."""

    handler: Handler
    target: Target = field(default_factory=Target)
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    ended: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    errors: list[BaseException] = field(default_factory=list)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await self.tell()
        try:
            await self.handler(Peer(self, self.connections, reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except Exception as exc:
            self.errors.append(exc)
        finally:
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()
            self.ended += 1
            await self.tell()

    async def tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, claim: Callable[[], bool]) -> None:
        async with self.changed:
            await self.changed.wait_for(claim)


@asynccontextmanager
async def serving(
    handler: Handler, uds: Path | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    server = Server(handler)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(server.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    if uds is not None:
        listener = await asyncio.start_unix_server(accept, uds, limit=1 << 20)
        server.target = Target(uds=str(uds))
    else:
        listener = await asyncio.start_server(accept, "127.0.0.1", 0, limit=1 << 20, backlog=2048, ssl=tls)
        port = listener.sockets[0].getsockname()[1]
        server.target = Target(port=port) if tls is None else Target(host="localhost", port=port, tls=True)
    try:
        yield server
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listener.wait_closed()
    assert not server.errors, server.errors


def url_of(server: Server) -> str:
    return "http://unix" if server.target.uds else f"http://127.0.0.1:{server.target.port}"


async def turns_until(claim: Callable[[], bool]) -> None:
    while not claim():  # the code under test has no event for this
        await asyncio.sleep(0)


async def get(transport: Transport, server: Server, **kwargs: Any) -> tuple[int, bytes]:
    response = await transport.send(server.target, "GET", "/", [], **kwargs)
    return response.status, await response.read()


async def post(transport: Transport, server: Server, body: bytes = b"hi", **kwargs: Any) -> RawResponse:
    return await transport.send(server.target, "POST", "/p", [(b"x-a", b"b")], body, **kwargs)


def answering(data: bytes, *, step: int = 1 << 20, close: bool = False) -> Handler:
    """Give every request the same answer."""

    async def handler(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(data, step)
            if close:
                return

    return handler


def chunked(body: bytes, size: int = 1000) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\nX-Trailer: t\r\n\r\n"


BODY = bytes(range(256)) * 20
FRAMINGS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Many: 1\r\nx-many: 2\r\nX-Empty:\r\n\r\n%b"
    % (len(BODY), BODY),
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Many: 1\r\nx-many: 2\r\nX-Empty:\r\n\r\n"
    + chunked(BODY),
    "close": b"HTTP/1.1 200 OK\r\nX-Many: 1\r\nx-many: 2\r\nX-Empty:\r\n\r\n" + BODY,
}


def after_first(end: Callable[[Peer], Awaitable[None]], numbers: set[int]) -> Handler:
    """Answer one request; on the connections `numbers` let the second one meet its `end`."""

    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        if peer.number in numbers:
            await end(peer)
            return
        await peer.send(OK)
        await peer.closed()

    return handler


def full_listener() -> Iterator[socket.socket]:
    """A listener whose queue is full: the kernel leaves the next connection unanswered."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            with suppress(BlockingIOError):
                filler.connect(listener.getsockname())
            fillers.append(filler)
        yield listener
        for filler in fillers:
            filler.close()


@asynccontextmanager
async def client_of(server: Server, transport: Transport) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=transport, base_url=url_of(server)) as client:
        yield client
