"""Connections by target: opening, reusing, counting and closing them.

It does not know what travels on a connection.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import httpx

from deck.upstream.answer import TimeLimits
from deck.upstream.connection import Connection

_DEFAULT_PORTS = {False: 80, True: 443}


class Target(NamedTuple):
    """Where a server listens: a TCP port, or a UNIX socket when `uds` is given.

    With an `address` no name is looked up; `host` is then what TLS verifies and what the server is told. Targets of
    different `owner`s share no connection.
    """

    host: str = "127.0.0.1"
    port: int = 0
    uds: str | None = None
    tls: bool = False
    address: str | None = None
    owner: str = ""

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        if self.uds is not None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.tls] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """How many connections to hold, and how much each may buffer.

    Attributes:
        keepalive: Seconds after which an idle connection is not used any more.
        max_idle_per_target: Idle connections to hold for one target.
        max_connections: Connections in all, idle ones included.
        high_water: Body bytes to buffer before the socket is left alone.
        max_head: Bytes of a response head, interim responses included.
    """

    keepalive: float = 4.0
    max_idle_per_target: int = 256
    max_connections: int = 1024
    high_water: int = 256 * 1024
    max_head: int = 64 * 1024


class Pool:
    """Every connection of one transport; belongs to one event loop."""

    def __init__(self, limits: PoolLimits, ssl_context: ssl.SSLContext | None) -> None:
        self._limits = limits
        self._ssl = ssl_context
        self._live: set[Connection] = set()
        self._idle: dict[Target, dict[Connection, None]] = {}  # oldest first
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._opening = 0
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def stats(self) -> tuple[int, int]:
        """The numbers of idle and of active connections; those being opened are active."""
        idle = sum(map(len, self._idle.values()))
        return idle, len(self._live) - idle + self._opening

    def reuse(self, target: Target) -> Connection | None:
        """Return the idle connection used last, unless others already wait for one."""
        return None if self._waiters else self._take_idle(target)

    async def open(self, target: Target, limits: TimeLimits, *, fresh: bool = False) -> Connection:
        """Return a connection to `target`, a new one unless one becomes idle first and `fresh` is False.

        Raises:
            httpx.PoolTimeout: All connections stayed busy.
            httpx.ConnectError: The server cannot be reached, or the pool is closed.
            httpx.ConnectTimeout: The server cannot be reached in time.
        """
        loop = asyncio.get_running_loop()
        deadline = None if limits.pool is None else loop.time() + limits.pool
        waited = False
        while not self._closed:
            if waited or not self._waiters:
                if not fresh and (connection := self._take_idle(target)) is not None:
                    return connection
                if self._has_room():
                    return await self._connect(loop, target, limits)
            await self._wait_for_room(loop, deadline, first=waited)
            waited = True
        raise httpx.ConnectError("the transport is closed")

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next exchange, if there is room for it."""
        assert isinstance(connection.target, Target)
        idle = self._idle.get(connection.target)
        if idle is None:
            idle = self._idle[connection.target] = {}
        if self._closed or len(idle) >= self._limits.max_idle_per_target:
            connection.abort()
            return
        connection.idle_since = connection.loop.time()
        idle[connection] = None
        if self._sweeper is None:
            self._sweeper = connection.loop.call_later(self._limits.keepalive, self._sweep, connection.loop)
        if self._waiters:
            self._wake_one()

    def forget(self, connection: Connection) -> None:
        """Stop counting a connection."""
        if connection in self._live:
            self._live.remove(connection)
            assert isinstance(connection.target, Target)
            self._idle.get(connection.target, {}).pop(connection, None)
            self._wake_one()

    def close_target(self, target: Target) -> None:
        """Close every connection to `target`; a running exchange ends with `httpx.ReadError`."""
        for connection in [each for each in self._live if each.target == target]:
            connection.fail(httpx.ReadError(f"the server at {target.uds or target.authority!r} is being stopped"))
        self._idle.pop(target, None)

    async def aclose(self) -> None:
        """Close every connection and wait until their sockets are closed."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        closing = [connection.closed for connection in self._live]
        for connection in list(self._live):
            connection.fail(httpx.ReadError("the transport is being closed"))
        self._idle.clear()
        while self._waiters:
            self._wake_one()
        if closing:
            await asyncio.wait(closing)
        await asyncio.sleep(0)  # sockets close one turn of the loop after they were aborted

    def _take_idle(self, target: Target) -> Connection | None:
        idle = self._idle.get(target)
        while idle:
            connection, _ = idle.popitem()
            if connection.is_usable and connection.loop.time() - connection.idle_since < self._limits.keepalive:
                return connection
            connection.abort()
        return None

    def _has_room(self) -> bool:
        """Whether one more connection may be opened, after giving up the oldest idle one if need be."""
        if len(self._live) + self._opening < self._limits.max_connections:
            return True
        idle = [connections for connections in self._idle.values() if connections]
        if not idle:
            return False
        min((next(iter(connections)) for connections in idle), key=lambda each: each.idle_since).abort()
        return True

    async def _wait_for_room(self, loop: asyncio.AbstractEventLoop, deadline: float | None, *, first: bool) -> None:
        waiter: asyncio.Future[None] = loop.create_future()
        (self._waiters.appendleft if first else self._waiters.append)(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except BaseException as exc:
            if waiter.done() and not waiter.cancelled():
                self._wake_one()  # it was this one's turn, and it cannot take it
            with suppress(ValueError):
                self._waiters.remove(waiter)
            if isinstance(exc, TimeoutError):
                raise httpx.PoolTimeout(f"all {self._limits.max_connections} connections stayed busy") from exc
            raise

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _connect(self, loop: asyncio.AbstractEventLoop, target: Target, limits: TimeLimits) -> Connection:
        connection = Connection(self, target, loop, high_water=self._limits.high_water, max_head=self._limits.max_head)
        self._opening += 1
        where = target.uds or target.authority
        try:
            async with asyncio.timeout(limits.connect):
                await self._dial(loop, target, lambda: connection)
            if self._closed:
                raise httpx.ConnectError("the transport is closed")
            self._live.add(connection)
        except BaseException as exc:
            connection.abort()
            self._wake_one()
            if isinstance(exc, TimeoutError):
                raise httpx.ConnectTimeout(f"no connection to {where!r} within {limits.connect} s") from exc
            if isinstance(exc, OSError | ValueError):  # a ValueError is a name or path that cannot exist
                raise httpx.ConnectError(f"cannot connect to {where!r}: {exc}") from exc
            raise
        finally:
            self._opening -= 1
        return connection

    async def _dial(self, loop: asyncio.AbstractEventLoop, target: Target, protocol: Callable[[], Connection]) -> None:
        context = None
        if target.tls:
            context = self._ssl = self._ssl or ssl.create_default_context()
        name = target.host if target.tls else None
        if target.uds is not None:
            await loop.create_unix_connection(protocol, target.uds, ssl=context, server_hostname=name)
        else:
            where = target.address or target.host
            await loop.create_connection(protocol, where, target.port, ssl=context, server_hostname=name)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close what has been idle for too long; run again while anything is idle."""
        self._sweeper = None
        now = loop.time()
        next_due: float | None = None
        for target, idle in list(self._idle.items()):
            for connection in list(idle):
                due = connection.idle_since + self._limits.keepalive
                if due > now:
                    next_due = due if next_due is None else min(due, next_due)
                    break
                connection.abort()
            if not idle:
                del self._idle[target]
        if next_due is not None:
            self._sweeper = loop.call_at(next_due, self._sweep, loop)
