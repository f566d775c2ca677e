"""Try a model and tell what it can: start it as `deck serve` would, run each measure, end it.

Knows how a measure is run, timed and bounded. Does not know what is measured, see `deck.probe_measures`, nor how a
result is shown or kept.

What a client would get is measured on the way a client's request takes: the profile's steps, the family, encoding,
transport, decoding, the family's filter. Left out is the surface, whose wire is no property of the model, and what the
profile declares, for that is in question. What the template does by itself is asked of llama-server directly, since a
family would repair just what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from deck import json
from deck.app import Deck
from deck.canon.answer import Answer, Fold
from deck.canon.events import Event, PartDelta
from deck.canon.request import ChatRequest
from deck.catalog import Catalog
from deck.config import Config
from deck.contracts import Facts, Parsed
from deck.errors import DeckError, ErrorKind
from deck.exchange import Exchange
from deck.http import alphanumerics
from deck.loading import StartError
from deck.plugins import Plugins
from deck.profile import Capabilities, Profile
from deck.servers.place import private
from deck.serving import NOBODY
from deck.tokens import TokenStore
from deck.upstream.client import UpstreamClient
from deck.upstream.encode import encode
from deck.upstream.transport import Transport

try:
    import fcntl
except ImportError:  # no such locks on Windows
    fcntl = None  # type: ignore[assignment]

Value = bool | int | float | None
Seen = tuple[Value, str]
_SEED = 1
# What says that the model or its template cannot; all else says only that the probe could not find out.
_CANNOT = (ErrorKind.INVALID_REQUEST, ErrorKind.UNSUPPORTED_MEDIA)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """An answer, in how many pieces its text came, and when the first came and the last had; seconds."""

    answer: Answer
    pieces: int
    first: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One question to a model.

    Args:
        name: the key of `[capabilities.measured]` that the answer goes to.
        title: what a reader is told.
        way: by what: the whole data path, llama-server's template alone, or what llama-server says of itself.
        run: finds the value and a remark; may raise `DeckError`.
    """

    name: str
    title: str
    way: Literal["path", "template", "facts"]
    run: Callable[[Subject], Awaitable[Seen]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a measure found; `value` None = it could not find out, and `remark` says why."""

    measure: Measure
    value: Value
    remark: str
    seconds: float


class Subject:
    """The model that is tried, running."""

    def __init__(self, deck: Deck, profile: Profile, client: UpstreamClient, facts: Facts) -> None:
        self.profile = profile
        self.facts = facts
        self._deck = deck
        self._client = client
        family = deck.plugins.family(profile, facts)[0]
        self.family = family.name
        # Where somebody recommends a temperature it is kept: not every model that thinks comes to an end without one.
        is_recommended = "temperature" in {**family.defaults(facts), **profile.defaults, **profile.force}
        self._steady = {"seed": _SEED} if is_recommended else {"seed": _SEED, "temperature": 0.0}

    async def ask(self, request: ChatRequest) -> Heard:
        """Run a request on the way that a client's takes.

        Raises:
            DeckError: it was refused, or the answer failed.
        """
        surface = next(iter(self._deck.plugins.surfaces.values()))
        began = time.monotonic()
        exchange = Exchange("probe", surface, NOBODY, alphanumerics(40), began)
        request = replace(request, sampling={**self._steady, **request.sampling})
        exchange.profile, exchange.parsed = self.profile, Parsed(request, None)
        fold, pieces = Fold(), list[float]()

        def take(events: list[Event]) -> None:
            pieces.extend(time.monotonic() - began for event in events if isinstance(event, PartDelta))
            for event in events:
                fold.feed(event)

        await self._deck.pipeline.run(exchange, take)
        seconds = time.monotonic() - began
        first = pieces[0] if pieces else seconds
        return Heard(answer=fold.answer(), pieces=len(pieces), first=first, seconds=seconds)

    async def prompt(self, request: ChatRequest) -> str:
        """Return what the template makes of a request, untouched by the family.

        Raises:
            DeckError: the template refuses it, or llama-server has no route for this.
        """
        body = encode(request, context=self.facts.context)
        async with self._deck.board.admit(self.profile) as server:
            return await self._client.prompt(server, json.dumps(body | {"stream": False}))


async def probe(
    profile: Profile,
    config: Config,
    plugins: Plugins,
    measures: Sequence[Measure],
    *,
    limit: float,
    on_begin: Callable[[str], None],
    on_end: Callable[[Finding], None],
) -> tuple[Subject, list[Finding]]:
    """Start the model, run the measures in order, and stop it.

    Args:
        profile: of the model; what it declares of capabilities is left aside.
        config: Deck's; files lie in `probe` under its state directory.
        plugins: Deck's.
        measures: to run.
        limit: seconds for one measure.
        on_begin: told what begins: the start of the model, then each measure.
        on_end: told of each finding.

    Raises:
        DeckError: the model did not start.
        StartError: another probe runs on the state directory.
    """
    tried = profile.model_copy(
        update={"capabilities": Capabilities(), "server": profile.server.model_copy(update={"ttl": 0.0})}
    )
    home = config.model_copy(update={"state": config.state / "probe"})
    found: list[Finding] = []
    with _alone(home.state):
        async with _running(tried, home, plugins, on_begin) as subject:
            for measure in measures:
                on_begin(measure.title)
                finding = await _measured(measure, subject, limit)
                found.append(finding)
                on_end(finding)
            return subject, found


@contextlib.contextmanager
def _alone(state: Path) -> Iterator[None]:
    """Hold the lock of a state directory: two models at a time would spoil each other's speed, or not fit."""
    try:
        state.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = (private(state) / "lock").open("w", encoding="utf-8")
    except OSError as exc:
        raise StartError(f"{state} cannot be used: {exc.strerror}; choose another directory with --state") from exc
    with file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StartError(f"another `deck probe` runs on {state}; wait for it, or choose --state") from None
        yield


@contextlib.asynccontextmanager
async def _running(
    profile: Profile, config: Config, plugins: Plugins, on_begin: Callable[[str], None]
) -> AsyncIterator[Subject]:
    tokens = TokenStore(config.state / "tokens.json", None)
    deck = Deck(config, Catalog([profile]), plugins, tokens)
    transport = Transport()
    await deck.start()
    try:
        on_begin(_starting(profile))
        async with deck.board.admit(profile) as server:
            facts = server.facts
        yield Subject(deck, profile, UpstreamClient(transport), facts)
    finally:
        await transport.aclose()
        await deck.stop()


def _starting(profile: Profile) -> str:
    if profile.server.is_remote:
        return f"asking {', '.join(profile.server.addresses)}"
    return f"starting {profile.id}" + (f", downloading {profile.server.hf} if need be" if profile.server.hf else "")


async def _measured(measure: Measure, subject: Subject, limit: float) -> Finding:
    began = time.monotonic()
    value: Value = None
    try:
        async with asyncio.timeout(limit):
            value, remark = await measure.run(subject)
    except TimeoutError:
        remark = f"not done after {limit:g} s"
    except DeckError as error:
        value = False if error.kind in _CANNOT else None
        remark = error.message.splitlines()[0]
    return Finding(measure=measure, value=value, remark=remark, seconds=time.monotonic() - began)
