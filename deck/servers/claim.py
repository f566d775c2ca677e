"""Which Deck the files of running servers belong to: a lock for each Deck, and a sweep of what dead ones left.

Knows the directory of sockets and the names in it. Does not know servers.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # no such locks on Windows
    fcntl = None  # type: ignore[assignment]

_LOCK, _UNNAMED = ".lock", ".new"
_SUFFIX = ".sock"
_OWNED = re.compile(r"-([0-9a-f]{8})[0-9a-f]{8}\.sock$")
_TEMPORARY = "deck-"
_MOST_RECORDS = 10_000
_MAKING = 60.0


class Claim:
    """One Deck's hold on a state directory; others may hold it too, each with its own files.

    Args:
        state: the state directory.

    Raises:
        OSError: its directory of sockets cannot be made or written.
    """

    def __init__(self, state: Path) -> None:
        self.id = secrets.token_hex(4)
        self.directory = state / "run"
        # Not `chmod`: a state directory that was there before stays as its owner wants it.
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory.mkdir(mode=0o700, exist_ok=True)
        self.directory.chmod(0o700)
        self._path = self.directory / f"{self.id}{_LOCK}"
        # Locked before it has its name, or another Deck's sweep could take it for one of the dead.
        unnamed = self._path.with_suffix(_UNNAMED)
        handle = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file: BinaryIO | None = os.fdopen(handle, "r+b", buffering=0)
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX)
            self._file.write(f"{os.getpid()}\n".encode())
            unnamed.rename(self._path)
        except OSError:
            unnamed.unlink(missing_ok=True)
            self._file.close()
            raise

    def socket_name(self, slug: str) -> str:
        """Return a new file name for a socket of the model of that slug."""
        return f"{slug}-{self.id}{secrets.token_hex(4)}{_SUFFIX}"

    def temporary(self) -> Path:
        """Return a new private directory outside the state directory, and note that it is ours."""
        place = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY}{self.id}-"))
        if self._file is not None:
            self._file.write(os.fsencode(place) + b"\n")
        return place

    def others(self) -> list[int]:
        """Return the process ids of other Decks that hold the same state directory now."""
        found = []
        for path in self._locks():
            with _opened(path) as file:
                if file is not None and not _is_free(file):
                    found.append(_owner(file))
        return found

    def sweep(self) -> int:
        """Remove what Decks that are gone left: sockets, directories, locks; return how many files that were."""
        removed = 0
        living = {self.id}
        for path in self._locks():
            with _opened(path) as file:
                if file is None:
                    continue
                if not _is_free(file):
                    living.add(path.stem)
                    continue
                removed += sum(map(_clear, _temporaries(file, path.stem)))
                removed += _remove(path)
        for path in self.directory.glob(f"*{_UNNAMED}"):
            with _opened(path) as file:
                if file is not None and _is_free(file) and _is_old(file):
                    removed += _remove(path)
        for path in self.directory.glob(f"*{_SUFFIX}"):
            owner = _OWNED.search(path.name)
            # A name without an owner is tried: on a socket of the dead nobody listens.
            if (owner is not None and owner[1] not in living) or (owner is None and _is_deserted(path)):
                removed += _remove(path)
        return removed

    def release(self) -> None:
        """Give it up; idempotent."""
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            self._file.close()
            self._file = None

    def _locks(self) -> list[Path]:
        return [path for path in sorted(self.directory.glob(f"*{_LOCK}")) if path != self._path]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO | None]:
    try:
        file = path.open("rb")
    except OSError:
        yield None
        return
    with file:
        yield file


def _is_free(file: BinaryIO) -> bool:
    """Tell whether nobody holds the lock of a file; if so, it is ours until the file is closed."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_old(file: BinaryIO) -> bool:
    """Tell whether a lock without its name cannot be one that a Deck is just making."""
    return time.time() - os.fstat(file.fileno()).st_mtime > _MAKING


def _owner(file: BinaryIO) -> int:
    with contextlib.suppress(ValueError):
        return int(file.readline(32))
    return 0


def _temporaries(file: BinaryIO, owner: str) -> list[Path]:
    """Return the directories that a dead Deck noted; only such as it can have made."""
    file.seek(0)
    lines = file.read(_MOST_RECORDS * 256).split(b"\n")[1:_MOST_RECORDS]
    places = [Path(os.fsdecode(line)) for line in lines if line]
    return [place for place in places if place.name.startswith(f"{_TEMPORARY}{owner}-") and not place.is_symlink()]


def _clear(place: Path) -> int:
    if not place.is_dir():
        return 0
    removed = sum(_remove(path) for path in place.glob(f"*{_SUFFIX}"))
    with contextlib.suppress(OSError):
        place.rmdir()
        removed += 1
    return removed


def _remove(path: Path) -> int:
    with contextlib.suppress(OSError):
        path.unlink()
        return 1
    return 0


def _is_deserted(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
