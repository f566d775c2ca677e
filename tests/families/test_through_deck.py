"""What a whole Deck says of a repair: notes, metrics, and what reaches llama-server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from app_support import app
from families_support import FAMILIES

from deck.canon.events import Finish, FinishReason, Usage
from deck.kit import OwnStops
from deck.testing.fake_llama import Reply
from deck.testing.frames import content, done, finish, reasoning, role, usage

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
FUNCTION = {"name": "read_note", "parameters": SCHEMA}
TURNS = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": FUNCTION}]
CALL = 'Sure.\n<tool_call>\n{"name": "read_note", "arguments": {"path": "a-note"}}\n</tool_call>'


def scripted(text: str, size: int, reason: str = "stop") -> Reply:
    pieces = [content(text[place : place + size]) for place in range(0, len(text), size)]
    return Reply(steps=[role(), *pieces, finish(reason), usage(5, 9), done()])


def test_the_note_stands_beside_a_buffered_answer(tmp_path: Path) -> None:
    with app(tmp_path, [scripted(CALL, 9)], profiles={"leaky": 'id = "leaky"\nfamily = "qwen"\n{server}'}) as running:
        answer = running.chat(json={"model": "leaky", "messages": TURNS, "tools": TOOLS})
        assert "text>tool_calls" in answer.headers["x-athena-compatibility-changed"]
        choice = answer.json()["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["tool_calls"][0]["function"] == {"name": "read_note", "arguments": '{"path":"a-note"}'}
        metrics = running.send("GET", "/metrics").text
        assert 'deck_repairs_total{model="leaky",what="rescued_call"} 1.0' in metrics


def test_nothing_is_found_where_no_tools_are_offered(tmp_path: Path) -> None:
    with app(tmp_path, [scripted(CALL, 9)]) as running:
        answer = running.chat()
        assert answer.json()["choices"][0]["message"]["content"] == CALL
        assert "x-athena-compatibility-changed" not in answer.headers


def test_leaked_thoughts_are_counted(tmp_path: Path) -> None:
    with app(tmp_path, [scripted("<think>hm</think>Hi", 3)]) as running:
        message = running.chat().json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("hm", "Hi")
        metrics = running.send("GET", "/metrics").text
        assert 'deck_repairs_total{model="m1",what="leaked_thinking"} 1.0' in metrics
        assert 'field="leaked_thinking",kind="changed",surface="chat"' in metrics


def test_a_thinking_model_that_stops_behind_a_call_among_its_thoughts(tmp_path: Path) -> None:
    call = '<tool_call>{"name": "read_note", "arguments": {"path": "a-note"}}</tool_call>'
    steps = [role(), reasoning("I will read it. "), reasoning(call), finish("stop"), usage(5, 9), done()]
    with app(tmp_path, [Reply(steps=steps)]) as running:
        answer = running.chat(json={"model": "m1", "messages": TURNS, "tools": TOOLS})
        choice = answer.json()["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["reasoning_content"].strip() == "I will read it."


def test_a_familys_stop_string_reaches_llama_server_and_not_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with app(tmp_path, [scripted("Hi", 9), scripted("Hi", 9)]) as running:
        family = replace(FAMILIES["generic"], own_stops=("<|user|>",))
        monkeypatch.setattr(running.deck.plugins, "families", {**running.deck.plugins.families, "generic": family})
        running.chat()
        running.chat(json={"model": "m1", "messages": TURNS, "stop": ["END", "<|user|>"]})
        assert [item["stop"] for item in running.upstream()] == [["<|user|>"], ["END", "<|user|>"]]


def test_own_stops_are_hidden() -> None:
    hidden = OwnStops({"<|user|>"})
    for stop, shown in (("<|user|>", None), ("END", "END"), (None, None)):
        [event] = hidden.feed(Finish(FinishReason.STOP, Usage(1, 1), stop))
        assert isinstance(event, Finish)
        assert event.stop_sequence == shown
