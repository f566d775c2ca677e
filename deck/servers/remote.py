"""The llama-servers of a model that run elsewhere, one or several: Deck asks whether they are well and chooses one.

It never starts or stops them. Each exchange goes to one; to another one only if it could not begin there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from deck.contracts import Address, Facts, Replica, ReplicaState, ServerState
from deck.errors import DeckError, ErrorKind, NotRunError
from deck.profile import Profile
from deck.servers.backend import Backend, Fate, fate_of
from deck.servers.backend import address_of as address_of
from deck.servers.choice import choose

_log = logging.getLogger("deck.servers")
_RETRY_AFTER = 5.0
_BUSY_AGAIN = 2.0
# Once one server is ready, how long those that are slower to say so are waited for.
_OTHERS = 1.0
# How soon a start takes notice of servers that a reload has added.
_NEW = 0.1
_LEAST_PAUSE = 0.05
_MOST_CONVERSATIONS = 4096
# What two servers of one model may differ in, and what then counts.
_REMARKS = {
    "model": "it serves {mine!r}, the first {first!r}",
    "template": "its chat template is another than the first one's",
    "context": "it has {mine} tokens of context per slot, the first {first}; the least counts",
    "slots": "it has {mine} slots, the first {first}",
}


class Use:
    """An exchange on one of the servers."""

    __slots__ = ("_began", "has_begun", "server")

    def __init__(self, backend: Backend, began: float | None) -> None:
        self.server = backend
        self.has_begun = False
        self._began = began

    def begun(self) -> None:
        """Note that the answer has begun."""
        self.has_begun = True
        if self._began is not None:
            now = time.monotonic()
            self.server.begun(now, now - self._began)


class Remote:
    """The servers at a profile's `url` or `urls`; implements `contracts.Server` and `contracts.Replicated`.

    Those of `urls` are watched; the one of `url` is asked at the start and then always tried.

    Args:
        profile: one with `[server] url` or `urls`.
        environ: where the key is looked up, at each start.
        jitter: numbers from 0 to 1.

    Attributes:
        facts: what holds of all that are up: the least context, what all of them read; empty before one is ready.
    """

    log = None

    def __init__(
        self,
        profile: Profile,
        environ: Mapping[str, str] = os.environ,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.on_slots: Callable[[], None] = lambda: None
        self._profile = profile
        self._environ = environ
        self._jitter = jitter
        self._backends = [Backend(profile, url, jitter) for url in profile.server.addresses]
        self._watching: dict[Backend, asyncio.Task[None]] = {}
        self.facts = Facts()
        self._key: str | None = None
        self._state = ServerState.STOPPED
        self._reason: str | None = None
        self._shown: dict[Backend, ReplicaState] = {}
        self._slots = 0
        self._turn = 0
        self._ended = asyncio.Event()
        self._last: OrderedDict[str, str] = OrderedDict()

    @property
    def profile(self) -> Profile:
        """The model's; one with other URLs adds and removes servers, and what runs on those that go runs on."""
        return self._profile

    @profile.setter
    def profile(self, profile: Profile) -> None:
        known = {backend.url: backend for backend in self._backends}
        self._profile = profile
        for backend in self._backends:
            backend.renew(profile)
        urls = profile.server.addresses
        self._backends = [known.pop(url) if url in known else Backend(profile, url, self._jitter) for url in urls]
        for backend in self._backends:
            backend.key = self._key
        if self._state is not ServerState.READY:
            return
        # The only one is watched no longer, or asked anew until it is known.
        for backend in [*known.values(), *([] if profile.server.urls else self._backends)]:
            self._unwatch(backend)
        if not profile.server.urls and not self._backends[0].is_known:
            self.facts = Facts()  # those of the one before say nothing of it
        for backend in self._backends:
            if backend not in self._watching:
                self._watch(backend)
        self._look()

    @property
    def state(self) -> ServerState:
        """Where it is in its life, as far as Deck uses it: failed while none of the servers can be used."""
        if self._state is not ServerState.READY or not self._profile.server.urls:
            return self._state
        now = time.monotonic()
        states = {backend.condition(now) for backend in self._backends}
        if states & {ReplicaState.UP, ReplicaState.HALF_OPEN}:
            return ServerState.READY
        return ServerState.LOADING if ReplicaState.LOADING in states else ServerState.FAILED

    @property
    def address(self) -> Address:
        """Where the first that is up listens."""
        return self._first_up().address

    @property
    def key(self) -> str | None:
        """The key they want, None = none."""
        return self._key

    @property
    def reason(self) -> str | None:
        """Why none can be used."""
        if self._state is ServerState.READY and self.state is not ServerState.READY:
            return self._none_of_them()
        return self._reason

    @property
    def slots(self) -> int:
        """How many exchanges those that are up take at a time; 0 = no bound, or none is up: who waits is told so."""
        now = time.monotonic()
        return self._profile.server.parallel * sum(
            backend.condition(now) is ReplicaState.UP for backend in self._backends
        )

    @property
    def has_choice(self) -> bool:
        """Whether there is more than one."""
        return len(self._backends) > 1

    @property
    def only(self) -> Backend | None:
        """The server at a `url`, where there is nothing to choose and nothing to learn; None = `use` must choose."""
        return None if self._profile.server.urls else self._backends[0]

    def memory(self) -> int | None:
        """Return None: they take no memory here."""
        return None

    def backends(self) -> Sequence[Backend]:
        """Return the servers themselves."""
        return tuple(self._backends)

    def replicas(self) -> list[Replica]:
        """Return how each is; none for a `url`, which nobody watches."""
        if not self._profile.server.urls:
            return []
        now = time.monotonic()
        return [backend.shown(now, tuple(self.differences(backend))) for backend in self._backends]

    def differences(self, backend: Backend) -> list[str]:
        """Return in what a server differs from the first that is known."""
        first = next((item for item in self._backends if item.is_known), backend)
        if first is backend or not backend.is_known:
            return []
        ours, theirs = _traits(backend), _traits(first)
        return [
            text.format(mine=ours[name], first=theirs[name])
            for name, text in _REMARKS.items()
            if None not in (ours[name], theirs[name]) and ours[name] != theirs[name]
        ]

    async def start(self) -> None:
        """Ask what they are; one that serves is enough.

        Raises:
            DeckError: `UNAVAILABLE` with what each answered.
        """
        self._state, self._reason = ServerState.STARTING, None
        self._ended.clear()
        try:
            self._key = self._read_key()
            for backend in self._backends:
                backend.key = self._key
            async with asyncio.timeout(self._profile.server.load_timeout):
                await self._ask_all()
        except TimeoutError:
            raise self._failed(f"{self._named()} did not answer in {self._profile.server.load_timeout:g} s") from None
        except BaseException:
            if self._state is ServerState.STARTING:
                self._state = ServerState.STOPPED
            raise
        if not any(backend.accepts(time.monotonic()) for backend in self._backends):
            raise self._failed(self._none_of_them())
        self._state = ServerState.READY
        for backend in self._backends:
            self._watch(backend)
        self._look()

    async def stop(self, *, grace: float) -> None:
        """Use and ask them no longer."""
        self._state = ServerState.STOPPED
        self._ended.set()
        tasks = list(self._watching.values())
        for backend in list(self._watching):
            self._unwatch(backend)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def wait_ended(self) -> None:
        """Return when it is used no longer; how a remote server itself ends is not known here."""
        await self._ended.wait()

    async def use(self, affinity: str | None, work: Callable[[Use], Awaitable[DeckError | None]]) -> None:
        """Do work with one of the servers; where it could not begin there, with another. Each is tried once.

        Args:
            affinity: the conversation, which stays where its cache is; None = it has none.
            work: returns the error that its answer ended in, None = it ended well, and raises what came before any of
                the answer.

        Raises:
            DeckError: what the last server said, or that none can be used.
        """
        if (only := self.only) is not None:
            await work(Use(only, None))
            return
        tried: list[Backend] = []
        until = time.monotonic() + self._profile.server.stall_timeout
        error: DeckError | None = None
        while True:
            backend = self._choose(affinity, tried)
            if backend is None:
                raise self._last_word(error)
            tried.append(backend)
            try:
                await self._used(backend, work)
            except DeckError as exc:
                if not fate_of(exc).may_move or time.monotonic() > until:
                    raise
                error = exc
                _log.warning("model %s: %s is passed over: %s", self._profile.id, backend.url, exc.message)
            else:
                return

    def _last_word(self, error: DeckError | None) -> DeckError:
        """Return what the client is told: the server's own words, or what each is where several cannot be reached."""
        if error is not None and (len(self._backends) == 1 or fate_of(error) is Fate.BUSY):
            return error
        return DeckError(ErrorKind.UNAVAILABLE, self._none_of_them(), retry_after=self._again_in())

    async def _used(self, backend: Backend, work: Callable[[Use], Awaitable[DeckError | None]]) -> None:
        began = time.monotonic()
        is_try = backend.begin(began)
        fate: Fate | None = Fate.UNKNOWN
        why: str | None = None
        try:
            use = Use(backend, began)
            ended = await work(use)
            if ended is not None:
                fate, why = fate_of(ended), ended.message
            else:  # that it can count says nothing of whether it can answer
                fate = None if use.has_begun else Fate.ANSWERED
        except DeckError as exc:
            fate, why = fate_of(exc), exc.message
            raise
        finally:
            backend.end(time.monotonic(), fate, why, is_try=is_try)
            self._look()

    def _choose(self, affinity: str | None, tried: Sequence[Backend]) -> Backend | None:
        now = time.monotonic()
        left = [item for item in self._backends if item not in tried]
        # One that has failed is tried by clients only where there is no other; Deck's own question decides as well.
        able = [item for item in left if item.condition(now) is ReplicaState.UP and item.accepts(now)]
        able = able or [item for item in left if item.accepts(now)] or [item for item in left if item.may_accept(now)]
        if not able:
            return None
        self._turn += 1
        last = self._last.get(affinity) if affinity is not None else None
        if len(able) > 1:
            name = choose([item.candidate(now) for item in able], affinity, last, self._turn).name
            found = next(item for item in able if item.url == name)
        else:
            found = able[0]
        if affinity is not None and len(self._backends) > 1:
            self._last[affinity] = found.url
            self._last.move_to_end(affinity)
            if len(self._last) > _MOST_CONVERSATIONS:
                self._last.popitem(last=False)
        return found

    async def _ask_all(self) -> None:
        """Ask all of them, and those that come meanwhile; once one is ready the others have a moment more."""
        asking: dict[asyncio.Future[None], Backend] = {}
        try:
            while not any(backend.accepts(time.monotonic()) for backend in self._backends):
                asked = set(asking.values())
                new = [backend for backend in self._backends if backend not in asked]
                asking.update({asyncio.ensure_future(backend.ask()): backend for backend in new})
                waiting = [task for task, backend in asking.items() if not task.done() and backend in self._backends]
                if not waiting:
                    return
                await asyncio.wait(waiting, timeout=_NEW, return_when=asyncio.FIRST_COMPLETED)
            if waiting := [task for task in asking if not task.done()]:
                await asyncio.wait(waiting, timeout=_OTHERS)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    def _watch(self, backend: Backend) -> None:
        """Go on asking one of several; the only one is asked until it is known, as it is from a start on."""
        if self._profile.server.urls or not backend.is_known:
            self._watching[backend] = asyncio.get_running_loop().create_task(self._keep_asking(backend))

    def _unwatch(self, backend: Backend) -> None:
        task = self._watching.pop(backend, None)
        if task is not None:
            task.cancel()

    async def _keep_asking(self, backend: Backend) -> None:
        asked = 0.0
        while True:
            pause = backend.next_look(time.monotonic(), self._jitter()) if not backend.is_fresh else 0.0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(pause, _LEAST_PAUSE)):
                    await backend.wake.wait()
            backend.wake.clear()
            await asyncio.sleep(max(0.0, asked + _LEAST_PAUSE - time.monotonic()))  # many failures, few questions
            await backend.ask()
            asked = time.monotonic()
            self._look()
            if backend.is_known and not self._profile.server.urls:
                del self._watching[backend]
                return

    def _look(self) -> None:
        """See what has changed: in the servers' states, in their number, in what holds of all."""
        now = time.monotonic()
        states = {backend: backend.condition(now) for backend in self._backends}
        if states != self._shown and self._profile.server.urls:
            for backend in [item for item in self._backends if states[item] is not self._shown.get(item)]:
                state = states[backend]
                level = logging.INFO if state is ReplicaState.UP else logging.WARNING
                why = "" if state is ReplicaState.UP else f": {backend.reason or 'has not answered yet'}"
                _log.log(level, "model %s: %s is %s%s", self._profile.id, backend.url, state.value, why)
            self._shown = states
        up = [backend.facts for backend, state in states.items() if state is ReplicaState.UP]
        if up:
            merged = common_facts(up)
            if merged != self.facts:
                self.facts = merged
        slots = self.slots
        if slots != self._slots:
            self._slots = slots
            self.on_slots()

    def _first_up(self) -> Backend:
        now = time.monotonic()
        return next((item for item in self._backends if item.condition(now) is ReplicaState.UP), self._backends[0])

    def _read_key(self) -> str | None:
        fault = key_fault(self._profile, self._environ)
        if fault is not None:
            raise self._failed(f"{self._named()} {fault}", is_permanent=True)
        name = self._profile.server.api_key_env
        return self._environ[name] if name is not None else None

    def _named(self) -> str:
        count = len(self._backends)
        if count == 1:
            return f"the server of {self._profile.id!r} at {self._backends[0].url}"
        return f"the {count} servers of {self._profile.id!r}"

    def _none_of_them(self) -> str:
        whys = [backend.shown(time.monotonic()).reason or "is in use" for backend in self._backends]
        if len(whys) == 1:
            return f"{self._named()} {whys[0]}"
        listed = "; ".join(f"{backend.url} {why}" for backend, why in zip(self._backends, whys, strict=True))
        return f"none of {self._named()} can be used: {listed}"

    def _again_in(self) -> float:
        """Return when one may be used again."""
        now = time.monotonic()
        waits = [backend.retry_in(now) for backend in self._backends if backend.retry_in(now)]
        return max(1.0, min(waits, default=_BUSY_AGAIN))

    def _failed(self, what: str, *, is_permanent: bool = False) -> DeckError:
        self._state, self._reason = ServerState.FAILED, what
        if is_permanent:
            return NotRunError(ErrorKind.UNAVAILABLE, what, should_retry=False)
        return DeckError(ErrorKind.UNAVAILABLE, what, retry_after=_RETRY_AFTER)


def common_facts(several: Iterable[Facts]) -> Facts:
    """Return what holds of all: the least of what is bounded, and what all of them can; of the rest the first's."""
    first, *others = several
    if all(item == first for item in others):
        return first
    everyone = [first, *others]
    contexts = [item.context for item in everyone if item.context is not None]
    slots = [item.slots for item in everyone if item.slots is not None]
    return replace(
        first,
        context=min(contexts, default=None),
        slots=min(slots, default=None),
        modalities=_agreed([item.modalities for item in everyone]),
        template_caps=_agreed([item.template_caps for item in everyone]),
    )


def _agreed(several: Sequence[Mapping[str, bool]]) -> dict[str, bool]:
    return {name: all(item.get(name, True) for item in several) for name in several[0]}


def _traits(backend: Backend) -> dict[str, object]:
    facts = backend.facts
    return {"model": backend.model, "template": facts.template, "context": facts.context, "slots": facts.slots}


def key_fault(profile: Profile, environ: Mapping[str, str]) -> str | None:
    """Return what is wrong with the key of a remote profile, None = nothing."""
    name = profile.server.api_key_env
    if name is None or environ.get(name):
        return None
    return f"needs a key, but the environment variable {name} is not set: see [server] api_key_env in {profile.source}"
