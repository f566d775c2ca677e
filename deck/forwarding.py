"""One exchange of an operation over ASGI: as an endpoint's, but what the backend answers is passed on, not made.

JSON is passed on whole, with the model under the client's name; sound and the like byte by byte, at the client's pace;
events one by one. What breaks after its beginning ends in an error event, else in a broken connection.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Coroutine
from typing import Any

import httpx

from deck import json, query
from deck.body import read_body, whole_body
from deck.canon.events import Event, Failed
from deck.contracts import Route
from deck.endpoint import Endpoint
from deck.errors import DeckError, ErrorKind, hide_paths
from deck.forwarder import Forwarder, Order
from deck.http import Receive, Scope, Send, header
from deck.operation import Operation
from deck.serving import Serving, Summary
from deck.shaping import call_plugin
from deck.upstream.client import UpstreamClient
from deck.upstream.failures import MidAnswer, upstream_error
from deck.upstream.frames import FrameCutter, payload_of, with_payload
from deck.upstream.sse import SSEError
from deck.upstream.transport import RawResponse

_ANSWER_LIMIT = 128 << 20
_ALIVE = b": alive\n\n"
_DONE = b"[DONE]"
# A frame that tells of an error in its own words.
_ERROR = re.compile(rb"^(?:event: ?error\b|error:)", re.MULTILINE)
# How many seconds something may still come behind the event that ends an answer.
_BEHIND = 1.0
# Of the backend's headers these go with the bytes; all others are Deck's own.
_PASSED = (b"content-type", b"content-length", b"content-encoding", b"content-disposition")


class OperationEndpoint:
    """Answers the routes of all operations; shares tokens, limits and observers with the endpoint beside it."""

    def __init__(self, endpoint: Endpoint, client: UpstreamClient) -> None:
        self._endpoint = endpoint
        self._forwarder = Forwarder(endpoint._pipeline, client)

    def __call__(self, scope: Scope, receive: Receive, send: Send, operation: Operation) -> Coroutine[Any, Any, None]:
        """Serve one request to a route of an operation."""
        return _Forwarding(self._endpoint, self._forwarder, scope, receive, send, operation).run()


class _Forwarding(Serving):
    """The life of one exchange of an operation."""

    __slots__ = ("forwarder", "is_done", "left", "operation", "order", "usage")

    def __init__(
        self,
        endpoint: Endpoint,
        forwarder: Forwarder,
        scope: Scope,
        receive: Receive,
        send: Send,
        operation: Operation,
    ) -> None:
        super().__init__(endpoint, scope, receive, send, operation, Route(path=operation.paths[0]))
        self.forwarder = forwarder
        self.operation = operation
        self.order: Order | None = None
        self.usage: tuple[int | None, int | None] = (None, None)
        self.left = 1
        self.is_done = False

    async def _admit(self) -> None:
        """Check the token, then read and prepare the body."""
        self._authenticate()
        exchange, config, operation = self.exchange, self.endpoint._config, self.operation
        is_usual = self.turn is not None and operation.form == "json"
        content = whole_body(self.turn, self.headers, config.body_limit) if is_usual and self.turn else None
        if content is None:
            content = await read_body(
                self.scope, self.receive, limit=config.body_limit, timeout=config.body_timeout, form=operation.form
            )
        self._ignore_headers()
        if self.scope["query_string"]:
            query.ignore(self.scope["query_string"], exchange.report)
        kind = (header(self.scope, b"content-type") or b"").decode("latin-1")
        self.order = self.forwarder.prepare(exchange, operation, content, kind)

    def _answer(self) -> Coroutine[Any, Any, None]:
        return self._forward()

    async def _forward(self) -> None:
        order = self.order
        assert order is not None
        if order.asked.stream:
            self.is_stream = True
            self.feed = self._error_event
            self.reply.beat(self.endpoint._config.heartbeat, lambda: _ALIVE if self._is_alive() else None)
        await self.forwarder.forward(self.exchange, order, self._pass)

    async def _pass(self, response: RawResponse) -> None:
        order, kind = self.order, _kind(response)
        assert order is not None
        if kind not in self.operation.answers or (kind == "events" and not order.asked.stream):
            raise self._strange(response)
        if kind != "events":
            await self._refuse_late_whole()
        match kind:
            case "json":
                await self._pass_json(response, order)
            case "events":
                await self._pass_events(response)
            case _:
                await self._pass_bytes(response)

    async def _refuse_late_whole(self) -> None:
        """Give up the stream that was asked for: the backend answers whole."""
        order, reply = self.order, self.reply
        assert order is not None
        if not order.asked.stream:
            return
        reply.quiet()
        await reply.settle()
        if reply.has_started:
            raise DeckError(ErrorKind.UPSTREAM, f"the backend of {self._model!r} does not stream; ask without stream")
        name = next((name for name in ("stream", "stream_format") if name in order.asked.fields), "stream")
        self.exchange.report.ignored(name, "the backend answered whole", field=name)
        self.is_stream, self.feed = False, None

    @property
    def _model(self) -> str:
        return self.exchange.profile.id if self.exchange.profile is not None else ""

    def _strange(self, response: RawResponse) -> DeckError:
        kind = (response.header(b"content-type") or b"nothing").decode("latin-1")[:100]
        message = f"the backend of {self._model!r} answered {self.operation.route} with {kind}"
        return DeckError(ErrorKind.UPSTREAM, message, code="upstream_error")

    async def _pass_json(self, response: RawResponse, order: Order) -> None:
        content = await self._whole(response)
        try:
            answer = json.loads(content)
        except ValueError as exc:
            raise DeckError(ErrorKind.UPSTREAM, f"the backend of {self._model!r} answered no JSON") from exc
        if isinstance(answer, dict):
            if answer.get("error"):
                raise upstream_error(200, answer, who="the backend")
            self._note_usage(answer)
        answer = call_plugin(self.operation.name, self.operation.render, answer, order.asked)
        if isinstance(answer, dict) and "model" in answer:
            answer["model"] = self.exchange.model
        await self.reply.json(200, answer)

    async def _whole(self, response: RawResponse) -> bytes:
        parts: list[bytes] = []
        size = 0
        while chunk := await self._next(response):
            size += len(chunk)
            if size > _ANSWER_LIMIT:
                limit = f"{_ANSWER_LIMIT >> 20} MiB"
                raise DeckError(
                    ErrorKind.UPSTREAM, f"the backend of {self._model!r} answered more than {limit}; ask for less"
                )
            parts.append(chunk)
        return b"".join(parts)

    async def _pass_bytes(self, response: RawResponse) -> None:
        reply = self.reply
        headers = [(name, found) for name in _PASSED if (found := response.header(name)) is not None]
        while chunk := await self._next(response):
            if not reply.has_started:
                await reply.begin(200, [*headers, (b"x-accel-buffering", b"no")])
            await reply.frames(chunk)
        if not reply.has_started:
            await reply.begin(200, headers)
        await reply.end()

    async def _pass_events(self, response: RawResponse) -> None:
        cutter = FrameCutter()
        until: float | None = None
        self.left, self.is_done = self._wanted, False
        while chunk := await (self._next(response) if until is None else self._behind(response, until)):
            try:
                frames = cutter.feed(chunk)
            except SSEError as exc:
                if until is not None:
                    break
                raise DeckError(ErrorKind.UPSTREAM, f"the backend of {self._model!r} sent {exc}") from exc
            await self._show(frames)
            if self.is_done:
                break
            if self.left <= 0 and until is None:
                until = asyncio.get_running_loop().time() + _BEHIND
        await self._show([frame for frame in cutter.end() if _is_whole(frame)])
        if self.left == self._wanted and not self.is_done:
            message = f"the backend of {self._model!r} ended its answer in the middle"
            raise DeckError(ErrorKind.UPSTREAM, message, retry_after=2) from MidAnswer()
        if until is None:
            await self.forwarder.settle(response)
        await self.reply.end()

    @property
    def _wanted(self) -> int:
        """How many events end a stream: one for each image that was asked for."""
        count = self.order.asked.fields.get("n") if self.order is not None else None
        return count if type(count) is int and count > 0 else 1

    async def _behind(self, response: RawResponse, until: float) -> bytes:
        """Return what comes behind the last event, b"" = no more: what breaks there is no part of the answer."""
        try:
            async with asyncio.timeout_at(until):
                return await response.next_chunk()
        except (TimeoutError, httpx.HTTPError):
            return b""

    async def _show(self, frames: list[bytes]) -> None:
        """Send frames as the client gets them, and note which of them end the stream."""
        shown = []
        for frame in frames:
            data = payload_of(frame)
            event = _object(data)
            if event is not None:
                self._judge(event)
                told = self._told(event)
                if told != event:
                    frame = with_payload(frame, json.dumps(told))
            elif _ERROR.search(frame) and not self.exchange.principal.admin:
                frame = hide_paths(frame.decode(errors="surrogateescape")).encode(errors="surrogateescape")
            shown.append(frame)
            self.is_done = self.is_done or data == _DONE
        if shown:
            await self.reply.frames(b"".join(shown))

    def _judge(self, event: dict[str, Any]) -> None:
        """Note what an event says of the exchange, and whether it ends it."""
        if event.get("error"):
            self._set_failed(upstream_error(200, event, who="the backend"))
            self.left = 0
            return
        self._note_usage(event)
        self.left -= self.operation.is_last(event)

    def _told(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return an event as the client gets it: the model under its name, of the host's paths their last steps."""
        changed: dict[str, Any] = {}
        if isinstance(event.get("model"), str):
            changed["model"] = self.exchange.model
        if not self.exchange.principal.admin:
            if event.get("error"):
                changed["error"] = _without_paths(event["error"])
            elif event.get("type") == "error":
                changed |= _without_paths({name: item for name, item in event.items() if name != "model"})
        return {**event, **changed} if changed else event

    async def _next(self, response: RawResponse) -> bytes:
        """Return what came since the last call, b"" at the orderly end."""
        exchange = self.exchange
        server, profile = exchange.server, exchange.profile
        assert server is not None
        exchange.is_owed = profile is not None and not profile.is_foreign
        try:
            chunk = await response.next_chunk()
            exchange.heard += 1
        except httpx.HTTPError as exc:
            error = await self.forwarder.broken(server, exc)
            # Where no byte came, another server may be asked.
            raise error from (exc if exchange.first_token is None else MidAnswer())
        finally:
            exchange.is_owed = False
        if self.exchange.first_token is None:
            self.exchange.first_token = time.monotonic()
        return chunk

    def _error_event(self, event: Event) -> bytes:
        assert isinstance(event, Failed)
        body = json.dumps(self.operation.error(event.error, self.exchange.id))
        return b"event: error\ndata: %b\n\n" % body

    def _note_usage(self, answer: dict[str, Any]) -> None:
        usage = answer.get("usage")
        if isinstance(usage, dict):
            self.usage = (
                _count(usage, "prompt_tokens", "input_tokens"),
                _count(usage, "completion_tokens", "output_tokens"),
            )
        elif "tokens_evaluated" in answer:
            self.usage = (_count(answer, "tokens_evaluated"), _count(answer, "tokens_predicted"))

    def _summary(self) -> Summary:
        prompt, completion = self.usage
        return Summary(self.order is not None and self.order.asked.stream, prompt, completion, None)


# A page is what proxies and wrong addresses answer; it is no operation's answer.
_KINDS = {b"text/event-stream": "events", b"text/html": "page"}


def _kind(response: RawResponse) -> str:
    sent = (response.header(b"content-type") or b"").partition(b";")[0].strip().lower()
    if sent == b"application/json" or sent.endswith(b"+json"):
        return "json"
    return _KINDS.get(sent, "bytes")


def _is_whole(frame: bytes) -> bool:
    """Tell whether a last frame, which has no end of its own, was not cut."""
    data = payload_of(frame)
    return data == _DONE or _object(data) is not None


def _object(data: bytes) -> dict[str, Any] | None:
    if not data.startswith(b"{"):
        return None
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _without_paths(error: Any) -> Any:
    if isinstance(error, str):
        return hide_paths(error)
    if isinstance(error, dict):
        return {name: hide_paths(item) if isinstance(item, str) else item for name, item in error.items()}
    return error


def _count(usage: dict[str, Any], *names: str) -> int | None:
    return next((usage[name] for name in names if type(usage.get(name)) is int), None)
