"""A board whose servers do what the test says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from deck.contracts import Address, Facts, ServerState
from deck.errors import DeckError, ErrorKind
from deck.profile import Profile
from deck.scheduler.board import Board
from deck.scheduler.policy import Policy

GIB = 1 << 30


def profile(name: str, *, memory: str = "4GiB", **schedule: Any) -> Profile:
    server = {"model": f"/{name}.gguf", "memory": memory, "parallel": 1, "ttl": schedule.pop("ttl", "0")}
    return Profile.model_validate({"id": name, "server": server, "schedule": schedule})


class Played:
    """A server that does what the test says."""

    def __init__(self, profile: Profile, faults: list[str]) -> None:
        self.profile = profile
        self.state = ServerState.STOPPED
        self.facts = Facts(slots=profile.server.parallel)
        self.address = Address()
        self.key: str | None = None
        self.reason: str | None = None
        self.takes: int | None = None
        self.log = None
        self._faults = faults
        self._ended = asyncio.Event()

    def memory(self) -> int | None:
        return self.takes

    async def start(self) -> None:
        self.state = ServerState.STARTING
        await asyncio.sleep(0)
        if self._faults:
            self.state = ServerState.FAILED
            raise DeckError(ErrorKind.UNAVAILABLE, self._faults.pop(0))
        self.state = ServerState.READY

    async def stop(self, *, grace: float) -> None:
        self.state = ServerState.DRAINING
        await asyncio.sleep(0)
        self.state = ServerState.STOPPED
        self._ended.set()

    async def wait_ended(self) -> None:
        await self._ended.wait()

    def crash(self, reason: str) -> None:
        self.state, self.reason = ServerState.FAILED, reason
        self._ended.set()


class Stage:
    """A board and every server it launched."""

    def __init__(self, **options: Any) -> None:
        self.launched: list[Played] = []
        self.faults: dict[str, list[str]] = {}
        policy = Policy(queue_limit=options.pop("queue", 9), queue_wait=options.pop("wait", 60.0), **options)
        self.board = Board(policy, lambda profile: self, grace=1.0)

    def launch(self, profile: Profile) -> Played:
        server = Played(profile, self.faults.setdefault(profile.id, []))
        self.launched.append(server)
        return server

    @property
    def up(self) -> list[str]:
        return [server.profile.id for server in self.launched if server.state is ServerState.READY]


@contextlib.asynccontextmanager
async def stage(**options: Any) -> AsyncIterator[Stage]:
    async with asyncio.timeout(20):
        played = Stage(**options)
        try:
            yield played
        finally:
            await played.board.close()


async def until(claim: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not claim():
            await asyncio.sleep(0)


async def use(board: Board, profile: Profile, token: str = "") -> Any:
    async with board.admit(profile, token) as server:
        return server


def run(test: Any) -> None:
    asyncio.run(test)
