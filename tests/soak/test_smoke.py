"""The soak for a few seconds, so that it works when it is wanted; and that its checks can fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak import crowd, run
from soak.house import Levels
from soak.ledger import Entry, Ledger, Line, against_log, against_metrics
from soak.talk import Got
from soak.verdict import Verdict, judge

pytestmark = pytest.mark.slow

ANSWER = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}]}'
ENVELOPE = b'{"error":{"message":"why","type":"t","param":null,"code":null}}'
KIND = {"content-type": "application/json", "x-request-id": "r"}


def test_a_short_soak_holds(tmp_path: Path) -> None:
    found = run.run(tmp_path, 6.0, seed=3)
    assert {what: faults for what, faults in found.faults.items() if faults} == {}
    assert len(found.ledger.entries) > 20
    assert sum(found.trouble.done.values()) >= 3
    assert "| chat |" in found.markdown()


def test_a_small_crowd_is_served(tmp_path: Path) -> None:
    found = crowd.run(tmp_path, 4.0, 30, 1)
    assert found.faults == []
    assert min(len(waits) for waits in found.waits.values()) > 3
    assert "lost: 0" in found.markdown()


@pytest.mark.parametrize(
    ("got", "streamed", "outcome"),
    [
        (Got(200, KIND, ANSWER, True), False, "answer"),
        (Got(503, KIND, ENVELOPE, True), False, "error"),
        (Got(200, KIND, ANSWER[:-9], False), False, "fault"),
        (Got(200, KIND, ANSWER, True, fault="reset"), False, "fault"),
        (Got(None, {}, b"", False), False, "fault"),
        (Got(503, KIND, b"{}", True), False, "fault"),
        (Got(503, KIND, ENVELOPE.replace(b"why", b""), True), False, "fault"),
        (Got(429, KIND, ENVELOPE, True), False, "fault"),
        (Got(503, {}, ENVELOPE, True), False, "fault"),
        (Got(200, {"content-type": "text/event-stream"}, b"", True), True, "fault"),
        (Got(200, {"content-type": "text/event-stream"}, b"data: [DONE]\n\n", True), True, "fault"),
        (Got(200, KIND, b"", False, left=True), True, "left"),
    ],
)
def test_what_an_answer_was_is_judged(got: Got, streamed: bool, outcome: str) -> None:
    assert judge("chat", streamed, got).outcome == outcome


def entry(outcome: str, status: int | None = 200) -> Entry:
    return Entry("chat", "m", False, "words 1", Verdict(outcome, status=status), Got())


@pytest.mark.parametrize(
    ("seen", "logged", "agree"),
    [
        (entry("answer"), ("ok", "200"), True),
        (entry("answer"), ("upstream", "502"), False),
        (entry("error", 503), ("unavailable", "503"), True),
        (entry("error", 503), ("unavailable", "502"), False),
        (entry("broken"), ("ok", "200"), False),
        (entry("left", None), ("client_gone", "499"), True),
        (entry("answer"), None, False),
        (entry("left", None), None, True),
    ],
)
def test_what_clients_saw_is_held_against_the_log(seen: Entry, logged: tuple[str, str] | None, agree: bool) -> None:
    log = {"a": Line("chat", *logged, "false", 0.0)} if logged else {}
    assert (against_log(Ledger({"a": seen}), log) == []) is agree


def test_a_level_that_rises_is_a_fault() -> None:
    level, leak = Levels(), Levels()
    for second in range(90):
        level.add(MiB=80 + second % 7, descriptors=40 + second % 9, threads=2, tasks=20 + second % 5)
        leak.add(MiB=80 + second, descriptors=40 + second, threads=2 + second // 8, tasks=20 + second)
    assert level.faults() == []
    assert [fault.split(":")[0] for fault in leak.faults()] == ["MiB", "descriptors", "threads", "tasks"]


def test_counters_are_held_against_the_log() -> None:
    log = {"a": Line("chat", "ok", "200", "false", 0.0)}
    counter = 'deck_requests_total{{outcome="ok",status="200",stream="false",surface="chat"}} {}\n'
    assert against_metrics(log, counter.format("1.0")) == []
    assert against_metrics(log, counter.format("2.0")) != []
    assert against_metrics(log, "") != []
