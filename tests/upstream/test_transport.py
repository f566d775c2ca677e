"""The transport against real servers, scripted in each test, over loopback and UNIX sockets, on both event loops."""

import asyncio
import gc
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from deck.upstream.transport import RawResponse, Target, TimeLimits, Transport

DEADLINE = 20.0
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
def run(request: pytest.FixtureRequest) -> Run:
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
        return request

    async def request(self) -> Request:
        request = await self.head()
        if length := request.get(b"content-length"):
            request.body = await self.reader.readexactly(int(length[0]))
        elif request.get(b"transfer-encoding"):
            while size := int(await self.reader.readline(), 16):
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
async def serving(handler: Handler, uds: Path | None = None) -> AsyncIterator[Server]:
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
        listener = await asyncio.start_server(accept, "127.0.0.1", 0, limit=1 << 20, backlog=2048)
        server.target = Target(port=listener.sockets[0].getsockname()[1])
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
    while not claim():
        await asyncio.sleep(0)  # noqa: ASYNC110  # the code under test has no event for this


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


# Framing


@pytest.mark.parametrize("step", SLICES)
@pytest.mark.parametrize("framing", FRAMINGS)
def test_any_slicing_gives_the_same_answer(run: Run, framing: str, step: int) -> None:
    async def main() -> None:
        handler = answering(FRAMINGS[framing], step=step, close=framing == "close")
        async with serving(handler) as server, Transport() as transport:
            for _ in range(2):
                response = await post(transport, server)
                assert response.status == 200
                assert [value for name, value in response.headers if name == b"x-many"] == [b"1", b"2"]
                assert response.header(b"x-empty") == b""
                assert response.header(b"x-trailer") is None
                assert await response.read() == BODY
                assert await response.next_chunk() == b""
            await server.until(lambda: framing != "close" or server.ended == 2)
            assert server.connections == (2 if framing == "close" else 1)
            assert transport.stats == ((0, 0) if framing == "close" else (1, 0))

    run(main())


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    st.sampled_from(["length", "chunked", "close"]),
    st.lists(st.integers(1, 60), min_size=1, max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_arbitrary_bodies_survive_arbitrary_cuts(parts: list[bytes], framing: str, cuts: list[int]) -> None:
    body = b"".join(parts)
    head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"
    wire = {
        "length": head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body),
        "chunked": head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body, 13),
        "close": head + b"\r\n" + body,
    }[framing]

    async def handler(peer: Peer) -> None:
        await peer.request()
        rest, turn = wire, 0
        while rest:
            cut = cuts[turn % len(cuts)]
            await peer.send(rest[:cut], cut)
            await asyncio.sleep(0)
            rest, turn = rest[cut:], turn + 1

    async def main() -> None:
        async with serving(handler) as server, Transport() as transport:
            assert await get(transport, server) == (200, body)

    run_on(uvloop.new_event_loop, main())


def test_request_head_and_body_arrive_as_sent(run: Run) -> None:
    async def main() -> None:
        async with serving(answering(OK)) as server, Transport() as transport:
            await (await post(transport, server, b"x" * 300_000)).read()
            await get(transport, server)
            await (
                await transport.send(server.target, "POST", "/e", [(b"Host", b"h"), (b"Content-Length", b"9")])
            ).read()
            assert server.connections == 1
            posted, got, empty = server.requests
            assert (posted.method, posted.path, posted.body) == (b"POST", b"/p", b"x" * 300_000)
            assert posted.get(b"host") == [server.target.authority.encode()]
            assert posted.get(b"x-a") == [b"b"]
            assert got.get(b"content-length") == []
            assert (empty.get(b"host"), empty.get(b"content-length")) == ([b"h"], [b"0"])

    run(main())


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\nContent-Length: 7\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n"),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ],
)
def test_answers_without_body_end_at_once_and_keep_the_connection(run: Run, method: str, answer: bytes) -> None:
    async def main() -> None:
        async with serving(answering(answer)) as server, Transport() as transport:
            for _ in range(3):
                response = await transport.send(server.target, method, "/", [])
                assert await response.read() == b""
            assert (server.connections, len(server.requests)) == (1, 3)

    run(main())


@pytest.mark.parametrize("step", SLICES)
def test_interim_answers_are_skipped(run: Run, step: int) -> None:
    interim = b"HTTP/1.1 100 Continue\r\nX-I: 1\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"

    async def main() -> None:
        async with serving(answering(interim + OK, step=step)) as server, Transport() as transport:
            for _ in range(2):
                response = await post(transport, server)
                assert (response.status, response.headers) == (200, [(b"content-length", b"2")])
                assert await response.read() == b"ok"
            assert server.connections == 1

    run(main())


@pytest.mark.parametrize("uds", [False, True])
def test_ten_megabytes_both_ways(run: Run, uds: bool, tmp_path: Path) -> None:
    big = bytes(range(250)) * 40_000

    async def handler(peer: Peer) -> None:
        for _ in range(2):
            request = await peer.request()
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(request.body))
            await peer.send(request.body)
        await peer.closed()

    async def main() -> None:
        async with serving(handler, tmp_path / "s" if uds else None) as server, Transport() as transport:
            for _ in range(2):
                assert await (await post(transport, server, big)).read() == big
            assert server.connections == 1

    run(main())


# Broken answers


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "without sending a response"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "inside the response head"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "inside the response head"),
    ],
)
def test_an_early_end_before_the_head_is_complete_is_a_protocol_error(run: Run, answer: bytes, message: str) -> None:
    async def main() -> None:
        async with serving(answering(answer, close=True)) as server, Transport() as transport:
            with pytest.raises(httpx.RemoteProtocolError, match=message):
                await post(transport, server)
            assert (server.connections, transport.stats) == (1, (0, 0))

    run(main())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhello",
    ],
)
def test_an_early_end_inside_the_body_gives_the_bytes_and_then_a_protocol_error(run: Run, answer: bytes) -> None:
    async def main() -> None:
        async with serving(answering(answer, close=True)) as server, Transport() as transport:
            response = await post(transport, server)
            got = b""
            with pytest.raises(httpx.RemoteProtocolError, match="peer closed connection without sending complete"):  # noqa: PT012
                while True:
                    chunk = await response.next_chunk()
                    assert chunk
                    got += chunk
            assert got == b"hello"
            with pytest.raises(httpx.RemoteProtocolError):
                await response.next_chunk()
            await response.aclose()
            assert (server.connections, transport.stats) == (1, (0, 0))

    run(main())


@pytest.mark.parametrize(
    "answer",
    [
        b"\x16\x03\x01garbage",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nBad Header: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nokGARBAGE",
    ],
)
@pytest.mark.parametrize("step", [1, 1 << 20])
def test_garbage_is_a_protocol_error(run: Run, answer: bytes, step: int) -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer, step)
        await peer.closed()

    async def main() -> None:
        async with serving(handler) as server, Transport() as transport:
            with pytest.raises(httpx.RemoteProtocolError):
                await (await post(transport, server)).read()
            await server.until(lambda: server.ended == 1)
            assert (server.connections, transport.stats) == (1, (0, 0))

    run(main())


@pytest.mark.parametrize(
    "endless",
    [
        b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 300,
        b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 40,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20,
        b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Trailer: " + b"a" * 600_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=" + b"a" * 600_000,
    ],
)
@pytest.mark.parametrize("step", [5000, 1 << 20])
def test_heads_and_trailers_are_bounded(run: Run, endless: bytes, step: int) -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(endless, step)
        await peer.closed()

    async def main() -> None:
        async with serving(handler) as server, Transport(max_head=256) as transport:
            with pytest.raises(httpx.RemoteProtocolError, match="more than 256 bytes"):
                await (await post(transport, server)).read()
            await server.until(lambda: server.ended == 1)

    run(main())


def test_a_reset_inside_the_body_is_a_read_error(run: Run) -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\nhello")
        await peer.server.go.wait()
        peer.reset()

    async def main() -> None:
        async with serving(handler) as server, Transport() as transport:
            response = await post(transport, server)
            assert await response.next_chunk() == b"hello"
            server.go.set()
            with pytest.raises(httpx.ReadError):
                await response.next_chunk()
            assert transport.stats == (0, 0)

    run(main())


def test_a_body_beyond_the_limit_aborts(run: Run) -> None:
    async def main() -> None:
        async with serving(answering(FRAMINGS["chunked"], step=512)) as server, Transport() as transport:
            with pytest.raises(httpx.RemoteProtocolError, match="longer than 1000 bytes"):
                await (await post(transport, server)).read(1000)
            await server.until(lambda: server.ended == 1)
            assert await (await post(transport, server)).read(len(BODY)) == BODY

    run(main())


# Reuse


def test_one_connection_carries_many_requests(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(answering(OK), tmp_path / "s") as server, Transport() as transport:
            for _ in range(20):
                assert await get(transport, server) == (200, b"ok")
            assert (server.connections, len(server.requests), transport.stats) == (1, 20, (1, 0))
            assert server.requests[0].get(b"host") == [b"localhost"]

    run(main())


def test_the_connection_used_last_is_used_first(run: Run) -> None:
    async def main() -> None:
        async with serving(answering(OK)) as server, Transport() as transport:
            both = await asyncio.gather(post(transport, server), post(transport, server))
            for response in both:
                await response.read()
            assert transport.stats == (2, 0)
            await get(transport, server)
            assert (server.connections, transport.stats) == (2, (2, 0))

    run(main())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK + b"unasked",
        OK + OK,
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nokunasked",
    ],
)
def test_a_connection_that_may_not_be_kept_is_closed_by_us(run: Run, answer: bytes) -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)
        await peer.closed()

    async def main() -> None:
        async with serving(handler) as server, Transport() as transport:
            for turn in range(1, 3):
                assert await get(transport, server) == (200, b"ok")
                await server.until(lambda turn=turn: server.ended == turn)
            assert (server.connections, transport.stats) == (2, (0, 0))

    run(main())


@pytest.mark.parametrize("unasked", [b"", b"\r\n", b"HTTP/1.1 408 Request Timeout\r\n\r\n"])
def test_a_connection_that_speaks_or_ends_while_idle_is_dropped_at_once(run: Run, unasked: bytes) -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        if peer.number == 1:
            await peer.server.go.wait()
            await peer.send(unasked)
            if unasked:
                await peer.closed()

    async def main() -> None:
        async with serving(handler) as server, Transport() as transport:
            await get(transport, server)
            assert transport.stats == (1, 0)
            server.go.set()
            await server.until(lambda: server.ended == 1)
            await turns_until(lambda: transport.stats == (0, 0))
            assert await get(transport, server) == (200, b"ok")
            assert (server.connections, len(server.requests)) == (2, 2)

    run(main())


def test_idle_connections_close_after_keepalive(run: Run) -> None:
    async def main() -> None:
        async with serving(answering(OK)) as server, Transport(keepalive=0.05) as transport:
            for response in await asyncio.gather(*(post(transport, server) for _ in range(3))):
                await response.read()
            assert transport.stats == (3, 0)
            await server.until(lambda: server.ended == 3)
            assert transport.stats == (0, 0)

    run(main())


def test_an_expired_connection_is_not_reused_even_before_it_is_swept(run: Run) -> None:
    async def main() -> None:
        async with serving(answering(OK)) as server, Transport(keepalive=0.0) as transport:
            await get(transport, server)
            await get(transport, server)
            assert server.connections == 2

    run(main())


def test_idle_connections_per_target_are_bounded(run: Run) -> None:
    async def main() -> None:
        async with serving(answering(OK)) as server, Transport(max_idle_per_target=2) as transport:
            for response in await asyncio.gather(*(post(transport, server) for _ in range(5))):
                await response.read()
            assert transport.stats == (2, 0)
            await server.until(lambda: server.ended == 3)

    run(main())


# Stale connections


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


async def _close(peer: Peer) -> None:
    peer.writer.close()


async def _reset(peer: Peer) -> None:
    peer.reset()


@pytest.mark.parametrize("end", [_close, _reset])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_stale_connection_is_retried_once_on_a_fresh_one(run: Run, end: Any, method: str) -> None:
    async def main() -> None:
        async with serving(after_first(end, {1})) as server, Transport() as transport:
            await get(transport, server)
            response = await transport.send(server.target, method, "/again", [], b"x")
            assert await response.read() == b"ok"
            assert (server.connections, len(server.requests), transport.stats) == (2, 3, (1, 0))
            assert [request.path for request in server.requests] == [b"/", b"/again", b"/again"]

    run(main())


def test_the_retry_passes_over_other_idle_connections_and_happens_once(run: Run) -> None:
    """Two idle connections, and a fresh one that fails too: three requests are seen, not four."""

    async def handler(peer: Peer) -> None:
        if peer.number <= 2:
            await peer.request()
            await peer.send(OK)
        await peer.request()

    async def main() -> None:
        async with serving(handler) as server, Transport() as transport:
            for response in await asyncio.gather(post(transport, server), post(transport, server)):
                await response.read()
            with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
                await post(transport, server)
            assert (server.connections, len(server.requests), transport.stats) == (3, 4, (1, 0))

    run(main())


@pytest.mark.parametrize("end", [_close, _reset])
def test_a_fresh_connection_is_never_retried(run: Run, end: Any) -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await end(peer)

    async def main() -> None:
        async with serving(handler) as server, Transport() as transport:
            with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
                await post(transport, server)
            assert (server.connections, len(server.requests)) == (1, 1)

    run(main())


@pytest.mark.parametrize("begun", [b"H", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_no_retry_once_a_byte_of_the_answer_has_arrived(run: Run, begun: bytes) -> None:
    async def end(peer: Peer) -> None:
        await peer.send(begun)

    async def main() -> None:
        async with serving(after_first(end, {1})) as server, Transport() as transport:
            await get(transport, server)
            with pytest.raises(httpx.RemoteProtocolError, match="inside the response head"):
                await post(transport, server)
            assert (server.connections, len(server.requests)) == (1, 2)

    run(main())


def test_a_time_limit_on_a_reused_connection_is_not_retried(run: Run) -> None:
    async def end(peer: Peer) -> None:
        await peer.closed()

    async def main() -> None:
        async with serving(after_first(end, {1})) as server, Transport() as transport:
            await get(transport, server)
            with pytest.raises(httpx.ReadTimeout):
                await post(transport, server, limits=SHORT)
            assert (server.connections, len(server.requests)) == (1, 2)

    run(main())


def test_a_large_request_on_a_stale_connection_is_retried(run: Run) -> None:
    async def handler(peer: Peer) -> None:
        if peer.number == 1:
            await peer.request()
            await peer.send(OK)
            await peer.head()
            peer.reset()
            return
        await peer.request()
        await peer.send(OK)
        await peer.closed()

    async def main() -> None:
        async with serving(handler) as server, Transport() as transport:
            await get(transport, server)
            assert await (await post(transport, server, b"x" * 5_000_000)).read() == b"ok"
            assert (server.connections, len(server.requests[-1].body)) == (2, 5_000_000)

    run(main())


def test_a_server_that_closes_after_n_requests_loses_none(run: Run) -> None:
    async def handler(peer: Peer) -> None:
        for _ in range(10):
            await peer.request()
            await peer.send(OK)

    async def main() -> None:
        async with serving(handler) as server, Transport() as transport:

            async def client() -> None:
                for _ in range(50):
                    assert await get(transport, server) == (200, b"ok")

            await asyncio.gather(*(client() for _ in range(8)))
            assert len(server.requests) == 400
            assert server.connections >= 40

    run(main())


# Time limits


def test_no_head_in_time_is_a_read_timeout(run: Run) -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
        await peer.closed()

    async def main() -> None:
        async with serving(handler) as server, Transport() as transport:
            with pytest.raises(httpx.ReadTimeout, match="no response head"):
                await post(transport, server, limits=TimeLimits(head=0.05))
            await server.until(lambda: server.ended == 1)

    run(main())


def test_no_byte_of_the_body_in_time_is_a_read_timeout(run: Run) -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")
        await peer.closed()

    async def main() -> None:
        async with serving(handler) as server, Transport() as transport:
            response = await post(transport, server, limits=TimeLimits(head=10, read=0.05))
            assert await response.next_chunk() == b"hello"
            with pytest.raises(httpx.ReadTimeout, match="response body"):
                await response.next_chunk()
            await server.until(lambda: server.ended == 1)

    run(main())


def test_the_read_limit_is_between_bytes_and_counts_only_while_waiting(run: Run) -> None:
    """Ten pieces 40 ms apart outlast the limit together, and the reader's own pause of twice the limit is free."""

    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
        for _ in range(10):
            await asyncio.sleep(0.04)
            await peer.send(b"x")
        await peer.closed()

    async def main() -> None:
        async with serving(handler) as server, Transport() as transport:
            response = await post(transport, server, limits=TimeLimits(read=0.3))
            assert await response.next_chunk()
            await asyncio.sleep(0.35)
            assert len(await response.read()) == 9

    run(main())


@pytest.mark.parametrize("streamed", [False, True])
def test_a_server_that_does_not_take_the_request_is_a_write_timeout(run: Run, streamed: bool) -> None:
    async def handler(peer: Peer) -> None:
        peer.writer.transport.pause_reading()
        await peer.server.go.wait()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 100_000

    async def main() -> None:
        async with serving(handler) as server, Transport() as transport:
            content = endless() if streamed else b"x" * 20_000_000
            timeout = {"write": 0.05, "read": 0.01}
            request = httpx.Request("POST", url_of(server), content=content, extensions={"timeout": timeout})
            with pytest.raises(httpx.WriteTimeout):
                await transport.handle_async_request(request)
            assert transport.stats == (0, 0)
            server.go.set()

    run(main())


def test_a_slow_server_that_takes_some_bytes_meets_no_write_limit(run: Run) -> None:
    async def handler(peer: Peer) -> None:
        left = int((await peer.head()).get(b"content-length")[0])
        while left:
            left -= len(await peer.reader.read(1 << 20))
            await asyncio.sleep(0.005)
        await peer.send(OK)

    async def main() -> None:
        async with serving(handler) as server, Transport() as transport:
            response = await post(transport, server, b"x" * 20_000_000, limits=TimeLimits(write=0.2, head=0.5))
            assert await response.read() == b"ok"

    run(main())


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


silent = pytest.fixture(full_listener)


def test_no_connection_in_time_is_a_connect_timeout(run: Run, silent: socket.socket) -> None:
    async def main() -> None:
        async with Transport() as transport:
            with pytest.raises(httpx.ConnectTimeout):
                await transport.send(
                    Target(port=silent.getsockname()[1]), "GET", "/", [], limits=TimeLimits(connect=0.05)
                )
            assert transport.stats == (0, 0)

    run(main())


def test_no_server_is_a_connect_error(run: Run, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        targets = [
            Target(port=port),
            Target(uds=str(tmp_path / "none")),
            Target(uds="/x" * 200),
            Target(host="no-such-host.invalid", port=1),
            Target(host="a" * 70 + ".example", port=1),
        ]

        async def main() -> None:
            async with Transport() as transport:
                for target in targets:
                    with pytest.raises(httpx.ConnectError):
                        await transport.send(target, "GET", "/", [])
                assert transport.stats == (0, 0)

        run(main())


def test_all_connections_busy_is_a_pool_timeout_and_a_freed_one_is_handed_on(run: Run) -> None:
    async def main() -> None:
        async with serving(answering(OK)) as server, Transport(max_connections=2) as transport:
            holding = [await post(transport, server) for _ in range(2)]
            for response in holding:
                await response.read()

        async def waiting(peer: Peer) -> None:
            while True:
                await peer.request()
                await peer.server.go.wait()
                await peer.send(OK)

        async with serving(waiting) as server, Transport(max_connections=2) as transport:
            held = [asyncio.ensure_future(get(transport, server)) for _ in range(2)]
            await server.until(lambda: server.connections == 2)
            with pytest.raises(httpx.PoolTimeout):
                await post(transport, server, limits=TimeLimits(pool=0.05))
            queued = [asyncio.ensure_future(get(transport, server)) for _ in range(20)]
            cancelled = asyncio.ensure_future(get(transport, server))
            await asyncio.sleep(0)
            cancelled.cancel()
            server.go.set()
            assert await asyncio.gather(*held, *queued) == [(200, b"ok")] * 22
            assert (server.connections, transport.stats) == (2, (2, 0))

    run(main())


def test_a_full_pool_gives_up_an_idle_connection_to_another_target(run: Run) -> None:
    async def main() -> None:
        async with (
            serving(answering(OK)) as one,
            serving(answering(OK)) as two,
            Transport(max_connections=1) as transport,
        ):
            for server in (one, two, one):
                assert await get(transport, server) == (200, b"ok")
            assert (one.connections, two.connections, transport.stats) == (2, 1, (1, 0))

    run(main())


# Load and back-pressure


def test_a_thousand_concurrent_connections(run: Run) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(1000, (soft - 100) // 2)

    async def handler(peer: Peer) -> None:
        while True:
            request = await peer.request()
            await peer.server.go.wait()
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(request.body), request.body))

    async def main() -> None:
        async with serving(handler) as server, Transport(max_connections=count, max_idle_per_target=count) as transport:

            async def one(number: int) -> bool:
                body = b"%d" % number
                return await (await post(transport, server, body)).read() == body

            tasks = [asyncio.ensure_future(one(number)) for number in range(count)]
            await server.until(lambda: server.connections == count)
            assert transport.stats == (0, count)
            server.go.set()
            assert all(await asyncio.gather(*tasks))
            assert transport.stats == (count, 0)
            assert all(await asyncio.gather(*(one(number) for number in range(count))))
            assert server.connections == count

    run(main())


@pytest.mark.parametrize("uds", [False, True])
@pytest.mark.parametrize("framing", ["chunked", "close"])
def test_a_slow_reader_holds_the_server_back(run: Run, framing: str, uds: bool, tmp_path: Path) -> None:
    """The server can write what the buffers hold and no more until the reader takes it."""
    total, piece = 64 * 1024 * 1024, b"x" * 65536
    written = 0
    blocked: asyncio.Event

    async def handler(peer: Peer) -> None:
        nonlocal written
        peer.writer.transport.set_write_buffer_limits(0)
        await peer.request()
        coding = b"Transfer-Encoding: chunked\r\n" if framing == "chunked" else b""
        await peer.send(b"HTTP/1.1 200 OK\r\n" + coding + b"\r\n")
        while written < total:
            peer.writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if framing == "chunked" else piece)
            written += len(piece)
            try:
                async with asyncio.timeout(0.3):
                    await peer.writer.drain()
            except TimeoutError:
                blocked.set()
                await peer.writer.drain()
        if framing == "chunked":
            await peer.send(b"0\r\n\r\n")

    async def main() -> None:
        nonlocal blocked
        blocked = asyncio.Event()
        async with serving(handler, tmp_path / "s" if uds else None) as server, Transport() as transport:
            response = await post(transport, server)
            await blocked.wait()
            assert written < total // 2
            first = await response.next_chunk()
            assert len(first) <= 2 * 256 * 1024 + 65536
            assert len(first) + len(await response.read()) == total

    run(main())


def test_what_arrived_together_is_returned_together(run: Run) -> None:
    async def main() -> None:
        async with serving(answering(FRAMINGS["chunked"])) as server, Transport() as transport:
            response = await post(transport, server)
            await turns_until(lambda: transport.stats == (1, 0))
            assert await response.next_chunk() == BODY
            assert await response.next_chunk() == b""

    run(main())


# Early answers


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_that_comes_while_the_request_is_still_being_sent_is_delivered(run: Run, streamed: bool) -> None:
    async def handler(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig")
        peer.writer.transport.pause_reading()
        await peer.server.go.wait()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 100_000

    async def main() -> None:
        async with serving(handler) as server, Transport() as transport:
            content = endless() if streamed else b"x" * 20_000_000
            answer = await transport.handle_async_request(httpx.Request("POST", url_of(server), content=content))
            assert (answer.status_code, await answer.aread()) == (413, b"big")
            assert transport.stats == (0, 0)
            server.go.set()

    run(main())


# Cancellation and closing


def test_cancelling_while_connecting_leaks_nothing(run: Run, silent: socket.socket) -> None:
    async def main() -> None:
        async with Transport() as transport:
            task = asyncio.ensure_future(transport.send(Target(port=silent.getsockname()[1]), "GET", "/", []))
            await turns_until(lambda: transport.stats == (0, 1))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert transport.stats == (0, 0)

    run(main())


@pytest.mark.parametrize("turns", range(12))
def test_cancelling_at_any_turn_of_the_loop_leaks_nothing(run: Run, turns: int) -> None:
    async def main() -> None:
        async with serving(answering(OK)) as server, Transport() as transport:
            task = asyncio.ensure_future(get(transport, server))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert transport.stats[1] == 0
            assert await get(transport, server) == (200, b"ok")

    run(main())


@pytest.mark.parametrize(
    "begun", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"]
)
@pytest.mark.parametrize("reused", [False, True])
def test_cancelling_while_waiting_closes_the_connection_at_once(run: Run, begun: bytes, reused: bool) -> None:
    async def handler(peer: Peer) -> None:
        if reused:
            await peer.request()
            await peer.send(OK)
        await peer.request()
        await peer.send(begun)
        await peer.closed()

    async def main() -> None:
        async with serving(handler) as server, Transport() as transport:
            if reused:
                await get(transport, server)
            task = asyncio.ensure_future(get(transport, server))
            await server.until(lambda: len(server.requests) == 1 + reused)
            for _ in range(10):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert transport.stats == (0, 0)
            await server.until(lambda: server.ended == 1)
            assert (server.connections, len(server.requests)) == (1, 1 + reused)

    run(main())


def test_closing_an_unfinished_answer_closes_the_connection_at_once_and_twice_is_fine(run: Run) -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\nhello")
        await peer.closed()

    async def main() -> None:
        async with serving(handler) as server, Transport() as transport:
            response = await post(transport, server)
            response.close()
            assert transport.stats == (0, 0)
            await response.aclose()
            await server.until(lambda: server.ended == 1)
            with pytest.raises(httpx.ReadError):
                await response.next_chunk()

    run(main())


def test_closing_a_finished_answer_unread_keeps_the_connection(run: Run) -> None:
    async def main() -> None:
        async with serving(answering(OK)) as server, Transport() as transport:
            for _ in range(2):
                response = await post(transport, server)
                await turns_until(lambda: transport.stats == (1, 0))
                await response.aclose()
                assert await response.next_chunk() == b""
            assert server.connections == 1

    run(main())


def test_close_target_ends_its_connections_and_no_others(run: Run) -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\nhello")
        await peer.closed()

    async def main() -> None:
        async with serving(handler) as one, serving(answering(OK)) as two, Transport() as transport:
            for response in await asyncio.gather(post(transport, one), post(transport, one), post(transport, two)):
                await response.read()
            streaming = await post(transport, one)
            assert await streaming.next_chunk() == b"hello"
            pending = asyncio.ensure_future(streaming.next_chunk())
            await asyncio.sleep(0)
            assert transport.stats == (2, 1)
            transport.close_target(one.target)
            with pytest.raises(httpx.ReadError, match="being stopped"):
                await pending
            assert transport.stats == (1, 0)
            await one.until(lambda: one.ended == 2)
            await get(transport, two)
            assert (one.connections, two.connections) == (2, 1)

    run(main())


def test_close_target_is_not_taken_for_a_stale_connection(run: Run) -> None:
    async def end(peer: Peer) -> None:
        await peer.closed()

    async def main() -> None:
        async with serving(after_first(end, {1})) as server, Transport() as transport:
            await get(transport, server)
            task = asyncio.ensure_future(get(transport, server))
            await turns_until(lambda: len(server.requests) == 2)
            transport.close_target(server.target)
            with pytest.raises(httpx.ReadError):
                await task
            assert server.connections == 1

    run(main())


def test_a_closed_transport_ends_what_runs_and_refuses_more(run: Run) -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.closed()

    async def main() -> None:
        async with serving(handler) as server:
            transport = Transport(max_connections=1)
            running = asyncio.ensure_future(get(transport, server))
            await server.until(lambda: server.connections == 1)
            queued = asyncio.ensure_future(get(transport, server))
            await asyncio.sleep(0)
            await transport.aclose()
            results = await asyncio.gather(running, queued, return_exceptions=True)
            assert [type(result) for result in results] == [httpx.ReadError, httpx.ConnectError]
            with pytest.raises(httpx.ConnectError):
                await get(transport, server)
            await transport.aclose()

    run(main())


# Injection


@pytest.mark.parametrize(
    "bad", ["\r\nX: y", "a\r\nX: y", "a\rb", "a\nb", "a\0b", "\r\n", "a\r\n\r\nGET / HTTP/1.1\r\nA: b"]
)
@pytest.mark.parametrize("place", ["name", "value", "path", "method", "host"])
def test_line_breaks_and_nulls_are_refused_before_connecting(bad: str, place: str) -> None:
    parts = {"name": "x", "value": "y", "path": "/", "method": "GET", "host": "h"} | {place: bad}

    async def main() -> None:
        async with Transport() as transport:
            with pytest.raises(httpx.LocalProtocolError):
                await transport.send(
                    Target(host=parts["host"], port=1),
                    parts["method"],
                    parts["path"],
                    [(parts["name"].encode(), parts["value"].encode())],
                )

    run_on(asyncio.new_event_loop, main())


@pytest.mark.parametrize(
    ("method", "path", "name", "value"),
    [
        ("GET", "/a b", b"x", b"y"),
        ("GET", "", b"x", b"y"),
        ("GET", "/ü", b"x", b"y"),
        ("G T", "/", b"x", b"y"),
        ("", "/", b"x", b"y"),
        ("GET", "/", b"", b"y"),
        ("GET", "/", b"x y", b"z"),
        ("GET", "/", b"x\xff", b"z"),
    ],
)
def test_malformed_request_lines_and_names_are_refused(method: str, path: str, name: bytes, value: bytes) -> None:
    async def main() -> None:
        async with Transport() as transport:
            with pytest.raises(httpx.LocalProtocolError):
                await transport.send(Target(port=1), method, path, [(name, value)])

    run_on(asyncio.new_event_loop, main())


def test_unusual_but_lawful_values_pass(run: Run) -> None:
    async def main() -> None:
        async with serving(answering(OK)) as server, Transport() as transport:
            headers = [(b"x-a", b""), (b"x-b", "ü\t: x".encode()), (b"!#$%&'*+-.^_`|~9", b"z")]
            await (await transport.send(server.target, "GET", "/a?b=%0D%0A", headers)).read()
            assert server.requests[0].headers[1:] == headers

    run(main())


@pytest.mark.parametrize(
    ("target", "authority"),
    [
        (Target(port=8080), "127.0.0.1:8080"),
        (Target(host="::1", port=8080), "[::1]:8080"),
        (Target(host="a.example", port=80), "a.example"),
        (Target(host="a.example", port=443, tls=True), "a.example"),
        (Target(host="a.example", port=80, tls=True), "a.example:80"),
        (Target(uds="/run/x"), "localhost"),
    ],
)
def test_authority(target: Target, authority: str) -> None:
    assert target.authority == authority


# httpx's interface


@asynccontextmanager
async def client_of(server: Server, transport: Transport) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=transport, base_url=url_of(server)) as client:
        yield client


@pytest.mark.parametrize("uds", [False, True])
def test_httpx_client_gets_posts_and_streams(run: Run, uds: bool, tmp_path: Path) -> None:
    path = tmp_path / "s" if uds else None

    async def pieces() -> AsyncIterator[bytes]:
        yield b"ab"
        yield b""
        yield b"c" * 200_000

    async def main() -> None:
        async with (
            serving(answering(FRAMINGS["chunked"]), path) as server,
            client_of(server, Transport(uds=str(path) if path else None)) as client,
        ):
            response = await client.get("/a", params={"q": "ü x"})
            assert (response.status_code, response.content, response.headers["x-many"]) == (200, BODY, "1, 2")
            assert server.requests[-1].path == b"/a?q=%C3%BC%20x"
            await client.post("/b", json={"a": 1})
            assert server.requests[-1].body == b'{"a":1}'
            async with client.stream("POST", "/c", content=b"x") as streamed:
                assert b"".join([part async for part in streamed.aiter_bytes()]) == BODY
            assert server.connections == 1
            await client.post("/d", content=pieces())
            assert server.requests[-1].body == b"ab" + b"c" * 200_000
            assert server.requests[-1].get(b"transfer-encoding") == [b"chunked"]
            await client.post("/e", content=pieces(), headers={"content-length": "200002"})
            assert server.requests[-1].body == b"ab" + b"c" * 200_000
            await client.post("/f", files={"f": b"12345"})
            assert b"12345" in server.requests[-1].body

    run(main())


@pytest.mark.parametrize("announced", ["1", "100"])
def test_a_streamed_body_must_have_its_announced_length(run: Run, announced: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"abc"

    async def main() -> None:
        async with serving(answering(OK)) as server, client_of(server, Transport()) as client:
            with pytest.raises(httpx.LocalProtocolError):
                await client.post("/", content=pieces(), headers={"content-length": announced})
            await server.until(lambda: server.ended == 1)

    run(main())


def test_a_failing_body_source_aborts_the_request(run: Run) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"abc"
        raise KeyError("mine")

    async def main() -> None:
        transport = Transport()
        async with serving(answering(OK)) as server, client_of(server, transport) as client:
            with pytest.raises(KeyError):
                await client.post("/", content=pieces())
            assert transport.stats == (0, 0)
            await server.until(lambda: server.ended == 1)

    run(main())


def test_httpx_errors_name_their_request_and_timeouts_are_honoured(run: Run) -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.closed()

    async def main() -> None:
        async with serving(handler) as server, client_of(server, Transport()) as client:
            with pytest.raises(httpx.ReadTimeout) as caught:
                await client.get("/slow", timeout=0.05)
            assert caught.value.request.url.path == "/slow"

    run(main())


def test_leaving_an_httpx_stream_early_closes_the_connection(run: Run) -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\nhello")
        await peer.closed()

    async def main() -> None:
        async with serving(handler) as server, client_of(server, Transport()) as client:
            async with client.stream("GET", "/") as response:
                async for chunk in response.aiter_raw():
                    assert chunk == b"hello"
                    break
            await server.until(lambda: server.ended == 1)

    run(main())
