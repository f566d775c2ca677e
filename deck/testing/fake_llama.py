"""A llama-server without a model, that fails on demand: for tests of Deck and of plugins.

In a test, `async with FakeLlama([Reply(...)]) as fake:` and talk to `fake.url` or `fake.socket`. As a process,
`python -m deck.testing.fake_llama -m any.gguf --host x.sock -c 4096` takes llama-server's own flags. It judges no
request; standard library only; never waits for time, only for events.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from deck.testing.frames import content, done, finish, role, text, text_end, usage
from deck.testing.observed import model_of, props_of

CHAT = "/v1/chat/completions"
_TEXT = "/v1/completions"
_TURNS = 16
_PHRASES = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 503: "Service Unavailable"}


class Act(enum.Enum):
    """What a reply may do besides sending bytes."""

    CLOSE = "end the connection without ending the reply"
    RESET = "reset the connection"
    STALL = "send nothing more until the client leaves"
    EXIT = "end the process at once, as a crash does"


Step = bytes | asyncio.Event | Act


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What one generating request gets.

    Args:
        steps: frames to send, events to wait for, or acts, in this order; a reply that runs out of them ends well.
        status: of the reply.
        headers: beside or instead of the usual ones.
        slice_at: send at most so many bytes at a time; 0 sends every frame whole.
        before_headers: hold back even the status until this is set, as llama-server does while it has no slot.
    """

    steps: Sequence[Step] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    slice_at: int = 0
    before_headers: asyncio.Event | None = None


@dataclass(slots=True)
class Received:
    """One request; `left` is set once its connection is gone, `is_cancelled` if that was before the reply's end."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    left: asyncio.Event
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    is_cancelled: bool = False

    def json(self) -> Any:
        """Return the decoded body."""
        return json.loads(self.body)


Script = Sequence[Reply] | Callable[[Received], Reply]


def say(*texts: str, reason: str = "stop", prompt: int = 10) -> Reply:
    """Build the reply that says `texts` and ends well."""
    frames = (role(), *(content(text) for text in texts), finish(reason), usage(prompt, len(texts)), done())
    return Reply(steps=frames)


def say_text(*texts: str, reason: str = "stop", prompt: int = 10) -> Reply:
    """Build the reply to a raw prompt that says `texts` and ends well."""
    return Reply(steps=(*(text(item) for item in texts), text_end(prompt, len(texts), reason), done()))


def refuse(status: int, message: str, label: str = "server_error", **extra: Any) -> Reply:
    """Build the reply that is an error envelope with a status."""
    body = json.dumps({"error": {"code": status, "message": message, "type": label, **extra}}).encode()
    return Reply(status=status, steps=(body,), headers={"content-type": "application/json; charset=utf-8"})


class FakeLlama:
    """Serve scripted replies to chat requests and raw prompts, and the usual answers to the rest.

    Args:
        script: the replies in the order of the requests, the last for all that follow; or a function.
        host: address to listen on, or a path that ends in `.sock`.
        port: 0 takes a free one.
        unhealthy: how many times `/health` answers 503 before it is ready.
        api_key: asked for on all but `/health`; None asks for none.
        alias: the model's name.
        n_ctx: of one slot.
        slots: how many there are.
        has_dots: a dot is printed for each such 503, as for a percent of a load.
        poison: it says so and ends its process where a body holds this.
        routes: answers to further paths: JSON, as `{"/tokenize": {"tokens": [1]}}`, a `Reply`, or functions that make
            either.
    """

    def __init__(
        self,
        script: Script = (),
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        unhealthy: int = 0,
        api_key: str | None = None,
        alias: str = "fake",
        n_ctx: int = 4096,
        slots: int = 1,
        has_dots: bool = False,
        poison: bytes | None = None,
        routes: Mapping[str, Any] | None = None,
    ) -> None:
        self.requests: list[Received] = []
        self.unhealthy = unhealthy
        self.host, self.port = host, port
        self._script = script
        self._served = 0
        self._has_dots = has_dots
        self._poison = poison
        self._api_key = api_key
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._arrived = asyncio.Condition()
        self._routes: dict[str, Any] = {
            "/props": props_of(alias, n_ctx, slots),
            "/v1/models": {"object": "list", "data": [model_of(alias, n_ctx)]},
            **(routes or {}),
        }

    @property
    def socket(self) -> Path | None:
        """The UNIX socket, if it listens on one."""
        return Path(self.host) if self.host.endswith(".sock") else None

    @property
    def url(self) -> str:
        """Where it listens; for a UNIX socket, a URL whose host means nothing."""
        return "http://localhost" if self.socket else f"http://{self.host}:{self.port}"

    @property
    def chats(self) -> list[Received]:
        """The chat requests among all."""
        return [request for request in self.requests if request.path == CHAT]

    @property
    def asked(self) -> list[Received]:
        """The requests that generate: chats and raw prompts."""
        return [request for request in self.requests if request.path in (CHAT, _TEXT)]

    async def received(self, count: int = 1) -> Received:
        """Wait until `count` generating requests came, and return the last of them."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.asked) >= count)
        return self.asked[count - 1]

    async def got(self, path: str, count: int = 1) -> Received:
        """Wait until `count` requests of a path came, and return the last of them."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.of(path)) >= count)
        return self.of(path)[count - 1]

    def of(self, path: str) -> list[Received]:
        """The requests of a path."""
        return [request for request in self.requests if request.path == path]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Begin to listen."""
        loop = asyncio.get_running_loop()
        if self.socket:
            self._server = await loop.create_unix_server(self._protocol, self.host)
            return
        self._server = await loop.create_server(self._protocol, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Cut every connection and stop listening."""
        if self._server is not None:
            loop = asyncio.get_running_loop()
            for listener in self._server.sockets:
                with contextlib.suppress(Exception):
                    loop.remove_reader(listener.fileno())
            for _ in range(_TURNS):  # asyncio loses a connection that is being taken while its server is closed
                await asyncio.sleep(0)
            self._server.close()
        for _ in range(_TURNS):  # a connection that was just accepted is here some turns of the loop later
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await asyncio.sleep(0)
        if self.socket:
            self.socket.unlink(missing_ok=True)

    def _protocol(self) -> _Protocol:
        return _Protocol(self._connected)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer, gone))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        # A task that is cancelled before its first step never comes to its own end.
        task.add_done_callback(lambda done: writer.transport.abort() if done.cancelled() else writer.close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event) -> None:
        try:
            while (request := await _read(reader, gone)) is not None:
                self.requests.append(request)
                async with self._arrived:
                    self._arrived.notify_all()
                try:
                    await self._answer(request, writer)
                except (_Gone, OSError):
                    request.is_cancelled = True
                    return
                request.answered.set()
        except (OSError, EOFError):
            return
        finally:
            writer.close()

    async def _answer(self, request: Received, writer: asyncio.StreamWriter) -> None:
        if self._poison is not None and self._poison in request.body:
            print(f"poisoned by {request.path}", file=sys.stderr, flush=True)
            os._exit(134)
        if request.path == "/health":
            status = 503 if self.unhealthy > 0 else 200
            self.unhealthy = max(self.unhealthy - 1, 0)
            if status == 503 and self._has_dots:
                print(".", end="", file=sys.stderr, flush=True)
            await _send_json(writer, status, _LOADING if status == 503 else {"status": "ok"})
        elif self._api_key and request.headers.get("authorization") != f"Bearer {self._api_key}":
            await _send_json(writer, 401, _error(401, "Invalid API Key", "authentication_error"))
        elif request.path in (CHAT, _TEXT) and request.method == "POST":
            await _reply(self._next(request), request, writer)
        elif request.path in self._routes:
            answer = self._routes[request.path]
            answer = answer(request) if callable(answer) else answer
            if isinstance(answer, Reply):
                await _reply(answer, request, writer)
            else:
                await _send_json(writer, 200, answer)
        else:
            await _send_json(writer, 404, _error(404, "File Not Found", "not_found_error"))

    def _next(self, request: Received) -> Reply:
        if callable(self._script):
            return self._script(request)
        number, self._served = self._served, self._served + 1
        if not self._script:
            return say("Hello", "!") if request.path == CHAT else say_text("Hello", "!")
        return self._script[min(number, len(self._script) - 1)]


class _Gone(Exception):
    """The client left, or was made to leave, before its reply ended."""


class _Protocol(asyncio.StreamReaderProtocol):
    """A stream protocol that tells at once when the peer is gone, also while nobody reads."""

    def __init__(self, connected: Callable[[asyncio.StreamReader, asyncio.StreamWriter, asyncio.Event], None]) -> None:
        self._gone = gone = asyncio.Event()
        super().__init__(asyncio.StreamReader(), lambda reader, writer: connected(reader, writer, gone))

    def eof_received(self) -> bool:
        self._gone.set()
        super().eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        super().connection_lost(exc)


async def _read(reader: asyncio.StreamReader, gone: asyncio.Event) -> Received | None:
    """Return the next request of a connection; None when there is none."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").rstrip().split("\r\n")
    method, target, _ = first.split(" ", 2)
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = b"".join([part async for part in _chunks(reader)])
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(method, target.partition("?")[0], headers, body, gone)


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readline()).partition(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readline()


async def _reply(reply: Reply, request: Received, writer: asyncio.StreamWriter) -> None:
    """Send a reply in chunked encoding, so that its end and its being cut differ on the wire."""
    if reply.before_headers is not None:
        await _unless_gone(reply.before_headers.wait(), request.left)
    headers = {"content-type": "text/event-stream", "transfer-encoding": "chunked", **reply.headers}
    writer.write(_head(reply.status, headers))
    for step in reply.steps:
        if isinstance(step, bytes):
            await _send(writer, request, step, reply.slice_at or len(step))
        elif isinstance(step, asyncio.Event):
            await _unless_gone(step.wait(), request.left)
        else:
            await _ACTS[step](writer, request)
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _send(writer: asyncio.StreamWriter, request: Received, data: bytes, step: int) -> None:
    for start in range(0, len(data), step or 1):
        piece = data[start : start + step]
        if request.left.is_set():
            raise _Gone
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await writer.drain()
        if step < len(data):
            await asyncio.sleep(0)  # a turn of the loop between slices, so that they arrive apart


async def _unless_gone(wait: Awaitable[object], gone: asyncio.Event) -> None:
    """Wait, but no longer than the client does."""
    tasks = [asyncio.ensure_future(wait), asyncio.ensure_future(gone.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    if gone.is_set():
        raise _Gone


async def _close(writer: asyncio.StreamWriter, request: Received) -> None:
    await writer.drain()
    raise _Gone


async def _reset(writer: asyncio.StreamWriter, request: Received) -> None:
    await writer.drain()
    peer = writer.get_extra_info("socket")
    # Without lingering a close is a reset, which a UNIX socket does not know: there it is a plain close.
    with contextlib.suppress(OSError):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    raise _Gone


async def _stall(writer: asyncio.StreamWriter, request: Received) -> None:
    await writer.drain()
    await request.left.wait()
    raise _Gone


async def _exit(writer: asyncio.StreamWriter, request: Received) -> None:
    await writer.drain()
    os._exit(134)


_ACTS: Mapping[Act, Callable[[asyncio.StreamWriter, Received], Awaitable[None]]] = {
    Act.CLOSE: _close,
    Act.RESET: _reset,
    Act.STALL: _stall,
    Act.EXIT: _exit,
}


async def _send_json(writer: asyncio.StreamWriter, status: int, value: object) -> None:
    body = json.dumps(value).encode()
    headers = {"content-type": "application/json; charset=utf-8", "content-length": str(len(body))}
    writer.write(_head(status, headers) + body)
    await writer.drain()


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, 'Status')}", "server: llama.cpp"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _error(code: int, message: str, label: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "type": label}}


_LOADING = _error(503, "Loading model", "unavailable_error")


if __name__ == "__main__":
    from deck.testing.fake_command import main

    raise SystemExit(main())
