"""The one data path: a client's body to the canonical request, to llama-server, to canonical events.

Buffered and streamed exchanges run the same code; who the client is makes no difference.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from deck import json
from deck.canon.events import Event, Failed
from deck.canon.request import Audio, ChatRequest, Image, ReasoningSetting, has_kind
from deck.catalog import Catalog
from deck.contracts import Facts, Family, Filter, Parsed, ParseOptions, Server, Surface
from deck.errors import DeckError, ErrorKind, invalid
from deck.normalize.report import Report
from deck.plugins import Plugins
from deck.profile import Profile
from deck.scheduler.board import Board
from deck.steps import apply_profile
from deck.tokens import Principal
from deck.upstream.client import UpstreamClient
from deck.upstream.decode import Decoder
from deck.upstream.encode import encode

_LENIENT = "lenient"
_GRAMMAR = re.compile(r"grammar|json schema|generate parser", re.IGNORECASE)
_Result = TypeVar("_Result")


@dataclass(slots=True)
class Exchange:
    """One client request from first byte to last; times are the monotonic clock's."""

    id: str
    surface: Surface
    principal: Principal
    seed: str
    began: float
    report: Report = field(default_factory=Report)
    profile: Profile | None = None
    parsed: Parsed | None = None
    model: str = ""
    granted: float | None = None
    first_token: float | None = None
    server: Server | None = None


@dataclass(frozen=True, slots=True)
class Shaped:
    """A request ready to be sent: after steps and family, with its upstream body."""

    request: ChatRequest
    family: Family
    why: str
    body: dict[str, Any]


class Pipeline:
    """Everything between a decoded body and canonical events."""

    def __init__(
        self,
        catalog: Catalog,
        plugins: Plugins,
        board: Board,
        client: UpstreamClient,
        *,
        lenient: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.catalog = catalog
        self.plugins = plugins
        self.board = board
        self._client = client
        self._lenient = lenient
        self._clock = clock
        self._families: dict[str, tuple[Facts, Family, str]] = {}

    def prepare(self, exchange: Exchange, body: Mapping[str, Any]) -> None:
        """Parse the body, resolve its model, and check what can be checked before anything is started.

        Raises:
            DeckError: the request cannot be honoured.
        """
        name = body.get("model")
        profile = self._resolve(name, exchange) if isinstance(name, str) and name else None
        lenient = self._lenient or _LENIENT in (exchange.principal.compatibility, profile and profile.compatibility)
        allowed = frozenset(profile.template_kwargs) if profile else frozenset()
        options = ParseOptions(lenient=lenient, template_kwargs=allowed)
        exchange.profile = profile
        exchange.parsed = _plugin(exchange.surface.name, exchange.surface.parse, body, exchange.report, options)
        assert profile is not None, "a surface accepted a body without a model"
        exchange.model = exchange.parsed.request.model
        _check_declared(exchange.parsed.request, profile)

    def _resolve(self, name: str, exchange: Exchange) -> Profile:
        match = self.catalog.resolve(name)
        profile = match.profile if match is not None else None
        if profile is not None and profile.kind != "chat" and exchange.principal.may_use(profile.id):
            message = f"the model {name!r} is of kind {profile.kind}; this route needs a chat model"
            raise DeckError(ErrorKind.MODEL_NOT_FOUND, message, param="model")
        if profile is None or profile.kind != "chat":
            raise self._no_model(name, exchange.principal)
        if not exchange.principal.may_use(profile.id):
            raise DeckError(ErrorKind.PERMISSION, f"this token may not use the model {name!r}", param="model")
        if match is not None and match.via == "suffix":
            exchange.report.changed("model", "the suffix is not part of a model's name", shown=f"model>{profile.id}")
        return profile

    def _no_model(self, name: str, principal: Principal) -> DeckError:
        known = [item.id for item in self.catalog.of_kind("chat") if principal.may_use(item.id)]
        listed = ", ".join(sorted(known)) or "none"
        message = f"no model named {name[:100]!r}; this token may use: {listed}"
        return DeckError(ErrorKind.MODEL_NOT_FOUND, message, param="model", code="model_not_found")

    def shape(self, exchange: Exchange, facts: Facts) -> Shaped:
        """Apply the profile's steps, the plugins' and the family's, and encode; each change leaves a note."""
        assert exchange.parsed is not None
        assert exchange.profile is not None
        profile, report, request = exchange.profile, exchange.report, exchange.parsed.request
        if profile.capabilities.reasoning is False and request.reasoning != ReasoningSetting():
            if request.reasoning.enabled is not False:
                report.ignored(request.reasoning.path, "this model does not think", field="reasoning_effort")
            request = replace(request, reasoning=ReasoningSetting())
        family, why = self._family(profile, facts)
        defaults = _plugin(family.name, family.defaults)
        request = apply_profile(request, profile, defaults, report, exchange.parsed.paths)
        for step in self.plugins.steps:
            request = _plugin(step.name, step.apply, request, profile, report)
        request = _plugin(family.name, family.adapt, request, facts, report)
        _check_measured(request, facts)
        return Shaped(request, family, why, encode(request, context=facts.context or profile.server.ctx_size))

    def _family(self, profile: Profile, facts: Facts) -> tuple[Family, str]:
        """Return the model's family, chosen once for the facts of each run of its server."""
        known = self._families.get(profile.id)
        if known is None or known[0] is not facts:
            known = self._families[profile.id] = (facts, *self.plugins.family(profile, facts))
        return known[1], known[2]

    async def events(self, exchange: Exchange) -> AsyncGenerator[list[Event], None]:
        """Run the exchange: wait for its server, forward, and give its events as they come.

        An error before the first event is raised, one after it is the last event.

        Raises:
            DeckError: nothing was answered.
        """
        assert exchange.profile is not None
        async with self.board.admit(exchange.profile) as server:
            exchange.granted, exchange.server = self._clock(), server
            shaped = self.shape(exchange, server.facts)
            decoder = Decoder(seed=exchange.seed, prefill_only=shaped.request.is_prefill_only)
            filtered = _plugin(shaped.family.name, shaped.family.filter, shaped.request)
            with _blaming(shaped.request):
                async with self._client.chat(server, json.dumps(shaped.body)) as response:
                    has_begun = False
                    while not decoder.finished:
                        events = await self._next(server, response, decoder)
                        if filtered is not None:
                            events = _plugin(shaped.family.name, _filter, filtered, events)
                        if not events:
                            continue
                        if not has_begun and isinstance(events[0], Failed):
                            raise events[0].error
                        has_begun = True
                        yield events
                        if isinstance(events[-1], Failed):
                            return
                    await self._client.settle(response)

    async def _next(self, server: Server, response: Any, decoder: Decoder) -> list[Event]:
        try:
            chunk = await self._client.next_chunk(server, response)
        except DeckError as error:
            decoder.finished = True
            return [Failed(error)]
        return decoder.feed(chunk) if chunk else decoder.end()


@contextlib.contextmanager
def _blaming(request: ChatRequest) -> Iterator[None]:
    """Name the client's field where llama-server's own words do not: its grammar comes from one of three."""
    try:
        yield
    except DeckError as error:
        if error.kind is ErrorKind.INVALID_REQUEST and error.param is None and _GRAMMAR.search(error.message):
            error.param = request.output.path if request.output else "tools" if request.tools else None
        raise


def _plugin(name: str, call: Callable[..., _Result], *arguments: Any) -> _Result:
    try:
        return call(*arguments)
    except DeckError:
        raise
    except Exception as exc:
        message = f"the plugin {name!r} failed on this request: {type(exc).__name__}"
        raise DeckError(ErrorKind.INTERNAL, message) from exc


def _filter(filtered: Filter, events: list[Event]) -> list[Event]:
    return [item for event in events for item in filtered.feed(event)]


def _check_declared(request: ChatRequest, profile: Profile) -> None:
    capabilities = profile.capabilities
    for kind, word, declared in ((Image, "images", capabilities.vision), (Audio, "audio", capabilities.audio)):
        if declared is False and (origin := has_kind(request, kind)) is not None:
            raise invalid(f"{origin}.content: the model {profile.id!r} takes no {word}", f"{origin}.content")
    if request.tools and capabilities.tools is False:
        raise invalid(f"tools: the model {profile.id!r} calls no tools", "tools")
    if request.output is not None and request.output.kind != "grammar" and capabilities.json_schema is False:
        mode = request.output.kind
        raise invalid(f"response_format: the model {profile.id!r} cannot be held to {mode}", "response_format")


def _check_measured(request: ChatRequest, facts: Facts) -> None:
    for kind, modality, word in ((Image, "vision", "images"), (Audio, "audio", "audio")):
        if facts.modalities.get(modality) is False and (origin := has_kind(request, kind)) is not None:
            raise invalid(f"{origin}.content: this model takes no {word}", f"{origin}.content")
