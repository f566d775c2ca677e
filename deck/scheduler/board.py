"""Carries out what the policy decides: starts and stops servers, wakes who is granted, watches for crashes.

The only caller of the policy and the only owner of servers.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, assert_never

from deck.contracts import Launcher, Server, ServerState
from deck.errors import DeckError, ErrorKind
from deck.profile import Profile
from deck.scheduler.policy import Command, Grant, Policy, Refuse, Start, Stop, Ticket

_log = logging.getLogger("deck.scheduler")
_TICK = 0.001  # uvloop's clock counts whole milliseconds, so a timer may fire this early


class Board:
    """The scheduler at work.

    Args:
        policy: decides.
        launcher_of: the launcher for a profile.
        grace: seconds a server has to stop before it is killed.
        on_gone: told of a server that is going away, before it is stopped, so that its connections are closed.
        on_load: told how many seconds a server took to become ready.
    """

    def __init__(
        self,
        policy: Policy,
        launcher_of: Callable[[Profile], Launcher],
        *,
        grace: float,
        on_gone: Callable[[Server], None] = lambda server: None,
        on_load: Callable[[str, float], None] = lambda profile, seconds: None,
    ) -> None:
        self._policy = policy
        self._launcher_of = launcher_of
        self._grace = grace
        self._on_gone = on_gone
        self._on_load = on_load
        self._ids = itertools.count()
        self._waiting: dict[Ticket, asyncio.Future[Server]] = {}
        self._profiles: dict[str, Profile] = {}
        self._servers: dict[str, Server] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: dict[str, asyncio.TimerHandle] = {}
        self._idle_since: dict[str, float] = {}
        self._expiry: asyncio.TimerHandle | None = None
        self._closing = False

    @property
    def depth(self) -> int:
        """How many exchanges wait."""
        return self._policy.depth

    def states(self) -> Mapping[str, ServerState]:
        """Return the state of each server that was ever wanted."""
        return {name: server.state for name, server in self._servers.items()}

    def server(self, profile: str) -> Server | None:
        """Return the profile's server if there is one, for reading only."""
        return self._servers.get(profile)

    def admit(self, profile: Profile) -> Admission:
        """Wait for a slot of the profile's server and hold it; leaving while waiting gives the place up.

        Raises:
            DeckError: the queue is full, the wait too long, or the server does not start.
        """
        return Admission(self, profile)

    async def acquire(self, profile: Profile) -> Server:
        """Wait for a slot and return its server; `release` must follow.

        Raises:
            DeckError: the queue is full, the wait too long, or the server does not start.
        """
        if self._closing:
            raise DeckError(ErrorKind.UNAVAILABLE, "Deck is shutting down", retry_after=10)
        loop = asyncio.get_running_loop()
        name = profile.id
        ticket = Ticket(next(self._ids), name, profile.server.url is None, loop.time())
        self._profiles[name] = profile
        commands = list(self._policy.arrive(ticket))
        if len(commands) == 1 and isinstance(commands[0], Grant) and commands[0].ticket is ticket:
            return self._servers[name]  # there is room: nobody needs to wait for anything
        future: asyncio.Future[Server] = loop.create_future()
        self._waiting[ticket] = future
        self._execute(commands)
        self._watch_expiry()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.release(profile, future.result())
            else:
                self._execute(self._policy.leave(ticket))
            raise
        finally:
            self._waiting.pop(ticket, None)

    def release(self, profile: Profile, server: Server) -> None:
        """Give a slot back."""
        # A server that crashed meanwhile has taken its slots with it; its successor's must not be given back.
        if self._servers.get(profile.id) is server:
            self._execute(self._policy.release(profile.id))
            self._watch_idle(profile)

    def _execute(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case Grant(ticket=ticket):
                    self._grant(ticket)
                case Refuse(ticket=ticket, error=error):
                    future = self._waiting.get(ticket)
                    if future is not None and not future.done():
                        future.set_exception(error)
                case Start(profile=profile):
                    self._spawn(self._start(profile))
                case Stop(profile=profile):
                    self._spawn(self._stop(profile))
                case _:
                    assert_never(command)

    def _grant(self, ticket: Ticket) -> None:
        future = self._waiting.get(ticket)
        if future is None or future.done():
            self._execute(self._policy.release(ticket.profile))
            return
        future.set_result(self._servers[ticket.profile])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, name: str) -> None:
        profile = self._profiles[name]
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            server = self._launcher_of(profile).launch(profile)
            self._servers[name] = server
            await server.start()
        except DeckError as exc:
            _log.warning("model %s did not start: %s", name, exc.message)
            self._execute(self._policy.failed(name, exc))
            return
        except Exception as exc:
            _log.exception("model %s did not start", name)
            fault = DeckError(ErrorKind.INTERNAL, f"starting {name!r} failed inside Deck: {type(exc).__name__}")
            self._execute(self._policy.failed(name, fault))
            return
        self._on_load(name, loop.time() - began)
        _log.info("model %s is ready after %.2f s", name, loop.time() - began)
        self._spawn(self._watch_end(name, server))
        self._execute(self._policy.started(name, _slots(server)))
        self._watch_expiry()
        self._watch_idle(profile)  # whoever wanted it may have left meanwhile

    async def _watch_end(self, name: str, server: Server) -> None:
        await server.wait_ended()
        if server.state is not ServerState.FAILED or self._servers.get(name) is not server:
            return
        _log.error("model %s ended by itself: %s", name, server.reason)
        self._on_gone(server)
        self._execute(self._policy.stopped(name))

    async def _stop(self, name: str) -> None:
        server = self._servers[name]
        self._on_gone(server)
        await server.stop(grace=self._grace)
        _log.info("model %s is stopped", name)
        self._execute(self._policy.stopped(name))

    def _watch_idle(self, profile: Profile) -> None:
        name, ttl = profile.id, profile.server.ttl
        if not ttl or self._closing or self._policy.running(name):
            return
        loop = asyncio.get_running_loop()
        self._idle_since[name] = loop.time()
        # One lazy timer for each server: to move it with each exchange would cost more than the rest of this.
        if name not in self._idle:
            self._idle[name] = loop.call_later(ttl, self._look_idle, name, ttl)

    def _look_idle(self, name: str, ttl: float) -> None:
        del self._idle[name]
        if self._policy.running(name):
            return
        loop = asyncio.get_running_loop()
        left = self._idle_since[name] + ttl - loop.time()
        if left > _TICK:
            self._idle[name] = loop.call_later(left, self._look_idle, name, ttl)
        else:
            self._execute(self._policy.idle(name))

    def _watch_expiry(self) -> None:
        at = self._policy.next_expiry()
        if at is None or self._expiry is not None:
            return
        self._expiry = asyncio.get_running_loop().call_at(at, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        self._execute(self._policy.expire(asyncio.get_running_loop().time() + _TICK))
        self._watch_expiry()

    async def close(self) -> None:
        """Refuse who waits and stop every server."""
        self._closing = True
        for timer in (*self._idle.values(), *([self._expiry] if self._expiry else [])):
            timer.cancel()
        error = DeckError(ErrorKind.UNAVAILABLE, "Deck is shutting down", retry_after=10)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server in self._servers.values():
            self._on_gone(server)
        await asyncio.gather(*(server.stop(grace=self._grace) for server in self._servers.values()))


class Admission:
    """A slot while it is waited for and held."""

    __slots__ = ("_board", "_profile", "_server")

    def __init__(self, board: Board, profile: Profile) -> None:
        self._board = board
        self._profile = profile

    async def __aenter__(self) -> Server:
        self._server = await self._board.acquire(self._profile)
        return self._server

    async def __aexit__(self, *failure: object) -> None:
        self._board.release(self._profile, self._server)


def _slots(server: Server) -> int:
    if server.profile.server.url is not None:
        return server.profile.server.parallel or 0
    return server.facts.slots or server.profile.server.parallel or 1
