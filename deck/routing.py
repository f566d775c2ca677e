"""Decides the lane of each exchange and says which conversation it belongs to; what needs a server is not known here.

Only as much is computed as matters: a server with one slot has none to choose from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from deck.canon.request import ChatRequest, Request
from deck.config import AffinitySettings, LaneSettings
from deck.continuations import Continuation, Continuations
from deck.contracts import Server, Supervised
from deck.conversation import beginning_of, goes_on, results_at_end, session_of_body
from deck.exchange import Exchange
from deck.profile import Profile
from deck.scheduler.lanes import Lane, RouteNeeds, Switches, route_decide
from deck.scheduler.slots import Claim, SlotBook
from deck.steps import changes_values

_ALL = Switches()
_STREAMED, _BUFFERED = RouteNeeds(stream=True), RouteNeeds()
# With any of these the same prompt may have another answer although the temperature is 0.
_CHANCE = ("xtc_probability", "dynatemp_range", "mirostat", "samplers", "adaptive_target")
# llama-server moves idle prompts of a shared cache to the host's memory, and brings them back only where it chooses.
_UNIFIED = frozenset({"-kvu", "--kv-unified", "--kv_unified"})


class Router:
    """Routes exchanges.

    Args:
        lanes: which lanes a surface may use, by its name; one that is not named may use all.
        affinity: how long conversations are remembered, and whether they have slots of their own.
        queue_wait: seconds after which who waits is refused: half of them at most are spent on one's own conversation.
    """

    def __init__(
        self, lanes: Mapping[str, LaneSettings], affinity: AffinitySettings, *, queue_wait: float = math.inf
    ) -> None:
        self._switches = {
            name: Switches(serial=item.serial, static=item.static, tools=item.tools) for name, item in lanes.items()
        }
        self._affinity = affinity
        self._alone = min(affinity.grace, queue_wait / 2)
        self._books: dict[str, SlotBook] = {}
        self._continuations = Continuations(grace=affinity.grace, longest=affinity.longest)

    def route(self, exchange: Exchange, body: Mapping[str, Any], now: float) -> None:
        """Set the lane of a prepared exchange, and the claim of its conversation where one matters.

        Args:
            exchange: whose headers were read for a session.
            body: the client's, which may name one too.
            now: the exchange's clock.
        """
        assert exchange.parsed is not None
        assert exchange.profile is not None
        request, profile = exchange.parsed.request, exchange.profile
        switches = self._switches.get(exchange.surface.name, _ALL)
        # Texts bring no results.
        has_record = switches.tools and exchange.texts is None
        exchange.record = record = self._reclaimed(exchange, request, now) if has_record else None
        exchange.lane = lane = route_decide(needs_of(request, profile, continues=record is not None), switches)
        server = profile.server
        is_remote = server.is_remote
        if server.parallel == 1 and not is_remote:
            return
        gives_out = not is_remote and self._gives_out(profile)
        if lane is not Lane.SERIAL and not gives_out and not server.urls:
            return  # there is no slot and no server to choose
        exchange.session = exchange.session or session_of_body(body)
        alone = lane is Lane.SERIAL and (record is not None or bool(exchange.session))
        if alone or gives_out:
            exchange.claim = self._claim(exchange, request, record, alone=alone)

    def _claim(self, exchange: Exchange, request: Request, record: Continuation | None, *, alone: bool) -> Claim:
        beginning = beginning_of(request, exchange.principal.name, exchange.session)
        tail = beginning.tail_size
        return Claim(
            beginning.whole if record is None else record.conversation,
            beginning.head,
            holds=record is not None or goes_on(request),
            alone=self._alone if alone else 0.0,
            head_size=max(0, exchange.size - tail),
            tail_size=tail,
        )

    def _reclaimed(self, exchange: Exchange, request: Request, now: float) -> Continuation | None:
        """Return the record of the calls whose results the request brings, if it still matches."""
        calls = results_at_end(request)
        if not calls or exchange.profile is None:
            return None
        record = self._continuations.reclaim(exchange.principal.name, exchange.surface.name, calls, now)
        if record is None or record.profile != exchange.profile.id:
            return None
        head = beginning_of(request, "", "").head
        return record if head == record.head else None

    def remember(self, exchange: Exchange, calls: list[str], now: float) -> None:
        """Take note of an answer with calls: the client will bring their results."""
        parsed, profile, claim, record = exchange.parsed, exchange.profile, exchange.claim, exchange.record
        if parsed is None or profile is None or not self._switches.get(exchange.surface.name, _ALL).tools:
            return
        if record is not None:
            conversation, head = record.conversation, record.head
        elif claim is not None:
            conversation, head = claim.conversation, claim.head
        else:
            beginning = beginning_of(parsed.request, exchange.principal.name, exchange.session)
            conversation, head = beginning.whole, beginning.head
        since = record.since if record is not None else None
        made = self._continuations.made(conversation, head, profile.id, now, since)
        self._continuations.leave(exchange.principal.name, exchange.surface.name, calls, made)

    def book_of(self, server: Server) -> SlotBook | None:
        """Return what gives the slots of a server out, None = it chooses itself."""
        slots = server.facts.slots or server.profile.server.parallel
        if slots < 2 or not self._gives_out(server.profile):
            return None
        profile = server.profile
        book = self._books.pop(profile.id, None)
        watched: object = server
        has_slots_back = isinstance(watched, Supervised) and watched.has_slots_back
        if book is None or not has_slots_back or not book.reopened(slots):
            affinity = self._affinity
            book = SlotBook(slots, grace=affinity.grace, longest=affinity.longest, patience=affinity.patience)
        if profile.server.save_slots:
            self._books[profile.id] = book
        return book

    def _gives_out(self, profile: Profile) -> bool:
        """Tell whether Deck says which slot an exchange gets: nobody but Deck uses the server."""
        server = profile.server
        is_own = not server.is_remote and server.parallel > 1 and profile.kind == "chat"
        return is_own and self._affinity.slots and _UNIFIED.isdisjoint(server.args)


def affinity_of(exchange: Exchange) -> str:
    """Return the key of an exchange's conversation, for servers that each have a cache of their own."""
    if exchange.record is not None:
        return exchange.record.conversation.hex()
    if exchange.claim is not None:
        return exchange.claim.conversation.hex()
    assert exchange.parsed is not None
    return beginning_of(exchange.parsed.request, exchange.principal.name, exchange.session).whole.hex()


def needs_of(request: Request, profile: Profile, *, continues: bool = False) -> RouteNeeds:
    """Return what a request needs of its lane, by the sampling that is in effect as far as the client and profile say.

    What matters to the shared lane only is left out of a stream, of a request with tools, and where chance decides.
    """
    tools = bool(request.tools) if isinstance(request, ChatRequest) else False
    prefill_only = request.is_prefill_only
    greedy = not (request.stream or tools) and _is_greedy(_in_effect(request, profile))
    if not (greedy or continues or tools or prefill_only):
        return _STREAMED if request.stream else _BUFFERED
    if not greedy:
        return RouteNeeds(
            prefill_only=prefill_only,
            continues=continues,
            tools=tools,
            may_retry=tools and profile.retry_calls,
            stream=request.stream,
        )
    return RouteNeeds(
        prefill_only=prefill_only,
        continues=continues,
        greedy=True,
        thinking=isinstance(request, ChatRequest) and _thinks(request),
        stops=bool(_in_effect(request, profile).get("stop")),
        logprobs=request.logprobs is not None,
    )


def _thinks(request: ChatRequest) -> bool:
    asked = request.reasoning
    return bool(asked.enabled) or asked.effort not in (None, "none") or bool(asked.budget)


def _is_greedy(sampling: Mapping[str, Any]) -> bool:
    is_first = sampling.get("temperature") == 0 or sampling.get("top_k") == 1
    return is_first and not any(sampling.get(name) for name in _CHANCE)


def _in_effect(request: Request, profile: Profile) -> Mapping[str, Any]:
    """Return the sampling as the profile will have it, but for its limits."""
    if not changes_values(profile):
        return request.sampling
    sampling = {**profile.defaults, **request.sampling, **profile.force}
    return {name: value for name, value in sampling.items() if name not in profile.drop}
