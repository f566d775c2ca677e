"""Carries out what the policy decides: starts and stops servers, wakes who is granted, watches for crashes.

The only caller of the policy and the only owner of servers.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, assert_never

from deck.contracts import Launcher, Server, ServerState
from deck.errors import DeckError, ErrorKind
from deck.profile import Profile
from deck.scheduler.policy import Policy
from deck.scheduler.values import Command, Grant, Model, Refuse, Start, Stop, Ticket, Waiting

_log = logging.getLogger("deck.scheduler")
# In the last lines of a llama-server that did not find room, on a card or in memory.
_OUT_OF_MEMORY = re.compile(r"out of memory|failed to allocate|cudaMalloc failed|unable to allocate", re.IGNORECASE)
_TICK = 0.001  # uvloop's clock counts whole milliseconds, so a timer may fire this early


class Board:
    """The scheduler at work.

    Args:
        policy: decides.
        launcher_of: the launcher for a profile.
        grace: seconds a server has to stop before it is killed.
        on_gone: told of a server that is going away, before it is stopped, so that its connections are closed.
        on_load: told how many seconds a server took to become ready.
        memory_of: what a profile's server will take in bytes before it has ever run, None = unknown.
    """

    def __init__(
        self,
        policy: Policy,
        launcher_of: Callable[[Profile], Launcher],
        *,
        grace: float,
        on_gone: Callable[[Server], None] = lambda server: None,
        on_load: Callable[[str, float], None] = lambda profile, seconds: None,
        memory_of: Callable[[Profile], int | None] = lambda profile: profile.server.memory,
    ) -> None:
        self._policy = policy
        self._launcher_of = launcher_of
        self._grace = grace
        self._on_gone = on_gone
        self._on_load = on_load
        self._memory_of = memory_of
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[Server]] = {}
        self._models: dict[str, tuple[Profile, Model]] = {}
        self._measured: dict[str, int] = {}
        self._servers: dict[str, Server] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stops: dict[str, asyncio.Task[None]] = {}
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

    def running(self, profile: str) -> int:
        """Return how many exchanges use a profile's server."""
        return self._policy.running(profile)

    def waiting(self) -> list[Waiting]:
        """Return who waits, in the order in which they are served."""
        return self._policy.waiting(asyncio.get_running_loop().time())

    def quarantined(self) -> Mapping[str, tuple[int, float]]:
        """Return the profiles not tried now: failures in a row, and the seconds until the next try."""
        return self._policy.quarantined(asyncio.get_running_loop().time())

    def memory(self, profile: str) -> int | None:
        """Return the bytes that the policy reckons with for a model that was ever wanted, None = unknown."""
        known = self._models.get(profile)
        return known[1].memory if known else None

    def admit(self, profile: Profile, token: str = "", *, credit: int = 0, again: bool = False) -> Admission:
        """Wait for a slot of the profile's server and hold it; leaving while waiting gives the place up.

        Args:
            profile: what is wanted.
            token: who wants it, for its share.
            credit: most tokens it may come to occupy.
            again: earlier failures are forgotten: an operator wants it tried.

        Raises:
            DeckError: the queue is full, the wait too long, or the server does not start.
        """
        if again:
            self._policy.forgive(profile.id)
        return Admission(self, profile, token, credit)

    async def acquire(self, profile: Profile, token: str = "", credit: int = 0) -> tuple[Ticket, Server]:
        """Wait for a slot and return its ticket and server; `release` must follow.

        Raises:
            DeckError: the queue is full, the wait too long, or the server does not start.
        """
        if self._closing:
            raise DeckError(ErrorKind.UNAVAILABLE, "Deck is shutting down", retry_after=10)
        loop = asyncio.get_running_loop()
        now = loop.time()
        ticket = Ticket(next(self._ids), self._model(profile), now, token, 0, credit)
        commands = self._policy.arrive(ticket, now)
        if len(commands) == 1 and isinstance(commands[0], Grant) and commands[0].ticket is ticket:
            return ticket, self._servers[profile.id]  # there is room: nobody needs to wait for anything
        future: asyncio.Future[Server] = loop.create_future()
        self._waiting[ticket.id] = future
        self._execute(commands)
        try:
            return ticket, await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.release(ticket, future.result())
            else:
                self._execute(self._policy.leave(ticket, loop.time()))
            raise
        finally:
            self._waiting.pop(ticket.id, None)

    def _model(self, profile: Profile) -> Model:
        """Return what the policy must know of a profile: what was measured of its memory counts above an estimate."""
        known = self._models.get(profile.id)
        if known is not None and known[0] is profile:
            return known[1]
        schedule = profile.schedule
        memory, measured = self._memory_of(profile), self._measured.get(profile.id, 0)
        model = Model(
            name=profile.id,
            is_local=profile.server.url is None,
            memory=memory if memory is None or profile.server.memory is not None else max(memory, measured),
            group=schedule.group,
            is_pinned=schedule.pinned,
            priority=schedule.priority,
            concurrency=schedule.concurrency,
            min_resident=schedule.min_resident,
        )
        self._models[profile.id] = (profile, model)
        return model

    def release(self, ticket: Ticket, server: Server) -> None:
        """Give a slot back."""
        # A server that crashed meanwhile has taken its slots with it; its successor's must not be given back.
        if self._servers.get(ticket.profile) is server:
            commands = self._policy.release(ticket, asyncio.get_running_loop().time())
            if commands or self._policy.depth:
                self._execute(commands)
            self._watch_idle(server.profile)

    def preload(self, profile: Profile) -> None:
        """Start a profile's server now, if there is room without stopping another."""
        self._policy.forgive(profile.id)
        self._execute(self._policy.preload(self._model(profile), asyncio.get_running_loop().time()))

    def unload(self, profile: str) -> None:
        """Stop a server as soon as nobody uses it."""
        self._execute(self._policy.unload(profile, asyncio.get_running_loop().time()))

    def renew(self, profile: Profile, *, relaunch: bool) -> None:
        """Take a changed profile: a server that it still launches goes on under it, any other stops when it is free."""
        known = self._models.pop(profile.id, None)
        if known is None:
            return
        self._model(profile)
        self._policy.forgive(profile.id)
        if relaunch:
            self.unload(profile.id)
        elif (server := self._servers.get(profile.id)) is not None:
            server.profile = profile

    def remove(self, profile: str) -> None:
        """Refuse who waits for a profile that is gone, and stop its server when it is free."""
        error = DeckError(ErrorKind.MODEL_NOT_FOUND, f"the model {profile!r} was removed", param="model")
        self._execute(self._policy.remove(profile, error, asyncio.get_running_loop().time()))

    async def unload_now(self, profile: str) -> None:
        """Stop a server at once; whoever uses it is told that it was stopped."""
        self.unload(profile)
        if self.is_stopping(profile):
            await self.wait_stopped(profile)
            return
        server = self._servers.get(profile)
        if server is not None and server.state is ServerState.READY:
            self._on_gone(server)
            await server.stop(grace=self._grace)
            self._execute(self._policy.stopped(profile, asyncio.get_running_loop().time()))

    def is_stopping(self, profile: str) -> bool:
        """Tell whether a server is being stopped because nobody uses it."""
        task = self._stops.get(profile)
        return task is not None and not task.done()

    async def wait_stopped(self, profile: str, limit: float | None = None) -> None:
        """Wait until a stop that is under way is done, at most so many seconds."""
        if self.is_stopping(profile):
            await asyncio.wait({self._stops[profile]}, timeout=limit)

    def _execute(self, commands: Iterable[Command]) -> None:
        self._carry_out(commands)
        self._watch_expiry()

    def _carry_out(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case Grant(ticket=ticket):
                    self._grant(ticket)
                case Refuse(ticket=ticket, error=error):
                    future = self._waiting.get(ticket.id)
                    if future is not None and not future.done():
                        future.set_exception(error)
                case Start(profile=profile):
                    self._spawn(self._start(profile))
                case Stop(profile=profile):
                    self._spawn(self._stop(profile), stops=profile)
                case _:
                    assert_never(command)

    def _grant(self, ticket: Ticket) -> None:
        future = self._waiting.get(ticket.id)
        if future is None or future.done():
            self._execute(self._policy.release(ticket, asyncio.get_running_loop().time()))
            return
        future.set_result(self._servers[ticket.profile])

    def _spawn(self, work: Coroutine[Any, Any, None], *, stops: str | None = None) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if stops is not None:
            self._stops[stops] = task

    async def _start(self, name: str) -> None:
        profile = self._models[name][0]
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            server = self._launcher_of(profile).launch(profile)
            self._servers[name] = server
            await server.start()
        except DeckError as exc:
            _log.warning("model %s did not start: %s", name, exc.message)
            was_run = exc.should_retry is not False
            for_memory = _OUT_OF_MEMORY.search(exc.message) is not None
            self._execute(self._policy.failed(name, exc, loop.time(), for_memory=for_memory, was_run=was_run))
            return
        except Exception as exc:
            _log.exception("model %s did not start", name)
            fault = DeckError(ErrorKind.INTERNAL, f"starting {name!r} failed inside Deck: {type(exc).__name__}")
            self._execute(self._policy.failed(name, fault, loop.time()))
            return
        self._on_load(name, loop.time() - began)
        _log.info("model %s is ready after %.2f s", name, loop.time() - began)
        self._spawn(self._watch_end(name, server))
        self._execute(self._policy.started(name, _slots(server), loop.time()))
        self._watch_idle(profile)  # whoever wanted it may have left meanwhile

    async def _watch_end(self, name: str, server: Server) -> None:
        await server.wait_ended()
        if server.state is not ServerState.FAILED or self._servers.get(name) is not server:
            return
        _log.error("model %s ended by itself: %s", name, server.reason)
        self._on_gone(server)
        fault = DeckError(ErrorKind.UNAVAILABLE, server.reason or f"the llama-server of {name!r} ended by itself")
        self._execute(self._policy.crashed(name, fault, asyncio.get_running_loop().time()))

    async def _stop(self, name: str) -> None:
        server = self._servers[name]
        self._on_gone(server)
        self._measure(server)
        await server.stop(grace=self._grace)
        _log.info("model %s is stopped", name)
        self._execute(self._policy.stopped(name, asyncio.get_running_loop().time()))

    def _measure(self, server: Server) -> None:
        """Learn what a server really takes, for the next time that room is made for it."""
        found = server.memory()
        name = server.profile.id
        if found is not None and found > self._measured.get(name, 0):
            self._measured[name] = found
            profile, _ = self._models.pop(name)
            self._model(profile)

    def _watch_idle(self, profile: Profile) -> None:
        name, ttl = profile.id, profile.server.ttl
        if not ttl or profile.schedule.pinned or self._closing or self._policy.running(name):
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
        now = loop.time()
        left = self._idle_since[name] + ttl - now
        if left > _TICK:
            self._idle[name] = loop.call_later(left, self._look_idle, name, ttl)
        else:
            self._execute(self._policy.idle(name, now))

    def _watch_expiry(self) -> None:
        loop = asyncio.get_running_loop()
        if self._policy.depth == 0 and self._expiry is None:
            return
        at = self._policy.next_expiry(loop.time())
        if self._expiry is not None:
            if self._expiry.when() == at:
                return
            self._expiry.cancel()
            self._expiry = None
        if at is not None:
            self._expiry = loop.call_at(at, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        self._execute(self._policy.expire(asyncio.get_running_loop().time() + _TICK))

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

    __slots__ = ("_board", "_credit", "_profile", "_server", "_ticket", "_token")

    def __init__(self, board: Board, profile: Profile, token: str, credit: int) -> None:
        self._board = board
        self._profile = profile
        self._token = token
        self._credit = credit

    async def __aenter__(self) -> Server:
        self._ticket, self._server = await self._board.acquire(self._profile, self._token, self._credit)
        return self._server

    async def __aexit__(self, *failure: object) -> None:
        self._board.release(self._ticket, self._server)


def _slots(server: Server) -> int:
    if server.profile.server.url is not None:
        return server.profile.server.parallel or 0
    return server.facts.slots or server.profile.server.parallel or 1
