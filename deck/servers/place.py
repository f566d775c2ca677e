"""Where a server's socket, log and empty configuration lie: private directories under the state directory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

from deck.contracts import Address
from deck.servers.claim import Claim

# A socket's path holds 104 bytes on macOS, 108 on Linux.
_LONGEST_PATH = 100
_SUFFIX = ".sock"
_DIRECTORIES = ("logs", "empty", "run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One server's files; `release` removes what only a running server needs."""

    address: Address
    log: Path
    config_home: Path
    temporary: Path | None = None

    def release(self) -> None:
        """Remove the socket."""
        if self.address.uds:
            Path(self.address.uds).unlink(missing_ok=True)
        if self.temporary is not None:
            with contextlib.suppress(OSError):
                self.temporary.rmdir()


def make_place(name: str, state: Path, claim: Claim | None = None) -> Place:
    """Make the directories and choose a free address for the model of that name; stale sockets of it are removed.

    Args:
        name: the model's.
        state: the state directory.
        claim: whose the files are to be; None = nobody says.

    Raises:
        OSError: a directory cannot be made or is not private.
    """
    slug = file_name(name)
    # Not `private`: a directory that was there before, as /tmp, stays as its owner wants it.
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    logs, config_home, run = (state / item for item in _DIRECTORIES)
    log = private(logs) / f"{slug}.log"
    private(config_home)
    if not hasattr(socket, "AF_UNIX"):
        return Place(address=Address(port=free_port()), log=log, config_home=config_home)
    directory, temporary = private(run), None
    if claim is None:
        remove_stale(directory, slug)  # else whoever claimed has swept, and knows whose they are
    # Not the name alone: another Deck on the same state directory may serve the same model.
    uds = directory / (claim.socket_name(slug) if claim else f"{slug}-{secrets.token_hex(4)}{_SUFFIX}")
    if len(os.fsencode(uds)) >= _LONGEST_PATH:
        temporary = claim.temporary() if claim else Path(tempfile.mkdtemp(prefix="deck-"))
        uds = temporary / f"{secrets.token_hex(4)}{_SUFFIX}"
    return Place(address=Address(uds=str(uds)), log=log, config_home=config_home, temporary=temporary)


def no_directory(exc: OSError) -> str:
    """Return what `make_place` raised as a reason with its remedy."""
    return f"no private directory for its files: {exc.strerror}: {exc.filename}; choose another place with --state"


def state_fault(state: Path) -> str | None:
    """Return why servers could not have their files there, as far as it is plain without writing; None = they can."""
    for place in (state.absolute(), *(state.absolute() / name for name in _DIRECTORIES)):
        there = next(path for path in (place, *place.parents) if path.exists())
        if not there.is_dir():
            return f"{there} is no directory; choose another place with --state"
        if not os.access(there, os.W_OK | os.X_OK):
            return f"{there} cannot be written; choose another place with --state"
    return None


def file_name(name: str) -> str:
    """Return a file name for a model's name; different names give different ones."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:40]
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def private(directory: Path) -> Path:
    """Make a directory that only this user can enter.

    Raises:
        OSError: it cannot be made, or belongs to somebody else.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    return directory


def remove_stale(directory: Path, slug: str) -> None:
    """Remove the model's sockets on which nobody listens: a killed llama-server leaves its own behind."""
    for path in directory.glob(f"{slug}-*{_SUFFIX}"):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                continue


def listening(directory: Path) -> list[Path]:
    """Return the sockets in a directory on which a server listens."""
    found = []
    for path in sorted(directory.glob(f"*{_SUFFIX}")):
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(str(path))
            found.append(path)
    return found


def free_port() -> int:
    """Return a loopback port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
