"""Who runs when: values in, commands out; no await, no clock, no server is touched here.

Waiters are served by priority, which grows while they wait, then in order. One ahead whose model needs room stops new
grants to the residents that must go for it, or a busy one would starve it for ever; but one that has just been loaded
serves its own waiters for as long as its load took, or turns would be nothing but loads. Nobody behind the waiter
starts a model into the room that it waits for. A server that is in use, is loading or is pinned is never stopped.
"""

from __future__ import annotations

from dataclasses import replace

from deck.errors import DeckError, ErrorKind
from deck.scheduler.faults import Faults
from deck.scheduler.lateness import told_late
from deck.scheduler.residents import Resident, room_for
from deck.scheduler.slots import SlotBook
from deck.scheduler.values import Command, Grant, Model, Refuse, Start, Stop, Ticket, Waiting

# A server that ran so long before it crashed was no failed start.
_PROVEN = 60.0
# Memory of a server that has just gone may not be free yet: a start that fails so soon after is tried once more.
_SETTLING = 10.0
_SMOOTH = 0.2


class Policy:
    """The scheduler's decisions over a bounded queue.

    Args:
        queue_limit: how many exchanges may wait.
        queue_wait: how long one may wait, in seconds.
        memory: bytes that local models may take together; None = unknown: one at a time.
        ageing: seconds of waiting that count as one level of priority.
        token_limit: how many exchanges of one token run at a time, None = no limit.
    """

    def __init__(
        self,
        *,
        queue_limit: int,
        queue_wait: float,
        memory: int | None = None,
        ageing: float = 30.0,
        token_limit: int | None = None,
    ) -> None:
        self._limit = queue_limit
        self._wait = queue_wait
        self._memory = memory
        self._ageing = ageing
        self._token_limit = token_limit
        self._queue: list[Ticket] = []
        self._residents: dict[str, Resident] = {}
        self._per_token: dict[str, int] = {}
        self._faults = Faults()
        # Models that are to be up though nobody waits for them: until one starts, or an operator unloads it.
        self._standing: dict[str, Model] = {}
        self._freed = float("-inf")
        self._exchange_time: dict[str, float] = {}
        self._load_time: dict[str, float] = {}

    @property
    def depth(self) -> int:
        """How many exchanges wait."""
        return len(self._queue)

    @property
    def is_restless(self) -> bool:
        """True when time alone may bring something to do: somebody waits, or a model is to be started again."""
        return bool(self._queue or self._standing)

    def running(self, profile: str) -> int:
        """How many exchanges use the profile's server."""
        resident = self._residents.get(profile)
        return len(resident.granted) if resident is not None else 0

    def is_resident(self, profile: str) -> bool:
        """Tell whether a profile's server is there, coming or going."""
        return profile in self._residents

    def slot(self, ticket: Ticket) -> int | None:
        """Return the slot that a granted exchange is to run in, None = the server chooses."""
        resident = self._residents.get(ticket.profile)
        book = resident.book if resident is not None else None
        return book.slot_of(ticket.id) if book is not None else None

    def is_alone(self, ticket: Ticket) -> bool:
        """Tell whether a granted exchange is the only one of its conversation."""
        resident = self._residents.get(ticket.profile)
        return resident is None or resident.is_alone(ticket)

    def waiting(self, now: float) -> list[Waiting]:
        """Return who waits, in the order in which they are served."""
        before: dict[str, int] = {}
        found = []
        for place, ticket in enumerate(self._ordered(now), 1):
            ahead = before.get(ticket.profile, 0)
            before[ticket.profile] = ahead + 1
            found.append(Waiting(ticket, place, self._expected(ticket, ahead)))
        return found

    def arrive(self, ticket: Ticket, now: float) -> list[Command]:
        """Take a new exchange."""
        resident = self._residents.get(ticket.model.name)
        if (
            not self._queue
            and resident is not None
            and resident.has_room(ticket)
            and ((ticket.claim is None and self._token_limit is None) or self._has_turn(ticket, resident, now))
        ):
            return [self._grant(resident, ticket, now)]
        fault = self._faults.get(ticket.profile)
        if resident is None and fault is not None and now + fault.patience < fault.until:
            return [Refuse(ticket, fault.again(now))]
        if len(self._queue) >= self._limit:
            message = f"{self._limit} requests are waiting already; try again later"
            return [Refuse(ticket, DeckError(ErrorKind.RATE_LIMIT, message, retry_after=self._retry_after()))]
        self._queue.append(ticket)
        return self._advance(now)

    def leave(self, ticket: Ticket, now: float) -> list[Command]:
        """Take back an exchange that still waits: its client has gone."""
        self._queue = [item for item in self._queue if item.id != ticket.id]
        return self._advance(now)

    def release(self, ticket: Ticket, now: float) -> list[Command]:
        """Take back the slot of a granted exchange that has ended."""
        name = ticket.model.name
        resident = self._residents.get(name)
        if resident is not None and ticket.id in resident.granted:
            self._learn(self._exchange_time, name, now - resident.granted.pop(ticket.id)[1])
            if resident.book is not None:
                resident.book.leave(ticket.id, now)
            resident.used = now
            if self._per_token:
                self._give_turn_back(ticket)
        return self._advance(now)

    def fits(self, ticket: Ticket, credit: int) -> bool:
        """Tell whether one that runs may take so much, beside what the others of its server were granted."""
        resident = self._residents.get(ticket.profile)
        if resident is None or resident.pool is None or len(resident.granted) < 2:
            return True
        others = sum(other.credit for other, _ in resident.granted.values() if other.id != ticket.id)
        return others + credit <= resident.pool

    def settle(self, ticket: Ticket, credit: int, now: float) -> list[Command]:
        """Set the credit of one that runs, if it fits: it was granted before anybody could know what it takes."""
        resident = self._residents.get(ticket.profile)
        found = resident.granted.get(ticket.id) if resident is not None else None
        if resident is None or found is None or credit == found[0].credit or not self.fits(ticket, credit):
            return []
        resident.granted[ticket.id] = (replace(found[0], credit=credit), found[1])
        return self._advance(now)

    def requote(self, ticket: Ticket, credit: int) -> None:
        """Set the credit of one that still waits: its server is known now, and `started` follows."""
        self._queue = [replace(item, credit=credit) if item.id == ticket.id else item for item in self._queue]

    def started(
        self, profile: str, slots: int, now: float, *, pool: int | None = None, book: SlotBook | None = None
    ) -> list[Command]:
        """Note that a server is ready with so many slots; 0 = no bound.

        `pool` is the tokens that its slots share, `book` gives its slots out, None = the server does that itself.
        """
        resident = self._residents.get(profile)
        if resident is not None:
            resident.load = now - resident.since
            self._learn(self._load_time, profile, resident.load)
            resident.state, resident.slots, resident.pool = "ready", slots, pool
            resident.book = book
            resident.since = resident.used = now
        return self._advance(now)

    def resized(self, profile: str, slots: int, now: float) -> list[Command]:
        """Note that a server that is ready has so many slots now; 0 = no bound. Whoever uses one keeps it."""
        resident = self._residents.get(profile)
        if resident is not None and resident.state != "starting":
            resident.slots = slots
        return self._advance(now)

    def failed(
        self, profile: str, error: DeckError, now: float, *, for_memory: bool = False, was_run: bool = True
    ) -> list[Command]:
        """Note that a server did not start: whoever waits for it is told why.

        What was found before anything was run, such as a missing file, costs nothing to look for again: `was_run`.

        One that failed `for_memory` soon after another has gone is tried once more: what that held is not free at once.
        The next to come tries again; after three failures in a row only when a time is over, which doubles with each.
        """
        resident = self._residents.get(profile)
        if (
            for_memory
            and resident is not None
            and not resident.was_retried
            and resident.since - self._freed < _SETTLING
        ):
            resident.was_retried = True
            return [Start(profile)]
        self._drop(profile)
        if was_run:
            self._faults.add(profile, error, now)
        if error.should_retry is False:
            self._standing.pop(profile, None)  # it would fail again
        elif resident is not None:
            self._want_again(resident.model)
        return [*self._refuse_all(profile, error), *self._advance(now)]

    def stopped(self, profile: str, now: float) -> list[Command]:
        """Note that a server has gone by command; one that is not being stopped is another, which has come since."""
        resident = self._residents.get(profile)
        if resident is None or resident.state != "stopping":
            return self._advance(now)
        if self._is_proven(profile, now):
            self._faults.forgive(profile)
        self._drop(profile)
        self._freed = now
        # Who made room for another comes back when there is room again; not whom an operator has unloaded.
        if resident.model.is_warm and not resident.is_unwanted:
            self._standing[profile] = resident.model
        return self._advance(now)

    def crashed(self, profile: str, error: DeckError, now: float) -> list[Command]:
        """Note that a server ended by itself; whoever waits for it still wants it."""
        was_proven = self._is_proven(profile, now)
        resident = self._residents.get(profile)
        self._drop(profile)
        if resident is not None and not resident.is_unwanted:
            self._want_again(resident.model)
        if was_proven:
            self._faults.forgive(profile)
        else:
            self._faults.add(profile, error, now)
        fault = self._faults.get(profile)
        commands: list[Command] = []
        if fault is not None and now + fault.patience < fault.until:
            refused = [ticket for ticket in self._queue if ticket.profile == profile]
            self._queue = [ticket for ticket in self._queue if ticket.profile != profile]
            commands += [Refuse(ticket, fault.again(now)) for ticket in refused]
        return [*commands, *self._advance(now)]

    def hung(self, profile: str, now: float) -> list[Command]:
        """Note that a server hangs and is being ended: nobody new may use it; `crashed` follows."""
        resident = self._residents.get(profile)
        if resident is not None and resident.state == "ready":
            resident.state = "stopping"
        return self._advance(now)

    def recycle(self, profile: str, now: float) -> list[Command] | None:
        """Stop a server as soon as nobody uses it; whoever wants it then gets a new one. None = it goes already."""
        resident = self._residents.get(profile)
        if resident is None or resident.state != "ready" or resident.is_unwanted:
            return None
        commands = self.unload(profile, now)
        if resident.model.is_warm or resident.model.restarts:
            self._standing[profile] = resident.model
        return commands

    def forgive(self, profile: str) -> None:
        """Forget the failures of a profile: it was changed, or an operator wants it tried."""
        self._faults.forgive(profile)

    def quarantined(self, now: float) -> dict[str, tuple[int, float]]:
        """Return the profiles that are not tried now: how often they failed in a row, and for how many seconds more."""
        return self._faults.held_off(now)

    def preload(self, model: Model, now: float) -> list[Command]:
        """Start a model that nobody asked for yet, if there is room without stopping another."""
        resident = self._residents.get(model.name)
        if resident is not None:
            if model.is_warm and (resident.is_unwanted or resident.state == "stopping"):
                self._standing[model.name] = model
            return []
        if not room_for(model, self._residents.values(), self._memory).is_free:
            if model.is_warm:
                self._standing[model.name] = model
            return []
        return [self._start(model, now)]

    def unload(self, profile: str, now: float) -> list[Command]:
        """Stop a server as soon as nobody uses it; until then nobody new may."""
        resident = self._residents.get(profile)
        self._standing.pop(profile, None)
        if resident is not None:
            resident.is_unwanted = True
        return self._advance(now)

    def unload_now(self, profile: str, now: float) -> list[Command]:
        """Stop a server though it is in use; one that is not ready yet goes as soon as it is."""
        resident = self._residents.get(profile)
        if resident is None or resident.state != "ready":
            return self.unload(profile, now)
        self._standing.pop(profile, None)
        resident.is_unwanted = True
        return [self._stop(resident), *self._advance(now)]

    def renew(self, model: Model, now: float, *, is_relaunched: bool = False) -> list[Command]:
        """Take a changed model at once, also for who waits; a server to be replaced takes what it was started with."""
        resident = self._residents.get(model.name)
        if resident is not None:
            was = resident.model
            resident.model = replace(model, memory=was.memory, is_local=was.is_local) if is_relaunched else model
        if self._standing.pop(model.name, None) is not None:
            self._want_again(model)
        self._queue = [replace(item, model=model) if item.profile == model.name else item for item in self._queue]
        return self._advance(now)

    def remove(self, profile: str, error: DeckError, now: float) -> list[Command]:
        """Refuse who waits for a model that is gone, and stop its server as soon as nobody uses it."""
        self.forgive(profile)
        return [*self._refuse_all(profile, error), *self.unload(profile, now)]

    def idle(self, profile: str, now: float) -> list[Command]:
        """Note that a server's idle time is over; one that is in use or wanted stays."""
        resident = self._residents.get(profile)
        wanted = any(ticket.profile == profile for ticket in self._queue)
        if resident is None or resident.state != "ready" or resident.granted or wanted or resident.model.is_warm:
            return []
        return [self._stop(resident)]

    def expire(self, now: float) -> list[Command]:
        """Refuse who has waited too long, and do what only time allows; a load has a limit of its own."""
        late = [ticket for ticket in self._queue if now > self._limit_of(ticket) and not self._is_loading(ticket)]
        self._queue = [ticket for ticket in self._queue if ticket not in late]
        commands: list[Command] = []
        for ticket in late:
            room = room_for(ticket.model, self._residents.values(), self._memory)
            told = told_late(ticket, self._wait, self._residents.get(ticket.profile), room)
            error = DeckError(ErrorKind.UNAVAILABLE, f"{told}; try again later", retry_after=self._retry_after())
            commands.append(Refuse(ticket, error))
        return [*commands, *self._advance(now)]

    def next_expiry(self, now: float) -> float | None:
        """Return when `expire` has something to do, None = nobody waits."""
        times = [self._limit_of(ticket) for ticket in self._queue if not self._is_loading(ticket)]
        if self._queue:
            stays = (item.stays_until for item in self._residents.values() if item.state == "ready")
            tries = self._faults.ends(item.profile for item in self._queue)
            pins = (time for item in self._residents.values() if item.book is not None for time in item.book.ends(now))
            turns = (item.since + item.claim.alone for item in self._queue if item.claim is not None)
            shares = (item.since + self._patience_of(item) for item in self._queue if item.claim is not None)
            times += [time for time in (*stays, *tries, *pins, *turns, *shares) if time > now]
        held = self._faults.ends(self._standing)
        return min((*times, *(time for time in held if time > now)), default=None)

    def _patience_of(self, ticket: Ticket) -> float:
        resident = self._residents.get(ticket.profile)
        return resident.book.patience if resident is not None and resident.book is not None else 0.0

    def _is_proven(self, profile: str, now: float) -> bool:
        resident = self._residents.get(profile)
        return resident is not None and resident.state != "starting" and now - resident.since >= _PROVEN

    def _limit_of(self, ticket: Ticket) -> float:
        """Return until when a ticket may wait; the time for which its own model loaded does not count."""
        resident = self._residents.get(ticket.profile)
        loading = min(resident.load, max(0.0, resident.since - ticket.since)) if resident is not None else 0.0
        return ticket.since + self._wait + loading

    def _is_loading(self, ticket: Ticket) -> bool:
        resident = self._residents.get(ticket.profile)
        return resident is not None and resident.state == "starting"

    def _ordered(self, now: float) -> list[Ticket]:
        def urgency(ticket: Ticket) -> tuple[float, int]:
            level = ticket.priority + ticket.model.priority + (now - ticket.since) / self._ageing
            return -level, ticket.id

        # Sorting by what grows alike for all keeps the order of those that came in order.
        return sorted(self._queue, key=urgency)

    def _advance(self, now: float) -> list[Command]:
        if not self._queue:
            return [*self._unwanted(), *self._restart(now)] if self._has_wishes() else []
        commands: list[Command] = []
        going: set[str] = set()
        asked: set[str] = set()
        is_reserved = False
        for ticket in self._ordered(now):
            name = ticket.profile
            resident = self._residents.get(name)
            if resident is not None:
                if name not in going and self._has_turn(ticket, resident, now):
                    if resident.has_room(ticket):
                        self._queue.remove(ticket)
                        commands.append(self._grant(resident, ticket, now))
                    else:
                        going.add(name)  # nobody smaller may pass one that waits for its share of the pool
                continue
            if name in asked:
                continue
            asked.add(name)
            if self._is_held_off(name, now):
                continue
            room = room_for(ticket.model, self._residents.values(), self._memory)
            if room.never is not None:
                message = f"no room for {name!r}: {room.never}"
                error = DeckError(ErrorKind.UNAVAILABLE, message, should_retry=False)
                commands += self._refuse_all(name, error)
            elif room.is_free and not (is_reserved and ticket.model.is_local):
                commands.append(self._start(ticket.model, now))
            elif ticket.model.is_local and not is_reserved:
                is_reserved = True
                leaving = [item for item in room.victims if not self._is_kept(item, now)]
                going.update(item.model.name for item in leaving)
                commands += [self._stop(item) for item in leaving if item.may_stop(now)]
        commands += self._unwanted()
        return commands if is_reserved else [*commands, *self._restart(now)]

    def _has_wishes(self) -> bool:
        """Tell whether a server is to go or to come though nobody waits for it."""
        for item in self._residents.values():
            if item.is_unwanted:
                return True
        return bool(self._standing)

    def _restart(self, now: float) -> list[Command]:
        """Start what is to be up though nobody waits for it, as far as there is room that nobody waits for."""
        commands: list[Command] = []
        for name, model in list(self._standing.items()):
            if name in self._residents or self._is_held_off(name, now):
                continue
            if room_for(model, self._residents.values(), self._memory).is_free:
                commands.append(self._start(model, now))
        return commands

    def _is_kept(self, resident: Resident, now: float) -> bool:
        """Tell whether a server still serves its own waiters before it makes room for one ahead of them."""
        is_new = resident.state == "ready" and now < resident.stays_until
        return is_new and any(ticket.profile == resident.model.name for ticket in self._queue)

    def _want_again(self, model: Model) -> None:
        if model.is_warm or model.restarts:
            self._standing[model.name] = model

    def _is_held_off(self, profile: str, now: float) -> bool:
        fault = self._faults.get(profile)
        return fault is not None and now < fault.until

    def _unwanted(self) -> list[Command]:
        ready = [item for item in self._residents.values() if item.is_unwanted and item.state == "ready"]
        return [self._stop(item) for item in ready if not item.granted]

    def _refuse_all(self, profile: str, error: DeckError) -> list[Command]:
        refused = [ticket for ticket in self._queue if ticket.profile == profile]
        self._queue = [ticket for ticket in self._queue if ticket.profile != profile]
        return [Refuse(ticket, error) for ticket in refused]

    def _has_turn(self, ticket: Ticket, resident: Resident, now: float) -> bool:
        is_below = self._token_limit is None or self._per_token.get(ticket.token, 0) < self._token_limit
        return is_below and resident.lets_in(ticket, now)

    def _grant(self, resident: Resident, ticket: Ticket, now: float) -> Grant:
        resident.granted[ticket.id] = (ticket, now)
        if resident.book is not None and ticket.claim is not None:
            resident.book.enter(ticket.id, ticket.claim, ticket.token, now, ticket.since)
        resident.used = now
        if self._token_limit is not None:
            self._per_token[ticket.token] = self._per_token.get(ticket.token, 0) + 1
        return Grant(ticket)

    def _give_turn_back(self, ticket: Ticket) -> None:
        left = self._per_token.get(ticket.token, 0) - 1
        if left > 0:
            self._per_token[ticket.token] = left
        else:
            self._per_token.pop(ticket.token, None)

    def _start(self, model: Model, now: float) -> Start:
        self._standing.pop(model.name, None)
        self._residents[model.name] = Resident(model, since=now, used=now)
        return Start(model.name)

    def _stop(self, resident: Resident) -> Stop:
        resident.state = "stopping"
        return Stop(resident.model.name)

    def _drop(self, profile: str) -> None:
        resident = self._residents.pop(profile, None)
        for ticket, _ in resident.granted.values() if resident else ():
            self._give_turn_back(ticket)

    def _learn(self, means: dict[str, float], profile: str, seconds: float) -> None:
        known = means.get(profile)
        means[profile] = seconds if known is None else known + _SMOOTH * (seconds - known)

    def _expected(self, ticket: Ticket, ahead: int) -> float | None:
        each = self._exchange_time.get(ticket.profile)
        resident = self._residents.get(ticket.profile)
        if each is None or (resident is None and ticket.profile not in self._load_time):
            return None
        slots = max(1, resident.slots if resident else 1)
        load = 0.0 if resident is not None and resident.state == "ready" else self._load_time.get(ticket.profile, 0.0)
        return load + each * (ahead + slots) / slots

    def _retry_after(self) -> float:
        """Return when a place may be free: as long as an exchange takes, within bounds."""
        return min(60.0, max(5.0, sum(self._exchange_time.values()) / max(1, len(self._exchange_time))))
