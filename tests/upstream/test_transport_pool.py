"""Which connection carries a request: reuse, stale connections, bounds, closing."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from upstream.test_transport_server import (
    OK,
    SHORT,
    Peer,
    Run,
    after_first,
    answering,
    every_loop,
    get,
    post,
    serving,
    turns_until,
)

from deck.upstream.transport import TimeLimits, Transport

run = every_loop


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
                await server.until(partial(lambda wanted: server.ended == wanted, turn))
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


def test_a_waiter_cancelled_on_its_turn_passes_the_turn_on(run: Run) -> None:
    async def main() -> None:
        async def unfinished(peer: Peer) -> None:
            await peer.request()
            if peer.number > 1:
                await peer.send(OK)
            await peer.closed()

        async with serving(unfinished) as server, Transport(max_connections=1) as transport:
            holder = asyncio.ensure_future(get(transport, server))
            await server.until(lambda: len(server.requests) == 1)
            first, second = (asyncio.ensure_future(get(transport, server)) for _ in range(2))
            await asyncio.sleep(0)
            transport.close_target(server.target)  # frees the only connection: it is the first waiter's turn
            first.cancel()
            results = await asyncio.gather(holder, first, return_exceptions=True)
            assert [type(result) for result in results] == [httpx.ReadError, asyncio.CancelledError]
            assert await second == (200, b"ok")

    run(main())
