"""A web server on loopback whose every byte a test decides: for what Deck fetches."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(64))
GIF = b"GIF89a" + bytes(16)


def respond(
    body: bytes = PNG, kind: str = "image/png", status: str = "200 OK", length: int | None = None, extra: str = ""
) -> bytes:
    """Return a whole response; `length` is what it claims to be, -1 = nothing said, the end is the connection's."""
    size = len(body) if length is None else length
    lines = [f"HTTP/1.1 {status}", *([f"content-type: {kind}"] if kind else [])]
    lines += [f"content-length: {size}"] if size >= 0 else []
    return "\r\n".join([*lines, "connection: close", *(extra.splitlines()), "", ""]).encode() + body


def listener() -> socket.socket:
    """Return a socket bound to a free port of loopback, before any loop runs."""
    return socket.create_server(("127.0.0.1", 0))


@dataclass
class Site:
    """Answers every GET with what `pages` has for its path, or the bytes of `default`; None = stalls."""

    port: int
    pages: dict[str, bytes | None] = field(default_factory=dict)
    default: bytes | None = field(default_factory=respond)
    heads: list[str] = field(default_factory=list)
    running: int = 0
    most_at_once: int = 0
    came: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    stalled_after: bytes = b""

    @property
    def paths(self) -> list[str]:
        return [head.split(" ")[1] for head in self.heads]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            self.heads.append(head)
            self.came.set()
            page = self.pages.get(head.split(" ")[1], self.default)
            if page is None:
                writer.write(self.stalled_after)
                await writer.drain()
                await reader.read()
                self.left.set()
            else:
                await asyncio.sleep(0)  # a turn of the loop, in which others may come
                writer.write(page)
                await writer.drain()
        except (OSError, EOFError):
            pass
        finally:
            self.running -= 1
            writer.close()


@contextlib.asynccontextmanager
async def site(sock: socket.socket | None = None, tls: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    """Serve until the block ends."""
    sock = sock or listener()
    found = Site(sock.getsockname()[1])
    server = await asyncio.start_server(found.serve, sock=sock, ssl=tls)
    try:
        yield found
    finally:
        server.close()
