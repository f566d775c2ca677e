"""Asks a llama-server over Deck's own transport, and turns what can go wrong there into Deck's errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from deck import __version__, json
from deck.contracts import Replicated, Server, ServerState
from deck.errors import DeckError, ErrorKind, UnheardError
from deck.upstream.breaks import told_break
from deck.upstream.failures import Refusal, upstream_error
from deck.upstream.transport import LostError, Prepared, RawResponse, Target, TimeLimits, Transport

_log = logging.getLogger("deck.upstream")
_ERROR_LIMIT = 1 << 20
_ANSWER_LIMIT = 64 << 20
_END_WAIT = 0.5
_SETTLE = 1.0
_MOST_KNOWN = 1024
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
_COUNT = "/v1/chat/completions/input_tokens"
_TOKENIZE = "/tokenize"
_TEMPLATE = "/apply-template"


class UpstreamClient:
    """Posts to servers; nothing of the client's own headers is ever passed on."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._known: dict[tuple[int, str], _Known] = {}

    def ask(self, server: Server, route: str, body: bytes) -> Posted:
        """Post to `CHAT` or `TEXT`; entered, it gives the answer once its head says 200; leaving early aborts it.

        Raises:
            DeckError: llama-server refused, died, or stayed silent too long.
        """
        return Posted(self, server, route, body)

    async def post(self, server: Server, route: str, body: bytes) -> RawResponse:
        """Post a body and return the answer, which the caller must close.

        Raises:
            DeckError: llama-server refused, died, or stayed silent too long.
        """
        try:
            response = await self._transport.post(self._prepared(server, route), body)
            if response.status == 200:
                return response
            content = await _words(response)
        except httpx.HTTPError as exc:
            raise await _broken(server, exc) from exc
        raise upstream_error(response.status, content) from Refusal(response.status)

    async def forward(
        self, server: Server, route: str, content_type: bytes, pieces: Sequence[bytes | memoryview]
    ) -> RawResponse:
        """Post a body of any kind and return the answer, of any kind, which the caller must close.

        Raises:
            DeckError: the backend refused, died, or stayed silent too long.
        """
        address, stall = server.address, server.profile.server.stall_timeout
        headers = [
            (b"user-agent", f"deck/{__version__}".encode()),
            (b"accept", b"*/*"),
            (b"content-type", content_type),
        ]
        if server.key:
            headers.append((b"authorization", b"Bearer " + server.key.encode()))
        limits = TimeLimits(connect=5.0, write=60.0, head=stall, read=stall)
        try:
            response = await self._transport.upload(target_of(server), address.prefix + route, headers, pieces, limits)
            if response.status == 200:
                return response
            content = await _words(response)
        except httpx.HTTPError as exc:
            raise await _broken(server, exc) from exc
        raise upstream_error(response.status, content, who=server.profile.backend) from Refusal(response.status)

    def _prepared(self, server: Server, route: str) -> Prepared:
        known = self._known.get((id(server), route))
        if known is not None and known.server is server and known.key is server.key and known.profile is server.profile:
            address = server.address
            if known.address is address or known.address == address:
                return known.prepared
        known = _Known(server, route)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[id(server), route] = known
        return known.prepared

    async def count_chat(self, server: Server, body: bytes) -> int:
        """Return how many tokens the prompt of a chat body takes, template and tools included.

        Raises:
            DeckError: llama-server refused, died, or answered something else.
        """
        found = (await self._whole(server, _COUNT, body)).get("input_tokens")
        if type(found) is not int:
            raise DeckError(ErrorKind.UPSTREAM, f"the llama-server of {server.profile.id!r} did not say a count")
        return found

    async def count_text(self, server: Server, text: str, *, special: bool = False) -> int:
        """Return how many tokens a text takes; `special` adds what begins a prompt.

        Raises:
            DeckError: llama-server refused, died, or answered something else.
        """
        body = json.dumps({"content": text, "add_special": special, "parse_special": special})
        found = (await self._whole(server, _TOKENIZE, body)).get("tokens")
        if type(found) is not list:
            raise DeckError(ErrorKind.UPSTREAM, f"the llama-server of {server.profile.id!r} gave no tokens")
        return len(found)

    async def read_schema(self, server: Server, schema: Mapping[str, Any]) -> None:
        """Have llama-server read a JSON Schema as its chat route would; nothing is generated.

        Raises:
            DeckError: llama-server refused, died, or answered something else.
        """
        messages = [{"role": "user", "content": "x"}]
        await self._whole(server, _TEMPLATE, json.dumps({"messages": messages, "json_schema": schema}))

    async def prompt(self, server: Server, body: bytes) -> str:
        """Return what the model would read of a chat body, by its template; nothing is generated.

        Raises:
            DeckError: the template refuses, or llama-server died or answered something else.
        """
        found = (await self._whole(server, _TEMPLATE, body)).get("prompt")
        if type(found) is not str:
            raise DeckError(ErrorKind.UPSTREAM, f"the llama-server of {server.profile.id!r} gave no prompt")
        return found

    async def _whole(self, server: Server, route: str, body: bytes) -> dict[str, Any]:
        async with self.ask(server, route, body) as response:
            try:
                value = json.loads(await response.read(_ANSWER_LIMIT))
            except httpx.HTTPError as exc:
                raise await _broken(server, exc) from exc
            except ValueError as exc:
                message = f"the llama-server of {server.profile.id!r} answered {route} with no JSON"
                raise DeckError(ErrorKind.UPSTREAM, message) from exc
        return value if type(value) is dict else {}

    async def broken(self, server: Server, exc: httpx.HTTPError) -> DeckError:
        """Return what a failure of the transport means, with the reason of a server that died."""
        return await _broken(server, exc)

    async def settle(self, response: RawResponse) -> None:
        """Read the end of an answer that has said all, so that its connection can serve again."""
        if response.is_complete:
            return
        with contextlib.suppress(httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(_SETTLE):
                while await response.next_chunk():
                    pass

    async def status(self, server: Server, route: str, limit: float) -> int | None:
        """Return the status that a route of observation answers with, None = nothing in so many seconds."""
        address = server.address
        key = [(b"authorization", b"Bearer " + server.key.encode())] if server.key else []
        limits = TimeLimits(pool=limit, connect=limit, write=limit, head=limit, read=limit)
        with contextlib.suppress(httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(limit):
                path = address.prefix + route
                response = await self._transport.send(target_of(server), "GET", path, key, limits=limits)
                try:
                    await response.read(_ANSWER_LIMIT)
                finally:
                    response.close()
                return response.status
        return None

    def forget(self, server: Server) -> None:
        """Close every connection to a server that is going away."""
        for backend in (server, *(server.backends() if isinstance(server, Replicated) else ())):
            self._transport.close_target(target_of(backend))
            for known in [known for known in self._known if known[0] == id(backend)]:
                del self._known[known]


class _Known:
    """The prepared head of a server's route, and what it was made from."""

    __slots__ = ("address", "key", "prepared", "profile", "server")

    def __init__(self, server: Server, route: str) -> None:
        self.server = server
        self.address = address = server.address
        self.key = server.key
        self.profile = server.profile
        stall = self.profile.server.stall_timeout
        headers = [
            (b"host", b"localhost" if address.uds else f"{address.host}:{address.port}".encode()),
            (b"user-agent", f"deck/{__version__}".encode()),
            (b"accept", b"text/event-stream"),
            (b"content-type", b"application/json"),
        ]
        if self.key:
            headers.append((b"authorization", b"Bearer " + self.key.encode()))
        limits = TimeLimits(connect=5.0, write=60.0, head=stall, read=stall)
        self.prepared = Prepared(target_of(server), address.prefix + route, headers, limits)


class Posted:
    """An answer being read; a class of its own since contextlib's costs more than the whole hop's bookkeeping."""

    __slots__ = ("_body", "_client", "_response", "_route", "_server")

    def __init__(self, client: UpstreamClient, server: Server, route: str, body: bytes) -> None:
        self._client = client
        self._server = server
        self._route = route
        self._body = body

    async def __aenter__(self) -> RawResponse:
        self._response = await self._client.post(self._server, self._route, self._body)
        return self._response

    async def __aexit__(self, *failure: object) -> None:
        await self._response.aclose()


def target_of(server: Server) -> Target:
    """Return where a server listens; two models that one server elsewhere serves share no connection."""
    address, settings = server.address, server.profile.server
    owner = server.profile.id if settings.is_remote else ""
    return Target(host=address.host, port=address.port, uds=address.uds, tls=address.tls, owner=owner)


async def _words(response: RawResponse) -> bytes:
    """Return what a refusal says, and let its connection go."""
    try:
        return await response.read(_ERROR_LIMIT)
    finally:
        response.close()


async def _broken(server: Server, exc: httpx.HTTPError) -> DeckError:
    name, who = server.profile.id, server.profile.backend
    if isinstance(exc, httpx.ReadTimeout | httpx.WriteTimeout):
        seconds = server.profile.server.stall_timeout
        message = f"the {who} of {name!r} was silent for {seconds:g} s; its log tells more"
        return DeckError(ErrorKind.UPSTREAM_TIMEOUT, message)
    if isinstance(exc, httpx.PoolTimeout):
        return DeckError(ErrorKind.RATE_LIMIT, f"too many connections to {name!r}; try again later", retry_after=5)
    if not server.profile.server.is_remote and server.reason is None:
        # A process that died breaks its connections first and is reaped a moment later: wait for its reason.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_WAIT):
                await server.wait_ended()
        if server.state in (ServerState.DRAINING, ServerState.STOPPED):
            message = f"the {who} of {name!r} was stopped before the answer ended"
            return DeckError(ErrorKind.UNAVAILABLE, message, retry_after=2)
    told = f"broke off: {server.reason}" if server.reason else told_break(exc)
    elsewhere = server.profile.server.addresses
    if len(elsewhere) == 1:  # clients need not know where it is, operators do
        _log.warning("model %s: the %s at %s %s", name, who, elsewhere[0], told)
    message = f"the {who} of {name!r} {told}"
    if not isinstance(exc, httpx.ConnectError):
        return DeckError(ErrorKind.UPSTREAM, message, retry_after=2)
    has_failed = server.state is ServerState.FAILED and not server.profile.server.is_remote
    is_unheard = has_failed and not isinstance(exc, LostError)
    return (UnheardError if is_unheard else DeckError)(ErrorKind.UNAVAILABLE, message, retry_after=2)
