"""An operation's way to the model that serves it: fields, model, slot, backend. Beside the pipeline, without events.

The scheduler, the errors and the report are those of every other exchange.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import httpx

from deck import json
from deck.canon.value import value
from deck.contracts import Facts, Parsed, Server
from deck.errors import DeckError, ErrorKind, invalid
from deck.exchange import Exchange
from deck.form import kept, values_of
from deck.multipart import Section, boundary_of, content_type_of, pieces_of, sections_of
from deck.normalize.report import Report
from deck.operation import Asked, Operation
from deck.pipeline import Pipeline
from deck.profile import Profile
from deck.servers.command import flags
from deck.servers.remote import Remote, Use
from deck.shaping import call_plugin
from deck.steps import apply_profile
from deck.upstream.client import UpstreamClient
from deck.upstream.transport import RawResponse

_JSON = b"application/json"
# What may come to take a context of unknown size runs alone.
_ALL = 1 << 40
Pieces = Sequence[bytes | memoryview]
Taker = Callable[[RawResponse], Awaitable[None]]


@value(frozen=True, slots=True, kw_only=True)
class Order:
    """A checked request for an operation; `sections` are the parts of a form, whose `boundary` the client chose."""

    operation: Operation
    asked: Asked
    sections: Sequence[Section] = ()
    boundary: bytes = b""


class Forwarder:
    """Everything between the body of an operation's request and the backend's answer."""

    def __init__(self, pipeline: Pipeline, client: UpstreamClient) -> None:
        self._pipeline = pipeline
        self._client = client

    def prepare(self, exchange: Exchange, operation: Operation, content: bytes, content_type: str) -> Order:
        """Read the body and resolve its model, and check what can be checked before anything is started.

        Raises:
            DeckError: the request cannot be honoured.
        """
        if operation.surface is not None:
            return self._prepare_surface(exchange, operation, content)
        sections: Sequence[Section] = ()
        boundary = b""
        if operation.form == "multipart":
            boundary = boundary_of(content_type)
            sections = sections_of(content, boundary)
            body = values_of(sections, operation.tables[""])
        else:
            body = json.loads_request(content)
        profile = self._serving(exchange, operation, body.get("model"))
        passed = frozenset(profile.server.fields)
        lenient = self._pipeline.is_lenient(exchange, profile)
        parse = partial(operation.parse, lenient=lenient, passed=passed)
        asked: Asked = call_plugin(operation.name, parse, body, exchange.report)
        if operation.unread and not profile.is_foreign:
            asked = _without_unread(asked, operation, exchange.report)
        return Order(operation=operation, asked=asked, sections=sections, boundary=boundary)

    def _prepare_surface(self, exchange: Exchange, operation: Operation, content: bytes) -> Order:
        """Have a surface read the body: the operation is about a request of that wire."""
        assert operation.surface is not None
        exchange.surface = self._pipeline.plugins.surfaces[operation.surface]
        exchange.operation = "count"  # nothing is generated
        self._pipeline.prepare(exchange, json.loads_request(content))
        return Order(operation=operation, asked=Asked(fields={}))

    def _serving(self, exchange: Exchange, operation: Operation, name: Any) -> Profile:
        if name is None:
            raise invalid("model is required", "model", "missing_required_parameter")
        if not isinstance(name, str) or not name:
            raise invalid("model: expected a string, not empty", "model", "invalid_type")
        profile = self._pipeline.resolve(name, exchange, operation.kinds)
        exchange.profile, exchange.model = profile, name
        if operation.is_llamas and profile.is_foreign:
            message = f"the model {name!r} does no {operation.name}: what serves it is no llama-server"
            raise DeckError(ErrorKind.MODEL_NOT_FOUND, message, param="model", code="model_not_found")
        wanted = operation.kinds[profile.kind]
        given = set(flags(profile.server.args))
        if wanted and not profile.server.is_remote and not wanted & given:
            remedy = f"put {' or '.join(sorted(wanted))} into [server] args, or ask a model of another kind"
            message = f"the {profile.kind} model {name!r} does no {operation.name}: its server is not started for it"
            raise DeckError(ErrorKind.MODEL_NOT_FOUND, f"{message}; {remedy}", param="model", code="model_not_found")
        return profile

    async def forward(self, exchange: Exchange, order: Order, take: Taker) -> None:
        """Wait for the model's server, send the request there, and hand on the answer once its head says 200.

        Leaving early aborts the answer and frees the slot.

        Raises:
            DeckError: nothing was answered, or what `take` raises.
        """
        profile = exchange.profile
        assert profile is not None
        if order.operation.surface is not None:
            await self._pipeline.complete(exchange)  # a backend is never given a URL to follow
        await self._pipeline.again(exchange, partial(self._forward, exchange, order, take))

    async def _forward(self, exchange: Exchange, order: Order, take: Taker) -> None:
        assert exchange.profile is not None
        profile = self._pipeline.current(exchange.profile)
        credit = self._credit(profile, order.asked)
        async with self._pipeline.board.admit(profile, exchange.principal.name, credit=credit) as server:
            exchange.granted, exchange.server = self._pipeline.now(), server
            kind, pieces = self._sent(exchange, order, server)

            async def send(to: Server, use: Use | None = None) -> None:
                exchange.is_owed = not profile.is_foreign
                try:
                    response = await self._client.forward(to, order.operation.route, kind, pieces)
                finally:
                    exchange.is_owed = False
                if use is not None:
                    use.begun()
                try:
                    await take(response)
                finally:
                    response.close()

            async def send_to_one(use: Use) -> None:
                exchange.note_backend(use.server.url)
                await send(use.server, use)

            if isinstance(server, Remote):
                await server.use(None, send_to_one)
            else:
                await send(server)

    def _credit(self, profile: Profile, asked: Asked) -> int:
        """Return the most tokens of a context that an order may come to take: one for each byte, and its answer's."""
        if asked.text is None:
            return 0
        server = self._pipeline.board.server(profile.id)
        most = (server.facts.context if server is not None else None) or _ALL
        budget = apply_profile(asked.text, profile, {}, Report()).sampling.get("max_tokens")
        return most if budget is None or budget < 0 else min(most, len(json.dumps(asked.fields)) + max(int(budget), 1))

    async def broken(self, server: Server, exc: httpx.HTTPError) -> DeckError:
        """Return what a failure of the transport means, with the reason of a server that died."""
        return await self._client.broken(server, exc)

    async def settle(self, response: RawResponse) -> None:
        """Read the end of an answer that has said all, for a moment, so that its connection can serve again."""
        await self._client.settle(response)

    def _sent(self, exchange: Exchange, order: Order, server: Server) -> tuple[bytes, Pieces]:
        """Return the type and the pieces of the body that the backend gets."""
        profile, asked = exchange.profile, order.asked
        assert profile is not None
        if order.operation.surface is not None:
            return _JSON, [json.dumps(self._pipeline.shape(exchange, server.facts).body)]
        call_plugin(order.operation.name, order.operation.check, asked, server.facts)
        model = profile.server.model_name or profile.id
        if order.boundary:
            return content_type_of(order.boundary), pieces_of(kept(order.sections, asked.fields, model), order.boundary)
        settings = self._settings(exchange, asked, server.facts) if asked.text is not None else {}
        return _JSON, [json.dumps({"model": model, **settings, **asked.fields})]

    def _settings(self, exchange: Exchange, asked: Asked, facts: Facts) -> Mapping[str, Any]:
        """Return the sampling of what generates, as the profile and the steps leave it."""
        assert asked.text is not None
        paths = asked.reply if isinstance(asked.reply, dict) else {}
        exchange.parsed = Parsed(replace(asked.text, stream=asked.stream), None, paths)
        body = self._pipeline.shape(exchange, facts).body
        del body["prompt"], body["stream_options"]
        return {**body, "stream": asked.stream}


def _without_unread(asked: Asked, operation: Operation, report: Report) -> Asked:
    """Leave out, and report, what llama-server would leave out without a word."""
    for name, why in operation.unread.items():
        if name in asked.fields:
            report.ignored(name, why, field=name)
    fields = {name: item for name, item in asked.fields.items() if name not in operation.unread}
    return replace(asked, fields=fields)
