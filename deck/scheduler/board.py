"""Carries out what the policy decides: starts and stops servers, wakes who is granted, watches for crashes.

The only caller of the policy and the only owner of servers.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, assert_never

from deck.contracts import Doing, Launcher, Replica, Replicated, Server, ServerState, Supervised
from deck.errors import DeckError, ErrorKind, NotRunError
from deck.profile import Profile
from deck.scheduler.hold import Admission
from deck.scheduler.idle import TICK, IdleTimers
from deck.scheduler.models import Models, slots_of
from deck.scheduler.policy import Policy
from deck.scheduler.quotes import Quote, Quotes
from deck.scheduler.slots import Claim, SlotBook
from deck.scheduler.values import Command, Grant, Refuse, Start, Stop, Ticket, Waiting
from deck.slots import pool_of

_log = logging.getLogger("deck.scheduler")
# In the last lines of a llama-server that did not find room, on a card or in memory.
_OUT_OF_MEMORY = re.compile(r"out of memory|failed to allocate|cudaMalloc failed|unable to allocate", re.IGNORECASE)
_DOWN = (ServerState.STOPPED, ServerState.FAILED)
# A server's memory is looked at no more often than this; seconds.
_WEIGH = 1.0
# How long may pass between the last of a server that failed and its end; seconds.
_MOMENT = 1.0


class Board:
    """The scheduler at work.

    Args:
        policy: decides.
        launcher_of: the launcher for a profile.
        grace: seconds a server has to stop before it is killed.
        on_gone: told of a server that is going away, before it is stopped, so that its connections are closed.
        on_load: told how many seconds a server took to become ready.
        on_recycle: told of a model whose server is stopped for what it has grown to.
        on_hang: told of a model whose server is ended because it does nothing.
        on_up: told of a server that is ready.
        memory_of: what a profile's server will take in bytes before it has ever run, None = unknown.
        faulty: the failed server of a profile that cannot start, so that none is stopped for it; None = it may.
        book_of: gives the slots of a server out, None = it chooses itself.
    """

    def __init__(
        self,
        policy: Policy,
        launcher_of: Callable[[Profile], Launcher],
        *,
        grace: float,
        on_gone: Callable[[Server], None] = lambda server: None,
        on_load: Callable[[str, float], None] = lambda profile, seconds: None,
        on_recycle: Callable[[str], None] = lambda profile: None,
        on_hang: Callable[[str], None] = lambda profile: None,
        on_up: Callable[[Server], None] = lambda server: None,
        memory_of: Callable[[Profile], int | None] = lambda profile: profile.server.memory,
        faulty: Callable[[Profile], Server | None] = lambda profile: None,
        book_of: Callable[[Server], SlotBook | None] = lambda server: None,
    ) -> None:
        self._policy = policy
        self._launcher_of = launcher_of
        self._grace = grace
        self._on_gone = on_gone
        self._on_load = on_load
        self._on_recycle = on_recycle
        self._on_hang = on_hang
        self._on_up = on_up
        self._load_seconds: dict[str, float] = {}
        self._looked_at: dict[str, float] = {}
        self._faulty = faulty
        self._book_of = book_of
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[Server]] = {}
        self._quotes = Quotes()
        self._models = Models(memory_of)
        self._servers: dict[str, Server] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stops: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Task[None]] = {}
        self._idle = IdleTimers(policy.running, lambda name, now: self._execute(policy.idle(name, now)))
        self._expiry: tuple[float, asyncio.Handle] | None = None
        self._closing = False
        self._clock: Callable[[], float] | None = None

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

    def replicas(self) -> Mapping[str, Sequence[Replica]]:
        """Return how each of several servers is, of each model that has several and was ever wanted."""
        found = {name: server.replicas() for name, server in self._servers.items() if isinstance(server, Replicated)}
        return {name: replicas for name, replicas in found.items() if replicas}

    def slots(self, profile: str) -> int | None:
        """Return how many exchanges a profile's server takes at a time, None = there is none, or it does not say."""
        server = self._servers.get(profile)
        if server is None:
            return None
        return (isinstance(server, Replicated) and server.slots) or server.facts.slots

    def doing(self, profile: str) -> Doing | None:
        """Return what a profile's server is about while it starts, None = it does not, or does not say."""
        server: object = self._servers.get(profile)
        return server.doing if isinstance(server, Supervised) else None

    def load_seconds(self, profile: str) -> float | None:
        """Return how long the profile's server took to become ready the last time, None = it never did."""
        return self._load_seconds.get(profile)

    def running(self, profile: str) -> int:
        """Return how many exchanges use a profile's server."""
        return self._policy.running(profile)

    def waiting(self) -> list[Waiting]:
        """Return who waits, in the order in which they are served."""
        return self._policy.waiting(self._now())

    def quarantined(self) -> Mapping[str, tuple[int, float]]:
        """Return the profiles not tried now: failures in a row, and the seconds until the next try."""
        return self._policy.quarantined(self._now())

    def memory(self, profile: str) -> int | None:
        """Return the bytes that the policy reckons with for a model that was ever wanted, None = unknown."""
        return self._models.memory(profile)

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

    def slot(self, ticket: Ticket) -> int | None:
        """Return the slot that a ticket's exchange is to run in, None = the server chooses."""
        return self._policy.slot(ticket)

    def is_alone(self, ticket: Ticket) -> bool:
        """Tell whether a granted exchange is the only one of its conversation."""
        return self._policy.is_alone(ticket)

    async def acquire(
        self,
        profile: Profile,
        token: str = "",
        credit: int = 0,
        claim: Claim | None = None,
        quote: Quote | None = None,
    ) -> tuple[Ticket, Server]:
        """Wait for a slot and return its ticket and server; `release` must follow.

        `quote` measures the credit again when the server is ready for which this waits.

        Raises:
            DeckError: the queue is full, the wait too long, or the server does not start.
        """
        if self._closing:
            raise DeckError(ErrorKind.UNAVAILABLE, "Deck is shutting down", retry_after=10)
        server = self._servers.get(profile.id)
        if (server is None or server.state in _DOWN) and not self._policy.is_resident(profile.id):
            self._refuse_faulty(profile)
        now = self._now()
        ticket = Ticket(next(self._ids), self._models.of(profile), now, token, 0, credit, claim)
        commands = self._policy.arrive(ticket, now)
        if len(commands) == 1 and isinstance(commands[0], Grant) and commands[0].ticket is ticket:
            return ticket, self._servers[profile.id]  # there is room: nobody needs to wait for anything
        future: asyncio.Future[Server] = asyncio.get_running_loop().create_future()
        self._waiting[ticket.id] = future
        if quote is not None:
            self._quotes.keep(ticket, quote)
        try:
            self._execute(commands)
            return ticket, await future
        except BaseException as exc:  # whatever ends the wait, the place must not stay taken
            if future.done() and not future.cancelled() and future.exception() is None:
                self.release(ticket, future.result())
            elif not isinstance(exc, DeckError):
                self._execute(self._policy.leave(ticket, self._now()))
            raise
        finally:
            self._waiting.pop(ticket.id, None)
            self._quotes.drop(ticket)

    def _now(self) -> float:
        """Return the loop's time; to ask which loop runs costs a system call each time."""
        if self._clock is None:
            self._clock = asyncio.get_running_loop().time
        return self._clock()

    def _refuse_faulty(self, profile: Profile) -> None:
        """Refuse what cannot start before any other server is stopped for it."""
        server = self._faulty(profile)
        if server is not None:
            self._servers[profile.id] = server
            message = server.reason or f"model {profile.id!r} cannot start"
            _log.warning("%s", message)
            raise DeckError(ErrorKind.UNAVAILABLE, message, should_retry=False)

    def release(self, ticket: Ticket, server: Server) -> None:
        """Give a slot back."""
        # A server that crashed meanwhile has taken its slots with it; its successor's must not be given back.
        if self._servers.get(ticket.model.name) is server:
            now = self._now()
            commands = self._policy.release(ticket, now)
            if commands or self._policy.depth:
                self._execute(commands)
            self._idle.watch(profile := server.profile, now)
            if profile.server.max_rss is not None:
                self.weigh(server)

    def weigh(self, server: Server) -> None:
        """Look at what a server takes, now and then, and have one above its ceiling stopped when it is free."""
        name, ceiling = server.profile.id, server.profile.server.max_rss
        now = self._now()
        if ceiling is None or now - self._looked_at.get(name, float("-inf")) < _WEIGH:
            return
        self._looked_at[name] = now
        taken = server.memory()
        if taken is not None and taken > ceiling:
            what = f"takes {taken >> 20} MiB, above [server] max_rss of {ceiling >> 20} MiB"
            if self.replace(server, what):
                self._on_recycle(name)

    def replace(self, server: Server, why: str) -> bool:
        """Have a server stopped when it is free, since it `why`: whoever then wants it gets a new one.

        Returns:
            False = it goes already.
        """
        name = server.profile.id
        if self._servers.get(name) is not server:
            return False
        commands = self._policy.recycle(name, self._now())
        if commands is not None:
            _log.warning("model %s %s: its server stops when it is free", name, why)
            self._execute(commands)
        return commands is not None

    def hung(self, server: Server, reason: str) -> None:
        """End a ready server that does nothing for those who use it; they are told why, and nobody new gets to it."""
        name = server.profile.id
        if self._servers.get(name) is not server or server.state is not ServerState.READY:
            return
        if isinstance(server, Supervised):
            _log.error("model %s hangs: %s", name, reason)
            self._execute(self._policy.hung(name, self._now()))
            server.condemn(reason)
            self._on_hang(name)
            self._spawn(self._end_hung(server))

    async def _end_hung(self, server: Server) -> None:
        self._on_gone(server)
        await server.stop(grace=self._grace)

    def settle(self, ticket: Ticket, credit: int) -> bool:
        """Set the credit of one that was granted to what it is now known to take at most; false = that is too much."""
        if not self._policy.fits(ticket, credit):
            return False
        self._execute(self._policy.settle(ticket, credit, self._now()))
        return True

    def preload(self, profile: Profile) -> None:
        """Start a profile's server now, if there is room without stopping another."""
        self._policy.forgive(profile.id)
        self._execute(self._policy.preload(self._models.of(profile), self._now()))

    def unload(self, profile: str) -> None:
        """Stop a server as soon as nobody uses it."""
        self._execute(self._policy.unload(profile, self._now()))

    def renew(self, profile: Profile, *, relaunch: bool) -> None:
        """Take a changed profile: a server that it still launches goes on under it, any other stops when it is free."""
        if relaunch:
            self._models.forget(profile.id, self._servers.get(profile.id))
        if not self._models.renew(profile):
            return
        self._policy.forgive(profile.id)
        server = self._servers.get(profile.id)
        if server is not None and not relaunch:
            server.profile = profile
            self._idle.renew(server)
        model, now = self._models.of(profile), self._now()
        self._execute(self._policy.renew(model, now, is_relaunched=relaunch))
        if relaunch:
            self.unload(profile.id)

    def keep(self, profile: Profile) -> None:
        """Take an unchanged profile as it was read anew, so that all know one and the same."""
        if self._models.renew(profile) and (server := self._servers.get(profile.id)) is not None:
            server.profile = profile

    def remove(self, profile: str) -> None:
        """Refuse who waits for a profile that is gone, and stop its server when it is free."""
        error = DeckError(ErrorKind.MODEL_NOT_FOUND, f"the model {profile!r} was removed", param="model")
        self._execute(self._policy.remove(profile, error, self._now()))
        self._models.remove(profile)

    async def unload_now(self, profile: str) -> None:
        """Stop a server at once; whoever uses it is told that it was stopped."""
        self._execute(self._policy.unload_now(profile, self._now()))
        await self.wait_stopped(profile)

    def is_stopping(self, profile: str) -> bool:
        """Tell whether a server is being stopped because nobody uses it."""
        task = self._stops.get(profile)
        return task is not None and not task.done()

    async def wait_stopped(self, profile: str, limit: float | None = None) -> None:
        """Wait until a stop that is under way is done, at most so many seconds."""
        if self.is_stopping(profile):
            await asyncio.wait({self._stops[profile]}, timeout=limit)

    async def has_ended(self, server: Server) -> bool:
        """Tell, within a moment, whether a server ended by itself: then nobody is sent to it any more."""
        if self._servers.get(name := server.profile.id) is server and name in self._ends:
            await asyncio.wait({self._ends[name]}, timeout=_MOMENT)
            return self._ends[name].done()
        return True

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
                    self._servers.pop(profile, None)  # what becomes of the last one is no news any more
                    if not self._closing:
                        self._spawn(self._start(profile))
                case Stop(profile=profile):
                    self._spawn(self._stop(profile, self._servers[profile]), self._stops, profile)
                case _:
                    assert_never(command)

    def _grant(self, ticket: Ticket) -> None:
        future = self._waiting.get(ticket.id)
        if future is None or future.done():
            self._execute(self._policy.release(ticket, self._now()))
            return
        future.set_result(self._servers[ticket.profile])

    def _spawn(
        self, work: Coroutine[Any, Any, None], among: dict[str, asyncio.Task[None]] | None = None, name: str = ""
    ) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if among is not None:
            among[name] = task

    async def _start(self, name: str) -> None:
        profile = self._models.profile(name)
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            server = self._launcher_of(profile).launch(profile)
            self._servers[name] = server
            if isinstance(server, Replicated):
                server.on_slots = partial(self._resize, name, server)
            await server.start()
        except DeckError as exc:
            _log.warning("model %s did not start: %s", name, exc.message)
            # Servers elsewhere may come up at any time, and to ask them again is cheap.
            was_run = not isinstance(exc, NotRunError) and not profile.server.is_remote
            for_memory = _OUT_OF_MEMORY.search(exc.message) is not None
            self._execute(self._policy.failed(name, exc, loop.time(), for_memory=for_memory, was_run=was_run))
            return
        except Exception as exc:
            _log.exception("model %s did not start", name)
            fault = DeckError(ErrorKind.INTERNAL, f"starting {name!r} failed inside Deck: {type(exc).__name__}")
            self._execute(self._policy.failed(name, fault, loop.time()))
            return
        self._on_load(name, loop.time() - began)
        self._load_seconds[name] = loop.time() - began
        _log.info("model %s is ready after %.2f s", name, loop.time() - began)
        self._spawn(self._watch_end(name, server), self._ends, name)
        pool, book = pool_of(server.profile, server.facts), self._book_of(server)
        if pool is not None:
            for ticket, credit in self._quotes.ask(server):
                self._policy.requote(ticket, credit)
        self._execute(self._policy.started(name, slots_of(server), loop.time(), pool=pool, book=book))
        self._idle.renew(server)  # whoever wanted it may have left meanwhile
        self._on_up(server)

    def _resize(self, name: str, server: Server) -> None:
        if self._servers.get(name) is server and not self._closing:
            self._execute(self._policy.resized(name, slots_of(server), self._now()))

    async def _watch_end(self, name: str, server: Server) -> None:
        await server.wait_ended()
        if server.state is not ServerState.FAILED or self._servers.get(name) is not server:
            return
        _log.error("model %s ended by itself: %s", name, server.reason)
        self._on_gone(server)
        why = f": {server.reason}" if server.reason else ""
        fault = DeckError(ErrorKind.UNAVAILABLE, f"the {server.profile.backend} of {name!r} ended by itself{why}")
        self._execute(self._policy.crashed(name, fault, self._now()))

    async def _stop(self, name: str, server: Server) -> None:
        self._on_gone(server)
        try:
            self._models.measure(server)
            await server.stop(grace=self._grace)
            _log.info("model %s is stopped", name)
        except Exception:
            _log.exception("model %s could not be stopped in order", name)
        self._execute(self._policy.stopped(name, self._now()))

    def _watch_expiry(self) -> None:
        loop = asyncio.get_running_loop()
        if self._expiry is None and not self._policy.is_restless:
            return
        at = self._policy.next_expiry(loop.time())
        if self._expiry is not None:
            if self._expiry[0] == at:
                return
            self._expiry[1].cancel()
            self._expiry = None
        if at is not None:
            # uvloop's timer for now has no time of its own.
            self._expiry = at, loop.call_at(at, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        self._execute(self._policy.expire(self._now() + TICK))

    async def close(self) -> None:
        """Refuse who waits and stop every server."""
        self._closing = True
        self._idle.close()
        if self._expiry is not None:
            self._expiry[1].cancel()
        error = DeckError(ErrorKind.UNAVAILABLE, "Deck is shutting down", retry_after=10)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        now = self._now()
        for item in self._policy.waiting(now):
            self._policy.leave(item.ticket, now)
        # A stop that is under way goes on in order, beside those of the others.
        going = {name: task for name, task in self._stops.items() if not task.done()}
        ended = self._tasks.difference(going.values())
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
        others = [server for name, server in self._servers.items() if name not in going]
        for server in others:
            self._on_gone(server)
        stops = [server.stop(grace=self._grace) for server in others]
        for failure in await asyncio.gather(*stops, *going.values(), return_exceptions=True):
            if isinstance(failure, Exception):
                _log.error("a server could not be stopped in order", exc_info=failure)
