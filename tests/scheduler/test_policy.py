"""The policy by playbooks, and its promises over random plays."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scheduler.playbook import Play, Playbook, playbooks

from deck.errors import DeckError, ErrorKind
from deck.scheduler.policy import Policy
from deck.scheduler.values import Command, Grant, Model, Refuse, Start, Stop, Ticket

PLAYS = list(playbooks())
_IDS = count()


@pytest.mark.parametrize("playbook", PLAYS, ids=lambda playbook: playbook.name)
def test_play(playbook: Playbook) -> None:
    Play().run(playbook)


def test_there_are_no_fewer_plays_than_there_were_and_no_two_of_one_name() -> None:
    assert len({playbook.name for playbook in PLAYS}) == len(PLAYS) >= 60


def test_a_play_that_expects_something_else_fails() -> None:
    with pytest.raises(AssertionError, match="came: start a"):
        Play().run(Playbook("wrong", ["a1 arrives -> stop a"]))


def test_the_reason_and_the_time_of_a_crash_loop_are_told() -> None:
    policy = Policy(queue_limit=9, queue_wait=9)
    for now in (0.0, 10.0, 20.0, 30.0, 40.0):
        policy.arrive(ticket("a", now), now)
        policy.failed("a", DeckError(ErrorKind.UNAVAILABLE, "exit status 1: no such flag"), now)
    [command] = policy.arrive(ticket("a", 41.0), 41.0)
    assert isinstance(command, Refuse)
    assert command.error.message == "exit status 1: no such flag (failed 5 times in a row; tried again in 7 s)"
    assert command.error.retry_after == 7.0
    assert policy.quarantined(41.0) == {"a": (5, 7.0)}
    assert policy.quarantined(48.5) == {}


def late(policy: Policy, name: str, *, model: Model | None = None, token: str = "") -> str:
    """Have one wait until it is too late, and return what it is told."""
    arrived = Ticket(next(_IDS), model or Model(name=name), 10.0, token)
    assert not [item for item in policy.arrive(arrived, 10.0) if not isinstance(item, Stop)]
    [command] = [item for item in policy.expire(31.0) if isinstance(item, Refuse)]
    return command.error.message


def resident(slots: int, running: int, *, limit: int | None = None, **more: Any) -> Policy:
    """Return a policy whose model `a` is loaded and in use."""
    policy = Policy(queue_limit=9, queue_wait=20, token_limit=limit)
    users = [Ticket(next(_IDS), Model(name="a"), 0.0, "x", credit=5) for _ in range(max(1, running))]
    policy.arrive(users[0], 0.0)
    policy.started("a", slots, 0.0, **more)
    for user in users[1:]:
        policy.arrive(user, 0.0)
    if not running:
        policy.release(users[0], 0.0)
    return policy


def test_who_waited_too_long_is_told_what_for() -> None:
    assert late(resident(2, 1), "pin") == "waited 20 s for room to load 'pin': 'a' is in use; try again later"
    assert late(resident(1, 1), "a") == "waited 20 s for 'a': its only slot is in use; try again later"
    assert late(resident(2, 2), "a") == "waited 20 s for 'a': all of its 2 slots are in use; try again later"
    narrow = Model(name="a", concurrency=1)
    policy = Policy(queue_limit=9, queue_wait=20)
    policy.arrive(Ticket(next(_IDS), narrow, 0.0), 0.0)
    policy.started("a", 4, 0.0)
    assert late(policy, "a", model=narrow) == "waited 20 s for 'a': its only slot is in use; try again later"
    assert (
        late(resident(2, 1, limit=1), "a", token="x") == "waited 20 s for 'a': its turn did not come; try again later"
    )


def test_who_waits_for_what_goes_is_told_so() -> None:
    policy = resident(1, 0)
    assert late(policy, "b") == "waited 20 s for room to load 'b': 'a' is being unloaded; try again later"
    assert late(policy, "a").startswith("waited 20 s for 'a': its server is to be started anew")
    loading = Policy(queue_limit=9, queue_wait=20)
    loading.arrive(ticket("a", 0.0), 0.0)
    assert late(loading, "b") == "waited 20 s for room to load 'b': 'a' is being loaded; try again later"


def test_tokens_that_slots_share_are_waited_for() -> None:
    policy = resident(2, 1, pool=5)
    big = Ticket(next(_IDS), Model(name="a"), 10.0, credit=1)
    assert policy.arrive(big, 10.0) == []
    [command] = policy.expire(31.0)
    assert isinstance(command, Refuse)
    assert command.error.message.startswith("waited 20 s for 'a': the tokens that its slots share are in use")


@pytest.mark.parametrize(
    ("takes", "may", "shown"),
    [
        (900 << 20, 700 << 20, "it takes 900 MiB of memory and Deck may use 700 MiB"),
        (24 << 30, 22 << 30, "it takes 24 GiB of memory and Deck may use 22 GiB"),
        ((16 << 30) + 1, 16 << 30, "it takes 16.1 GiB of memory and Deck may use 16 GiB"),
    ],
)
def test_sizes_are_written_as_people_write_them(takes: int, may: int, shown: str) -> None:
    policy = Policy(queue_limit=9, queue_wait=20, memory=may)
    [command] = policy.arrive(Ticket(next(_IDS), Model(name="huge", memory=takes), 0.0), 0.0)
    assert isinstance(command, Refuse)
    assert command.error.message == f"no room for 'huge': {shown}"


def test_places_and_expected_waits_follow_from_what_was_seen() -> None:
    policy = Policy(queue_limit=9, queue_wait=99)
    first, second, third = ticket("a", 0.0), ticket("a", 0.0), ticket("a", 0.0)
    policy.arrive(first, 0.0)
    assert [(item.place, item.expected) for item in policy.waiting(0.0)] == [(1, None)]
    policy.started("a", 1, 4.0)
    policy.release(first, 14.0)
    policy.arrive(second, 14.0)
    for _ in range(2):
        policy.arrive(third, 14.0)
    assert [(item.place, item.expected) for item in policy.waiting(14.0)] == [(1, 10.0), (2, 20.0)]


def test_who_must_wait_for_room_wakes_the_policy_when_a_least_time_is_over() -> None:
    policy = Policy(queue_limit=9, queue_wait=1000)
    stays = Model(name="a", min_resident=20)
    first = Ticket(next(_IDS), stays, 0.0)
    policy.arrive(first, 0.0)
    policy.started("a", 1, 1.0)
    policy.release(first, 2.0)
    assert policy.next_expiry(2.0) is None
    policy.arrive(ticket("b", 3.0), 3.0)
    assert policy.next_expiry(3.0) == 21.0


MODELS = {
    "a": Model(name="a", memory=4),
    "b": Model(name="b", memory=4, group="g"),
    "c": Model(name="c", memory=3, group="g", priority=1),
    "d": Model(name="d", memory=9),
    "e": Model(name="e"),
    "p": Model(name="p", memory=1, is_pinned=True),
    "r": Model(name="r", is_local=False),
}


def ticket(name: str, now: float) -> Ticket:
    return Ticket(next(_IDS), MODELS.get(name, Model(name=name)), now, token=f"token{next(_IDS) % 3}", credit=30)


class World:
    """Plays the part of the board, checking that the policy never breaks a promise."""

    def __init__(self, memory: int | None, tokens: int | None) -> None:
        self.memory = memory
        self.tokens = tokens
        self.now = 0.0
        self.play = Policy(queue_limit=50, queue_wait=1e9, memory=memory, token_limit=tokens, ageing=5)
        self.up: dict[str, str] = {}
        self.running: list[Ticket] = []
        self.waiting: list[Ticket] = []
        self.refused: list[Ticket] = []

    def do(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Grant(ticket=who):
                    assert self.up[who.profile] == "ready"
                    self.waiting.remove(who)
                    self.running.append(who)
                case Start(profile=name):
                    assert name not in self.up
                    self.up[name] = "starting"
                case Stop(profile=name):
                    assert self.up[name] == "ready", "only what is ready is stopped"
                    assert not [who for who in self.running if who.profile == name], "a busy server is stopped"
                    self.up[name] = "stopping"
                case Refuse(ticket=who):
                    self.waiting.remove(who)
                    self.refused.append(who)
        self.check()

    def check(self) -> None:
        local = [MODELS[name] for name in self.up if MODELS[name].is_local]
        if len(local) > 1:
            assert self.memory is not None, "two local servers at once"
            sizes = [item.memory for item in local]
            assert None not in sizes, "a model of unknown size shares the room"
            assert sum(size or 0 for size in sizes) <= self.memory, "the memory is exceeded"
        groups = [item.group for item in local if item.group]
        assert len(groups) == len(set(groups)), "two of a group"
        for name in self.up:
            here = [who for who in self.running if who.profile == name]
            assert len(here) <= 2
            assert len(here) <= 1 or sum(who.credit for who in here) <= 50, "the pool is exceeded"
        if self.tokens is not None:
            counts = [sum(who.token == token for who in self.running) for token in {who.token for who in self.running}]
            assert all(found <= self.tokens for found in counts), "a token has more than its share"
        assert self.play.depth == len(self.waiting)

    def settle(self) -> None:
        for name, state in list(self.up.items()):
            if state == "starting":
                self.up[name] = "ready"
                self.do(self.play.started(name, 2, self.now, pool=50))
            elif state == "stopping":
                del self.up[name]
                self.do(self.play.stopped(name, self.now))

    def end(self) -> None:
        if self.running:
            self.do(self.play.release(self.running.pop(0), self.now))

    def wait(self) -> None:
        """Let a second pass; what only time allows is done when the policy has said that its time comes."""
        due = self.play.next_expiry(self.now)
        self.now += 1.0
        if due is not None and due <= self.now:
            self.do(self.play.expire(self.now))

    def move(self, move: str) -> None:
        self.now += 1.0
        match move:
            case "settle":
                self.settle()
            case "end":
                self.end()
            case "leave" if self.waiting:
                self.do(self.play.leave(self.waiting.pop(0), self.now))
            case "crash" | "fail" | "idle" | "unload":
                self.strike(move)
            case name if name in MODELS:
                who = ticket(name, self.now)
                self.waiting.append(who)
                self.do(self.play.arrive(who, self.now))

    def strike(self, move: str) -> None:
        wanted = "starting" if move == "fail" else "ready"
        name = next((name for name, state in self.up.items() if state == wanted), None)
        if name is None:
            return
        error = DeckError(ErrorKind.UNAVAILABLE, "it ended")
        if move in ("idle", "unload"):
            self.do(getattr(self.play, move)(name, self.now))
            return
        del self.up[name]
        self.running = [who for who in self.running if who.profile != name]
        self.do((self.play.crashed if move == "crash" else self.play.failed)(name, error, self.now))


MOVES = st.sampled_from([*MODELS, "end", "end", "settle", "settle", "leave", "crash", "fail", "idle", "unload"])


@settings(max_examples=300, deadline=None)
@given(st.lists(MOVES, max_size=80), st.sampled_from([None, 8, 12]), st.sampled_from([None, 1, 2]))
@example(moves=["a", "fail", "a", "fail", "a", "fail", "a"], memory=None, tokens=None)
def test_promises_hold_over_random_plays_and_nobody_is_lost(
    moves: list[str], memory: int | None, tokens: int | None
) -> None:
    world = World(memory, tokens)
    for move in moves:
        world.move(move)
    for _ in range(600):
        world.wait()
        world.settle()
        world.end()
    assert not world.waiting
    assert not world.running


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4), st.integers(1, 3))
def test_a_waiter_is_served_although_another_model_s_requests_never_stop(slots: int, streams: int) -> None:
    """Two clients that always ask for one model cannot keep another out."""
    world = World(None, None)
    for _ in range(streams):
        world.move("a")
    world.settle()
    waiter = ticket("b", world.now)
    world.waiting.append(waiter)
    world.do(world.play.arrive(waiter, world.now))
    for turn in range(40):
        world.now += 1.0
        world.end()
        world.move("a")
        world.settle()
        if waiter in world.running:
            assert turn < 4 * slots * streams
            return
    raise AssertionError("it starved")


def test_a_model_that_is_to_be_up_wakes_the_policy_when_it_may_be_tried() -> None:
    policy = Policy(queue_limit=9, queue_wait=9)
    warm = Model(name="w", is_warm=True)
    policy.preload(warm, 0.0)
    for now in (1.0, 2.0, 3.0):
        policy.failed("w", DeckError(ErrorKind.UNAVAILABLE, "no"), now)
    assert policy.is_restless
    assert policy.next_expiry(3.0) == 5.0
    assert policy.expire(5.0) == [Start("w")]
    assert not policy.is_restless
