"""The least terminal that a client draws on: it has a size, knows where its cursor is, and keeps what was drawn."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import struct
import termios
from typing import Self

# What programs ask a terminal, and what it says: the cursor's place, and what kind of terminal it is.
_ANSWERS = {b"\x1b[6n": b"\x1b[1;1R", b"\x1b[c": b"\x1b[?1;2c"}


class Terminal:
    """A pseudo-terminal; `inner` is the file that a program gets."""

    def __init__(self) -> None:
        self._outer, self.inner = pty.openpty()
        self._drawn = bytearray()
        fcntl.ioctl(self.inner, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))

    @property
    def drawn(self) -> str:
        """All that was drawn, with its control sequences."""
        return self._drawn.decode(errors="replace")

    def __enter__(self) -> Self:
        asyncio.get_running_loop().add_reader(self._outer, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._outer)
        os.close(self._outer)
        os.close(self.inner)

    def _read(self) -> None:
        data = os.read(self._outer, 1 << 16)
        for question, answer in _ANSWERS.items():
            for _ in range(data.count(question)):
                os.write(self._outer, answer)
        self._drawn += data
