"""Many connections, slow peers, early answers, and cancellation at any point."""

import asyncio
import resource
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from upstream.test_transport_server import (
    BODY,
    FRAMINGS,
    OK,
    Peer,
    Run,
    answering,
    every_loop,
    full_listener,
    get,
    post,
    serving,
    turns_until,
    url_of,
)

from deck.upstream.transport import Target, Transport

run = every_loop
silent = pytest.fixture(full_listener)


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


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_that_comes_while_the_request_is_still_being_sent_is_delivered(run: Run, streamed: bool) -> None:
    async def handler(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig")
        peer.pause()
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
