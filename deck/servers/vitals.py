"""Signs of life of a process: processor time, memory, input and output; and when there was the last.

Reads `/proc`, so that elsewhere than on Linux nothing is known. Does not decide what is done about a lack of them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

# Of the time between two looks, what a process that only answers whether it is well stays below.
_BUSY = 0.02
_GROWTH = 64 << 10
_TRANSFER = 4 << 10
# Between two looks that are further apart Deck itself stood still, and the load may have as well.
_GAP = 10.0
_MOST_PROCESSES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """What a process and what it started have used: seconds of processor, bytes held, bytes read and written."""

    cpu: float
    resident: int
    transferred: int


def vitals(pid: int) -> Vitals | None:
    """Return the signs of life of a process with its descendants, None where the system does not tell."""
    found = [_of_one(each) for each in _family(pid)]
    known = [item for item in found if item is not None]
    if not known:
        return None
    return Vitals(
        cpu=sum(item.cpu for item in known),
        resident=sum(item.resident for item in known),
        transferred=sum(item.transferred for item in known),
    )


def _family(pid: int) -> list[int]:
    found: list[int] = []
    rest = [pid]
    while rest and len(found) < _MOST_PROCESSES:
        each = rest.pop()
        found.append(each)
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                rest += [int(child) for child in task.read_text(encoding="ascii").split()]
            except (OSError, ValueError):
                continue
    return found


def _of_one(pid: int) -> Vitals | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        # The name may hold spaces and brackets; user and system time are the 14th and 15th field, pages the 24th.
        fields = text.rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        pages = int(fields[21])
    except (OSError, ValueError, IndexError):
        return None
    return Vitals(
        cpu=ticks / os.sysconf("SC_CLK_TCK"),
        resident=pages * os.sysconf("SC_PAGE_SIZE"),
        transferred=_transferred(pid),
    )


def _transferred(pid: int) -> int:
    """Return the bytes of files that were read and written; those of sockets do not count."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
        counts = dict(line.split(": ") for line in lines)
        return int(counts["rchar"]) + int(counts["wchar"]) + int(counts["read_bytes"])
    except (OSError, ValueError, KeyError):
        return 0


class LoadPulse:
    """How long a load has shown no sign of life: nothing printed, no processor time, no growth, no file read.

    Args:
        now: when it began, in seconds of any clock.
    """

    def __init__(self, now: float) -> None:
        self._alive = self._looked = now
        self._seen: Vitals | None = None
        self._written = 0

    def silent(self, now: float, seen: Vitals | None, written: int) -> float:
        """Take another look and return the seconds since the last sign of life; 0 while nothing can be known.

        Args:
            now: in seconds.
            seen: what the process has used, None = unknown.
            written: bytes that it has printed.
        """
        before, self._seen = self._seen, seen
        elapsed, self._looked = now - self._looked, now
        was_written, self._written = written != self._written, written
        if elapsed > _GAP or was_written or _has_moved(before, seen, elapsed):
            self._alive = now
        return now - self._alive


def _has_moved(before: Vitals | None, seen: Vitals | None, elapsed: float) -> bool:
    if before is None or seen is None:
        return True
    return (
        seen.cpu - before.cpu > elapsed * _BUSY
        or seen.resident - before.resident > _GROWTH
        or seen.transferred - before.transferred > _TRANSFER
    )
