"""Which slot of a server an exchange gets: values in, a number out; no clock, no server is touched here.

A slot remembers the conversation that was in it last: its prompt is still in llama-server's cache. A conversation that
will go on pins its slot for a grace, and for so long at most; others take its slot only where there is no other, and
one token takes that of another only while it has less than its share.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from deck.canon.value import value

# Conversations that lost a slot are remembered, so many for each slot there is.
_MOST_LOST = 16


@value(frozen=True, slots=True)
class Claim:
    """What a ticket says of the conversation that it belongs to.

    Args:
        conversation: no other conversation of anyone has it.
        head: alike for conversations that begin alike, so that one may use what is left of another.
        holds: it will go on, so its slot is worth keeping; a title or another side request will not.
        alone: seconds that it waits for other exchanges of the conversation to end; after them it runs beside them.
        head_size: of the head, in any measure that is the same for all.
        tail_size: of what follows it.
    """

    conversation: bytes
    head: bytes = b""
    holds: bool = False
    alone: float = 0.0
    head_size: int = 0
    tail_size: int = 0


@dataclass(slots=True)
class _Slot:
    """One slot; `ticket` is who runs in it, `hits` how often its conversation came back in a row.

    `tail_size` is what it would have to process again if another with the same head had been here.
    """

    number: int
    ticket: int | None = None
    conversation: bytes = b""
    head: bytes = b""
    token: str = ""
    is_pinned: bool = False
    since: float = float("-inf")
    used: float = float("-inf")
    hits: int = 0
    tail_size: int = 0


class SlotBook:
    """Who is in which slot of one server, and who was.

    Args:
        slots: how many there are.
        grace: seconds for which a slot is kept for its conversation between two exchanges.
        longest: seconds for which a conversation may keep a slot in all.
        patience: seconds for which a token waits for its share while a slot is free that another keeps.
    """

    def __init__(self, slots: int, *, grace: float, longest: float, patience: float = math.inf) -> None:
        self._slots = [_Slot(number) for number in range(slots)]
        self._lost: OrderedDict[bytes, None] = OrderedDict()
        self.patience = patience
        self._grace = grace
        self._longest = longest

    def reopened(self, slots: int) -> bool:
        """Begin another run of the server, whose slots hold what they held; false = it has not so many as before."""
        for slot in self._slots:
            slot.ticket = None
        return len(self._slots) == slots

    def has_room(self, claim: Claim, token: str, now: float, since: float = math.inf) -> bool:
        """Tell whether there is a slot for a conversation of this token, which has waited since then."""
        return self._choose(claim, token, now, since) is not None

    def enter(self, ticket: int, claim: Claim, token: str, now: float, since: float = math.inf) -> int:
        """Put a ticket into the slot that suits it, and return its number; only if there is room."""
        slot = self._choose(claim, token, now, since)
        assert slot is not None
        if slot.conversation == claim.conversation:
            slot.hits += 1
            self._lost.pop(claim.conversation, None)
        else:
            self._clear(slot)
            slot.conversation, slot.token = claim.conversation, token
        if claim.holds and not (slot.is_pinned and now < slot.since + self._longest):
            slot.is_pinned, slot.since = True, now
        slot.head, slot.tail_size = claim.head, claim.tail_size
        slot.ticket, slot.used = ticket, now
        return slot.number

    def leave(self, ticket: int, now: float) -> None:
        """Note that a ticket's exchange has ended."""
        for slot in self._slots:
            if slot.ticket == ticket:
                slot.ticket, slot.used = None, now

    def slot_of(self, ticket: int) -> int | None:
        """Return the slot that a ticket runs in."""
        return next((slot.number for slot in self._slots if slot.ticket == ticket), None)

    def ends(self, now: float) -> Iterator[float]:
        """Yield when the pins of free slots end."""
        return (self._end(slot) for slot in self._slots if slot.ticket is None and self._is_kept(slot, now))

    def _clear(self, slot: _Slot) -> None:
        """Take a slot from its conversation, which may come back and miss it."""
        if slot.is_pinned:
            self._lost[slot.conversation] = None
            if len(self._lost) > _MOST_LOST * len(self._slots):
                self._lost.popitem(last=False)
        slot.hits, slot.is_pinned = 0, False

    def _choose(self, claim: Claim, token: str, now: float, since: float) -> _Slot | None:
        free = [slot for slot in self._slots if slot.ticket is None]
        own = next((slot for slot in free if slot.conversation == claim.conversation), None)
        if own is not None:
            return own
        loose = [slot for slot in free if not self._is_kept(slot, now)]
        mine = [slot for slot in free if slot.token == token and slot not in loose]
        if claim.conversation in self._lost and loose:
            return self._cheapest(claim, loose, mine)
        if loose:
            # What is left of a title serves the next one, unless little of it is alike; an agent may still come back.
            return min(loose, key=lambda slot: (slot.is_pinned or not self._serves(slot, claim), slot.used))
        if mine:
            # Where conversations and side requests take turns, the one used longest ago is the next to come back:
            # whoever has lost its slot once loses it again, and the others keep theirs.
            return min(mine, key=lambda slot: (slot.hits, -slot.used))
        if free and now >= since + self.patience:
            return min(free, key=lambda slot: (slot.hits, slot.used))
        return self._taken_over(free, token, now)

    @staticmethod
    def _serves(slot: _Slot, claim: Claim) -> bool:
        """Tell whether what a slot holds is worth more to a newcomer than to whoever was there."""
        return slot.head == claim.head and claim.head_size >= slot.tail_size

    def _cheapest(self, claim: Claim, loose: list[_Slot], mine: list[_Slot]) -> _Slot:
        """Return where least is processed again.

        A conversation that has lost a slot before would lose this one too. To take turns with another that begins
        alike costs both their tails, but no head.
        """
        costs = [(0 if slot.head == claim.head else claim.head_size, slot.used, slot.number) for slot in loose]
        costs += [(slot.tail_size, slot.used, slot.number) for slot in mine if slot.head == claim.head]
        return self._slots[min(costs)[-1]]

    def _taken_over(self, free: list[_Slot], token: str, now: float) -> _Slot | None:
        """Return the slot of another token that has more than its share, if this one has less; any if it has none."""
        held: dict[str, int] = {token: 0}
        for slot in self._slots:
            if slot.ticket is not None or self._is_kept(slot, now):
                held[slot.token] = held.get(slot.token, 0) + 1
        share = max(1, len(self._slots) // len(held))
        if held[token] >= share:
            return None
        # Who has nothing need not wait until one with more has ended, nor where there are more tokens than slots.
        given = [slot for slot in free if held[slot.token] > share or not held[token]]
        return min(given, key=lambda slot: (-held[slot.token], slot.hits, -slot.used), default=None)

    def _is_kept(self, slot: _Slot, now: float) -> bool:
        return slot.is_pinned and now < self._end(slot)

    def _end(self, slot: _Slot) -> float:
        return min(slot.used + self._grace, slot.since + self._longest)
