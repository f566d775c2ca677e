"""One client connection: HTTP/1.1 over httptools, with a bound on what it holds before Deck is asked.

Knows bytes and heads, and which request is answered next; a `Turn` is one request and its answer. Uvicorn makes the
connections and stops them. Neither httptools nor uvicorn limits the size of a head, a trailer or a chunk's extension,
so a client without a token could fill the memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import urllib.parse
from collections import deque
from typing import Any, cast

import httptools
from uvicorn import Config
from uvicorn.server import ServerState

from deck import json
from deck.http import Scope, new_request_id
from deck.outbox import PIECES, outbox_of
from deck.turn import App, Turn

_log = logging.getLogger("uvicorn.error")
# More than any client sends; what fits one read is judged by the application, which answers 431 as well.
MOST_HELD = 64 * 1024
# So much of a body waits to be read before the client is held back.
_HIGH_WATER = 64 * 1024
# After an answer that came before the end of the body, the client may send on for so many seconds; nobody reads it.
_LINGER = 30.0
_PHRASES = {400: b"Bad Request", 431: b"Request Header Fields Too Large"}
# Without lingering a close is a reset.
_NO_LINGER = struct.pack("ii", 1, 0)
_NOT_HTTP = "Invalid HTTP request received."
_ASGI = {"version": "3.0", "spec_version": "2.3"}
_Target = tuple[str, bytes, bytes]
_SHORT_URL, _MOST_URLS = 128, 256


class Connection(asyncio.Protocol):
    """Reads requests and has them answered one after the other; refuses a head that does not end.

    Args:
        config: uvicorn's.
        server_state: uvicorn's: where connections and tasks are counted.
        app_state: not used.
        _loop: the running loop, if it is not the current one.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if not config.loaded:
            config.load()
        self._app = cast(App, config.loaded_app)
        self._keep_alive: float = config.timeout_keep_alive
        self._state = server_state
        self._loop = _loop or asyncio.get_event_loop()
        self._outbox = outbox_of(self._loop)
        # A second request behind one that asked for the connection's end is no error of the first.
        self._parser: httptools.HttpRequestParser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._transport: asyncio.Transport
        self._turn: Turn | None = None  # the one that is answered
        self._incoming: Turn | None = None  # the one whose body is read
        self._waiting: deque[tuple[Turn, Scope]] = deque()
        self._idle_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._drain: asyncio.Future[None] | None = None
        self.is_full = False
        self.is_paused = False
        self._held = 0
        self._has_moved = False
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []

    # The transport's calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._state.connections.add(self)  # type: ignore[arg-type]  # uvicorn names its own protocols only
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever is served that the client has left."""
        self._state.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._stop_lingering()
        if self._turn is not None:
            self._turn.leave()
        self._turn = self._incoming = None
        self._waiting.clear()
        self.resume_writing()
        self._transport.close()
        del self._parser  # it holds bound methods of this object

    def eof_received(self) -> None:
        """Take a client that sends no more for one that has left, once what was written for it is on its way."""
        self._outbox.flush()

    def data_received(self, data: bytes) -> None:
        """Parse `data`; refuse when the parser holds too much that is neither a whole head nor a body."""
        self._idle_since = None
        self._has_moved = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # clients that try WebSocket first do so at every start, and get 426
        except httptools.HttpParserError:
            _log.warning(_NOT_HTTP)
            self._refuse(400, _NOT_HTTP)
            return
        if self._has_moved:
            self._held = 0
            return
        self._held += len(data)
        if self._held > MOST_HELD and not self._transport.is_closing():
            self._refuse(431, f"the request's headers are larger than {MOST_HELD // 1024} KiB; send fewer or shorter")

    def pause_writing(self) -> None:
        """Note that the client takes less than it is sent."""
        self.is_full = True

    def resume_writing(self) -> None:
        """Note that the client takes more."""
        self.is_full = False
        if self._drain is not None and not self._drain.done():
            self._drain.set_result(None)
        self._drain = None

    # The parser's calls.

    def on_message_begin(self) -> None:
        """Begin a head."""
        self._has_moved = True
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        """Keep a piece of the URL."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """End a head: the request is served as soon as the one before it is answered."""
        self._has_moved = True
        headers = [(name.lower(), value) for name, value in self._headers]
        named = dict(headers)
        parser = self._parser
        version = parser.get_http_version()
        path, raw_path, query = _TARGETS.get(self._url) or _target(self._url)
        method = parser.get_method().decode("ascii")
        is_old = version == "1.0"
        keep_alive = not is_old and parser.should_keep_alive()
        by_name = named if len(named) == len(headers) else None
        turn = Turn(self, by_name, method == "HEAD", keep_alive, b"expect" in named and _expects(headers), not is_old)
        scope: Scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "deck.turn": turn,
        }
        self._incoming = turn
        if self._turn is None:
            self._serve(turn, scope)
        else:
            self._pause_reading()
            self._waiting.append((turn, scope))

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._has_moved = True
        turn = self._incoming
        if turn is not None and not turn.is_complete and turn.feed(body) > _HIGH_WATER:
            self._pause_reading()

    def on_message_complete(self) -> None:
        """End a body."""
        self._headers = []  # trailers are of no use to anyone
        if self._incoming is not None:
            self._incoming.end()
            if self._turn is self._incoming:
                self._outbox.expect()
            elif self._turn is None:  # the answer came before the end of the body
                self._stop_lingering()
                self._rest()

    # The turns' calls.

    def write(self, data: bytes) -> None:
        """Write to the client."""
        self._outbox.write(self._transport, data)

    def write_piece(self, data: bytes) -> None:
        """Write a piece of a stream to the client."""
        self._outbox.write(self._transport, data, PIECES)

    def close(self) -> None:
        """Close when all is written."""
        self._outbox.flush()
        self._transport.close()

    def abort(self) -> None:
        """Reset the connection: nobody may take its end for an answer's."""
        self._outbox.flush()
        peer = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError, AttributeError):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()

    def resume_reading(self) -> None:
        """Let the client send on."""
        if self.is_paused:
            self.is_paused = False
            self._transport.resume_reading()

    async def drained(self) -> None:
        """Wait until the client takes more."""
        if self.is_full:
            if self._drain is None:
                self._drain = self._loop.create_future()
            await asyncio.shield(self._drain)

    def ended(self, turn: Turn) -> None:
        """Go on to the next request."""
        self._turn = None
        self._state.total_requests += 1
        if self._transport.is_closing():
            return
        if self.is_paused:
            self.resume_reading()
        if not turn.is_whole:
            self._linger = self._loop.call_later(_LINGER, self.close)
        if self._waiting:
            self._serve(*self._waiting.popleft())
        else:
            self._rest()

    def _stop_lingering(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    def shutdown(self) -> None:
        """End the connection after the answer that is being sent; uvicorn calls this when it stops."""
        if self._turn is None:
            self.close()
        else:
            self._turn.keep_alive = False

    def _serve(self, turn: Turn, scope: Scope) -> None:
        self._turn = turn
        tasks = self._state.tasks
        turn.task = task = self._loop.create_task(turn.run(self._app, scope, tasks))
        tasks.add(task)

    def _pause_reading(self) -> None:
        if not self.is_paused:
            self.is_paused = True
            self._transport.pause_reading()

    def _rest(self) -> None:
        """Begin to wait for a request; one lazy timer serves the whole connection."""
        self._idle_since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._keep_alive, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if self._idle_since is None:
            return
        left = self._idle_since + self._keep_alive - self._loop.time()
        if left <= 0:
            self.close()
        else:
            self._timer = self._loop.call_later(left, self._expire)

    def _refuse(self, status: int, message: str) -> None:
        incoming = self._incoming
        is_answered = incoming is not None and incoming.is_complete and not incoming.is_whole
        if self._turn is None and not is_answered:
            error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
            body = json.dumps({"error": error})
            head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % (
                status,
                _PHRASES[status],
                len(body),
            )
            identity = new_request_id().encode()
            self.write(b"%bx-request-id: %b\r\nconnection: close\r\n\r\n%b" % (head, identity, body))
        self.close()


def _expects(headers: list[tuple[bytes, bytes]]) -> bool:
    """Tell whether a client waits to be told that it may send its body."""
    return any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)


_TARGETS: dict[bytes, _Target] = {}


def _target(url: bytes) -> _Target:
    """Return path, raw path and query of a request's URL; those of short ones are kept, since clients use few."""
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
    found = (urllib.parse.unquote(path) if "%" in path else path, parsed.path, parsed.query or b"")
    if len(url) <= _SHORT_URL and len(_TARGETS) < _MOST_URLS:
        _TARGETS[url] = found
    return found
