"""Who runs when: values in, commands out; no await, no clock, no server is touched here.

One local model is resident at a time, since nothing here knows how much memory there is; remote servers take no
room and are never evicted. Waiters are served in order: one ahead for another model stops new grants to a busy
resident, or that would starve it for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from deck.canon.value import value
from deck.errors import DeckError, ErrorKind


@value(frozen=True, slots=True)
class Ticket:
    """One exchange that wants a model; `since` is when it came, in the caller's clock."""

    id: int
    profile: str
    is_local: bool
    since: float


@value(frozen=True, slots=True)
class Grant:
    """The ticket may use its server now."""

    ticket: Ticket


@value(frozen=True, slots=True)
class Refuse:
    """The ticket gets this error."""

    ticket: Ticket
    error: DeckError


@value(frozen=True, slots=True)
class Start:
    """Start this profile's server; the answer is `started` or `failed`."""

    profile: str


@value(frozen=True, slots=True)
class Stop:
    """Stop this profile's server; the answer is `stopped`."""

    profile: str


Command = Grant | Refuse | Start | Stop


@dataclass(slots=True)
class _Resident:
    is_local: bool
    state: Literal["starting", "ready", "stopping"]
    slots: int = 0
    running: int = 0

    @property
    def has_room(self) -> bool:
        return self.state == "ready" and (self.slots == 0 or self.running < self.slots)


class Policy:
    """The scheduler's decisions over a bounded queue.

    Args:
        queue_limit: how many exchanges may wait.
        queue_wait: how long one may wait, in seconds.
    """

    def __init__(self, *, queue_limit: int, queue_wait: float) -> None:
        self._limit = queue_limit
        self._wait = queue_wait
        self._queue: list[Ticket] = []
        self._residents: dict[str, _Resident] = {}

    @property
    def depth(self) -> int:
        """How many exchanges wait."""
        return len(self._queue)

    def running(self, profile: str) -> int:
        """How many exchanges use the profile's server."""
        resident = self._residents.get(profile)
        return resident.running if resident else 0

    def arrive(self, ticket: Ticket) -> list[Command]:
        """Take a new exchange."""
        resident = self._residents.get(ticket.profile)
        if not self._queue and resident is not None and resident.has_room:
            resident.running += 1
            return [Grant(ticket)]
        if len(self._queue) >= self._limit:
            message = f"{self._limit} requests are waiting already; try again later"
            return [Refuse(ticket, DeckError(ErrorKind.RATE_LIMIT, message, retry_after=5))]
        self._queue.append(ticket)
        return self._advance()

    def leave(self, ticket: Ticket) -> list[Command]:
        """Take back an exchange that still waits: its client has gone."""
        if ticket in self._queue:
            self._queue.remove(ticket)
        return self._advance()

    def release(self, profile: str) -> list[Command]:
        """Take back a slot of a granted exchange that has ended."""
        resident = self._residents.get(profile)
        if resident is not None and resident.running > 0:
            resident.running -= 1
        return self._advance()

    def started(self, profile: str, slots: int) -> list[Command]:
        """Note that a server is ready with so many slots; 0 = no bound."""
        resident = self._residents.get(profile)
        if resident is not None:
            resident.state, resident.slots = "ready", slots
        return self._advance()

    def failed(self, profile: str, error: DeckError) -> list[Command]:
        """Note that a server did not start: whoever waits for it is told why, the next to come tries again."""
        self._residents.pop(profile, None)
        refused = [ticket for ticket in self._queue if ticket.profile == profile]
        self._queue = [ticket for ticket in self._queue if ticket.profile != profile]
        return [*(Refuse(ticket, error) for ticket in refused), *self._advance()]

    def stopped(self, profile: str) -> list[Command]:
        """Note that a server is gone, by command or by itself."""
        self._residents.pop(profile, None)
        return self._advance()

    def idle(self, profile: str) -> list[Command]:
        """Note that a server's idle time is over; one that is in use or wanted stays."""
        resident = self._residents.get(profile)
        wanted = any(ticket.profile == profile for ticket in self._queue)
        if resident is None or resident.state != "ready" or resident.running or wanted:
            return []
        resident.state = "stopping"
        return [Stop(profile)]

    def expire(self, now: float) -> list[Command]:
        """Refuse who has waited too long; a load has a limit of its own, so who waits for one stays."""
        late = [ticket for ticket in self._queue if now - ticket.since > self._wait and not self._is_loading(ticket)]
        self._queue = [ticket for ticket in self._queue if ticket not in late]
        commands: list[Command] = []
        for ticket in late:
            message = f"waited {self._wait:g} s for {ticket.profile!r} and it did not become free; try again later"
            commands.append(Refuse(ticket, DeckError(ErrorKind.UNAVAILABLE, message, retry_after=10)))
        return [*commands, *self._advance()] if commands else []

    def next_expiry(self) -> float | None:
        """Return when `expire` has something to do, None = nobody waits."""
        first = min((ticket.since for ticket in self._queue if not self._is_loading(ticket)), default=None)
        return None if first is None else first + self._wait

    def _is_loading(self, ticket: Ticket) -> bool:
        resident = self._residents.get(ticket.profile)
        return resident is not None and resident.state == "starting"

    def _advance(self) -> list[Command]:
        commands: list[Command] = []
        left: list[Ticket] = []
        blocked: set[str] = set()
        for ticket in self._queue:
            resident = self._residents.get(ticket.profile)
            if resident is not None and resident.has_room and ticket.profile not in blocked:
                resident.running += 1
                commands.append(Grant(ticket))
                continue
            left.append(ticket)
            if resident is None:
                commands += self._make_room(ticket, blocked)
        self._queue = left
        return commands

    def _make_room(self, ticket: Ticket, blocked: set[str]) -> list[Command]:
        others = [name for name, item in self._residents.items() if item.is_local] if ticket.is_local else []
        if not others:
            self._residents[ticket.profile] = _Resident(ticket.is_local, "starting")
            return [Start(ticket.profile)]
        commands: list[Command] = []
        for name in others:
            other = self._residents[name]
            blocked.add(name)
            if other.state == "ready" and other.running == 0:
                other.state = "stopping"
                commands.append(Stop(name))
        return commands
