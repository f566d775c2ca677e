"""Requests recorded from real clients are accepted and answered, and what was dropped is named exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chat_automaton import check
from e2e.live import LiveDeck

CAPTURES = Path(__file__).parent / "captures"


def recorded() -> list[Any]:
    found = []
    for path in sorted(CAPTURES.glob("*.json")):
        for position, request in enumerate(json.loads(path.read_text())["requests"]):
            if request["path"] == "/v1/chat/completions":
                found.append(pytest.param(request, id=f"{path.stem}-{position}"))
    return found


@pytest.mark.engine
@pytest.mark.parametrize("request_", recorded())
def test_a_recorded_request_is_answered(deck: LiveDeck, request_: dict[str, Any]) -> None:
    body = {**request_["body"], "max_tokens": 24}
    headers = {**request_["headers"], "authorization": f"Bearer {deck.token}"}
    headers.pop("content-length", None)
    with deck.client() as client:
        answer = client.post(request_["path"], json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers.get("x-athena-compatibility-ignored") is None
    stream = check(answer.content, include_usage="stream_options" in body)
    assert stream.error is None
    assert stream.finish in ("stop", "length", "tool_calls")


@pytest.mark.engine
@pytest.mark.parametrize("request_", recorded())
def test_no_leaf_of_a_recorded_request_is_unaccounted_for(deck: LiveDeck, request_: dict[str, Any]) -> None:
    """Every string the client sent is in the upstream body, or its path is in a note."""
    with deck.client() as client:
        shown = client.post("/deck/explain", json=request_["body"]).raise_for_status().json()
    upstream = json.dumps(shown["upstream"], ensure_ascii=False)
    notes = [note["path"] for note in shown["notes"]]
    for path, leaf in leaves(request_["body"]):
        sent = isinstance(leaf, str) and json.dumps(leaf, ensure_ascii=False)[1:-1] in upstream
        consumed = path in ("model", "stream", "stream_options.include_usage", "tool_choice") or path.endswith(
            (".role", ".type", ".tool_call_id", "].id")
        )
        number = not isinstance(leaf, str) and json.dumps(leaf) in upstream
        inside = isinstance(leaf, str) and path.endswith(".arguments")
        assert sent or consumed or number or inside or any(path.startswith(note) for note in notes), path


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [item for key, inner in value.items() for item in leaves(inner, f"{path}.{key}" if path else key)]
    if isinstance(value, list):
        return [item for place, inner in enumerate(value) for item in leaves(inner, f"{path}[{place}]")]
    return [(path, value)]
