"""Reported failures of Messages requests: each entry of section A of the list of cases, by its number and topic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from app_support import App, app, messages_error_of
from messages_support import (
    COUNT,
    MESSAGES,
    PIXEL,
    SCHEMA,
    TOOL,
    UPSTREAM_TOOL,
    assistant,
    body,
    changed,
    ignored,
    image,
    refusal,
    text,
    upstream,
    user,
)

from deck import json
from deck.testing.fake_llama import Received, Reply, refuse, say

VISION = "[capabilities]\nvision = true\n"
EDIT = {"type": "clear_thinking_20251015", "keep": "all"}


@pytest.fixture
def deck(tmp_path: Path) -> Iterator[App]:
    blind = 'id = "blind"\n{server}[capabilities]\nvision = false\n'
    with app(tmp_path, [say("Hello")], profiles={"blind": blind}) as running:
        yield running


def billed(nonce: str) -> dict[str, Any]:
    line = f"x-anthropic-billing-header: cc_version=9.9.9.aaa; cc_entrypoint=cli; cch={nonce};"
    return body(system=[text(line), text("Be brief.")])


def test_b01_a_line_that_changes_with_every_request_does_not_reach_the_model() -> None:
    first, report = upstream(billed("11111"))
    second, _ = upstream(billed("22222"))
    assert json.dumps(first) == json.dumps(second)
    assert first["messages"][0] == {"role": "system", "content": "Be brief."}
    assert [note.path for note in report.notes] == ["system[0]"]
    assert ignored(report) == ["system[]"]


def test_b01_a_user_who_quotes_it_is_left_alone() -> None:
    quoted = "what is x-anthropic-billing-header: cch=1; ?"
    got, report = upstream(body(messages=[user(quoted)]))
    assert got["messages"] == [user(quoted)]
    assert report.notes == ()


def test_b02_a_system_turn_in_mid_conversation_keeps_its_place() -> None:
    turns = [user("hi"), {"role": "assistant", "content": "hello"}, {"role": "system", "content": "12000 tokens left"}]
    got, report = upstream(body(system="Be brief.", messages=[*turns, user("go on")]))
    roles = [item["role"] for item in got["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert "12000 tokens left" in got["messages"][3]["content"]
    assert got["messages"][3]["content"].index("12000") < got["messages"][3]["content"].index("go on")
    assert "messages[].role=system>user" in changed(report)


def test_b04_an_edit_that_keeps_everything_is_reported_and_not_sent() -> None:
    got, report = upstream(body(context_management={"edits": [EDIT]}))
    assert "context_management" not in got
    assert ignored(report) == ["context_management"]


def test_b04_a_key_beside_the_edits_is_named() -> None:
    assert refusal(body(context_management={"edits": [EDIT], "enabled": True})).param == "context_management.enabled"


@pytest.mark.parametrize("kind", ["clear_tool_uses_20250919", "compact_20260112"])
def test_b04_an_edit_that_would_change_the_prompt_is_refused(kind: str) -> None:
    error = refusal(body(context_management={"edits": [{"type": kind}]}))
    assert kind in error.message
    assert error.kind.status == 400


def test_b05_members_of_tools_that_others_refuse() -> None:
    tool = {
        **TOOL,
        "eager_input_streaming": True,
        "defer_loading": False,
        "strict": True,
        "cache_control": {"type": "ephemeral", "ttl": "1h"},
        "input_examples": [{"path": "a"}],
        "allowed_callers": ["direct"],
    }
    got, report = upstream(body(stream=True, tools=[tool]))
    assert got["tools"] == [UPSTREAM_TOOL]
    names = ("allowed_callers", "cache_control", "defer_loading", "eager_input_streaming", "input_examples", "strict")
    assert ignored(report) == [f"tools[].{name}" for name in names]


def test_b07_who_the_user_is_goes_nowhere(deck: App, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    who = json.dumps({"device_id": "canary-d0", "session_id": "canary-s0"}).decode()
    answer = deck.send("POST", MESSAGES, json=body(metadata={"user_id": who}))
    assert answer.status_code == 200
    assert answer.headers["x-athena-compatibility-ignored"] == "metadata"
    request = deck.fake.chats[-1]
    assert b"canary" not in request.body
    assert "canary" not in str(request.headers)
    assert "canary" not in caplog.text
    assert "canary" not in deck.send("GET", "/metrics").text


def shot() -> list[dict[str, Any]]:
    call = {"type": "tool_use", "id": "toolu_1", "name": "shot", "input": {}}
    answer = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("page"), image()]}
    return [user("look"), assistant(call), user([answer])]


def test_b16_an_image_in_a_result_reaches_the_model() -> None:
    got, _ = upstream(body(messages=shot()))
    call, answer, picture = got["messages"][1:]
    assert answer == {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "page"}
    url = f"data:image/png;base64,{PIXEL}"
    assert picture["content"] == [{"type": "image_url", "image_url": {"url": url}}]


def test_b16_a_model_without_eyes_refuses_it_naming_the_block(deck: App) -> None:
    error = messages_error_of(deck.send("POST", MESSAGES, json=body(model="blind", messages=shot())), 400)
    assert "messages[2].content[0].content" in error["message"]


@pytest.mark.parametrize("streams", [False, True])
def test_b17_an_image_that_llama_server_refuses_is_the_clients_mistake(tmp_path: Path, streams: bool) -> None:
    says = "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
    with app(tmp_path, [refuse(500, says)]) as deck:
        error = messages_error_of(deck.send("POST", MESSAGES, json=body(stream=streams)), 400)
    assert error == {"type": "invalid_request_error", "message": says}


OVERFLOW = "request (41000 tokens) exceeds the available context size (32768 tokens), try increasing it"


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (
            refuse(400, OVERFLOW, "exceed_context_size_error", n_prompt_tokens=41000, n_ctx=32768),
            "prompt is too long: 41000 tokens > 32768 maximum",
        ),
        (
            refuse(500, "Context size has been exceeded."),
            "prompt is too long: Context size has been exceeded.",
        ),
    ],
    ids=["B19", "B106"],
)
def test_b19_an_overflow_in_the_words_that_start_a_compaction(
    tmp_path: Path, reply: Reply, message: str, streams: bool
) -> None:
    with app(tmp_path, [reply]) as deck:
        answer = deck.send("POST", MESSAGES, json=body(stream=streams))
    assert messages_error_of(answer, 400) == {"type": "invalid_request_error", "message": message}


def counting(request: Received) -> dict[str, int]:
    """Count as a server does that sees system, tools and template: by the length of all that is read."""
    read = {name: request.json().get(name) for name in ("messages", "tools")}
    return {"input_tokens": len(json.dumps(read))}


@pytest.fixture
def counter(deck: App) -> App:
    deck.fake._routes["/v1/chat/completions/input_tokens"] = counting
    deck.send("POST", MESSAGES, json=body())
    return deck


def count(deck: App, **fields: Any) -> int:
    request = {"model": "m1", "system": "Be brief.", "messages": [user()], **fields}
    answer = deck.send("POST", f"{COUNT}?beta=true", json=request)
    assert answer.status_code == 200, answer.text
    assert set(answer.json()) == {"input_tokens"}
    found: int = answer.json()["input_tokens"]
    return found


def test_b22_the_counter_exists(counter: App) -> None:
    assert count(counter, tools=[TOOL]) > 0


def test_b23_the_counter_counts_all_that_the_model_reads(counter: App) -> None:
    bare = count(counter)
    assert count(counter, tools=[TOOL]) > bare
    assert count(counter, system="Be brief. Be kind.") > bare
    assert count(counter, messages=[user("hi there")]) > bare
    assert count(counter, thinking={"type": "enabled", "budget_tokens": 10000}) >= bare
    sent = [item.json() for item in counter.fake.requests if item.path.endswith("input_tokens")]
    assert sent[1]["tools"] == [{"type": "function", "function": {**UPSTREAM_TOOL["function"], "parameters": SCHEMA}}]


def test_b25_a_probe_of_one_token_leaves_no_room_for_thoughts() -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    got, report = upstream(body(max_tokens=1, thinking=thinking, messages=[user("foo")]))
    assert got["max_tokens"] == 1
    assert got["chat_template_kwargs"] == {"enable_thinking": False}
    assert "reasoning_budget_tokens" not in got
    assert changed(report) == ["thinking.budget_tokens=1024>0"]
