"""Who gets which slot.

A play is a line for each event: `a enters holds head=A size=9+1 token=x -> 0` (a slot, or `waits`; sizes of head and
tail), `a ends`; `@5` sets the clock. A ticket is named by the letter of its conversation; with a mark, another one of
the same. The grace is 60 s, the longest time 1800 s.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deck.scheduler.slots import Claim, SlotBook

FILE = Path(__file__).parent / "slots.txt"
GRACE, LONGEST = 60.0, 1800.0


def plays() -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            found.append((line[2:], []))
        elif line.strip():
            found[-1][1].append(line)
    return found


@pytest.mark.parametrize(("name", "lines"), plays(), ids=lambda item: item if isinstance(item, str) else "")
def test_a_play(name: str, lines: list[str]) -> None:
    slots = int(lines[0].removeprefix("slots "))
    book, now, numbers = SlotBook(slots, grace=GRACE, longest=LONGEST), 0.0, dict[str, int]()
    for count, line in enumerate(lines[1:]):
        said, _, wanted = line.partition(" -> ")
        words = said.split()
        if words[0].startswith("@"):
            now = float(words.pop(0)[1:])
        who, what, *rest = words
        if what == "ends":
            book.leave(numbers[who], now)
            continue
        members = dict(word.split("=") for word in rest if "=" in word)
        head_size, _, tail_size = members.get("size", "0+0").partition("+")
        head = members.get("head", "").encode()
        claim = Claim(who[0].encode(), head, "holds" in rest, head_size=int(head_size), tail_size=int(tail_size))
        token = members.get("token", "x")
        came = "waits"
        if book.has_room(claim, token, now):
            numbers[who] = count
            came = str(book.enter(count, claim, token, now))
            assert book.slot_of(count) == int(came)
        assert came == wanted, f"{name}: {line}"


class World:
    """A book under random moves, and what it promises."""

    def __init__(self, slots: int) -> None:
        self.book = SlotBook(slots, grace=GRACE, longest=LONGEST)
        self.slots = slots
        self.now = 0.0
        self.running: dict[int, tuple[int, str]] = {}
        self.left: dict[int, tuple[str, Claim, float, float]] = {}

    def is_kept(self, slot: int) -> bool:
        """Tell whether a slot is kept, by what was seen from outside."""
        if slot not in self.left:
            return False
        _, claim, since, used = self.left[slot]
        return claim.holds and self.now < min(used + GRACE, since + LONGEST)

    def enter(self, ticket: int, claim: Claim, token: str) -> None:
        busy = {slot for slot, _ in self.running.values()}
        held: dict[str, int] = {token: 0}
        for slot in range(self.slots):
            if slot in busy:
                owner = next(name for other, name in self.running.values() if other == slot)
            elif self.is_kept(slot):
                owner = self.left[slot][0]
            else:
                continue
            held[owner] = held.get(owner, 0) + 1
        share = max(1, self.slots // len(held))
        own = [slot for slot in self.left if slot not in busy and self.left[slot][1].conversation == claim.conversation]
        if not self.book.has_room(claim, token, self.now):
            free = set(range(self.slots)) - busy
            owners = [self.left[slot][0] for slot in free]
            assert all(self.is_kept(slot) for slot in free)
            assert token not in owners
            if held[token] < share:
                assert held[token] or not free, "it has none, and waits"
                assert all(held[owner] <= share for owner in owners), "it has less than its share, and waits"
            return
        slot = self.book.enter(ticket, claim, token, self.now)
        assert slot not in busy, "two in one slot"
        if own:
            assert slot in own, "it did not get its own"
        elif self.is_kept(slot) and self.left[slot][0] != token:
            assert held[token] < share, "it pushed another out though it has its share"
            is_over = held[self.left[slot][0]] > share
            assert is_over or not held[token], "it pushed out one that has but its share"
        before = self.left.get(slot, (token, Claim(b""), self.now, self.now))
        is_same = before[1].conversation == claim.conversation and before[1].holds
        stays = is_same and (self.now < before[2] + LONGEST or not claim.holds)
        since = before[2] if stays else self.now
        self.left[slot] = (token, Claim(claim.conversation, b"", claim.holds or is_same), since, self.now)
        self.running[ticket] = slot, token

    def end(self, ticket: int) -> None:
        slot, token = self.running.pop(ticket)
        self.book.leave(ticket, self.now)
        _, claim, since, _ = self.left[slot]
        self.left[slot] = (token, claim, since, self.now)


MOVE = st.tuples(st.integers(0, 5), st.booleans(), st.sampled_from("xyz"), st.sampled_from([0.0, 1.0, 70.0, 2000.0]))


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 4), st.lists(st.one_of(MOVE, st.none()), max_size=60))
def test_nobody_shares_a_slot_nor_takes_more_than_a_share(
    slots: int, moves: list[tuple[int, bool, str, float] | None]
) -> None:
    world = World(slots)
    for ticket, move in enumerate(moves):
        if move is None:
            if world.running:
                world.end(next(iter(world.running)))
            continue
        number, holds, token, passed = move
        world.now += passed
        if len(world.running) < slots:
            world.enter(ticket, Claim(f"{token}{number}".encode(), b"", holds), token)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("yz"), st.integers(0, 9), st.booleans()), max_size=40))
def test_others_never_push_out_who_is_within_its_share(others: list[tuple[str, int, bool]]) -> None:
    """Two slots, a conversation of x in its grace: whatever one other token asks for, x finds its slot as it was."""
    book = SlotBook(2, grace=GRACE, longest=LONGEST)
    mine = Claim(b"mine", b"", True)
    slot = book.enter(0, mine, "x", 0.0)
    book.leave(0, 1.0)
    for ticket, (_, number, holds) in enumerate(others, 1):
        claim = Claim(f"y{number}".encode(), b"", holds)
        assert book.has_room(claim, "y", 2.0)
        assert book.enter(ticket, claim, "y", 2.0) != slot
        assert not book.has_room(Claim(b"more", b"", holds), "y", 2.0)
        book.leave(ticket, 3.0)
    assert book.enter(99, mine, "x", 4.0) == slot


def test_the_end_of_a_grace_is_told() -> None:
    book = SlotBook(2, grace=GRACE, longest=LONGEST)
    book.enter(0, Claim(b"a", b"", True), "x", 0.0)
    assert list(book.ends(1.0)) == []
    book.leave(0, 5.0)
    assert list(book.ends(6.0)) == [65.0]
    assert list(book.ends(65.0)) == []
