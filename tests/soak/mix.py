"""Mixed clients: what they ask, on which wire, and when they leave; by a seed, so that a run can be had again."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import chat_support
import messages_support
import responses_support
from soak.house import House
from soak.ledger import Entry, Ledger, body
from soak.talk import ask
from soak.verdict import judge
from wires import WIRES

TOOLS = {"chat": chat_support.TOOL, "messages": messages_support.TOOL, "responses": responses_support.TOOL}
FAULTS = ("stall", "close", "reset", "garbage", "internal", "busy", "empty", "page", "call close")
WRONG = ("unknown-model", "unknown-field", "no-json", "no-token")
_BURST = 40


@dataclass(frozen=True, slots=True)
class Wish:
    """One request before it is sent."""

    wire: str
    model: str
    streamed: bool
    deed: str
    content: bytes
    leave_after: float | None = None
    leave_at: int | None = None
    has_token: bool = True


def wish(dice: random.Random, scripted: list[str], engines: list[str], *, crashes: bool = True) -> Wish:
    """Choose what a client asks."""
    wire, streamed = dice.choice(sorted(WIRES)), dice.random() < 0.6
    draw = dice.random()
    if engines and draw < 0.12:
        said = dice.choice(["Say pong", "Count to 10", "Hello"])
        return _made(wire, dice.choice(engines), streamed, said, limit=dice.randint(5, 60))
    model = dice.choice(scripted)
    plain = f"words {dice.randint(1, 25)} pace {dice.choice([0, 0, 5, 15])}"
    if draw < 0.55:
        return _made(wire, model, streamed, plain)
    if draw < 0.67:
        return _called(dice.choice(sorted(TOOLS)), model, streamed)
    if draw < 0.82:
        leaving = {"leave_at": dice.randint(1, 2000)} if dice.random() < 0.3 else {"leave_after": dice.random() * 0.6}
        return _made(wire, model, streamed, f"{plain} prefill {dice.choice([0, 50, 500])}", **leaving)
    if draw < 0.91:
        return _wrong(dice.choice(WRONG), wire, model, streamed)
    if crashes and draw < 0.925:
        return _made(wire, model, streamed, dice.choice(["crash", "die"]))
    return _made(wire, model, streamed, f"words 6 {dice.choice(FAULTS)}")


def _made(wire: str, model: str, streamed: bool, said: str, *, limit: int | None = 100, **leaving: Any) -> Wish:
    request = WIRES[wire].body(said, streamed, limit) | {"model": model}
    return Wish(wire, model, streamed, said, body(request), **leaving)


def _called(wire: str, model: str, streamed: bool) -> Wish:
    request = WIRES[wire].body("call", streamed, 100) | {"model": model, "tools": [TOOLS[wire]]}
    return Wish(wire, model, streamed, "call", body(request))


def _wrong(kind: str, wire: str, model: str, streamed: bool) -> Wish:
    request = WIRES[wire].body("words 2", streamed, 10) | {"model": model}
    if kind == "unknown-model":
        request["model"] = "nobody"
    if kind == "unknown-field":
        request["temprature"] = 1
    content = b'{"model": ' if kind == "no-json" else body(request)
    return Wish(wire, model, streamed, kind, content, has_token=kind != "no-token")


async def send(house: House, ledger: Ledger, wanted: Wish) -> None:
    """Send one request and note what came of it."""
    name = "soak_" + secrets.token_hex(12)
    token = house.deck.token if wanted.has_token else "deck-of-nobody"
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json", "x-request-id": name}
    ledger.running += 1
    try:
        got = await ask(
            house.deck.port,
            WIRES[wanted.wire].path,
            wanted.content,
            headers,
            leave_after=wanted.leave_after,
            leave_at=wanted.leave_at,
        )
    finally:
        ledger.running -= 1
    verdict = judge(wanted.wire, wanted.streamed, got)
    got.body = b""  # judged: ten minutes of answers need not be kept
    ledger.entries[name] = Entry(wanted.wire, wanted.model, wanted.streamed, wanted.deed, verdict, got)


async def client(house: House, ledger: Ledger, is_over: Callable[[], bool], choose: Callable[[], Wish]) -> None:
    """Ask, one request after the other, until it is over."""
    while not is_over():
        wanted = choose()
        await send(house, ledger, wanted)
        await asyncio.sleep(0.02)


async def burst(house: House, ledger: Ledger, choose: Callable[[], Wish]) -> None:
    """Ask for much at once."""
    await asyncio.gather(*(send(house, ledger, choose()) for _ in range(_BURST)))
