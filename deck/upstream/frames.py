"""Server-sent events cut into whole frames and passed on as they were written, sans-IO.

Where `deck.upstream.sse` reads what frames say, this keeps them: names, ids and comments go on to the client.
"""

from __future__ import annotations

import re

from deck.upstream.sse import LIMIT, SSEError

_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE = re.compile(rb"\r\n|\n|\r")


class FrameCutter:
    """Turn byte slices of any size into frames, each with the blank line that ends it.

    Args:
        limit: the most bytes that one frame may have.
    """

    def __init__(self, *, limit: int = LIMIT) -> None:
        self._limit = limit
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the frames completed by `chunk`.

        Raises:
            SSEError: a frame is larger than the limit; the cutter is of no use afterwards.
        """
        seen = max(len(self._rest) - 3, 0)
        data = self._rest + chunk
        frames: list[bytes] = []
        at = 0
        while (end := _END.search(data, max(at, seen))) is not None:
            frames.append(data[at : end.end()])
            at = end.end()
        self._rest = data[at:]
        if len(self._rest) > self._limit:
            raise SSEError(f"a frame of more than {self._limit} bytes", [])
        return frames

    def end(self) -> list[bytes]:
        """Return what the end of the stream left without its blank line, with one; it may be cut anywhere."""
        rest, self._rest = self._rest, b""
        return [rest + b"\n\n"] if rest.strip() else []


def payload_of(frame: bytes) -> bytes:
    """Return what the `data:` lines of a frame say together, b"" if there is none."""
    if frame.startswith(b"data: ") and frame.count(b"\n") == 2 and b"\r" not in frame:
        return frame[6:-2]
    lines = [line[5:].removeprefix(b" ") for line in _LINE.split(frame) if line.startswith(b"data:")]
    return b"\n".join(lines)


def with_payload(frame: bytes, data: bytes) -> bytes:
    """Return a frame that says `data`, a text of one line, in the place of its own."""
    others = [line for line in _LINE.split(frame) if line and not line.startswith(b"data:")]
    return b"\n".join([*others, b"data: " + data, b"", b""])
