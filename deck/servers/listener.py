"""Whose a listening port is. Reads `/proc`, so that elsewhere than on Linux nothing is known.

Knows ports and processes; does not know what is done about a stranger.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_LISTENS = "0A"
# 127.0.0.1 and any address as the kernel writes them, also those of sockets that take both kinds.
_LOOPBACK = f"{int.from_bytes(bytes((127, 0, 0, 1)), sys.byteorder):08X}"
_MAPPED = f"{int.from_bytes(bytes((0, 0, 255, 255)), sys.byteorder):08X}"
_LOCAL = frozenset({_LOOPBACK, "0" * 8, "0" * 32, "0" * 16 + _MAPPED + _LOOPBACK})


def listens(port: int, leader: int) -> bool | None:
    """Tell whether the process group or session of a leader listens where 127.0.0.1 reaches it.

    Args:
        port: of TCP.
        leader: the process that leads both.

    Returns:
        None where the system does not tell.
    """
    sockets = _sockets(port)
    if sockets is None:
        return None
    return bool(sockets) and any(not sockets.isdisjoint(_held(pid)) for pid in _members(leader))


def _sockets(port: int) -> set[str] | None:
    """Return what links to the sockets that listen there read as; None = nothing is known of any."""
    found: set[str] = set()
    is_known = False
    for name in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / name).read_text(encoding="ascii").splitlines()[1:]
        except (OSError, ValueError):
            continue
        is_known = True
        for fields in map(str.split, lines):
            address, _, number = fields[1].partition(":")
            if fields[3] == _LISTENS and address in _LOCAL and int(number, 16) == port:
                found.add(f"socket:[{fields[9]}]")
    return found if is_known else None


def _members(leader: int) -> Iterator[int]:
    for place in _PROC.iterdir():
        if not place.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name may hold spaces and brackets; group and session are the 5th and 6th field.
            fields = (place / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if str(leader) in fields[2:4]:
                yield int(place.name)


def _held(pid: int) -> Iterator[str]:
    """Yield what the process's descriptors link to."""
    with contextlib.suppress(OSError):
        for name in os.listdir(_PROC / str(pid) / "fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(_PROC / str(pid) / "fd" / name)
