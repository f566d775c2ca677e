"""What is counted, under which labels, and what a scrape shows."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deck import json
from deck.contracts import ExchangeRecord, Observer, Replica, ReplicaState, ServerState
from deck.errors import ErrorKind
from deck.metrics import Metrics
from deck.scheduler.lanes import Lane

RECORD = ExchangeRecord(
    id="req_1",
    surface="chat",
    model="demo",
    principal="laptop",
    outcome="ok",
    status=200,
    stream=True,
    duration=2.0,
    queued=0.02,
    first_token=0.3,
    prompt_tokens=100,
    completion_tokens=20,
    cached_tokens=60,
    finish="stop",
    notes=(("ignored", "metadata"), ("changed", "max_tokens")),
)


class Clock:
    def __init__(self) -> None:
        self.time = 10.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> Metrics:
    return Metrics(
        models=["demo", "big"],
        surfaces=["chat", "messages"],
        known_fields=frozenset({"metadata", "max_tokens"}),
        clock=clock,
    )


def record(**changes: Any) -> ExchangeRecord:
    return dataclasses.replace(RECORD, **changes)


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    content, _ = metrics.exposition()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(content.decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, frozenset(labels.items())))


def test_it_is_an_observer(metrics: Metrics) -> None:
    assert isinstance(metrics, Observer)


def test_an_exchange_is_counted_everywhere(metrics: Metrics) -> None:
    metrics.observe(RECORD)
    metrics.observe(record(stream=False, duration=4.0))
    assert value(metrics, "deck_requests_total", surface="chat", outcome="ok", status="200", stream="true") == 1
    assert value(metrics, "deck_requests_total", surface="chat", outcome="ok", status="200", stream="false") == 1
    assert value(metrics, "deck_request_duration_seconds_sum", surface="chat") == 6
    assert value(metrics, "deck_time_to_first_token_seconds_count", surface="chat") == 2
    assert value(metrics, "deck_queue_seconds_count") == 2
    assert value(metrics, "deck_tokens_total", model="demo", direction="prompt") == 200
    assert value(metrics, "deck_tokens_total", model="demo", direction="completion") == 40
    assert value(metrics, "deck_tokens_total", model="demo", direction="cached") == 120
    assert value(metrics, "deck_request_notes_total", surface="chat", kind="ignored", field="metadata") == 2
    assert value(metrics, "deck_route_requests_total", surface="chat", lane="continuous") == 2


def test_what_was_not_measured_is_not_counted(metrics: Metrics) -> None:
    metrics.observe(record(first_token=None, prompt_tokens=None, completion_tokens=None, cached_tokens=None, model=""))
    assert value(metrics, "deck_time_to_first_token_seconds_count", surface="chat") == 0
    assert value(metrics, "deck_tokens_total", model="other", direction="prompt") == 0
    assert value(metrics, "deck_queue_seconds_count") == 0


def test_all_lanes_of_all_surfaces_are_shown_from_the_start(metrics: Metrics) -> None:
    for surface in ("chat", "messages"):
        for lane in Lane:
            assert value(metrics, "deck_route_requests_total", surface=surface, lane=lane.value) == 0


@pytest.mark.parametrize("kind", ErrorKind)
def test_every_kind_of_error_is_an_outcome(metrics: Metrics, kind: ErrorKind) -> None:
    metrics.observe(record(outcome=kind.label, status=kind.status))
    labels = {"surface": "chat", "outcome": kind.label, "status": str(kind.status), "stream": "true"}
    assert value(metrics, "deck_requests_total", **labels) == 1


def test_labels_stay_in_closed_sets(metrics: Metrics) -> None:
    for number in range(50):
        metrics.observe(
            record(
                surface=f"s{number}",
                model=f"m{number}",
                outcome=f"o{number}",
                status=600 + number,
                lane=f"l{number}",
                notes=[(f"k{number}", f"f{number}"), ("ignored", f"f{number}")],
            )
        )
        metrics.loaded(f"m{number}", 1.0)
    before = len(samples(metrics))
    metrics.observe(record(surface="new", model="new", outcome="new", status=999, notes=[("new", "new")]))
    assert len(samples(metrics)) == before
    labels = {"surface": "other", "outcome": "other", "status": "other", "stream": "true"}
    assert value(metrics, "deck_requests_total", **labels) == 51
    assert value(metrics, "deck_tokens_total", model="other", direction="prompt") == 5100
    assert value(metrics, "deck_request_notes_total", surface="other", kind="ignored", field="other") == 50
    assert value(metrics, "deck_load_seconds_count", model="other") == 50


def test_servers_passed_over_are_counted_by_model(metrics: Metrics) -> None:
    for model, retries in ((RECORD.model, 2), (RECORD.model, 0), (RECORD.model, 1), ("nobody", 4)):
        metrics.observe(record(model=model, retries=retries, replica="http://a:1"))
    assert value(metrics, "deck_replica_retries_total", model=RECORD.model) == 3
    assert value(metrics, "deck_replica_retries_total", model="other") == 4


def test_several_servers_of_a_model_are_read_at_each_scrape(metrics: Metrics) -> None:
    metrics.watch_replicas(lambda: {"demo": [Replica(url="http://a:1", state=ReplicaState.DOWN, running=2)]})
    labels = {"model": "demo", "replica": "http://a:1"}
    assert value(metrics, "deck_replica_running", **labels) == 2
    states = {state: value(metrics, "deck_replica_state", state=state.value, **labels) for state in ReplicaState}
    assert states == {state: float(state is ReplicaState.DOWN) for state in ReplicaState}


def test_failing_observers_are_counted_by_a_bounded_name(metrics: Metrics) -> None:
    for number in range(100):
        metrics.observer_failed(f"O{number}")
    assert value(metrics, "deck_observer_failures_total", observer="O0") == 1
    assert value(metrics, "deck_observer_failures_total", observer="other") == 68


def test_refused_tokens_are_counted_with_and_without_a_record(metrics: Metrics) -> None:
    metrics.observe(record(outcome="authentication", status=401, model=""))
    metrics.auth_failed()
    assert value(metrics, "deck_auth_failures_total") == 2


def test_states_and_depths_are_read_at_each_scrape(metrics: Metrics) -> None:
    states: dict[str, ServerState] = {}
    metrics.watch(lambda: states, lambda: 3, lambda: 2)
    assert value(metrics, "deck_server_state", model="demo", state="stopped") == 1
    states["demo"] = ServerState.READY
    for state in ServerState:
        assert value(metrics, "deck_server_state", model="demo", state=state.value) == (state is ServerState.READY)
        assert value(metrics, "deck_server_state", model="big", state=state.value) == (state is ServerState.STOPPED)
    assert value(metrics, "deck_queue_depth") == 3
    assert value(metrics, "deck_streams_open") == 2


def test_nothing_watched_reads_as_nothing_going_on(metrics: Metrics) -> None:
    assert value(metrics, "deck_queue_depth") == 0
    assert value(metrics, "deck_streams_open") == 0


def test_the_build_is_named(metrics: Metrics) -> None:
    content, kind = metrics.exposition()
    assert b"deck_build_info{" in content
    assert kind.startswith("text/plain; version=")


def test_two_of_them_share_nothing(metrics: Metrics) -> None:
    metrics.observe(RECORD)
    other = Metrics(models=["demo"], surfaces=["chat"])
    assert value(other, "deck_tokens_total", model="demo", direction="prompt") == 0


def test_the_snapshot_tells_the_same_to_people(metrics: Metrics, clock: Clock) -> None:
    metrics.watch(dict, lambda: 0, lambda: 1)
    metrics.observe(RECORD)
    metrics.observe(record(surface="messages", outcome="authentication", status=401, model="", prompt_tokens=None))
    clock.time += 5
    shown = metrics.snapshot()
    assert shown["uptime"] == 5
    assert shown["requests"] == {
        "total": 2,
        "by_outcome": {"authentication": 1, "ok": 1},
        "by_surface": {"chat": 1, "messages": 1},
        "streams_open": 1,
        "auth_failures": 1,
    }
    assert shown["tokens"]["prompt"] == 100
    assert shown["models"]["demo"] == {"prompt": 100, "completion": 20, "cached": 60}
    assert shown["models"]["big"] == {"prompt": 0, "completion": 0, "cached": 0}
    assert shown["routes"]["chat"] == {"continuous": 1, "serial": 0, "static": 0}
    assert shown["notes"] == {"max_tokens": 2, "metadata": 2}
    assert json.loads(json.dumps(shown)) == shown


def test_what_was_found_in_a_models_text_is_counted_by_model(metrics: Metrics) -> None:
    assert value(metrics, "deck_repairs_total", model="demo", what="rescued_call") == 0
    notes = (("changed", "rescued_call"), ("changed", "rescued_call"), ("changed", "leaked_thinking"))
    metrics.observe(record(notes=notes))
    metrics.observe(record(notes=notes, model="unknown"))
    assert value(metrics, "deck_repairs_total", model="demo", what="rescued_call") == 2
    assert value(metrics, "deck_repairs_total", model="demo", what="leaked_thinking") == 1
    assert value(metrics, "deck_repairs_total", model="other", what="rescued_call") == 2
