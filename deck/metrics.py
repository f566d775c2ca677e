"""What Deck counts: Prometheus metrics, and the same numbers for `GET /v1/stats`.

Knows records and states. Does not know how exchanges come about. Every label comes from a closed set, the rest is
`other`. Observing an exchange is on the hot path: the cells of exchanges that are alike are looked up once and kept.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from deck import __version__
from deck.contracts import ExchangeRecord, Replica, ReplicaState, ServerState
from deck.errors import ErrorKind
from deck.normalize.repairs import REPAIRS
from deck.normalize.report import NoteKind
from deck.scheduler.lanes import Lane
from deck.tally import Count, Counts, Spread, Spreads

OTHER = "other"
_OUTCOMES = frozenset({"ok", "client_gone", *(kind.label for kind in ErrorKind)})
_STATUSES = {code: str(code) for code in (200, 499, *(kind.status for kind in ErrorKind))}
_LANES = tuple(lane.value for lane in Lane)
_NOTE_KINDS = frozenset(kind.value for kind in NoteKind)
_DURATION = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_FIRST_TOKEN = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_QUEUE = (0.001, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300)
_LOAD = (0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_OBSERVERS = 32
_UNKNOWN = ErrorKind.AUTHENTICATION.label

States = Callable[[], Mapping[str, ServerState]]
Reading = Callable[[], int]
Replicas = Callable[[], Mapping[str, Sequence[Replica]]]


class Metrics:
    """All metrics of one Deck, in a registry of their own; an observer.

    Args:
        models: ids of the catalog.
        surfaces: names of the surfaces.
        operations: names of the operations: `surface` of their exchanges, which take no lane.
        known_fields: names that a note's `field` may have.
        clock: monotonic.
    """

    def __init__(
        self,
        models: Iterable[str] = (),
        surfaces: Iterable[str] = (),
        known_fields: frozenset[str] = frozenset(),
        *,
        operations: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.known_fields = known_fields
        self._models = frozenset(models)
        self._laned = frozenset(surfaces)
        self._surfaces = self._laned.union(operations)
        self._clock = clock
        self._began = clock()
        self._registry = CollectorRegistry()
        self._watched = _Watched(sorted(self._models))
        self._registry.register(self._watched)
        self._declare()
        self._alike: dict[_Kind, _Cells] = {}
        self._notes_of: dict[tuple[str, str, str], Count] = {}
        # Every cell exists from the start: a lane that was never taken reads 0, not nothing.
        for surface in (*self._surfaces, OTHER):
            self._duration.cell(surface)
            self._first.cell(surface)
        for surface in self._laned:
            for lane in _LANES:
                self._routes.cell(surface, lane)
        for model in (*self._models, OTHER):
            self._begin(model)
        self._observers: set[str] = set()

    def _declare(self) -> None:
        labels = ["surface", "outcome", "status", "stream"]
        self._requests = self._counts("deck_requests", "Exchanges that ended.", *labels)
        self._duration = self._spreads(
            "deck_request_duration_seconds", "From first byte to last.", _DURATION, "surface"
        )
        self._first = self._spreads(
            "deck_time_to_first_token_seconds", "Until the answer began.", _FIRST_TOKEN, "surface"
        )
        self._tokens = self._counts("deck_tokens", "Tokens, as measured.", "model", "direction")
        self._queue = self._spreads("deck_queue_seconds", "Waits for a slot.", _QUEUE).cell()
        self._load = self._spreads("deck_load_seconds", "Loads of a model.", _LOAD, "model")
        self._recycles = self._counts("deck_server_recycles", "Servers stopped for their size.", "model")
        self._hangs = self._counts("deck_server_hangs", "Servers ended because they did nothing.", "model")
        self._notes = self._counts("deck_request_notes", "Fields ignored or changed.", "surface", "kind", "field")
        self._routes = self._counts("deck_route_requests", "Exchanges by lane.", "surface", "lane")
        self._repairs = self._counts("deck_repairs", "What was done about what models wrote.", "model", "what")
        self._replica_retries = self._counts("deck_replica_retries", "Servers passed over for another.", "model")
        self._failures = self._counts("deck_observer_failures", "Observers failed.", "observer")
        self._auth = self._counts("deck_auth_failures", "Requests without a valid token.").cell()
        build = Gauge("deck_build_info", "What runs.", ["version", "python"], registry=self._registry)
        build.labels(__version__, platform.python_version()).set(1)

    def _counts(self, name: str, documentation: str, *labels: str) -> Counts:
        found = Counts(name, documentation, labels)
        self._registry.register(found)
        return found

    def _spreads(self, name: str, documentation: str, bounds: tuple[float, ...], *labels: str) -> Spreads:
        found = Spreads(name, documentation, bounds, labels)
        self._registry.register(found)
        return found

    def _directions(self, model: str) -> tuple[Count, Count, Count]:
        of = self._tokens.cell
        return of(model, "prompt"), of(model, "completion"), of(model, "cached")

    def _begin(self, model: str) -> None:
        self._directions(model)
        self._replica_retries.cell(model)
        for what in REPAIRS:
            self._repairs.cell(model, what)
        self._recycles.cell(model)
        self._hangs.cell(model)

    def know(self, models: Iterable[str]) -> None:
        """Take the ids of a new catalog: models that are gone keep their counts."""
        new = sorted(set(models) - self._models)
        self._models = self._models.union(new)
        self._watched.models = sorted(self._models)
        for model in new:
            self._begin(model)

    def watch(self, states: States, depth: Reading, streams: Reading = lambda: 0) -> None:
        """Say where to read, at each scrape, the servers' states, the queue's depth and how many streams are open."""
        self._watched.states, self._watched.depth, self._watched.streams = states, depth, streams

    def watch_replicas(self, replicas: Replicas) -> None:
        """Say where to read, at each scrape, the servers of models that have several."""
        self._watched.replicas = replicas

    def observe(self, record: ExchangeRecord) -> None:
        """Count an exchange that has ended."""
        kind = (record.surface, record.outcome, record.status, record.stream, record.model, record.lane)
        cells = self._alike.get(kind) or self._cells_of(kind)
        cells.end.value += 1
        cells.duration.observe(record.duration)
        if record.first_token is not None:
            cells.first.observe(record.first_token)
        if record.model:
            self._queue.observe(record.queued)
        if cells.route is not None:
            cells.route.value += 1
            if record.left_lane in _LANES:
                self._routes.cell(cells.surface, record.left_lane).value += 1
        if record.prompt_tokens:
            cells.prompt.value += record.prompt_tokens
        if record.completion_tokens:
            cells.completion.value += record.completion_tokens
        if record.cached_tokens:
            cells.cached.value += record.cached_tokens
        for sort, field in record.notes:
            note = (cells.surface, sort, field)
            (self._notes_of.get(note) or self._note(note)).value += 1
            if field in REPAIRS:
                self._repairs.cell(record.model if record.model in self._models else OTHER, field).value += 1
        if record.retries:
            model = record.model if record.model in self._models else OTHER
            self._replica_retries.cell(model).value += record.retries
        if record.outcome == _UNKNOWN:
            self._auth.value += 1

    def _cells_of(self, kind: _Kind) -> _Cells:
        surface, outcome, status, stream, model, lane = kind
        is_closed = outcome in _OUTCOMES and status in _STATUSES and lane in ("", *_LANES)
        is_known = surface in self._surfaces and (not model or model in self._models)
        surface = surface if surface in self._surfaces else OTHER
        end = self._requests.cell(
            surface,
            outcome if outcome in _OUTCOMES else OTHER,
            _STATUSES.get(status, OTHER),
            "true" if stream else "false",
        )
        is_route = surface in self._laned and lane in _LANES
        cells = _Cells(
            surface,
            end,
            self._duration.cell(surface),
            self._first.cell(surface),
            self._routes.cell(surface, lane) if is_route else None,
            *self._directions(model if model in self._models else OTHER),
        )
        if is_closed and is_known:
            self._alike[kind] = cells
        return cells

    def _note(self, key: tuple[str, str, str]) -> Count:
        surface, kind, field = key
        is_known = kind in _NOTE_KINDS and field in self.known_fields
        cell = self._notes.cell(surface, kind if kind in _NOTE_KINDS else OTHER, field if is_known else OTHER)
        if is_known:
            self._notes_of[key] = cell
        return cell

    def loaded(self, model: str, seconds: float) -> None:
        """Count a model that became ready."""
        self._load.cell(model if model in self._models else OTHER).observe(seconds)

    def recycled(self, model: str) -> None:
        """Count a server that is stopped because it has grown above its ceiling."""
        self._recycles.cell(model if model in self._models else OTHER).value += 1

    def hung(self, model: str) -> None:
        """Count a server that is ended because it did nothing for those who used it."""
        self._hangs.cell(model if model in self._models else OTHER).value += 1

    def observer_failed(self, observer: str) -> None:
        """Count an observer that raised."""
        if observer not in self._observers and len(self._observers) >= _OBSERVERS:
            observer = OTHER
        self._observers.add(observer)
        self._failures.cell(observer).value += 1

    def auth_failed(self) -> None:
        """Count a refused token on a route that makes no record; where there is one, `observe` counts it."""
        self._auth.value += 1

    def exposition(self) -> tuple[bytes, str]:
        """Return what Prometheus scrapes, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def snapshot(self) -> dict[str, Any]:
        """Return the counts since the start, for people."""
        ends = self._requests.cells
        models: dict[str, dict[str, int]] = {}
        for (model, direction), cell in self._tokens.cells.items():
            models.setdefault(model, {})[direction] = cell.value
        routes: dict[str, dict[str, int]] = {}
        for (surface, lane), cell in self._routes.cells.items():
            routes.setdefault(surface, {})[lane] = cell.value
        return {
            "uptime": round(self._clock() - self._began, 3),
            "requests": {
                "total": sum(cell.value for cell in ends.values()),
                "by_outcome": _sums(ends, 1),
                "by_surface": _sums(ends, 0),
                "streams_open": self._watched.streams(),
                "auth_failures": self._auth.value,
            },
            "tokens": _sums(self._tokens.cells, 1),
            "models": {
                name: tokens for name, tokens in sorted(models.items()) if name != OTHER or any(tokens.values())
            },
            "routes": {surface: dict(sorted(lanes.items())) for surface, lanes in sorted(routes.items())},
            "notes": _sums(self._notes.cells, 2),
        }


_Kind = tuple[str, str, int, bool, str, str]


@dataclass(slots=True)
class _Cells:
    """Where exchanges that are alike are counted."""

    surface: str
    end: Count
    duration: Spread
    first: Spread
    route: Count | None
    prompt: Count
    completion: Count
    cached: Count


class _Watched(Collector):
    """Gauges that are read, not written: whoever owns the state is asked at each scrape."""

    def __init__(self, models: Collection[str]) -> None:
        self.models = models
        self.states: States = dict
        self.replicas: Replicas = dict
        self.depth: Reading = lambda: 0
        self.streams: Reading = lambda: 0

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return nothing to check at registration."""
        return ()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Read everything once."""
        states = self.states()
        servers = GaugeMetricFamily("deck_server_state", "1 for the state a server is in.", labels=["model", "state"])
        for model in self.models:
            current = states.get(model, ServerState.STOPPED)
            for state in ServerState:
                servers.add_metric([model, state.value], float(state is current))
        yield servers
        yield from self._of_replicas()
        yield GaugeMetricFamily("deck_queue_depth", "Exchanges that wait for a slot.", value=self.depth())
        yield GaugeMetricFamily("deck_streams_open", "Streams being answered.", value=self.streams())

    def _of_replicas(self) -> Iterable[GaugeMetricFamily]:
        labels = ["model", "replica"]
        states = GaugeMetricFamily(
            "deck_replica_state", "1 for the state one of several servers is in.", labels=[*labels, "state"]
        )
        running = GaugeMetricFamily("deck_replica_running", "Exchanges on one of several servers.", labels=labels)
        for model, replicas in self.replicas().items():
            for replica in replicas:
                running.add_metric([model, replica.url], float(replica.running))
                for state in ReplicaState:
                    states.add_metric([model, replica.url, state.value], float(state is replica.state))
        yield states
        yield running


def _sums(cells: Mapping[tuple[str, ...], Count], place: int) -> dict[str, int]:
    """Return the sums by the label at `place`."""
    sums: dict[str, int] = {}
    for labels, cell in cells.items():
        sums[labels[place]] = sums.get(labels[place], 0) + cell.value
    return dict(sorted(sums.items()))
