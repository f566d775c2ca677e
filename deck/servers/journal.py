"""What a server prints: a file of bounded size, the last lines in memory, and the line that tells why it ended.

Knows lines; knows no process.
"""

from __future__ import annotations

import logging
import os
import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

_log = logging.getLogger("deck.servers")

_FILE_BYTES = 5 * 1000 * 1000
_OLD_FILES = 2
_LINE_BYTES = 4096
_SHOWN = 300
# How far back a cause is looked for, however few lines an error shows.
_RECENT = 60

# llama-server says one cause in several lines: the first pattern that matches any line tells most.
_TELLING = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"invalid argument|error while handling argument|unrecognized arguments|out of memory|failed to allocate"
        r"|unknown model architecture|GGML_ASSERT|couldn't bind"
        r"|failed to download|cannot run|No such file|invalid magic|this GGUF file",
        r"error loading model|failed to open|Error: ",
        r"\berror\b|\bfailed\b|\bunable\b|\bcannot\b|\binvalid\b|\bfatal\b|exception|terminate called",
    )
)
_SAYS_NOTHING = re.compile(r"exiting due to|cleaning up|the log above says why", re.IGNORECASE)
_PREFIX = re.compile(r"^(?:[\d.:]+ +)?(?:[EWIDF] +)?")


class Journal:
    """Keep what comes in: `write` takes bytes of any slicing.

    Args:
        path: the file; older ones are `path.1` and `path.2`. Nothing is kept in files if it cannot be written.
        keep: how many last lines are shown.
        secret: text that is never kept.

    `written` counts the bytes that came in.
    """

    def __init__(self, path: Path, *, keep: int, secret: str | None = None, file_bytes: int = _FILE_BYTES) -> None:
        self.path = path
        self.written = 0
        self._shown = keep
        self._lines: deque[str] = deque(maxlen=max(keep, _RECENT))
        self._secret = secret.encode() if secret else None
        self._file_bytes = file_bytes
        self._rest = b""
        self._size = 0
        self._file: BinaryIO | None = self._open()

    @property
    def tail(self) -> Sequence[str]:
        """The last lines that are to be shown."""
        return self.recent[-self._shown :]

    @property
    def recent(self) -> Sequence[str]:
        """The last lines, at least as many as are shown."""
        return tuple(self._lines)

    @property
    def begun(self) -> str:
        """What was printed of a line that has not ended yet, as dots of progress."""
        return self._without_secret(self._rest).decode(errors="replace")

    def write(self, data: bytes) -> None:
        """Take what was printed."""
        self.written += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._keep(line)
        # What follows may be the rest of a secret that has begun: so much of a long line is not cut off yet.
        overlap = len(self._secret) - 1 if self._secret else 0
        self._rest = self._without_secret(self._rest)
        while len(self._rest) > _LINE_BYTES + overlap:
            self._keep(self._rest[:_LINE_BYTES])
            self._rest = self._rest[_LINE_BYTES:]

    def close(self) -> None:
        """Keep a last line without an end, and close the file."""
        if self._rest:
            self._keep(self._rest)
            self._rest = b""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _keep(self, line: bytes) -> None:
        line = self._without_secret(line).rstrip(b"\r")
        if line.strip():
            self._lines.append(line[:_LINE_BYTES].decode(errors="replace"))
        if self._file is None:
            return
        try:
            if self._size > self._file_bytes:
                self._rotate()
            if self._file is not None:  # the new one cannot be made
                self._file.write(line + b"\n")
                self._size += len(line) + 1
        except OSError as exc:
            self._give_up(exc)

    def _without_secret(self, line: bytes) -> bytes:
        return line.replace(self._secret, b"[key]") if self._secret is not None else line

    def _open(self) -> BinaryIO | None:
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._size = os.fstat(handle).st_size
        except OSError as exc:
            self._give_up(exc)
            return None
        return os.fdopen(handle, "ab", buffering=0)

    def _rotate(self) -> None:
        if self._file is not None:
            self._file.close()
        for number in range(_OLD_FILES, 0, -1):
            older = self.path.with_name(f"{self.path.name}.{number}")
            newer = self.path.with_name(f"{self.path.name}.{number - 1}") if number > 1 else self.path
            if newer.exists():
                newer.replace(older)
        self._file = self._open()

    def _give_up(self, exc: OSError) -> None:
        _log.warning("the log %s cannot be written, the server's output is not kept: %s", self.path, exc.strerror)
        self._file = None


def telling_line(lines: Sequence[str]) -> str | None:
    """Return the line that says most of why a server ended, without its log prefix; None = nothing was printed."""
    return error_line(lines) or (plain(lines[-1]) if lines else None)


def plain(line: str) -> str:
    """Return a line without its log prefix, not too long."""
    return _PREFIX.sub("", line.strip())[:_SHOWN]


def error_line(lines: Sequence[str]) -> str | None:
    """Return the line that speaks of an error, without its log prefix; None = none does."""
    for pattern in _TELLING:
        for line in reversed(lines):
            if pattern.search(line) and not _SAYS_NOTHING.search(line):
                return plain(line)
    return None
