"""Two Decks that share three llama-servers and nothing else; one of these dies, is slow, loads, or refuses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from chat_automaton import check
from e2e.live import LiveDeck, live_deck
from faults.support import Reader, body, bounded, client_of, configured, until

from deck.testing.fake_llama import Act, FakeLlama, Received, Reply, refuse, say
from deck.testing.frames import content, done, finish, role

KEYS = {"health_interval": "100ms", "stall_timeout": "10s"}
Script = Callable[[Received], Reply]


def hosts() -> list[str]:
    """Return three loopback addresses, the same one three times where the machine has no others."""
    found = [f"127.0.0.{number}" for number in (2, 3, 4)]
    try:
        for host in found:
            with socket.socket() as sock:
                sock.bind((host, 0))
    except OSError:
        return ["127.0.0.1"] * 3
    return found


def free(host: str) -> int:
    with socket.socket() as sock:
        sock.bind((host, 0))
        port: int = sock.getsockname()[1]
        return port


def profile(name: str, urls: list[str], **keys: Any) -> str:
    settings = {"urls": urls, **KEYS, **keys}
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    return "\n".join([f'id = "{name}"', "retry_calls = false", "[server]", *lines])


@dataclass
class Fleet:
    """Two Decks, and where their three servers listen."""

    decks: tuple[LiveDeck, LiveDeck]
    places: list[tuple[str, int]]

    @property
    def urls(self) -> list[str]:
        return [f"http://{host}:{port}" for host, port in self.places]

    def fake(self, number: int, script: Any = (), **options: Any) -> FakeLlama:
        host, port = self.places[number]
        return FakeLlama(script, host=host, port=port, **options)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    places = [(host, free(host)) for host in hosts()]
    urls = [f"http://{host}:{port}" for host, port in places]
    profiles = {"far": profile("far", urls), "narrow": profile("narrow", urls[:2], parallel=1)}
    with contextlib.ExitStack() as stack:
        decks = []
        for number in range(2):
            tmp = tmp_path_factory.mktemp(f"deck{number}")
            decks.append(stack.enter_context(live_deck(tmp, *configured(tmp, heartbeat="1s"), profiles=profiles)))
        yield Fleet((decks[0], decks[1]), places)


async def replicas(client: httpx.AsyncClient, model: str = "far") -> list[dict[str, Any]]:
    servers = (await client.get("/deck/servers")).raise_for_status().json()["servers"]
    found: list[dict[str, Any]] = next(item["replicas"] for item in servers if item["id"] == model)
    return found


async def seen(client: httpx.AsyncClient, *states: str, model: str = "far") -> None:
    """Wait until a Deck sees the servers in these states."""
    found: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(10):
            while [item["state"] for item in found] != list(states):
                found = await replicas(client, model)
    except TimeoutError:
        raise AssertionError(f"{found} are not {states}") from None


@contextlib.asynccontextmanager
async def up(fleet: Fleet, *scripts: Any, model: str = "far") -> AsyncIterator[tuple[Any, Any]]:
    """Run the fakes; give them and clients of the Decks once these see all of them up."""
    async with contextlib.AsyncExitStack() as stack:
        fakes = [await stack.enter_async_context(fleet.fake(number, script)) for number, script in enumerate(scripts)]
        clients = [await stack.enter_async_context(client_of(deck)) for deck in fleet.decks]
        for client in clients:
            (await client.post(f"/deck/servers/{model}/load")).raise_for_status()
            await seen(client, *["up"] * len(scripts), model=model)
        yield fakes, clients


def talk(number: int, model: str = "far", **fields: Any) -> dict[str, Any]:
    """Return the first request of a conversation."""
    return {**body(model, **fields), "messages": [{"role": "user", "content": f"conversation {number}"}]}


async def ask(client: httpx.AsyncClient, number: int = 0, **fields: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=talk(number, **fields))


def held(gate: asyncio.Event) -> Reply:
    return Reply(steps=[role(), content("one"), gate, content("two"), finish(), done()])


@contextlib.asynccontextmanager
async def stream_of(client: httpx.AsyncClient, number: int) -> AsyncIterator[Reader]:
    async with client.stream("POST", "/v1/chat/completions", json=talk(number, stream=True)) as response:
        assert response.status_code == 200
        yield Reader(response)


@bounded
async def test_one_that_dies_under_load_ends_its_own_streams_alone(fleet: Fleet) -> None:
    gate = asyncio.Event()
    async with (
        up(fleet, *[lambda request: held(gate)] * 3) as (fakes, clients),
        contextlib.AsyncExitStack() as stack,
    ):
        readers = [
            await stack.enter_async_context(stream_of(client, number)) for number in range(12) for client in clients
        ]
        for reader in readers:
            await reader.until_text("one")
        # Where conversations go depends on the ports, which are others each time: the busiest one dies.
        on_dying, dying = max((len(fake.chats), number) for number, fake in enumerate(fakes))
        assert on_dying >= 8
        await fakes[dying].stop()
        broken = []
        for client in clients:
            await seen(client, *("down" if number == dying else "up" for number in range(3)))
        gate.set()
        for reader in readers:
            with contextlib.suppress(StopAsyncIteration):
                await reader.until(lambda data: b"[DONE]" in data)
            said = check(reader.data)
            if said.error is not None:
                broken.append(said)
            else:
                assert said.text == "onetwo"
        assert len(broken) == on_dying
        answers = [await ask(client, number) for number in range(100, 112) for client in clients]
        assert {answer.status_code for answer in answers} == {200}
        async with fleet.fake(dying) as back:
            for client in clients:
                await seen(client, "up", "up", "up")
            answers = [await ask(client, number) for number in range(200, 230) for client in clients]
            assert {answer.status_code for answer in answers} == {200}
            assert back.chats, "it is used again"


@bounded
async def test_all_down_is_503_with_the_reasons_at_once(fleet: Fleet) -> None:
    async with up(fleet, (), (), ()) as (fakes, clients):
        for fake in fakes:
            await fake.stop()
        for client in clients:
            await seen(client, "down", "down", "down")
            began = asyncio.get_running_loop().time()
            answer = await ask(client)
            assert asyncio.get_running_loop().time() - began < 1
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1
            message = answer.json()["error"]["message"]
            assert message.startswith("none of the 3 servers of 'far' can be used: ")
            assert all(url in message for url in fleet.urls)
            while (await client.get("/v1/stats")).json()["servers"]["far"] != "failed":
                pass  # it is half-open for a moment whenever it is asked again


@bounded
async def test_a_conversation_has_the_same_server_on_both(fleet: Fleet) -> None:
    async with up(fleet, (), (), ()) as (fakes, clients):
        for number in range(5000, 5040):
            for client in clients:
                assert (await ask(client, number)).status_code == 200
        for fake in fakes:
            counts = Counter(request.json()["messages"][0]["content"] for request in fake.chats)
            assert set(counts.values()) <= {2}
        assert sum(bool(fake.chats) for fake in fakes) == 3


@bounded
async def test_a_slow_one_gets_less(fleet: Fleet) -> None:
    gate, answered = asyncio.Event(), 0

    def slow(request: Received) -> Reply:
        return Reply(steps=[gate, role(), content("late"), finish(), done()])

    async def worker(client: httpx.AsyncClient, first: int) -> None:
        nonlocal answered
        for number in range(first, first + 10):
            answer = await ask(client, number)
            answered += answer.status_code == 200

    async with up(fleet, (), (), slow) as (fakes, clients):
        client = clients[0]
        work = [asyncio.ensure_future(worker(client, 1000 + 10 * number)) for number in range(8)]
        # Those that are stuck on the slow one hold it at its bound; all the others go on elsewhere.
        await until(lambda: all(task.done() for task in work) or answered >= 80 - 10 * len(fakes[2].chats))
        counts = [len(fake.chats) for fake in fakes]
        gate.set()
        await asyncio.gather(*work)
        assert answered == 80
        assert counts[2] < min(counts[:2]) / 2, counts


FIRST_FAILS = {
    "closed-before-the-head": Reply(before_headers=None, steps=[Act.CLOSE]),
    "reset": Reply(steps=[Act.RESET]),
    "loading": refuse(503, "Loading model", "unavailable_error"),
    "busy": refuse(429, "too many", "rate_limit_error"),
}


def failing_once(reply: Reply) -> tuple[list[Received], Script]:
    """Return a script for all servers together: the first request fails, later ones are answered."""
    failed: list[Received] = []

    def script(request: Received) -> Reply:
        if not failed:
            failed.append(request)
            return reply
        return say("Hello")

    return failed, script


@pytest.mark.parametrize("streamed", [False, True], ids=["buffered", "streamed"])
@pytest.mark.parametrize("kind", FIRST_FAILS)
@bounded
async def test_another_is_tried_where_no_byte_came(fleet: Fleet, kind: str, streamed: bool) -> None:
    failed, script = failing_once(FIRST_FAILS[kind])
    async with up(fleet, script, script, script) as (fakes, clients):
        before = await retries(clients[0])
        logged = fleet.decks[0].logged().count(" retries=1")
        answer = await ask(clients[0], stream=streamed)
        assert answer.status_code == 200, answer.text
        assert "Hello" in answer.text
        assert len(failed) == 1
        assert sum(len(fake.chats) for fake in fakes) == 2
        assert max(len(fake.chats) for fake in fakes) == 1, "each is tried once"
        assert await retries(clients[0]) == before + 1
        await until(lambda: fleet.decks[0].logged().count(" retries=1") == logged + 1)


async def retries(client: httpx.AsyncClient) -> int:
    text = (await client.get("/metrics")).text
    line = next(item for item in text.splitlines() if item.startswith('deck_replica_retries_total{model="far"}'))
    return int(float(line.rpartition(" ")[2]))


NO_RETRY = {
    "refused": (refuse(400, "no such role", "invalid_request_error"), 400),
    "broken": (refuse(500, "it fell over", "server_error"), 502),
    "after-a-byte": (Reply(steps=[role(), content("x"), Act.CLOSE]), 502),
    "after-a-comment": (Reply(steps=[b": hello\n\n", Act.CLOSE]), 502),
}


@pytest.mark.parametrize("kind", NO_RETRY)
@bounded
async def test_none_is_tried_after_a_byte_or_a_refusal(fleet: Fleet, kind: str) -> None:
    reply, status = NO_RETRY[kind]
    _, script = failing_once(reply)
    async with up(fleet, script, script, script) as (fakes, clients):
        answer = await ask(clients[0])
        assert answer.status_code == status, answer.text
        assert sum(len(fake.chats) for fake in fakes) == 1


@bounded
async def test_each_is_tried_once_and_the_last_word_is_the_client_s(fleet: Fleet) -> None:
    async with up(fleet, *[[refuse(503, "Loading model", "unavailable_error")]] * 3) as (fakes, clients):
        answer = await ask(clients[0])
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == "Loading model"
        assert [len(fake.chats) for fake in fakes] == [1, 1, 1]


@bounded
async def test_one_that_goes_takes_its_slots_with_it(fleet: Fleet) -> None:
    gate = asyncio.Event()
    async with up(fleet, lambda request: held(gate), lambda request: held(gate), model="narrow") as (fakes, clients):
        client = clients[0]
        running = [asyncio.ensure_future(ask(client, number, model="narrow")) for number in range(3)]
        await until(lambda: len(fakes[0].chats) == len(fakes[1].chats) == 1)
        assert await depth_of(client) == 1
        await fakes[0].stop()
        await seen(client, "down", "up", model="narrow")
        await until(lambda: sum(task.done() for task in running) == 1)
        assert await depth_of(client) == 1, "the slot of the one that is gone is gone with it"
        gate.set()
        statuses = [(await task).status_code for task in running]
        assert sorted(statuses) == [200, 200, 502]
        assert len(fakes[1].chats) == 2


async def depth_of(client: httpx.AsyncClient) -> int:
    found: int = (await client.get("/v1/stats")).json()["queue"]["waiting"]
    return found


@bounded
async def test_operators_see_each(fleet: Fleet) -> None:
    async with up(fleet, (), (), ()) as (_, clients):
        client = clients[0]
        stats = (await client.get("/v1/stats")).json()
        assert [item["url"] for item in stats["replicas"]["far"]] == fleet.urls
        assert {item["state"] for item in stats["replicas"]["far"]} == {"up"}
        metrics = (await client.get("/metrics")).text
        for url in fleet.urls:
            assert f'deck_replica_state{{model="far",replica="{url}",state="up"}} 1.0' in metrics
            assert f'deck_replica_running{{model="far",replica="{url}"}} 0.0' in metrics
