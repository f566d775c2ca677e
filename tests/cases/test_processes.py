"""Reported failures of processes, swapping and memory: section F of the list of cases, by number and topic.

Those that need nothing but a queue, a leaving client or one dying engine are in `faults/`, tagged with their numbers.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.live import LiveDeck, children, is_alive, live_deck
from faults.support import (
    bounded,
    client_of,
    configured,
    gguf,
    local,
    post,
    queued,
    reading,
    until,
    works,
)
from scripted_llama import script

READ_ONLY = ("/health", "/v1/models", "/v1/capabilities", "/v1/stats", "/metrics", "/deck/servers")


def scripted(
    directory: Path, name: str, *arguments: str, before: str = "", is_wrapped: bool = False, **keys: Any
) -> str:
    """Return the profile of a llama-server that does what it is told."""
    directory.mkdir(parents=True, exist_ok=True)
    program = script(directory, *arguments, before=before, is_wrapped=is_wrapped)
    settings = {"model": str(gguf(directory)), "binary": str(program), **keys}
    return "\n".join([f'id = "{name}"', "[server]", *(f"{key} = {json.dumps(item)}" for key, item in settings.items())])


async def say(client: httpx.AsyncClient, model: str, text: str = "words 2", **fields: Any) -> httpx.Response:
    return await post(client, model, messages=[{"role": "user", "content": text}], **fields)


async def state(client: httpx.AsyncClient, model: str) -> str:
    found: str = (await client.get("/v1/stats")).json()["servers"].get(model, "stopped")
    return found


async def listed(client: httpx.AsyncClient, model: str) -> str:
    """Return the state that the model list shows."""
    found: str = (await client.get(f"/v1/models/{model}")).json()["state"]
    return found


async def in_state(client: httpx.AsyncClient, model: str, *states: str) -> None:
    async with asyncio.timeout(10):
        while await state(client, model) not in states:
            pass


def processes(deck: LiveDeck) -> list[int]:
    """Return all descendants that are alive."""
    return [pid for pid in children(deck.process.pid) if is_alive(pid)]


def zombies(deck: LiveDeck) -> list[int]:
    return [pid for pid in children(deck.process.pid) if not is_alive(pid)]


def starts(tmp: Path) -> list[str]:
    """Return the models in the order in which their processes were started, by programs made with `counted`."""
    file = tmp / "starts"
    return file.read_text().split() if file.exists() else []


def counted(tmp: Path, name: str) -> str:
    return f"echo {name} >> {tmp / 'starts'}"


async def watch(deck: LiveDeck, is_over: asyncio.Event) -> int:
    """Return the most processes that were ever alive together."""
    most = 0
    while not is_over.is_set():
        most = max(most, len(processes(deck)))
        await asyncio.sleep(0.002)
    return most


@bounded
async def test_b142_a_request_while_the_idle_model_is_being_stopped(tmp_path: Path) -> None:
    profiles = {"m1": local(tmp_path / "m1", "m1", "--fake-deaf", ttl="50ms")}
    with live_deck(tmp_path, *configured(tmp_path, stop_grace="1500ms"), profiles=profiles) as deck:
        async with client_of(deck) as client:
            await works(client, "m1")
            [first] = processes(deck)
            await in_state(client, "m1", "draining")
            asking = asyncio.ensure_future(post(client, "m1"))
            await queued(client, 1)
            for path in READ_ONLY:
                assert (await client.get(path)).status_code == 200, path
            assert await state(client, "m1") == "draining"
            answer = await asking
            assert answer.status_code == 200, answer.text
            assert not is_alive(first)
            await in_state(client, "m1", "ready", "draining", "stopped")
            await works(client, "m1")


@bounded
async def test_b143_ten_requests_at_once_for_two_models_of_which_one_fits(tmp_path: Path) -> None:
    profiles = {name: scripted(tmp_path / name, name, before=counted(tmp_path, name)) for name in ("m1", "m2")}
    with live_deck(tmp_path, *configured(tmp_path), profiles=profiles) as deck:
        is_over = asyncio.Event()
        watching = asyncio.ensure_future(watch(deck, is_over))
        async with client_of(deck) as client:
            answers = await asyncio.gather(*(say(client, model) for model in ["m1", "m2"] * 5))
        is_over.set()
        assert [answer.status_code for answer in answers] == [200] * 10
        assert await watching == 1
    begun = starts(tmp_path)
    assert all(one != two for one, two in itertools.pairwise(begun)), "started twice in one turn"


@bounded
async def test_b145_a_queue_of_three_models_is_served_to_the_last(tmp_path: Path) -> None:
    """A B A A C A: batching is allowed, and nobody waits longer than the longest wait."""
    order, longest = ["a", "b", "a", "a", "c", "a"], 15.0
    profiles = {name: scripted(tmp_path / name, name, before=counted(tmp_path, name)) for name in set(order)}
    arguments = configured(tmp_path, queue_wait=f"{longest:g}s")
    with live_deck(tmp_path, *arguments, profiles=profiles) as deck:
        async with client_of(deck) as client:
            waits: list[float] = []

            async def one(model: str) -> int:
                began = time.monotonic()
                answer = await say(client, model)
                waits.append(time.monotonic() - began)
                return answer.status_code

            assert await asyncio.gather(*(one(model) for model in order)) == [200] * len(order)
            assert max(waits) < longest
    assert len(starts(tmp_path)) <= len(order)
    assert set(starts(tmp_path)) == set(order)


@bounded
async def test_b146_a_group_that_ignores_sigterm_is_killed_and_reaped(tmp_path: Path) -> None:
    """The child of the server as well, and the next model starts."""
    before = "trap '' TERM\nsleep 600 &"
    deaf = scripted(tmp_path / "m1", "m1", "--deaf", before=before, is_wrapped=True)
    profiles = {"m1": deaf, "m2": scripted(tmp_path / "m2", "m2")}
    with live_deck(tmp_path, *configured(tmp_path, stop_grace="300ms"), profiles=profiles) as deck:
        async with client_of(deck) as client:
            assert (await say(client, "m1")).status_code == 200
            group = processes(deck)
            assert len(group) == 3, "the program, its server and its sleeper"
            began = time.monotonic()
            assert (await say(client, "m2")).status_code == 200
            assert time.monotonic() - began >= 0.3
            await until(lambda: not any(is_alive(pid) for pid in group))
            assert not zombies(deck)
            assert len(processes(deck)) == 1


@bounded
async def test_b149_memory_that_is_not_yet_free_is_tried_once_more(tmp_path: Path) -> None:
    tried = tmp_path / "tried"
    full = f'if [ ! -e {tried} ]; then touch {tried}; echo "ggml_cuda: out of memory" >&2; exit 1; fi'
    profiles = {
        "m1": scripted(tmp_path / "m1", "m1"),
        "m2": scripted(tmp_path / "m2", "m2", before=f"{counted(tmp_path, 'm2')}\n{full}"),
    }
    with live_deck(tmp_path, *configured(tmp_path), profiles=profiles) as deck:
        async with client_of(deck) as client:
            assert (await say(client, "m1")).status_code == 200
            answer = await say(client, "m2")
            assert answer.status_code == 200, answer.text
            assert starts(tmp_path) == ["m2", "m2"]


@bounded
async def test_b149_what_never_finds_memory_is_failed_and_tried_again_by_the_next(tmp_path: Path) -> None:
    full = 'echo "ggml_cuda: out of memory" >&2; exit 1'
    profiles = {
        "m1": scripted(tmp_path / "m1", "m1"),
        "m2": scripted(tmp_path / "m2", "m2", before=f"{counted(tmp_path, 'm2')}\n{full}"),
    }
    with live_deck(tmp_path, *configured(tmp_path), profiles=profiles) as deck:
        async with client_of(deck) as client:
            assert (await say(client, "m1")).status_code == 200
            answer = await say(client, "m2")
            assert answer.status_code == 503
            assert "out of memory" in answer.json()["error"]["message"]
            assert starts(tmp_path) == ["m2", "m2"], "one retry, not more"
            assert await listed(client, "m2") == "failed"
            assert processes(deck) == []
            assert (await say(client, "m2")).status_code == 503
            assert len(starts(tmp_path)) > 2, "the next request tries again"
            assert (await say(client, "m1")).status_code == 200


@bounded
async def test_b151_dead_children_are_reaped_and_never_count_as_alive(tmp_path: Path) -> None:
    profiles = {
        "m1": scripted(tmp_path / "m1", "m1"),
        "never": scripted(tmp_path / "never", "never", "--unhealthy", "999999", load_timeout="600ms"),
    }
    with live_deck(tmp_path, *configured(tmp_path), profiles=profiles) as deck:
        async with client_of(deck) as client:
            assert (await say(client, "m1")).status_code == 200
            [engine] = processes(deck)
            os.kill(engine, 9)
            await in_state(client, "m1", "failed")
            assert engine not in children(deck.process.pid), "reaped by the time that it counts as gone"
            assert (await say(client, "never")).status_code == 503
            assert children(deck.process.pid) == [], "one that was killed for its time is waited for"
            assert (await say(client, "m1")).status_code == 200


@bounded
async def test_b152_a_model_that_loads_is_not_evicted(tmp_path: Path) -> None:
    """m1 takes about two seconds to load; whoever waits for it is served before m2 starts."""
    profiles = {
        "m1": scripted(tmp_path / "m1", "m1", "--unhealthy", "12", before=counted(tmp_path, "m1")),
        "m2": scripted(tmp_path / "m2", "m2", before=counted(tmp_path, "m2")),
    }
    with live_deck(tmp_path, *configured(tmp_path), profiles=profiles) as deck:
        is_over = asyncio.Event()
        watching = asyncio.ensure_future(watch(deck, is_over))
        async with client_of(deck) as client:
            done: list[str] = []

            async def one(model: str) -> None:
                answer = await say(client, model)
                assert answer.status_code == 200, answer.text
                done.append(model)

            first = [asyncio.ensure_future(one("m1")) for _ in range(2)]
            await in_state(client, "m1", "starting", "loading")
            second = asyncio.ensure_future(one("m2"))
            await asyncio.gather(*first, second)
            assert done == ["m1", "m1", "m2"]
            assert await state(client, "m1") == "stopped"
        is_over.set()
        assert await watching == 1
    assert starts(tmp_path) == ["m1", "m2"]


@pytest.mark.parametrize("fault", ["model", "binary"])
@bounded
async def test_b152_a_load_that_cannot_succeed_evicts_nobody(tmp_path: Path, fault: str) -> None:
    profiles = {
        "m1": scripted(tmp_path / "m1", "m1"),
        "m2": scripted(tmp_path / "m2", "m2").replace(
            str(gguf(tmp_path / "m2")) if fault == "model" else "scripted-llama-server", "nowhere"
        ),
    }
    with live_deck(tmp_path, *configured(tmp_path), profiles=profiles) as deck:
        async with client_of(deck) as client:
            assert (await say(client, "m1")).status_code == 200
            before = processes(deck)
            answer = await say(client, "m2")
            assert answer.status_code == 503
            assert "nowhere" in answer.json()["error"]["message"]
            assert processes(deck) == before
            assert await listed(client, "m2") == "failed"
            assert await state(client, "m1") == "ready"


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "buffered"])
@pytest.mark.parametrize(
    ("arguments", "before", "reason"),
    [
        ((), "echo \"error: no such file 'bad.gguf'\" >&2; exit 1", "no such file 'bad.gguf'"),
        (("--unhealthy", "999999"), "", "was not ready after 0.6 s"),
    ],
    ids=["exits", "never-healthy"],
)
@bounded
async def test_b154_a_stuck_load_ends_in_a_reason(
    tmp_path: Path, arguments: tuple[str, ...], before: str, reason: str, streamed: bool
) -> None:
    profiles = {"m1": scripted(tmp_path / "m1", "m1", *arguments, before=before, load_timeout="600ms")}
    with live_deck(tmp_path, *configured(tmp_path), profiles=profiles) as deck:
        async with client_of(deck) as client:
            answer = await say(client, "m1", stream=streamed)
            assert answer.status_code == 503, answer.text
            assert reason in answer.json()["error"]["message"]
            assert await state(client, "m1") == await listed(client, "m1") == "failed"
            assert children(deck.process.pid) == []


@bounded
async def test_b155_an_idle_model_leaves_no_process(tmp_path: Path) -> None:
    profiles = {"m1": scripted(tmp_path / "m1", "m1", ttl="100ms")}
    with live_deck(tmp_path, *configured(tmp_path), profiles=profiles) as deck:
        async with client_of(deck) as client:
            assert (await say(client, "m1")).status_code == 200
            await until(lambda: not children(deck.process.pid))
            await in_state(client, "m1", "stopped")
            assert await listed(client, "m1") == "stopped"


@bounded
async def test_b157_the_first_request_after_a_swap_is_refused_without_a_word(tmp_path: Path) -> None:
    """The client gets JSON all the same; and what waited for the swap arrives whole."""
    profiles = {
        "m1": scripted(tmp_path / "m1", "m1"),
        "m2": scripted(tmp_path / "m2", "m2", "--first", "empty"),
        "m3": scripted(tmp_path / "m3", "m3"),
    }
    long = "echo " + "ünïcödé 😀 " * 100_000
    with live_deck(tmp_path, *configured(tmp_path), profiles=profiles) as deck:
        async with client_of(deck) as client:
            assert (await say(client, "m1")).status_code == 200
            answer = await say(client, "m2", long)
            assert answer.status_code == 400
            assert answer.json()["error"]["message"]
            for model in ("m2", "m3"):
                answer = await say(client, model, long)
                assert answer.status_code == 200, answer.text
                said = answer.json()["choices"][0]["message"]["content"]
                assert said == hashlib.sha256(long.encode()).hexdigest()


@bounded
async def test_b158_a_client_that_leaves_frees_the_process(tmp_path: Path) -> None:
    """With one slot: after two chunks, in prefill, while it waits, and not streamed."""
    profiles = {"m1": scripted(tmp_path / "m1", "m1", parallel=1)}
    with live_deck(tmp_path, *configured(tmp_path), profiles=profiles) as deck:
        async with client_of(deck) as client:
            async with reading(client, "m1", messages=[{"role": "user", "content": "words 5 stall"}]) as reader:
                await reader.until(lambda data: data.count(b"data: ") >= 2)
            await asyncio.wait_for(say(client, "m1"), 5)
            for text, streamed in (("prefill 60000", True), ("prefill 60000", False), ("stall", False)):
                leaving = asyncio.ensure_future(say(client, "m1", text, stream=streamed))
                await running(client, 1)
                waiting = asyncio.ensure_future(say(client, "m1"))
                await queued(client, 1)
                waiting.cancel()
                await queued(client, 0)
                leaving.cancel()
                await asyncio.wait_for(running(client, 0), 1)
                await asyncio.wait_for(say(client, "m1"), 5)


async def running(client: httpx.AsyncClient, count: int) -> None:
    while sum(item["running"] for item in (await client.get("/deck/servers")).json()["servers"]) != count:
        pass


@bounded
async def test_b160_one_who_leaves_harms_nobody_else(tmp_path: Path) -> None:
    profiles = {"m1": scripted(tmp_path / "m1", "m1", parallel=2)}
    with live_deck(tmp_path, *configured(tmp_path), profiles=profiles) as deck:
        async with client_of(deck) as client:
            staying = [{"role": "user", "content": "words 40 pace 10"}]
            async with reading(client, "m1", messages=staying) as one:
                await one.until_text("w1 ")
                async with reading(client, "m1", messages=[{"role": "user", "content": "words 5 stall"}]) as other:
                    await other.until_text("w1 ")
                found = await one.rest()
            assert found.is_done
            assert found.text.split() == [f"w{number}" for number in range(40)]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDeck]:
    """A Deck whose own environment holds a key that its children must not take."""
    tmp = tmp_path_factory.mktemp("keyed")
    with live_deck(
        tmp,
        *configured(tmp),
        profiles={"m1": scripted(tmp / "m1", "m1", load_timeout="10s")},
        env={"LLAMA_API_KEY": "of-the-router", "LLAMA_ARG_PORT": "1"},
    ) as deck:
        yield deck


@bounded
async def test_b161_a_key_in_decks_environment_is_not_the_childs(keyed: LiveDeck) -> None:
    """All but `/health` asks for the key, so readiness must not depend on what Deck inherited."""
    async with client_of(keyed) as client:
        answer = await say(client, "m1")
        assert answer.status_code == 200, answer.text
        [engine] = processes(keyed)
        seen = Path(f"/proc/{engine}/environ").read_bytes().split(b"\0")
        keys = [item.partition(b"=")[2] for item in seen if item.startswith(b"LLAMA_API_KEY=")]
        assert len(keys) == 1
        assert keys != [b"of-the-router"]
        assert len(keys[0]) >= 32
        assert not [item for item in seen if item.startswith(b"LLAMA_ARG_")]


@bounded
async def test_b163_a_body_in_chunks_without_a_length(keyed: LiveDeck) -> None:
    body = json.dumps({"model": "m1", "messages": [{"role": "user", "content": "words 2"}]}).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 10):
            yield body[start : start + 10]

    async with client_of(keyed) as client:
        answer = await client.post(
            "/v1/chat/completions", content=pieces(), headers={"content-type": "application/json"}
        )
        assert answer.request.headers["transfer-encoding"] == "chunked"
        assert "content-length" not in answer.request.headers
        assert answer.status_code == 200, answer.text
