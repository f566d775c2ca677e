"""The policy with conversations: over random plays nobody is lost, shares a slot, or runs beside its own too soon."""

from __future__ import annotations

from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from deck.scheduler.policy import Policy
from deck.scheduler.slots import Claim, SlotBook
from deck.scheduler.values import Command, Grant, Model, Start, Ticket

GRACE, LONGEST, PATIENCE = 20.0, 100.0, 15.0
MODEL = Model(name="a", memory=1)


class World:
    """Plays the part of the board for one model."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.now = 0.0
        self.ids = count()
        self.policy = Policy(queue_limit=99, queue_wait=1e9, ageing=5)
        self.waiting: list[Ticket] = []
        self.running: dict[int, tuple[Ticket, int | None]] = {}
        self.do(self.policy.preload(MODEL, 0.0))
        book = SlotBook(slots, grace=GRACE, longest=LONGEST)
        self.do(self.policy.started("a", slots, 0.0, book=book))

    def do(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Start):
                continue
            assert isinstance(command, Grant)
            who = command.ticket
            slot = self.policy.slot(who)
            assert (slot is None) == (who.claim is None)
            assert slot is None or slot not in {other for _, other in self.running.values()}, "two in one slot"
            is_alone = not any(self.is_same(who, other) for other, _ in self.running.values())
            assert self.policy.is_alone(who) == is_alone
            patience = who.claim.alone if who.claim is not None else 0.0
            assert is_alone or self.now >= who.since + patience, "it runs beside its own"
            self.waiting.remove(who)
            self.running[who.id] = who, slot
        assert len(self.running) <= self.slots
        assert self.policy.depth == len(self.waiting)

    @staticmethod
    def is_same(one: Ticket, other: Ticket) -> bool:
        if one.claim is None or other.claim is None:
            return False
        return one.claim.conversation == other.claim.conversation

    def arrive(self, token: str, claim: Claim | None) -> None:
        who = Ticket(next(self.ids), MODEL, self.now, token, claim=claim)
        self.waiting.append(who)
        self.do(self.policy.arrive(who, self.now))

    def end(self) -> None:
        if self.running:
            who, _ = self.running.pop(next(iter(self.running)))
            self.do(self.policy.release(who, self.now))

    def leave(self) -> None:
        if self.waiting:
            self.do(self.policy.leave(self.waiting.pop(0), self.now))

    def pass_time(self, seconds: float) -> None:
        """Let time pass as the board does: to each moment at which the policy wants to be asked."""
        end = self.now + seconds
        while (at := self.policy.next_expiry(self.now)) is not None and at <= end:
            assert at > self.now or not self.waiting
            self.now = at
            self.do(self.policy.expire(self.now))
        self.now = end


ARRIVAL = st.tuples(
    st.sampled_from("xyz"),
    st.one_of(st.none(), st.tuples(st.integers(0, 3), st.booleans(), st.sampled_from([0.0, PATIENCE]))),
)
MOVE = st.one_of(ARRIVAL, st.sampled_from(["end", "end", "leave", "time"]))


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 4), st.lists(MOVE, max_size=60))
def test_promises_hold_and_nobody_is_lost(slots: int, moves: list[object]) -> None:
    world = World(slots)
    for move in moves:
        match move:
            case "end":
                world.end()
            case "leave":
                world.leave()
            case "time":
                world.pass_time(3.0)
            case (str(token), None):
                world.arrive(token, None)
            case (str(token), (int(number), bool(holds), float(alone))):
                world.arrive(token, Claim(f"{token}{number}".encode(), b"", holds, alone))
    for _ in range(200):
        world.pass_time(1.0)
        world.end()
    assert not world.waiting
    assert not world.running


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 4), st.lists(st.tuples(st.sampled_from("yz"), st.integers(0, 3)), min_size=4, max_size=12))
def test_nobody_waits_longer_than_a_grace_though_others_are_idle(slots: int, others: list[tuple[str, int]]) -> None:
    world = World(slots)
    for token, number in others:
        world.arrive(token, Claim(f"{token}{number}".encode(), b"", holds=True))
        world.end()
    while world.running:
        world.end()
    for number in range(slots):
        world.arrive("x", Claim(f"x{number}".encode(), b"", holds=True))
    world.pass_time(GRACE)
    assert not world.waiting
