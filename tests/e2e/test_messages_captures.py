"""Requests recorded from Claude Code are accepted and answered, and what was dropped is named exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.live import LiveDeck
from e2e.test_captures import leaves
from messages_automaton import check
from messages_support import COUNT

pytestmark = pytest.mark.engine

CAPTURES = Path(__file__).parent / "captures"
IGNORED = (
    "?beta",
    "anthropic-beta",
    "context_management",
    "messages[].content[].cache_control",
    "metadata",
    "output_config.effort",
    "system[].cache_control",
)
CHANGED = ("messages[].role=system>user", "messages[]:user+user")
# What a recording has beside these, by its file and the number of the request in it.
SIGNED = "messages[].content[].signature"
LOOSE = (
    "tools[].input_schema.properties.metadata.propertyNames",
    "tools[].input_schema.properties.timeout.maximum",
    "tools[].input_schema.properties.timeout.minimum",
    "tools[].input_schema.properties.url.format",
)
IGNORED_TOO = {
    "claude-code-1": LOOSE,
    "claude-code-tool-1": LOOSE,
    "claude-code-tool-2": (SIGNED, *LOOSE),
    "claude-code-search-0": (SIGNED, "system[]", "tools[].defer_loading"),
}
CHANGED_TOO = {
    "claude-code-search-0": (
        "messages[].content[].content[]>text",
        "messages[].content[].is_error>messages[].content[].content",
    ),
}
# What is read and acts under another name, or names the form of what carries it.
READ = ("model", "stream", "thinking.type", "thinking.display")
FORMS = (".role", ".type", ".tool_use_id", "].id")


def recorded(method: str) -> list[Any]:
    found = []
    for path in sorted(CAPTURES.glob("claude-code*.json")):
        for position, request in enumerate(json.loads(path.read_text())["requests"]):
            if request["method"] == method:
                name = f"{path.stem}-{position}"
                found.append(pytest.param({**request, "name": name}, id=name))
    return found


def replay(deck: LiveDeck, request: dict[str, Any], **fields: Any) -> httpx.Response:
    headers = {**request["headers"], "authorization": f"Bearer {deck.token}"}
    headers.pop("content-length", None)
    path = request["path"] + (f"?{request['query']}" if request["query"] else "")
    content = json.dumps({**request["body"], **fields}) if request["body"] else None
    with deck.client() as client:
        return client.request(request["method"], path, content=content, headers=headers)


@pytest.mark.parametrize("request_", recorded("HEAD"))
def test_the_probe_before_the_first_request_is_answered(deck: LiveDeck, request_: dict[str, Any]) -> None:
    answer = replay(deck, request_)
    assert answer.status_code in (200, 404)
    assert answer.content == b""


@pytest.mark.parametrize("request_", recorded("POST"))
@pytest.mark.parametrize("streams", [True, False])
def test_a_recorded_request_is_answered(deck: LiveDeck, request_: dict[str, Any], streams: bool) -> None:
    answer = replay(deck, request_, max_tokens=24, stream=streams)
    assert answer.status_code == 200, answer.text
    if streams:
        got = check(answer.content)
        assert got.error is None
        assert got.stop_reason in ("end_turn", "max_tokens", "tool_use")
    else:
        assert answer.json()["stop_reason"] in ("end_turn", "max_tokens", "tool_use")
    names = {*IGNORED, *IGNORED_TOO.get(request_["name"], ())}
    assert answer.headers["x-athena-compatibility-ignored"] == ", ".join(sorted(names))
    names = {*CHANGED, *CHANGED_TOO.get(request_["name"], ())}
    assert answer.headers["x-athena-compatibility-changed"] == ", ".join(sorted(names))


@pytest.mark.parametrize("request_", recorded("POST"))
def test_a_recorded_request_is_counted(deck: LiveDeck, request_: dict[str, Any]) -> None:
    fields = ("model", "messages", "system", "tools", "thinking", "context_management", "output_config")
    body = {name: request_["body"][name] for name in fields}
    counted = replay(deck, {**request_, "path": COUNT, "body": body})
    assert counted.status_code == 200, counted.text
    usage = replay(deck, request_, max_tokens=1, stream=False).json()["usage"]
    assert counted.json() == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


@pytest.mark.parametrize("request_", recorded("POST"))
def test_no_leaf_of_a_recorded_request_is_unaccounted_for(deck: LiveDeck, request_: dict[str, Any]) -> None:
    """Every leaf the client sent is in the upstream body, or its path is in a note."""
    with deck.client() as client:
        answer = client.post("/deck/explain", json=request_["body"], headers={"x-deck-surface": "messages"})
    shown = answer.raise_for_status().json()
    assert shown["surface"] == "messages"
    assert len(shown["canonical"]["tools"]) == len(request_["body"]["tools"])
    assert shown["upstream"]["chat_template_kwargs"] == {"enable_thinking": True}
    assert shown["upstream"]["max_tokens"] == request_["body"]["max_tokens"]
    assert all(note["reason"] for note in shown["notes"])
    schemas = [tool["function"]["parameters"] for tool in shown["upstream"]["tools"]]
    assert schemas == [tool["input_schema"] for tool in request_["body"]["tools"]]
    upstream = json.dumps(shown["upstream"], ensure_ascii=False)
    notes = [note["path"] for note in shown["notes"]]
    for path, leaf in leaves(request_["body"]):
        written = json.dumps(leaf, ensure_ascii=False)
        # A number or a boolean stands somewhere in any body: only where it was compared above does it count as sent.
        is_compared = path == "max_tokens" or ".input_schema." in path or ".input." in path
        is_sent = written[1:-1] in upstream if isinstance(leaf, str) else is_compared
        is_noted = any(path == note or path.startswith((f"{note}.", f"{note}[")) for note in notes)
        assert is_sent or is_noted or path in READ or path.endswith(FORMS), path


@pytest.mark.parametrize("request_", recorded("POST"))
def test_two_turns_of_one_conversation_share_their_beginning(deck: LiveDeck, request_: dict[str, Any]) -> None:
    """A second request with another turn at the end reads the first one's prompt from the cache."""
    first = replay(deck, request_, max_tokens=1, stream=False).json()["usage"]
    longer = [*request_["body"]["messages"], {"role": "user", "content": "go on"}]
    second = replay(deck, request_, max_tokens=1, stream=False, messages=longer).json()["usage"]
    total = first["input_tokens"] + first["cache_read_input_tokens"]
    assert second["cache_read_input_tokens"] > total * 0.9
