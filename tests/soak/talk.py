"""One request over a socket of its own, and all that came back: cut answers are told from whole ones by their bytes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Got:
    """What one request got; times in seconds from its last byte sent.

    Args:
        status: None = no head came.
        is_whole: the answer came to the end that its framing announces.
        left: the client closed before that, on purpose.
        fault: what is wrong with the connection or the framing.
        first: until the first byte of the body.
        took: until the end.
    """

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_whole: bool = False
    left: bool = False
    fault: str = ""
    first: float | None = None
    took: float = 0.0


async def ask(
    port: int,
    path: str,
    content: bytes,
    headers: Mapping[str, str],
    *,
    leave_after: float | None = None,
    leave_at: int | None = None,
    limit: float = 120.0,
    method: str = "POST",
) -> Got:
    """Send one request and read its answer.

    Args:
        port: of a server on this machine.
        path: of the route.
        content: the body.
        headers: beside those of the framing.
        leave_after: seconds after which the client closes, whatever has come.
        leave_at: bytes of the body after which it closes.
        limit: seconds after which it gives up, which is a fault.
        method: of the request.
    """
    got = Got()
    began = time.monotonic()
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(limit) as patience:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
            writer.write(_head(method, path, content, headers) + content)
            if leave_after is not None:  # it leaves so long after it has asked
                await writer.drain()
                patience.reschedule(asyncio.get_running_loop().time() + leave_after)
            began = time.monotonic()
            await _read(reader, got, began, leave_at)
    except TimeoutError:
        got.left = leave_after is not None
        got.fault = "" if got.left else f"no end after {limit:g} s"
    except (OSError, EOFError, ValueError) as exc:
        got.fault = f"{type(exc).__name__}: {exc}"[:200]
    finally:
        got.took = time.monotonic() - began
        if writer is not None:
            writer.transport.abort() if got.left else writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    return got


def _head(method: str, path: str, content: bytes, headers: Mapping[str, str]) -> bytes:
    framing = {"host": "127.0.0.1", "content-length": str(len(content)), "connection": "close"}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in {**framing, **headers}.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def _read(reader: asyncio.StreamReader, got: Got, began: float, leave_at: int | None) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    got.status = int(head[0].split(" ")[1])
    pairs = (line.partition(":") for line in head[1:] if line)
    got.headers = {name.lower(): value.strip() for name, _, value in pairs}
    pieces: list[bytes] = []
    size = 0

    def take(piece: bytes) -> bool:
        nonlocal size
        got.first = time.monotonic() - began if got.first is None else got.first
        pieces.append(piece)
        size += len(piece)
        got.left = leave_at is not None and size >= leave_at
        return got.left

    try:
        if got.headers.get("transfer-encoding") == "chunked":
            got.is_whole = await _chunks(reader, take)
        else:
            take(await reader.readexactly(int(got.headers["content-length"])))
            got.is_whole, got.left = True, False
    finally:
        got.body = b"".join(pieces)


async def _chunks(reader: asyncio.StreamReader, take: object) -> bool:
    assert callable(take)
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        piece = await reader.readexactly(size + 2)
        if take(piece[:-2]):
            return False
    await reader.readexactly(2)
    return True
