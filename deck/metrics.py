"""Prometheus metrics with bounded labels; scraping reads, and never loads a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from deck import __version__
from deck.contracts import ExchangeRecord, ServerState
from deck.scheduler.lanes import Lane

_DURATIONS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_OTHER = "other"


class _States(Collector):
    """Reads server states and the queue at scrape time."""

    def __init__(self) -> None:
        self.states: Callable[[], Mapping[str, ServerState]] = dict
        self.depth: Callable[[], int] = int

    def collect(self) -> Iterable[Metric]:
        state = GaugeMetricFamily("deck_server_state", "1 for the state a server is in", labels=["model", "state"])
        for model, current in self.states().items():
            for each in ServerState:
                state.add_metric([model, each.value], float(each is current))
        yield state
        yield GaugeMetricFamily("deck_queue_depth", "Exchanges that wait for a model", value=self.depth())


class Metrics:
    """Counts exchanges; an observer.

    Args:
        models: the profiles; any other name counts as `other`.
        surfaces: their names.
        known_fields: the fields of the tables; any other name counts as `other`.
    """

    def __init__(self, *, models: Iterable[str], surfaces: Iterable[str], known_fields: frozenset[str]) -> None:
        self._models = frozenset(models)
        self._fields = known_fields
        self._began = time.time()
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "deck_requests_total", "Exchanges", ["surface", "outcome", "status", "stream"], registry=registry
        )
        self._duration = Histogram(
            "deck_request_duration_seconds", "First byte to last", ["surface"], buckets=_DURATIONS, registry=registry
        )
        self._first = Histogram(
            "deck_time_to_first_token_seconds",
            "First byte to first token",
            ["surface"],
            buckets=_DURATIONS,
            registry=registry,
        )
        self._queued = Histogram(
            "deck_queue_seconds", "Wait for a slot, load included", ["surface"], buckets=_DURATIONS, registry=registry
        )
        self._tokens = Counter("deck_tokens_total", "Tokens", ["model", "direction"], registry=registry)
        self._load = Histogram("deck_load_seconds", "Start to ready", ["model"], buckets=_DURATIONS, registry=registry)
        self._notes = Counter(
            "deck_request_notes_total", "What was ignored or changed", ["surface", "kind", "field"], registry=registry
        )
        self._routes = Counter("deck_route_requests_total", "Exchanges by lane", ["surface", "lane"], registry=registry)
        self._failures = Counter(
            "deck_observer_failures_total", "Observers that failed", ["observer"], registry=registry
        )
        build = Gauge("deck_build_info", "Always 1", ["version"], registry=registry)
        build.labels(__version__).set(1)
        self._states = _States()
        registry.register(self._states)
        for surface in surfaces:
            for lane in Lane:
                self._routes.labels(surface, lane.value)
        self._children: dict[tuple[str, ...], Any] = {}
        self._totals: dict[str, int] = {"requests": 0, "errors": 0, "prompt_tokens": 0, "completion_tokens": 0}
        self._by_model: dict[str, dict[str, int]] = {}
        self._by_lane: dict[str, dict[str, int]] = {surface: {lane.value: 0 for lane in Lane} for surface in surfaces}

    def watch(self, states: Callable[[], Mapping[str, ServerState]], depth: Callable[[], int]) -> None:
        """Read server states and queue depth from these at scrape time."""
        self._states.states, self._states.depth = states, depth

    def _child(self, metric: Any, *labels: str) -> Any:
        key = (metric._name, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return child

    def observe(self, record: ExchangeRecord) -> None:
        """Count an exchange."""
        surface, child = record.surface, self._child
        stream = "true" if record.stream else "false"
        child(self._requests, surface, record.outcome, str(record.status), stream).inc()
        child(self._duration, surface).observe(record.duration)
        child(self._queued, surface).observe(record.queued)
        child(self._routes, surface, record.lane).inc()
        if record.first_token is not None:
            child(self._first, surface).observe(record.first_token)
        model = record.model if record.model in self._models else _OTHER
        counts = (
            ("prompt", record.prompt_tokens),
            ("completion", record.completion_tokens),
            ("cached", record.cached_tokens),
        )
        for direction, count in counts:
            if count:
                child(self._tokens, model, direction).inc(count)
        for kind, field in record.notes:
            child(self._notes, surface, kind, field if field in self._fields else _OTHER).inc()
        self._sum(record, model)

    def _sum(self, record: ExchangeRecord, model: str) -> None:
        mine = self._by_model.setdefault(model, dict.fromkeys(self._totals, 0))
        for sums in (self._totals, mine):
            sums["requests"] += 1
            sums["errors"] += record.status >= 400
            sums["prompt_tokens"] += record.prompt_tokens or 0
            sums["completion_tokens"] += record.completion_tokens or 0
        lanes = self._by_lane.setdefault(record.surface, {lane.value: 0 for lane in Lane})
        lanes[record.lane] += 1

    def loaded(self, model: str, seconds: float) -> None:
        """Note how long a server took to become ready."""
        self._load.labels(model if model in self._models else _OTHER).observe(seconds)

    def observer_failed(self, observer: str) -> None:
        """Count an observer that failed."""
        self._failures.labels(observer).inc()

    def exposition(self) -> tuple[bytes, str]:
        """Return the text for Prometheus and its media type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def snapshot(self) -> dict[str, Any]:
        """Return the sums for people."""
        return {
            "uptime_seconds": round(time.time() - self._began),
            "totals": dict(self._totals),
            "models": {name: dict(sums) for name, sums in self._by_model.items()},
            "routes": {name: dict(lanes) for name, lanes in self._by_lane.items()},
        }
