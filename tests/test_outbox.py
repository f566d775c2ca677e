"""Writes of one turn of the loop leave together, in their order, and nobody waits who need not."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import Mock

import pytest
import uvicorn
import uvloop
from faults.support import bounded
from http_wire import Wire
from uvicorn.server import ServerState

from deck.connection import Connection
from deck.outbox import PIECES, Outbox, _outboxes, outbox_of
from deck.upstream.answer import TimeLimits
from deck.upstream.connection import Connection as Upstream


class _Wire:
    """A transport that keeps what is written."""

    def __init__(self, log: list[bytes] | None = None, *, fails: bool = False) -> None:
        self.got: list[bytes] = []
        self.log = log if log is not None else self.got
        self.is_closed = False
        self.fails = fails

    def write(self, data: bytes) -> None:
        if self.fails:
            raise RuntimeError("no")
        self.log.append(data)

    def is_closing(self) -> bool:
        return self.is_closed

    def abort(self) -> None:
        self.is_closed = True


def _outbox() -> Any:
    return Outbox()


@bounded
async def test_who_is_alone_writes_at_once() -> None:
    outbox, wire = _outbox(), _Wire()
    outbox.write(wire, b"unexpected")
    outbox.expect()
    outbox.write(wire, b"expected")
    assert wire.got == [b"unexpected", b"expected"]


@bounded
async def test_the_last_of_those_that_something_came_for_writes_for_all_in_order() -> None:
    outbox, log = _outbox(), list[bytes]()
    wires = [_Wire(log) for _ in range(3)]
    for _ in wires:
        outbox.expect()
    outbox.write(wires[0], b"1")
    outbox.write(wires[1], b"2")
    assert log == []
    outbox.write(wires[2], b"3")
    assert log == [b"1", b"2", b"3"]
    outbox.write(wires[0], b"4")  # what nobody expected waits for nobody
    outbox.write(wires[0], b"5")
    assert log == [b"1", b"2", b"3", b"4", b"5"]
    outbox.expect()
    outbox.expect()
    outbox.write(wires[1], b"6")
    assert len(log) == 5
    outbox.write(wires[2], b"7")
    assert log[5:] == [b"6", b"7"]


@bounded
async def test_who_does_not_write_is_waited_for_until_the_turn_ends_and_no_longer() -> None:
    outbox, wire = _outbox(), _Wire()
    outbox.expect()
    outbox.expect()
    outbox.write(wire, b"1")
    assert wire.got == []
    await asyncio.sleep(0)
    assert wire.got == [b"1"]
    outbox.expect()
    outbox.write(wire, b"2")
    assert wire.got == [b"1", b"2"]


@bounded
async def test_what_came_in_the_next_turn_is_still_expected_after_the_end_of_the_one_before() -> None:
    outbox, wire = _outbox(), _Wire()
    outbox.expect()
    outbox.expect()
    outbox.write(wire, b"1")
    outbox.expect()
    outbox.expect()
    await asyncio.sleep(0)
    outbox.write(wire, b"2")
    assert wire.got == [b"1"]
    outbox.write(wire, b"3")
    assert wire.got == [b"1", b"2", b"3"]


@bounded
@pytest.mark.parametrize(("most", "held"), [((), 24), ((PIECES,), 8)])
async def test_no_more_is_held_than_may_be(most: tuple[int, ...], held: int) -> None:
    outbox, wire = _outbox(), _Wire()
    for _ in range(100):
        outbox.expect()
    for number in range(held - 1):
        outbox.write(wire, b"%d" % number, *most)
    assert wire.got == []
    outbox.write(wire, b"last", *most)
    assert wire.got == [*(b"%d" % number for number in range(held - 1)), b"last"]


@bounded
async def test_what_is_large_is_not_held_and_does_not_overtake() -> None:
    outbox, wire = _outbox(), _Wire()
    for _ in range(9):
        outbox.expect()
    outbox.write(wire, b"small")
    outbox.write(wire, large := b"x" * 65_537)
    assert wire.got == [b"small", large]


@bounded
async def test_flush_writes_what_is_held_once() -> None:
    outbox, wire = _outbox(), _Wire()
    outbox.expect()
    outbox.expect()
    outbox.write(wire, b"1")
    outbox.flush()
    outbox.flush()
    await asyncio.sleep(0)
    assert wire.got == [b"1"]


@bounded
async def test_a_connection_that_is_closing_still_gets_what_was_held_for_it() -> None:
    """What it was sent before may be on its way still: a piece that is missing would be a hole, not an end."""
    outbox, wire = _outbox(), _Wire()
    outbox.write(wire, b"1")
    outbox.expect()
    outbox.expect()
    outbox.write(wire, b"2")
    wire.is_closed = True
    outbox.write(wire, b"3")
    assert wire.got == [b"1", b"2", b"3"]


@bounded
async def test_a_connection_that_fails_takes_nothing_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    outbox, failing, wire = _outbox(), _Wire(fails=True), _Wire()
    outbox.expect()
    outbox.expect()
    outbox.write(failing, b"1")
    with caplog.at_level(logging.ERROR):
        outbox.write(wire, b"2")
    assert wire.got == [b"2"]
    assert failing.is_closed
    assert "could not be written to" in caplog.text


@bounded
async def test_a_loop_has_one_outbox() -> None:
    loop = asyncio.get_running_loop()
    assert outbox_of(loop) is outbox_of(loop)


def test_loops_share_none_and_leave_none_behind() -> None:
    async def own() -> Outbox:
        outbox = outbox_of(asyncio.get_running_loop())
        outbox.expect()
        outbox.expect()
        outbox.write(cast(asyncio.Transport, _Wire()), b"1")
        await asyncio.sleep(0)
        return outbox

    assert asyncio.run(own()) is not asyncio.run(own())
    gc.collect()
    assert not _outboxes


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("who_closes", ["client", "server"])
def test_what_is_held_is_written_before_the_connection_ends(
    factory: Callable[[], asyncio.AbstractEventLoop], who_closes: str
) -> None:
    """The answer is held for others while the client ends its side, or it is the last one of the connection."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def run() -> bytes:
        loop = asyncio.get_running_loop()
        config, state = uvicorn.Config(app, lifespan="off"), ServerState()
        server = await loop.create_server(lambda: Connection(config, state, {}), "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            for _ in range(9):
                outbox_of(loop).expect()
            if who_closes == "client":
                writer.write(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
                writer.write_eof()
            else:
                writer.write(b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
        return answer

    with asyncio.Runner(loop_factory=factory) as runner:
        answer = runner.run(asyncio.wait_for(run(), 10))
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert answer.endswith(b"ok")


@bounded
@pytest.mark.parametrize("is_streamed", [True, False])
async def test_pieces_that_lead_to_no_write_are_not_waited_for(is_streamed: bool) -> None:
    """A generation whose answer is written in the end makes nobody else wait for each of its tokens."""
    loop, server, wire = asyncio.get_running_loop(), Wire(), _Wire()
    outbox = outbox_of(loop)
    connection = Upstream(Mock(), "target", loop, high_water=1 << 16, max_head=1 << 16)
    connection.connection_made(server)
    asking = asyncio.ensure_future(connection.exchange(b"POST / HTTP/1.1\r\n\r\n", b"", TimeLimits(), bodiless=False))
    await asyncio.sleep(0)
    connection.data_received(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
    response = await asking
    response.is_streamed = is_streamed
    connection.data_received(b"1\r\nb\r\n")
    connection.data_received(b"1\r\nc\r\n")
    outbox.write(cast(asyncio.Transport, wire), b"1")
    assert wire.got == ([] if is_streamed else [b"1"])
    connection.data_received(b"0\r\n\r\n")
    assert await response.read() == b"abc"
    await asyncio.sleep(0)
    assert wire.got == [b"1"]
