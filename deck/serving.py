"""The life of one exchange over ASGI, whatever is asked: token, watch for a client that leaves, errors, record.

A single coroutine owns the exchange from its first byte to its last, so that a client who leaves while queued, during
load, during prefill or mid-stream frees its slot and closes the upstream at once.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

from deck.body import ClientGone
from deck.canon.events import Event, Failed
from deck.config import Config
from deck.contracts import ExchangeRecord, Route, ServerState, Surface
from deck.errors import DeckError, ErrorKind, without_models, without_paths
from deck.exchange import Exchange
from deck.http import Receive, Scope, Send, header, identities
from deck.operation import Operation
from deck.pipeline import Pipeline
from deck.reply import Reply
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


class Host(Protocol):
    """What an exchange asks of the endpoint that it belongs to."""

    _config: Config
    _tokens: TokenStore
    _pipeline: Pipeline

    def begun(self, serving: Serving) -> None:
        """Count an exchange that begins."""
        ...

    def ended(self, serving: Serving) -> None:
        """Count it no more."""
        ...

    def observe(self, record: ExchangeRecord) -> None:
        """Tell the observers what became of it."""
        ...


class Summary(NamedTuple):
    """What is told of an exchange that has ended: tokens as far as they are known.

    Attributes:
        stream: whether the client asked for one.
        prompt: tokens of the prompt.
        completion: tokens of the answer.
        cached: tokens of the prompt that llama-server had.
        finish: why the answer ended, None = it has no reason.
        lane: that it took, "" = none.
    """

    stream: bool
    prompt: int | None
    completion: int | None
    cached: int | None
    finish: str | None = None
    lane: str = ""


class Serving(abc.ABC):
    """The life of one exchange; it can be ended from outside, and `why` says who did.

    What is asked and how it is answered say those who derive from it: `_admit` and `_answer`, and for the record
    `_summary`. `feed`, if it is set, makes the frame that ends a stream in an
    error; without one, an answer that has begun is cut.

    Args:
        endpoint: it belongs to.
        scope: of the request.
        receive: of the request.
        send: of the request.
        wire: whose errors, names and ids it has.
        route: what is asked of the wire.
    """

    __slots__ = (
        "endpoint",
        "exchange",
        "feed",
        "headers",
        "is_stream",
        "now",
        "outcome",
        "receive",
        "reply",
        "scope",
        "status",
        "task",
        "turn",
        "why",
        "wire",
    )

    def __init__(
        self, endpoint: Host, scope: Scope, receive: Receive, send: Send, wire: Surface | Operation, route: Route
    ) -> None:
        self.endpoint = endpoint
        self.scope = scope
        self.receive = receive
        self.turn: Turn | None = scope.get("deck.turn")
        task = self.turn.task if self.turn is not None else asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[Any] = task
        self.now = time.time()
        self.headers = headers = self.turn.headers if self.turn is not None else None
        self.wire = wire
        identity, seed = identities(header(scope, b"x-request-id") if headers is None else headers.get(b"x-request-id"))
        self.exchange = Exchange(identity, wire, NOBODY, seed, time.monotonic())
        self.exchange.operation = route.operation
        # Not a method of this object: what an exchange leaves behind must need no garbage collection.
        self.reply = Reply(send, partial(_headers_of_answer, self.exchange), self.turn)
        self.is_stream = False
        self.why: Literal["", "client", "shutdown"] = ""
        self.outcome = "ok"
        self.status = 200
        self.feed: Callable[[Event], bytes] | None = None

    def cancel(self, why: Literal["client", "shutdown"]) -> None:
        """End the exchange; the first reason counts."""
        if not self.why:
            self.why = why
            self.task.cancel()

    async def run(self) -> None:
        """Serve it from its token to its record."""
        watcher: asyncio.Task[None] | None = None
        self.endpoint.begun(self)
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
            self.endpoint.ended(self)
            self._record()

    def _left(self) -> None:
        self.cancel("client")

    @abc.abstractmethod
    async def _admit(self) -> None:
        """Check the token, then read and prepare the body."""

    @abc.abstractmethod
    def _answer(self) -> Awaitable[None]:
        """Answer what was admitted."""

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
        if headers is not None and _VENDOR_HEADERS.keys().isdisjoint(headers):
            return
        for name, (shown, why) in _VENDOR_HEADERS.items():
            if name in headers if headers is not None else header(self.scope, name) is not None:
                self.exchange.report.ignored(shown, why, field=name.decode())

    async def _watch(self) -> None:
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                self.cancel("client")
                return

    def _is_alive(self) -> bool:
        profile = self.exchange.profile
        state = self.endpoint._pipeline.board.states().get(profile.id) if profile else None
        # No server yet = the request waits in Deck's own queue, which is alive.
        return state is None or state in _ALIVE or self.exchange.server is None

    def _set_failed(self, error: DeckError) -> None:
        self.outcome, self.status = error.kind.label, error.kind.status

    async def _fail(self, error: DeckError) -> None:
        """Answer with the error: its status if nothing was sent yet, else as the stream's end."""
        self._set_failed(error)
        error = self._as_shown(error)
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

    def _as_shown(self, error: DeckError) -> DeckError:
        principal = self.exchange.principal
        if not principal.admin:
            error = without_paths(error)
        if principal.models is None:
            return error
        known = self.endpoint._pipeline.board.states()
        return without_models(error, [name for name in known if not principal.may_use(name)])

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

    @abc.abstractmethod
    def _summary(self) -> Summary:
        """Return what of the record only they know."""

    def _record(self) -> None:
        exchange, now = self.exchange, time.monotonic()
        told = self._summary()
        first, notes = exchange.first_token, exchange.report.notes
        self.endpoint.observe(
            # By place: twenty names would cost as much again as the record itself.
            ExchangeRecord(
                exchange.id,
                self.wire.name,
                exchange.profile.id if exchange.profile else "",
                exchange.principal.name,
                self.outcome,
                self.status,
                told.stream,
                now - exchange.began,
                (exchange.granted or now) - exchange.began,
                first - exchange.began if first is not None else None,
                told.prompt,
                told.completion,
                told.cached,
                told.finish,
                [(note.kind._value_, note.field) for note in notes] if notes else (),
                told.lane,
                exchange.left._value_ if exchange.left is not None else None,
                exchange.replica,
                exchange.retries,
            )
        )


def _headers_of_answer(exchange: Exchange) -> list[tuple[bytes, bytes]]:
    identity = exchange.id.encode()
    headers = []
    for name in exchange.surface.id_headers:
        headers.append((name.encode(), identity))  # a comprehension is a call more
    if exchange.report.size:
        for name, value in exchange.report.headers():
            headers.append((name.lower().encode(), value.encode("latin-1", "replace")))
    return headers


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
