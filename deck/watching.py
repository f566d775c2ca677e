"""Looks now and then whether files of profiles have changed, and has them read anew when they have come to rest.

It compares names, sizes and times of the `*.toml` files; their content is for whoever reloads.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

_log = logging.getLogger("deck.watching")
# More files than this are no directory of profiles; those beyond are not watched.
_MOST_FILES = 10_000

Print = frozenset[tuple[str, int, int]]


def fingerprint(directories: Sequence[Path]) -> Print:
    """Return what tells one state of the files of profiles from another."""
    found: set[tuple[str, int, int]] = set()
    for directory in directories:
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if len(found) >= _MOST_FILES:
                        return frozenset(found)
                    if entry.name.endswith(".toml") and not entry.name.startswith("."):
                        status = entry.stat()
                        found.add((entry.path, status.st_size, status.st_mtime_ns))
        except OSError:
            continue  # as long as it is not there it holds nothing
    return frozenset(found)


class Rest:
    """Tells when something that changes has come to rest: two looks in a row that differ from what is in force."""

    def __init__(self, now: Print) -> None:
        self._in_force = self._last = now

    def has_settled(self, now: Print) -> bool:
        """Take a look, and tell whether it is time to act; then what was seen is in force, whatever comes of it."""
        is_still = now == self._last
        self._last = now
        if now == self._in_force or not is_still:
            return False
        self._in_force = now
        return True


async def watch(directories: Sequence[Path], known: Print, every: float, reload: Callable[[], None]) -> None:
    """Look every so many seconds, for ever, and call `reload` when what changed has come to rest.

    Args:
        directories: where the profiles lie.
        known: their state that is in force.
        every: seconds between two looks; changes are acted on after one to two of them.
        reload: reads the profiles; it must not raise.
    """
    rest = Rest(known)
    while True:
        await asyncio.sleep(every)
        if rest.has_settled(await asyncio.to_thread(fingerprint, directories)):
            _log.info("files of profiles have changed")
            reload()
