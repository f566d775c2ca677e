#!/usr/bin/env python3
"""Interleaved runs of loadgen through several gateways in front of one fakellm; standard library only.

"direct" (straight to fakellm) is always measured too. Each round measures every scenario, and within a scenario every
gateway one after the other in an order that rotates from round to round, so that ratios are taken between runs seconds
apart. Pinned (the default): fakellm and loadgen share the first CPU, the gateway has the last CPU for itself.

One JSON object a line goes to --out: loadgen's figures, plus
    gw_cpu_s     CPU seconds of the gateway's processes (user and system, all threads)
    cpu_per_1k   the same per 1000 requests; cpu_per_1m: per 1M streamed chunks
    pss_mb       the largest proportional set size seen during the run, summed over its processes
    foreign      CPUs that something else on the machine was using meanwhile (0 = a quiet machine)
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gateways import BUILD, UPSTREAM_PORT, Bench, Gateway, get, read_gateways
from processes import Cpu, cpu, machine_busy, memory
from scenarios import AGENT_FILE, SCENARIOS, Scenario, agent_body

_SAMPLE_INTERVAL = 0.4
_WARM_UP = ("b16", "f16")


def main() -> int:
    """Run the rounds; return the exit status."""
    arguments = _arguments()
    names = [name for name in arguments.scenarios.split(",") if name]
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        print(f"no scenario named {', '.join(unknown)}; known: {', '.join(SCENARIOS)}", file=sys.stderr)
        return 2
    only = arguments.only.split(",") if arguments.only else []
    (BUILD / AGENT_FILE).write_bytes(agent_body("m"))
    with Bench(is_pinned=not arguments.no_pin) as bench, arguments.out.open("a", encoding="utf-8") as out:
        measuring = _Measuring(bench, bench.upstream().pid)
        live = [Gateway(name="direct", port=UPSTREAM_PORT), *_started(bench, read_gateways(arguments.gateways, only))]
        for gateway in live[1:]:
            for name in _WARM_UP:
                if name in (gateway.scenarios or _WARM_UP):
                    measuring.run(gateway, SCENARIOS[name])
        for number in range(arguments.rounds):
            for name in names:
                for gateway in _turn(live, number, name):
                    figures = {"gw": gateway.name, "scen": name, "round": number}
                    figures |= measuring.run(gateway, SCENARIOS[name])
                    out.write(json.dumps(figures) + "\n")
                    out.flush()
            print(f"round {number} done, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure gateways in front of fakellm.")
    parser.add_argument("gateways", type=Path, help="a gateways file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help="names, separated by commas")
    parser.add_argument("--only", help="gateways to measure, separated by commas")
    parser.add_argument("--out", type=Path, default=BUILD / "results.jsonl")
    parser.add_argument("--no-pin", action="store_true", help="let the kernel choose the CPUs")
    return parser.parse_args()


def _started(bench: Bench, gateways: list[Gateway]) -> Iterator[Gateway]:
    installed = [gateway for gateway in gateways if gateway.is_installed]
    for gateway in gateways:
        if gateway not in installed:
            print(f"not installed, left out: {gateway.name}", file=sys.stderr)
    for gateway in installed:
        bench.start(gateway)
    for gateway in installed:
        if bench.await_up(gateway):
            yield gateway
        else:
            print(f"did not start, see {BUILD / gateway.name}.log: {gateway.name}", file=sys.stderr)


def _turn(live: list[Gateway], number: int, scenario: str) -> list[Gateway]:
    """Return who is measured in a scenario, beginning with another one each round."""
    first = number % len(live)
    return [item for item in live[first:] + live[:first] if not item.scenarios or scenario in item.scenarios]


class _Measuring:
    """Takes one measurement after the other."""

    def __init__(self, bench: Bench, upstream: int) -> None:
        self._bench = bench
        self._upstream = upstream

    def run(self, gateway: Gateway, scenario: Scenario) -> dict[str, Any]:
        """Return the figures of one gateway in one scenario."""
        get(UPSTREAM_PORT, f"/_set?{scenario.pace}")
        get(UPSTREAM_PORT, "/_reset")
        pid = gateway.process.pid if gateway.process else None
        began = time.time()
        before = machine_busy(), cpu(self._upstream), _cpu(pid)
        with _PeakMemory(pid) as peak:
            ended = self._bench.run(_loadgen(gateway, scenario))
            own = _cpu(pid).since(before[2])
            seconds = time.time() - began
        upstream = cpu(self._upstream).since(before[1])
        busy = machine_busy() - before[0]
        try:
            figures: dict[str, Any] = json.loads(ended.stdout)
        except ValueError:
            figures = {"errors": -1, "first_error": (ended.stderr or ended.stdout)[:200], "loadgen_cpu_s": 0}
        served = get(UPSTREAM_PORT, "/_stats")
        figures |= {f"up_{name}": served[name] for name in ("requests", "chunks", "conns", "aborted")}
        figures |= {
            "gw_cpu_s": round(own, 4),
            "up_cpu_s": round(upstream, 4),
            "pss_mb": round(peak.megabytes, 1),
            "foreign": round((busy - own - upstream - figures["loadgen_cpu_s"]) / seconds, 2),
            "load": os.getloadavg()[0],
            "t": int(began),
        }
        if pid is not None:
            figures["gw_util"] = round(own / seconds, 2)
            if served["requests"]:
                figures["cpu_per_1k"] = round(own / served["requests"] * 1e3, 4)
            if served["chunks"]:
                figures["cpu_per_1m"] = round(own / served["chunks"] * 1e6, 3)
        return figures


def _loadgen(gateway: Gateway, scenario: Scenario) -> list[str]:
    cmd = [str(BUILD / "loadgen"), "-p", str(gateway.port), "-M", gateway.model, *scenario.load.split()]
    if scenario.has_agent_body:
        cmd += ["-B", str(BUILD / AGENT_FILE)]
    for header in gateway.headers:
        cmd += ["-H", header]
    return cmd


def _cpu(pid: int | None) -> Cpu:
    return cpu(pid) if pid is not None else Cpu()


class _PeakMemory:
    """Samples memory while its context lasts; the largest sample stays."""

    def __init__(self, pid: int | None) -> None:
        self.megabytes = 0.0
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> _PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while self._pid is not None and not self._stop.wait(_SAMPLE_INTERVAL):
            self.megabytes = max(self.megabytes, memory(self._pid))


if __name__ == "__main__":
    sys.exit(main())
