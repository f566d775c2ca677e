"""Prompt caches of a server's slots on disk while it is not loaded: saved before its end, restored at its start.

What was saved is given only to a server that is launched the same way, by the same program, from the same files, and
says that it is the same build; anything else removes it. Each save is used once. Nothing here fails a start or a stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import shutil
import stat
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import httpx

from deck.servers.place import file_name, private
from deck.servers.probe import Probe

_log = logging.getLogger("deck.servers")

_MANIFEST = "manifest.json"
# For all slots together, at a save and at a restore.
_TIME = 30.0
_OLDEST = 7 * 86400.0
_MOST_SLOTS = 256
_ENGINE = "xllamacpp"


class SlotFiles:
    """The saved slots of one model.

    Args:
        name: the model's id.
        state: the state directory.
        limit: most bytes that they may take.

    Raises:
        OSError: the directory cannot be made.
    """

    def __init__(self, name: str, state: Path, *, limit: int) -> None:
        self.directory = private(state / "slots") / file_name(name)
        private(self.directory)
        self._limit = limit

    async def save(self, probe: Probe, signature: str, slots: int) -> int:
        """Save what the slots hold and return how many tokens that were; too much of it is not kept."""
        saved: dict[int, int] = {}
        self.clear()
        try:
            if shutil.disk_usage(self.directory).free < self._limit:
                raise OSError(f"the disk has no room for {self._limit} bytes, see [server] save_limit")
            async with asyncio.timeout(_TIME):
                for number in range(min(slots, _MOST_SLOTS)):
                    tokens = await probe.slot(number, "save", _file(number), limit=_TIME)
                    if tokens and self._holds(_file(number)):
                        saved[number] = tokens
            manifest = json.dumps({"signature": signature, "slots": saved})
            (self.directory / _MANIFEST).write_text(manifest, encoding="utf-8")
        except (httpx.HTTPError, TimeoutError, OSError) as exc:
            _log.warning("the slots of %s are not saved: %s", self._name, str(exc) or type(exc).__name__)
            self.clear()
            return 0
        return sum(saved.values())

    async def restore(self, probe: Probe, signature: str) -> int:
        """Give the server what was saved of one like it, remove it, and return how many tokens that were."""
        kept = self._kept(signature)
        restored = 0
        try:
            async with asyncio.timeout(_TIME):
                for number in kept:
                    restored += await probe.slot(number, "restore", _file(number), limit=_TIME)
        except (httpx.HTTPError, TimeoutError) as exc:
            _log.warning("the slots of %s are not restored: %s", self._name, str(exc) or type(exc).__name__)
        finally:
            self.clear()
        return restored

    def clear(self) -> None:
        """Remove all that is saved."""
        with contextlib.suppress(OSError):
            for path in self.directory.iterdir():
                path.unlink()

    @property
    def _name(self) -> str:
        return self.directory.name

    def _holds(self, name: str) -> bool:
        """Keep a file only while all of them together stay below the limit."""
        total = sum(path.stat().st_size for path in self.directory.iterdir())
        if total > self._limit:
            (self.directory / name).unlink(missing_ok=True)
            _log.warning("a slot of %s is not kept: with it they take more than [server] save_limit", self._name)
            return False
        return True

    def _kept(self, signature: str) -> list[int]:
        """Return the slots that were saved of a server with this signature."""
        try:
            found = json.loads((self.directory / _MANIFEST).read_text(encoding="utf-8"))
            return sorted(map(int, found["slots"])) if found["signature"] == signature else []
        except (OSError, ValueError, KeyError, TypeError):
            return []


def signature_of(argv: Sequence[str], directory: Path) -> str:
    """Return what tells a launch from any other: program and arguments, and size and time of each file among them.

    Args:
        argv: all of it, but for what differs from start to start.
        directory: where relative paths in it lie.
    """
    files: dict[str, object] = {}
    for item in argv:
        with contextlib.suppress(OSError, ValueError):
            found = (directory / item).stat()
            if stat.S_ISREG(found.st_mode):
                files[item] = (found.st_size, found.st_mtime_ns)
    with contextlib.suppress(PackageNotFoundError):
        files[_ENGINE] = version(_ENGINE)
    text = json.dumps([list(argv), files], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def remove_old(state: Path, now: float) -> None:
    """Remove saved slots that nobody has come back for in a week."""
    root = state / "slots"
    if not root.is_dir():
        return
    for directory in root.iterdir():
        with contextlib.suppress(OSError):
            if directory.is_dir() and now - directory.stat().st_mtime > _OLDEST:
                shutil.rmtree(directory, ignore_errors=True)


def _file(number: int) -> str:
    return f"slot-{number}.bin"
