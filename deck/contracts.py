"""The protocols that plugins and the core meet on; no implementation lives here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from deck.canon.answer import Answer
from deck.canon.events import Event
from deck.canon.request import ChatRequest, Request
from deck.canon.value import value
from deck.errors import DeckError
from deck.normalize.fields import Table
from deck.normalize.report import Report

if TYPE_CHECKING:
    from pathlib import Path

    from deck.profile import Profile


class ServerState(Enum):
    """Where a server is in its life; its owner is the only writer."""

    STOPPED = "stopped"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@value(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a running llama-server says of itself (`/props`); None = it did not say.

    `context` is tokens per slot. `template_caps` are llama-server's `chat_template_caps`. `sampling` are its defaults
    for what a request leaves out, under its own names.
    """

    context: int | None = None
    slots: int | None = None
    modalities: Mapping[str, bool] = field(default_factory=dict)
    template: str | None = None
    template_caps: Mapping[str, bool] = field(default_factory=dict)
    build: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, float] = field(default_factory=dict)


@value(frozen=True, slots=True, kw_only=True)
class Address:
    """Where an HTTP server listens: a UNIX socket, or host and port."""

    host: str = "127.0.0.1"
    port: int = 0
    uds: str | None = None
    tls: bool = False
    prefix: str = ""


class Server(Protocol):
    """One llama-server, managed or remote."""

    profile: Profile

    @property
    def state(self) -> ServerState:
        """Where it is in its life."""
        ...

    @property
    def facts(self) -> Facts:
        """What it said of itself; empty before it is ready."""
        ...

    @property
    def address(self) -> Address:
        """Where it listens."""
        ...

    @property
    def key(self) -> str | None:
        """The key it wants, None = none."""
        ...

    @property
    def reason(self) -> str | None:
        """Why the server failed or ended, with its last log lines, for the client's error."""
        ...

    @property
    def log(self) -> Path | None:
        """The file of what its process prints, None = there is none here."""
        ...

    def memory(self) -> int | None:
        """Return the bytes of this machine's memory that it takes now, None = none or unknown."""
        ...

    async def start(self) -> None:
        """Start and wait until ready.

        Raises:
            DeckError: `UNAVAILABLE` with the exit reason and the last log lines.
        """
        ...

    async def stop(self, *, grace: float) -> None:
        """Stop in order: SIGTERM, grace seconds, SIGKILL; idempotent."""
        ...

    async def wait_ended(self) -> None:
        """Return when the process has ended by itself; never for a remote server."""
        ...


class ReplicaState(Enum):
    """Whether one of several servers of a model is used.

    `HALF_OPEN` has failed and is tried with one exchange; `LOADING` says itself that it takes none yet.
    """

    UP = "up"
    DOWN = "down"
    LOADING = "loading"
    HALF_OPEN = "half-open"


@value(frozen=True, slots=True, kw_only=True)
class Replica:
    """One of several servers of a model, as operators see it; times in seconds.

    Args:
        url: where it listens.
        state: whether it is used.
        reason: why it is not, None = it is.
        running: exchanges on it, of this Deck.
        failures: in a row.
        retry_in: until it is tried again, None = it is used.
        latency: until answers began of late, None = not known.
        model: what it says that it serves.
        context: tokens per slot.
        slots: that it says it has.
        differs: how it differs from the first, in words.
    """

    url: str
    state: ReplicaState
    reason: str | None = None
    running: int = 0
    failures: int = 0
    retry_in: float | None = None
    latency: float | None = None
    model: str | None = None
    context: int | None = None
    slots: int | None = None
    differs: Sequence[str] = ()


@runtime_checkable
class Replicated(Protocol):
    """A server that stands for several of one model, some of which may be down; what else a `Server` may be."""

    on_slots: Callable[[], None]
    """Called when `slots` has changed; set by whoever schedules."""

    @property
    def slots(self) -> int:
        """How many exchanges those that are up take at a time, 0 = no bound."""
        ...

    def backends(self) -> Sequence[Server]:
        """Return the servers themselves."""
        ...

    def replicas(self) -> Sequence[Replica]:
        """Return how each is, in the order of the profile; none where there is but one and nobody watches it."""
        ...


@value(frozen=True, slots=True, kw_only=True)
class Doing:
    """What a server that starts is about.

    Args:
        line: the last telling line that it printed, "" = none yet.
        share: how much of it is done, from 0 to 1; None = it does not say.
        seconds: since its start.
    """

    line: str = ""
    share: float | None = None
    seconds: float = 0.0


@runtime_checkable
class Supervised(Protocol):
    """A server whose process is Deck's own to watch; what else a `Server` may be."""

    @property
    def pid(self) -> int | None:
        """Its process, None = none runs."""
        ...

    @property
    def doing(self) -> Doing | None:
        """What it is about while it starts, None = it does not."""
        ...

    @property
    def has_slots_back(self) -> bool:
        """Whether its slots hold what those of its last run held."""
        ...

    def condemn(self, reason: str) -> None:
        """Give it up as hung: from now on it has failed for this reason; `stop` then ends its process."""
        ...


class Launcher(Protocol):
    """Makes the server of a profile; nothing runs before `Server.start`."""

    def launch(self, profile: Profile) -> Server:
        """Return the server of the profile, not yet started."""
        ...


@value(frozen=True, slots=True, kw_only=True)
class Route:
    """A path of a surface, without the `/v1` prefix, and what it does there.

    `count` answers with the tokens that the same body would cost, by `CountingSurface.render_count`.
    """

    path: str
    method: Literal["POST"] = "POST"
    operation: Literal["generate", "count"] = "generate"


@value(frozen=True, slots=True, kw_only=True)
class ParseOptions:
    """What a parser knows beside the body.

    Args:
        lenient: unknown fields and refused hints are removed and reported, not refused.
        template_kwargs: template variables a client may set.
        operation: the route's; `count` = nothing is generated, so that only what the prompt is made of has an effect.
        headers: those request headers that the surface asked for by `Surface.header_names`, by lower-case name.
        remove_attribution: take out lines of a system prompt that change with every request and say only who sent it.
        remote_images: an http(s) URL of an image may be passed on; Deck fetches it under the operator's rules.
    """

    lenient: bool = False
    template_kwargs: frozenset[str] = frozenset()
    operation: Literal["generate", "count"] = "generate"
    headers: Mapping[str, str] = field(default_factory=dict)
    remove_attribution: bool = True
    remote_images: bool = False


@value(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a surface's answer needs from llama-server beyond the answer itself.

    Args:
        stop_sequence: which stop string ended the answer, in `Finish.stop_sequence`.
        prompt_progress: `Progress("prompt", …)` with `total` and `cache` tokens before the answer begins.
        reasoning_tokens: `Usage.reasoning`, counted by the model's own tokenizer where llama-server does not say.
    """

    stop_sequence: bool = False
    prompt_progress: bool = False
    reasoning_tokens: bool = False


NEEDS_NOTHING = Needs()


@value(frozen=True, slots=True)
class Parsed:
    """A client's request in canonical form, and what its surface must remember to answer it.

    `paths` tells where the client wrote a sampling field, where that is not its canonical name.
    """

    request: Request
    reply: Any
    paths: Mapping[str, str] = field(default_factory=dict)
    needs: Needs = NEEDS_NOTHING


def _nothing() -> Mapping[str, Any]:
    return {}


@value(frozen=True, slots=True)
class ReplyHead:
    """What is the same in every piece of one answer, and what only whoever runs the exchange can tell.

    Args:
        seed: 40 alphanumerics to make ids from.
        created: when the request came, in seconds since the epoch.
        model: as the client named it.
        sampling: tells the sampling that is in effect as far as it is known: the client's and the profile's, and the
            running server's defaults once the request is with it; llama-server's names.
        clock: tells the time in seconds since the epoch; None = a surface must do without.
    """

    seed: str
    created: int
    model: str
    sampling: Callable[[], Mapping[str, Any]] = _nothing
    clock: Callable[[], float] | None = None


class Projector(Protocol):
    """Turns events into the bytes of one client's stream; a sans-IO state machine."""

    def feed(self, event: Event) -> bytes:
        """Return what the client is to receive for `event`, often nothing."""
        ...

    def heartbeat(self) -> bytes:
        """Return a valid frame that says only that Deck is alive."""
        ...


@runtime_checkable
class Surface(Protocol):
    """A client-facing API: routes, request fields, parser, projector, error shape.

    `header_names` are the request headers that `parse` wants to see, in lower case. `id_headers` are the answer's
    headers that carry the id of the request.
    """

    name: str
    title: str
    routes: Sequence[Route]
    header_names: Sequence[str]
    id_headers: Sequence[str]

    @property
    def tables(self) -> Mapping[str, Table]:
        """The field tables by the path they apply to; "" is the top level."""
        ...

    def parse(self, body: Mapping[str, Any], report: Report, options: ParseOptions) -> Parsed:
        """Turn a client's body into the canonical request.

        Raises:
            DeckError: the request cannot be honoured.
        """
        ...

    def projector(self, parsed: Parsed, head: ReplyHead) -> Projector:
        """Make the state machine for one streamed answer."""
        ...

    def render(self, answer: Answer, parsed: Parsed, head: ReplyHead) -> dict[str, Any]:
        """Make the buffered answer."""
        ...

    def error(self, error: DeckError, request_id: str) -> dict[str, Any]:
        """Make the error envelope of this wire."""
        ...


@runtime_checkable
class CountingSurface(Surface, Protocol):
    """A surface with a route whose operation is `count`."""

    def render_count(self, tokens: int) -> dict[str, Any]:
        """Make the answer that says how many tokens the request's prompt takes."""
        ...


class Filter(Protocol):
    """Events in, events out; works on any slicing."""

    def feed(self, event: Event) -> Iterable[Event]:
        """Return what becomes of `event`: itself, others, or nothing yet."""
        ...


@value(frozen=True, slots=True, kw_only=True)
class Features:
    """What a family does, in words, for documents.

    Args:
        title: the family's name for people.
        source: where its facts are from.
        calls: syntaxes of calls that are found in the text.
        thoughts: how thoughts are marked that are found in the text.
        switches: how thinking is switched: `kwarg`, `line`, `effort`, `always`, `never`.
        efforts: that its models know; none = what the template says.
        sampling: defaults, each with where the makers say so.
        quirks: what of its templates is repaired.
    """

    title: str
    source: str = ""
    calls: Sequence[str] = ()
    thoughts: Sequence[str] = ()
    switches: Sequence[str] = ()
    efforts: Sequence[str] = ()
    sampling: Sequence[tuple[Mapping[str, Any], str]] = ()
    quirks: Sequence[str] = ()


@runtime_checkable
class Family(Protocol):
    """What a kind of model needs."""

    @property
    def name(self) -> str:
        """As in a profile."""
        ...

    @property
    def features(self) -> Features:
        """What it does, for documents."""
        ...

    def defaults(self, facts: Facts) -> Mapping[str, Any]:
        """Return sampling defaults recommended by the model's makers; `facts` are empty before its server runs."""
        ...

    def arguments(self) -> Sequence[str]:
        """Return flags that llama-server must be started with, often none; the profile's own come behind them."""
        ...

    def stops(self) -> Sequence[str]:
        """Return strings at which the answer ends beside the client's, often none."""
        ...

    def adapt(self, request: ChatRequest, facts: Facts, report: Report) -> ChatRequest:
        """Return the request in a form that the model's template accepts; pure; each change leaves a note."""
        ...

    def filter(self, request: ChatRequest, report: Report, seed: str) -> Filter | None:
        """Return a state machine over the answer's events, None when none is needed.

        It may add notes while the answer streams; ids that it makes come from `seed`, as in `ReplyHead`.
        """
        ...


@runtime_checkable
class Step(Protocol):
    """One named stage of normalisation; ordered by `(phase, name)`."""

    name: str
    phase: int

    def apply(self, request: Request, profile: Profile, report: Report) -> Request:
        """Return the request, of the same type, as this step leaves it; each change leaves a note."""
        ...


@value(frozen=True, slots=True)
class ExchangeRecord:
    """What became of one exchange; times in seconds; no bodies, no secrets.

    Operations take no lane: it is "". `left_lane` was tried before `lane`. Tokens are not known of an answer that was
    made for another exchange. `replica` is the URL of the server that was chosen of several, `retries` how many were
    tried in vain before it.
    """

    id: str
    surface: str
    model: str
    principal: str
    outcome: str
    status: int
    stream: bool
    duration: float
    queued: float
    first_token: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    finish: str | None
    notes: Sequence[tuple[str, str]]
    lane: str = "continuous"
    left_lane: str | None = None
    replica: str = ""
    retries: int = 0


@runtime_checkable
class Observer(Protocol):
    """Told of every exchange after its end; its failures are counted, never raised."""

    def observe(self, record: ExchangeRecord) -> None:
        """Take note of an exchange that has ended."""
        ...
