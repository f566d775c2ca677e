"""What was read of earlier requests: clients send the same settings and tools again with each turn."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


# What a small object takes: one of the many that a few bytes of JSON stand for, and a note with its texts.
_OBJECT, _NOTE = 128, 512


class Memory(Generic[_Value]):
    """Remembers values by their keys: of those used last `most`, as far as they take up to `room` bytes by an estimate.

    What is remembered is shared: nobody may change it.
    """

    def __init__(self, *, most: int = 128, room: int = 8 << 20) -> None:
        self._most = most
        self._room = room
        self._known: dict[Hashable, tuple[_Value, int]] = {}
        self._taken = 0

    def get(self, key: Hashable) -> _Value | None:
        """Return what is remembered of a key."""
        found = self._known.pop(key, None)
        if found is None:
            return None
        self._known[key] = found  # the last one used is the last to go
        return found[0]

    def keep(self, key: Hashable, value: _Value, written: bytes, notes: int = 0) -> None:
        """Remember a value; others make room for it, unless it takes more than a quarter of all that there is.

        Args:
            key: of the value.
            value: what is remembered.
            written: the JSON that it was read from.
            notes: how many notes it holds.
        """
        size = len(written) + _NOTE * notes
        size += _OBJECT * (written.count(b",") + written.count(b"{") + written.count(b"["))
        if key in self._known or size > self._room // 4:
            return
        self._known[key] = value, size
        self._taken += size
        while len(self._known) > self._most or self._taken > self._room:
            self._taken -= self._known.pop(next(iter(self._known)))[1]
