"""One exchange over ASGI: token, body, pipeline, answer, record; and the watch for a client that leaves.

A single coroutine owns the exchange from its first byte to its last, so that a client who leaves while queued, during
load, during prefill or mid-stream frees its slot and closes the upstream at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from deck import json
from deck.body import ClientGone, read_body
from deck.canon.answer import Fold
from deck.canon.events import Event, Failed, Finish, PartDelta, PartStart
from deck.config import Config
from deck.contracts import CountingSurface, ExchangeRecord, Observer, ReplyHead, Route, ServerState, Surface
from deck.errors import DeckError, ErrorKind
from deck.http import Receive, Scope, Send, alphanumerics, header, request_id
from deck.normalize.report import Report
from deck.pipeline import Exchange, Pipeline
from deck.reply import Reply
from deck.scheduler.lanes import route_decide
from deck.structured import check_answer
from deck.tokens import Principal, TokenStore, credentials_of

_log = logging.getLogger("deck.endpoint")
# How long the error that ends an answer may take to be written when Deck stops.
_LAST_WORD = 1.0
_MOST_PARAMETERS = 16
_ALIVE = (ServerState.STARTING, ServerState.LOADING, ServerState.READY)
NOBODY = Principal(name="", models=None, admin=False, compatibility=None)


class _Running:
    """An exchange that can be ended from outside; `why` says who did."""

    __slots__ = ("is_stream", "task", "why")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.is_stream = False
        self.why: Literal["", "client", "shutdown"] = ""

    def cancel(self, why: Literal["client", "shutdown"]) -> None:
        if not self.why:
            self.why = why
            self.task.cancel()


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
        self._running: set[_Running] = set()
        self._idle = asyncio.Event()
        self._idle.set()

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send, surface: Surface, route: Route) -> None:
        """Serve one request to a route of a surface."""
        task = asyncio.current_task()
        assert task is not None
        running = _Running(task)
        self._running.add(running)
        self._idle.clear()
        try:
            await _Serving(self, scope, receive, send, surface, route, running).run()
        finally:
            self._running.discard(running)
            if not self._running:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Return when no exchange runs."""
        await self._idle.wait()

    def observe(self, record: ExchangeRecord) -> None:
        """Tell the observers; one that fails is counted, never raised."""
        for observer in self._observers:
            try:
                observer.observe(record)
            except Exception:
                name = type(observer).__name__
                _log.exception("observer %s failed", name)
                self._on_observer_failure(name)


class _Serving:
    """The life of one exchange."""

    def __init__(
        self,
        endpoint: Endpoint,
        scope: Scope,
        receive: Receive,
        send: Send,
        surface: Surface,
        route: Route,
        running: _Running,
    ) -> None:
        self.endpoint = endpoint
        self.scope = scope
        self.receive = receive
        self.surface = surface
        self.running = running
        self.created = int(time.time())
        self.exchange = Exchange(
            id=request_id(scope),
            surface=surface,
            principal=NOBODY,
            seed=alphanumerics(40),
            began=time.monotonic(),
            operation=route.operation,
        )
        self.reply = Reply(send, self._headers)
        self.outcome = "ok"
        self.status = 200
        self.finish: Finish | None = None
        self.feed: Callable[[Event], bytes] | None = None

    def _headers(self) -> Iterator[tuple[bytes, bytes]]:
        identity = self.exchange.id.encode()
        for name in self.surface.id_headers:
            yield name.encode(), identity
        for name, value in self.exchange.report.headers():
            yield name.lower().encode(), value.encode("latin-1", "replace")

    async def run(self) -> None:
        watcher: asyncio.Task[None] | None = None
        try:
            try:
                await self._admit()
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
            self._record()

    async def _admit(self) -> None:
        """Check the token, then read and prepare the body."""
        exchange, endpoint = self.exchange, self.endpoint
        principal = endpoint._tokens.authenticate(credentials_of(self.scope["headers"]), time.time())
        if principal is None:
            raise DeckError(
                ErrorKind.AUTHENTICATION,
                "no valid token: send 'Authorization: Bearer …' or 'x-api-key: …' with one made by `deck token create`",
            )
        exchange.principal = principal
        config = endpoint._config
        content = await read_body(self.scope, self.receive, limit=config.body_limit, timeout=config.body_timeout)
        if header(self.scope, b"idempotency-key") is not None:
            exchange.report.ignored("Idempotency-Key", "every request is generated anew", field="idempotency-key")
        if self.scope["query_string"]:
            _ignore_query(self.scope["query_string"], exchange.report)
        if self.surface.header_names:
            exchange.headers = _headers_of(self.scope, self.surface.header_names)
        endpoint._pipeline.prepare(exchange, json.loads_request(content))

    async def _watch(self) -> None:
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                self.running.cancel("client")
                return

    async def _answer(self) -> None:
        assert self.exchange.parsed is not None
        if self.exchange.operation == "count":
            await self._count()
        elif self.exchange.parsed.request.stream:
            await self._stream()
        else:
            await self._buffer()

    async def _count(self) -> None:
        surface = self.surface
        assert isinstance(surface, CountingSurface), f"the surface {surface.name} has a route to count and no answer"
        tokens, is_estimate = await self.endpoint._pipeline.count(self.exchange)
        extra = [(b"x-deck-estimate", b"1")] if is_estimate else []
        await self.reply.json(200, surface.render_count(tokens), extra)

    async def _buffer(self) -> None:
        fold, exchange = Fold(), self.exchange
        assert exchange.parsed is not None
        async with contextlib.aclosing(self.endpoint._pipeline.events(exchange)) as batches:
            async for events in batches:
                for event in events:
                    self._note(event)
                    fold.feed(event)
        answer = fold.answer()
        for name in answer.cut_calls:
            exchange.report.changed(
                "max_tokens", f"the limit cut the call of {name}; its beginning is text", shown="tool_calls>content"
            )
        if exchange.shaped is not None:
            check_answer(answer, exchange.shaped.request, exchange.report)
        await self.reply.json(200, self.surface.render(answer, exchange.parsed, self._head()))

    async def _stream(self) -> None:
        assert self.exchange.parsed is not None
        self.running.is_stream = True
        projector = self.surface.projector(self.exchange.parsed, self._head())
        self.feed = feed = projector.feed
        reply = self.reply
        reply.beat(self.endpoint._config.heartbeat, lambda: projector.heartbeat() if self._is_alive() else None)
        failed: DeckError | None = None
        async with contextlib.aclosing(self.endpoint._pipeline.events(self.exchange)) as batches:
            async for events in batches:
                frames = []
                for event in events:
                    if type(event) is not PartDelta or self.exchange.first_token is None:
                        failed = self._note(event) or failed
                    frames.append(feed(event))
                data = b"".join(frames)
                if data:
                    await reply.frames(data)
        if failed is not None:
            self._set_failed(failed)
        await reply.end()

    def _is_alive(self) -> bool:
        profile = self.exchange.profile
        state = self.endpoint._pipeline.board.states().get(profile.id) if profile else None
        # No server yet = the request waits in Deck's own queue, which is alive.
        return state is None or state in _ALIVE or self.exchange.server is None

    def _head(self) -> ReplyHead:
        return ReplyHead(seed=self.exchange.seed, created=self.created, model=self.exchange.model)

    def _note(self, event: Event) -> DeckError | None:
        if isinstance(event, PartDelta | PartStart) and self.exchange.first_token is None:
            self.exchange.first_token = time.monotonic()
        elif isinstance(event, Finish):
            self.finish = event
        elif isinstance(event, Failed):
            return event.error
        return None

    def _set_failed(self, error: DeckError) -> None:
        self.outcome, self.status = error.kind.label, error.kind.status

    async def _fail(self, error: DeckError) -> None:
        """Answer with the error: its status if nothing was sent yet, else as the stream's end."""
        self._set_failed(error)
        self.reply.quiet()
        await self.reply.settle()
        if not self.reply.has_started:
            body = self.surface.error(error, self.exchange.id)
            await self.reply.json(error.kind.status, body, error_headers(error))
        elif self.feed is not None:
            await self.reply.frames(self.feed(Failed(error)))
            await self.reply.end()

    async def _cancelled(self) -> None:
        match self.running.why:
            case "client":
                self.outcome, self.status = "client_gone", 499
                self.running.task.uncancel()
            case "shutdown":
                self.running.task.uncancel()
                with contextlib.suppress(TimeoutError):
                    # A client that reads nothing is not waited for.
                    async with asyncio.timeout(_LAST_WORD):
                        await self._fail(DeckError(ErrorKind.UNAVAILABLE, "Deck is shutting down", retry_after=10))
            case _:
                raise asyncio.CancelledError

    def _record(self) -> None:
        exchange, now = self.exchange, time.monotonic()
        usage = self.finish.usage if self.finish else None
        first = exchange.first_token
        self.endpoint.observe(
            ExchangeRecord(
                id=exchange.id,
                surface=self.surface.name,
                model=exchange.profile.id if exchange.profile else "",
                principal=exchange.principal.name,
                outcome=self.outcome,
                status=self.status,
                stream=bool(exchange.parsed and exchange.parsed.request.stream),
                duration=now - exchange.began,
                queued=(exchange.granted or now) - exchange.began,
                first_token=first - exchange.began if first is not None else None,
                prompt_tokens=usage.prompt if usage else None,
                completion_tokens=usage.completion if usage else None,
                cached_tokens=usage.cached if usage else None,
                finish=self.finish.reason.value if self.finish else None,
                notes=[(note.kind.value, note.field) for note in exchange.report.notes],
                lane=route_decide().value,
            )
        )


def _ignore_query(query: bytes, report: Report) -> None:
    """Report the query's parameters: no generating route reads any, though clients send some."""
    for item in query.decode("latin-1").split("&")[:_MOST_PARAMETERS]:
        if name := item.partition("=")[0]:
            report.ignored(f"?{name}", "this route reads no query", field="other")


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
