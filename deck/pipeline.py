"""The one data path: a client's body to the canonical request, to llama-server, to canonical events.

Buffered and streamed exchanges run the same code; who the client is makes no difference.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import httpx

from deck import json, kit
from deck.answer_tool import AnswerText, with_answer_tool
from deck.canon.events import Event, Failed
from deck.canon.request import Audio, ChatRequest, Image, ReasoningSetting, Request, TextRequest, has_kind
from deck.canon.value import value
from deck.catalog import Catalog
from deck.contracts import Facts, Family, Filter, Needs, Parsed, ParseOptions, Server, ServerState, Surface
from deck.counting import ThoughtCounter, estimate
from deck.errors import DeckError, ErrorKind, invalid
from deck.media import ImageFetcher
from deck.normalize.history import repair_history
from deck.normalize.repairs import CUT_CALL
from deck.normalize.report import Report
from deck.normalize.tools import add_stops, note_schemas
from deck.plugins import Plugins
from deck.profile import Profile
from deck.scheduler.board import Board
from deck.steps import apply_profile, note_idle
from deck.tokens import Principal
from deck.upstream.client import CHAT, TEXT, UpstreamClient
from deck.upstream.decode import Decoder
from deck.upstream.encode import encode, encode_text
from deck.upstream.transport import RawResponse

_LENIENT = "lenient"
_GRAMMAR = re.compile(r"grammar|json schema|generate parser", re.IGNORECASE)
_UNBEGUN = re.compile(r"initialize samplers", re.IGNORECASE)
_SCHEMA = re.compile(r"json[_ ]schema", re.IGNORECASE)
_TOKENS = re.compile(r"invalid tokens", re.IGNORECASE)
Taker = Callable[[list[Event]], Awaitable[None] | None]
_Result = TypeVar("_Result")
_Asked = TypeVar("_Asked", ChatRequest, TextRequest)
# Set among a server's arguments, these cut answers as a client's own limit would.
_SERVER_BUDGET = frozenset({"-n", "--predict", "--n-predict"})


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
    operation: Literal["generate", "count"] = "generate"
    headers: Mapping[str, str] = field(default_factory=dict)
    shaped: Shaped | None = None


@value(frozen=True, slots=True)
class Shaped:
    """A request ready to be sent, after steps and family: its upstream route and body. Raw prompts have no family.

    `answer_tool` names the tool that stands for the form of the answer, if one does.
    """

    request: Request
    family: Family | None
    why: str
    route: str
    body: dict[str, Any]
    answer_tool: str = ""

    def decoder(self, seed: str, profile: Profile) -> Decoder:
        """Return the decoder for the answer to it."""
        return Decoder(
            seed=seed,
            prefill_only=self.request.is_prefill_only,
            raw=self.route is TEXT,
            budget=_budget(self.request, profile),
        )


class Pipeline:
    """Everything between a decoded body and canonical events."""

    def __init__(
        self,
        catalog: Catalog,
        plugins: Plugins,
        board: Board,
        client: UpstreamClient,
        *,
        images: ImageFetcher,
        lenient: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.catalog = catalog
        self.plugins = plugins
        self.board = board
        self._client = client
        self._images = images
        self._lenient = lenient
        self._clock = clock
        self._families: dict[str, tuple[Facts, Family, str]] = {}
        self._known_options: dict[tuple[str, bool, str], ParseOptions] = {}

    def renew(self, catalog: Catalog) -> None:
        """Serve the models of another catalog from now on; exchanges that run keep their profile."""
        self.catalog = catalog
        self._families.clear()
        self._known_options.clear()

    def prepare(self, exchange: Exchange, body: Mapping[str, Any]) -> None:
        """Parse the body, resolve its model, and check what can be checked before anything is started.

        Raises:
            DeckError: the request cannot be honoured.
        """
        name = body.get("model")
        profile = self._resolve(name, exchange) if isinstance(name, str) and name else None
        options = self._options(exchange, profile)
        exchange.profile = profile
        exchange.parsed = _plugin(exchange.surface.name, exchange.surface.parse, body, exchange.report, options)
        assert profile is not None, "a surface accepted a body without a model"
        exchange.model = exchange.parsed.request.model
        _check_declared(exchange.parsed.request, profile)
        self._images.check(exchange.parsed.request)

    def _options(self, exchange: Exchange, profile: Profile | None) -> ParseOptions:
        lenient = self._lenient or _LENIENT in (exchange.principal.compatibility, profile and profile.compatibility)
        kind = (profile.id if profile else "", lenient, exchange.operation)
        options = None if exchange.headers else self._known_options.get(kind)
        if options is None:
            options = ParseOptions(
                lenient=lenient,
                template_kwargs=frozenset(profile.template_kwargs) if profile else frozenset(),
                operation=exchange.operation,
                headers=exchange.headers,
                remove_attribution=profile.remove_attribution if profile else True,
                remote_images=self._images.is_on,
            )
            if not exchange.headers:
                self._known_options[kind] = options
        return options

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
        if isinstance(request, TextRequest):
            return self._shape_text(exchange, request, facts)
        if profile.can("reasoning") is False and request.reasoning != ReasoningSetting():
            if request.reasoning.enabled is not False:
                for path in request.reasoning.asked or (request.reasoning.path,):
                    report.ignored(path, "this model does not think", field="reasoning_effort")
            request = replace(request, reasoning=ReasoningSetting())
        family, why = self._family(profile, facts)
        defaults = _plugin(family.name, family.defaults, facts)
        request = apply_profile(request, profile, defaults, report, exchange.parsed.paths)
        request = self._step(request, profile, report)
        request = add_stops(repair_history(request, report), family.stops())
        note_schemas(request, report)
        output = request.output
        request, answer_tool = with_answer_tool(request, facts, report)
        request = _plugin(family.name, family.adapt, request, facts, report)
        _check_measured(request, facts)
        _check_biases(request, facts, exchange.parsed.paths)
        note_idle(request, exchange.parsed.request.sampling, facts, report, exchange.parsed.paths)
        body = encode(request, context=facts.context or profile.server.ctx_size)
        if answer_tool:
            request = replace(request, output=output)  # which the answer is held against
        return Shaped(request, family, why, CHAT, body | _asked(exchange.parsed.needs), answer_tool)

    def _shape_text(self, exchange: Exchange, request: TextRequest, facts: Facts) -> Shaped:
        assert exchange.parsed is not None
        assert exchange.profile is not None
        profile, report = exchange.profile, exchange.report
        request = apply_profile(request, profile, {}, report, exchange.parsed.paths)
        request = self._step(request, profile, report)
        note_schemas(request, report)
        _check_biases(request, facts, exchange.parsed.paths)
        note_idle(request, exchange.parsed.request.sampling, facts, report, exchange.parsed.paths)
        body = encode_text(request, context=facts.context or profile.server.ctx_size)
        return Shaped(request, None, "a raw prompt has no template", TEXT, body | _asked(exchange.parsed.needs))

    def _step(self, request: _Asked, profile: Profile, report: Report) -> _Asked:
        for step in self.plugins.steps:
            changed = _plugin(step.name, step.apply, request, profile, report)
            if type(changed) is not type(request):
                was, became = type(request).__name__, type(changed).__name__
                raise DeckError(ErrorKind.INTERNAL, f"the plugin {step.name!r} made a {became} of a {was}")
            request = changed
        return request

    def _family(self, profile: Profile, facts: Facts) -> tuple[Family, str]:
        """Return the model's family, chosen once for the facts of each run of its server."""
        known = self._families.get(profile.id)
        if known is None or known[0] is not facts:
            known = self._families[profile.id] = (facts, *self.plugins.family(profile, facts))
        return known[1], known[2]

    async def run(self, exchange: Exchange, take: Taker) -> None:
        """Run the exchange: wait for its server, forward, and hand on its events as they come.

        An error before the first event is raised, one after it is the last event.

        Args:
            exchange: one that is prepared.
            take: is given events, and may return what must be awaited before it can be given more.

        Raises:
            DeckError: nothing was answered.
        """
        profile = exchange.profile
        assert profile is not None
        await self._fetch_images(exchange)
        ticket, server = await self.board.acquire(profile, exchange.principal.name)
        try:
            exchange.granted, exchange.server = self._clock(), server
            exchange.shaped = shaped = self.shape(exchange, server.facts)
            try:
                if shaped.route is TEXT:
                    await self._check_schema(server, shaped.request)
                response = await self._client.post(server, shaped.route, json.dumps(shaped.body))
            except DeckError as error:
                _blame(error, shaped.request)
                raise
            try:
                await self._forward(exchange, server, shaped, response, take)
            finally:
                response.close()
        finally:
            self.board.release(ticket, server)

    async def _forward(
        self, exchange: Exchange, server: Server, shaped: Shaped, response: RawResponse, take: Taker
    ) -> None:
        assert exchange.profile is not None
        assert exchange.parsed is not None
        decoder = shaped.decoder(exchange.seed, exchange.profile)
        filtered = _filter_of(shaped, exchange)
        thoughts = ThoughtCounter() if exchange.parsed.needs.reasoning_tokens else None
        has_begun = False
        while not decoder.finished:
            try:
                chunk = response.take()
                if chunk is None:
                    chunk = await response.next_chunk()
                events = decoder.feed(chunk) if chunk else decoder.end()
            except httpx.HTTPError as exc:
                decoder.finished = True
                events = [Failed(await self._client.broken(server, exc))]
            if filtered is not None and shaped.family is not None:
                events = _plugin(shaped.family.name, _filter, filtered, events)
            if thoughts is not None:
                events = await thoughts.count(events, self._client, server, exchange.report)
            if not events:
                continue
            if not has_begun and isinstance(events[0], Failed):
                _blame(events[0].error, shaped.request)
                raise events[0].error
            has_begun = True
            waiting = take(events)
            if waiting is not None:
                await waiting
            if isinstance(events[-1], Failed):
                return
        if decoder.cut_call and exchange.parsed.request.stream and decoder.cut_call != shaped.answer_tool:
            note_cut(exchange, decoder.cut_call, "its beginning stands", "tool_calls")
        if not response.is_complete:
            await self._client.settle(response)

    async def _fetch_images(self, exchange: Exchange) -> None:
        """Put images in the place of their URLs, unless the model is known to take none."""
        assert exchange.parsed is not None
        assert exchange.profile is not None
        request = exchange.parsed.request
        if not isinstance(request, ChatRequest) or not self._images.check(request):
            return
        server = self._ready(exchange.profile)
        if server is not None:
            _check_measured(request, server.facts)
        exchange.parsed = replace(exchange.parsed, request=await self._images.fetch(request))

    async def _check_schema(self, server: Server, request: Request) -> None:
        """Refuse a schema that cannot be read: llama-server's route for raw prompts leaves it out without a word."""
        if not isinstance(request, TextRequest) or request.output is None or request.output.schema is None:
            return
        try:
            await self._client.read_schema(server, request.output.schema)
        except DeckError as error:
            # Whatever else the chat route may lack, a template perhaps, is no matter of a raw prompt.
            if _SCHEMA.search(error.message):
                raise

    def sampling(self, exchange: Exchange) -> Mapping[str, Any]:
        """Return the sampling in effect as far as it is known: the running server's defaults once it is granted."""
        assert exchange.parsed is not None
        assert exchange.profile is not None
        if exchange.shaped is not None and exchange.server is not None:
            return {**exchange.server.facts.sampling, **exchange.shaped.request.sampling}
        profile = exchange.profile
        return {**profile.defaults, **exchange.parsed.request.sampling, **profile.force}

    async def count(self, exchange: Exchange) -> tuple[int, bool]:
        """Return how many tokens the prompt takes, and whether that is only an estimate.

        The model's own counter is asked if the model is loaded, or if its profile lets a count load it.

        Raises:
            DeckError: the request cannot be honoured, or the server failed.
        """
        assert exchange.profile is not None
        if self._ready(exchange.profile) is not None or exchange.profile.server.load_to_count:
            await self._fetch_images(exchange)
        server = self._ready(exchange.profile)
        if server is not None:
            exchange.granted = self._clock()
            return await self._counted(exchange, server), False
        if exchange.profile.server.load_to_count:
            async with self.board.admit(exchange.profile, exchange.principal.name) as server:
                exchange.granted, exchange.server = self._clock(), server
                return await self._counted(exchange, server), False
        shaped = self.shape(exchange, Facts())
        return estimate(shaped.body), True

    def _ready(self, profile: Profile) -> Server | None:
        server = self.board.server(profile.id)
        return server if server is not None and server.state is ServerState.READY else None

    async def _counted(self, exchange: Exchange, server: Server) -> int:
        shaped = self.shape(exchange, server.facts)
        if isinstance(shaped.request, TextRequest):
            prompt = shaped.request.prompt
            return (
                await self._client.count_text(server, prompt, special=True) if isinstance(prompt, str) else len(prompt)
            )
        try:
            return await self._client.count_chat(server, json.dumps(shaped.body | {"stream": False}))
        except DeckError as error:
            _blame(error, shaped.request)
            raise


def note_cut(exchange: Exchange, name: str, what: str, shown: str) -> None:
    """Note that the token limit cut a call; the finish says so too, on the client's wire."""
    paths = exchange.parsed.paths if exchange.parsed is not None else {}
    message = f"the limit cut the call of {name}; {what}"
    exchange.report.changed(paths.get("max_tokens", "max_tokens"), message, shown=shown, field=CUT_CALL)


def _asked(needs: Needs) -> dict[str, Any]:
    """Return the members of an upstream body that ask for what a surface's answer needs."""
    body: dict[str, Any] = {}
    if needs.stop_sequence:
        # The only place where llama-server names the stop string; without the filter it also holds the whole prompt.
        body |= {"verbose": True, "response_fields": ["stop_type", "stopping_word"]}
    if needs.prompt_progress:
        body["return_progress"] = True
    return body


def _budget(request: Request, profile: Profile) -> int | None:
    """Return the limit on the answer's tokens, 0 where an end by another limit could not be told from one by this."""
    if "t_max_predict_ms" in request.sampling:
        return 0
    budget = request.sampling.get("max_tokens")
    if budget is None and not _SERVER_BUDGET.isdisjoint(profile.server.args):
        return 0
    return budget


def _filter_of(shaped: Shaped, exchange: Exchange) -> Filter | None:
    family, request = shaped.family, shaped.request
    if family is None or not isinstance(request, ChatRequest):
        return None
    if shaped.answer_tool:
        request = replace(request, output=None)  # a call that is nothing but JSON is the answer
    found: Filter | None = _plugin(family.name, family.filter, request, exchange.report, exchange.seed)
    if shaped.answer_tool:
        found = kit.chain((found, AnswerText(shaped.answer_tool, exchange.report)))
    assert exchange.parsed is not None
    own = frozenset(family.stops()).difference(exchange.parsed.request.sampling.get("stop") or ())
    return kit.chain((found, kit.OwnStops(own))) if own else found


def _blame(error: DeckError, request: Request) -> None:
    """Name the client's field where llama-server's own words do not: its grammar comes from one of three."""
    if error.kind is ErrorKind.INVALID_REQUEST and error.param is None and _GRAMMAR.search(error.message):
        has_tools = isinstance(request, ChatRequest) and request.tools
        error.param = request.output.path if request.output else "tools" if has_tools else None
    if _UNBEGUN.search(error.message) and request.output is not None and isinstance(request, ChatRequest):
        last = request.messages[-1]
        if last.role == "assistant":
            error.param = last.origin
            why = f"it begins the answer, and llama-server cannot go on from it as {request.output.path} says"
            error.message = f"{last.origin}: {why}: {error.message}"
    if error.param is None and isinstance(request, TextRequest) and _TOKENS.search(error.message):
        error.param = "prompt"


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


def _check_declared(request: Request, profile: Profile) -> None:
    if request.output is not None and request.output.kind != "grammar" and profile.can("json_schema") is False:
        mode, path = request.output.kind, request.output.path
        raise invalid(f"{path}: the model {profile.id!r} cannot be held to {mode}", path)
    if isinstance(request, TextRequest):
        return
    for kind, word, can in ((Image, "images", profile.can("vision")), (Audio, "audio", profile.can("audio"))):
        if can is False and (origin := has_kind(request, kind)) is not None:
            raise _unreadable(origin, kind, f"the model {profile.id!r} takes no {word}")
    if request.tools and profile.can("tools") is False:
        raise invalid(f"tools: the model {profile.id!r} calls no tools", "tools")


def _check_measured(request: ChatRequest, facts: Facts) -> None:
    if not facts.modalities:
        return
    for kind, modality, word in ((Image, "vision", "images"), (Audio, "audio", "audio")):
        if facts.modalities.get(modality) is False and (origin := has_kind(request, kind)) is not None:
            raise _unreadable(origin, kind, f"this model takes no {word}")


def _check_biases(request: Request, facts: Facts, paths: Mapping[str, str]) -> None:
    """Refuse biases for tokens that the model does not have: llama-server leaves them out without a word."""
    biases, known = request.sampling.get("logit_bias"), facts.metadata.get("n_vocab")
    if not biases or not isinstance(known, int):
        return
    for token, _ in biases:
        if isinstance(token, int) and token >= known:
            path = paths.get("logit_bias", "logit_bias")
            raise invalid(f"{path}: this model has no token {token}; its ids are 0 to {known - 1}", path)


def _unreadable(origin: str, kind: type[Image | Audio], why: str) -> DeckError:
    # At "could not process image" Claude Code takes the image out, tells the model so, and goes on.
    return invalid(f"{origin}.content: could not process {kind.__name__.lower()}: {why}", f"{origin}.content")
