"""Every field of a Messages request: honoured, translated, reported or refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from messages_support import (
    CALL,
    OTHER,
    TOOL,
    UPSTREAM_TOOL,
    assistant,
    body,
    changed,
    ignored,
    parse,
    refusal,
    result,
    text,
    upstream,
    user,
)

from deck.api import ChatRequest, Facts, Treatment
from deck_plugins.surfaces.anthropic_messages.fields import FIELDS, MESSAGE, OUTPUT_CONFIG
from deck_plugins.surfaces.anthropic_messages.fields import TOOL as TOOL_TABLE

ANY = {"type": "object"}


def formatted(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}


def thinks(on: bool, **members: Any) -> dict[str, Any]:
    return {"chat_template_kwargs": {"enable_thinking": on}, **members}


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"max_tokens": 16}, {"max_tokens": 16}),
        ({"max_tokens": 16.0}, {"max_tokens": 16}),
        ({"max_tokens": 0}, {"max_tokens": 0}),
        ({"max_tokens": None}, {}),
        ({"max_tokens": None, "n_predict": 16}, {"max_tokens": 16}),
        ({"max_tokens": 2**31}, {"max_tokens": 2**31 - 1}),
        ({"temperature": 0.5}, {"temperature": 0.5}),
        ({"temperature": 1}, {"temperature": 1}),
        ({"top_p": 0.9, "top_k": 40}, {"top_p": 0.9, "top_k": 40}),
        ({"stop_sequences": ["a", "b"]}, {"stop": ["a", "b"]}),
        ({"stop_sequences": []}, {}),
        ({"stop": ["a"]}, {"stop": ["a"]}),
        ({"min_p": 0.1, "typical_p": 0.9, "seed": 7}, {"min_p": 0.1, "typical_p": 0.9, "seed": 7}),
        ({"frequency_penalty": -2, "presence_penalty": 2}, {"frequency_penalty": -2, "presence_penalty": 2}),
        ({"repetition_penalty": 1.1}, {"repeat_penalty": 1.1}),
        ({"repeat_last_n": -1}, {"repeat_last_n": 4096}),
        ({"samplers": ["top_k", "temperature"]}, {"samplers": ["top_k", "temperature"]}),
        ({"logit_bias": {"5": -100}}, {"logit_bias": [[5, -100]]}),
        ({"cache_prompt": False, "ignore_eos": True}, {"cache_prompt": False, "ignore_eos": True}),
        ({"extra_body": {"min_p": 0.1, "top_k": 20}}, {"min_p": 0.1, "top_k": 20}),
        ({"reasoning_format": "none"}, {"reasoning_format": "none"}),
        ({"add_generation_prompt": True}, {"add_generation_prompt": True}),
        ({"grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
        ({"json_schema": ANY}, formatted(ANY)),
        ({"output_config": {"format": {"type": "json_schema", "schema": ANY}}}, formatted(ANY)),
        ({"output_format": {"type": "json_schema", "schema": ANY}}, formatted(ANY)),
        (
            {
                "output_format": {"type": "json_schema", "schema": ANY},
                "output_config": {"format": {"type": "json_schema", "schema": ANY}},
            },
            formatted(ANY),
        ),
        ({"output_config": {"format": None, "effort": None}}, {}),
        ({"output_config": {}}, {}),
        ({"output_config": {"effort": "high"}}, {"reasoning_effort": "high"}),
        ({"output_config": {"effort": "max"}}, {"reasoning_effort": "high"}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ({"reasoning_effort": "low", "output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"reasoning_effort": "none"}, thinks(False)),
        ({"thinking": {"type": "adaptive"}}, thinks(True)),
        ({"thinking": {"type": "disabled"}}, thinks(False)),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, thinks(False)),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
            thinks(True, reasoning_effort="high"),
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 32}}, thinks(True, reasoning_budget_tokens=32)),
        ({"thinking": {"type": "enabled", "budget_tokens": 64}}, thinks(True, reasoning_budget_tokens=63)),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1}, thinks(False, max_tokens=1)),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, thinks(False)),
        ({"thinking": {"type": "enabled"}}, thinks(True)),
        ({"thinking": None}, {}),
        ({"thinking_budget_tokens": 8}, {"reasoning_budget_tokens": 8}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, thinks(False)),
        ({"tools": []}, {}),
        ({"tools": None, "tool_choice": None}, {}),
        ({"tools": [], "tool_choice": {"type": "auto"}}, {}),
        ({"tools": [TOOL]}, {"tools": [UPSTREAM_TOOL]}),
        ({"tools": [{**TOOL, "type": "custom"}]}, {"tools": [UPSTREAM_TOOL]}),
        ({"tools": [{**TOOL, "type": None}]}, {"tools": [UPSTREAM_TOOL]}),
        ({"tools": [TOOL], "tool_choice": {"type": "auto"}}, {"tools": [UPSTREAM_TOOL], "tool_choice": "auto"}),
        ({"tools": [TOOL], "tool_choice": {"type": "any"}}, {"tools": [UPSTREAM_TOOL], "tool_choice": "required"}),
        ({"tools": [TOOL], "tool_choice": {"type": "none"}}, {}),
        (
            {"tools": [OTHER, TOOL], "tool_choice": {"type": "tool", "name": "read_note"}},
            {"tools": [UPSTREAM_TOOL], "tool_choice": "required"},
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            {"tools": [UPSTREAM_TOOL], "tool_choice": "auto", "parallel_tool_calls": False},
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": False}},
            {"tools": [UPSTREAM_TOOL], "tool_choice": "auto"},
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}, TOOL]}, {"tools": [UPSTREAM_TOOL]}),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, {}),
    ],
)
def test_what_reaches_llama_server(fields: dict[str, Any], sent: dict[str, Any]) -> None:
    got, _ = upstream(body(**fields))
    fixed = {"messages": [user()], "stream": True, "stream_options": {"include_usage": True}}
    expected = {**fixed, "max_tokens": 64, **sent}
    if fields.get("max_tokens", 1) is None and "max_tokens" not in sent:
        del expected["max_tokens"]
    assert got == expected


def test_max_tokens_may_be_left_out() -> None:
    request = body()
    del request["max_tokens"]
    assert "max_tokens" not in upstream(request)[0]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"metadata": {"user_id": "u"}}, "metadata"),
        ({"cache_control": {"type": "ephemeral", "ttl": "1h"}}, "cache_control"),
        ({"betas": ["x"]}, "betas"),
        ({"anthropic_beta": ["x"]}, "anthropic_beta"),
        ({"anthropic_version": "bedrock-2023-05-31"}, "anthropic_version"),
        ({"service_tier": "auto"}, "service_tier"),
        ({"service_tier": "standard_only"}, "service_tier"),
        ({"speed": "standard"}, "speed"),
        ({"speed": "fast"}, "speed"),
        ({"diagnostics": {"previous_message_id": "msg_1"}}, "diagnostics"),
        ({"fallbacks": [{"model": "other"}]}, "fallbacks"),
        ({"fallback_credit_token": "x"}, "fallback_credit_token"),
        ({"context_hint": {"a": 1}}, "context_hint"),
        ({"inference_geo": "us"}, "inference_geo"),
        ({"user_profile_id": "p", "workspace_id": "w"}, "user_profile_id, workspace_id"),
        ({"billing_policy": {}}, "billing_policy"),
        ({"safeguards": {}}, "safeguards"),
        ({"mcp_servers": []}, "mcp_servers"),
        ({"n": 1}, "n"),
        ({"timings_per_token": False}, "timings_per_token"),
        ({"output_config": {"task_budget": {"type": "tokens", "total": 9}}}, "output_config.task_budget"),
        ({"thinking": {"type": "adaptive", "display": "summarized"}}, "thinking.display"),
        ({"thinking": {"type": "adaptive", "display": "updates"}}, "thinking.display"),
        ({"thinking": {"type": "adaptive", "display": "highlights"}}, "thinking.display"),
        ({"thinking": {"type": "adaptive", "block_binding": "x"}}, "thinking.block_binding"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, "output_config.effort"),
        ({"reasoning_budget_message": "enough"}, "reasoning_budget_message"),
        (
            {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
            "context_management",
        ),
        (
            {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "all"}}]}},
            "context_management",
        ),
        ({"context_management": {"edits": []}}, "context_management"),
        ({"tools": [], "tool_choice": {"type": "auto"}}, "tool_choice"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]}, "tools[]"),
        ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "x"}]}, "tools[]"),
        ({"tools": [{**TOOL, "strict": True}]}, "tools[].strict"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[].defer_loading"),
        ({"tools": [{**TOOL, "eager_input_streaming": True}]}, "tools[].eager_input_streaming"),
        ({"tools": [{**TOOL, "input_examples": [{"path": "a"}]}]}, "tools[].input_examples"),
        ({"tools": [{**TOOL, "allowed_callers": ["direct"]}]}, "tools[].allowed_callers"),
        ({"tools": [{**TOOL, "cache_control": {"type": "ephemeral"}}]}, "tools[].cache_control"),
        ({"system": [text("a", cache_control={"type": "ephemeral"})]}, "system[].cache_control"),
        ({"messages": [user([text("a", citations=[{"type": "x"}])])]}, "messages[].content[].citations"),
        ({"messages": [{**user(), "cache_control": {"type": "ephemeral"}}]}, "messages[].cache_control"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {**ANY, "minProperties": 1}}}},
            "output_config.format.schema.minProperties",
        ),
    ],
)
def test_what_has_no_effect_is_reported_under_the_clients_path(fields: dict[str, Any], name: str) -> None:
    got, report = upstream(body(**fields))
    assert ", ".join(ignored(report)) == name
    assert all(note.detail for note in report.notes)
    assert "metadata" not in got


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"max_tokens": 2**31}, f"max_tokens>{2**31 - 1}"),
        ({"stop": ["a"]}, "stop>stop_sequences"),
        ({"thinking": {"type": "enabled", "budget_tokens": 64}}, "thinking.budget_tokens=64>63"),
        (
            {"max_tokens": 1, "thinking": {"type": "enabled", "budget_tokens": 1024}},
            "thinking.budget_tokens=1024>0",
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.type=enabled>disabled"),
        ({"tools": [TOOL], "tool_choice": {"type": "none"}}, "tool_choice=none>tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "read_note"}}, "tool_choice>tools"),
        ({"output_format": {"type": "json_schema", "schema": ANY}}, "output_format>output_config.format"),
        ({"output_config": {"effort": "xhigh"}}, "output_config.effort=xhigh>high"),
        ({"thinking_budget_tokens": 8}, "thinking_budget_tokens>reasoning_budget_tokens"),
    ],
)
def test_what_is_changed_is_reported(fields: dict[str, Any], shown: str) -> None:
    assert changed(upstream(body(**fields))[1]) == [shown]


def test_an_effort_that_the_template_does_not_know_is_reported() -> None:
    facts = Facts(template_caps={"supports_reasoning_effort": False})
    got, report = upstream(body(output_config={"effort": "high"}), facts)
    assert "reasoning_effort" not in got
    assert ignored(report) == ["output_config.effort"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "8"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": 2}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"stop_sequences": "a"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": ["a", " \n"]}, "stop_sequences[1]"),
        ({"stop_sequences": [f"s{place}" for place in range(65)]}, "stop_sequences"),
        ({"stream": 1}, "stream"),
        ({"system": 1}, "system"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"system": ["a"]}, "system[0]"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {}}, "thinking.type"),
        ({"thinking": True}, "thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "display": "full"}}, "thinking.display"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}, "reasoning_format": "none"}, "reasoning_format"),
        ({"thinking": {"type": "adaptive", "effort": "high"}}, "thinking.effort"),
        ({"thinking": {"type": "disabled"}, "reasoning_budget_tokens": 8}, "reasoning_budget_tokens"),
        (
            {"thinking": {"type": "adaptive"}, "chat_template_kwargs": {"enable_thinking": False}},
            "chat_template_kwargs.enable_thinking",
        ),
        ({"reasoning_effort": "low", "output_config": {"effort": "high"}}, "reasoning_effort"),
        ({"chat_template_kwargs": {"other": 1}}, "chat_template_kwargs.other"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"efort": "high"}}, "output_config.efort"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": ANY}}, "grammar": "root ::= x"},
            "grammar",
        ),
        (
            {
                "output_config": {"format": {"type": "json_schema", "schema": ANY}},
                "output_format": {"type": "json_schema", "schema": {}},
            },
            "output_format",
        ),
        ({"grammar": "root ::= x", "tools": [TOOL]}, "grammar"),
        ({"json_schema": 1}, "json_schema"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"speed": "slow"}, "speed"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"compaction": {"type": "summarize"}}, "compaction"),
        ({"thread": {}}, "thread"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0]"),
        ({"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}, "context_management.edits[0]"),
        (
            {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all", "x": 1}]}},
            "context_management.edits[0]",
        ),
        ({"context_management": {"edits": ["x"]}}, "context_management.edits[0]"),
        ({"context_management": {"edits": [], "enabled": True}}, "context_management.enabled"),
        ({"logprobs": True}, "logprobs"),
        ({"timings_per_token": True}, "timings_per_token"),
        ({"parallel_tool_calls": True}, "parallel_tool_calls"),
        ({"response_format": {"type": "text"}}, "response_format"),
        ({"max_completion_tokens": 8}, "max_completion_tokens"),
        ({"id_slot": 1}, "id_slot"),
        ({"n": 2}, "n"),
        ({"temprature": 0.5}, "temprature"),
        ({"extra_body": {"temprature": 0.5}}, "extra_body.temprature"),
        ({"extra_body": {"messages": []}}, "extra_body.messages"),
        ({"extra_body": {"system": "x"}}, "extra_body.system"),
        ({"extra_body": {"top_k": 20}, "top_k": 40}, "extra_body.top_k"),
        ({"extra_body": 1}, "extra_body"),
        ({"tools": {}}, "tools"),
        ({"tools": ["x"]}, "tools[0]"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": ANY}]}, "tools[0].name"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{**TOOL, "parameters": {}}]}, "tools[0].parameters"),
        ({"tools": [{**TOOL, "type": "function"}]}, "tools[0].type"),
        ({"tools": [{**TOOL, "type": 1}]}, "tools[0].type"),
        ({"tools": [{**TOOL, "allowed_callers": ["code_execution_20260120"]}]}, "tools[0].allowed_callers"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "auto", "name": "read_note"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}], "tool_choice": {"type": "any"}}, "tool_choice"),
        (
            {
                "tools": [{"type": "web_search_20250305", "name": "web_search"}, TOOL],
                "tool_choice": {"type": "tool", "name": "web_search"},
            },
            "tool_choice.name",
        ),
        ({"model": None}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
    ],
)
def test_what_cannot_be_honoured_is_refused_naming_it(fields: dict[str, Any], param: str) -> None:
    error = refusal(body(**fields))
    assert (error.kind.status, error.param) == (400, param)
    assert param.rpartition(".")[2] in error.message


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"temprature": 1}, ["temprature"]),
        ({"service_tier": "priority"}, ["service_tier"]),
        ({"timings_per_token": True}, ["timings_per_token"]),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}], "enabled": True}},
            ["context_management", "context_management.enabled"],
        ),
        ({"tools": [{**TOOL, "allowed_callers": ["code_execution_20260120"]}]}, ["tools[].allowed_callers"]),
    ],
)
def test_a_lenient_token_gets_hints_removed_and_listed(fields: dict[str, Any], names: list[str]) -> None:
    assert ignored(upstream(body(**fields), lenient=True)[1]) == names


@pytest.mark.parametrize("fields", [{"container": "c"}, {"mcp_servers": [{}]}, {"compaction": {"type": "summarize"}}])
def test_what_changes_the_meaning_is_refused_even_when_lenient(fields: dict[str, Any]) -> None:
    assert refusal(body(**fields), lenient=True).kind.status == 400


def test_null_on_a_field_is_absence() -> None:
    for row in FIELDS:
        if row.name.endswith("*") or row.name in ("model", "messages") or row.treatment is Treatment.TOLERATED:
            continue
        got, report = upstream(body(**{row.name: None}))
        assert got["messages"] == [user()], row.name
        assert ignored(report) == [], row.name


def test_unknown_members_are_refused_at_any_depth() -> None:
    history = [user([result("r", xx=1)])]
    assert refusal(body(messages=history)).param == "messages[0].content[0].xx"
    assert refusal(body(messages=[{**user(), "xx": 1}])).param == "messages[0].xx"
    assert refusal(body(messages=[user([text("a", xx=1)])])).param == "messages[0].content[0].xx"
    assert refusal(body(system=[text("a", xx=1)])).param == "system[0].xx"
    assert refusal(body(tools=[{**TOOL, "xx": 1}])).param == "tools[0].xx"
    assert refusal(body(messages=[user(), assistant({**CALL, "xx": 1})])).param == "messages[1].content[0].xx"


def test_the_rows_that_need_an_answer_say_why() -> None:
    for table in (FIELDS, MESSAGE, OUTPUT_CONFIG, TOOL_TABLE):
        for row in table:
            assert row.treatment is Treatment.MAPPED or row.reason, row.name


def test_the_needs_of_an_answer() -> None:
    assert not parse(body())[0].needs.stop_sequence
    assert not parse(body())[0].needs.prompt_progress
    assert parse(body(stop_sequences=["a"]))[0].needs.stop_sequence
    assert parse(body(stream=True))[0].needs.prompt_progress
    assert parse(body(stop_sequences=["a"]))[0].paths["stop"] == "stop_sequences"


def test_the_output_names_its_own_place() -> None:
    parsed, _ = parse(body(output_config={"format": {"type": "json_schema", "schema": ANY}}))
    assert isinstance(parsed.request, ChatRequest)
    assert parsed.request.output is not None
    assert parsed.request.output.path == "output_config.format"


# Headers


@pytest.mark.parametrize(
    ("headers", "names"),
    [
        ({}, []),
        ({"anthropic-version": "2023-06-01"}, []),
        ({"anthropic-version": "2026-10-21"}, []),
        ({"anthropic-version": "2031-01-01"}, ["anthropic-version"]),
        ({"anthropic-beta": "a-2025-01-01,b-2025-01-01"}, ["anthropic-beta"]),
        ({"anthropic-beta": ""}, []),
    ],
)
def test_headers_without_effect_are_reported_once(headers: dict[str, str], names: list[str]) -> None:
    _, report = upstream(body(), headers=headers)
    assert ignored(report) == names
    assert len(report.notes) == len(names)


def test_sampling_is_accepted_under_every_version() -> None:
    got, _ = upstream(body(temperature=0.5, top_k=3), headers={"anthropic-version": "2026-10-21"})
    assert (got["temperature"], got["top_k"]) == (0.5, 3)


# The counter


@pytest.mark.parametrize("name", ["max_tokens", "stream", "stop_sequences", "metadata", "temperature"])
def test_the_counter_refuses_what_is_not_its_own(name: str) -> None:
    request = {"model": "m1", "messages": [user()], name: 1}
    assert refusal(request, operation="count").param == name


def test_the_counter_reads_all_that_makes_the_prompt() -> None:
    request = {
        "model": "m1",
        "messages": [user()],
        "system": "Be brief.",
        "tools": [TOOL],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 10000},
        "output_config": {"effort": "high"},
        "cache_control": {"type": "ephemeral"},
        "speed": "standard",
    }
    got, report = upstream(request, operation="count")
    assert got["messages"][0] == {"role": "system", "content": "Be brief."}
    assert got["tools"] == [UPSTREAM_TOOL]
    assert got["chat_template_kwargs"] == {"enable_thinking": True}
    assert ignored(report) == ["cache_control", "speed"]
