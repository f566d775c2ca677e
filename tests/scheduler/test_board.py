"""The board carries out what the policy decides: real tasks and timers, servers that are played."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scheduler.board_support import GIB, Played, profile, run, stage, until, use

from deck.contracts import ServerState
from deck.errors import DeckError
from deck.profile import Profile
from deck.scheduler.slots import Claim, SlotBook


def test_two_models_are_up_together_where_the_budget_holds_both() -> None:
    async def play() -> None:
        async with stage(memory=8 * GIB) as played:
            for name in ("a", "b"):
                await use(played.board, profile(name))
            assert played.up == ["a", "b"]
            await use(played.board, profile("c"))
            assert played.up == ["b", "c"]

    run(play())


def test_without_a_budget_one_model_is_up() -> None:
    async def play() -> None:
        async with stage() as played:
            for name in ("a", "b", "a"):
                await use(played.board, profile(name))
                assert played.up == [name]

    run(play())


def test_a_busy_server_is_waited_for_and_its_newcomers_queue_behind() -> None:
    async def play() -> None:
        async with stage() as played:
            a, b = profile("a"), profile("b")
            async with played.board.admit(a):
                waiter = asyncio.create_task(use(played.board, b))
                await until(lambda: played.board.depth == 1)
                assert [item.ticket.profile for item in played.board.waiting()] == ["b"]
                late = asyncio.create_task(use(played.board, a))
                await until(lambda: played.board.depth == 2)
                assert played.up == ["a"]
            assert (await waiter).profile.id == "b"
            assert (await late).profile.id == "a"

    run(play())


def test_what_was_measured_replaces_a_smaller_estimate() -> None:
    async def play() -> None:
        async with stage(memory=8 * GIB) as played:
            played.board._models._memory_of = lambda profile: 3 * GIB
            undeclared = Profile.model_validate({"id": "a", "server": {"model": "/a.gguf", "ttl": "0"}})
            (await use(played.board, undeclared)).takes = 5 * GIB
            assert played.board.memory("a") == 3 * GIB
            played.board.unload("a")
            await until(lambda: played.up == [])
            await use(played.board, undeclared)
            assert played.board.memory("a") == 5 * GIB

    run(play())


def test_what_was_measured_of_another_launch_does_not_count() -> None:
    async def play() -> None:
        async with stage(memory=8 * GIB) as played:
            board = played.board
            board._models._memory_of = lambda profile: 3 * GIB
            big, small = (
                Profile.model_validate({"id": "a", "server": {"model": f"/{name}.gguf", "ttl": "0"}})
                for name in ("big", "small")
            )
            (await use(board, big)).takes = 5 * GIB
            board.unload("a")
            await until(lambda: played.up == [])
            (await use(board, big)).takes = 6 * GIB
            assert board.memory("a") == 5 * GIB
            board.renew(small, relaunch=True)
            await until(lambda: played.up == [])
            await use(board, small)
            assert board.memory("a") == 3 * GIB
            played.launched[-1].takes = 4 * GIB
            board.unload("a")
            await until(lambda: played.up == [])
            assert board.memory("a") == 4 * GIB

    run(play())


def test_a_renewed_profile_s_idle_time_counts_at_once() -> None:
    async def play() -> None:
        async with stage() as played:
            board = played.board
            await use(board, profile("a", ttl="50ms"))
            board.renew(profile("a", ttl="0"), relaunch=False)
            assert board._idle._timers == {}
            board.renew(profile("a", ttl="1h"), relaunch=False)
            assert played.up == ["a"]
            board.renew(profile("a", ttl="20ms"), relaunch=False)
            await until(lambda: played.up == [])

    run(play())


@pytest.mark.parametrize("is_removed", [False, True], ids=["launched anew", "removed and back"])
def test_the_idle_time_of_a_profile_before_is_forgotten(is_removed: bool) -> None:
    async def play() -> None:
        async with stage() as played:
            board = played.board
            await use(board, profile("a", ttl="1h"))
            if is_removed:
                board.remove("a")
            else:
                board.renew(profile("a", ttl="0"), relaunch=True)
            await until(lambda: played.up == [])
            await use(board, profile("a", ttl="0"))
            assert played.up == ["a"]
            assert board._idle._timers == {}

    run(play())


def test_a_renewed_schedule_holds_for_who_waits() -> None:
    async def play() -> None:
        async with stage() as played:
            board = played.board
            held, server = await board.acquire(profile("a"))
            waiter = asyncio.create_task(use(board, profile("b")))
            await until(lambda: board.depth == 1)
            board.renew(profile("b", priority=2), relaunch=False)
            board.renew(profile("a", pinned=True), relaunch=False)
            with pytest.raises(DeckError, match="pinned"):
                await waiter
            board.release(held, server)
            assert board.depth == 0
            assert played.up == ["a"]

    run(play())


def test_who_waits_for_a_server_that_is_measured_at_its_end_is_served() -> None:
    async def play() -> None:
        async with stage() as played:
            played.board._models._memory_of = lambda profile: 1
            a, b = (Profile.model_validate({"id": name, "server": {"model": f"/{name}.gguf"}}) for name in "ab")
            (await use(played.board, a)).takes = GIB
            turns = [asyncio.create_task(use(played.board, model)) for model in (b, a, b)]
            assert [(await turn).profile.id for turn in turns] == ["b", "a", "b"]

    run(play())


def test_a_token_s_share_is_kept_and_given_back() -> None:
    async def play() -> None:
        async with stage(memory=8 * GIB, token_limit=1) as played:
            async with played.board.admit(profile("a"), "x"):
                second = asyncio.create_task(use(played.board, profile("b"), "x"))
                assert (await use(played.board, profile("b"), "y")).profile.id == "b"
                assert not second.done()
            assert (await second).profile.id == "b"

    run(play())


def test_a_crash_loop_is_held_off_and_an_operator_ends_that() -> None:
    async def play() -> None:
        async with stage() as played:
            a = profile("a")
            for _ in range(3):
                server = await use(played.board, a)
                server.crash("killed by signal 9")
                await until(lambda: "a" not in played.board._policy._residents)
            assert played.board.quarantined()["a"][0] == 3
            waiter = asyncio.create_task(use(played.board, a))
            await until(lambda: played.board.depth == 1)
            assert played.up == []
            played.board.preload(a)
            assert (await waiter).profile.id == "a"
            assert played.board.quarantined() == {}

    run(play())


def test_a_start_without_memory_soon_after_another_s_end_is_tried_once_more() -> None:
    async def play() -> None:
        async with stage() as played:
            await use(played.board, profile("a"))
            played.faults["b"] = ["exit status 1: CUDA error: out of memory"]
            assert (await use(played.board, profile("b"))).profile.id == "b"

    run(play())


def test_a_pinned_model_outlives_its_idle_time() -> None:
    async def play() -> None:
        async with stage(memory=8 * GIB) as played:
            await use(played.board, profile("a", pinned=True, ttl="10ms"))
            await use(played.board, profile("b", ttl="10ms"))
            await until(lambda: played.up == ["a"])

    run(play())


def test_a_preload_starts_what_nobody_asked_for() -> None:
    async def play() -> None:
        async with stage(memory=8 * GIB) as played:
            played.board.preload(profile("a"))
            await until(lambda: played.up == ["a"])

    run(play())


def test_a_least_time_is_kept_though_another_waits() -> None:
    async def play() -> None:
        async with stage() as played:
            loop = asyncio.get_running_loop()
            await use(played.board, profile("a", min_resident="150ms"))
            began = loop.time()
            await use(played.board, profile("b"))
            assert loop.time() - began > 0.1

    run(play())


def test_who_leaves_the_queue_frees_its_place() -> None:
    async def play() -> None:
        async with stage(queue=1) as played:
            async with played.board.admit(profile("a")):
                waiter = asyncio.create_task(use(played.board, profile("a")))
                await until(lambda: played.board.depth == 1)
                with pytest.raises(DeckError, match="waiting already"):
                    await use(played.board, profile("a"))
                waiter.cancel()
                await until(lambda: played.board.depth == 0)
            assert (await use(played.board, profile("a"))).profile.id == "a"

    run(play())


def test_who_waits_too_long_is_told_so() -> None:
    async def play() -> None:
        async with stage(wait=0.05) as played, played.board.admit(profile("a")):
            with pytest.raises(DeckError, match=r"waited 0\.05 s for room to load 'b': 'a' is in use; try again later"):
                await use(played.board, profile("b"))

    run(play())


def test_a_wait_that_is_over_at_once_harms_nobody_else() -> None:
    """uvloop makes no timer of what is due within its clock's tick, and what it makes knows no time."""
    uvloop = pytest.importorskip("uvloop")

    async def play() -> None:
        async with stage(wait=1e-6) as played, played.board.admit(profile("a")):
            waiting = [asyncio.ensure_future(use(played.board, profile(name))) for name in "abcabc"]
            told = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(item) for item in told] == [DeckError] * 6
            assert played.board.depth == 0

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play())


def test_who_waits_for_another_s_grace_is_let_in_at_its_end() -> None:
    async def play() -> None:
        async with stage(memory=8 * GIB) as played:
            played.board._book_of = lambda server: SlotBook(2, grace=0.05, longest=9.0)
            a = Profile.model_validate({"id": "a", "server": {"model": "/a.gguf", "parallel": 2, "memory": "1GiB"}})
            ticket, server = await played.board.acquire(a, "x", claim=Claim(b"mine", b"", holds=True))
            assert played.board.slot(ticket) == 0
            played.board.release(ticket, server)
            busy, _ = await played.board.acquire(a, "y", claim=Claim(b"other"))
            assert played.board.slot(busy) == 1
            late = asyncio.create_task(played.board.acquire(a, "y", claim=Claim(b"third")))
            await until(lambda: played.board.depth == 1)
            ticket, _ = await asyncio.wait_for(late, 5)
            assert played.board.slot(ticket) == 0
            assert played.board.slot(busy) == 1

    run(play())


def test_one_that_has_grown_above_its_ceiling_is_replaced_when_it_is_free() -> None:
    async def play() -> None:
        async with stage(memory=8 * GIB) as played:
            told: list[str] = []
            played.board._on_recycle = told.append
            a = profile("a")
            a = a.model_copy(update={"server": a.server.model_copy(update={"max_rss": GIB, "parallel": 2})})
            async with played.board.admit(a) as first:
                first.takes = GIB  # type: ignore[attr-defined]  # a played one
                await use(played.board, a)
                assert played.up == ["a"]
                assert told == []
                first.takes = GIB + 1  # type: ignore[attr-defined]  # a played one
                played.board._looked_at.clear()
                await use(played.board, a)
                assert told == ["a"]
                late = asyncio.create_task(use(played.board, a))
                await until(lambda: played.board.depth == 1)
                played.board.weigh(first)
                assert played.up == ["a"]
            assert await late is not first
            assert told == ["a"]
            assert len(played.launched) == 2

    run(play())


def test_it_is_weighed_now_and_then_only() -> None:
    async def play() -> None:
        async with stage() as played:
            a = profile("a")
            a = a.model_copy(update={"server": a.server.model_copy(update={"max_rss": GIB})})
            server = await use(played.board, a)
            asked: list[int] = []
            server.memory = lambda: asked.append(1) or 0
            for _ in range(50):
                await use(played.board, a)
            assert len(asked) <= 1

    run(play())


class Watched(Played):
    """One whose process is Deck's to watch."""

    pid = None
    doing = None

    has_slots_back = False

    def condemn(self, reason: str) -> None:
        self.crash_reason = reason
        self.state, self.reason = ServerState.FAILED, reason

    async def stop(self, *, grace: float) -> None:
        await asyncio.sleep(0)
        self._ended.set()
        if self.state is not ServerState.FAILED:
            self.state = ServerState.STOPPED


def test_a_hung_server_is_ended_and_who_waits_gets_another() -> None:
    async def play() -> None:
        async with stage() as played:
            gone: list[Any] = []
            played.board._on_gone = gone.append
            played.launch = lambda profile: played.launched.append(Watched(profile, [])) or played.launched[-1]  # type: ignore[method-assign,func-returns-value]
            a = profile("a")
            ticket, first = await played.board.acquire(a)
            late = asyncio.create_task(use(played.board, a))
            await until(lambda: played.board.depth == 1)
            played.board.hung(first, "it hung")
            played.board.hung(first, "it hung")
            assert (first.state, first.reason) == (ServerState.FAILED, "it hung")
            played.board.release(ticket, first)
            assert not late.done()
            assert await late is not first
            assert gone[0] is first
            played.board.hung(first, "it hung")  # of one that is gone
            assert played.up == ["a"]

    run(play())


def test_one_that_restarts_comes_back_though_nobody_asks() -> None:
    async def play() -> None:
        async with stage() as played:
            server = await use(played.board, profile("a", restart="always"))
            server.crash("killed by signal 9")
            await until(lambda: len(played.launched) == 2 and played.up == ["a"])

    run(play())


def test_time_alone_tries_one_that_restarts_again() -> None:
    async def play() -> None:
        async with stage() as played:
            played.faults["a"] = ["no"] * 3
            played.board.preload(profile("a", keep_warm=True))
            await until(lambda: len(played.launched) == 3 and played.board._expiry is not None)
            assert played.board.depth == 0
            played.board._policy.forgive("a")
            played.board._expire()
            await until(lambda: played.up == ["a"])
            assert played.board._expiry is None

    run(play())


def test_what_a_start_needed_the_last_time_is_known() -> None:
    async def play() -> None:
        async with stage() as played:
            assert played.board.load_seconds("a") is None
            await use(played.board, profile("a"))
            assert (played.board.load_seconds("a") or 0) > 0
            assert played.board.doing("a") is None

    run(play())


def test_a_stop_that_is_under_way_when_deck_stops_goes_on_in_order() -> None:
    async def test() -> None:
        async with stage(memory=5 * GIB) as played:
            first, other = await use(played.board, profile("a")), await use(played.board, profile("c", memory="1GiB"))
            begun, gate, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

            async def stop(*, grace: float) -> None:
                if begun.is_set():
                    return
                begun.set()
                await gate.wait()
                ended.set()

            first.stop = stop
            waiting = asyncio.create_task(use(played.board, profile("b")))
            await begun.wait()
            closing = asyncio.create_task(played.board.close())
            await until(lambda: other.state is ServerState.STOPPED)  # the others need not wait for it
            with pytest.raises(DeckError, match="shutting down"):
                await waiting
            assert not closing.done()
            gate.set()
            await closing
            assert ended.is_set()

    run(test())
