"""What Deck counts: Prometheus metrics, and the same numbers for `GET /v1/stats`.

Knows records and states. Does not know how exchanges come about. Every label comes from a closed set, the rest is
`other`. Observing an exchange is on the hot path: labelled children are looked up once and kept.
"""

from __future__ import annotations

import platform
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from deck import __version__
from deck.contracts import ExchangeRecord, ServerState
from deck.errors import ErrorKind
from deck.kit.parts import RESCUES
from deck.normalize.report import NoteKind
from deck.scheduler.lanes import Lane

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

States = Callable[[], Mapping[str, ServerState]]
Reading = Callable[[], int]


class Metrics:
    """All metrics of one Deck, in a registry of their own; an observer.

    Args:
        models: ids of the catalog.
        surfaces: names of the surfaces.
        known_fields: names that a note's `field` may have.
        clock: monotonic.
    """

    def __init__(
        self,
        models: Iterable[str] = (),
        surfaces: Iterable[str] = (),
        known_fields: frozenset[str] = frozenset(),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.known_fields = known_fields
        self._models = frozenset(models)
        self._surfaces = frozenset(surfaces)
        self._clock = clock
        self._began = clock()
        self._registry = CollectorRegistry()
        self._watched = _Watched(sorted(self._models))
        self._registry.register(self._watched)
        self._declare()
        self._ends: dict[tuple[str, str, int, bool], Counter] = {}
        self._notes_of: dict[tuple[str, str, str], Counter] = {}
        self._tokens_of = {model: self._directions(model) for model in (*self._models, OTHER)}
        self._times_of = {surface: self._times(surface) for surface in (*self._surfaces, OTHER)}
        # Every cell exists from the start: a lane that was never taken reads 0, not nothing.
        self._routes_of = {
            (surface, lane): self._routes.labels(surface, lane) for surface in self._surfaces for lane in _LANES
        }
        self._observers: set[str] = set()

    def _declare(self) -> None:
        registry = self._registry
        labels = ["surface", "outcome", "status", "stream"]
        self._requests = Counter("deck_requests", "Exchanges that ended.", labels, registry=registry)
        self._duration = _histogram("deck_request_duration_seconds", "From first byte to last.", _DURATION, registry)
        self._first = _histogram("deck_time_to_first_token_seconds", "Until the answer began.", _FIRST_TOKEN, registry)
        self._tokens = Counter("deck_tokens", "Tokens, as measured.", ["model", "direction"], registry=registry)
        self._queue = Histogram("deck_queue_seconds", "Waits for a slot.", buckets=_QUEUE, registry=registry)
        self._load = Histogram("deck_load_seconds", "Loads of a model.", ["model"], buckets=_LOAD, registry=registry)
        self._rescues = Counter(
            "deck_rescues", "Calls and thoughts found in a model's text.", ["model", "what"], registry=registry
        )
        for model in (*self._models, OTHER):
            for what in RESCUES:
                self._rescues.labels(model, what)
        labels = ["surface", "kind", "field"]
        self._notes = Counter("deck_request_notes", "Fields ignored or changed.", labels, registry=registry)
        self._routes = Counter("deck_route_requests", "Exchanges by lane.", ["surface", "lane"], registry=registry)
        self._failures = Counter("deck_observer_failures", "Observers failed.", ["observer"], registry=registry)
        self._auth = Counter("deck_auth_failures", "Requests without a valid token.", registry=registry)
        build = Gauge("deck_build_info", "What runs.", ["version", "python"], registry=registry)
        build.labels(__version__, platform.python_version()).set(1)

    def _directions(self, model: str) -> tuple[Counter, Counter, Counter]:
        of = self._tokens.labels
        return of(model, "prompt"), of(model, "completion"), of(model, "cached")

    def _times(self, surface: str) -> tuple[Histogram, Histogram]:
        return self._duration.labels(surface), self._first.labels(surface)

    def watch(self, states: States, depth: Reading, streams: Reading = lambda: 0) -> None:
        """Say where to read, at each scrape, the servers' states, the queue's depth and how many streams are open."""
        self._watched.states, self._watched.depth, self._watched.streams = states, depth, streams

    def observe(self, record: ExchangeRecord) -> None:
        """Count an exchange that has ended."""
        surface = record.surface if record.surface in self._surfaces else OTHER
        key = (surface, record.outcome, record.status, record.stream)
        (self._ends.get(key) or self._end(key)).inc()
        duration, first = self._times_of[surface]
        duration.observe(record.duration)
        if record.first_token is not None:
            first.observe(record.first_token)
        if record.model:
            self._queue.observe(record.queued)
        route = self._routes_of.get((surface, record.lane))
        if route is not None:
            route.inc()
        self._count_tokens(record)
        for kind, field in record.notes:
            note = (surface, kind, field)
            (self._notes_of.get(note) or self._note(note)).inc()
            if field in RESCUES:
                self._rescues.labels(record.model if record.model in self._models else OTHER, field).inc()
        if record.outcome == ErrorKind.AUTHENTICATION.label:
            self._auth.inc()

    def _count_tokens(self, record: ExchangeRecord) -> None:
        prompt, completion, cached = self._tokens_of.get(record.model) or self._tokens_of[OTHER]
        if record.prompt_tokens:
            prompt.inc(record.prompt_tokens)
        if record.completion_tokens:
            completion.inc(record.completion_tokens)
        if record.cached_tokens:
            cached.inc(record.cached_tokens)

    def _end(self, key: tuple[str, str, int, bool]) -> Counter:
        surface, outcome, status, stream = key
        outcome = outcome if outcome in _OUTCOMES else OTHER
        child = self._requests.labels(surface, outcome, _STATUSES.get(status, OTHER), "true" if stream else "false")
        if outcome is not OTHER and status in _STATUSES:
            self._ends[key] = child
        return child

    def _note(self, key: tuple[str, str, str]) -> Counter:
        surface, kind, field = key
        is_known = kind in _NOTE_KINDS and field in self.known_fields
        child = self._notes.labels(surface, kind if kind in _NOTE_KINDS else OTHER, field if is_known else OTHER)
        if is_known:
            self._notes_of[key] = child
        return child

    def loaded(self, model: str, seconds: float) -> None:
        """Count a model that became ready."""
        self._load.labels(model if model in self._models else OTHER).observe(seconds)

    def observer_failed(self, observer: str) -> None:
        """Count an observer that raised."""
        if observer not in self._observers and len(self._observers) >= _OBSERVERS:
            observer = OTHER
        self._observers.add(observer)
        self._failures.labels(observer).inc()

    def auth_failed(self) -> None:
        """Count a refused token on a route that makes no record; where there is one, `observe` counts it."""
        self._auth.inc()

    def exposition(self) -> tuple[bytes, str]:
        """Return what Prometheus scrapes, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def snapshot(self) -> dict[str, Any]:
        """Return the counts since the start, for people."""
        cells = self._cells()
        ends = cells["deck_requests_total"]
        models: dict[str, dict[str, int]] = {}
        for labels, value in cells["deck_tokens_total"]:
            models.setdefault(labels["model"], {})[labels["direction"]] = value
        routes: dict[str, dict[str, int]] = {}
        for labels, value in cells["deck_route_requests_total"]:
            routes.setdefault(labels["surface"], {})[labels["lane"]] = value
        return {
            "uptime": round(self._clock() - self._began, 3),
            "requests": {
                "total": sum(value for _, value in ends),
                "by_outcome": _sums(ends, "outcome"),
                "by_surface": _sums(ends, "surface"),
                "streams_open": self._watched.streams(),
                "auth_failures": cells["deck_auth_failures_total"][0][1],
            },
            "tokens": _sums(cells["deck_tokens_total"], "direction"),
            "models": {
                name: tokens for name, tokens in sorted(models.items()) if name != OTHER or any(tokens.values())
            },
            "routes": {surface: dict(sorted(lanes.items())) for surface, lanes in sorted(routes.items())},
            "notes": _sums(cells["deck_request_notes_total"], "field"),
        }

    def _cells(self) -> Mapping[str, list[tuple[Mapping[str, str], int]]]:
        """Return every counter by its sample's name."""
        cells: defaultdict[str, list[tuple[Mapping[str, str], int]]] = defaultdict(list)
        for family in self._registry.collect():
            if family.type == "counter":
                for sample in family.samples:
                    cells[sample.name].append((sample.labels, int(sample.value)))
        return cells


class _Watched(Collector):
    """Gauges that are read, not written: whoever owns the state is asked at each scrape."""

    def __init__(self, models: Collection[str]) -> None:
        self._models = models
        self.states: States = dict
        self.depth: Reading = lambda: 0
        self.streams: Reading = lambda: 0

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return nothing to check at registration."""
        return ()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Read everything once."""
        states = self.states()
        servers = GaugeMetricFamily("deck_server_state", "1 for the state a server is in.", labels=["model", "state"])
        for model in self._models:
            current = states.get(model, ServerState.STOPPED)
            for state in ServerState:
                servers.add_metric([model, state.value], float(state is current))
        yield servers
        yield GaugeMetricFamily("deck_queue_depth", "Exchanges that wait for a slot.", value=self.depth())
        yield GaugeMetricFamily("deck_streams_open", "Streams being answered.", value=self.streams())


def _histogram(name: str, documentation: str, buckets: tuple[float, ...], registry: CollectorRegistry) -> Histogram:
    return Histogram(name, documentation, ["surface"], buckets=buckets, registry=registry)


def _sums(cells: Iterable[tuple[Mapping[str, str], int]], label: str) -> dict[str, int]:
    sums: dict[str, int] = {}
    for labels, value in cells:
        sums[labels[label]] = sums.get(labels[label], 0) + value
    return dict(sorted(sums.items()))
