"""Servers as the policy sees them: their state, who uses them, and what must go before another can start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from deck.scheduler.slots import SlotBook
from deck.scheduler.values import Model, Ticket
from deck.settings import shown_size


@dataclass(slots=True)
class Resident:
    """One server, from the command to start it until it is gone.

    `granted` holds who uses it, by ticket id, and since when; `pool` is the tokens that its slots share; `book` says
    who is in which slot, where Deck gives them out; `load` is the seconds that it took to be ready.
    """

    model: Model
    state: Literal["starting", "ready", "stopping"] = "starting"
    since: float = 0.0
    used: float = 0.0
    load: float = 0.0
    slots: int = 0
    pool: int | None = None
    book: SlotBook | None = None
    granted: dict[int, tuple[Ticket, float]] = field(default_factory=dict)
    is_unwanted: bool = False
    was_retried: bool = False

    @property
    def running(self) -> int:
        """How many exchanges use it."""
        return len(self.granted)

    @property
    def most(self) -> int | None:
        """How many exchanges may use it at a time, None = no bound."""
        own = self.model.concurrency
        return min(own, self.slots or own) if own is not None else self.slots or None

    @property
    def stays_until(self) -> float:
        """When it need no longer serve its own waiters before one ahead of them: it has served as long as it loaded."""
        return self.since + max(self.load, self.model.min_resident)

    def has_room(self, ticket: Ticket) -> bool:
        """Tell whether one more exchange may use it."""
        if self.state != "ready" or self.is_unwanted:
            return False
        running = len(self.granted)
        most = self.slots or None if self.model.concurrency is None else self.most
        if most is not None and running >= most:
            return False
        if self.pool is None or not running:
            return True
        return sum(other.credit for other, _ in self.granted.values()) + ticket.credit <= self.pool

    def lets_in(self, ticket: Ticket, now: float) -> bool:
        """Tell whether it is the turn of the ticket's conversation; who waits for that stands in nobody's way."""
        claim = ticket.claim
        if claim is None:
            return True
        if now < ticket.since + claim.alone and not self.is_alone(ticket):
            return False
        return self.book is None or self.book.has_room(claim, ticket.token, now, ticket.since)

    def is_alone(self, ticket: Ticket) -> bool:
        """Tell whether no other exchange of the ticket's conversation runs."""
        if ticket.claim is None:
            return True
        conversation = ticket.claim.conversation
        others = (other for other, _ in self.granted.values() if other.id != ticket.id and other.claim is not None)
        return all(other.claim is None or other.claim.conversation != conversation for other in others)

    def may_stop(self, now: float) -> bool:
        """Tell whether it may make room now: nobody uses it and it has been there long enough."""
        return self.state == "ready" and not self.granted and now >= self.since + self.model.min_resident


@dataclass(frozen=True, slots=True)
class Room:
    """What stands between a model and its start: `victims` must go first; `never` says why they cannot."""

    victims: tuple[Resident, ...] = ()
    is_free: bool = False
    never: str | None = None


def room_for(model: Model, residents: Iterable[Resident], memory: int | None) -> Room:
    """Return what must happen before `model` can start.

    Args:
        model: the newcomer.
        residents: all servers there are.
        memory: bytes that local models may take together; None = unknown, so one at a time.
    """
    if not model.is_local:
        return Room(is_free=True)
    local = [item for item in residents if item.model.is_local]
    if memory is not None and model.memory is not None and model.memory > memory:
        return Room(
            never=f"it takes {shown_size(model.memory, up=True)} of memory and Deck may use {shown_size(memory)}"
        )
    rivals = [item for item in local if model.group is not None and item.model.group == model.group]
    pinned = next((item for item in rivals if item.model.is_pinned), None)
    if pinned is not None:
        return Room(never=f"it shares the group {model.group!r} with {pinned.model.name!r}, which is pinned")
    rest = [item for item in local if item not in rivals]
    chosen = [*rivals, *_to_free(model, rest, memory)]
    if _exceeds(model, [item for item in rest if item not in chosen], memory):
        names = ", ".join(sorted(repr(item.model.name) for item in rest if item.model.is_pinned))
        return Room(never=f"the pinned models leave no room for it: {names}")
    return Room(victims=tuple(chosen), is_free=not chosen)


def _to_free(model: Model, others: list[Resident], memory: int | None) -> list[Resident]:
    """Return the fewest residents whose going makes room, those first that were used longest ago and are not in use."""
    kept = list(others)
    chosen: list[Resident] = []
    # What goes anyway frees its room without anyone's harm.
    order = sorted(others, key=lambda item: (item.state != "stopping", item.running > 0, item.used))
    for item in order:
        if not _exceeds(model, kept, memory):
            break
        if not item.model.is_pinned:
            kept.remove(item)
            chosen.append(item)
    return chosen


def _exceeds(model: Model, others: list[Resident], memory: int | None) -> bool:
    if not others:
        return False
    sizes = [model.memory, *(item.model.memory for item in others)]
    if memory is None or None in sizes:
        return True
    return sum(size for size in sizes if size is not None) > memory
