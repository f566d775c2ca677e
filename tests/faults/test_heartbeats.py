"""Signs of life while Deck has nothing to say: valid chunks of the same answer, and none for a dead upstream."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from chat_automaton import ChatStream
from chat_support import TOOL
from e2e.live import children, free_port, is_alive, live_deck
from faults.support import Rig, bounded, configured, local, reading, remote, until, works

from deck.testing.fake_llama import Act, Reply, Step, say
from deck.testing.frames import content, done, finish, role, tool

BEAT = b'"delta":{}'


@pytest.fixture(scope="module")
def beating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    tmp, port = tmp_path_factory.mktemp("heartbeats"), free_port()
    profiles = {
        "remote": remote("remote", port),
        "single": remote("single", port, parallel=1),
        "hasty": remote("hasty", port, stall_timeout="300ms"),
        "slow": local(tmp / "slow", "slow", "--fake-unhealthy", "9"),
        "again": local(tmp / "again", "again", "--fake-unhealthy", "9", "--fake-heir", "2"),
        "never": local(tmp / "never", "never", "--fake-unhealthy", "999999", load_timeout="700ms"),
        "mute": local(tmp / "mute", "mute", "--fake-stall"),
    }
    with live_deck(tmp, *configured(tmp, heartbeat="50ms"), profiles=profiles) as deck:
        yield Rig(deck, port)


def beats(found: ChatStream) -> int:
    return sum(
        bool(chunk["choices"]) and chunk["choices"][0]["delta"] == {} and chunk["choices"][0]["finish_reason"] is None
        for chunk in found.chunks
    )


def two_beats(data: bytes) -> bool:
    return data.count(BEAT) >= 2


@bounded
async def test_prefill_is_bridged(beating: Rig) -> None:
    gate = asyncio.Event()
    reply = Reply(steps=say("Hello").steps, before_headers=gate)
    async with beating.fake(reply), beating.client() as client, reading(client) as reader:
        await reader.until(two_beats)
        gate.set()
        found = await reader.rest()
    assert found.text == "Hello"
    assert beats(found) >= 2
    assert found.chunks[0]["choices"][0]["delta"]["role"] == "assistant"


@bounded
async def test_silence_in_the_middle_of_a_call_is_bridged(beating: Rig) -> None:
    """B119: accumulators of tool calls must not stumble over a heartbeat."""
    gate = asyncio.Event()
    steps: list[Step] = [
        role(),
        tool(0, "a1", "read_note", '{"path"'),
        gate,
        tool(0, None, None, ':"a"}'),
        finish("tool_calls"),
    ]
    async with (
        beating.fake(Reply(steps=[*steps, done()])),
        beating.client() as client,
        reading(client, tools=[TOOL]) as reader,
    ):
        await reader.until(two_beats)
        gate.set()
        found = await reader.rest()
    assert [call["arguments"] for call in found.calls] == ['{"path":"a"}']


@bounded
async def test_the_queue_is_bridged(beating: Rig) -> None:
    gate = asyncio.Event()
    first = Reply(steps=[role(), content("one"), gate, finish(), done()])
    async with (
        beating.fake(first, say("two")) as fake,
        beating.client() as client,
        reading(client, "single") as running,
    ):
        await running.until_text("one")
        async with reading(client, "single") as waiting:
            await waiting.until(two_beats)
            assert len(fake.chats) == 1
            gate.set()
            assert (await running.rest()).text == "one"
            assert (await waiting.rest()).text == "two"


@bounded
async def test_the_load_is_bridged(beating: Rig) -> None:
    async with beating.client() as client, reading(client, "slow") as reader:
        found = await reader.rest()
    assert found.text.startswith("Hello")
    assert beats(found) >= 2


@bounded
async def test_the_next_load_is_bridged_and_shown_where_the_engine_had_died(beating: Rig) -> None:
    async with beating.client() as client:
        await works(client, "again")
        engine, *_ = children(beating.deck.process.pid)
        os.kill(engine, signal.SIGKILL)
        await until(lambda: not is_alive(engine))
        async with reading(client, "again", return_progress=True) as reader:
            found = await reader.rest()
    assert found.text.startswith("Hello")
    assert any("load_progress" in chunk for chunk in found.chunks)


@bounded
async def test_a_load_that_fails_after_heartbeats_is_an_error_frame(beating: Rig) -> None:
    async with beating.client() as client, reading(client, "never") as reader:
        found = await reader.rest()
    assert beats(found) >= 2
    assert found.error is not None
    assert "was not ready after 0.7 s" in found.error["message"]


@pytest.mark.parametrize("act", [Act.CLOSE, Act.RESET])
@bounded
async def test_none_comes_once_the_upstream_is_dead(beating: Rig, act: Act) -> None:
    gate = asyncio.Event()
    dying = Reply(steps=[role(), gate, act])
    async with beating.fake(dying, say("Hello")), beating.client() as client:
        async with reading(client) as reader:
            await reader.until(two_beats)
            gate.set()
            found = await reader.rest()
        assert found.error is not None
        await works(client)


@bounded
async def test_none_comes_once_the_engine_is_killed(beating: Rig) -> None:
    async with beating.client() as client, reading(client, "mute") as reader:
        await reader.until(two_beats)
        [engine] = await until(lambda: children(beating.deck.process.pid))
        os.kill(engine, signal.SIGKILL)
        found = await asyncio.wait_for(reader.rest(), 5)
    assert found.error is not None
    assert "killed by signal 9" in found.error["message"]


@bounded
async def test_heartbeats_do_not_hide_a_stall(beating: Rig) -> None:
    async with (
        beating.fake(Reply(steps=[role(), Act.STALL])),
        beating.client() as client,
        reading(client, "hasty") as reader,
    ):
        found = await reader.rest()
    assert beats(found) >= 2
    assert found.error is not None


@bounded
async def test_a_heartbeat_never_overtakes_or_splits_a_frame(beating: Rig) -> None:
    """Answers whose frames come just when a heartbeat is due, many times over."""
    loop = asyncio.get_running_loop()

    def timed() -> Reply:
        gates = [asyncio.Event() for _ in range(3)]
        for number, gate in enumerate(gates, 1):
            loop.call_later(0.05 * number, gate.set)
        steps: list[Step] = [role(), gates[1], content("a"), gates[2], content("b"), finish(), done()]
        return Reply(steps=steps, before_headers=gates[0])

    async with beating.acting(lambda request: timed()), beating.client() as client:

        async def one() -> str:
            async with reading(client) as reader:
                return (await reader.rest()).text

        for _ in range(4):
            assert set(await asyncio.gather(*(one() for _ in range(40)))) == {"ab"}
