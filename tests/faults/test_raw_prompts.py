"""Raw prompts: signs of life while nothing is said, and clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from completions_automaton import check
from e2e.live import free_port, live_deck
from faults.support import SOON, Rig, bounded, configured, leave, remote, until, within

from deck.testing.fake_llama import Act, Reply, say_text
from deck.testing.frames import done, text, text_end

STALLED = Reply(steps=[text("Hi"), Act.STALL])


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    tmp, port = tmp_path_factory.mktemp("raw"), free_port()
    with live_deck(
        tmp, *configured(tmp, heartbeat="50ms"), profiles={"single": remote("single", port, parallel=1)}
    ) as deck:
        yield Rig(deck, port)


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "single", "prompt": "Once", **fields}


async def post(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("/v1/completions", json=body(**fields))


@bounded
async def test_silence_is_bridged_by_chunks_without_text(raw: Rig) -> None:
    gates = asyncio.Event(), asyncio.Event()
    reply = Reply(steps=[text("a"), gates[1], text("b"), text_end(3, 2), done()], before_headers=gates[0])
    async with raw.fake(reply), raw.client() as client:
        async with client.stream("POST", "/v1/completions", json=body(stream=True)) as response:
            data = b""
            async for piece in response.aiter_raw():
                data += piece
                if data.count(b'"text":""') >= 2:
                    gates[0].set()
                if data.count(b'"text":""', data.find(b'"text":"a"')) >= 2 and b'"text":"a"' in data:
                    gates[1].set()
        found = check(data)
    assert (found.text, found.finish) == ("ab", "stop")
    assert sum(chunk["choices"][0]["text"] == "" for chunk in found.chunks) >= 5


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "buffered"])
@bounded
async def test_a_client_that_leaves_closes_the_upstream_and_frees_the_slot(raw: Rig, stream: bool) -> None:
    async with raw.fake(STALLED, say_text("Hello")) as fake, raw.client() as client:
        asking = asyncio.ensure_future(post(client, stream=stream))
        received = await fake.received()
        await leave(asking)
        await within(received.left.wait())
        await until(lambda: received.is_cancelled, SOON)
        assert (await post(client)).json()["choices"][0]["text"] == "Hello"


@bounded
async def test_an_upstream_that_closes_is_an_error_of_the_wire(raw: Rig) -> None:
    async with raw.fake(Reply(steps=[text("a"), Act.RESET])), raw.client() as client:
        found = check((await post(client, stream=True)).content)
    assert found.error is not None
    assert (found.text, found.is_done) == ("a", False)
