"""The exchanges of surfaces over ASGI: body, pipeline, answer; and what the endpoint knows of all that run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from deck import correction, json, query
from deck.body import read_body, whole_body
from deck.canon.answer import Answer, Fold
from deck.canon.events import Event, Failed, Finish, PartDelta, PartStart
from deck.canon.request import ChatRequest, ToolCall
from deck.config import Config
from deck.contracts import CountingSurface, ExchangeRecord, Observer, Projector, ReplyHead, Route, Server, Surface
from deck.conversation import SESSION_HEADERS, session_of_headers
from deck.errors import DeckError, ErrorKind, without_paths
from deck.exchange import note_cut
from deck.flights import Taker
from deck.http import Receive, Scope, Send, header
from deck.loads import load_progress
from deck.normalize.repairs import RETRIED_CALL
from deck.normalize.report import Report
from deck.pipeline import Pipeline
from deck.serving import Serving, Summary
from deck.structured import check_answer
from deck.tokens import TokenStore

_log = logging.getLogger("deck.endpoint")


class Endpoint:
    """Answers the generating routes of all surfaces."""

    def __init__(
        self,
        config: Config,
        tokens: TokenStore,
        pipeline: Pipeline,
        observers: Sequence[Observer],
        on_observer_failure: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._config = config
        self._tokens = tokens
        self._pipeline = pipeline
        self._observers = observers
        self._on_observer_failure = on_observer_failure
        self._running: set[Serving] = set()
        self._idle: asyncio.Future[None] | None = None

    @property
    def running(self) -> int:
        """How many exchanges run."""
        return len(self._running)

    @property
    def streams(self) -> int:
        """How many answers are being streamed."""
        return sum(running.is_stream for running in self._running)

    def owed(self, server: Server) -> dict[str, int]:
        """Return the exchanges that wait for something of a server, by id, with how much has come of each."""
        running = (serving.exchange for serving in self._running)
        every = chain(running, self._pipeline.flights.exchanges())
        return {item.id: item.heard for item in every if item.is_owed and item.server is server}

    def abort_all(self) -> None:
        """End every exchange with its wire's own error: Deck stops and the time for draining is over."""
        for running in list(self._running):
            running.cancel("shutdown")

    def __call__(
        self, scope: Scope, receive: Receive, send: Send, surface: Surface, route: Route
    ) -> Coroutine[Any, Any, None]:
        """Serve one request to a route of a surface."""
        return _Serving(self, scope, receive, send, surface, route).run()

    def begun(self, serving: Serving) -> None:
        """Count an exchange that begins."""
        self._running.add(serving)

    def ended(self, serving: Serving) -> None:
        """Count it no more."""
        self._running.discard(serving)
        if self._idle is not None and not self._running:
            self._idle.set_result(None)
            self._idle = None

    async def wait_idle(self) -> None:
        """Return when no exchange runs."""
        if self._running:
            self._idle = self._idle or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def observe(self, record: ExchangeRecord) -> None:
        """Tell the observers; one that fails is counted, never raised."""
        for observer in self._observers:
            try:
                observer.observe(record)
            except Exception:
                name = type(observer).__name__
                _log.exception("observer %s failed", name)
                self._on_observer_failure(name)


class _Serving(Serving):
    """The life of one exchange of a surface."""

    __slots__ = ("finish", "surface")

    def __init__(
        self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send, surface: Surface, route: Route
    ) -> None:
        super().__init__(endpoint, scope, receive, send, surface, route)
        self.surface = surface
        self.finish: Finish | None = None

    async def _admit(self) -> None:
        """Check the token, then read and prepare the body."""
        exchange, endpoint = self.exchange, self.endpoint
        turn, scope, headers = self.turn, self.scope, self.headers
        self._authenticate()
        config = endpoint._config
        content = whole_body(turn, headers, config.body_limit) if turn is not None else None
        if content is None:
            content = await read_body(scope, self.receive, limit=config.body_limit, timeout=config.body_timeout)
        self._ignore_headers()
        if scope["query_string"]:
            query.ignore(scope["query_string"], exchange.report)
        if self.surface.header_names:
            exchange.headers = _headers_of(self.scope, self.surface.header_names)
        if headers is None:
            headers = dict(scope["headers"])
        if not SESSION_HEADERS.isdisjoint(headers):
            exchange.session = session_of_headers(headers)
        exchange.size = len(content)
        endpoint._pipeline.prepare(exchange, json.loads_request(content))

    def _answer(self) -> Coroutine[Any, Any, None]:
        assert self.exchange.parsed is not None
        if self.exchange.operation == "count":
            return self._count()
        return self._stream() if self.exchange.parsed.request.stream else self._buffer()

    async def _count(self) -> None:
        surface = self.surface
        assert isinstance(surface, CountingSurface), f"the surface {surface.name} has a route to count and no answer"
        tokens, is_estimate = await self.endpoint._pipeline.count(self.exchange)
        extra = [(b"x-deck-estimate", b"1")] if is_estimate else []
        await self.reply.json(200, surface.render_count(tokens), extra)

    async def _buffer(self) -> None:
        exchange = self.exchange
        assert exchange.parsed is not None
        answer = await self._answered()
        self.finish = answer.finish
        calls = [part.id for part in answer.parts if isinstance(part, ToolCall)]
        if calls:
            self.endpoint._pipeline.remember(exchange, calls)
        for name in answer.cut_calls:
            note_cut(exchange, name, "its beginning is text", "tool_calls>content")
        if exchange.shaped is not None:
            check_answer(answer, exchange.shaped.request, exchange.report)
        await self.reply.json(200, self.surface.render(answer, exchange.parsed, self._head()))

    def _answered(self) -> Coroutine[Any, Any, Answer]:
        """Return the answer; where the model's call cannot be used, that of one more try."""
        exchange = self.exchange
        assert exchange.parsed is not None
        assert exchange.profile is not None
        request = exchange.parsed.request
        if not exchange.profile.retry_calls or not isinstance(request, ChatRequest) or not request.tools:
            return self._folded()
        return self._with_usable_calls(request)

    async def _with_usable_calls(self, request: ChatRequest) -> Answer:
        try:
            answer = await self._folded()
        except DeckError as error:
            said = correction.format_fault(error)
            if said is None:
                raise
            return await self._again(None, said, error)
        said = correction.fault_of(answer, request)
        return answer if said is None else await self._again(answer, said, None)

    async def _again(self, first: Answer | None, said: str, error: DeckError | None) -> Answer:
        """Tell the model what was wrong, once; what then still cannot be used is text, or the error that it was."""
        exchange = self.exchange
        parsed, report = exchange.parsed, exchange.report
        assert parsed is not None
        assert isinstance(parsed.request, ChatRequest)
        request = parsed.request  # its images were fetched at the first try
        exchange.parsed = replace(parsed, request=correction.corrected(request, first, said))
        exchange.report = Report()  # what is changed in the request was said at the first try
        try:
            second = await self._folded()
        except DeckError as failure:
            is_too_long = failure.kind is ErrorKind.CONTEXT_LENGTH  # with what was wrong it fits no more
            if correction.format_fault(failure) is None and not is_too_long:
                raise
            second = None
        finally:
            exchange.parsed, exchange.report = parsed, report
        report.changed("tools", f"asked once more: {said}", shown="tools>retried", field=RETRIED_CALL)
        if second is None and first is None:
            assert error is not None
            raise error
        if second is None or correction.fault_of(second, request) is not None:
            report.ignored("tools", "the model's call could not be used", field=RETRIED_CALL)
        answer = second if second is not None else first
        assert answer is not None
        usage = first.finish.usage if first is not None and second is not None else None
        return correction.with_both_usages(correction.honest(answer, request), usage)

    async def _folded(self) -> Answer:
        fold, exchange = Fold(), self.exchange

        def take(events: list[Event]) -> None:
            if exchange.first_token is None:
                self._note_first(events)
            fold.take(events)

        try:
            await self.endpoint._pipeline.run(exchange, take)
        finally:
            self.finish = fold.finish or self.finish
        return fold.answer()

    async def _stream(self) -> None:
        exchange = self.exchange
        assert exchange.parsed is not None
        self.is_stream = True
        projector = self.surface.projector(exchange.parsed, self._head())
        self.feed = feed = projector.feed
        reply = self.reply
        reply.beat(self.endpoint._config.heartbeat, lambda: self._heartbeat(projector) if self._is_alive() else None)

        def take(events: list[Event]) -> Awaitable[None] | None:
            if exchange.first_token is None:
                self._note_first(events)
            last = events[-1]
            if type(last) is not PartDelta:
                self._note_last(last)
                if type(last) is Failed and not exchange.principal.admin:
                    events[-1] = last = Failed(without_paths(last.error))
            if type(last) is Failed and not reply.has_started:
                return self._put_or_raise(events, last, feed)
            data = feed(last) if len(events) == 1 else b"".join([feed(event) for event in events])
            return reply.put(data) if data else None

        request = exchange.parsed.request
        has_tools = isinstance(request, ChatRequest) and bool(request.tools)
        await self.endpoint._pipeline.run(exchange, self._remembering(take) if has_tools else take)
        await reply.end()

    def _remembering(self, take: Taker) -> Taker:
        """Return `take`, with the answer's calls remembered before the client has seen its end."""
        calls: list[str] = []
        exchange, pipeline = self.exchange, self.endpoint._pipeline

        def note(events: list[Event]) -> Awaitable[None] | None:
            calls.extend(event.tool_id for event in events if type(event) is PartStart and event.kind == "tool_call")
            if calls and type(events[-1]) is Finish:
                pipeline.remember(exchange, calls)
            return take(events)

        return note

    def _put_or_raise(
        self, events: list[Event], failed: Failed, feed: Callable[[Event], bytes]
    ) -> Awaitable[None] | None:
        """Send a failure as the end of what goes before it; where nothing does, raise it, so that it has its status."""
        data = b"".join([feed(event) for event in events[:-1]])
        if not data:
            raise failed.error
        return self.reply.put(data + feed(failed))

    def _heartbeat(self, projector: Projector) -> bytes:
        """Return a sign of life; while the model loads, what it is doing, to those who want to know."""
        exchange = self.exchange
        told = None
        if exchange.granted is None and exchange.profile is not None:
            board = self.endpoint._pipeline.board
            told = load_progress(board, exchange.profile.id, is_operator=exchange.principal.admin)
        return (projector.feed(told) if told is not None else b"") or projector.heartbeat()

    def _head(self) -> ReplyHead:
        # Not a method of this object, which holds the projector that holds it.
        sampling = partial(self.endpoint._pipeline.sampling, self.exchange)
        return ReplyHead(self.exchange.seed, int(self.now), self.exchange.model, sampling, time.time)

    def _note_first(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, PartStart):
                self.exchange.first_token = time.monotonic()
                return

    def _note_last(self, event: Event) -> None:
        if isinstance(event, Finish):
            self.finish = event
        elif isinstance(event, Failed):
            self._set_failed(event.error)

    def _summary(self) -> Summary:
        exchange, finish = self.exchange, self.finish
        stream = exchange.parsed is not None and exchange.parsed.request.stream
        lane = exchange.lane._value_ if exchange.lane is not None else ""
        if finish is None:
            return Summary(stream, None, None, None, None, lane)
        reason, usage = finish.reason._value_, finish.usage
        if exchange.is_guest:  # what was generated once is counted once
            return Summary(stream, None, None, None, reason, lane)
        return Summary(stream, usage.prompt, usage.completion, usage.cached, reason, lane)


def _headers_of(scope: Scope, names: Sequence[str]) -> dict[str, str]:
    found = ((name, header(scope, name.encode("latin-1"))) for name in names)
    return {name: value.decode("latin-1") for name, value in found if value is not None}
