"""One exchange over ASGI: token, body, pipeline, answer, record; and the watch for a client that leaves.

A single coroutine owns the exchange from its first byte to its last, so that a client who leaves while queued, during
load, during prefill or mid-stream frees its slot and closes the upstream at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from deck import correction, json, query
from deck.body import ClientGone, read_body, whole_body
from deck.canon.answer import Answer, Fold
from deck.canon.events import Event, Failed, Finish, PartDelta, PartStart
from deck.canon.request import ChatRequest
from deck.config import Config
from deck.contracts import CountingSurface, ExchangeRecord, Observer, ReplyHead, Route, ServerState, Surface
from deck.errors import DeckError, ErrorKind, without_paths
from deck.exchange import Exchange, note_cut
from deck.http import Receive, Scope, Send, alphanumerics, by_name, header, request_id, request_id_of
from deck.normalize.repairs import RETRIED_CALL
from deck.normalize.report import Report
from deck.operation import Operation
from deck.pipeline import Pipeline
from deck.reply import Reply
from deck.scheduler.lanes import route_decide
from deck.structured import check_answer
from deck.tokens import Principal, TokenStore, credentials_by_name, credentials_of
from deck.turn import Turn

_log = logging.getLogger("deck.endpoint")
# How long the error that ends an answer may take to be written when Deck stops.
_LAST_WORD = 1.0
_ALIVE = (ServerState.STARTING, ServerState.LOADING, ServerState.READY)
NOBODY = Principal(name="", models=None, admin=False, compatibility=None)

_ACCOUNT = "Deck's tokens belong to no such account"
_VENDOR_HEADERS = {
    b"idempotency-key": ("Idempotency-Key", "every request is generated anew"),
    b"openai-organization": ("OpenAI-Organization", _ACCOUNT),
    b"openai-project": ("OpenAI-Project", _ACCOUNT),
    b"openai-beta": ("OpenAI-Beta", "Deck's features need no switch"),
}


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
    def config(self) -> Config:
        """How it serves."""
        return self._config

    @property
    def pipeline(self) -> Pipeline:
        """What it asks."""
        return self._pipeline

    @property
    def running(self) -> int:
        """How many exchanges run."""
        return len(self._running)

    @property
    def streams(self) -> int:
        """How many answers are being streamed."""
        return sum(running.is_stream for running in self._running)

    def abort_all(self) -> None:
        """End every exchange with its wire's own error: Deck stops and the time for draining is over."""
        for running in list(self._running):
            running.cancel("shutdown")

    def __call__(
        self, scope: Scope, receive: Receive, send: Send, surface: Surface, route: Route
    ) -> Coroutine[Any, Any, None]:
        """Serve one request to a route of a surface."""
        return Serving(self, scope, receive, send, surface, route).run()

    def _ended(self, serving: Serving) -> None:
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


class Serving:
    """The life of one exchange; it can be ended from outside, and `why` says who did.

    What it answers is a surface's; `deck.forwarding` derives from it what answers an operation.
    """

    __slots__ = (
        "endpoint",
        "exchange",
        "feed",
        "finish",
        "headers",
        "is_stream",
        "now",
        "outcome",
        "receive",
        "reply",
        "scope",
        "status",
        "surface",
        "task",
        "turn",
        "why",
        "wire",
    )

    def __init__(
        self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send, wire: Surface | Operation, route: Route
    ) -> None:
        self.endpoint = endpoint
        self.scope = scope
        self.receive = receive
        self.turn: Turn | None = scope.get("deck.turn")
        task = self.turn.task if self.turn is not None else asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[Any] = task
        self.now = time.time()
        # Deck's own server writes names in lower case.
        self.headers = headers = by_name(scope) if self.turn is not None else None
        self.wire = wire
        if not isinstance(wire, Operation):
            self.surface = wire
        self.exchange = Exchange(
            id=request_id(scope) if headers is None else request_id_of(headers.get(b"x-request-id")),
            surface=wire,
            principal=NOBODY,
            seed=alphanumerics(40),
            began=time.monotonic(),
            operation=route.operation,
        )
        # Not a method of this object: what an exchange leaves behind must need no garbage collection.
        self.reply = Reply(send, partial(_headers_of_answer, self.exchange), self.turn)
        self.is_stream = False
        self.why: Literal["", "client", "shutdown"] = ""
        self.outcome = "ok"
        self.status = 200
        self.finish: Finish | None = None
        self.feed: Callable[[Event], bytes] | None = None

    def cancel(self, why: Literal["client", "shutdown"]) -> None:
        """End the exchange; the first reason counts."""
        if not self.why:
            self.why = why
            self.task.cancel()

    async def run(self) -> None:
        """Serve it from its token to its record."""
        watcher: asyncio.Task[None] | None = None
        self.endpoint._running.add(self)
        try:
            try:
                await self._admit()
                if self.turn is not None:
                    self.turn.watch(self._left)
                else:
                    watcher = asyncio.get_running_loop().create_task(self._watch())
                await self._answer()
            except DeckError as error:
                await self._fail(error)
            except ClientGone:
                self.outcome, self.status = "client_gone", 499
            except asyncio.CancelledError:
                await self._cancelled()
            except Exception as exc:
                _log.exception("exchange %s failed inside Deck", self.exchange.id)
                await self._fail(DeckError(ErrorKind.INTERNAL, f"Deck failed on this request: {type(exc).__name__}"))
        finally:
            self.reply.quiet()
            if watcher is not None:
                watcher.cancel()
            self.endpoint._ended(self)
            self._record()

    def _left(self) -> None:
        self.cancel("client")

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
        endpoint._pipeline.prepare(exchange, json.loads_request(content))

    def _authenticate(self) -> None:
        headers = self.headers
        credentials = credentials_of(self.scope["headers"]) if headers is None else credentials_by_name(headers)
        principal = self.endpoint._tokens.authenticate(credentials, self.now)
        if principal is None:
            raise DeckError(
                ErrorKind.AUTHENTICATION,
                "no valid token: send 'Authorization: Bearer …' or 'x-api-key: …' with one made by `deck token create`",
            )
        self.exchange.principal = principal

    def _ignore_headers(self) -> None:
        """Report the headers that mean something to a wire's vendor and nothing here."""
        headers = self.headers
        for name, (shown, why) in _VENDOR_HEADERS.items():
            if name in headers if headers is not None else header(self.scope, name) is not None:
                self.exchange.report.ignored(shown, why, field=name.decode())

    async def _watch(self) -> None:
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                self.cancel("client")
                return

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
        for name in answer.cut_calls:
            note_cut(exchange, name, "its beginning is text", "tool_calls>content")
        if exchange.shaped is not None:
            check_answer(answer, exchange.shaped.request, exchange.report)
        await self.reply.json(200, self.surface.render(answer, exchange.parsed, self._head()))

    async def _answered(self) -> Answer:
        """Return the answer; where the model's call cannot be used, that of one more try."""
        exchange = self.exchange
        assert exchange.parsed is not None
        assert exchange.profile is not None
        request = exchange.parsed.request
        if not exchange.profile.retry_calls or not isinstance(request, ChatRequest) or not request.tools:
            return await self._folded()
        try:
            answer = await self._folded()
        except DeckError as error:
            said = correction.format_fault(error)
            if said is None:
                raise
            return await self._again(request, None, said, error)
        said = correction.fault_of(answer, request)
        return answer if said is None else await self._again(request, answer, said, None)

    async def _again(self, request: ChatRequest, first: Answer | None, said: str, error: DeckError | None) -> Answer:
        """Tell the model what was wrong, once; what then still cannot be used is text, or the error that it was."""
        exchange = self.exchange
        parsed, report = exchange.parsed, exchange.report
        assert parsed is not None
        exchange.parsed = replace(parsed, request=correction.corrected(request, first, said))
        exchange.report = Report()  # what is changed in the request was said at the first try
        try:
            second = await self._folded()
        except DeckError as failure:
            if correction.format_fault(failure) is None:
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
            for event in events:
                fold.feed(event)

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
        reply.beat(self.endpoint._config.heartbeat, lambda: projector.heartbeat() if self._is_alive() else None)

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

        await self.endpoint._pipeline.run(exchange, take)
        await reply.end()

    def _put_or_raise(
        self, events: list[Event], failed: Failed, feed: Callable[[Event], bytes]
    ) -> Awaitable[None] | None:
        """Send a failure as the end of what goes before it; where nothing does, raise it, so that it has its status."""
        data = b"".join([feed(event) for event in events[:-1]])
        if not data:
            raise failed.error
        return self.reply.put(data + feed(failed))

    def _is_alive(self) -> bool:
        profile = self.exchange.profile
        state = self.endpoint._pipeline.board.states().get(profile.id) if profile else None
        # No server yet = the request waits in Deck's own queue, which is alive.
        return state is None or state in _ALIVE or self.exchange.server is None

    def _head(self) -> ReplyHead:
        return ReplyHead(
            seed=self.exchange.seed,
            created=int(self.now),
            model=self.exchange.model,
            # Not a method of this object, which holds the projector that holds it.
            sampling=partial(self.endpoint._pipeline.sampling, self.exchange),
            clock=time.time,
        )

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

    def _set_failed(self, error: DeckError) -> None:
        self.outcome, self.status = error.kind.label, error.kind.status

    async def _fail(self, error: DeckError) -> None:
        """Answer with the error: its status if nothing was sent yet, else as the stream's end."""
        self._set_failed(error)
        if not self.exchange.principal.admin:
            error = without_paths(error)
        self.reply.quiet()
        await self.reply.settle()
        if not self.reply.has_started:
            body = self.wire.error(error, self.exchange.id)
            await self.reply.json(error.kind.status, body, error_headers(error))
        elif self.feed is not None:
            await self.reply.frames(self.feed(Failed(error)))
            await self.reply.end()
        else:
            self.reply.cut()

    async def _cancelled(self) -> None:
        match self.why:
            case "client":
                self.outcome, self.status = "client_gone", 499
                self.task.uncancel()
            case "shutdown":
                self.task.uncancel()
                with contextlib.suppress(TimeoutError):
                    # A client that reads nothing is not waited for.
                    async with asyncio.timeout(_LAST_WORD):
                        await self._fail(DeckError(ErrorKind.UNAVAILABLE, "Deck is shutting down", retry_after=10))
            case _:
                raise asyncio.CancelledError

    def _asks_stream(self) -> bool:
        parsed = self.exchange.parsed
        return parsed is not None and parsed.request.stream

    def _lane(self) -> str:
        return route_decide()._value_

    def _tokens(self) -> tuple[int | None, int | None, int | None]:
        usage = self.finish.usage if self.finish else None
        return (usage.prompt, usage.completion, usage.cached) if usage else (None, None, None)

    def _record(self) -> None:
        exchange, now = self.exchange, time.monotonic()
        prompt, completion, cached = self._tokens()
        first = exchange.first_token
        self.endpoint.observe(
            ExchangeRecord(
                id=exchange.id,
                surface=self.wire.name,
                model=exchange.profile.id if exchange.profile else "",
                principal=exchange.principal.name,
                outcome=self.outcome,
                status=self.status,
                stream=self._asks_stream(),
                duration=now - exchange.began,
                queued=(exchange.granted or now) - exchange.began,
                first_token=first - exchange.began if first is not None else None,
                prompt_tokens=prompt,
                completion_tokens=completion,
                cached_tokens=cached,
                finish=self.finish.reason._value_ if self.finish else None,
                notes=[(note.kind._value_, note.field) for note in exchange.report.notes],
                lane=self._lane(),
            )
        )


def _headers_of_answer(exchange: Exchange) -> list[tuple[bytes, bytes]]:
    identity = exchange.id.encode()
    headers = [(name.encode(), identity) for name in exchange.surface.id_headers]
    for name, value in exchange.report.headers():
        headers.append((name.lower().encode(), value.encode("latin-1", "replace")))
    return headers


def _headers_of(scope: Scope, names: Sequence[str]) -> dict[str, str]:
    found = ((name, header(scope, name.encode("latin-1"))) for name in names)
    return {name: value.decode("latin-1") for name, value in found if value is not None}


def error_headers(error: DeckError) -> list[tuple[bytes, bytes]]:
    """Return the headers that go with an error: when to retry, how to authenticate."""
    headers = []
    if error.retry_after is not None:
        headers.append((b"retry-after", str(max(1, round(error.retry_after))).encode()))
    if error.should_retry is not None:
        headers.append((b"x-should-retry", b"true" if error.should_retry else b"false"))
    if error.kind is ErrorKind.AUTHENTICATION:
        headers.append((b"www-authenticate", b'Bearer realm="deck"'))
    return headers
