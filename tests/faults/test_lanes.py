"""The lanes at work: who shares a generation, who waits for its own conversation, and what is counted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from e2e.live import free_port, live_deck
from faults.support import Rig, body, bounded, configured, leave, post, queued, remote, until

from deck.testing.fake_llama import Act, FakeLlama, Received, Reply, refuse, say
from deck.testing.frames import content, done, finish, role, tool, usage
from deck.tokens import TokenStore

PARAMETERS = {"type": "object", "properties": {}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": PARAMETERS}}]
CHAT = "/v1/chat/completions"
_CALL = re.compile(r'"((?:call_|toolu_)[A-Za-z0-9]{9})"')


@dataclass
class Lanes(Rig):
    """A rig with the token of another principal."""

    other: str


@pytest.fixture(scope="module")
def lanes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lanes]:
    """A Deck in front of a server without a bound and of one with a slot."""
    tmp, port = tmp_path_factory.mktemp("lanes"), free_port()
    _, other = TokenStore(tmp / "state" / "tokens.json", None).create("other")
    profiles = {
        "remote": remote("remote", port),
        "single": remote("single", port, parallel=1),
        "again": remote("again", port).replace("retry_calls = false\n", ""),
    }
    with live_deck(tmp, *configured(tmp, queue_limit=4), profiles=profiles) as deck:
        yield Lanes(deck, port, other)


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lanes]:
    """A Deck where a turn is waited for half a second."""
    tmp, port = tmp_path_factory.mktemp("hasty"), free_port()
    (tmp / "deck.toml").write_text('[affinity]\ngrace = "500ms"\n')
    profiles = {"again": remote("again", port).replace("retry_calls = false\n", "")}
    with live_deck(tmp, "--config", str(tmp / "deck.toml"), profiles=profiles) as deck:
        yield Lanes(deck, port, "")


async def routes(client: httpx.AsyncClient, surface: str = "chat") -> dict[str, int]:
    found: dict[str, int] = (await client.get("/v1/stats")).json()["routes"][surface]
    return found


class Counted:
    """How the counts of lanes changed."""

    def __init__(self, client: httpx.AsyncClient, surface: str = "chat") -> None:
        self.client = client
        self.surface = surface

    async def __aenter__(self) -> Counted:
        self.before = await routes(self.client, self.surface)
        return self

    async def __aexit__(self, *failure: object) -> None:
        pass

    async def changed(self) -> dict[str, int]:
        now = await routes(self.client, self.surface)
        return {lane: now[lane] - self.before[lane] for lane in now if now[lane] != self.before[lane]}

    async def are(self, **wanted: int) -> None:
        async with asyncio.timeout(5):  # an exchange is counted a moment after its answer is complete
            while (found := await self.changed()) != wanted:
                assert sum(found.values()) <= sum(wanted.values()), found


def greedy(client: httpx.AsyncClient, model: str = "remote", **fields: Any) -> asyncio.Task[httpx.Response]:
    return asyncio.ensure_future(post(client, model, temperature=0, **fields))


def held(gate: asyncio.Event, *after: Any) -> Reply:
    return Reply(steps=[role(), content("one"), gate, *(after or (finish(), usage(7, 1), done()))])


async def asked(fake: FakeLlama, count: int) -> None:
    await until(lambda: len(fake.chats) == count)


async def together(client: httpx.AsyncClient, fake: FakeLlama, count: int, **fields: Any) -> list[Any]:
    """Send identical requests that all wait for one generation, the first of which has reached the server."""
    first = greedy(client, **fields)
    await asked(fake, 1)
    tasks = [first, *(greedy(client, **fields) for _ in range(count - 1))]
    await running(client, count)
    return tasks


async def running(client: httpx.AsyncClient, count: int) -> None:
    """Wait until so many requests have been read; those that share a generation use no slot and wait in no queue."""
    async with asyncio.timeout(10):
        while (await client.get("/v1/stats")).json()["shared"]["exchanges"] != count:
            pass


# Sharing


@bounded
async def test_identical_greedy_requests_share_one_generation(lanes: Lanes) -> None:
    gate = asyncio.Event()
    async with lanes.fake(held(gate)) as fake, lanes.client() as client, Counted(client) as counts:
        tasks = await together(client, fake, 4, model="single")
        stats = (await client.get("/v1/stats")).json()
        assert stats["queue"]["waiting"] == 0
        before = stats["tokens"]["prompt"]
        gate.set()
        answers = [task.json() for task in await asyncio.gather(*tasks)]
        assert len(fake.chats) == 1
        assert [item["choices"][0]["message"]["content"] for item in answers] == ["one"] * 4
        assert len({item["id"] for item in answers}) == 4
        assert [item["usage"]["prompt_tokens"] for item in answers] == [7] * 4
        await counts.are(static=4)
        assert (await client.get("/v1/stats")).json()["tokens"]["prompt"] == before + 7


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "other"}]},
        {"max_tokens": 5},
        {"seed": 1},
        {"temperature": 0.5},
        {"stream": True},
        {"stop": ["x"]},
        {"tools": TOOLS},
        {"reasoning_effort": "high"},
        {"logprobs": True},
        {"model": "single"},
    ],
    ids=lambda item: next(iter(item)),
)
@bounded
async def test_what_is_not_the_same_is_generated_by_itself(lanes: Lanes, fields: dict[str, Any]) -> None:
    gate = asyncio.Event()
    async with lanes.acting(lambda request: held(gate)) as fake, lanes.client() as client:
        first = greedy(client)
        await asked(fake, 1)
        second = asyncio.ensure_future(client.post(CHAT, json={**body(temperature=0), **fields}))
        await asked(fake, 2)
        gate.set()
        assert [answer.status_code for answer in await asyncio.gather(first, second)] == [200, 200]


@bounded
async def test_two_principals_share_nothing(lanes: Lanes) -> None:
    gate = asyncio.Event()
    async with lanes.fake(held(gate)) as fake, lanes.client() as client:
        first = greedy(client)
        await asked(fake, 1)
        token = lanes.other
        second = asyncio.ensure_future(
            client.post(CHAT, json=body(temperature=0), headers={"authorization": f"Bearer {token}"})
        )
        await asked(fake, 2)
        gate.set()
        assert [answer.status_code for answer in await asyncio.gather(first, second)] == [200, 200]


@bounded
async def test_nothing_is_kept_after_the_end(lanes: Lanes) -> None:
    async with lanes.fake(say("Hello")) as fake, lanes.client() as client:
        for _ in range(3):
            assert (await greedy(client)).status_code == 200
        assert len(fake.chats) == 3


@bounded
async def test_whoever_asked_first_may_leave(lanes: Lanes) -> None:
    gate = asyncio.Event()
    async with lanes.fake(held(gate)) as fake, lanes.client() as client:
        tasks = await together(client, fake, 3)
        await leave(tasks[0])
        await running(client, 2)
        before = (await client.get("/v1/stats")).json()["tokens"]["prompt"]
        gate.set()
        answers = await asyncio.gather(*tasks[1:])
        async with asyncio.timeout(5):
            while (await client.get("/v1/stats")).json()["tokens"]["prompt"] != before + 7:
                pass
        assert [answer.json()["choices"][0]["message"]["content"] for answer in answers] == ["one"] * 2
        assert len(fake.chats) == 1
        assert not fake.chats[0].is_cancelled


@bounded
async def test_when_all_have_left_the_generation_ends(lanes: Lanes) -> None:
    gate = asyncio.Event()
    async with lanes.fake(held(gate), say("Hello")) as fake, lanes.client() as client:
        for task in await together(client, fake, 3, model="single"):
            await leave(task)
        await asyncio.wait_for(fake.chats[0].left.wait(), 1)
        assert fake.chats[0].is_cancelled
        answer = await greedy(client, "single")
        assert answer.json()["choices"][0]["message"]["content"] == "Hello"


@bounded
async def test_a_generation_that_waits_ends_with_its_last_guest(lanes: Lanes) -> None:
    gate = asyncio.Event()
    async with lanes.fake(held(gate)) as fake, lanes.client() as client:
        busy = asyncio.ensure_future(post(client, "single"))
        await asked(fake, 1)
        tasks = [greedy(client, "single") for _ in range(3)]
        await queued(client, 1)  # for all of them
        await running(client, 3)
        for task in tasks:
            await leave(task)
        await queued(client, 0)
        gate.set()
        assert (await busy).status_code == 200
        assert len(fake.chats) == 1


@bounded
async def test_others_run_by_themselves_when_the_shared_generation_breaks(lanes: Lanes) -> None:
    gate = asyncio.Event()
    replies = [held(gate, Act.CLOSE), say("Hello")]
    async with lanes.fake(*replies) as fake, lanes.client() as client, Counted(client) as counts:
        first, *others = await together(client, fake, 3)
        gate.set()
        assert (await first).status_code == 502
        for answer in await asyncio.gather(*others):
            assert answer.json()["choices"][0]["message"]["content"] == "Hello"
        assert len(fake.chats) == 3
        await counts.are(static=3, continuous=2)


@bounded
async def test_what_is_the_client_s_fault_is_everybody_s(lanes: Lanes) -> None:
    gate = asyncio.Event()
    wrong = refuse(400, "Unable to do this", "invalid_request_error")
    async with (
        lanes.fake(Reply(steps=wrong.steps, status=400, headers=wrong.headers, before_headers=gate)) as fake,
        lanes.client() as client,
        Counted(client) as counts,
    ):
        tasks = await together(client, fake, 3)
        gate.set()
        answers = await asyncio.gather(*tasks)
        assert [answer.status_code for answer in answers] == [400] * 3
        assert len({answer.json()["error"]["message"] for answer in answers}) == 1
        assert len(fake.chats) == 1
        await counts.are(static=3)


@bounded
async def test_guests_are_bounded(lanes: Lanes) -> None:
    """As many as may wait in the queue share one generation; whoever comes then goes its own way."""
    gate = asyncio.Event()
    async with lanes.fake(held(gate)) as fake, lanes.client() as client, Counted(client) as counts:
        tasks = await together(client, fake, 4)
        tasks.append(greedy(client))
        await asked(fake, 2)
        gate.set()
        assert [answer.status_code for answer in await asyncio.gather(*tasks)] == [200] * 5
        await counts.are(static=5, continuous=1)


@bounded
async def test_every_answer_has_the_notes_of_its_own_request_and_of_the_shared_one(lanes: Lanes) -> None:
    gate = asyncio.Event()
    async with lanes.fake(held(gate)) as fake, lanes.client() as client:
        first = greedy(client, mirostat_tau=5.0)
        await asked(fake, 1)
        second = asyncio.ensure_future(
            client.post(CHAT, json=body(temperature=0, mirostat_tau=5.0), headers={"idempotency-key": "k"})
        )
        await running(client, 2)
        gate.set()
        shown = [answer.headers["x-athena-compatibility-ignored"] for answer in await asyncio.gather(first, second)]
        assert shown == ["mirostat_tau", "Idempotency-Key, mirostat_tau"]
        assert len(fake.chats) == 1


# One at a time in a conversation


def turn(client: httpx.AsyncClient, session: str | None = "s", **fields: Any) -> asyncio.Task[httpx.Response]:
    headers = {"session-id": session} if session else {}
    return asyncio.ensure_future(
        client.post(CHAT, json={**body(model="again"), "tools": TOOLS, **fields}, headers=headers)
    )


@bounded
async def test_a_buffered_turn_with_tools_waits_for_its_own_conversation_only(lanes: Lanes) -> None:
    gate = asyncio.Event()

    def script(request: Received) -> Reply:
        return held(gate) if "hold" in request.body.decode() else say("Hello")

    slow = {"messages": [{"role": "user", "content": "hold"}]}
    async with lanes.acting(script) as fake, lanes.client() as client, Counted(client) as counts:
        first = turn(client, **slow)
        await asked(fake, 1)
        second = turn(client, **slow)
        await queued(client, 1)
        assert (await turn(client, "other")).status_code == 200
        assert (await turn(client, None)).status_code == 200
        assert (await turn(client)).status_code == 200  # the session is the same, its beginning is not
        assert not second.done()
        gate.set()
        assert [answer.status_code for answer in await asyncio.gather(first, second)] == [200, 200]
        await counts.are(serial=5)


@bounded
async def test_whoever_leaves_while_it_waits_for_its_conversation_is_forgotten(lanes: Lanes) -> None:
    gate = asyncio.Event()
    async with lanes.fake(held(gate)) as fake, lanes.client() as client:
        first = turn(client)
        await asked(fake, 1)
        second = turn(client)
        await queued(client, 1)
        await leave(second)
        await queued(client, 0)
        gate.set()
        assert (await first).status_code == 200


@bounded
async def test_whose_turn_does_not_come_in_time_falls_back(hasty: Lanes) -> None:
    gate = asyncio.Event()
    async with hasty.fake(held(gate), say("Hello")) as fake, hasty.client() as client, Counted(client) as counts:
        first = turn(client)
        await asked(fake, 1)
        assert (await turn(client)).status_code == 200
        gate.set()
        assert (await first).status_code == 200
        await counts.are(serial=2, continuous=1)


CALLING = Reply(steps=[role(), tool(0, "c1", "look", "{}"), finish("tool_calls"), usage(5, 3), done()])


@dataclass
class Wire:
    """How a wire carries a call and its result."""

    surface: str
    path: str
    tools: list[dict[str, Any]]
    said: str = "messages"

    def asks(self, **fields: Any) -> dict[str, Any]:
        hi: Any = "hi" if self.said == "input" else [{"role": "user", "content": "hi"}]
        return {"model": "remote", self.said: hi, "tools": self.tools, **fields}

    def follows(self, call: str) -> dict[str, Any]:
        return {**self.asks(stream=True), self.said: self.history(call)}

    def history(self, call: str) -> list[dict[str, Any]]:
        hi = {"role": "user", "content": "hi"}
        match self.surface:
            case "chat":
                made = {"id": call, "type": "function", "function": {"name": "look", "arguments": "{}"}}
                result = {"role": "tool", "tool_call_id": call, "content": "seen"}
                return [hi, {"role": "assistant", "content": None, "tool_calls": [made]}, result]
            case "messages":
                made = {"type": "tool_use", "id": call, "name": "look", "input": {}}
                result = {"type": "tool_result", "tool_use_id": call, "content": "seen"}
                return [hi, {"role": "assistant", "content": [made]}, {"role": "user", "content": [result]}]
            case _:
                made = {"type": "function_call", "call_id": call, "name": "look", "arguments": "{}"}
                return [hi, made, {"type": "function_call_output", "call_id": call, "output": "seen"}]


WIRES = [
    Wire("chat", CHAT, TOOLS),
    Wire("messages", "/v1/messages", [{"name": "look", "input_schema": PARAMETERS}]),
    Wire("responses", "/v1/responses", [{"type": "function", "name": "look", "parameters": PARAMETERS}], "input"),
]


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "buffered"])
@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.surface)
@bounded
async def test_the_results_of_a_call_are_a_live_continuation(lanes: Lanes, wire: Wire, streamed: bool) -> None:
    async with lanes.fake(CALLING, say("Hello")), lanes.client() as client, Counted(client, wire.surface) as counts:
        answer = await client.post(wire.path, json=wire.asks(stream=streamed))
        assert answer.status_code == 200, answer.text
        await counts.are(continuous=1)
        call = _CALL.findall(answer.text)[0]
        follow = wire.follows(call)
        assert (await client.post(wire.path, json=follow)).status_code == 200
        await counts.are(continuous=1, serial=1)
        stranger = {"authorization": f"Bearer {lanes.other}"}
        assert (await client.post(wire.path, json=follow, headers=stranger)).status_code == 200
        await counts.are(continuous=2, serial=1)
