"""What it gives that Deck chooses the slot: two agents at once, a title after each turn, on the real engine.

`python tests/bench/affinity.py [--rounds 3]` prints, for 2 and 3 slots and with and without llama-server's prompt cache
in host memory, the prompt tokens that were processed and the time to the first token, with affinity and without.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from e2e.live import LiveDeck, live_deck

MODEL = Path(__file__).parents[2] / "profiles" / "tiny-chat"
_WORDS = ("river", "stone", "cloud", "paper", "green", "seven", "light", "water", "house", "tree", "window")
_CONTEXT = 16384
_TOOLS = ("read_file", "write_file", "run_command", "search")


@dataclass
class Measured:
    """Of one run: prompt tokens, those of them that were processed, and seconds to the first token of each turn."""

    prompt: int = 0
    processed: int = 0
    first: list[float] = field(default_factory=list)


def text(seed: str, words: int) -> str:
    """Return the same words for the same seed."""
    dice = random.Random(seed)
    return " ".join(dice.choice(_WORDS) for _ in range(words))


def tool(name: str) -> dict[str, Any]:
    """Return a tool with one parameter."""
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    return {"type": "function", "function": {"name": name, "description": text(name, 5), "parameters": parameters}}


def turn(agent: str, number: int, words: int) -> dict[str, Any]:
    """Return an agent's request after so many answers; each adds `words` to what was said."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": text("the agents' system prompt", 2 * words)},
        {"role": "user", "content": f"{agent}: {text(agent, words)}"},
    ]
    for past in range(number):
        messages.append({"role": "assistant", "content": "Done."})
        messages.append({"role": "user", "content": text(f"{agent} {past}", words)})
    return {"messages": messages, "tools": [tool(name) for name in _TOOLS]}


def title(agent: str, number: int, words: int) -> dict[str, Any]:
    """Return the request for a title that a client sends beside a turn."""
    told = f"{agent} {number}: {text(f'{agent} {number}', words // 2)}"
    system = f"Write a title of five words. {text('titles', words // 4)}"
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": told}]}


def requests(turns: int, words: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield session and body of every request, in the order in which they are sent."""
    for number in range(turns):
        for agent in ("Ada", "Ben"):
            yield agent, turn(agent, number, words)
            yield agent, title(agent, number, words)


def profile(slots: int, cache_ram: int) -> str:
    """Return a profile of the shipped model with so many slots."""
    model = next(MODEL.parent.rglob("tiny-chat*.gguf"))
    arguments = json.dumps(["--cache-ram", str(cache_ram)])
    server = f'model = "{model}"\nctx_size = {_CONTEXT * slots}\nparallel = {slots}\nargs = {arguments}'
    return f'id = "agent"\n[server]\n{server}\n'


def play(deck: LiveDeck, turns: int, words: int) -> Measured:
    """Send everything, one after the other."""
    found = Measured()
    with deck.client() as client:
        for session, body in requests(turns, words):
            headers = {"x-session-affinity": session}
            body |= {"model": "agent", "max_tokens": 4, "temperature": 0, "stream": True}
            body["stream_options"] = {"include_usage": True}
            began, first = time.monotonic(), None
            usage: dict[str, Any] = {}
            with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
                for line in answer.iter_lines():
                    if first is None and '"delta"' in line:
                        first = time.monotonic() - began
                    if '"prompt_tokens"' in line:
                        usage = json.loads(line.removeprefix("data: "))["usage"]
            assert first is not None, "no answer"
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            found.prompt += usage["prompt_tokens"]
            found.processed += usage["prompt_tokens"] - cached
            if "tools" in body:
                found.first.append(first)
    return found


def run(slots: int, cache_ram: int, *, affinity: bool, turns: int, words: int) -> Measured:
    """Measure once, with a Deck and a server of its own."""
    with tempfile.TemporaryDirectory(prefix="deck-") as place:
        tmp = Path(place)
        config = tmp / "deck.toml"
        config.write_text(f"[affinity]\nslots = {json.dumps(affinity)}\n")
        with live_deck(tmp / "deck", "--config", str(config), profiles={"agent": profile(slots, cache_ram)}) as deck:
            with deck.client() as client:
                warm = {"model": "agent", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
                client.post("/v1/chat/completions", json=warm).raise_for_status()
            return play(deck, turns, words)


def main() -> None:
    """Print a table."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no Deck is left behind
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--words", type=int, default=250)
    asked = parser.parse_args()
    print("| slots | cache in RAM | affinity | prompt tokens | processed | first token, median | last two turns |")
    print("|---|---|---|---:|---:|---:|---:|")
    for slots in (2, 3):
        for cache_ram in (0, 512):
            rounds: dict[bool, list[Measured]] = {True: [], False: []}
            for _ in range(asked.rounds):
                for affinity in (False, True):
                    rounds[affinity].append(
                        run(slots, cache_ram, affinity=affinity, turns=asked.turns, words=asked.words)
                    )
            for affinity, found in rounds.items():
                firsts = [1000 * seconds for item in found for seconds in item.first]
                lasts = [1000 * seconds for item in found for seconds in item.first[-4:]]
                middle = sorted(found, key=lambda item: item.processed)[len(found) // 2]
                print(
                    f"| {slots} | {'on' if cache_ram else 'off'} | {'on' if affinity else 'off'} | {middle.prompt}"
                    f" | {middle.processed} | {statistics.median(firsts):.0f} ms | {statistics.median(lasts):.0f} ms |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
