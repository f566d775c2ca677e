"""What the kernel says about a process and its children: CPU, memory; and about the whole machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_TICKS = os.sysconf("SC_CLK_TCK")
_LOST = 0.05  # seconds by which the two clocks may differ before ended threads explain it


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU seconds: `exact` forgets threads that have ended, `coarse` counts in steps of 10 ms."""

    exact: float = 0.0
    coarse: float = 0.0

    def since(self, before: Self) -> float:
        """Return the seconds used since `before`."""
        exact, coarse = self.exact - before.exact, self.coarse - before.coarse
        return coarse if coarse - exact > _LOST else exact


def cpu(pid: int) -> Cpu:
    """Return what a process tree has used."""
    exact = coarse = 0
    for process in tree(pid):
        with contextlib.suppress(OSError):
            fields = _text(f"/proc/{process}/stat").rsplit(")", 1)[1].split()
            coarse += int(fields[11]) + int(fields[12])
            for thread in os.listdir(f"/proc/{process}/task"):
                with contextlib.suppress(OSError):
                    exact += int(_text(f"/proc/{process}/task/{thread}/schedstat").split()[0])
    return Cpu(exact / 1e9, coarse / _TICKS)


def memory(pid: int, kind: str = "Pss") -> float:
    """Return the megabytes (MiB) of a process tree: `Pss` shares pages among their users, `Rss` counts them whole."""
    total = 0
    for process in tree(pid):
        with contextlib.suppress(OSError):
            for line in _text(f"/proc/{process}/smaps_rollup").splitlines():
                if line.startswith(f"{kind}:"):
                    total += int(line.split()[1])
    return total / 1024


def machine_busy() -> float:
    """Return the CPU seconds that the whole machine was busy since it booted."""
    fields = [int(item) for item in _text("/proc/stat").splitlines()[0].split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) / _TICKS


def tree(pid: int) -> Iterator[int]:
    """Yield a process and all that descend from it."""
    todo = [pid]
    while todo:
        process = todo.pop()
        yield process
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{process}/task"):
                todo += [int(item) for item in _text(f"/proc/{process}/task/{thread}/children").split()]


def _text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")
