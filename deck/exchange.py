"""One exchange and its request as it is sent: what the stations of the data path know of each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from deck.canon.request import Message, Request
from deck.canon.value import value
from deck.continuations import Continuation
from deck.contracts import Family, Parsed, Server, Surface
from deck.normalize.repairs import CUT_CALL
from deck.normalize.report import Report
from deck.operation import Operation
from deck.profile import Profile
from deck.scheduler.lanes import Lane
from deck.scheduler.slots import Claim
from deck.tokens import Principal
from deck.upstream.client import TEXT
from deck.upstream.decode import Decoder

# Set among a server's arguments, these cut answers as a client's own limit would.
_SERVER_BUDGET = frozenset({"-n", "--predict", "--n-predict"})


@dataclass(slots=True)
class Exchange:
    """One client request from first byte to last; times are the monotonic clock's.

    `size` is the bytes of its body, `session` what the client said of it, `claim` the conversation it belongs to where
    that matters, `record` the calls whose results it brings. `lane` is None until it is routed, as what was refused
    before and what is only counted is not; `left` is a lane that was tried and given up for `lane`;
    `is_guest` = its answer was made for another exchange. `heard` counts what came of its answer; `is_owed` tells that
    its server, not its client, is waited for. `catalog` is the models that there were when it was prepared, `replica`
    which of several servers was tried last, `retries` how often one was passed over for another; `was_tried` = one was
    tried under the grant that it has now. `texts` is the client's turns where each is nothing but one text.
    """

    id: str
    surface: Surface | Operation
    principal: Principal
    seed: str
    began: float
    report: Report = field(default_factory=Report)
    profile: Profile | None = None
    parsed: Parsed | None = None
    model: str = ""
    granted: float | None = None
    first_token: float | None = None
    server: Server | None = None
    operation: Literal["generate", "count"] = "generate"
    headers: Mapping[str, str] = field(default_factory=dict)
    shaped: Shaped | None = None
    catalog: object = None
    heard: int = 0
    is_owed: bool = False
    session: str = ""
    size: int = 0
    lane: Lane | None = None
    left: Lane | None = None
    claim: Claim | None = None
    record: Continuation | None = None
    is_guest: bool = False
    replica: str = ""
    retries: int = 0
    was_tried: bool = False
    texts: tuple[Message, ...] | None = None

    def note_backend(self, url: str) -> None:
        """Note the server that is tried, where the model has several."""
        if self.profile is not None and len(self.profile.server.urls) > 1:
            self.retries += self.was_tried
            self.replica, self.was_tried = url, True


@value(frozen=True, slots=True)
class Shaped:
    """A request ready to be sent, after steps and family: its upstream route and body. Raw prompts have no family.

    `answer_tool` names the tool that stands for the form of the answer, if one does.
    """

    request: Request
    family: Family | None
    why: str
    route: str
    body: dict[str, Any]
    answer_tool: str = ""

    def decoder(self, seed: str, profile: Profile) -> Decoder:
        """Return the decoder for the answer to it."""
        return Decoder(
            seed=seed,
            prefill_only=self.request.is_prefill_only,
            raw=self.route is TEXT,
            budget=budget_of(self.request, profile),
        )


def note_cut(exchange: Exchange, name: str, what: str, shown: str) -> None:
    """Note that the token limit cut a call; the finish says so too, on the client's wire."""
    paths = exchange.parsed.paths if exchange.parsed is not None else {}
    message = f"the limit cut the call of {name}; {what}"
    exchange.report.changed(paths.get("max_tokens", "max_tokens"), message, shown=shown, field=CUT_CALL)


def budget_of(request: Request, profile: Profile) -> int | None:
    """Return the limit on the answer's tokens, 0 where an end by another limit could not be told from one by this."""
    if "t_max_predict_ms" in request.sampling:
        return 0
    budget = request.sampling.get("max_tokens")
    if budget is None and not _SERVER_BUDGET.isdisjoint(profile.server.args):
        return 0
    return budget
