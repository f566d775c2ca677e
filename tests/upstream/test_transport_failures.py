"""Broken answers and every time limit."""

import asyncio
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
    post,
    serving,
    url_of,
)

from deck.upstream.transport import Target, TimeLimits, Transport

run = every_loop
silent = pytest.fixture(full_listener)


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
        peer.pause()
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
