"""What an exchange's record says of one that was tried twice, or whose answer was made for several."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from app_support import BODY, CHAT, TOKEN, App, app
from e2e.live import free_port

from deck.contracts import ExchangeRecord
from deck.testing.fake_llama import FakeLlama, Received, Reply, Script, refuse, say
from deck.testing.frames import content, done, finish, role, tool, usage

HEADERS = {"authorization": f"Bearer {TOKEN}"}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


class Records:
    """An observer that keeps everything."""

    def __init__(self, deck: App) -> None:
        self.all: list[ExchangeRecord] = []
        deck.deck.endpoint._observers = [self]

    def observe(self, record: ExchangeRecord) -> None:
        self.all.append(record)


def far(*ports: int) -> dict[str, str]:
    urls = ", ".join(f'"http://127.0.0.1:{port}"' for port in ports)
    return {"far": f'id = "far"\n[server]\nurls = [{urls}]\nhealth_interval = "60s"\n'}


@contextlib.asynccontextmanager
async def up(script: Script, *ports: int) -> AsyncIterator[None]:
    async with asyncio.timeout(20), contextlib.AsyncExitStack() as stack:
        for port in ports:
            fake = FakeLlama(script, port=port)
            await fake.start()
            stack.push_async_callback(fake.stop)
        yield


async def post(deck: App, **fields: Any) -> httpx.Response:
    return await deck.client.post(CHAT, json={**BODY, **fields}, headers=HEADERS)


def test_each_member_of_a_record_says_what_it_is_named_for(tmp_path: Path) -> None:
    """It is made by place, so that any two of one type could be mistaken for each other."""
    port = free_port()
    answer = Reply(steps=[role(), content("a"), finish("length"), usage(70, 9, 50), done()])
    with app(tmp_path, profiles=far(port)) as deck:
        records = Records(deck)

        async def play() -> None:
            async with up(lambda received: answer, port):
                assert (await post(deck, model="far", max_tokens=9, user="u")).status_code == 200

        deck.runner.run(play())
        [record] = records.all
    assert record.id.startswith("req_")
    assert (record.surface, record.model, record.principal) == ("chat", "far", "environment")
    assert (record.outcome, record.status, record.stream) == ("ok", 200, False)
    assert record.first_token is not None
    assert 0 <= record.queued <= record.first_token <= record.duration
    assert record.queued < record.duration
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (70, 9, 50)
    assert (record.finish, record.lane, record.left_lane) == ("length", "continuous", None)
    assert list(record.notes) == [("ignored", "user")]
    assert (record.replica, record.retries) == ("", 0)


def test_a_second_try_has_not_queued_for_the_first_and_passes_nobody_over(tmp_path: Path) -> None:
    port, seen = free_port(), list[Received]()

    def script(received: Received) -> Reply:
        seen.append(received)
        if len(seen) > 1:
            return say("Hello")
        deck.deck.pipeline._clock = lambda: 1e9
        return Reply(steps=[role(), tool(0, "abcdefghi", "nothing", "{}"), finish("tool_calls"), done()])

    with app(tmp_path, profiles=far(port, free_port())) as deck:
        records = Records(deck)

        async def play() -> None:
            async with up(script, port):
                assert (await post(deck, model="far", tools=TOOLS)).status_code == 200

        deck.runner.run(play())
        [record] = records.all
        assert len(seen) == 2
        assert record.queued < 100
        assert record.replica == f"http://127.0.0.1:{port}"
        assert record.retries == 0


def test_a_shared_generation_s_server_is_told_to_all_and_its_retries_to_one(tmp_path: Path) -> None:
    ports, gate, seen = (free_port(), free_port()), asyncio.Event(), list[Received]()

    def script(received: Received) -> Reply:
        seen.append(received)
        if len(seen) == 1:
            return refuse(503, "Loading model", "unavailable_error")
        return Reply(steps=[role(), content("a"), gate, finish(), done()])

    with app(tmp_path, profiles=far(*ports)) as deck:
        records = Records(deck)

        async def play() -> None:
            async with up(script, *ports):
                tasks = [asyncio.ensure_future(post(deck, model="far", temperature=0)) for _ in range(3)]
                while deck.deck.pipeline.flights.guests < 3 or len(seen) < 2:
                    await asyncio.sleep(0)
                gate.set()
                assert [answer.status_code for answer in await asyncio.gather(*tasks)] == [200] * 3

        deck.runner.run(play())
        assert [record.lane for record in records.all] == ["static"] * 3
        assert len({record.replica for record in records.all}) == 1
        assert records.all[0].replica
        assert sum(record.retries for record in records.all) == 1


def test_another_spelling_of_the_same_is_answered_with_its_own_names(tmp_path: Path) -> None:
    gate = asyncio.Event()
    steps = [role(), content("a"), gate, finish(), done()]
    profiles = {"limited": 'id = "limited"\n{server}[limits]\nmax_tokens = 3\n'}
    with app(tmp_path, lambda received: Reply(steps=steps), profiles=profiles) as deck:

        async def play() -> tuple[httpx.Response, ...]:
            async with asyncio.timeout(20):
                names = ("max_tokens", "max_completion_tokens")
                fields = [{"model": "limited", "temperature": 0, name: 5} for name in names]
                tasks = [asyncio.ensure_future(post(deck, **item)) for item in fields]
                while deck.deck.pipeline.flights.guests < 2:
                    await asyncio.sleep(0)
                gate.set()
                shared = await asyncio.gather(*tasks)
                return (*shared, await post(deck, **fields[1]))

        first, second, alone = (answer.headers["x-athena-compatibility-changed"] for answer in deck.runner.run(play()))
        assert second == alone != first


def test_whoever_leaves_a_generation_that_runs_has_not_queued_for_it(tmp_path: Path) -> None:
    port, gate, seen = free_port(), asyncio.Event(), list[Received]()

    def script(received: Received) -> Reply:
        seen.append(received)
        return Reply(steps=[role(), content("Hello"), gate, finish(), done()])

    with app(tmp_path, profiles=far(port)) as deck:
        records = Records(deck)

        async def play() -> None:
            async with up(script, port):
                asked = asyncio.ensure_future(post(deck, model="far", temperature=0))
                while not seen:
                    await asyncio.sleep(0.001)
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
                while not records.all:
                    await asyncio.sleep(0.001)
                gate.set()

        deck.runner.run(play())
        [record] = records.all
        assert record.lane == "static"
        assert record.queued < record.duration


def test_what_is_never_routed_has_no_lane(tmp_path: Path) -> None:
    """Refused before, or only counted: it is in no lane's number."""
    with app(
        tmp_path, lambda received: say("Hello"), routes={"/v1/chat/completions/input_tokens": {"input_tokens": 3}}
    ) as deck:
        records = Records(deck)
        assert deck.chat(json={**BODY, "model": "none"}).status_code == 404
        assert deck.chat(json={**BODY, "temperature": "hot"}).status_code == 400
        assert deck.send("POST", "/v1/messages/count_tokens", json=BODY).status_code == 200
        assert deck.chat(json=BODY).status_code == 200
        assert [(record.status, record.lane) for record in records.all] == [
            (404, ""),
            (400, ""),
            (200, ""),
            (200, "continuous"),
        ]
