"""Every leak of every family through a whole Deck: what the client reads, on each wire, streamed and buffered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from app_support import app
from families_support import CASES, FAMILIES
from wires import WIRES, Said

from deck.testing.fake_llama import Reply
from deck.testing.family import TOOLS, Leak
from deck.testing.frames import content, done, finish, reasoning, role, text, text_end, tool, usage

SIZES = (1, 7, 1 << 30)
ALL_WIRES = [name for name, wire in WIRES.items() if not wire.has_text_only]


def offered(wire: str) -> list[dict[str, Any]]:
    """Return the tools that the leaks call, as a wire has them."""
    schemas = [(item.name, item.description, item.parameters or {"type": "object"}) for item in TOOLS]
    if wire == "messages":
        return [{"name": name, "description": told, "input_schema": schema} for name, told, schema in schemas]
    functions = [{"name": name, "description": told, "parameters": schema} for name, told, schema in schemas]
    if wire == "responses":
        return [{"type": "function", **item} for item in functions]
    return [{"type": "function", "function": item} for item in functions]


def frames(leak: Leak, size: int) -> Iterator[bytes]:
    """Return what llama-server sends for a leak, at most `size` characters in a piece."""
    yield role()
    calls = 0
    for part in leak.parts:
        if part.name:
            yield tool(calls, f"id0000{calls:03}", part.name, part.text)
            calls += 1
            continue
        make = content if part.kind == "text" else reasoning
        for place in range(0, len(part.text), size):
            yield make(part.text[place : place + size])
    yield finish(leak.finish.value)
    yield usage(5, 9)
    yield done()


def plain(said: Said) -> tuple[str, str, list[tuple[str, Any]]]:
    """Return texts, thoughts and calls, whose arguments are values."""
    return said.text, said.reasoning, [(name, json.loads(arguments)) for _, name, arguments in said.calls]


@pytest.mark.parametrize("wire", ALL_WIRES)
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_client_reads_what_was_meant(tmp_path: Path, family: str, wire: str) -> None:
    leaks = [leak for name, _, leak in CASES if name == family]
    asks = [(leak, size, stream) for leak in leaks for size, stream in [*((size, True) for size in SIZES), (7, False)]]
    script = [Reply(steps=list(frames(leak, size))) for leak, size, _ in asks]
    profile = f'id = "leaky"\nfamily = "{family}"\n{{server}}'
    reads = WIRES[wire]
    with app(tmp_path, script, profiles={"leaky": profile}) as running:
        for leak, size, stream in asks:
            body = {**reads.body("hi", stream, 99), "model": "leaky", "tools": offered(wire)}
            answer = running.send("POST", reads.path, json=body)
            assert answer.status_code == 200, answer.text
            said = reads.stream(answer.content) if stream else reads.whole(answer.json())
            where = f"{leak.name} in pieces of {size}, {'streamed' if stream else 'buffered'}"
            assert plain(said) == (leak.says, leak.thinks, list(leak.calls)), where


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "buffered"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_raw_prompt_is_answered_with_what_the_model_wrote(tmp_path: Path, family: str, stream: bool) -> None:
    leaks = [leak for name, _, leak in CASES if name == family]
    said = ["".join(part.text for part in leak.parts if not part.name) for leak in leaks]
    script = [Reply(steps=[text(words), text_end(5, 9), done()]) for words in said]
    profile = f'id = "leaky"\nfamily = "{family}"\n{{server}}'
    reads = WIRES["completions"]
    with app(tmp_path, script, profiles={"leaky": profile}) as running:
        for words in said:
            answer = running.send("POST", reads.path, json={**reads.body("hi", stream, 99), "model": "leaky"})
            assert answer.status_code == 200, answer.text
            got = reads.stream(answer.content) if stream else reads.whole(answer.json())
            assert got.text == words
            assert "x-athena-compatibility-changed" not in answer.headers
