"""Requests recorded from Codex are accepted and answered whole, and what was dropped is named exactly."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import zstandard
from e2e.live import LiveDeck
from responses_automaton import check
from responses_support import validate_event

pytestmark = pytest.mark.engine

CAPTURES = Path(__file__).parent / "captures"
IGNORED = (
    "client_metadata, include[](reasoning.encrypted_content), input[].id, prompt_cache_key, reasoning.summary, store, "
    "tools[](web_search)"
)
CHANGED = "input[].role=developer>system, input[]:system+system, input[]:user+user, tools[]:namespace>function"
# What only the second turn of a tool call has.
IGNORED_LATER = (
    "client_metadata, include[](reasoning.encrypted_content), input[].encrypted_content, input[].id, input[].status, "
    "prompt_cache_key, reasoning.summary, store, tools[](web_search)"
)
CHANGED_LATER = CHANGED.replace("input[]:system", "input[].summary>input[].content, input[]:system")


def recorded() -> list[Any]:
    found = []
    for path in sorted(CAPTURES.glob("codex*.json")):
        for position, request in enumerate(json.loads(path.read_text())["requests"]):
            found.append(pytest.param(request, id=f"{path.stem}-{position}"))
    assert len(found) == 3
    return found


def is_later(request: dict[str, Any]) -> bool:
    return any(item["type"] == "function_call" for item in request["body"]["input"])


@pytest.mark.parametrize("coding", ["identity", "zstd"])
@pytest.mark.parametrize("request_", recorded())
def test_a_recorded_request_is_answered(deck: LiveDeck, request_: dict[str, Any], coding: str) -> None:
    data = json.dumps({**request_["body"], "max_output_tokens": 24}).encode()
    headers = {**request_["headers"], "authorization": f"Bearer {deck.token}", "content-encoding": coding}
    content = zstandard.compress(data) if coding == "zstd" else data
    with deck.client() as client:
        answer = client.post(request_["path"], content=content, headers=headers)
    assert answer.status_code == 200, answer.text
    expected = (IGNORED_LATER, CHANGED_LATER) if is_later(request_) else (IGNORED, CHANGED)
    assert answer.headers["x-athena-compatibility-ignored"] == expected[0]
    assert answer.headers["x-athena-compatibility-changed"] == expected[1]
    stream = check(answer.content)
    for event in stream.events:
        validate_event(event)
    assert stream.status in ("completed", "incomplete")
    assert {"input_tokens", "output_tokens", "total_tokens"} <= set(stream.final["usage"])
    assert stream.items


# Where the canonical request has no member for what the wire needs to say what something is.
CONSUMED = re.compile(r"(model|stream|tool_choice|input\[\d+\]\.(type|role|call_id)|.*\.type)")


@pytest.mark.parametrize("request_", recorded())
def test_no_leaf_of_a_recorded_request_is_unaccounted_for(deck: LiveDeck, request_: dict[str, Any]) -> None:
    """Every value the client sent is in the upstream body, or its path is in a note."""
    with deck.client() as client:
        explained = client.post("/deck/explain", json=request_["body"], headers={"x-deck-surface": "responses"})
    shown = explained.raise_for_status().json()
    upstream = shown["upstream"]
    text = json.dumps(upstream, ensure_ascii=False)
    numbers = [value for _, value in leaves(upstream) if not isinstance(value, str)]
    notes = [re.sub(r"\(.*\)$", "", note["path"]) for note in shown["notes"] if note["kind"] == "ignored"]
    count = 0
    for path, leaf in leaves(request_["body"]):
        if CONSUMED.fullmatch(path) or any(path.startswith(note) for note in notes):
            continue
        count += 1
        if path.endswith(".strict"):
            assert leaf is False, "nothing was promised"
        elif isinstance(leaf, str):
            wanted = json.dumps(leaf, ensure_ascii=False)[1:-1]
            assert wanted in text or json.dumps(leaf)[1:-1] in json.dumps(text), path
        elif leaf is not None:
            assert leaf in numbers, path
    assert count > 100


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [item for key, inner in value.items() for item in leaves(inner, f"{path}.{key}" if path else key)]
    if isinstance(value, list):
        return [item for place, inner in enumerate(value) for item in leaves(inner, f"{path}[{place}]")]
    return [(path, value)]


def test_what_codex_asks_before_and_beside(deck: LiveDeck) -> None:
    with deck.client() as client:
        models = client.get("/v1/models", params={"client_version": "0.171.0"}).raise_for_status().json()
        upgrade = client.get("/v1/responses", headers={"upgrade": "websocket", "connection": "upgrade"})
        compact = client.post("/v1/responses/compact", json={"model": "tiny-chat", "input": "hi"})
    assert [item["slug"] for item in models["models"]] == ["tiny-chat"]
    assert all(item["display_name"] for item in models["models"])
    assert (upgrade.status_code, compact.status_code) == (426, 404)
    assert upgrade.json()["error"]["code"] == "upgrade_required"
    assert "not implemented" in compact.json()["error"]["message"]


def test_a_whole_turn_of_codex(deck: LiveDeck) -> None:
    """The tool that the model calls comes back in the shape that Codex runs, and its result is answered."""
    (request_,) = [item.values[0] for item in recorded() if item.id == "codex-0"]
    weather = {
        "type": "namespace",
        "name": "mcp__weather",
        "description": "Weather",
        "tools": [{"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}],
    }
    body = {**request_["body"], "reasoning": {"effort": "none"}, "temperature": 0, "tools": [weather]}
    asked = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Call get_weather"}]}
    body["input"] = [asked]
    body["tool_choice"] = "required"
    with deck.client() as client:
        stream = check(client.post("/v1/responses", json=body).content)
        (call,) = stream.of("function_call")
        assert (call["namespace"], call["name"]) == ("mcp__weather", "get_weather")
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "22 C"}
        again = {**body, "input": [asked, *stream.items, result], "tool_choice": "auto"}
        answered = check(client.post("/v1/responses", json=again).content)
    assert "22 C" in answered.text()
