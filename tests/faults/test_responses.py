"""What of the Responses wire needs time to pass: signs of life, and deltas that wait for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from e2e.live import free_port, live_deck
from faults.support import Rig, bounded, configured, local, remote
from responses_automaton import ResponsesStream, check
from responses_support import CUSTOM, ROUTE, TOOL, body

from deck.testing.fake_llama import Reply, Step, say
from deck.testing.frames import content, done, finish, role, tool, usage

BEAT = b"event: response.in_progress"


@pytest.fixture(scope="module")
def beating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    tmp, port = tmp_path_factory.mktemp("responses"), free_port()
    profiles = {
        "remote": remote("remote", port),
        "single": remote("single", port, parallel=1),
        "slow": local(tmp / "slow", "slow", "--fake-unhealthy", "9"),
        "never": local(tmp / "never", "never", "--fake-unhealthy", "999999", load_timeout="700ms"),
    }
    with live_deck(tmp, *configured(tmp, heartbeat="50ms"), profiles=profiles) as deck:
        yield Rig(deck, port)


class Reader:
    """A stream that is read as it comes."""

    def __init__(self, response: httpx.Response) -> None:
        self.data = b""
        self._chunks = response.aiter_raw()

    async def until(self, wanted: bytes, count: int = 1) -> None:
        while self.data.count(wanted) < count:
            self.data += await anext(self._chunks)

    async def rest(self) -> ResponsesStream:
        async for chunk in self._chunks:
            self.data += chunk
        return check(self.data)


@asynccontextmanager
async def reading(client: httpx.AsyncClient, model: str = "remote", **fields: Any) -> AsyncIterator[Reader]:
    request = {**body(stream=True, **fields), "model": model}
    async with client.stream("POST", ROUTE, json=request) as response:
        assert response.status_code == 200, await response.aread()
        yield Reader(response)


@bounded
async def test_b43_prefill_is_bridged_by_real_events(beating: Rig) -> None:
    gate = asyncio.Event()
    reply = Reply(steps=say("Hello").steps, before_headers=gate)
    async with beating.fake(reply), beating.client() as client, reading(client) as reader:
        await reader.until(BEAT, 4)
        gate.set()
        found = await reader.rest()
    assert found.text() == "Hello"
    assert found.heartbeats >= 3


@bounded
async def test_b43_silence_within_a_call_is_bridged(beating: Rig) -> None:
    gate = asyncio.Event()
    steps: list[Step] = [role(), tool(0, "a1", "read_note", '{"path"'), gate, tool(0, None, None, ':"a"}')]
    reply = Reply(steps=[*steps, finish("tool_calls"), done()])
    async with beating.fake(reply), beating.client() as client, reading(client, tools=[TOOL]) as reader:
        await reader.until(BEAT, 3)
        gate.set()
        found = await reader.rest()
    assert [item["arguments"] for item in found.items] == ['{"path":"a"}']


@bounded
async def test_b43_the_load_is_bridged(beating: Rig) -> None:
    async with beating.client() as client, reading(client, "slow") as reader:
        found = await reader.rest()
    assert found.text().startswith("Hello")
    assert found.heartbeats >= 1


@bounded
async def test_a_load_that_fails_after_heartbeats_is_a_failed_response(beating: Rig) -> None:
    async with beating.client() as client, reading(client, "never") as reader:
        found = await reader.rest()
    assert found.status == "failed"
    assert "was not ready after 0.7 s" in found.final["error"]["message"]


@pytest.mark.parametrize("tool_", [TOOL, CUSTOM], ids=["function", "custom"])
@bounded
async def test_b116_deltas_are_forwarded_before_the_next_exists(beating: Rig, tool_: dict[str, Any]) -> None:
    """B116: offering tools holds nothing back, and a custom call's input is decoded as it comes."""
    first, second = asyncio.Event(), asyncio.Event()
    steps: list[Step] = [
        role(),
        content("word one"),
        first,
        tool(0, "a1", tool_["name"], '{"input":"line one\\n'),
        second,
        tool(0, None, None, 'line two"}'),
        finish("tool_calls"),
        usage(1, 1),
        done(),
    ]
    async with beating.fake(Reply(steps=steps)), beating.client() as client, reading(client, tools=[tool_]) as reader:
        await reader.until(b"word one")
        first.set()
        await reader.until(b"line one")
        second.set()
        found = await reader.rest()
    text = found.items[1].get("input", found.items[1].get("arguments"))
    assert text in ("line one\nline two", '{"input":"line one\\nline two"}')


@bounded
async def test_each_event_is_written_whole(beating: Rig) -> None:
    """Some readers lose an event whose blank line comes later than its data."""
    async with beating.fake(say(*(f"w{number} " for number in range(40)))), beating.client() as client:
        request = {**body(stream=True), "model": "remote"}
        async with client.stream("POST", ROUTE, json=request) as response:
            pieces = [piece async for piece in response.aiter_raw()]
    assert all(piece.endswith(b"\n\n") for piece in pieces if piece)
