"""Slots that share one pool of tokens are never granted more than it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from admission_support import (
    BEARER,
    CONTEXT,
    COUNTERS,
    LONG,
    answering,
    asked,
    counters,
    load,
    prompt_words,
    props,
    send,
    watched,
)
from app_support import App, app
from wires import WIRES

from deck.testing.fake_llama import Received, Reply, say


@pytest.fixture(params=list(WIRES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pooled(tmp_path: Path, script: Any, tokens: int = 100, **more: Any) -> Any:
    profiles = {"pool": 'id = "pool"\n{server}ctx_size = 4096\n', **more}
    return app(tmp_path, script, profiles=profiles, routes={**counters(tokens), "/props": props(4096, 4)})


class Held:
    """Answers that wait until the test lets them end."""

    def __init__(self) -> None:
        self.gates: list[asyncio.Event] = []

    def __call__(self, received: Received) -> Reply:
        gate = asyncio.Event()
        self.gates.append(gate)
        return Reply(steps=(*say("a").steps[:2], gate, *say("a").steps[2:]))


def run(deck: App, play: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await play()

    deck.runner.run(bounded())


def ask(deck: App, words: str, limit: int | None) -> asyncio.Task[httpx.Response]:
    body = {**WIRES["chat"].body(words, False, limit), "model": "pool"}
    return asyncio.get_running_loop().create_task(deck.client.post(WIRES["chat"].path, json=body, headers=BEARER))


async def until(claim: Callable[[], bool]) -> None:
    while not claim():
        await asyncio.sleep(0)


def is_settled(deck: App, left: int) -> bool:
    return deck.deck.board.running("pool") + deck.deck.board.depth == left


def has_gates(held: Held, count: int) -> bool:
    return len(held.gates) == count


def are_done(tasks: list[asyncio.Task[httpx.Response]], count: int) -> bool:
    return sum(task.done() for task in tasks) == count


@pytest.mark.parametrize(
    ("tokens", "limit", "together"),
    [(1000, 1000, 2), (1000, 300, 3), (24, 1000, 4), (100, None, 1), (2000, 2096, 1)],
)
def test_the_credits_of_who_runs_never_exceed_the_pool(
    tmp_path: Path, tokens: int, limit: int | None, together: int
) -> None:
    held = Held()
    with pooled(tmp_path, held, tokens) as deck:

        async def play() -> None:
            first = ask(deck, "a", 1)
            await until(lambda: len(held.gates) == 1)
            held.gates[0].set()
            await first
            tasks = [ask(deck, LONG, limit) for _ in range(5)]
            for left in range(5, 0, -1):
                running = min(together, left)
                await until(partial(is_settled, deck, left))
                assert deck.deck.board.running("pool") == running
                await until(partial(has_gates, held, 6 - left + running))
                held.gates[6 - left].set()
                await until(partial(are_done, tasks, 6 - left))
            assert all(task.result().is_success for task in tasks)

        run(deck, play)


def test_one_that_loaded_the_model_holds_no_more_than_it_takes(tmp_path: Path) -> None:
    """Before there was anybody to count, it had to be granted all of the pool."""
    held = Held()
    with pooled(tmp_path, held, 1000) as deck:

        async def play() -> None:
            first = ask(deck, LONG, 100)
            await until(partial(has_gates, held, 1))
            second = ask(deck, LONG, 100)
            await until(partial(has_gates, held, 2))
            for gate in held.gates:
                gate.set()
            assert (await first).is_success
            assert (await second).is_success

        run(deck, play)


def test_who_waited_for_the_load_runs_beside_the_others_as_far_as_all_fit(tmp_path: Path) -> None:
    """Until then nobody knew the template; what it may add exceeds the pool."""
    held = Held()
    with pooled(tmp_path, held) as deck:

        async def play() -> None:
            tasks = [ask(deck, "hi", 100) for _ in range(4)]
            await until(partial(has_gates, held, 4))
            assert deck.deck.board.running("pool") == 4
            for gate in held.gates:
                gate.set()
            await until(partial(are_done, tasks, 4))
            assert all(task.result().is_success for task in tasks)

        run(deck, play)


@pytest.mark.parametrize(
    ("more", "limit"), [("", None), ("[capabilities]\ncontext = 64\n", None), ("[capabilities]\ncontext = 64\n", 9000)]
)
def test_what_is_only_declared_bounds_no_credit(tmp_path: Path, more: str, limit: int | None) -> None:
    """A slot may grow beyond what somebody said of the model."""
    profile = f'id = "pool"\nbudget_overflow = "cap"\n{{server}}{more}'
    with app(tmp_path, answering, profiles={"pool": profile}) as deck:
        seen = watched(deck, lambda server: None)
        assert send(deck, WIRES["chat"], "a", limit, model="pool").is_success
        assert seen[0] > (limit or 1 << 30)


def test_a_small_request_to_a_pool_is_not_counted(tmp_path: Path) -> None:
    with pooled(tmp_path, answering) as deck:
        load(deck, "pool")
        assert send(deck, WIRES["chat"], "hi", 100, model="pool").is_success
        assert send(deck, WIRES["chat"], "hi", None, model="pool").is_success  # it may take all, whatever it holds now
        assert asked(deck, *COUNTERS) == []
        assert send(deck, WIRES["chat"], "hi", 1000, model="pool").is_success  # more than a quarter of the pool
        assert len(asked(deck, *COUNTERS)) == 1


def test_a_stream_that_heartbeats_have_begun_ends_in_the_wires_own_error(tmp_path: Path, name: str) -> None:
    """The model is not loaded when both come; what the second takes is known only when it is granted."""
    held = Held()
    profiles = {"pool": 'id = "pool"\n{server}parallel = 1\n'}
    with app(tmp_path, held, profiles=profiles, routes=counters(5000), heartbeat=0.01) as deck:

        async def play() -> None:
            wire = WIRES[name]
            first = ask(deck, "a", 1)
            body = {**wire.body(LONG, True, 1), "model": "pool"}
            second = asyncio.get_running_loop().create_task(deck.client.post(wire.path, json=body, headers=BEARER))
            await until(lambda: len(held.gates) == 1)
            await until(lambda: any(serving.reply.has_started for serving in deck.deck.endpoint._running))
            held.gates[0].set()
            assert (await first).is_success
            answer = await second
            assert answer.status_code == 200
            assert wire.stream(answer.content).error == prompt_words(name, 5000, CONTEXT)
            assert deck.deck.board.running("pool") == 0

        run(deck, play)
