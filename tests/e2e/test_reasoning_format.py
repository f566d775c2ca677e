"""`reasoning_format` on each wire that thinks, with the real engine: where the thoughts are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.live import LiveDeck, live_deck
from wires import WIRES, Said

CHANGED = "x-athena-compatibility-changed"
on_every_wire = pytest.mark.parametrize("wire", [name for name, wire in WIRES.items() if not wire.has_text_only])
both_ways = pytest.mark.parametrize("stream", [False, True], ids=["buffered", "streamed"])


@pytest.fixture(scope="module")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDeck]:
    with live_deck(tmp_path_factory.mktemp("format")) as running:
        yield running


def said(deck: LiveDeck, wire: str, stream: bool, chosen: str) -> tuple[Said, str | None]:
    reads = WIRES[wire]
    body = {**reads.body("Hello", stream, 60), "model": "tiny-chat", "temperature": 0, "reasoning_format": chosen}
    with deck.client() as client:
        answer = client.post(reads.path, json=body)
    assert answer.status_code == 200, answer.text
    got = reads.stream(answer.content) if stream else reads.whole(answer.json())
    return got, answer.headers.get(CHANGED)


@both_ways
@on_every_wire
def test_none_leaves_thoughts_in_the_text(deck: LiveDeck, wire: str, stream: bool) -> None:
    got, changed = said(deck, wire, stream, "none")
    assert got.text.startswith("<think>")
    assert "</think>" in got.text
    assert got.reasoning == ""
    assert changed is None


@both_ways
@pytest.mark.parametrize("chosen", ["auto", "deepseek"])
@on_every_wire
def test_the_others_tell_them_apart(deck: LiveDeck, wire: str, chosen: str, stream: bool) -> None:
    got, changed = said(deck, wire, stream, chosen)
    assert "think>" not in got.text
    assert got.reasoning
    assert changed is None


@both_ways
@on_every_wire
def test_legacy_is_said_to_be_the_same(deck: LiveDeck, wire: str, stream: bool) -> None:
    got, changed = said(deck, wire, stream, "deepseek-legacy")
    assert got.reasoning
    assert changed == "reasoning_format=deepseek-legacy>deepseek"
