#!/usr/bin/env python3
"""Markdown tables from bench.py's results: medians over the rounds, ratios as medians of each round's ratio.

report.py results.jsonl [--gateway deck] [--max-foreign 0.5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenarios import SCENARIOS

Row = Mapping[str, Any]
_FAULTS = ("errors", "lost", "dup", "no_done", "hung")
_COLUMNS = {
    "buffered": {
        "rps": "req/s",
        "p50_us": "p50 µs",
        "p99_us": "p99 µs",
        "+p50_us": "added p50",
        "cpu_per_1k": "CPU s/1k",
    },
    "paced": {
        "chunks_per_s": "chunks/s",
        "ttft_p50_us": "TTFT p50 µs",
        "+ttft_p50_us": "added TTFT",
        "+transit_p50_us": "added transit",
        "transit_p99_us": "transit p99",
        "cpu_per_1m": "CPU s/1M chunks",
    },
    "flooded": {
        "chunks_per_s": "chunks/s",
        "events_per_read": "events/read",
        "ttft_p50_us": "TTFT p50 µs",
        "cpu_per_1m": "CPU s/1M chunks",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A bound on a figure; with `peer`, on its ratio to that peer's figure of the same round.

    `metric` beginning with + is what the gateway adds to "direct".
    """

    name: str
    scenario: str
    metric: str
    limit: float
    at_least: bool = False
    peer: str | None = None
    scale: float = 1.0
    unit: str = "x"

    def verdict(self, measured: float | None) -> str:
        """Return whether the measured figure keeps the bound."""
        if measured is None:
            return "not measured"
        return "yes" if (measured >= self.limit if self.at_least else measured <= self.limit) else "no"


TARGETS = (
    Target(
        name="requests/s, 16 clients, 1 kB", scenario="b16", metric="rps", limit=0.5, at_least=True, peer="go-proxy"
    ),
    Target(name="requests/s, 16 clients, 1 kB", scenario="b16", metric="rps", limit=60, at_least=True, peer="litellm"),
    Target(name="added p50, 1 client, 1 kB", scenario="b1", metric="+p50_us", limit=1.6, peer="go-proxy"),
    Target(name="added p50, 1 client, agent's body", scenario="a1", metric="+p50_us", limit=3, scale=1e-3, unit=" ms"),
    Target(name="TTFT added, 64 streams", scenario="s64", metric="+ttft_p50_us", limit=1.5, peer="go-proxy"),
    Target(name="CPU per chunk, 64 streams at 50/s", scenario="l64", metric="cpu_per_1m", limit=1.5, peer="go-proxy"),
    Target(
        name="chunks/s flooded, 64 streams", scenario="f64", metric="chunks_per_s", limit=60_000, at_least=True, unit=""
    ),
    Target(name="PSS at 256 streams", scenario="s256", metric="pss_mb", limit=80, unit=" MB"),
)


class Results:
    """All rows of some result files, by scenario, gateway and round."""

    def __init__(self, files: Iterable[Path], max_foreign: float) -> None:
        self.rows: dict[tuple[str, str], dict[tuple[int, int], Row]] = {}
        for number, file in enumerate(files):
            for line in file.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                if row.get("foreign", 0) <= max_foreign:
                    self.rows.setdefault((row["scen"], row["gw"]), {})[number, row["round"]] = row
        self.scenarios = list(dict.fromkeys(scenario for scenario, _ in self.rows))
        self.gateways = list(dict.fromkeys(gateway for _, gateway in self.rows))

    def median(self, scenario: str, gateway: str, metric: str) -> float | None:
        """Return a figure's median over the rounds."""
        return _median(self._values(scenario, gateway, metric).values())

    def ratio(self, scenario: str, gateway: str, peer: str, metric: str) -> float | None:
        """Return the median of the rounds' ratios to a peer."""
        own, other = self._values(scenario, gateway, metric), self._values(scenario, peer, metric)
        return _median(own[key] / other[key] for key in own if other.get(key))

    def faults(self, scenario: str, gateway: str) -> str:
        """Return the sums of what went wrong, as errors/lost/doubled/without end/hung."""
        rows = self.rows.get((scenario, gateway), {}).values()
        return "/".join(str(sum(row.get(name, 0) for row in rows)) for name in _FAULTS)

    def _values(self, scenario: str, gateway: str, metric: str) -> dict[tuple[int, int], float]:
        found = self.rows.get((scenario, gateway), {})
        if not metric.startswith("+"):
            return {key: row[metric] for key, row in found.items() if row.get(metric) is not None}
        name = metric[1:]
        direct = self.rows.get((scenario, "direct"), {})
        return {key: row[name] - direct[key][name] for key, row in found.items() if name in row and key in direct}


def main() -> int:
    """Print every table and the targets; return 1 if anything was lost, doubled, hung or refused."""
    parser = argparse.ArgumentParser(description="Tables from results of bench.py.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--gateway", default="deck", help="whose targets are judged (default deck)")
    parser.add_argument("--max-foreign", type=float, default=9, help="leave out runs that were disturbed more")
    arguments = parser.parse_args()
    results = Results(arguments.files, arguments.max_foreign)
    for scenario in results.scenarios:
        print(f"\n### {scenario}: `{SCENARIOS[scenario].load}`\n")
        _print_table(_scenario_table(results, scenario))
    print("\n### targets\n")
    _print_table([["figure", "measured", "target", "met"], *_judged(results, arguments.gateway)])
    faults = {name: results.faults(name, arguments.gateway) for name in results.scenarios}
    bad = {name: sums for name, sums in faults.items() if sums.strip("0/")}
    print(f"\nerrors/lost/doubled/without end/hung: {bad or 'none'}")
    return 1 if bad else 0


def _scenario_table(results: Results, scenario: str) -> list[list[str]]:
    kind = {"s": "paced", "l": "paced", "f": "flooded"}.get(scenario[0], "buffered")
    columns = _COLUMNS[kind]
    peers = [name for name in results.gateways if name not in ("direct", "deck")]
    metric = "cpu_per_1m" if kind == "paced" else "chunks_per_s" if kind == "flooded" else "rps"
    head = ["gateway", *columns.values(), *(f"{metric} / {peer}" for peer in peers)]
    table = [[*head, "busy", "PSS MB", "faults", "foreign"]]
    for gateway in results.gateways:
        if (scenario, gateway) not in results.rows:
            continue
        shown: list[float | None] = [results.median(scenario, gateway, name) for name in columns]
        shown += [results.ratio(scenario, gateway, peer, metric) for peer in peers]
        shown += [results.median(scenario, gateway, name) for name in ("gw_util", "pss_mb")]
        foreign = results.median(scenario, gateway, "foreign")
        table.append([gateway, *map(_shown, shown), results.faults(scenario, gateway), _shown(foreign)])
    return table


def _judged(results: Results, gateway: str) -> list[list[str]]:
    judged = []
    for target in TARGETS:
        if target.peer is None:
            found = results.median(target.scenario, gateway, target.metric)
            measured = None if found is None else found * target.scale
        else:
            measured = results.ratio(target.scenario, gateway, target.peer, target.metric)
        against = f" {target.peer}" if target.peer else ""
        sign = "≥" if target.at_least else "≤"
        bound = f"{sign} {_shown(target.limit)}{target.unit}{against}"
        judged.append(
            [f"{target.name} ({target.scenario})", f"{_shown(measured)}{target.unit}", bound, target.verdict(measured)]
        )
    return judged


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None


def _shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def _print_table(rows: list[list[str]]) -> None:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    for number, row in enumerate(rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")


if __name__ == "__main__":
    sys.exit(main())
