"""One Deck under test with its profiles, and what the kernel says of it and of the processes that it leaves."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

import httpx
from e2e.live import LiveDeck, children, is_alive, live_deck, until
from engine_support import MODEL
from scripted_llama import script

_PAGE = os.sysconf("SC_PAGE_SIZE")
# Samples of the first tenth are of a Deck that still warms up.
_WARM = 10
# What may grow without being a leak: MiB of memory; descriptors, threads and tasks.
_SLACK = {"MiB": 8.0, "descriptors": 24.0, "threads": 4.0, "tasks": 24.0}
_SHARE = 0.10


@dataclass(slots=True)
class Levels:
    """What Deck's process held, second by second, by name."""

    samples: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _SLACK})

    def add(self, **found: float) -> None:
        """Take one sample."""
        for name, value in found.items():
            self.samples[name].append(value)

    def course(self) -> str:
        """Return the memory over time, in twelve steps."""
        samples = self.samples["MiB"]
        step = max(len(samples) // 12, 1)
        return ", ".join(f"{value:.0f}" for value in samples[::step][:13])

    def faults(self) -> list[str]:
        """Return which levels did not hold."""
        return [f"{name}: {first:.1f}, then {last:.1f}" for name, first, last, _, holds in self.rows() if not holds]

    def rows(self) -> list[tuple[str, float, float, float, bool]]:
        """Return name, first third, last third, most, and whether the level held."""
        found = []
        for name, samples in self.samples.items():
            kept = samples[len(samples) // _WARM :]
            third = max(len(kept) // 3, 1)
            level = mean if name == "MiB" else median
            first, last = level(kept[:third]), level(kept[-third:])
            found.append((name, first, last, max(kept), last <= first * (1 + _SHARE) + _SLACK[name]))
        return found


@dataclass(slots=True)
class House:
    """A Deck with the ids of its scripted models and of those on the real engine."""

    deck: LiveDeck
    profiles: dict[str, str]
    levels: Levels = field(default_factory=Levels)

    @property
    def directory(self) -> Path:
        """Where its profiles lie."""
        return self.deck.state.parent / "profiles"

    def engines(self) -> list[int]:
        """Return the servers that run."""
        return [pid for pid in children(self.deck.process.pid) if is_alive(pid)]

    def sample(self, tasks: int) -> None:
        """Note what Deck holds now."""
        pid = self.deck.process.pid
        with contextlib.suppress(OSError):
            self.levels.add(
                MiB=resident(pid),
                descriptors=len(os.listdir(f"/proc/{pid}/fd")),
                threads=len(os.listdir(f"/proc/{pid}/task")),
                tasks=tasks,
            )

    def wait_for_log(self, exchanges: int) -> None:
        """Wait a moment for so many lines of exchanges, which are written a little later."""
        with contextlib.suppress(AssertionError):
            until(lambda: self.deck.logged().count(" event=exchange ") >= exchanges, 5, "the log")

    def left(self) -> list[int]:
        """Return the processes but Deck whose command line names the state directory, whoever their parent is."""
        mark, found = str(self.deck.state).encode(), []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                pid = int(path.parent.name)
                if mark in path.read_bytes() and pid != self.deck.process.pid and is_alive(pid):
                    found.append(pid)
        return found


def resident(pid: int) -> float:
    """Return the MiB that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE / (1 << 20)


def scripted(directory: Path, name: str, *arguments: str, **keys: Any) -> str:
    """Return the profile of a llama-server that does what it is told; it counts as 1000 bytes of memory."""
    directory.mkdir(parents=True, exist_ok=True)
    model = directory / "any.gguf"
    model.write_bytes(b"GGUF and nothing else")
    settings = {"model": str(model), "binary": str(script(directory, *arguments)), "memory": 1000, **keys}
    return "\n".join([f'id = "{name}"', "[server]", *(f"{key} = {json.dumps(item)}" for key, item in settings.items())])


def engine(name: str, **keys: Any) -> str:
    """Return the profile of the shipped model on the real engine."""
    settings = {"model": str(MODEL), "ctx_size": 4096, "args": ["--threads", "1"], "memory": 1000, **keys}
    return "\n".join([f'id = "{name}"', "[server]", *(f"{key} = {json.dumps(item)}" for key, item in settings.items())])


@contextlib.contextmanager
def house(tmp: Path, profiles: dict[str, str], config: str) -> Iterator[House]:
    """Run a Deck with these profiles."""
    tmp.mkdir(parents=True, exist_ok=True)
    (tmp / "deck.toml").write_text(config, encoding="utf-8")
    with live_deck(tmp, "--config", str(tmp / "deck.toml"), profiles=profiles) as deck:
        yield House(deck, profiles)


def admin(deck: LiveDeck) -> httpx.AsyncClient:
    """Return a client for the operators' routes."""
    return httpx.AsyncClient(base_url=deck.base, headers=deck.headers, timeout=60, verify=False)
