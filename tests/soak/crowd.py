"""Two hundred clients for three models of which one fits: who is answered, who is refused, who waits how long."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from soak import ledger as books
from soak.house import House, house, resident, scripted
from soak.ledger import Ledger
from soak.mix import Wish, send
from wires import WIRES

MODELS = ("one", "two", "three")
QUEUE_WAIT = 30.0
# Who waits longest may wait so many times as long as the mean of its model, or of all.
_FAIR = 4.0
_PATIENCE = 1.0


@dataclass(slots=True)
class Crowd:
    """What came of the run."""

    clients: int
    seconds: float
    ledger: Ledger
    waits: dict[str, list[float]] = field(default_factory=dict)
    swaps: int = 0
    before: float = 0.0
    after: float = 0.0
    faults: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """Return the report."""
        outcomes = Counter(entry.verdict.outcome for entry in self.ledger.entries.values())
        refused = sum(count for outcome, count in outcomes.items() if outcome not in ("answer", "fault"))
        said = [
            f"{self.clients} clients, {len(MODELS)} models, room for one, {self.seconds:g} s, on all four wires.",
            "",
            f"- requests: {len(self.ledger.entries)}; answered: {outcomes['answer']}; refused with a reason: {refused};"
            f" lost: {outcomes['fault']}",
            f"- loads of a model: {self.swaps}",
            f"- memory of Deck: {self.before:.1f} MiB before, {self.after:.1f} MiB after",
            "",
            "| model | answered | mean wait | longest wait | longest / mean |",
            "|---|---|---|---|---|",
        ]
        for model, waits in self.waits.items():
            middle, longest = mean(waits or [0.0]), max(waits, default=0.0)
            said.append(
                f"| `{model}` | {len(waits)} | {middle:.2f} s | {longest:.2f} s | {longest / max(middle, 0.001):.1f} |"
            )
        said += ["", "| refused | times |", "|---|---|"]
        said += [f"| {why} | {count} |" for why, count in self.ledger.reasons().most_common()]
        said += ["", *([books.shown(self.faults)] if self.faults else ["All checks passed."])]
        return "\n".join(said)


async def crowd(house: House, seconds: float, clients: int, seed: int) -> Crowd:
    """Let them ask for so many seconds, and wait for the last answer."""
    ledger = Ledger()
    end = time.monotonic() + seconds
    found = Crowd(clients, seconds, ledger, before=resident(house.deck.process.pid))

    async def one(dice: random.Random) -> None:
        while time.monotonic() < end:
            known = len(ledger.entries)
            await send(house, ledger, _wish(dice))
            last = list(ledger.entries.values())[known:]
            if any(entry.verdict.outcome == "error" for entry in last):
                await asyncio.sleep(_PATIENCE * dice.random())

    await asyncio.gather(*(one(random.Random(seed + number)) for number in range(clients)))
    return found


def _wish(dice: random.Random) -> Wish:
    wire, model, streamed = dice.choice(sorted(WIRES)), dice.choice(MODELS), dice.random() < 0.5
    said = f"words {dice.randint(1, 8)} pace 5"
    return Wish(wire, model, streamed, said, books.body(WIRES[wire].body(said, streamed, 100) | {"model": model}))


def run(tmp: Path, seconds: float, clients: int, seed: int) -> Crowd:
    """Run it against a Deck of its own."""
    config = f'queue_limit = 150\nqueue_wait = "{QUEUE_WAIT:g}s"\nstop_grace = "1s"\n'
    profiles = {name: scripted(tmp / name, name, parallel=4) for name in MODELS}
    with house(tmp, profiles, config) as running:
        found = asyncio.run(crowd(running, seconds, clients, seed))
        with running.deck.client() as client:
            exposition = client.get("/metrics").text
            state = client.get("/deck/servers").json()["servers"]
        found.after = resident(running.deck.process.pid)
        running.wait_for_log(len(found.ledger.entries))
        log = books.lines(running.deck.log)
        found.swaps = running.deck.logged().count(" is ready after ")
        _check(found, log, exposition)
        if any(item["running"] or item["waiting"] for item in state):
            found.faults.append(f"somebody still runs or waits: {state}")
        if len(running.engines()) > 1:
            found.faults.append(f"more than one server at the end: {running.engines()}")
        if running.deck.stop() != 0:
            found.faults.append("Deck did not stop with status 0")
        found.faults += [f"process {pid} is left" for pid in running.left()]
    return found


def _check(found: Crowd, log: Mapping[str, books.Line], exposition: str) -> None:
    ledger = found.ledger
    found.faults += ledger.faults() + books.against_log(ledger, log) + books.against_metrics(log, exposition)
    for model in MODELS:
        answered = [name for name, entry in ledger.entries.items() if _is_answered(entry, model)]
        found.waits[model] = [log[name].queued for name in answered if name in log]
    everyone = [wait for waits in found.waits.values() for wait in waits]
    for model, waits in found.waits.items():
        if not waits:
            found.faults.append(f"nobody was answered by {model}")
        elif max(waits) > max(_FAIR * max(mean(waits), mean(everyone)), 5.0):
            found.faults.append(f"one waited {max(waits):.1f} s for {model}, the mean is {mean(waits):.1f} s")
    counts = [len(waits) for waits in found.waits.values()]
    if min(counts) * 3 < max(counts):
        found.faults.append(f"the models were not served alike: {counts}")
    if found.after > found.before * 1.25 + 24:
        found.faults.append(f"memory went from {found.before:.0f} to {found.after:.0f} MiB")


def _is_answered(entry: books.Entry, model: str) -> bool:
    return entry.model == model and entry.verdict.outcome == "answer"
