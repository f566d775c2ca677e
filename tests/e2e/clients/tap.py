"""What goes between a client and Deck, byte for byte; and what a client wants of the world outside, in vain."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, Self

import httptools


@dataclass
class Exchange:
    """One request and its answer, as they stood on the wire.

    A client that has heard the end of a stream may leave before the end of its last chunk, which makes it no whole one.
    """

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    status: int
    answer_headers: dict[str, str]
    answer: bytes
    is_whole: bool

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class _Message:
    """What a parser of either side collects."""

    target: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    mark: str = ""
    is_whole: bool = False


class _Messages:
    """Reads all messages of one side of a connection."""

    def __init__(self, data: bytes, kind: type[Any]) -> None:
        self.found: list[_Message] = []
        self._now = _Message()
        self._parser = kind(self)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # A client that asks for a WebSocket and is refused stays at HTTP.
            self._now.is_whole = True

    def on_message_begin(self) -> None:
        self._now = _Message()

    def on_url(self, url: bytes) -> None:
        self._now.target += url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._now.headers[name.decode().lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.found.append(self._now)
        is_request = isinstance(self._parser, httptools.HttpRequestParser)
        self._now.mark = self._parser.get_method().decode() if is_request else str(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        self._now.body += body

    def on_message_complete(self) -> None:
        self._now.is_whole = True


class _Listener:
    """Listens on a free loopback port; ends its connections when it ends."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self.serve(reader, writer)
        except (OSError, EOFError):
            return
        finally:
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        raise NotImplementedError


class Tap(_Listener):
    """Passes bytes between a client and a port, changes none, and keeps all."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port
        self._connections: list[tuple[bytearray, bytearray]] = []

    def exchanges(self) -> list[Exchange]:
        """Return the exchanges whose answers have begun, those of one connection in a row."""
        found = []
        for asked, answered in self._connections:
            requests = _Messages(bytes(asked), httptools.HttpRequestParser).found
            answers = _Messages(bytes(answered), httptools.HttpResponseParser).found
            for request, answer in zip(requests, answers, strict=False):
                found.append(
                    Exchange(
                        method=request.mark,
                        target=request.target,
                        headers=request.headers,
                        body=request.body,
                        status=int(answer.mark),
                        answer_headers=answer.headers,
                        answer=answer.body,
                        is_whole=answer.is_whole,
                    )
                )
        return found

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked, answered = bytearray(), bytearray()
        self._connections.append((asked, answered))
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pass(reader, far_writer, asked))
                both.create_task(_pass(far_reader, writer, answered))
        except* OSError:
            pass
        finally:
            far_writer.close()


class Outside(_Listener):
    """A proxy that lets nothing through and remembers what was wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.wanted.append((await reader.readline()).decode("latin-1").strip())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray) -> None:
    while data := await reader.read(1 << 16):
        kept += data
        writer.write(data)
        await writer.drain()
    writer.write_eof()
