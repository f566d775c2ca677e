"""Message shapes seen in the wild reach llama-server in a form that it accepts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from chat_support import TOOL, body, changed, ignored, refusal, upstream, user

PNG = "data:image/png;base64,iVBORw0KGgo="


def assistant(content: Any = None, **members: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **members}


def call(identity: str = "call_abc123def", arguments: Any = '{"path":"a"}', **members: Any) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": "read_note", "arguments": arguments}, **members}


def result(content: Any = "text", identity: str = "call_abc123def") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": content}


def sent(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    got, _ = upstream(body(messages=list(messages)))
    found: list[dict[str, Any]] = got["messages"]
    return found


@pytest.mark.parametrize("content", [None, "", []])
def test_empty_user_contents_become_empty_text(content: Any) -> None:
    assert sent(user(content)) == [user("")]


def test_an_absent_content_becomes_empty_text() -> None:
    assert sent({"role": "user"}) == [user("")]


def test_text_parts_become_a_string() -> None:
    assert sent(user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])) == [user("a\nb")]


def test_a_prefill_of_parts_becomes_a_string_and_thinking_is_off() -> None:
    got, report = upstream(body(messages=[user(), assistant([{"type": "text", "text": "Once"}])]))
    assert got["messages"][-1] == {"role": "assistant", "content": "Once"}
    assert got["chat_template_kwargs"] == {"enable_thinking": False}
    assert changed(report) == ["messages[]>enable_thinking=false"]


def test_developer_becomes_system_and_leading_systems_merge() -> None:
    messages = [{"role": "developer", "content": "A"}, {"role": "system", "content": "B"}, user()]
    assert sent(*messages) == [{"role": "system", "content": "A\n\nB"}, user()]


def test_results_come_in_the_order_of_their_calls() -> None:
    """Templates that show no ids leave the model nothing else to tell them apart; clients send the fastest first."""
    turn = assistant(None, tool_calls=[call("call_aaaaaaaaa"), call("call_bbbbbbbbb"), call("call_ccccccccc")])
    a, b, c = (result(name, f"call_{name * 9}") for name in "abc")
    got, report = upstream(body(messages=[user(), turn, b, c, a, user("and?")], tools=[TOOL]))
    assert [item["content"] for item in got["messages"][2:]] == ["a", "b", "c", "and?"]
    assert [item["tool_call_id"] for item in got["messages"][2:5]] == ["a" * 9, "b" * 9, "c" * 9]
    assert changed(report) == ["messages[]:reordered"]
    _, quiet = upstream(body(messages=[user(), turn, a, b, c, user("and?")], tools=[TOOL]))
    assert changed(quiet) == []


def test_a_later_system_turn_is_folded_in_place() -> None:
    got = sent(user("first"), {"role": "system", "content": "12000 tokens left"}, user("second"))
    assert [item["role"] for item in got] == ["user"]
    text = got[0]["content"]
    assert text.index("first") < text.index("12000 tokens left") < text.index("second")


def test_a_system_turn_after_a_tool_result_keeps_its_place() -> None:
    got = sent(user(), assistant(tool_calls=[call()]), result(), {"role": "system", "content": "note"})
    assert [item["role"] for item in got] == ["user", "assistant", "tool", "user"]
    assert "note" in got[-1]["content"]


def test_consecutive_users_merge_and_keep_images() -> None:
    got = sent(user("a"), user([{"type": "image_url", "image_url": {"url": PNG}}]), assistant("c"), user("d"))
    assert [item["role"] for item in got] == ["user", "assistant", "user"]
    assert got[0]["content"] == [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": PNG}}]


@pytest.mark.parametrize("arguments", ["", "null", None, {}, "{}"])
def test_empty_arguments_become_an_empty_object(arguments: Any) -> None:
    got = sent(user(), assistant(tool_calls=[call(arguments=arguments)]), result())
    assert got[1]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_arguments_as_an_object_become_a_string() -> None:
    got = sent(user(), assistant(tool_calls=[call(arguments={"path": "a"})]), result())
    assert got[1]["tool_calls"][0]["function"]["arguments"] == '{"path":"a"}'


def test_arguments_that_are_no_object_are_refused() -> None:
    error = refusal(body(messages=[user(), assistant(tool_calls=[call(arguments="[1]")]), result()]))
    assert error.param == "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize("arguments", ['{"path":', "text", '{"path": "\ud800'])
def test_what_a_limit_left_of_a_call_is_kept(arguments: str) -> None:
    """A stream hands it out as it stands, so that it comes back so."""
    got = sent(user(), assistant(tool_calls=[call(arguments=arguments)]), result())
    kept = json.loads(got[1]["tool_calls"][0]["function"]["arguments"])
    assert list(kept) == ["unparsed"]
    assert kept["unparsed"][:6] == arguments[:6]


@pytest.mark.parametrize("identity", ["call_abc123def", "toolu_01AbCdEfGhIjKl", "weird id", "call_x"])
def test_a_call_and_its_result_keep_one_id_of_nine(identity: str) -> None:
    got = sent(user(), assistant(tool_calls=[call(identity)]), result(identity=identity))
    inner = got[1]["tool_calls"][0]["id"]
    assert inner == got[2]["tool_call_id"]
    assert len(inner) == 9
    assert inner.isalnum()


def test_decks_own_id_comes_back_without_its_prefix() -> None:
    got = sent(user(), assistant(tool_calls=[call("call_abc123def")]), result())
    assert got[1]["tool_calls"][0]["id"] == "abc123def"


def test_an_empty_assistant_turn_with_calls_has_empty_text() -> None:
    got = sent(user(), assistant(None, tool_calls=[call()]), result())
    assert got[1]["content"] == ""
    assert got[1]["tool_calls"][0]["type"] == "function"


def test_a_call_without_type_or_id_is_accepted() -> None:
    got = sent(user(), assistant(tool_calls=[{"function": {"name": "read_note", "arguments": "{}"}}]))
    assert got[1]["tool_calls"][0]["type"] == "function"
    assert got[1]["tool_calls"][0]["id"]


@pytest.mark.parametrize("members", [{"reasoning_content": "p"}, {"reasoning": "p"}])
def test_echoed_thoughts_are_kept(members: dict[str, Any]) -> None:
    got = sent(user(), assistant("x", **members), user())
    assert got[1]["reasoning_content"] == "p"


@pytest.mark.parametrize(
    "members",
    [
        {"reasoning_content": None},
        {"name": None},
        {"refusal": None},
        {"audio": None},
        {"tool_calls": None},
        {"function_call": None},
    ],
)
def test_nulls_never_reach_llama_server(members: dict[str, Any]) -> None:
    assert sent(user(), assistant("x", **members), user())[1] == {"role": "assistant", "content": "x"}


def test_a_thinking_part_becomes_reasoning() -> None:
    got = sent(
        user(),
        assistant([{"type": "thinking", "thinking": "p", "signature": "s"}, {"type": "text", "text": "x"}]),
        user(),
    )
    assert got[1] == {"role": "assistant", "content": "x", "reasoning_content": "p"}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        (None, ""),
        ("", ""),
        ({"a": 1}, '{"a":1}'),
    ],
)
def test_tool_contents(content: Any, text: str) -> None:
    got = sent(user(), assistant(tool_calls=[call()]), result(content))
    assert got[2] == {"role": "tool", "tool_call_id": "abc123def", "content": text}


def test_members_that_mean_nothing_in_their_turn_are_reported() -> None:
    turn = {**assistant(None, tool_calls=[call()]), "tool_call_id": "call_x"}
    _, report = upstream(body(messages=[user(), turn, {**result(), "reasoning_content": "hm"}], tools=[TOOL]))
    assert ignored(report) == ["messages[].reasoning_content", "messages[].tool_call_id"]


def test_a_tool_result_without_an_id_is_refused() -> None:
    error = refusal(body(messages=[user(), {"role": "tool", "content": "x"}]))
    assert (error.param, error.code) == ("messages[1].tool_call_id", "missing_required_parameter")


def test_old_functions_become_tools() -> None:
    got = sent(
        user(),
        {"role": "assistant", "content": None, "function_call": {"name": "read_note", "arguments": "{}"}},
        {"role": "function", "name": "read_note", "content": "x"},
    )
    assert got[1]["tool_calls"][0]["function"] == {"name": "read_note", "arguments": "{}"}
    assert got[2]["role"] == "tool"
    assert got[2]["tool_call_id"] == got[1]["tool_calls"][0]["id"]


def test_an_image_is_passed_and_its_detail_reported() -> None:
    part = {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}
    got, report = upstream(body(messages=[user([part])]))
    assert got["messages"][0]["content"] == [{"type": "image_url", "image_url": {"url": PNG}}]
    assert ignored(report) == ["messages[].content[].image_url.detail"]


def test_audio_is_passed() -> None:
    part = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    assert sent(user([part]))[0]["content"] == [part]


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image_url", "image_url": {"url": "http://10.0.0.1/x.png"}}, "messages[0].content[0].image_url.url"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "messages[0].content[0].image_url.url"),
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,a b"}},
            "messages[0].content[0].image_url.url",
        ),
        ({"type": "file", "file": {"file_id": "x"}}, "messages[0].content[0].type"),
        ({"type": "video_url", "video_url": {"url": "x"}}, "messages[0].content[0].type"),
        ({"text": "no type"}, "messages[0].content[0].type"),
        (7, "messages[0].content[0]"),
        ({"type": "text", "text": "x", "colour": "red"}, "messages[0].content[0].colour"),
    ],
)
def test_parts_that_cannot_be_honoured_are_refused(part: Any, param: str) -> None:
    assert refusal(body(messages=[user([part])])).param == param


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "x"}, "messages[0].role"),
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": "x", "colour": "red"}, "messages[0].colour"),
        ("x", "messages[0]"),
        ({"role": "user", "content": "x", "tool_calls": [call()]}, "messages[0].tool_calls"),
        ({"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}, "messages[0].content"),
        ({**result(), "tool_calls": [call()]}, "messages[0].tool_calls"),
        ({**result(), "function_call": {"name": "x"}}, "messages[0].function_call"),
        ({**result(), "prefix": True}, "messages[0].prefix"),
        ({"role": "assistant", "content": None, "tool_calls": [call(type="custom")]}, "messages[0].tool_calls[0].type"),
    ],
)
def test_messages_that_cannot_be_honoured_are_refused(message: Any, param: str) -> None:
    assert refusal(body(messages=[message])).param == param


def test_consecutive_assistants_merge() -> None:
    assert sent(user(), assistant("a"), assistant("b"), user())[1]["content"] == "a\nb"


def test_tools_and_history_together() -> None:
    got, _ = upstream(body(tools=[TOOL], messages=[user(), assistant(tool_calls=[call(index=0)]), result(), user()]))
    assert [item["role"] for item in got["messages"]] == ["user", "assistant", "tool", "user"]
