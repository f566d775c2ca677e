"""Clients that go away: the upstream is told within a second, the slot is free, and nobody else notices."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from e2e.live import children, free_port, live_deck
from faults.support import (
    SOON,
    Rig,
    bounded,
    configured,
    depth,
    leave,
    local,
    post,
    queued,
    reading,
    remote,
    until,
    within,
    works,
)

from deck.testing.fake_llama import Act, Reply, Step, say
from deck.testing.frames import content, done, finish, role

STALLED = Reply(steps=[role(), content("Hi"), Act.STALL])
MODES = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "buffered"])


@pytest.fixture(scope="module")
def leaving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    tmp, port = tmp_path_factory.mktemp("leaving"), free_port()
    profiles = {
        "single": remote("single", port, parallel=1),
        "slow": local(tmp / "slow", "slow", "--fake-unhealthy", "7", ttl="200ms"),
    }
    with live_deck(tmp, *configured(tmp, heartbeat="50ms"), profiles=profiles) as deck:
        yield Rig(deck, port)


@MODES
@bounded
async def test_before_the_first_byte(rig: Rig, stream: bool) -> None:
    """B158: llama-server still processes the prompt and has not even sent a status."""
    prefill = Reply(before_headers=asyncio.Event())
    async with rig.fake(prefill, say("Hello")) as fake, rig.client() as client:
        asking = asyncio.ensure_future(post(client, "single", stream=stream))
        received = await fake.received()
        await leave(asking)
        await within(received.left.wait())
        await until(lambda: received.is_cancelled, SOON)
        await works(client, "single")


@pytest.mark.parametrize("steps", [[], [role()], [role(), content("Hi")]], ids=["head", "role", "text"])
@MODES
@bounded
async def test_in_the_middle(rig: Rig, steps: list[Step], stream: bool) -> None:
    """B158."""
    async with rig.fake(Reply(steps=[*steps, Act.STALL]), say("Hello")) as fake, rig.client() as client:
        asking = asyncio.ensure_future(post(client, "single", stream=stream))
        received = await fake.received()
        await leave(asking)
        await within(received.left.wait())
        await until(lambda: received.is_cancelled, SOON)
        await works(client, "single")


@bounded
async def test_after_two_chunks(rig: Rig) -> None:
    """B158."""
    async with rig.fake(STALLED, say("Hello")) as fake, rig.client() as client:
        async with reading(client, "single") as reader:
            await reader.until_text("Hi")
        await within(fake.chats[0].left.wait())
        await works(client, "single")


@bounded
async def test_while_llama_server_is_faster_than_the_client(rig: Rig) -> None:
    """An endless answer that the client stopped reading: its buffers are full, Deck waits for it and it leaves."""
    gate = asyncio.Event()
    endless = Reply(steps=[role(), *([content("x" * 60_000)] * 400), gate])
    async with rig.fake(endless, say("Hello")) as fake, rig.client() as client:
        async with reading(client, "single") as reader:
            await reader.until_text("xxx")
        await within(fake.chats[0].left.wait())
        await works(client, "single")


@MODES
@bounded
async def test_while_queued(leaving: Rig, stream: bool) -> None:
    """B158."""
    gate = asyncio.Event()
    first = Reply(steps=[role(), content("one"), gate, finish(), done()])
    async with leaving.fake(first, say("Hello")) as fake, leaving.client() as client:
        async with reading(client, "single") as running:
            await running.until_text("one")
            waiting = asyncio.ensure_future(post(client, "single", stream=stream))
            await queued(client, 1)
            await leave(waiting)
            await within(queued(client, 0))
            gate.set()
            assert (await running.rest()).text == "one"
        await works(client, "single")
        assert len(fake.chats) == 2, "nothing is sent for a client that left the queue"


@bounded
async def test_a_place_in_the_queue_passes_to_the_next(leaving: Rig) -> None:
    gate = asyncio.Event()
    first = Reply(steps=[role(), content("one"), gate, finish(), done()])
    async with leaving.fake(first, say("Hello")) as fake, leaving.client() as client:
        async with reading(client, "single") as running:
            await running.until_text("one")
            second = asyncio.ensure_future(post(client, "single", user="second"))
            await queued(client, 1)
            third = asyncio.ensure_future(post(client, "single"))
            await queued(client, 2)
            await leave(second)
            gate.set()
            assert (await third).status_code == 200
        assert len(fake.chats) == 2


@MODES
@bounded
async def test_while_loading(leaving: Rig, stream: bool) -> None:
    """B158, B152: the load goes on for the next, is asked nothing by who left, and is unloaded when nobody comes."""
    async with leaving.client() as client:
        asking = asyncio.ensure_future(post(client, "slow", stream=stream))
        [engine] = await until(lambda: children(leaving.deck.process.pid))
        await leave(asking)
        async with asyncio.timeout(SOON):
            while await depth(client):
                pass
        assert children(leaving.deck.process.pid) == [engine]
        await until(lambda: not children(leaving.deck.process.pid))


@bounded
async def test_others_on_the_server_go_on(rig: Rig) -> None:
    """B160."""
    gate = asyncio.Event()
    staying = Reply(steps=[role(), content("stay "), gate, content("to the end"), finish(), done()])
    async with rig.fake(staying, STALLED) as fake, rig.client() as client, reading(client) as one:
        await one.until_text("stay")
        async with reading(client) as other:
            await other.until_text("Hi")
        await within(fake.chats[1].left.wait())
        assert not fake.chats[0].left.is_set()
        gate.set()
        assert (await one.rest()).text == "stay to the end"


@bounded
async def test_many_leave_at_once(rig: Rig) -> None:
    async with rig.fake(*[STALLED] * 12, say("Hello")) as fake, rig.client() as client:
        asking = [asyncio.ensure_future(post(client, stream=number % 2 == 0)) for number in range(12)]
        await fake.received(12)
        await asyncio.gather(*(leave(task) for task in asking))
        await within(asyncio.gather(*(item.left.wait() for item in fake.chats)))
        await works(client)
