"""One llama-server that runs elsewhere: what it says of itself, whether it is used, and what is on it.

Knows neither the other servers of its model nor when it is asked.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cached_property
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

import httpx

from deck.contracts import Address, Facts, Replica, ReplicaState, ServerState
from deck.errors import DeckError
from deck.profile import Profile
from deck.servers.breaker import Breaker, Circuit
from deck.servers.choice import Candidate
from deck.servers.probe import Health, Probe, facts_of, probing
from deck.servers.program import is_ready
from deck.upstream.failures import MidAnswer, Refusal
from deck.upstream.transport import Transport

_log = logging.getLogger("deck.servers")
_PORTS = {"http": 80, "https": 443}
_ASK_LIMIT = 5.0
# A server that comes back may be another build or model; one that stays is asked now and then.
_FACTS_EVERY = 12
# One that broke off exchanges and is tried by none of them is used again after it was well so many times.
_WELL = 3
_LOADING = 1.0
_LATE = 0.01  # a timer may fire early, and would find a breaker that is still open
_SMOOTH = 0.3
# After so long without an exchange nothing is known of how fast it is.
_FORGET = 30.0
_BUSY = frozenset({429, 503})
_STATES = {
    ReplicaState.UP: ServerState.READY,
    ReplicaState.HALF_OPEN: ServerState.READY,
    ReplicaState.LOADING: ServerState.LOADING,
    ReplicaState.DOWN: ServerState.FAILED,
}


class Fate(Enum):
    """What an exchange's end says of the server it was on: whether it failed, and whether another may be tried.

    Nobody else may be tried once a byte of the answer came, nor after a silence that took the exchange's time.
    """

    ANSWERED = (False, False)
    BUSY = (False, True)
    UNREACHED = (True, True)
    BROKE = (True, False)
    UNKNOWN = (None, False)

    def __init__(self, is_failure: bool | None, may_move: bool) -> None:
        self.is_failure = is_failure
        self.may_move = may_move


def fate_of(error: DeckError) -> Fate:
    """Return what an error says of the server that it came from, by what stands behind it."""
    match error.__cause__:
        case Refusal(status=status):
            return Fate.BUSY if status in _BUSY else Fate.ANSWERED
        case MidAnswer() | httpx.ReadTimeout() | httpx.WriteTimeout():
            return Fate.BROKE
        case httpx.PoolTimeout():
            return Fate.UNKNOWN
        case httpx.HTTPError():
            return Fate.UNREACHED
        case _:
            return Fate.ANSWERED


class Backend:
    """The server at one URL; implements `contracts.Server` for whoever talks to it.

    Args:
        profile: of the model.
        url: where it listens.
        jitter: numbers from 0 to 1.
    """

    log = None

    def __init__(self, profile: Profile, url: str, jitter: Callable[[], float]) -> None:
        self.profile = profile
        self.url = url
        self.address = address_of(url)
        self.key: str | None = None
        self.facts = Facts()
        self.model: str | None = None
        self.is_fresh = True
        self.is_known = False
        self.running = 0
        self.wake = asyncio.Event()
        first, longest = _times(profile)
        self._breaker = Breaker(jitter, first=first, longest=longest)
        self._is_loading = False
        self._is_suspect = False
        self._was_unreached = False
        self._well = 0
        self._must_learn = True
        self._why: str | None = None
        self._latency = 0.0
        self._timed: float | None = None
        self._asked = 0

    def renew(self, profile: Profile) -> None:
        """Go on with a profile that a reload has changed."""
        self.profile = profile
        first, longest = _times(profile)
        self._breaker.retime(time.monotonic(), first=first, longest=longest)

    @property
    def is_suspect(self) -> bool:
        """Whether an exchange broke off and nobody has asked it since what that means."""
        return self._is_suspect

    @property
    def state(self) -> ServerState:
        """Where it is in its life, as far as Deck uses it."""
        return _STATES[self.condition(time.monotonic())]

    @property
    def reason(self) -> str | None:
        """Why it is not used."""
        return None if self.condition(time.monotonic()) is ReplicaState.UP else self._why

    def memory(self) -> int | None:
        """Return None: it takes no memory here."""
        return None

    async def start(self) -> None:
        """Ask it."""
        await self.ask()

    async def stop(self, *, grace: float) -> None:
        """Do nothing: it is not Deck's to stop."""

    async def wait_ended(self) -> None:
        """Never return: how it ends is not known here."""
        await asyncio.get_running_loop().create_future()

    def condition(self, now: float) -> ReplicaState:
        """Return whether it is used."""
        circuit = self._breaker.state(now)
        if not self.is_known or circuit is Circuit.OPEN:
            return ReplicaState.LOADING if self._is_loading else ReplicaState.DOWN
        if self._is_loading:
            return ReplicaState.LOADING
        if self.is_suspect:
            return ReplicaState.DOWN
        return ReplicaState.HALF_OPEN if circuit is Circuit.HALF_OPEN else ReplicaState.UP

    def accepts(self, now: float) -> bool:
        """Tell whether an exchange may be sent to it now."""
        return self.is_known and not self._is_loading and not self.is_suspect and self._breaker.allows(now)

    def may_accept(self, now: float) -> bool:
        """Tell whether an exchange may be sent to it for want of a better one, as to one that nobody asked yet."""
        return (self.is_known or self.is_fresh) and not self._is_loading and self._breaker.allows(now)

    def candidate(self, now: float) -> Candidate:
        """Return it as it stands for the choice."""
        return Candidate(
            name=self.url, running=self.running, room=self.profile.server.parallel, latency=self._recent(now)
        )

    def shown(self, now: float, differs: tuple[str, ...] = ()) -> Replica:
        """Return it for operators."""
        state, latency = self.condition(now), self._recent(now)
        return Replica(
            url=self.url,
            state=state,
            reason=None if state is ReplicaState.UP else self._why or "has not answered yet",
            running=self.running,
            failures=self._breaker.failures,
            retry_in=round(self._breaker.retry_in(now), 1) if state is ReplicaState.DOWN else None,
            latency=None if latency is None else round(latency, 3),
            model=self.model,
            context=self.facts.context,
            slots=self.facts.slots,
            differs=differs,
        )

    def retry_in(self, now: float) -> float:
        """Return the seconds until it may be tried, 0 = now or when it says so."""
        return self._breaker.retry_in(now)

    def next_look(self, now: float, jitter: float) -> float:
        """Return the seconds until it should be asked again."""
        interval = self.profile.server.health_interval
        match self.condition(now):
            case ReplicaState.DOWN:
                return (self._breaker.retry_in(now) or interval) + _LATE
            case ReplicaState.LOADING:
                return min(interval, _LOADING) * (0.75 + 0.5 * jitter)
            case _:
                return interval * (0.75 + 0.5 * jitter)

    def begin(self, now: float) -> bool:
        """Take one exchange more; return whether it is the try of one that has failed."""
        self.running += 1
        return self._breaker.begin(now)

    def begun(self, now: float, seconds: float) -> None:
        """Note that an answer began after so many seconds."""
        known = self._recent(now)
        self._latency = seconds if known is None else known + _SMOOTH * (seconds - known)
        self._timed = now
        self._breaker.answered()

    def end(self, now: float, fate: Fate | None, why: str | None, *, is_try: bool) -> None:
        """Give the place of an exchange back, and learn from its end.

        Args:
            now: the loop's time.
            fate: what its error says; None = it ended well.
            why: the error.
            is_try: what `begin` said.
        """
        self.running -= 1
        if fate is None:
            self._breaker.succeeded()
        elif fate.is_failure:
            self._breaker.failed(now)
            self._why, self._must_learn, self._is_suspect = why, True, True
            self.wake.set()
        elif fate is Fate.ANSWERED:
            self._breaker.answered()
        elif is_try:
            self._breaker.abandon()
        if fate is Fate.BUSY:
            self._why = why
            self.wake.set()

    async def ask(self) -> None:
        """Ask whether it is well, and now and then what it is."""
        try:
            async with asyncio.timeout(_ASK_LIMIT):
                if self.profile.is_foreign:
                    await self._hear_foreign()
                    return
                async with probing(self.address, self.key, Transport(ssl_context=self._tls)) as probe:
                    await self._hear(probe)
        except TimeoutError:
            self._late(f"did not answer in {_ASK_LIMIT:g} s")
        except httpx.HTTPError as exc:
            self._unreached(str(exc) or type(exc).__name__)
        except Exception as exc:
            # Whoever asks again and again must not end: nobody would know any more how it is.
            _log.exception("asking %s failed inside Deck", self.url)
            self._unreached(f"could not be asked: {type(exc).__name__}")
        finally:
            self.is_fresh = self._is_suspect = False

    async def _hear(self, probe: Probe) -> None:
        health = await probe.health()
        self._is_loading = health is Health.LOADING
        if health is Health.LOADING:
            self._why, self._must_learn = "is loading its model", True
        elif health is Health.SILENT:
            (self._late if probe.was_late else self._unreached)(f"cannot be reached: {probe.said}")
        elif probe.status is not None and probe.status >= 500:
            self._unreached(probe.said)
        else:
            await self._learn(probe)
            self._said_well()

    async def _hear_foreign(self) -> None:
        """Hear of a server that is no llama-server only whether it is ready."""
        if not await is_ready(self.address, self.key, self.profile.server.health):
            self._unreached("is not ready: nobody listens, or [server] health does not answer 200")
            return
        self.is_known, self._must_learn = True, False
        self._said_well()

    def _said_well(self) -> None:
        """Note that it says so; one that broke off exchanges is believed only after it has said so several times."""
        self._well += self._breaker.state(time.monotonic()) is Circuit.HALF_OPEN
        if self._was_unreached or self._well >= _WELL:
            self._was_unreached, self._well = False, 0
            self._breaker.answered()

    async def _learn(self, probe: Probe) -> None:
        """Ask what it is, where that is not known or may have changed."""
        self._asked += 1
        if not self._must_learn and self._asked % _FACTS_EVERY:
            return
        props = await probe.props()
        facts = facts_of(props, await probe.meta()) if props is not None else Facts()
        if facts != self.facts:
            self.facts = facts
        self.model = _model_of(props or {})
        self.is_known, self._must_learn = True, False

    def _late(self, why: str) -> None:
        self._why, self._was_unreached, self._must_learn = why, True, True
        if self.is_known:
            self._breaker.failed(time.monotonic())
        else:
            self._breaker.trip(time.monotonic())

    def _unreached(self, why: str) -> None:
        self._why, self._is_loading = why, False
        self._was_unreached = self._must_learn = True
        self._breaker.trip(time.monotonic())

    def _recent(self, now: float) -> float | None:
        return self._latency if self._timed is not None and now - self._timed < _FORGET else None

    @cached_property
    def _tls(self) -> ssl.SSLContext | None:
        return ssl.create_default_context() if self.address.tls else None


def _times(profile: Profile) -> tuple[float, float]:
    """Return the first and the longest time that its breaker stays open."""
    interval = profile.server.health_interval
    return interval / 5, interval * 6


def _model_of(props: Mapping[str, Any]) -> str | None:
    alias, path = props.get("model_alias"), props.get("model_path")
    if isinstance(alias, str) and alias:
        return alias
    return PurePath(path).name if isinstance(path, str) and path else None


def address_of(url: str) -> Address:
    """Return where a url's server listens."""
    parts = urlsplit(url)
    port = parts.port or _PORTS[parts.scheme]
    host = parts.hostname or ""
    return Address(host=host, port=port, tls=parts.scheme == "https", prefix=parts.path.rstrip("/"))
