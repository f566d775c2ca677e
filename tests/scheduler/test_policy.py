"""The policy by playbooks: events in, commands out, and invariants over random plays."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deck.errors import DeckError, ErrorKind
from deck.scheduler.policy import Command, Grant, Policy, Refuse, Start, Stop, Ticket

_IDS = count()


def ticket(profile: str, since: float = 0.0, *, is_local: bool = True) -> Ticket:
    return Ticket(next(_IDS), profile, is_local, since)


def policy(queue_limit: int = 8, queue_wait: float = 10) -> Policy:
    return Policy(queue_limit=queue_limit, queue_wait=queue_wait)


def grants(commands: Iterable[Command]) -> list[Ticket]:
    return [command.ticket for command in commands if isinstance(command, Grant)]


def test_the_first_exchange_starts_its_server_and_is_granted_when_it_is_ready() -> None:
    play, first = policy(), ticket("a")
    assert play.arrive(first) == [Start("a")]
    assert play.started("a", 1) == [Grant(first)]


def test_a_second_exchange_for_a_starting_model_starts_nothing() -> None:
    play, first, second = policy(), ticket("a"), ticket("a")
    play.arrive(first)
    assert play.arrive(second) == []
    assert grants(play.started("a", 1)) == [first]
    assert play.release("a") == [Grant(second)]


def test_zero_slots_mean_no_bound() -> None:
    play = policy()
    play.arrive(ticket("a", is_local=False))
    play.started("a", 0)
    assert all(grants(play.arrive(ticket("a", is_local=False))) for _ in range(50))


def test_an_idle_resident_makes_room() -> None:
    play = policy()
    play.arrive(ticket("a"))
    play.started("a", 1)
    play.release("a")
    other = ticket("b")
    assert play.arrive(other) == [Stop("a")]
    assert play.stopped("a") == [Start("b")]
    assert play.started("b", 1) == [Grant(other)]


def test_a_busy_resident_is_never_evicted() -> None:
    play = policy()
    play.arrive(ticket("a"))
    play.started("a", 1)
    assert play.arrive(ticket("b")) == []
    assert play.release("a") == [Stop("a")]


def test_a_waiter_ahead_stops_new_grants_to_a_busy_resident() -> None:
    play = policy()
    play.arrive(ticket("a"))
    play.started("a", 2)
    waiting, late = ticket("b"), ticket("a")
    play.arrive(waiting)
    assert play.arrive(late) == []
    assert play.release("a") == [Stop("a")]
    assert play.stopped("a") == [Start("b")]
    assert grants(play.started("b", 1)) == [waiting]


def test_a_remote_model_takes_no_room() -> None:
    play = policy()
    play.arrive(ticket("a"))
    play.started("a", 1)
    assert play.arrive(ticket("r", is_local=False)) == [Start("r")]


def test_a_full_queue_refuses_with_a_time_to_retry() -> None:
    play = policy(queue_limit=1)
    play.arrive(ticket("a"))
    [command] = play.arrive(ticket("a"))
    assert isinstance(command, Refuse)
    assert command.error.kind is ErrorKind.RATE_LIMIT
    assert command.error.retry_after


def test_who_waits_too_long_is_refused_and_the_rest_go_on() -> None:
    play = policy(queue_wait=5)
    play.arrive(ticket("a", 0.0))
    play.started("a", 1)
    late, young = ticket("a", 1.0), ticket("a", 4.0)
    play.arrive(late)
    play.arrive(young)
    assert play.next_expiry() == 6.0
    assert play.expire(5.9) == []
    [command] = play.expire(6.1)
    assert isinstance(command, Refuse)
    assert command.ticket is late
    assert grants(play.release("a")) == [young]


def test_a_long_load_refuses_nobody() -> None:
    play, first = policy(queue_wait=5), ticket("a", 0.0)
    play.arrive(first)
    assert play.next_expiry() is None
    assert play.expire(100.0) == []
    assert grants(play.started("a", 1)) == [first]


def test_a_failed_start_tells_every_waiter_and_the_next_tries_again() -> None:
    play, first, second = policy(), ticket("a"), ticket("a")
    play.arrive(first)
    play.arrive(second)
    error = DeckError(ErrorKind.UNAVAILABLE, "no such file")
    assert play.failed("a", error) == [Refuse(first, error), Refuse(second, error)]
    assert play.arrive(ticket("a")) == [Start("a")]


def test_who_leaves_the_queue_is_not_granted() -> None:
    play, first, second = policy(), ticket("a"), ticket("a")
    play.arrive(first)
    play.arrive(second)
    play.leave(first)
    assert grants(play.started("a", 1)) == [second]


def test_a_crash_restarts_for_who_waits() -> None:
    play = policy()
    play.arrive(ticket("a"))
    play.started("a", 1)
    waiting = ticket("a")
    play.arrive(waiting)
    assert play.stopped("a") == [Start("a")]


@pytest.mark.parametrize("is_busy", [True, False])
def test_only_an_idle_server_is_unloaded(is_busy: bool) -> None:
    play = policy()
    play.arrive(ticket("a"))
    play.started("a", 1)
    if not is_busy:
        play.release("a")
    assert play.idle("a") == ([] if is_busy else [Stop("a")])


def test_a_request_during_the_stop_of_its_model_waits_and_starts_it_anew() -> None:
    play = policy()
    play.arrive(ticket("a"))
    play.started("a", 1)
    play.release("a")
    assert play.idle("a") == [Stop("a")]
    again = ticket("a")
    assert play.arrive(again) == []
    assert play.stopped("a") == [Start("a")]
    assert play.started("a", 1) == [Grant(again)]


class World:
    """Plays the part of the board, checking that the policy never breaks a promise."""

    def __init__(self) -> None:
        self.play = policy(queue_limit=50, queue_wait=1e9)
        self.up: dict[str, str] = {}
        self.running: list[Ticket] = []
        self.waiting: list[Ticket] = []

    def do(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Grant(ticket=who):
                    assert self.up[who.profile] == "ready"
                    self.waiting.remove(who)
                    self.running.append(who)
                case Start(profile=name):
                    assert name not in self.up
                    assert not self.up, "two local servers at once"
                    self.up[name] = "starting"
                case Stop(profile=name):
                    assert self.up[name] == "ready"
                    assert not [who for who in self.running if who.profile == name], "a busy server is evicted"
                    self.up[name] = "stopping"
                case Refuse(ticket=who):
                    self.waiting.remove(who)

    def settle(self) -> None:
        for name, state in list(self.up.items()):
            if state == "starting":
                self.up[name] = "ready"
                self.do(self.play.started(name, 2))
            elif state == "stopping":
                del self.up[name]
                self.do(self.play.stopped(name))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "c", "end", "settle", "leave"]), max_size=60))
def test_promises_hold_over_random_plays_and_nobody_starves(moves: list[str]) -> None:
    world = World()
    for move in moves:
        if move == "settle":
            world.settle()
        elif move == "end":
            if world.running:
                who = world.running.pop(0)
                world.do(world.play.release(who.profile))
        elif move == "leave":
            if world.waiting:
                world.do(world.play.leave(world.waiting.pop(0)))
        else:
            who = ticket(move)
            world.waiting.append(who)
            world.do(world.play.arrive(who))
    for _ in range(400):
        world.settle()
        if world.running:
            who = world.running.pop(0)
            world.do(world.play.release(who.profile))
    assert not world.waiting
