"""Which of several servers an exchange goes to. Pure: the same arguments, the same choice, in every Deck."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b

from deck.canon.value import value

# How far above the mean a server's load may be for the sake of its cache, and what is no load yet.
_FACTOR = 1.5
_LIGHT = 2
# Of servers that are loaded alike those count as slow that take so many times as long to begin as the fastest.
_SLOW = 2.0


@value(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A server that may be chosen.

    Args:
        name: the same in every Deck.
        running: exchanges on it, as far as is known here.
        room: exchanges that it takes at a time, 0 = no bound.
        latency: seconds until its answers began of late, None = not known.
    """

    name: str
    running: int
    room: int = 0
    latency: float | None = None

    @property
    def is_full(self) -> bool:
        """Whether one more exchange would wait there."""
        return 0 < self.room <= self.running


def choose(
    candidates: Sequence[Candidate], affinity: str | None = None, last: str | None = None, turn: int = 0
) -> Candidate:
    """Return the server that an exchange goes to: that of its conversation unless it is overloaded, else the idlest.

    Args:
        candidates: at least one.
        affinity: the conversation; None = it has none.
        last: the server that the conversation was on last.
        turn: a number that grows, to take turns among servers that are alike.
    """
    able = [item for item in candidates if not item.is_full] or list(candidates)
    if affinity is not None:
        bound = _bound(candidates)
        ranked = sorted(able, key=lambda item: (item.name != last, rank(affinity, item.name)))
        for item in ranked:
            if item.running < bound:
                return item
    least = min(item.running for item in able)
    idlest = _without_slow([item for item in able if item.running == least])
    return idlest[turn % len(idlest)]


def rank(affinity: str, name: str) -> bytes:
    """Return the place of a server for a conversation, the least first (rendezvous hashing).

    A server that comes or goes moves those conversations alone that it gains or loses.
    """
    return blake2b(f"{affinity}\0{name}".encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _bound(candidates: Sequence[Candidate]) -> int:
    """Return the load from which a server counts as overloaded."""
    mean = (sum(item.running for item in candidates) + 1) / len(candidates)
    return max(_LIGHT, math.ceil(_FACTOR * mean))


def _without_slow(alike: list[Candidate]) -> list[Candidate]:
    fastest = min((item.latency for item in alike if item.latency is not None), default=None)
    if fastest is None:
        return alike
    return [item for item in alike if item.latency is None or item.latency <= _SLOW * fastest]
