"""Whether a request fits its model's context, and how much of a shared one it may come to take; asked before it queues.

What the bytes of a prompt settle costs no more than their length. Else a loaded model's server counts, once. A request
for a model that is not loaded is refused only if even a low estimate does not fit, and is looked at again afterwards.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from deck import json
from deck.bounds import least_tokens, most_tokens
from deck.canon.request import Request, TextRequest
from deck.contracts import Facts, Server, ServerState
from deck.errors import DeckError, ErrorKind, Overrun, UnheardError, overflow
from deck.exchange import Exchange, Shaped
from deck.normalize.report import Report
from deck.profile import Profile
from deck.shaping import Shaper
from deck.slots import declared_context, pool_of, shifts
from deck.upstream.client import UpstreamClient

NO_FACTS = Facts()
# Seconds that a count may take; and failures in a row after which a server is not asked again.
_PATIENCE = 10.0
_TRIES = 3
# How many times too long a prompt is found to be at most, before its model is loaded.
_ENOUGH = 4
# The credit of who may come to take a context of unknown size: it runs alone.
_ALL = 1 << 40


@dataclass(slots=True)
class Fit:
    """What is known of an exchange before it queues.

    `shaped` and `payload` are for a server of `facts`, None where it is not loaded. `credit` is the most tokens that
    it will take. `notes` is how many notes its report had before it was shaped. `is_open` = its prompt must be counted.
    """

    credit: int
    facts: Facts = NO_FACTS
    shaped: Shaped | None = None
    payload: bytes = b""
    notes: int = 0
    is_open: bool = False


@dataclass(slots=True)
class _Known:
    """What is the same for every exchange of one run of a server; `share` is a slot's of the pool, None = no pool."""

    profile: Profile
    facts: Facts
    context: int | None
    share: int | None
    failures: int = 0


class Fitter:
    """Finds out what fits.

    Args:
        shaper: makes the bodies that are measured.
        client: asks servers to count.
    """

    def __init__(self, shaper: Shaper, client: UpstreamClient) -> None:
        self._shaper = shaper
        self._client = client
        self._known: dict[str, _Known] = {}

    def forget(self) -> None:
        """Look at every server anew: its profile may have changed."""
        self._known.clear()

    def guess(self, exchange: Exchange) -> Fit:
        """Say what it may come to take of the context that the profile declares, while the model is not loaded.

        The request is shaped for no server in particular; what is noted or refused in that is forgotten.

        Raises:
            DeckError: it plainly does not fit.
        """
        assert exchange.profile is not None
        profile = exchange.profile
        notes = exchange.report.size
        context = declared_context(profile)
        try:
            shaped = self._shaper.shape(replace(exchange, report=Report()), NO_FACTS)
        except DeckError:
            return Fit(_ALL, notes=notes)
        request = shaped.request
        if context is not None:
            _refuse_plain(exchange, request, context)
        most = most_tokens(request, json.dumps(shaped.body), NO_FACTS)
        # Only what the server is started with bounds what it grows to.
        return Fit(_credit(most, request, context if profile.server.ctx_size and context else _ALL), notes=notes)

    def measure(self, exchange: Exchange, server: Server) -> Fit:
        """Return what the bytes of the body settle, and the request as it is sent.

        Raises:
            DeckError: the request cannot be honoured.
        """
        facts = server.facts
        notes = exchange.report.size
        shaped = self._shaper.shape(exchange, facts)
        payload = json.dumps(shaped.body)
        known = self._of(server)
        context = known.context
        if context is None:
            return Fit(_ALL, facts, shaped, payload, notes)
        most = most_tokens(shaped.request, payload, facts)
        is_open = most + (_asked(exchange, shaped.request) or 1) > context
        if known.share is None:
            return Fit(context, facts, shaped, payload, notes, is_open)
        credit = _credit(most, shaped.request, context)
        if credit > known.share and not is_open:
            is_open = "max_tokens" in shaped.request.sampling  # without it a count would change nothing
        return Fit(credit, facts, shaped, payload, notes, is_open)

    def quote(self, exchange: Exchange, server: Server) -> int:
        """Return what the bytes of the body say that it takes of a server's context; nothing is noted.

        Raises:
            DeckError: the request cannot be honoured.
        """
        return self.measure(replace(exchange, report=Report()), server).credit

    async def count(self, exchange: Exchange, server: Server, fit: Fit) -> Fit:
        """Settle what is open by the server's count: its budget is lowered where the profile says so.

        Raises:
            DeckError: it does not fit.
        """
        known, shaped = self._of(server), fit.shaped
        assert shaped is not None
        assert known.context is not None
        fit.is_open = False
        prompt = await self._tokens(server, shaped, known)
        if prompt is None:
            return fit  # llama-server itself will say what does not fit
        context = known.context
        asked = _asked(exchange, shaped.request)
        fit.credit = _credit(prompt, shaped.request, context)
        if prompt + (asked if asked == 0 else 1) > context:
            raise overflow(Overrun(prompt, context), of=_of(shaped.request))
        if asked is None or prompt + asked <= context or shifts(known.profile.server):
            return fit
        if known.profile.budget_overflow == "refuse":
            raise overflow(Overrun(prompt, context, asked), of=_of(shaped.request))
        self._cap(exchange, fit, asked, context - prompt)
        return fit

    async def fit_granted(self, exchange: Exchange, server: Server, fit: Fit) -> Fit:
        """Return what fits the server that was granted, where it is another than was there before.

        Raises:
            DeckError: it does not fit, or cannot be honoured.
        """
        exchange.report.rewind(fit.notes)
        fit = self.measure(exchange, server)
        return await self.count(exchange, server, fit) if fit.is_open else fit

    async def _tokens(self, server: Server, shaped: Shaped, known: _Known) -> int | None:
        """Return the prompt's tokens by the server's own counter, None = it did not say."""
        request = shaped.request
        if isinstance(request, TextRequest) and isinstance(request.prompt, tuple):
            return len(request.prompt)
        if known.failures >= _TRIES:
            return None
        try:
            async with asyncio.timeout(_PATIENCE):
                if isinstance(request, TextRequest):
                    assert isinstance(request.prompt, str)
                    found = await self._client.count_text(server, request.prompt, special=True)
                else:
                    found = await self._client.count_chat(server, json.dumps(shaped.body | {"stream": False}))
        except TimeoutError:
            known.failures += 1
            return None
        except DeckError as error:
            if server.state is ServerState.FAILED and not isinstance(error, UnheardError):
                raise  # it died of this question, and so would its next run
            known.failures += error.kind is ErrorKind.UPSTREAM
            return None  # what is wrong with it, its answer will say
        known.failures = 0
        return found

    def _cap(self, exchange: Exchange, fit: Fit, asked: int, left: int) -> None:
        """Lower the budget that is sent; the decoder keeps the client's, so that the context is named as the end."""
        assert fit.shaped is not None
        assert exchange.parsed is not None
        path = exchange.parsed.paths.get("max_tokens", "max_tokens")
        why = "the profile lowers it to what the prompt leaves of the context"
        exchange.report.changed(path, why, shown=f"{path}={asked}>{left}", field="max_tokens")
        fit.shaped = replace(fit.shaped, body={**fit.shaped.body, "max_tokens": left})
        fit.payload = json.dumps(fit.shaped.body)

    def _of(self, server: Server) -> _Known:
        profile, facts = server.profile, server.facts
        known = self._known.get(profile.id)
        if known is None or known.facts is not facts or known.profile is not profile:
            pool = pool_of(profile, facts)
            share = pool // (facts.slots or 1) if pool is not None else None
            known = self._known[profile.id] = _Known(profile, facts, facts.context, share)
        return known


def _refuse_plain(exchange: Exchange, request: Request, context: int) -> None:
    """Refuse what does not fit by the lowest estimate."""
    assert exchange.profile is not None
    profile, asked = exchange.profile, _asked(exchange, request)
    least = least_tokens(request, _ENOUGH * context)
    if least > context:
        raise overflow(Overrun(least, context, is_estimate=True), of=_of(request))
    may_exceed = profile.budget_overflow == "cap" or shifts(profile.server)
    if asked is not None and least + asked > context and not may_exceed:
        raise overflow(Overrun(least, context, asked, is_estimate=True), of=_of(request))


def _asked(exchange: Exchange, request: Request) -> int | None:
    """Return the budget that the client insists on, as far as the profile lets it; None = it set none.

    One that only the profile set is no ground to refuse: the client could do nothing about it.
    """
    assert exchange.parsed is not None
    budget = request.sampling.get("max_tokens")
    if budget == 0:
        return 0
    asked = exchange.parsed.request.sampling.get("max_tokens")
    return None if asked is None or budget is None else int(min(asked, budget))


def _credit(prompt: int, request: Request, context: int) -> int:
    """Return how much an exchange comes to take of a context at most; without a budget that is all of it."""
    budget = request.sampling.get("max_tokens")
    return context if budget is None else int(min(prompt + max(budget, 1), context))


def _of(request: Request) -> str:
    return "prompt" if isinstance(request, TextRequest) else "messages"
