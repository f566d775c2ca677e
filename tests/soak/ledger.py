"""What every client saw, request by request, and whether Deck's log and counters say the same."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from soak.talk import Got
from soak.verdict import Verdict

_SAMPLE = re.compile(r"^deck_requests_total\{(.*)\} ([0-9.e+]+)$")
_PAIR = re.compile(r'(\w+)="([^"]*)"')
_PATHS = re.compile(r"(?<!\S)/\S+")
_NUMBERS = re.compile(r"\d[\d.]*")
_NAMES = re.compile(r"'[^']*'")
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One request of a client."""

    wire: str
    model: str
    streamed: bool
    deed: str
    verdict: Verdict
    got: Got


@dataclass(frozen=True, slots=True)
class Line:
    """What Deck's log says of one exchange; times in seconds."""

    surface: str
    outcome: str
    status: str
    stream: str
    queued: float


@dataclass(slots=True)
class Ledger:
    """All requests by the id that the client gave them."""

    entries: dict[str, Entry] = field(default_factory=dict)
    running: int = 0

    def outcomes(self) -> Counter[tuple[str, str]]:
        """Return how many requests ended how, by wire."""
        return Counter((entry.wire, entry.verdict.outcome) for entry in self.entries.values())

    def faults(self) -> list[str]:
        """Return what is wrong with what clients got."""
        return [
            f"{name} {entry.wire} {entry.model} {entry.deed!r}: {entry.verdict.why}"
            for name, entry in self.entries.items()
            if entry.verdict.outcome == "fault"
        ]

    def reasons(self) -> Counter[str]:
        """Return the errors by status and reason, without what differs from one to the next."""
        found: Counter[str] = Counter()
        for entry in self.entries.values():
            if entry.verdict.outcome in ("error", "broken"):
                why = _PATHS.sub("PATH", entry.verdict.why.split("\n")[0])
                why = _NAMES.sub("X", _NUMBERS.sub("N", why))
                status = "in the stream" if entry.verdict.outcome == "broken" else str(entry.verdict.status)
                found[f"{status}: {why[:110]}"] += 1
        return found


def lines(log: Path) -> dict[str, Line]:
    """Read Deck's lines of exchanges."""
    found: dict[str, Line] = {}
    for text in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if " event=exchange " not in text:
            continue
        pairs = dict(part.partition("=")[::2] for part in shlex.split(text))
        assert pairs["id"] not in found, f"two lines for {pairs['id']}"
        line = Line(pairs["surface"], pairs["outcome"], pairs["status"], pairs["stream"], float(pairs["queued"]))
        found[pairs["id"]] = line
    return found


def against_log(ledger: Ledger, log: Mapping[str, Line]) -> list[str]:
    """Return where a client saw something else than Deck's log says."""
    wrong = []
    for name, entry in ledger.entries.items():
        line = log.get(name)
        if line is None:
            if entry.verdict.outcome != "left":
                wrong.append(f"{name}: Deck's log has no line of it")
        elif not _agree(entry.verdict, line):
            wrong.append(f"{name}: the client saw {entry.verdict}, the log says {line}")
        elif line.surface != entry.wire:
            wrong.append(f"{name}: sent to {entry.wire}, logged as {line.surface}")
    strange = set(log) - set(ledger.entries)
    return wrong + [f"{name}: in the log, sent by nobody" for name in sorted(strange)]


def _agree(verdict: Verdict, line: Line) -> bool:
    match verdict.outcome:
        case "answer":
            return line.outcome == "ok" and line.status == "200"
        case "error":
            return line.outcome not in ("ok", "client_gone") and line.status == str(verdict.status)
        case "broken":
            return line.outcome not in ("ok", "client_gone")
        case _:
            return True


def against_metrics(log: Mapping[str, Line], exposition: str) -> list[str]:
    """Return which counters are not the sums of what was logged."""
    counted: Counter[tuple[str, ...]] = Counter()
    for text in exposition.splitlines():
        match = _SAMPLE.match(text)
        if match is not None:
            labels = dict(_PAIR.findall(match[1]))
            counted[labels["surface"], labels["outcome"], labels["status"], labels["stream"]] += int(float(match[2]))
    logged = Counter((line.surface, line.outcome, line.status, line.stream) for line in log.values())
    return [
        f"deck_requests_total{key}: {counted[key]}, logged {logged[key]}"
        for key in sorted(set(counted) | set(logged))
        if counted[key] != logged[key]
    ]


def gauge(exposition: str, name: str) -> float:
    """Return a metric without labels."""
    found = re.search(rf"^{name} ([0-9.e+]+)$", exposition, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def shown(items: list[str]) -> str:
    """Return the first of many findings as a list in Markdown."""
    more = [f"- … and {len(items) - _SHOWN} more"] if len(items) > _SHOWN else []
    return "\n".join([*(f"- {item}" for item in items[:_SHOWN]), *more])


def body(value: object) -> bytes:
    """Return a request's body."""
    return json.dumps(value).encode()
