"""Tools and a form for the answer in one request, with the real engine: a call, then an answer that holds the form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from e2e.live import LiveDeck, live_deck
from wires import WIRES, Said

CHANGED, IGNORED = "x-athena-compatibility-changed", "x-athena-compatibility-ignored"
FORM = {"type": "object", "properties": {"report": {"type": "string", "maxLength": 40}}, "required": ["report"]}
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
TOLD = "Get the weather of a city"
FUNCTION = {"name": "get_weather", "description": TOLD, "parameters": CITY}
FIELDS: dict[str, dict[str, Any]] = {
    "chat": {
        "tools": [{"type": "function", "function": FUNCTION}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "report", "schema": FORM}},
    },
    "messages": {
        "tools": [{"name": "get_weather", "description": TOLD, "input_schema": CITY}],
        "output_config": {"format": {"type": "json_schema", "schema": FORM}},
    },
    "responses": {
        "tools": [{"type": "function", **FUNCTION}],
        "text": {"format": {"type": "json_schema", "name": "report", "schema": FORM}},
    },
}
PATHS = {"chat": "response_format", "messages": "output_config.format", "responses": "text.format"}
DEMANDS: dict[str, Any] = {"chat": "required", "messages": {"type": "any"}, "responses": "required"}
on_every_wire = pytest.mark.parametrize("wire", FIELDS)
both_ways = pytest.mark.parametrize("stream", [False, True], ids=["buffered", "streamed"])


@pytest.fixture(scope="module")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDeck]:
    with live_deck(tmp_path_factory.mktemp("form")) as running:
        yield running


def asked(deck: LiveDeck, wire: str, words: str, stream: bool, **fields: Any) -> tuple[Said, httpx.Response]:
    reads = WIRES[wire]
    body = {**reads.body(words, stream, 200), "model": "tiny-chat", "temperature": 0, **FIELDS[wire], **fields}
    with deck.client() as client:
        answer = client.post(reads.path, json=body)
    assert answer.status_code == 200, answer.text
    return (reads.stream(answer.content) if stream else reads.whole(answer.json())), answer


@both_ways
@on_every_wire
def test_either_a_call_or_the_form(deck: LiveDeck, wire: str, stream: bool) -> None:
    seen = set()
    for words in ("Hello", "What's the weather in Paris?", "Count to 5", "What's the weather in Rome?"):
        said, answer = asked(deck, wire, words, stream)
        assert f"{PATHS[wire]}>tools" in answer.headers[CHANGED]
        assert "tools" not in answer.headers.get(IGNORED, "").split(", ")
        seen.add(bool(said.calls))
        if said.calls:
            assert {name for _, name, _ in said.calls} == {"get_weather"}
        else:
            assert set(json.loads(said.text)) == {"report"}
            assert said.finish in ("stop", "end_turn", "completed")
    assert seen, "nothing was said"


@both_ways
@on_every_wire
def test_a_demanded_call_is_made(deck: LiveDeck, wire: str, stream: bool) -> None:
    said, answer = asked(deck, wire, "What's the weather in Paris?", stream, tool_choice=DEMANDS[wire])
    assert [name for _, name, _ in said.calls] == ["get_weather"]
    assert f"{PATHS[wire]}>tool_choice" in answer.headers[CHANGED]


@on_every_wire
def test_no_tools_but_the_form(deck: LiveDeck, wire: str) -> None:
    none: Any = {"type": "none"} if wire == "messages" else "none"
    said, answer = asked(deck, wire, "Hello", False, tool_choice=none)
    assert set(json.loads(said.text)) == {"report"}
    assert PATHS[wire] not in answer.headers.get(CHANGED, "")


@both_ways
@on_every_wire
def test_prose_before_the_answer_does_not_break_the_form(deck: LiveDeck, wire: str, stream: bool) -> None:
    said, _ = asked(deck, wire, "Hello", stream, logit_bias=[["get", -100]])
    assert not said.calls
    assert set(json.loads(said.text)) == {"report"}
    assert said.reasoning


@pytest.mark.parametrize("begun", ["He", "Sure: "])
def test_a_beginning_that_is_none_of_the_form_is_refused(deck: LiveDeck, begun: str) -> None:
    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": begun}]
    body = {"model": "tiny-chat", "messages": turns, "response_format": {"type": "json_object"}, "max_tokens": 30}
    with deck.client() as client:
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[1]"
    assert "response_format" in answer.json()["error"]["message"]


def test_a_form_is_checked_with_its_beginning(deck: LiveDeck) -> None:
    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": '{"report":'}]
    form = {"type": "json_schema", "json_schema": {"name": "report", "schema": FORM, "strict": True}}
    body = {"model": "tiny-chat", "messages": turns, "continue_final_message": True, "response_format": form}
    with deck.client() as client:
        answer = client.post("/v1/chat/completions", json={**body, "max_tokens": 99, "temperature": 0})
    assert answer.status_code == 200, answer.text
    content = answer.json()["choices"][0]["message"]["content"]
    assert set(json.loads(turns[1]["content"] + content)) == {"report"}
    assert IGNORED not in answer.headers
