"""What was read of earlier requests: clients send the same settings and tools again with each turn."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


class Memory(Generic[_Value]):
    """Remembers values by their keys, the latest `most` of those whose keys take up to `room` bytes together.

    What is remembered is shared: nobody may change it.
    """

    def __init__(self, *, most: int = 128, room: int = 4 << 20) -> None:
        self._most = most
        self._room = room
        self._known: dict[Hashable, tuple[_Value, int]] = {}
        self._taken = 0

    def get(self, key: Hashable) -> _Value | None:
        """Return what is remembered of a key."""
        found = self._known.get(key)
        return None if found is None else found[0]

    def keep(self, key: Hashable, value: _Value, size: int) -> None:
        """Remember a value whose key takes so many bytes; the oldest make room for it, if it is not too large."""
        if key in self._known or size > self._room // 4:
            return
        self._known[key] = value, size
        self._taken += size
        while len(self._known) > self._most or self._taken > self._room:
            self._taken -= self._known.pop(next(iter(self._known)))[1]
