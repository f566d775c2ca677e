"""What the tests of faults share: a rig of one Deck and one port for fakes, requests, and deadlines; never a sleep."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec

import httpx
from chat_automaton import ChatStream, check
from e2e.live import LiveDeck

from deck.testing.fake_llama import FakeLlama, Received, Reply

P = ParamSpec("P")
DEADLINE = 20.0
# What a client may wait for an upstream to be told that it left.
SOON = 1.0


def bounded(test: Callable[P, Coroutine[Any, Any, None]], seconds: float = DEADLINE) -> Callable[P, None]:
    """Run an asynchronous test within its own deadline."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            async with asyncio.timeout(seconds):
                await test(*args, **kwargs)

        asyncio.run(main())

    return run


def unhurried(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an asynchronous test that starts several processes, one after another."""
    return bounded(test, 3 * DEADLINE)


@dataclass
class Rig:
    """A Deck whose profiles point at one port, where each test puts its own fake llama-server."""

    deck: LiveDeck
    port: int

    def fake(self, *replies: Reply, **options: Any) -> FakeLlama:
        return FakeLlama(replies, port=self.port, **options)

    def acting(self, script: Callable[[Received], Reply]) -> FakeLlama:
        return FakeLlama(script, port=self.port)

    def client(self) -> httpx.AsyncClient:
        return client_of(self.deck)


def client_of(deck: LiveDeck) -> httpx.AsyncClient:
    # Without certificates to read, a client is made in no time.
    return httpx.AsyncClient(base_url=deck.base, headers=deck.headers, timeout=DEADLINE, verify=False)


def body(model: str = "remote", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], **fields}


async def post(client: httpx.AsyncClient, model: str = "remote", **fields: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=body(model, **fields))


async def stream(client: httpx.AsyncClient, model: str = "remote", **fields: Any) -> ChatStream:
    """Return what a whole valid stream said."""
    answer = await post(client, model, stream=True, **fields)
    assert answer.status_code == 200, answer.text
    return check(answer.content)


async def works(client: httpx.AsyncClient, model: str = "remote") -> None:
    """Assert that the next request is answered."""
    answer = await post(client, model)
    assert answer.status_code == 200, answer.text


class Reader:
    """A stream that is read as it comes."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.data = b""
        self._chunks = response.aiter_raw()

    async def until(self, claim: Callable[[bytes], bool]) -> bytes:
        """Read until what came so far satisfies the claim."""
        while not claim(self.data):
            self.data += await anext(self._chunks)
        return self.data

    async def until_text(self, text: str) -> bytes:
        return await self.until(lambda data: text.encode() in data)

    async def rest(self) -> ChatStream:
        """Read to the end and check the whole."""
        async for chunk in self._chunks:
            self.data += chunk
        return check(self.data)


@asynccontextmanager
async def reading(client: httpx.AsyncClient, model: str = "remote", **fields: Any) -> AsyncIterator[Reader]:
    """Open a stream; leaving the block closes its connection."""
    async with client.stream("POST", "/v1/chat/completions", json=body(model, stream=True, **fields)) as response:
        assert response.status_code == 200, await response.aread()
        yield Reader(response)


async def leave(task: asyncio.Task[Any]) -> None:
    """Make a client go away."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def within(wait: Awaitable[object], seconds: float = SOON) -> None:
    await asyncio.wait_for(wait, seconds)


async def until(claim: Callable[[], Any], seconds: float = DEADLINE / 2) -> Any:
    """Poll for a claim without blocking the fakes of this loop."""
    async with asyncio.timeout(seconds):
        while not (found := claim()):
            await asyncio.sleep(0.01)
    return found


async def depth(client: httpx.AsyncClient) -> int:
    """Return how many exchanges wait in Deck's queue."""
    found: int = (await client.get("/v1/stats")).raise_for_status().json()["queue"]["waiting"]
    return found


async def queued(client: httpx.AsyncClient, count: int) -> None:
    async with asyncio.timeout(DEADLINE / 2):
        while await depth(client) != count:
            pass


def binary(directory: Path, *arguments: str, name: str = "fake-llama-server") -> Path:
    """Write a llama-server without a model; `arguments` are always among its own."""
    path = directory / name
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -m deck.testing.fake_llama "$@" {" ".join(arguments)}\n')
    path.chmod(0o755)
    return path


def gguf(directory: Path) -> Path:
    path = directory / "any.gguf"
    path.write_bytes(b"GGUF and nothing else")
    return path


def local(directory: Path, name: str, *arguments: str, **keys: Any) -> str:
    """Return the profile of a fake llama-server that Deck runs."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = {"model": str(gguf(directory)), "binary": str(binary(directory)), "args": list(arguments), **keys}
    return "\n".join([f'id = "{name}"', "[server]", *(f"{key} = {json.dumps(item)}" for key, item in settings.items())])


def remote(name: str, port: int, **keys: Any) -> str:
    """Return the profile of a server at a port; a call that cannot be used is not asked for again."""
    settings = {"url": f"http://127.0.0.1:{port}", **keys}
    return "\n".join(
        [
            f'id = "{name}"',
            "retry_calls = false",
            "[server]",
            *(f"{key} = {json.dumps(item)}" for key, item in settings.items()),
        ]
    )


def configured(tmp: Path, **keys: Any) -> tuple[str, str]:
    """Write a deck.toml; return the arguments that name it."""
    tmp.mkdir(parents=True, exist_ok=True)
    file = tmp / "deck.toml"
    file.write_text("\n".join(f"{key} = {json.dumps(item)}" for key, item in keys.items()))
    return "--config", str(file)
