"""A soak of `deck serve`: mixed clients on four wires while servers die, profiles change and models come and go.

`python -m soak.run --seconds 600 --report FILE`; see `make soak`. Ends with status 1 if any check failed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import platform
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
from e2e.live import until
from soak import crowd as crowds
from soak import ledger as books
from soak.house import House, admin, engine, house, scripted
from soak.ledger import Ledger
from soak.mix import burst, client, wish
from soak.trouble import Trouble

_CONFIG = """
heartbeat = "200ms"
queue_limit = 24
queue_wait = "10s"
stop_grace = "1s"
drain = "5s"

[scheduler]
memory = "3000"
"""
_CLIENTS = 10
_BURST_EVERY = 8.0
_TROUBLE_EVERY = 1.5
# Deck takes so many seconds until it has met everything once.
_WARMED_UP = 60.0
# What an idle Deck may have of tasks: its own, and a few for each server.
_OWN_TASKS, _TASKS_OF_SERVER = 12, 4


@dataclass(slots=True)
class Soak:
    """What came of a run."""

    seconds: float
    ledger: Ledger
    house: House
    trouble: Trouble
    faults: dict[str, list[str]] = field(default_factory=dict)
    at_rest: str = ""

    def markdown(self) -> str:
        """Return the report."""
        outcomes = self.ledger.outcomes()
        kinds = ("answer", "error", "broken", "left", "fault")
        said = [
            f"{self.seconds:g} s, {_CLIENTS} clients and bursts of 40; {len(self.ledger.entries)} requests.",
            "",
            "| wire | answered | error with its status | error in the stream | client left | faults |",
            "|---|---|---|---|---|---|",
        ]
        for wire in sorted({wire for wire, _ in outcomes}):
            said.append(f"| {wire} | " + " | ".join(str(outcomes[wire, kind]) for kind in kinds) + " |")
        said += ["", "| what was done meanwhile | times |", "|---|---|"]
        said += [f"| {what} | {count} |" for what, count in sorted(self.trouble.done.items())]
        said += ["", "| level of Deck's process | first third | last third | most | holds |", "|---|---|---|---|---|"]
        said += [
            f"| {name} | {first:.1f} | {last:.1f} | {most:.1f} | {'yes' if holds else 'NO'} |"
            for name, first, last, most, holds in self.house.levels.rows()
        ]
        said += ["", f"Memory of Deck's process over time, in MiB: {self.house.levels.course()}."]
        said += ["", f"At rest: {self.at_rest}.", "", "| errors, by reason | times |", "|---|---|"]
        said += [f"| {why} | {count} |" for why, count in self.ledger.reasons().most_common(40)]
        said += ["", "| check | |", "|---|---|"]
        said += [
            f"| {what} | {'holds' if not found else f'{len(found)} times not'} |" for what, found in self.faults.items()
        ]
        for what, found in self.faults.items():
            if found:
                said += ["", f"{what}:", "", books.shown(found)]
        return "\n".join(said)


def profiles(tmp: Path) -> tuple[dict[str, str], list[str], list[str]]:
    """Return all profiles, the ids of the scripted ones and of those on the real engine."""
    found = {
        "wide": scripted(tmp / "wide", "wide", parallel=8, stall_timeout="1s"),
        "narrow": scripted(tmp / "narrow", "narrow", parallel=1, stall_timeout="1s"),
        "brief": scripted(tmp / "brief", "brief", "--deaf", parallel=4, stall_timeout="1s", ttl="1s"),
        "slow": scripted(tmp / "slow", "slow", "--unhealthy", "6", parallel=4, stall_timeout="1s"),
        "never": scripted(tmp / "never", "never", "--unhealthy", "999999", load_timeout="500ms"),
    }
    names = ["wide", "narrow", "brief", "slow"] * 4 + ["never"]
    engines = []
    if importlib.util.find_spec("xllamacpp") is not None:
        found |= {"tiny": engine("tiny", parallel=2), "tiny-too": engine("tiny-too")}
        engines = ["tiny", "tiny-too"]
    return found, names, engines


async def soak(running: House, names: list[str], engines: list[str], seconds: float, seed: int) -> Soak:
    """Let all go on for so long, and end in peace."""
    ledger, dice = Ledger(), random.Random(seed)
    trouble = Trouble(running, random.Random(seed + 1))
    end = time.monotonic() + seconds

    def is_over() -> bool:
        return time.monotonic() >= end

    async def sample() -> None:
        async with admin(running.deck) as asking:
            while not is_over():
                running.sample((await asking.get("/v1/stats")).json()["tasks"])
                await asyncio.sleep(min(1.0, seconds / 30))

    async def bursts() -> None:
        while not is_over():
            await asyncio.sleep(min(_BURST_EVERY, seconds / 4))
            one = [dice.choice(names[:4])]
            await burst(running, ledger, partial(wish, dice, one, [], crashes=False))

    work = [client(running, ledger, is_over, lambda: wish(dice, names, engines)) for _ in range(_CLIENTS)]
    await asyncio.gather(*work, bursts(), sample(), trouble.go_on(is_over, min(_TROUBLE_EVERY, seconds / 8)))
    return Soak(seconds, ledger, running, trouble)


def check(found: Soak) -> None:
    """Hold what the clients saw against what Deck says, and stop it."""
    running, ledger = found.house, found.ledger
    with running.deck.client() as asking:
        busy = _settled(asking)
        exposition, stats = asking.get("/metrics").text, asking.get("/v1/stats").json()
    answered = sum(entry.verdict.outcome != "left" for entry in ledger.entries.values())
    running.wait_for_log(answered)
    log = books.lines(running.deck.log)
    servers = len(running.engines())
    found.at_rest = (
        f"{books.gauge(exposition, 'deck_streams_open'):g} streams, {books.gauge(exposition, 'deck_queue_depth'):g} in"
        f" the queue, {stats['tasks']} tasks, {servers} servers"
    )
    most = _OWN_TASKS + _TASKS_OF_SERVER * servers
    found.faults = {
        "every request ends in an answer, or in an error with a reason, in its wire's form": ledger.faults(),
        "Deck's log says of every request what its client saw": books.against_log(ledger, log),
        "the counters of /metrics are the sums of the log": books.against_metrics(log, exposition),
        "operators' routes say what they should": found.trouble.wrong,
        "memory, descriptors, threads and tasks hold their level": [
            f"{name}: {first:.1f}, then {last:.1f}"
            for name, first, last, _, holds in running.levels.rows()
            if not holds
        ],
        "at rest there is nothing left to do": [found.at_rest]
        if stats["tasks"] > most or not found.at_rest.startswith("0 streams, 0 in")
        else [],
        "nobody holds a place or waits once all clients have gone": busy,
        "no more servers than there is room for": [f"{servers} servers"] if servers > 3 else [],
        "Deck's own log has no traceback": [line for line in running.deck.logged().splitlines() if "Traceback" in line],
        "Deck ends with status 0": [] if running.deck.stop() == 0 else ["another status"],
    }
    found.faults["no process is left"] = [str(pid) for pid in running.left()]


def _settled(asking: httpx.Client) -> list[str]:
    """Return who still runs or waits a while after the last client has gone."""
    try:
        until(lambda: not any(item["running"] or item["waiting"] for item in _servers(asking)), 15, "rest")
    except AssertionError:
        return [str(item) for item in _servers(asking) if item["running"] or item["waiting"]]
    return []


def _servers(asking: httpx.Client) -> list[dict[str, int]]:
    found: list[dict[str, int]] = asking.get("/deck/servers").json()["servers"]
    return found


def run(tmp: Path, seconds: float, seed: int) -> Soak:
    """Run the soak against a Deck of its own, and check it."""
    found, names, engines = profiles(tmp)
    with house(tmp, found, _CONFIG) as running:
        result = asyncio.run(soak(running, names, engines, seconds, seed))
        check(result)
    return result


def main() -> int:
    """Run both parts and write the report."""
    parser = argparse.ArgumentParser(prog="python -m soak.run", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of both parts together")
    parser.add_argument("--crowd-seconds", type=float, default=60.0, help="of these, for the two hundred clients")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="a file for the report, beside the standard output")
    parser.add_argument("--keep", type=Path, help="a directory for the state and logs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="deck-soak-") as folder:
        tmp = options.keep or Path(folder)
        crowd_seconds = min(options.crowd_seconds, options.seconds / 2)
        crowd = crowds.run(tmp / "crowd", crowd_seconds, options.clients, options.seed)
        print(f"### Two hundred clients\n\n{crowd.markdown()}\n", flush=True)
        mixed = run(tmp / "mixed", options.seconds - crowd_seconds, options.seed)
        print(f"### Mixed clients\n\n{mixed.markdown()}\n", flush=True)
    about = f"Python {platform.python_version()}, {platform.machine()}, seed {options.seed}"
    print(about)
    if options.report:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        parts = (f"### Two hundred clients\n\n{crowd.markdown()}", f"### Mixed clients\n\n{mixed.markdown()}", about)
        options.report.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return 1 if crowd.faults or any(mixed.faults.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
