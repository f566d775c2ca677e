"""Waiting for a slot, and two models that do not fit at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import httpx
import pytest
from e2e.live import children, free_port, is_alive, live_deck
from faults.support import (
    Rig,
    bounded,
    client_of,
    configured,
    leave,
    local,
    post,
    queued,
    reading,
    remote,
    stream,
    unhurried,
    works,
)

from deck.testing.fake_llama import Reply, say
from deck.testing.frames import content, done, finish, role


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A Deck where two may wait, and none for longer than half a second."""
    tmp, port = tmp_path_factory.mktemp("narrow"), free_port()
    profiles = {"single": remote("single", port, parallel=1)}
    with live_deck(tmp, *configured(tmp, queue_limit=2, queue_wait="500ms"), profiles=profiles) as deck:
        yield Rig(deck, port)


async def state_of(client: httpx.AsyncClient, model: str, *states: str) -> None:
    while (await client.get("/v1/stats")).json()["servers"][model] not in states:
        pass


def held(gate: asyncio.Event) -> Reply:
    return Reply(steps=[role(), content("one"), gate, finish(), done()])


@bounded
async def test_a_full_queue_is_429(narrow: Rig) -> None:
    gate = asyncio.Event()
    async with narrow.fake(held(gate), say("Hello")) as fake, narrow.client() as client:
        async with reading(client, "single") as running:
            await running.until_text("one")
            waiting = [asyncio.ensure_future(post(client, "single")) for _ in range(2)]
            await queued(client, 2)
            for streamed in (True, False):
                answer = await post(client, "single", stream=streamed)
                assert answer.status_code == 429, answer.text
                assert int(answer.headers["retry-after"]) > 0
                assert answer.json()["error"]["type"] == "rate_limit_error"
            gate.set()
            await running.rest()
            assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200, 200]
        assert len(fake.chats) == 3


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "buffered"])
@bounded
async def test_a_long_wait_is_503(narrow: Rig, streamed: bool) -> None:
    gate = asyncio.Event()
    async with narrow.fake(held(gate), say("Hello")) as fake, narrow.client() as client:
        async with reading(client, "single") as running:
            await running.until_text("one")
            began = time.monotonic()
            answer = await post(client, "single", stream=streamed)
            assert answer.status_code == 503, answer.text
            assert int(answer.headers["retry-after"]) > 0
            assert "waited 0.5 s for 'single': its only slot is in use" in answer.json()["error"]["message"]
            assert 0.4 < time.monotonic() - began < 5
            gate.set()
            await running.rest()
        assert len(fake.chats) == 1
        await works(client, "single")


@unhurried
async def test_two_models_take_turns_and_never_run_at_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """B143."""
    tmp = tmp_path_factory.mktemp("turns")
    profiles = {name: local(tmp / name, name, "--fake-unhealthy", "2") for name in ("one", "two")}
    with live_deck(tmp, *configured(tmp), profiles=profiles) as deck:
        most, is_over = 0, asyncio.Event()

        async def watch() -> None:
            nonlocal most
            while not is_over.is_set():
                most = max(most, sum(is_alive(pid) for pid in children(deck.process.pid)))
                await asyncio.sleep(0.002)

        watching = asyncio.ensure_future(watch())
        async with client_of(deck) as client:
            models = ["one", "two"] * 5
            answers = await asyncio.gather(*(post(client, model) for model in models))
            assert [answer.status_code for answer in answers] == [200] * 10
            assert [answer.json()["model"] for answer in answers] == models
            assert (await stream(client, "one")).text.startswith("Hello")
            # B152: a model is wanted while another loads, whose client then leaves.
            loaded = deck.logged().count("two is ready")
            leaving = asyncio.ensure_future(post(client, "two"))
            await state_of(client, "two", "starting", "loading")
            waiting = asyncio.ensure_future(post(client, "one"))
            await leave(leaving)
            assert (await waiting).status_code == 200
            assert deck.logged().count("two is ready") <= loaded + 1
        is_over.set()
        await watching
        assert most == 1
