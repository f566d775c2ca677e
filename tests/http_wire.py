"""The client's end of a connection, without a socket."""

from __future__ import annotations

import asyncio
from typing import Any


class Wire(asyncio.Transport):
    """The client's side: keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.got = b""
        self.is_closed = False
        self.is_reading = True

    def write(self, data: Any) -> None:
        assert not self.is_closed, "something after the end"
        self.got += bytes(data)

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True
