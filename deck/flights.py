"""The static lane: identical exchanges that wait or run at the same time share one generation.

The generation is a task of its own, so that whoever asked for it first may leave: it ends when nobody waits for it any
more. Each exchange folds the events for itself, so that its answer and its ids are its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any

from deck.canon.events import Event, Failed, PartStart
from deck.errors import DeckError, ErrorKind
from deck.exchange import Exchange
from deck.normalize.report import Report
from deck.scheduler.lanes import Lane

_LEAST_FAULT = 500
Taker = Callable[[list[Event]], Awaitable[None] | None]
Run = Callable[[Exchange, Taker], Coroutine[Any, Any, None]]
_Key = tuple[str, str, int, bytes]


class _Flight:
    """One shared generation: its own exchange, what came of it, and how many wait for it.

    `is_counted` = an exchange has taken its tokens for its own.
    """

    __slots__ = ("events", "exchange", "guests", "is_counted", "task")

    def __init__(self, exchange: Exchange, run: Run, clock: Callable[[], float]) -> None:
        self.exchange = own = replace(exchange, report=Report())
        self.events: list[Event] = []
        self.guests = 0
        self.is_counted = False

        def take(events: list[Event]) -> None:
            if own.first_token is None and any(isinstance(event, PartStart) for event in events):
                own.first_token = clock()
            self.events += events

        self.task = asyncio.get_running_loop().create_task(run(own, take))


class Flights:
    """All shared generations that run.

    Args:
        run: runs one exchange by itself.
        most: how many exchanges may share one generation; the next ones run by themselves.
        clock: the exchanges'.
    """

    def __init__(self, run: Run, *, most: int, clock: Callable[[], float]) -> None:
        self._run = run
        self._most = most
        self._clock = clock
        self._flights: dict[_Key, _Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def guests(self) -> int:
        """How many exchanges wait for one of them."""
        return sum(flight.guests for flight in self._flights.values())

    def exchanges(self) -> Iterator[Exchange]:
        """Yield the generations' own exchanges."""
        return (flight.exchange for flight in self._flights.values())

    async def run(self, exchange: Exchange, take: Taker) -> None:
        """Run an exchange, or wait for one that is like it; then hand on all events.

        Raises:
            DeckError: nothing was answered.
        """
        key = _key(exchange)
        flight = self._flights.get(key)
        if flight is not None and flight.guests >= self._most:
            await self._alone(exchange, take)
            return
        is_first = flight is None
        if flight is None:
            flight = self._flights[key] = _Flight(exchange, self._run, self._clock)
            flight.task.add_done_callback(partial(self._landed, key))
        own = flight.exchange
        try:
            error = await self._awaited(key, flight)
        finally:
            exchange.server, exchange.shaped, exchange.replica = own.server, own.shaped, own.replica
            # What was passed over once is counted once.
            exchange.retries, own.retries = exchange.retries + own.retries, 0
            exchange.granted = max(own.granted, exchange.began) if own.granted is not None else None
        if error is None:
            _hand_on(flight, exchange, take)
        elif not is_first and own.granted is not None and error.kind.status >= _LEAST_FAULT:
            await self._alone(exchange, take)
        else:
            raise error

    async def _awaited(self, key: _Key, flight: _Flight) -> DeckError | None:
        """Wait for the end of a generation and return its error; whoever leaves last ends it."""
        flight.guests += 1
        try:
            await asyncio.wait({flight.task})
        finally:
            flight.guests -= 1
            if not flight.guests and not flight.task.done():
                del self._flights[key]
                flight.task.cancel()
        if flight.task.cancelled():
            return DeckError(ErrorKind.UNAVAILABLE, "Deck is shutting down", retry_after=10)
        failure = flight.task.exception()
        if failure is None:
            last = flight.events[-1] if flight.events else None
            return _own(last.error) if isinstance(last, Failed) else None
        if not isinstance(failure, DeckError):
            raise failure
        return _own(failure)

    def _landed(self, key: _Key, task: asyncio.Task[None]) -> None:
        if key in self._flights and self._flights[key].task is task:
            del self._flights[key]
        if not task.cancelled():
            task.exception()  # whoever would have raised it may have left

    async def _alone(self, exchange: Exchange, take: Taker) -> None:
        exchange.left, exchange.lane = Lane.STATIC, Lane.CONTINUOUS
        await self._run(exchange, take)


def _hand_on(flight: _Flight, exchange: Exchange, take: Taker) -> None:
    """Give an exchange what the shared generation found out, and its events."""
    own = flight.exchange
    exchange.is_guest, flight.is_counted = flight.is_counted, True
    exchange.first_token = max(own.first_token, exchange.began) if own.first_token is not None else None
    exchange.report.add(own.report.notes)
    take(list(flight.events))


def _key(exchange: Exchange) -> _Key:
    """Return what exchanges have in common that may share a generation; the flight keeps the profile alive."""
    assert exchange.parsed is not None
    parsed = exchange.parsed
    told = repr((parsed.request, parsed.needs, sorted(parsed.paths.items()))).encode("utf-8", "surrogatepass")
    return exchange.principal.name, exchange.surface.name, id(exchange.profile), blake2b(told, digest_size=16).digest()


def _own(error: DeckError) -> DeckError:
    """Return a copy that may be worded and raised for one exchange."""
    return DeckError(
        error.kind,
        error.message,
        param=error.param,
        code=error.code,
        retry_after=error.retry_after,
        limits=error.limits,
        should_retry=error.should_retry,
    )
