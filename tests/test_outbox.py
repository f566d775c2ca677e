"""Writes of one turn of the loop leave together, in their order, and nobody waits who need not."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from faults.support import bounded

from deck.outbox import PIECES, Outbox, outbox_of


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
    return Outbox(asyncio.get_running_loop())


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
    assert log == [b"1", b"2", b"3", b"4"]


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
async def test_a_closed_connection_and_one_that_fails_take_nothing_from_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outbox, closed, failing, wire = _outbox(), _Wire(), _Wire(fails=True), _Wire()
    for _ in range(3):
        outbox.expect()
    outbox.write(closed, b"1")
    outbox.write(failing, b"2")
    closed.is_closed = True
    with caplog.at_level(logging.ERROR):
        outbox.write(wire, b"3")
    assert (closed.got, wire.got) == ([], [b"3"])
    assert failing.is_closed
    assert "could not be written to" in caplog.text


@bounded
async def test_a_loop_has_one_outbox() -> None:
    loop = asyncio.get_running_loop()
    assert outbox_of(loop) is outbox_of(loop)


def test_loops_share_none() -> None:
    async def own() -> Outbox:
        return outbox_of(asyncio.get_running_loop())

    assert asyncio.run(own()) is not asyncio.run(own())
