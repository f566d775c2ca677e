"""The input of Responses: every shape of item that clients send, as turns."""

from __future__ import annotations

from typing import Any

import pytest
from responses_support import (
    buffered,
    call,
    changed,
    ignored,
    items,
    output,
    parse,
    refusal,
    stream,
    thought,
    upstream,
    user,
)

from deck.api import (
    ChatRequest,
    Event,
    Finish,
    FinishReason,
    PartDelta,
    PartEnd,
    PartStart,
    Start,
    Text,
    ToolResult,
    Usage,
)

PNG = "data:image/png;base64,iVBORw0KGgo="
SOUND = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
PICTURE = {"type": "image_url", "image_url": {"url": PNG}}


def message(role: str, *parts: Any, **members: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": list(parts), **members}


def said(text: str, **members: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return message("assistant", part, id="msg_1", status="completed", **members)


def text(value: str, kind: str = "input_text") -> dict[str, Any]:
    return {"type": kind, "text": value}


def assistant(content: str = "", **members: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **members}


def called(*names: tuple[str, str], arguments: str = "{}", **members: Any) -> dict[str, Any]:
    """Return the assistant's turn with calls; each name is that of a tool and the canonical id."""
    found = [
        {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}
        for name, identity in names
    ]
    return assistant(members.pop("content", ""), tool_calls=found, **members)


def tool(content: Any = "x", identity: str = "abc123def") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": content}


ONE = ("read_note", "abc123def")
INPUTS: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "a string": ("hi", [user()]),
    "an empty string": ("", [user("")]),
    "no type": ([user()], [user()]),
    "parts": ([message("user", text("a"), text("b"))], [user("a\nb")]),
    "text parts of Chat": ([message("user", text("a", "text"))], [user("a")]),
    "an empty part": ([message("user", text(""), text("b"))], [user("b")]),
    "null content": ([{"role": "user", "content": None}], [user("")]),
    "an image": (
        [message("user", text("look"), {"type": "input_image", "image_url": PNG})],
        [user([{"type": "text", "text": "look"}, PICTURE])],
    ),
    "an image as on Chat": (
        [message("user", {"type": "input_image", "image_url": {"url": PNG}})],
        [user([PICTURE])],
    ),
    "audio": (
        [message("user", SOUND)],
        [user([SOUND])],
    ),
    "an easy assistant": (
        [user(), {"role": "assistant", "content": "yes"}, user()],
        [user(), assistant("yes"), user()],
    ),
    "an assistant's parts": ([user(), said("yes"), user()], [user(), assistant("yes"), user()]),
    "input_text of an assistant": (
        [user(), message("assistant", text("yes")), user()],
        [user(), assistant("yes"), user()],
    ),
    "a refusal": (
        [user(), message("assistant", {"type": "refusal", "refusal": "no"}), user()],
        [user(), assistant("no"), user()],
    ),
    "phases": (
        [user(), said("first", phase="commentary"), said("last", phase="final_answer"), user()],
        [user(), assistant("first\nlast"), user()],
    ),
    "a system item": ([message("system", text("S")), user()], [{"role": "system", "content": "S"}, user()]),
    "a developer item": ([message("developer", text("D")), user()], [{"role": "system", "content": "D"}, user()]),
    "a turn of all three": (
        [user(), thought("hm"), said("look"), call(), output()],
        [user(), called(ONE, content="look", reasoning_content="hm"), tool()],
    ),
    "two calls": (
        [user(), call(), call(call_id="call_xyz123def"), output(), output("y", "call_xyz123def")],
        [user(), called(ONE, ("read_note", "xyz123def")), tool(), tool("y", "xyz123def")],
    ),
    "thoughts between calls": (
        [
            user(),
            thought("a"),
            call(),
            thought("b"),
            call(call_id="call_xyz123def"),
            output(),
            output("y", "call_xyz123def"),
        ],
        [
            user(),
            called(ONE, ("read_note", "xyz123def"), reasoning_content="a\nb"),
            tool(),
            tool("y", "xyz123def"),
        ],
    ),
    "two turns": (
        [user(), thought("a"), call(), output(), thought("b"), said("done"), user("more")],
        [
            user(),
            called(ONE, reasoning_content="a"),
            tool(),
            assistant("done", reasoning_content="b"),
            user("more"),
        ],
    ),
    "a thought as Codex may write it": (
        [user(), {"type": "reasoning", "summary": [], "content": [text("hm", "text")]}, said("yes"), user()],
        [user(), assistant("yes", reasoning_content="hm"), user()],
    ),
    "a summary alone": (
        [user(), thought(summary="need a", encrypted_content="ZW5j"), call(), output()],
        [user(), called(ONE, reasoning_content="need a"), tool()],
    ),
    "content beats summary": (
        [user(), thought("whole", summary="short"), call(), output()],
        [user(), called(ONE, reasoning_content="whole"), tool()],
    ),
    "an empty thought": (
        [{"type": "reasoning", "id": "rs_1", "summary": None, "content": None, "encrypted_content": None}, user()],
        [user()],
    ),
    "a thought nobody follows": ([user(), thought("a"), user("b")], [user("hi\nb")]),
    "a call as an object": (
        [user(), call({"path": "a"}), output()],
        [user(), called(ONE, arguments='{"path":"a"}'), tool()],
    ),
    "a call without arguments": ([user(), call(""), output()], [user(), called(ONE), tool()]),
    "an item id, no status": ([user(), call(id="fc_1"), output()], [user(), called(ONE), tool()]),
    "an output of parts": (
        [user(), call(), output([text("a"), text("b", "output_text")])],
        [user(), called(ONE), tool("a\nb")],
    ),
    "no output": ([user(), call(), output(None)], [user(), called(ONE), tool("")]),
    "a custom call": (
        [
            user(),
            {"type": "custom_tool_call", "call_id": "call_abc123def", "name": "apply_patch", "input": 'a"b'},
            {"type": "custom_tool_call_output", "call_id": "call_abc123def", "output": "ok"},
        ],
        [user(), called(("apply_patch", "abc123def"), arguments='{"input":"a\\"b"}'), tool("ok")],
    ),
    "a message of another agent": (
        [
            user(),
            {
                "type": "agent_message",
                "id": "amsg_1",
                "author": "lead",
                "recipient": "lead/look",
                "content": [text("Task: look"), {"type": "encrypted_content", "encrypted_content": "Say hello"}],
            },
        ],
        [user("hi\nTask: look\nSay hello")],
    ),
}


@pytest.mark.parametrize(("value", "messages"), INPUTS.values(), ids=INPUTS)
def test_the_turns_that_reach_llama_server(value: Any, messages: list[dict[str, Any]]) -> None:
    got, _ = upstream({"model": "m1", "input": value})
    assert got["messages"] == messages


def test_an_orphan_output_is_a_turn_of_its_own() -> None:
    """What becomes of it is the family's to say; the surface loses nothing."""
    request = parse(items(user(), output("x"), user("b")))[0].request
    assert isinstance(request, ChatRequest)
    assert [message.role for message in request.messages] == ["user", "tool", "user"]
    assert request.messages[1].parts == (ToolResult("abc123def", (Text("x"),)),)


def test_instructions_come_first() -> None:
    got, _ = upstream(items(message("developer", text("B")), user(), instructions="A"))
    assert got["messages"] == [{"role": "system", "content": "A\n\nB"}, user()]


def test_foreign_ids_of_calls_still_find_each_other() -> None:
    got, _ = upstream(items(user(), call(call_id="call_abc123"), output(call_id="call_abc123")))
    identity = got["messages"][1]["tool_calls"][0]["id"]
    assert len(identity) == 9
    assert got["messages"][2]["tool_call_id"] == identity


def test_an_image_in_an_output_reaches_the_model() -> None:
    got, _ = upstream(items(user(), call(), output([text("page"), {"type": "input_image", "image_url": PNG}])))
    assert PNG in repr(got["messages"][2:])


def test_remote_images_pass_where_the_operator_lets_them() -> None:
    request = items(message("user", {"type": "input_image", "image_url": "https://example.org/a.png"}))
    assert refusal(request).param == "input[0].content[0].image_url"
    assert "https://example.org/a.png" in repr(parse(request, remote_images=True)[0].request)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ([{**user(), "id": "msg_1", "status": "completed"}], ["input[].id", "input[].status"]),
        ([user(), said("a", phase="final_answer"), user()], None),
        ([user(), {"type": "ghost_snapshot", "ghost_commit": {}}], ["input[](ghost_snapshot)"]),
        ([user(), {"type": "mcp_list_tools", "tools": []}], ["input[](mcp_list_tools)"]),
        ([user(), thought("a"), user()], ["input[]", "input[].id"]),
        (
            [user(), thought("a", summary="b", encrypted_content="c"), said("x"), user()],
            [
                "input[].content[].annotations",
                "input[].content[].logprobs",
                "input[].encrypted_content",
                "input[].id",
                "input[].status",
                "input[].summary",
            ],
        ),
        (
            [message("user", {"type": "input_image", "image_url": PNG, "detail": "high"})],
            ["input[].content[].detail"],
        ),
        (
            [message("user", {**text("a"), "prompt_cache_breakpoint": {"mode": "explicit"}})],
            ["input[].content[].prompt_cache_breakpoint"],
        ),
        (
            [user(), call(caller={"type": "direct"}), output(name="read_note")],
            ["input[].caller", "input[].name"],
        ),
    ],
)
def test_what_is_ignored_is_named(value: list[Any], names: list[str] | None) -> None:
    got = ignored(upstream(items(*value))[1])
    assert got == names if names is not None else "input[].phase" in got


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([user(), said("a"), said("b"), user()], "input[]:assistant+assistant"),
        ([user(), call(), said("b"), output()], "input[]:order"),
        ([user(), thought(summary="a"), said("b"), user()], "input[].summary>input[].content"),
        ([user(), call({}), output()], "input[].arguments:object>string"),
        ([user(), message("assistant", {"type": "refusal", "refusal": "no"})], "input[].content[]:refusal>output_text"),
        (
            [user(), {"type": "custom_tool_call", "call_id": "c", "name": "x", "input": "a"}],
            "input[]:custom_tool_call>function_call",
        ),
        (
            [user(), {"type": "agent_message", "author": "a", "recipient": "b", "content": [text("x")]}],
            "input[]:agent_message>message",
        ),
        ([message("developer", text("D")), user()], "input[].role=developer>system"),
        ([message("developer", text("D")), message("system", text("S")), user()], "input[]:system+system"),
        ([user(), user()], "input[]:user+user"),
        ([user(), message("developer", text("D"))], "input[].role=developer>user"),
        ([{"role": "user"}], "input[].content"),
        ([user(), call(), output(None)], "input[].output"),
        ([user(), said("Once")], "input[]>enable_thinking=false"),
    ],
)
def test_what_is_changed_is_named(value: list[Any], shown: str) -> None:
    assert shown in changed(upstream(items(*value))[1])


REFUSED_KINDS = [
    "item_reference",
    "web_search_call",
    "file_search_call",
    "image_generation_call",
    "code_interpreter_call",
    "computer_call",
    "computer_call_output",
    "tool_search_call",
    "tool_search_output",
    "mcp_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "local_shell_call",
    "local_shell_call_output",
    "shell_call",
    "shell_call_output",
    "apply_patch_call",
    "apply_patch_call_output",
    "compaction",
    "context_compaction",
    "compaction_trigger",
    "configuration_update",
    "program",
    "program_output",
]


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("kind", REFUSED_KINDS)
def test_items_that_carry_meaning_are_refused_with_the_reason(kind: str, lenient: bool) -> None:
    error = refusal(items(user(), {"type": kind, "id": "x"}), lenient=lenient)
    assert (error.kind.status, error.param) == (400, "input[1]")
    assert kind in error.message


def test_a_reference_without_a_type_is_one() -> None:
    error = refusal(items({"id": "msg_1"}, user()))
    assert error.param == "input[0]"
    assert "not supported; replay the full input instead" in error.message


@pytest.mark.parametrize(
    ("value", "param", "code"),
    [
        (["hi"], "input[0]", "invalid_type"),
        ([{"type": "mesage", "role": "user"}], "input[0].type", "unsupported_value"),
        ([{"type": 5}], "input[0].type", "unsupported_value"),
        ([{"content": "x"}], "input[0].role", "missing_required_parameter"),
        ([{"role": "tool", "content": "x"}], "input[0].role", "unsupported_value"),
        ([{**user(), "contnt": 1}], "input[0].contnt", "unknown_parameter"),
        ([user(5)], "input[0].content", "invalid_type"),
        ([user(["x"])], "input[0].content[0]", "invalid_type"),
        ([user([{"type": "input_file", "file_data": "x"}])], "input[0].content[0].type", "unsupported_value"),
        ([user([{"type": "video"}])], "input[0].content[0].type", "unsupported_value"),
        ([user([{"type": "input_text", "txt": "x"}])], "input[0].content[0].txt", "unknown_parameter"),
        ([user([{"type": "input_image"}])], "input[0].content[0].image_url", "missing_required_parameter"),
        (
            [user([{"type": "input_image", "file_id": "f"}])],
            "input[0].content[0].file_id",
            "unsupported_parameter",
        ),
        (
            [user([{"type": "input_image", "image_url": "file:///etc/passwd"}])],
            "input[0].content[0].image_url",
            "unsupported_value",
        ),
        ([user([{"type": "input_audio"}])], "input[0].content[0].input_audio.data", "missing_required_parameter"),
        ([message("system", {"type": "input_image", "image_url": PNG})], "input[0].content", None),
        ([message("assistant", {"type": "input_image", "image_url": PNG})], "input[0].content", None),
        ([thought("a") | {"content": "a"}], "input[0].content", "invalid_type"),
        ([{"type": "reasoning", "summary": [text("a")]}], "input[0].summary[0].type", "unsupported_value"),
        ([{"type": "function_call", "name": "x", "arguments": "{}"}], "input[0].call_id", "missing_required_parameter"),
        ([{"type": "function_call", "call_id": "x"}], "input[0].name", "missing_required_parameter"),
        ([call("[1]")], "input[0].arguments", "unsupported_value"),
        ([call(5)], "input[0].arguments", "invalid_type"),
        ([call(caller={"type": "program", "caller_id": "x"})], "input[0].caller", "unsupported_value"),
        ([call(**{"async": True})], "input[0].async", "unsupported_value"),
        (
            [{"type": "custom_tool_call", "call_id": "x", "name": "y"}],
            "input[0].input",
            "missing_required_parameter",
        ),
        (
            [user([{"type": "encrypted_content", "encrypted_content": "x"}])],
            "input[0].content[0].type",
            "unsupported_value",
        ),
        ([{"type": "agent_message", "content": "x", "to": "y"}], "input[0].to", "unknown_parameter"),
        ([{"type": "function_call_output", "output": "x"}], "input[0].call_id", "missing_required_parameter"),
        ([output(5)], "input[0].output", "invalid_type"),
        ([output({"a": 1})], "input[0].output", "invalid_type"),
        (
            [output([{"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}])],
            "input[0].output",
            None,
        ),
        ([{"type": "reasoning", "summary": []}], "input", "unsupported_value"),
    ],
)
def test_what_is_refused_names_the_clients_own_path(value: list[Any], param: str, code: str | None) -> None:
    error = refusal(items(*value))
    assert (error.kind.status, error.param, error.code) == (400, param, code)


def test_an_answer_sent_back_whole_is_the_turn_it_was() -> None:
    """What agents do: every item of the output, as it is, in the next input."""
    tools = [
        {"type": "function", "name": "read_note"},
        {"type": "custom", "name": "apply_patch"},
        {"type": "namespace", "name": "notes", "description": "", "tools": [{"type": "function", "name": "find"}]},
    ]
    events: list[Event] = [Start()]
    parts = [
        ("reasoning", "", "", "hm"),
        ("text", "", "", "I look"),
        ("tool_call", "abc123def", "read_note", '{"path":"a"}'),
        ("tool_call", "bcd123def", "apply_patch", '{"input":"*** \\"x\\""}'),
        ("tool_call", "cde123def", "notes__find", "{}"),
    ]
    for index, (kind, identity, name, value) in enumerate(parts):
        events += [PartStart(index, kind, identity, name), PartDelta(index, value), PartEnd(index)]  # type: ignore[arg-type]
    events.append(Finish(FinishReason.TOOL_CALLS, Usage(1, 1)))
    for answer in (buffered(events, tools=tools)["output"], stream(events, tools=tools).items):
        got, _ = upstream(items(user(), *answer, tools=tools))
        turn = got["messages"][1]
        assert (turn["content"], turn["reasoning_content"]) == ("I look", "hm")
        assert [
            (item["id"], item["function"]["name"], item["function"]["arguments"]) for item in turn["tool_calls"]
        ] == [
            ("abc123def", "read_note", '{"path":"a"}'),
            ("bcd123def", "apply_patch", '{"input":"*** \\"x\\""}'),
            ("cde123def", "notes__find", "{}"),
        ]
