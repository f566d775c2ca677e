"""Discovery, observation and dry runs: every route that generates nothing.

All need a token but the three health routes; none ever starts a model.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, get_args
from urllib.parse import unquote

from deck import __version__, discovery, json, query
from deck.body import read_body
from deck.canon.request import Part
from deck.catalog import no_model
from deck.config import Config
from deck.contracts import Facts, Surface
from deck.control import Control, shown_replica
from deck.errors import DeckError, ErrorKind, invalid
from deck.exchange import Exchange, Shaped
from deck.http import Receive, Scope, Send, alphanumerics, header, normal_path
from deck.loads import shown_load
from deck.metrics import Metrics
from deck.pipeline import Pipeline
from deck.profile import Kind
from deck.tokens import Principal, TokenStore, credentials_of

Answer = tuple[int, Any]
Handler = Callable[[Scope, Receive, Principal], Awaitable[Answer]]

PUBLIC = frozenset({("HEAD", "/"), ("GET", "/health"), ("HEAD", "/health"), ("GET", "/healthz"), ("HEAD", "/healthz")})
_KIND_LISTS: dict[str, Kind] = {
    "/embeddings/models": "embedding",
    "/rerank/models": "rerank",
    "/images/models": "image",
    "/audio/speech/models": "speech",
    "/audio/transcriptions/models": "transcription",
}
_LIST_OF: dict[Kind, str] = {"chat": "/models", **{kind: path for path, kind in _KIND_LISTS.items()}}
_PARTS = get_args(Part)
_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


class Raw:
    """An answer that is not JSON."""

    def __init__(self, content: bytes, kind: str) -> None:
        self.content = content
        self.kind = kind


class Admin:
    """Serves the fixed routes; `find` tells which of them a path is."""

    def __init__(
        self, config: Config, tokens: TokenStore, pipeline: Pipeline, metrics: Metrics, control: Control
    ) -> None:
        self._config = config
        self._tokens = tokens
        self._pipeline = pipeline
        self._metrics = metrics
        self._control = control
        self._routes: dict[str, dict[str, Handler]] = {
            "/capabilities": {"GET": self._capabilities},
            "/models": {"GET": self._models},
            "/metrics": {"GET": self._exposition},
            "/stats": {"GET": self._stats},
            "/health": {"GET": self._health},
            "/deck/explain": {"POST": self._explain},
            **{path: {"GET": self._kind_list} for path in _KIND_LISTS},
        }

    def find(self, path: str) -> dict[str, Handler] | None:
        """Return the methods of a normal path, None = not a route of this module."""
        if path in self._routes:
            return self._routes[path]
        if _list_above(path) is not None:
            return {"GET": self._model}
        controls = self._control.find(path)
        if controls is None:
            return None
        return {method: self._operated(handler) for method, handler in controls.items()}

    def _operated(self, handler: Callable[[Scope, Receive], Awaitable[Answer]]) -> Handler:
        async def guarded(scope: Scope, receive: Receive, principal: Principal) -> Answer:
            _need_operator(principal)
            return await handler(scope, receive)

        return guarded

    def paths(self) -> list[tuple[str, str]]:
        """Return every route as (method, path), for documents and for the test that walks them without a token."""
        fixed = [(method, path) for path, methods in self._routes.items() for method in methods]
        return [*fixed, *(("GET", f"{path}/x") for path in _LIST_OF.values()), *self._control.paths()]

    def authenticate(self, scope: Scope) -> Principal:
        """Return who asks.

        Raises:
            DeckError: nobody who may.
        """
        principal = self._tokens.authenticate(credentials_of(scope["headers"]), time.time())
        if principal is None:
            self._metrics.auth_failed()
            raise DeckError(
                ErrorKind.AUTHENTICATION,
                "no valid token: send 'Authorization: Bearer …' or 'x-api-key: …' with one made by `deck token create`",
            )
        return principal

    def is_public(self, method: str, path: str) -> bool:
        """Say whether a path, as the client wrote it, needs no token; under `/v1` everything does."""
        known = normal_path(path)
        if path.lstrip("/").partition("/")[0] == "v1":
            return False
        is_open = known == "/metrics" and method in ("GET", "HEAD") and self._config.admin.public_metrics
        return is_open or (method, known) in PUBLIC

    async def public(self, path: str) -> Answer:
        """Answer what `is_public` lets through."""
        return self._shown_metrics() if path == "/metrics" else _alive()

    async def _health(self, scope: Scope, receive: Receive, principal: Principal) -> Answer:
        return _alive()

    async def _capabilities(self, scope: Scope, receive: Receive, principal: Principal) -> Answer:
        pipeline, plugins = self._pipeline, self._pipeline.plugins
        catalog, board = pipeline.catalog, pipeline.board
        return 200, discovery.capabilities(plugins.surfaces, plugins.operations, catalog, board, principal)

    async def _models(self, scope: Scope, receive: Receive, principal: Principal) -> Answer:
        return 200, discovery.models(self._pipeline.catalog.of_kind("chat"), self._pipeline.board, principal)

    async def _kind_list(self, scope: Scope, receive: Receive, principal: Principal) -> Answer:
        kind = _KIND_LISTS[normal_path(scope["path"])]
        return 200, discovery.models(self._pipeline.catalog.of_kind(kind), self._pipeline.board, principal)

    async def _model(self, scope: Scope, receive: Receive, principal: Principal) -> Answer:
        path = normal_path(scope["path"])
        listed = _list_above(path) or "/models"
        name = unquote(path.removeprefix(f"{listed}/"))
        match = self._pipeline.catalog.resolve(name)
        if match is None or not principal.may_use(match.profile.id):
            known = (item.id for item in self._pipeline.catalog.profiles if _LIST_OF[item.kind] == listed)
            raise no_model(name, filter(principal.may_use, known))
        other = _LIST_OF[match.profile.kind]
        if other != listed:
            message = f"the model {name[:100]!r} is of kind {match.profile.kind}: see /v1{other}"
            raise DeckError(ErrorKind.MODEL_NOT_FOUND, message, param="model")
        return 200, discovery.entry(match.profile, self._pipeline.board, name if match.via == "alias" else None)

    async def _exposition(self, scope: Scope, receive: Receive, principal: Principal) -> Answer:
        _need_operator(principal)
        return self._shown_metrics()

    def _shown_metrics(self) -> Answer:
        content, kind = self._metrics.exposition()
        return 200, Raw(content, kind or _EXPOSITION)

    async def _stats(self, scope: Scope, receive: Receive, principal: Principal) -> Answer:
        _need_operator(principal)
        board = self._pipeline.board
        states = {name: state.value for name, state in board.states().items()}
        waiting = [
            {"model": item.ticket.profile, "place": item.place, "expected_wait": item.expected}
            for item in board.waiting()
        ]
        quarantined = {
            name: {"failures": count, "retry_in": round(left, 1)} for name, (count, left) in board.quarantined().items()
        }
        queue = {"waiting": board.depth, "exchanges": waiting}
        loading = {name: load for name in states if (load := shown_load(board, name)) is not None}
        replicas = {name: [shown_replica(item) for item in found] for name, found in board.replicas().items()}
        flights = self._pipeline.flights
        return 200, {
            **self._metrics.snapshot(),
            "queue": queue,
            "shared": {"generations": len(flights), "exchanges": flights.guests},
            "servers": states,
            "loading": loading,
            "quarantined": quarantined,
            "replicas": replicas,
            "profiles_fault": self._control.profiles_fault(),
            "tasks": len(asyncio.all_tasks()),
        }

    async def _explain(self, scope: Scope, receive: Receive, principal: Principal) -> Answer:
        query.read(scope)
        content = await read_body(scope, receive, limit=self._config.body_limit, timeout=self._config.body_timeout)
        body = json.loads_request(content)
        wanted = header(scope, b"x-deck-surface")
        name = wanted.decode("latin-1") if wanted else "chat"
        surface = self._pipeline.plugins.surfaces.get(name)
        if surface is None:
            known = ", ".join(sorted(self._pipeline.plugins.surfaces))
            raise invalid(f"x-deck-surface: no surface named {name[:50]!r}; known: {known}", "x-deck-surface")
        return 200, explain(self._pipeline, surface, body, principal)


def _list_above(path: str) -> str | None:
    """Return the list of models that a path names one of, None = it is no such path."""
    return next(
        (known for known in _LIST_OF.values() if path.startswith(f"{known}/") and len(path) > len(known) + 1), None
    )


def _alive() -> Answer:
    return 200, {"status": "ok", "version": __version__}


def explain(pipeline: Pipeline, surface: Surface, body: dict[str, Any], principal: Principal) -> dict[str, Any]:
    """Return what would be sent and why, executing nothing.

    Raises:
        DeckError: what the client itself would be told.
    """
    exchange = Exchange(id="dry-run", surface=surface, principal=principal, seed=alphanumerics(40), began=0.0)
    pipeline.prepare(exchange, body)
    assert exchange.profile is not None
    assert exchange.parsed is not None
    server = pipeline.board.server(exchange.profile.id)
    facts = server.facts if server is not None else Facts()
    shaped: Shaped = pipeline.shape(exchange, facts)
    return {
        "surface": surface.name,
        "model": exchange.profile.id,
        "lane": exchange.lane.value if exchange.lane is not None else None,
        "family": {"name": shaped.family.name if shaped.family else None, "why": shaped.why},
        "canonical": shown(exchange.parsed.request),
        "route": shaped.route,
        "upstream": shaped.body,
        "headers": dict(exchange.report.headers()),
        "notes": [
            {"kind": note.kind.value, "path": note.path, "reason": note.detail} for note in exchange.report.notes
        ],
    }


def _need_operator(principal: Principal) -> None:
    if not principal.admin:
        message = "this route is for operators: use a token made by `deck token create NAME --admin`"
        raise DeckError(ErrorKind.PERMISSION, message)


def shown(value: Any) -> Any:
    """Return a canonical value as JSON; each part says what it is, and what is unset is left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        members = {field.name: shown(getattr(value, field.name)) for field in dataclasses.fields(value)}
        kind = {"part": type(value).__name__.lower()} if isinstance(value, _PARTS) else {}
        return kind | {name: item for name, item in members.items() if item not in (None, [], {})}
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


async def send_answer(send: Send, answer: Answer, headers: list[tuple[bytes, bytes]], *, with_body: bool) -> None:
    """Write a whole answer; a HEAD request gets its headers only."""
    status, body = answer
    content, kind = (body.content, body.kind) if isinstance(body, Raw) else (json.dumps(body), "application/json")
    start = [(b"content-type", kind.encode()), (b"content-length", str(len(content)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": content if with_body else b""})
