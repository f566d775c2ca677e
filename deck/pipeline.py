"""The one data path: a client's body to the canonical request, to llama-server, to canonical events.

Buffered and streamed exchanges run the same code; who the client is makes no difference.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import httpx

from deck import json
from deck.admission import Fitter
from deck.canon.events import Event, Failed
from deck.canon.request import ChatRequest, Request, TextRequest, are_texts
from deck.catalog import Catalog, no_model
from deck.contracts import Facts, ParseOptions, Server, ServerState
from deck.counting import ThoughtCounter, estimate
from deck.errors import DeckError, ErrorKind, UnheardError, overflow
from deck.exchange import Exchange, Shaped, note_cut
from deck.flights import Flights, Taker
from deck.media import ImageFetcher
from deck.operation import Operation
from deck.plugins import Plugins
from deck.profile import Profile
from deck.routing import Router, affinity_of
from deck.scheduler.board import Board
from deck.scheduler.lanes import Lane
from deck.scheduler.slots import Claim
from deck.scheduler.values import Ticket
from deck.servers.remote import Remote, Use
from deck.shaping import Shaper, call_plugin, check_declared, check_measured, filter_of, filtered_by
from deck.tokens import Principal
from deck.upstream.client import TEXT, UpstreamClient
from deck.upstream.failures import MidAnswer
from deck.upstream.transport import RawResponse

_Result = TypeVar("_Result")
_LENIENT, _PAGE = "lenient", b"text/html"
_CHAT_ALONE = ("chat",)
_GRAMMAR = re.compile(r"grammar|json schema|generate parser", re.IGNORECASE)
_UNBEGUN = re.compile(r"initialize samplers", re.IGNORECASE)
_SCHEMA = re.compile(r"json[_ ]schema", re.IGNORECASE)
_TOKENS = re.compile(r"invalid tokens", re.IGNORECASE)


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
        router: Router | None = None,
        most_guests: int = 64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.catalog = catalog
        self.plugins = plugins
        self.board = board
        self._client = client
        self._images = images
        self._lenient = lenient
        self._clock = clock
        self._router = router
        self.flights = Flights(self._run, most=most_guests, clock=clock)
        self._shaper = Shaper(plugins)
        self._fitter = Fitter(self._shaper, client)
        self._known_options: dict[tuple[str, bool, str], ParseOptions] = {}

    def now(self) -> float:
        """Return the time of the clock that exchanges are measured by."""
        return self._clock()

    def renew(self, catalog: Catalog) -> None:
        """Serve the models of another catalog from now on; exchanges that run keep their profile."""
        self.catalog = catalog
        self._shaper.forget()
        self._fitter.forget()
        self._known_options.clear()

    def prepare(self, exchange: Exchange, body: Mapping[str, Any]) -> None:
        """Parse the body, resolve its model, and check what can be checked before anything is started.

        Raises:
            DeckError: the request cannot be honoured.
        """
        name, surface = body.get("model"), exchange.surface
        assert not isinstance(surface, Operation)
        profile = self.resolve(name, exchange) if isinstance(name, str) and name else None
        options = self._options(exchange, profile)
        exchange.profile = profile
        exchange.parsed = call_plugin(surface.name, surface.parse, body, exchange.report, options)
        assert profile is not None, "a surface accepted a body without a model"
        request = exchange.parsed.request
        exchange.model = request.model
        is_plain = False
        if isinstance(request, ChatRequest) and are_texts(request.messages):
            exchange.texts = request.messages
            is_plain = request.output is None and not request.tools
        else:
            self._images.check(request)
        if not is_plain:
            check_declared(request, profile)
        if self._router is not None and exchange.operation == "generate":
            self._router.route(exchange, body, self._clock())

    def shape(self, exchange: Exchange, facts: Facts) -> Shaped:
        """Return a prepared request as it would be sent to a server of these facts; each change leaves a note."""
        return self._shaper.shape(exchange, facts)

    def is_lenient(self, exchange: Exchange, profile: Profile) -> bool:
        """Say whether the configuration, the token or the profile lets mere hints go."""
        return self._lenient or _LENIENT in (exchange.principal.compatibility, profile.compatibility)

    def current(self, profile: Profile) -> Profile:
        """Return a model's profile as it is now in force, though the exchange was prepared under an older one.

        Raises:
            DeckError: it was removed.
        """
        match = self.catalog.resolve(profile.id)
        if match is None or match.profile.id != profile.id:
            raise DeckError(ErrorKind.MODEL_NOT_FOUND, f"the model {profile.id!r} was removed", param="model")
        return match.profile

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

    def resolve(self, name: str, exchange: Exchange, kinds: Collection[str] = _CHAT_ALONE) -> Profile:
        """Return the profile of a model that serves the route: one of `kinds`.

        Raises:
            DeckError: there is none of that name, it is of another kind, or the token may not use it.
        """
        exchange.catalog = self.catalog
        match = self.catalog.resolve(name)
        profile = match.profile if match is not None else None
        if profile is not None and profile.kind not in kinds and exchange.principal.may_use(profile.id):
            served = ", ".join(self.plugins.routes_of_kind(profile.kind)) or "no route"
            message = f"the model {name!r} is of kind {profile.kind}, served by {served}"
            message += f"; this route needs a model of kind {' or '.join(kinds)}"
            raise DeckError(ErrorKind.MODEL_NOT_FOUND, message, param="model", code="model_not_found")
        if profile is None or profile.kind not in kinds:
            raise self._no_model(name, exchange.principal, kinds)
        if not exchange.principal.may_use(profile.id):
            raise DeckError(ErrorKind.PERMISSION, f"this token may not use the model {name!r}", param="model")
        if match is not None and match.via == "suffix":
            exchange.report.changed("model", "the suffix is not part of a model's name", shown=f"model>{profile.id}")
        return profile

    def _no_model(self, name: str, principal: Principal, kinds: Collection[str]) -> DeckError:
        known = [item.id for item in self.catalog.profiles if item.kind in kinds and principal.may_use(item.id)]
        return no_model(name, known)

    def remember(self, exchange: Exchange, calls: list[str]) -> None:
        """Take note of the calls that an exchange was answered with."""
        if self._router is not None:
            self._router.remember(exchange, calls, self._clock())

    def run(self, exchange: Exchange, take: Taker) -> Coroutine[Any, Any, None]:
        """Run the exchange: wait for its server, forward, and hand on its events as they come.

        An error before the first event is raised, one after it is the last event. In the static lane the events come
        all at once, and an error after the first is raised too.

        Args:
            exchange: one that is prepared.
            take: is given events, and may return what must be awaited before it can be given more.

        Raises:
            DeckError: nothing was answered.
        """
        return self.flights.run(exchange, take) if exchange.lane is Lane.STATIC else self._run(exchange, take)

    async def _run(self, exchange: Exchange, take: Taker) -> None:
        profile, claim = exchange.profile, exchange.claim
        assert profile is not None
        if exchange.texts is None:
            await self._fetch_images(exchange)
        loaded = self._ready(profile)
        if loaded is None or loaded.profile is not profile:
            fit = self._fitter.guess(exchange)
        elif (fit := self._fitter.measure(exchange, loaded)).is_open:
            await self._fitter.count(exchange, loaded, fit)
        quote = partial(self._fitter.quote, exchange)
        is_again = False
        while True:
            if exchange.catalog is not self.catalog:
                profile = self.current(profile)
            ticket, server = await self.board.acquire(profile, exchange.principal.name, fit.credit, claim, quote)
            try:
                if exchange.granted is None:  # a second try has queued before
                    exchange.granted = self._clock()
                exchange.server, exchange.was_tried = server, False
                if fit.facts is not server.facts:
                    fit = await self._fitter.fit_granted(exchange, server, fit)
                    if not self.board.settle(ticket, fit.credit):
                        continue  # it takes more than it was granted, and waits for that
                exchange.shaped = shaped = fit.shaped
                assert shaped is not None
                payload = fit.payload
                if claim is not None:
                    payload = self._placed(exchange, ticket, claim, payload)
                await self._send_on(exchange, server, shaped, payload, take)
                return
            except UnheardError:
                if is_again or not await self.board.has_ended(server):
                    raise
                is_again = True
                exchange.granted = exchange.server = None
            finally:
                exchange.is_owed = False
                self.board.release(ticket, server)

    def _send_on(
        self, exchange: Exchange, server: Server, shaped: Shaped, payload: bytes, take: Taker
    ) -> Coroutine[Any, Any, object]:
        """Send a request to a server, or to one of several."""
        exchange.is_owed = True
        only = server.only if isinstance(server, Remote) else server
        if only is not None:
            return self._send(exchange, only, shaped, payload, take)
        assert isinstance(server, Remote)
        affinity = affinity_of(exchange) if server.has_choice else None
        return server.use(affinity, lambda use: self._send(exchange, use.server, shaped, payload, take, use))

    def _placed(self, exchange: Exchange, ticket: Ticket, claim: Claim, payload: bytes) -> bytes:
        """Return a body with the slot it is to run in, if Deck chooses it; note a turn that did not come in time."""
        if claim.alone and not self.board.is_alone(ticket):
            exchange.left, exchange.lane = Lane.SERIAL, Lane.CONTINUOUS
        slot = self.board.slot(ticket)
        return payload if slot is None else b'%b,"id_slot":%d}' % (payload[:-1], slot)

    async def _send(
        self, exchange: Exchange, server: Server, shaped: Shaped, payload: bytes, take: Taker, use: Use | None = None
    ) -> DeckError | None:
        """Post a request to one server and hand on its answer; return the error that this ended in, if any."""
        if use is not None:
            exchange.note_backend(use.server.url)
        try:
            if shaped.route is TEXT:
                await self._check_schema(server, shaped.request)
            response = await self._client.post(server, shaped.route, payload)
        except DeckError as error:
            _blame(error, shaped.request)
            raise
        response.is_streamed = shaped.request.stream
        if use is not None:
            use.begun()
        try:
            return await self._forward(exchange, server, shaped, response, take)
        finally:
            response.close()

    async def _forward(
        self, exchange: Exchange, server: Server, shaped: Shaped, response: RawResponse, take: Taker
    ) -> DeckError | None:
        assert exchange.profile is not None
        assert exchange.parsed is not None
        decoder = shaped.decoder(exchange.seed, exchange.profile)
        filtered = filter_of(shaped, exchange)
        thoughts = ThoughtCounter() if exchange.parsed.needs.reasoning_tokens else None
        has_begun = False
        events: list[Event] | None = None
        while not decoder.finished:
            try:
                while (chunk := response.take()) is None:
                    await response.more()
                events = decoder.feed(chunk) if chunk else decoder.end()
            except httpx.HTTPError as exc:
                decoder.finished = True
                events = [await self._broken(server, exc, has_bytes=events is not None)]
            exchange.heard += len(events)
            if filtered is not None and shaped.family is not None:
                events = filtered_by(shaped.family.name, filtered, events)
            if thoughts is not None:
                events = await thoughts.count(events, self._client, server, exchange.report)
            if not events:
                continue
            if not has_begun and isinstance(events[0], Failed):
                raise _at_once(events[0].error, response, shaped.request)
            has_begun = True
            waiting = take(events)
            if waiting is not None:
                exchange.is_owed = False
                await waiting
                exchange.is_owed = True
            last = events[-1]
            if isinstance(last, Failed):
                return last.error
        if decoder.cut_call and exchange.parsed.request.stream and decoder.cut_call != shaped.answer_tool:
            note_cut(exchange, decoder.cut_call, "its beginning stands", "tool_calls")
        if not response.is_complete:
            await self._client.settle(response)
        return None

    async def _broken(self, server: Server, exc: httpx.HTTPError, *, has_bytes: bool) -> Failed:
        """Return the end of an answer that broke off; where no byte of it came, another server may be asked."""
        error = await self._client.broken(server, exc)
        if not has_bytes:
            raise error from exc
        error.__cause__ = MidAnswer()
        return Failed(error)

    async def complete(self, exchange: Exchange) -> None:
        """Fetch what a prepared request only names, for whoever sends it by another way than `run`.

        Raises:
            DeckError: it cannot be fetched.
        """
        await self._fetch_images(exchange)

    async def _fetch_images(self, exchange: Exchange) -> None:
        """Put images in the place of their URLs, unless the model is known to take none."""
        assert exchange.parsed is not None
        assert exchange.profile is not None
        request = exchange.parsed.request
        if not isinstance(request, ChatRequest) or not self._images.check(request):
            return
        server = self._ready(exchange.profile)
        if server is not None:
            check_measured(request, server.facts)
        exchange.parsed = replace(exchange.parsed, request=await self._images.fetch(request))

    async def _check_schema(self, server: Server, request: Request) -> None:
        """Refuse a schema that cannot be read: llama-server's route for raw prompts leaves it out without a word."""
        if not isinstance(request, TextRequest) or request.output is None or request.output.schema is None:
            return
        try:
            await self._client.read_schema(server, request.output.schema)
        except DeckError as error:
            # Whatever else the chat route may lack, a template perhaps, is no matter of a raw prompt.
            if _SCHEMA.search(error.message) or server.state is ServerState.FAILED:
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
        return await self.again(exchange, partial(self._count, exchange))

    async def again(self, exchange: Exchange, once: Callable[[], Awaitable[_Result]]) -> _Result:
        """Do what asks a server, and once more where that had ended by itself before it heard of it.

        Raises:
            DeckError: what `once` raises.
        """
        notes = exchange.report.size
        try:
            return await once()
        except UnheardError:
            if exchange.server is None or not await self.board.has_ended(exchange.server):
                raise
        exchange.report.rewind(notes)
        exchange.granted = exchange.server = None
        return await once()

    async def _count(self, exchange: Exchange) -> tuple[int, bool]:
        assert exchange.profile is not None
        if self._ready(exchange.profile) is not None or exchange.profile.server.load_to_count:
            await self._fetch_images(exchange)
        server = self._ready(exchange.profile)
        if server is not None:
            exchange.granted = self._clock()
            return await self._counted(exchange, server), False
        if exchange.profile.server.load_to_count:
            async with self.board.admit(self.current(exchange.profile), exchange.principal.name) as server:
                exchange.granted, exchange.server = self._clock(), server
                return await self._counted(exchange, server), False
        shaped = self._shaper.shape(exchange, Facts())
        return estimate(shaped.body), True

    def _ready(self, profile: Profile) -> Server | None:
        server = self.board.server(profile.id)
        return server if server is not None and server.state is ServerState.READY else None

    async def _counted(self, exchange: Exchange, server: Server) -> int:
        shaped = self._shaper.shape(exchange, server.facts)
        if not isinstance(server, Remote):
            exchange.server, exchange.is_owed = server, True
            try:
                return await self._count_on(server, shaped)
            finally:
                exchange.is_owed = False
        found = 0

        async def count(use: Use) -> None:
            nonlocal found
            found = await self._count_on(use.server, shaped)

        await server.use(affinity_of(exchange) if server.has_choice else None, count)
        return found

    async def _count_on(self, server: Server, shaped: Shaped) -> int:
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


def _at_once(error: DeckError, response: RawResponse, request: Request) -> DeckError:
    """Return the error that an answer is instead of one: what answers with a page is no llama-server."""
    if (response.header(b"content-type") or b"").startswith(_PAGE):
        error.message = "what answers at the server's address is no llama-server: it sent a page of HTML"
    _blame(error, request)
    return error


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
    if error.limits is not None and isinstance(request, TextRequest):
        error.message = overflow(error.limits, of="prompt").message
    if error.param is None and isinstance(request, TextRequest) and _TOKENS.search(error.message):
        error.param = "prompt"
