"""The transport under httpx's own client."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from upstream.test_transport_server import BODY, FRAMINGS, OK, Peer, Run, answering, client_of, every_loop, serving

from deck.upstream.transport import Transport

run = every_loop


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
            response = await client.get("/a", params={"q": "ü"})
            assert (response.status_code, response.content, response.headers["x-many"]) == (200, BODY, "1, 2")
            assert server.requests[-1].path == b"/a?q=%C3%BC"
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
