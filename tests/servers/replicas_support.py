"""What tests of several servers elsewhere share."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

from deck.contracts import ReplicaState
from deck.errors import DeckError
from deck.profile import Profile, ServerSettings
from deck.servers.remote import Remote, Use
from deck.testing.fake_llama import FakeLlama
from deck.upstream.client import CHAT, UpstreamClient
from deck.upstream.transport import Transport

UP, DOWN, LOADING = ReplicaState.UP, ReplicaState.DOWN, ReplicaState.LOADING
Test = Callable[..., Coroutine[Any, Any, None]]


def bounded(test: Test) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        async def main() -> None:
            async with asyncio.timeout(20):
                await test(*arguments, **named)

        asyncio.run(main())

    return run


def profile_of(*urls: str, **keys: Any) -> Profile:
    settings = {"health_interval": 0.1, **keys}
    return Profile(id="far", server=ServerSettings(urls=urls, **settings), source=Path("far.toml"))


async def until(claim: Callable[[], Any]) -> None:
    while not claim():
        await asyncio.sleep(0.01)


def states(remote: Remote) -> list[ReplicaState]:
    return [item.state for item in remote.replicas()]


@contextlib.asynccontextmanager
async def running(*urls: str, **keys: Any) -> AsyncIterator[Remote]:
    remote = Remote(profile_of(*urls, **keys), {})
    await remote.start()
    try:
        yield remote
    finally:
        await remote.stop(grace=0)


@contextlib.asynccontextmanager
async def fakes(count: int, **options: Any) -> AsyncIterator[list[FakeLlama]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(FakeLlama(**options)) for _ in range(count)]


@contextlib.asynccontextmanager
async def upstream() -> AsyncIterator[UpstreamClient]:
    async with Transport() as transport:
        yield UpstreamClient(transport)


async def chat(client: UpstreamClient, remote: Remote, affinity: str | None = None) -> str:
    """Post a chat to one of the servers; return its URL."""
    used: list[str] = []

    async def work(use: Use) -> DeckError | None:
        used.append(use.server.url)
        async with client.ask(use.server, CHAT, b"{}") as response:
            use.begun()
            await response.read()
        return None

    await remote.use(affinity, work)
    return used[-1]


def gone() -> str:
    """Return the URL of a port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"
