"""Leaks through a whole Deck, on every surface that takes tools: streamed and buffered, notes, metrics, and the log."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from app_support import App, app
from families_support import FAMILIES

from deck.canon.events import Finish, FinishReason, Usage
from deck.config import Config
from deck.kit import OwnStops
from deck.plugins import Plugins
from deck.testing.fake_llama import Reply
from deck.testing.frames import content, done, finish, reasoning, role, usage

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
FUNCTION = {"name": "read_note", "parameters": SCHEMA}
TURNS = [{"role": "user", "content": "hi"}]
# What each wire's request looks like; one without tools is not asked.
BODIES: dict[str, dict[str, Any] | None] = {
    "/chat/completions": {"messages": TURNS, "tools": [{"type": "function", "function": FUNCTION}]},
    "/messages": {"max_tokens": 64, "messages": TURNS, "tools": [{"name": "read_note", "input_schema": SCHEMA}]},
    "/responses": {"input": "hi", "tools": [{"type": "function", **FUNCTION}]},
    "/completions": None,
}
ROUTES = sorted(
    path for path, (_, route) in Plugins(Config()).routes.items() if route.operation == "generate" and BODIES[path]
)
TEXTS = {
    "qwen": 'Sure.\n<tool_call>\n{"name": "read_note", "arguments": {"path": "a-note"}}\n</tool_call>',
    "glm": "Sure.\n<tool_call>read_note\n<arg_key>path</arg_key>\n<arg_value>a-note</arg_value>\n</tool_call>",
    "deepseek": 'Sure.\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="read_note">\n<｜DSML｜parameter name="path"'
    ' string="true">a-note</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
    "gpt_oss": "<|channel|>final<|message|>Sure.<|end|><|start|>assistant<|channel|>commentary to=functions.read_note"
    ' <|constrain|>json<|message|>{"path":"a-note"}<|call|>',
    "mistral": 'Sure.[TOOL_CALLS]read_note[ARGS]{"path": "a-note"}',
    "llama": 'Sure.<|python_tag|>{"name": "read_note", "parameters": {"path": "a-note"}}',
    "minimax": 'Sure.<minimax:tool_call><invoke name="read_note"><parameter name="path">a-note</parameter></invoke>'
    "</minimax:tool_call>",
}

# Members that hold what is said; ids and names of models stand in others.
_SAID = {"content", "text", "delta", "arguments", "partial_json", "name", "path"}


def scripted(text: str, size: int, reason: str = "stop") -> Reply:
    pieces = [content(text[place : place + size]) for place in range(0, len(text), size)]
    return Reply(steps=[role(), *pieces, finish(reason), usage(5, 9), done()])


def asked(running: App, path: str, *, stream: bool, **more: Any) -> str:
    body = {"model": "leaky", "stream": stream, **(BODIES[path] or {}), **more}
    answer = running.send("POST", f"/v1{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.text


def flat(text: str) -> str:
    """Return all texts of an answer, those of its frames joined."""
    frames = [line[5:] for line in text.splitlines() if line.startswith("data:") and "[DONE]" not in line] or [text]
    found: list[str] = []

    def walk(value: Any, key: str = "") -> None:
        if isinstance(value, str) and key in _SAID:
            found.append(value)
        for name, item in value.items() if isinstance(value, dict) else ():
            walk(item, name)
        for item in value if isinstance(value, list) else ():
            walk(item, key)

    for frame in frames:
        walk(json.loads(frame))
    return "".join(found)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("family", sorted(TEXTS))
def test_a_call_in_the_text_reaches_every_client_as_a_call(tmp_path: Path, family: str, path: str) -> None:
    profile = f'id = "leaky"\nfamily = "{family}"\n{{server}}'
    script = [scripted(TEXTS[family], size) for size in (1, 7, 1000, 1000)]
    with app(tmp_path, script, profiles={"leaky": profile}) as running:
        for stream in (True, True, True, False):
            said = flat(asked(running, path, stream=stream))
            assert "read_note" in said
            assert "a-note" in said
            assert "Sure." in said
            assert not any(mark in said for mark in ("tool_call>", "DSML", "<|", "TOOL_CALLS", "arg_key", "invoke")), (
                said
            )
        metrics = running.send("GET", "/metrics").text
        assert 'deck_repairs_total{model="leaky",what="rescued_call"} 4.0' in metrics


def test_the_note_stands_beside_a_buffered_answer(tmp_path: Path) -> None:
    with app(
        tmp_path, [scripted(TEXTS["qwen"], 9)], profiles={"leaky": 'id = "leaky"\nfamily = "qwen"\n{server}'}
    ) as running:
        answer = running.chat(json={"model": "leaky", **(BODIES["/chat/completions"] or {})})
        assert "text>tool_calls" in answer.headers["x-athena-compatibility-changed"]
        choice = answer.json()["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["tool_calls"][0]["function"] == {"name": "read_note", "arguments": '{"path":"a-note"}'}


def test_nothing_is_found_where_no_tools_are_offered(tmp_path: Path) -> None:
    with app(tmp_path, [scripted(TEXTS["qwen"], 9)]) as running:
        answer = running.chat()
        assert answer.json()["choices"][0]["message"]["content"] == TEXTS["qwen"]
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
        answer = running.chat(json={"model": "m1", **(BODIES["/chat/completions"] or {})})
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
