"""Server-sent events, sans-IO: byte slices of any size in, `data:` payloads out.

It cuts frames as bytes, so a character or a frame may be split anywhere. It knows no JSON and no events.
"""

from __future__ import annotations

LIMIT = 16 << 20

_BOM = b"\xef\xbb\xbf"
_PREFIX = b"data: "
_BETWEEN = b"\n\n" + _PREFIX


class SSEError(Exception):
    """A frame outgrew the limit; `payloads` are those that were complete before it."""

    def __init__(self, message: str, payloads: list[bytes]) -> None:
        super().__init__(message)
        self.payloads = payloads


class SSEDecoder:
    """Turn byte slices of any size into `data:` payloads.

    Lines may end in LF, CRLF or CR. Comments, `event:`, `id:` and `retry:` lines and frames without data are skipped.
    The `error: {…}` line of older llama-server builds comes out as the payload `{"error":{…}}`.

    Args:
        limit: the most bytes that one frame may have.
    """

    def __init__(self, *, limit: int = LIMIT) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._seen = 0
        self._skip_newline = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the payloads completed by `chunk`.

        Raises:
            SSEError: a frame is larger than the limit; the decoder is of no use afterwards.
        """
        # The usual case by far: whole frames of one line each.
        if (
            not self._buffer
            and chunk.startswith(_PREFIX)
            and chunk.endswith(b"\n\n")
            and b"\r" not in chunk
            and 8 < len(chunk) <= self._limit
        ):
            if chunk.find(b"\n") == len(chunk) - 2:
                self._skip_newline = False
                return [chunk[6:-2]]
            payloads = chunk[6:-2].split(_BETWEEN)
            if b"\n" not in b"".join(payloads) and b"" not in payloads:
                self._skip_newline = False
                return payloads
        return self._feed(chunk)

    def _feed(self, chunk: bytes) -> list[bytes]:
        self._buffer += self._normalised(chunk)
        if self._buffer.find(b"\n\n", max(self._seen - 1, 0)) < 0:
            self._seen = len(self._buffer)
            self._bound(self._seen - 2, [])  # its own two line ends may be among them
            return []
        *frames, rest = bytes(self._buffer).split(b"\n\n")
        self._buffer[:] = rest
        self._seen = len(rest)
        payloads: list[bytes] = []
        for frame in frames:
            self._bound(len(frame), payloads)
            _read(frame, payloads)
        self._bound(len(rest) - 2, payloads)
        return payloads

    def end(self) -> list[bytes]:
        """Return what stood in the frame that the end of the stream left without its blank line.

        It may be cut anywhere, also within a line. A JSON object tells by itself whether it is whole, and so does
        `[DONE]`; the caller drops what does not parse.
        """
        payloads: list[bytes] = []
        _read(bytes(self._buffer), payloads)
        self._buffer.clear()
        self._seen = 0
        return payloads

    def _normalised(self, chunk: bytes) -> bytes:
        """Return `chunk` with every line end as LF, also where a CRLF is cut in two."""
        if self._skip_newline and chunk:
            self._skip_newline = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" not in chunk:
            return chunk
        self._skip_newline = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _bound(self, size: int, payloads: list[bytes]) -> None:
        if size > self._limit:
            raise SSEError(f"a frame of more than {self._limit} bytes", payloads)


def _read(frame: bytes, payloads: list[bytes]) -> None:
    """Append the payloads of one frame whose lines end in LF."""
    if frame.startswith(_PREFIX) and b"\n" not in frame:
        data = frame[6:]
        if data:
            payloads.append(data)
        return
    lines: list[bytes] = []
    for line in frame.removeprefix(_BOM).split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" "))
        elif name == b"error" and value:
            payloads.append(b'{"error":' + value.removeprefix(b" ") + b"}")
    if any(lines):
        payloads.append(b"\n".join(lines))
