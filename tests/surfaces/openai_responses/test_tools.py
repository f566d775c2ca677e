"""Tools of Responses: functions, custom tools, namespaces, hosted ones, and the choice among them."""

from __future__ import annotations

from typing import Any

import pytest
from responses_support import (
    CUSTOM,
    GRAMMAR,
    NOTES,
    ONE_STRING,
    OTHER,
    TOOL,
    body,
    call,
    changed,
    function,
    ignored,
    items,
    parse,
    refusal,
    upstream,
    user,
)

from deck_plugins.surfaces.openai_responses.names import Named, upstream_name

HOSTED = [
    {"type": "web_search", "external_web_access": False},
    {"type": "web_search_2025_08_26", "filters": {"allowed_domains": ["example.org"]}},
    {"type": "web_search_preview", "search_context_size": "low", "user_location": {"type": "approximate"}},
    {"type": "file_search", "vector_store_ids": ["v"]},
    {"type": "image_generation", "output_format": "png"},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "computer_use_preview", "environment": "browser"},
    {"type": "computer"},
    {"type": "mcp", "server_label": "x", "server_url": "https://example.org"},
    {"type": "tool_search", "execution": "client", "description": "d", "parameters": {}},
    {"type": "local_shell"},
    {"type": "shell"},
    {"type": "apply_patch"},
    {"type": "programmatic_tool_calling"},
]


@pytest.mark.parametrize("tool", HOSTED, ids=lambda tool: tool["type"])
def test_a_hosted_tool_that_is_merely_listed_is_taken_out_and_named(tool: dict[str, Any]) -> None:
    got, report = upstream(body(tools=[TOOL, tool], tool_choice="auto"))
    assert got["tools"] == [function()]
    assert ignored(report) == [f"tools[]({tool['type']})"]
    alone, _ = upstream(body(tools=[tool], tool_choice="auto"))
    assert "tools" not in alone
    assert "tool_choice" not in alone


@pytest.mark.parametrize("tool", HOSTED, ids=lambda tool: tool["type"])
def test_a_hosted_tool_that_is_forced_is_refused(tool: dict[str, Any]) -> None:
    error = refusal(body(tools=[TOOL, tool], tool_choice={"type": tool["type"]}))
    assert (error.kind.status, error.param) == (400, "tool_choice")
    assert tool["type"] in error.message


@pytest.mark.parametrize(
    ("members", "names"),
    [
        ({"strict": True}, ["tools[].strict"]),
        ({"strict": False}, []),
        ({"strict": None}, []),
        ({"defer_loading": True, "output_schema": {}}, ["tools[].defer_loading", "tools[].output_schema"]),
        ({"allowed_callers": ["direct"], "async": True}, ["tools[].allowed_callers", "tools[].async"]),
        ({"cache_control": {"type": "ephemeral"}}, ["tools[].cache_control"]),
    ],
)
def test_members_of_a_function_without_effect_are_named(members: dict[str, Any], names: list[str]) -> None:
    got, report = upstream(body(tools=[{**TOOL, **members}]))
    assert got["tools"] == [function()]
    assert ignored(report) == names


def test_a_nested_function_is_read_as_a_flat_one() -> None:
    got, report = upstream(body(tools=[{"type": "function", "function": function()["function"]}]))
    assert got["tools"] == [function()]
    assert changed(report) == ["tools[].function>tools[]"]


def test_a_custom_tool_becomes_a_function_with_one_string() -> None:
    got, report = upstream(body(tools=[CUSTOM]))
    assert got["tools"] == [function(CUSTOM, parameters=ONE_STRING)]
    assert changed(report) == ["tools[]:custom>function"]
    assert ignored(report) == []


@pytest.mark.parametrize("form", [{"type": "text"}, {}, None])
def test_a_custom_tool_of_plain_text_loses_nothing(form: Any) -> None:
    got, report = upstream(body(tools=[{**CUSTOM, "format": form}]))
    assert got["tools"] == [function(CUSTOM, parameters=ONE_STRING)]
    assert ignored(report) == []


@pytest.mark.parametrize(
    ("form", "told"),
    [
        (GRAMMAR["format"], "Edit files\n\nThe input must match this Lark grammar:\nstart: /.+/s"),
        (
            {"type": "grammar", "syntax": "regex", "definition": "a+"},
            "Edit files\n\nThe input must match this regular expression:\na+",
        ),
    ],
)
def test_a_grammar_is_told_to_the_model_and_reported(form: Any, told: str) -> None:
    got, report = upstream(body(tools=[{**CUSTOM, "format": form}]))
    assert got["tools"][0]["function"]["description"] == told
    assert ignored(report) == ["tools[].format"]


def test_a_namespace_is_flattened_and_told() -> None:
    got, report = upstream(body(tools=[NOTES, OTHER]))
    described = function(name="notes__read_note", description="Read a note\n\n(Of all tools of notes: Notes)")
    assert got["tools"] == [described, function(OTHER)]
    assert changed(report) == ["tools[]:namespace>function"]
    assert ignored(report) == []


def test_children_of_functions_are_at_the_top() -> None:
    group = {"type": "namespace", "name": "functions", "tools": [{**CUSTOM, "name": "exec"}, OTHER]}
    got, report = upstream(body(tools=[group]))
    assert [tool["function"]["name"] for tool in got["tools"]] == ["exec", "now"]
    assert "tools[]:namespace>function" not in changed(report)


def test_hosted_children_of_a_namespace_are_taken_out() -> None:
    got, report = upstream(body(tools=[{**NOTES, "tools": [{"type": "mcp"}, TOOL]}]))
    assert len(got["tools"]) == 1
    assert ignored(report) == ["tools[].tools[](mcp)"]
    alone, _ = upstream(body(tools=[{**NOTES, "tools": []}]))
    assert "tools" not in alone


def more(*tools: Any, **members: Any) -> dict[str, Any]:
    return {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": list(tools), **members}


def test_tools_that_stand_in_the_input_are_offered() -> None:
    group = {"type": "namespace", "name": "functions", "description": "", "tools": [{**CUSTOM, "name": "exec"}, OTHER]}
    request = items(more(group, NOTES, {"type": "web_search"}), user(), tool_choice="auto", parallel_tool_calls=True)
    got, report = upstream(request)
    assert [tool["function"]["name"] for tool in got["tools"]] == ["exec", "now", "notes__read_note"]
    assert (got["tool_choice"], got["parallel_tool_calls"]) == ("auto", True)
    assert got["messages"] == [user()]
    assert "input[]>tools" in changed(report)
    assert ignored(report) == ["input[].id", "input[].role", "input[].tools[](web_search)"]
    reply = parse(request)[0].reply
    assert reply.named["exec"] == Named("custom", "exec")
    assert reply.settings["tools"] == []


def test_tools_that_are_sent_again_are_offered_once() -> None:
    got, _ = upstream(items(more(TOOL, NOTES), user(), more(TOOL, OTHER, NOTES), tools=[TOOL]))
    assert [tool["function"]["name"] for tool in got["tools"]] == ["read_note", "notes__read_note", "now"]
    error = refusal(items(more({**TOOL, "description": "Another"}), user(), tools=[TOOL]))
    assert error.param == "input[0].tools[0].name"


def test_a_tool_of_the_input_can_be_chosen() -> None:
    got, _ = upstream(items(more(TOOL, OTHER), user(), tool_choice={"type": "function", "name": "now"}))
    assert [tool["function"]["name"] for tool in got["tools"]] == ["now"]


@pytest.mark.parametrize(
    ("item", "param", "code"),
    [
        (more() | {"tools": None}, "input[0].tools", "missing_required_parameter"),
        (more() | {"tools": {}}, "input[0].tools", "invalid_type"),
        (more(TOOL, toolz=[]), "input[0].toolz", "unknown_parameter"),
        (more({**TOOL, "nmae": 1}), "input[0].tools[0].nmae", "unknown_parameter"),
    ],
)
def test_tools_of_the_input_that_are_refused(item: dict[str, Any], param: str, code: str) -> None:
    error = refusal(items(item, user()))
    assert (error.param, error.code) == (param, code)


def test_the_answer_knows_every_tool_by_the_clients_name() -> None:
    reply = parse(body(tools=[TOOL, CUSTOM, {**NOTES, "tools": [TOOL, {**CUSTOM, "name": "write"}]}]))[0].reply
    assert reply.named == {
        "read_note": Named("function", "read_note"),
        "apply_patch": Named("custom", "apply_patch"),
        "notes__read_note": Named("function", "read_note", "notes"),
        "notes__write": Named("custom", "write", "notes"),
    }


@pytest.mark.parametrize(
    ("name", "namespace", "joined"),
    [
        ("read", None, "read"),
        ("read", "functions", "read"),
        ("read", "notes", "notes__read"),
        ("read", "mcp__notes__", "mcp__notes__read"),
    ],
)
def test_joined_names(name: str, namespace: str | None, joined: str) -> None:
    assert upstream_name(name, namespace) == joined


def test_joined_names_that_do_not_fit_stay_apart_and_are_always_the_same() -> None:
    pairs = [("n" * 60, "a" * 60), ("n" * 60 + "x", "a" * 60), ("read", "my notes"), ("read", "my.notes"), ("é", "n")]
    names = [upstream_name(*pair) for pair in pairs]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 64 and name.isascii() for name in names)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") for name in names)
    assert names == [upstream_name(*pair) for pair in pairs]


def test_a_call_of_history_gets_the_name_its_tool_has() -> None:
    got, _ = upstream(items(user(), call(namespace="notes"), call(call_id="b", namespace="functions"), tools=[NOTES]))
    assert [item["function"]["name"] for item in got["messages"][1]["tool_calls"]] == ["notes__read_note", "read_note"]


CHOICES: dict[str, tuple[Any, list[str], str | None]] = {
    "auto": ("auto", ["read_note", "now", "apply_patch", "notes__read_note"], "auto"),
    "required": ("required", ["read_note", "now", "apply_patch", "notes__read_note"], "required"),
    "none": ("none", [], None),
    "function": ({"type": "function", "name": "now"}, ["now"], "required"),
    "nested": ({"type": "function", "function": {"name": "now"}}, ["now"], "required"),
    "custom": ({"type": "custom", "name": "apply_patch"}, ["apply_patch"], "required"),
    "in a namespace": (
        {"type": "function", "name": "read_note", "namespace": "notes"},
        ["notes__read_note"],
        "required",
    ),
    "allowed": (
        {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "now"}, {"type": "custom", "name": "apply_patch"}],
        },
        ["now", "apply_patch"],
        "auto",
    ),
    "allowed namespace": (
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "namespace", "name": "notes"}]},
        ["notes__read_note"],
        "required",
    ),
    "allowed hosted too": (
        {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "now"}, {"type": "mcp", "server_label": "x"}],
        },
        ["now"],
        "auto",
    ),
}


@pytest.mark.parametrize(("choice", "names", "mode"), CHOICES.values(), ids=CHOICES)
def test_a_choice_narrows_what_is_offered(choice: Any, names: list[str], mode: str | None) -> None:
    got, report = upstream(body(tools=[TOOL, OTHER, CUSTOM, NOTES], tool_choice=choice))
    assert [tool["function"]["name"] for tool in got.get("tools", [])] == names
    assert got.get("tool_choice") == mode
    shown = {"none": "tool_choice=none>tools"}.get(str(choice), "tool_choice>tools")
    assert (shown in changed(report)) == (choice not in ("auto", "required"))


def test_allowed_tools_of_which_none_can_be_called() -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "x"}]}
    got, report = upstream(body(tools=[TOOL], tool_choice=choice))
    assert "tools" not in got
    assert ignored(report) == ["tool_choice.tools[](mcp)"]
    assert refusal(body(tools=[TOOL], tool_choice={**choice, "mode": "required"})).param == "tool_choice"


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tools": {}}, "tools", "invalid_type"),
        ({"tools": ["x"]}, "tools[0]", "invalid_type"),
        ({"tools": [{"type": "funktion", "name": "x"}]}, "tools[0].type", "unsupported_value"),
        ({"tools": [{"type": 5}]}, "tools[0].type", "unsupported_value"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "unsupported_value"),
        ({"tools": [{**TOOL, "nmae": 1}]}, "tools[0].nmae", "unknown_parameter"),
        ({"tools": [{**TOOL, "parameters": "x"}]}, "tools[0].parameters", "invalid_type"),
        ({"tools": [{**TOOL, "allowed_callers": ["programmatic"]}]}, "tools[0].allowed_callers", "unsupported_value"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name", None),
        ({"tools": [{**CUSTOM, "parameters": {}}]}, "tools[0].parameters", "unknown_parameter"),
        ({"tools": [{**CUSTOM, "format": {"type": "xml"}}]}, "tools[0].format.type", "unsupported_value"),
        (
            {"tools": [{**CUSTOM, "format": {"type": "grammar", "syntax": "lark"}}]},
            "tools[0].format.definition",
            "missing_required_parameter",
        ),
        ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name", "missing_required_parameter"),
        ({"tools": [{"type": "namespace", "name": "n"}]}, "tools[0].tools", "missing_required_parameter"),
        ({"tools": [{**NOTES, "tools": [NOTES]}]}, "tools[0].tools[0].type", "unsupported_value"),
        ({"tools": [{**NOTES, "tools": [{**TOOL, "x": 1}]}]}, "tools[0].tools[0].x", "unknown_parameter"),
        ({"tools": [NOTES, {**TOOL, "name": "notes__read_note"}]}, "tools[1].name", None),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice", "unsupported_value"),
        ({"tools": [TOOL], "tool_choice": 5}, "tool_choice", "invalid_type"),
        ({"tools": [TOOL], "tool_choice": {}}, "tool_choice.type", "missing_required_parameter"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice", "missing_required_parameter"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}},
            "tool_choice",
            "unsupported_value",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "custom", "name": "read_note"}},
            "tool_choice",
            "unsupported_value",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "read_note", "nam": 1}},
            "tool_choice.nam",
            "unknown_parameter",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "tools": []}},
            "tool_choice.mode",
            "missing_required_parameter",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [5]}},
            "tool_choice.tools[0]",
            "invalid_type",
        ),
        (
            {"tools": [{**CUSTOM, "format": {"type": "text", "syntax": "lark", "definition": "x"}}]},
            "tools[0].format.syntax",
            "unsupported_parameter",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "read_note", "mode": "auto"}},
            "tool_choice.mode",
            "unsupported_parameter",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "name": "x", "mode": "auto", "tools": []}},
            "tool_choice.name",
            "unsupported_parameter",
        ),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", None),
    ],
)
def test_what_is_refused_names_the_clients_own_path(fields: dict[str, Any], param: str, code: str | None) -> None:
    error = refusal(body(**fields))
    assert (error.kind.status, error.param, error.code) == (400, param, code)


def test_a_collision_names_both_tools() -> None:
    message = refusal(body(tools=[{**TOOL, "name": "notes__read_note"}, NOTES])).message
    assert "'read_note' of the namespace 'notes'" in message
    assert "'notes__read_note'" in message
