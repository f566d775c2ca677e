"""Servers that start, stop, crash and hang at bad moments: one runs for each model, who waits ends, none is left."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from scheduler.board_support import GIB, Played, profile, run, until, use

from deck.contracts import Server, ServerState
from deck.errors import DeckError, ErrorKind
from deck.profile import Profile
from deck.scheduler.board import Board
from deck.scheduler.policy import Policy
from deck.scheduler.slots import Claim, SlotBook

UP = (ServerState.STARTING, ServerState.LOADING, ServerState.READY)


class Slow(Played):
    """A server that takes its time to come and to go."""

    pid = 1
    doing = None
    has_slots_back = False
    pause = 0.02
    failure = ""

    async def start(self) -> None:
        self.state = ServerState.LOADING
        try:
            await asyncio.sleep(self.pause)
        except BaseException:
            self.state = ServerState.STOPPED
            raise
        if self.failure:
            self.state, self.reason = ServerState.FAILED, self.failure
            raise DeckError(ErrorKind.UNAVAILABLE, self.failure)
        self.state = ServerState.READY

    async def stop(self, *, grace: float) -> None:
        if self._ended.is_set():
            return
        if self.state is not ServerState.FAILED:
            self.state = ServerState.DRAINING
        await asyncio.sleep(self.pause)
        if self.state is ServerState.DRAINING:
            self.state = ServerState.STOPPED
        self._ended.set()

    def condemn(self, reason: str) -> None:
        self.state, self.reason = ServerState.FAILED, reason


class Stage:
    """A board of slow servers; `is_faulty` = none of them could be started now."""

    def __init__(self, *, chance: random.Random | None = None, **options: Any) -> None:
        self.launched: list[Slow] = []
        self.is_faulty = False
        self.chance = chance
        policy = Policy(queue_limit=50, queue_wait=options.pop("wait", 10.0), **options)

        def book_of(server: Server) -> SlotBook | None:
            return SlotBook(4, grace=0.01, longest=1.0) if server.profile.id in "ab" and chance else None

        self.board = Board(policy, lambda profile: self, grace=1.0, faulty=self.faulty, book_of=book_of)

    def launch(self, profile: Profile) -> Slow:
        server = Slow(profile, [])
        if self.chance is not None:
            server.pause = self.chance.random() * 0.004
            server.failure = self.chance.choice(["", ""] * 9 + ["it broke", "out of memory"])
        self.launched.append(server)
        return server

    def faulty(self, profile: Profile) -> Slow | None:
        if not self.is_faulty:
            return None
        server = Slow(profile, [])
        server.state, server.reason = ServerState.FAILED, "the model's file is missing"
        return server

    def up(self, name: str) -> int:
        return sum(server.profile.id == name and server.state in UP for server in self.launched)


def test_a_stop_at_once_is_not_followed_by_another_that_takes_the_successor() -> None:
    async def play() -> None:
        stage = Stage()
        board, a = stage.board, profile("a")
        ticket, server = await board.acquire(a)
        waiter = asyncio.ensure_future(board.acquire(a))
        await until(lambda: board.depth == 1)
        unloading = asyncio.ensure_future(board.unload_now("a"))
        await until(lambda: server.state is ServerState.DRAINING)
        board.release(ticket, server)  # its stream was cut, so it ends while the server stops
        ticket, server = await asyncio.wait_for(waiter, 5)
        await unloading
        assert [item.state for item in stage.launched] == [ServerState.STOPPED, ServerState.READY]
        board.release(ticket, server)
        await board.close()
        assert stage.launched[-1].state is ServerState.STOPPED

    run(play())


def test_a_crash_while_its_stop_is_due_counts_once() -> None:
    async def play() -> None:
        stage = Stage()
        board, a = stage.board, profile("a")
        ticket, server = await board.acquire(a)
        waiter = asyncio.ensure_future(board.acquire(a))
        await until(lambda: board.depth == 1)
        board.unload("a")
        stage.launched[0].crash("killed by signal 9")
        board.release(ticket, server)
        ticket, server = await asyncio.wait_for(waiter, 5)
        assert server is stage.launched[1]
        board.release(ticket, server)
        await board.close()
        assert len(stage.launched) == 2

    run(play())


def test_a_server_that_breaks_while_it_is_stopped_does_not_take_its_successor() -> None:
    async def play() -> None:
        stage = Stage()
        board, a = stage.board, profile("a")
        ticket, server = await board.acquire(a)
        waiter = asyncio.ensure_future(board.acquire(a))
        await until(lambda: board.depth == 1)
        board.unload("a")
        board.release(ticket, server)
        await until(lambda: server.state is ServerState.DRAINING)
        stage.launched[0].condemn("killed by signal 9")  # its end is told as a stop first, then as a crash
        ticket, server = await asyncio.wait_for(waiter, 5)
        assert server is stage.launched[1]
        board.release(ticket, server)
        await board.close()
        assert len(stage.launched) == 2

    run(play())


def sized(context: int) -> Profile:
    return Profile.model_validate({"id": "a", "server": {"model": "/a.gguf", "ctx_size": context, "ttl": "0"}})


def test_whoever_still_holds_an_older_profile_does_not_bring_it_back() -> None:
    async def play() -> None:
        stage = Stage()
        old, new = sized(1024), sized(8192)
        await use(stage.board, old)
        stage.board.renew(new, relaunch=True)
        await until(lambda: not stage.up("a"))
        for wanted in (old, new):
            assert (await use(stage.board, wanted)).profile.server.ctx_size == 8192
        await stage.board.close()

    run(play())


def test_a_model_that_comes_back_after_its_removal_is_the_new_one() -> None:
    async def play() -> None:
        stage = Stage()
        await use(stage.board, sized(1024))
        stage.board.remove("a")
        await until(lambda: not stage.up("a"))
        assert (await use(stage.board, sized(8192))).profile.server.ctx_size == 8192
        await stage.board.close()

    run(play())


def test_a_fault_that_is_found_while_a_hung_server_ends_does_not_hide_its_end() -> None:
    async def play() -> None:
        stage = Stage()
        board, a = stage.board, profile("a")
        ticket, server = await board.acquire(a)
        board.hung(server, "it hung")
        stage.is_faulty = True
        newcomer = asyncio.ensure_future(use(board, a))
        await until(lambda: board.depth == 1)
        board.release(ticket, server)
        assert (await newcomer).state is ServerState.READY
        assert len(stage.launched) == 2
        await board.close()

    run(play())


def test_a_stop_that_fails_leaves_room_for_the_next(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        stage = Stage()
        server = await use(stage.board, profile("a"))

        async def broken(*, grace: float) -> None:
            raise OSError("cannot be stopped")

        server.stop = broken
        stage.board.unload("a")
        await until(lambda: not stage.board._policy.is_resident("a"))
        assert (await use(stage.board, profile("a"))) is not server
        await stage.board.close()

    run(play())
    assert "could not be stopped in order" in caplog.text


def test_who_waits_when_deck_stops_starts_nothing_any_more() -> None:
    async def play() -> None:
        stage = Stage()
        board, a = stage.board, profile("a")
        ticket, server = await board.acquire(a)
        waiter = asyncio.ensure_future(board.acquire(a))
        await until(lambda: board.depth == 1)
        unloading = asyncio.ensure_future(board.unload_now("a"))
        await until(lambda: server.state is ServerState.DRAINING)
        await board.close()
        with pytest.raises(DeckError, match="shutting down"):
            await waiter
        await unloading
        board.release(ticket, server)
        await asyncio.sleep(0)
        assert board.depth == 0
        assert [item.state for item in stage.launched] == [ServerState.STOPPED]

    run(play())


def chosen(chance: random.Random, name: str) -> Profile:
    server = {
        "model": f"/{name}.gguf",
        "memory": "4GiB",
        "parallel": 4,
        "ttl": chance.choice(["0", "5ms"]),
        "ctx_size": 1000,
        "args": ["--kv-unified"] if name in "cd" else [],
    }
    schedule = {"keep_warm": name == "a", "restart": "always" if name == "b" else "on_demand"}
    return Profile.model_validate({"id": name, "server": server, "schedule": schedule})


class Play:
    """A life of four models by chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # a play, not a secret
        self.stage = Stage(chance=self.chance, wait=2.0, memory=8 * GIB, token_limit=self.chance.choice([None, 3]))
        self.profiles = {name: chosen(self.chance, name) for name in "abcd"}
        self.tasks: list[asyncio.Task[None]] = []

    async def client(self, name: str) -> None:
        chance, board = self.chance, self.stage.board
        conversation = chance.choice([b"1", b"2", b"3"])
        claim = (
            Claim(conversation, b"h", holds=True, alone=chance.choice([0.0, 0.01])) if chance.random() < 0.7 else None
        )
        credit = chance.choice([10, 500, 1000, 1 << 40])
        try:
            ticket, server = await board.acquire(self.profiles[name], chance.choice("xyz"), credit, claim)
        except DeckError:
            return
        try:
            assert server.state not in (ServerState.STARTING, ServerState.LOADING)
            await asyncio.sleep(chance.random() * 0.006)
            if chance.random() < 0.3:
                board.settle(ticket, chance.choice([5, 700]))
        finally:
            board.release(ticket, server)

    def act(self, name: str) -> None:
        chance, board = self.chance, self.stage.board
        server: Any = board.server(name)
        is_ready = server is not None and server.state is ServerState.READY
        match chance.choices(
            ["client", "leave", "unload", "renew", "remove", "preload", "recycle", "hang", "crash", "unload now"],
            [60, 10, 3, 3, 2, 3, 3, 4, 3, 3],
        )[0]:
            case "client":
                self.tasks.append(asyncio.ensure_future(self.client(name)))
            case "leave" if self.tasks:
                chance.choice(self.tasks).cancel()
            case "unload":
                board.unload(name)
            case "renew":
                self.profiles[name] = chosen(chance, name)
                board.renew(self.profiles[name], relaunch=chance.random() < 0.5)
            case "remove":
                board.remove(name)
            case "preload":
                board.preload(self.profiles[name])
            case "recycle":
                now = asyncio.get_running_loop().time()
                board._execute(board._policy.recycle(name, now) or [])
            case "hang" if is_ready and board.running(name):
                board.hung(server, "it hung")
            case "crash" if is_ready:
                server.crash("it crashed")
            case "unload now":
                self.tasks.append(asyncio.ensure_future(board.unload_now(name)))

    async def run(self) -> None:
        for _ in range(200):
            self.act(self.chance.choice("abcd"))
            if self.chance.random() < 0.7:
                await asyncio.sleep(self.chance.random() * 0.002)
            assert all(self.stage.up(name) <= 1 for name in "abcd")
        _, left = await asyncio.wait(self.tasks, timeout=10)
        assert not left
        for task in self.tasks:
            assert task.cancelled() or task.exception() is None
        policy = self.stage.board._policy
        assert all(not resident.granted for resident in policy._residents.values())
        assert policy._per_token == {}
        await self.stage.board.close()
        assert not any(self.stage.up(name) for name in "abcd")


@pytest.mark.parametrize("seed", range(20))
def test_a_life_by_chance(seed: int) -> None:
    async def play() -> None:
        await Play(seed).run()

    run(play())
