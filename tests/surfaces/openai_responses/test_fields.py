"""Every field of a Responses request: honoured, translated, reported or refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from responses_support import OTHER, SCHEMA, TOOL, body, changed, function, ignored, parse, refusal, upstream, user

from deck.api import Facts

OBJECT = {"type": "object"}
FORMAT = {"type": "json_schema", "name": "r", "schema": OBJECT}
HELD = {"response_format": {"type": "json_schema", "json_schema": {"name": "r", "schema": OBJECT}}}
LOGPROBS = "message.output_text.logprobs"


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({}, {}),
        ({"temperature": 0.5, "top_p": 1}, {"temperature": 0.5, "top_p": 1}),
        ({"presence_penalty": -2, "frequency_penalty": 2}, {"presence_penalty": -2, "frequency_penalty": 2}),
        ({"max_output_tokens": 16}, {"max_tokens": 16}),
        ({"max_output_tokens": 0}, {"max_tokens": 0}),
        ({"max_output_tokens": 2**31}, {"max_tokens": 2**31 - 1}),
        ({"max_tokens": 16}, {"max_tokens": 16}),
        ({"max_output_tokens": 16, "max_completion_tokens": 16}, {"max_tokens": 16}),
        (
            dict.fromkeys(
                (
                    "max_output_tokens",
                    "temperature",
                    "tools",
                    "tool_choice",
                    "text",
                    "reasoning",
                    "include",
                    "stream",
                    "stream_options",
                    "instructions",
                    "previous_response_id",
                    "conversation",
                    "prompt",
                    "background",
                    "truncation",
                    "metadata",
                    "top_logprobs",
                    "parallel_tool_calls",
                    "service_tier",
                    "store",
                    "context_management",
                    "moderation",
                )
            ),
            {},
        ),
        ({"seed": 7, "stop": "a", "top_k": -1, "min_p": 0.1}, {"seed": 7, "stop": ["a"], "top_k": 0, "min_p": 0.1}),
        ({"repetition_penalty": 1.1, "stop": []}, {"repeat_penalty": 1.1}),
        ({"repeat_last_n": -1}, {"repeat_last_n": 4096}),
        ({"logit_bias": {"5": -100}}, {"logit_bias": [[5, -100]]}),
        ({"extra_body": {"top_k": 20}}, {"top_k": 20}),
        ({"extra_body": {"max_output_tokens": 20}}, {"max_tokens": 20}),
        ({"reasoning_format": "none"}, {"reasoning_format": "none"}),
        ({"timings_per_token": True}, {"timings_per_token": True}),
        ({"stream": True, "return_progress": True}, {"return_progress": True}),
        ({"include": [LOGPROBS]}, {"logprobs": True, "top_logprobs": 1}),
        ({"include": [LOGPROBS], "top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"include": []}, {}),
        ({"top_logprobs": 3}, {}),
        ({"grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
        ({"text": {"format": {"type": "text"}}}, {}),
        ({"text": {"format": {}}}, {}),
        ({"text": {"format": None}}, {}),
        ({"text": {}}, {}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        ({"text": {"format": FORMAT}}, HELD),
        ({"text": {"format": {**FORMAT, "strict": None}}}, HELD),
        (
            {"json_schema": OBJECT},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": OBJECT}}},
        ),
        ({"tools": []}, {}),
        ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}, {}),
        ({"tools": [TOOL]}, {"tools": [function()]}),
        ({"tools": [{**OTHER, "parameters": None, "strict": False}]}, {"tools": [function(OTHER)]}),
        ({"tools": [TOOL], "parallel_tool_calls": False}, {"tools": [function()], "parallel_tool_calls": False}),
        ({"tools": [TOOL], "tool_choice": "required"}, {"tools": [function()], "tool_choice": "required"}),
        ({"reasoning": {"effort": "high"}}, "high"),
        ({"reasoning_effort": "high"}, "high"),
        ({"reasoning": {"effort": None, "summary": None}}, {}),
        ({"reasoning": {"max_tokens": 9}}, {"reasoning_budget_tokens": 9}),
        ({"model": "m1", "instructions": ""}, {}),
    ],
)
def test_what_reaches_llama_server(fields: dict[str, Any], sent: Any) -> None:
    got, _ = upstream(body(**fields))
    fixed = {"messages": [user()], "stream": True, "stream_options": {"include_usage": True}}
    if sent == "high":
        sent = {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": True}}
    assert got == {**fixed, **sent}


@pytest.mark.parametrize(
    "spelling",
    [
        {"reasoning": {"effort": "none"}},
        {"reasoning": {"enabled": False}},
        {"reasoning_effort": "none"},
        {"thinking": {"type": "disabled"}},
        {"enable_thinking": False},
        {"think": False},
        {"chat_template_args": {"enable_thinking": False}},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_all_spellings_of_not_thinking_have_one_effect(spelling: dict[str, Any]) -> None:
    got, _ = upstream(body(**spelling))
    assert got["chat_template_kwargs"] == {"enable_thinking": False}
    assert "reasoning_effort" not in got


def test_an_effort_the_template_lacks_names_the_clients_path() -> None:
    assert changed(upstream(body(reasoning={"effort": "minimal"}))[1]) == ["reasoning.effort=minimal>low"]
    facts = Facts(template_caps={"supports_reasoning_effort": False})
    assert ignored(upstream(body(reasoning={"effort": "high"}), facts)[1]) == ["reasoning.effort"]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temprature": 0.5}, "temprature", "unknown_parameter"),
        ({"extra_body": {"top_kk": 1}}, "extra_body.top_kk", "unknown_parameter"),
        ({"extra_body": {"input": "x"}}, "extra_body.input", None),
        ({"extra_body": {"instructions": "x"}}, "extra_body.instructions", None),
        ({"extra_body": {"tools": []}}, "extra_body.tools", None),
        ({"extra_body": {"stream": True}}, "extra_body.stream", None),
        ({"max_output_tokens": -1}, "max_output_tokens", "unsupported_value"),
        ({"max_output_tokens": 1.5}, "max_output_tokens", "unsupported_value"),
        ({"max_output_tokens": "16"}, "max_output_tokens", "invalid_type"),
        ({"max_tokens": -1}, "max_tokens", "unsupported_value"),
        ({"max_output_tokens": 1, "max_tokens": 2}, "max_tokens", None),
        ({"temperature": 2.5}, "temperature", "unsupported_value"),
        ({"temperature": math.nan}, "temperature", "unsupported_value"),
        ({"top_p": 1.1}, "top_p", "unsupported_value"),
        ({"top_logprobs": 21}, "top_logprobs", "unsupported_value"),
        ({"include": "reasoning.encrypted_content"}, "include", "invalid_type"),
        ({"include": ["reasoning"]}, "include[0]", "unsupported_value"),
        ({"include": [5]}, "include[0]", "invalid_type"),
        ({"include": [LOGPROBS], "tools": [TOOL]}, "include[0]", "unsupported_parameter"),
        ({"stream": "true"}, "stream", "invalid_type"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options", "unsupported_parameter"),
        ({"stream": True, "stream_options": {"include_usag": 1}}, "stream_options.include_usag", "unknown_parameter"),
        ({"text": "json_object"}, "text", "invalid_type"),
        ({"text": {"formt": {}}}, "text.formt", "unknown_parameter"),
        ({"text": {"format": "json_object"}}, "text.format", "invalid_type"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "unsupported_value"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "missing_required_parameter"),
        ({"text": {"format": {"type": "json_object", "schema": {}}}}, "text.format.schema", None),
        ({"text": {"format": {**FORMAT, "name": "a b"}}}, "text.format.name", "unsupported_value"),
        ({"text": {"format": {**FORMAT, "json_schema": {}}}}, "text.format.json_schema", "unknown_parameter"),
        ({"text": {"format": FORMAT}, "json_schema": OBJECT}, "json_schema", None),
        ({"text": {"format": FORMAT}, "grammar": "root ::= x"}, "grammar", None),
        ({"grammar": 'root ::= "a"', "tools": [TOOL]}, "grammar", None),
        ({"reasoning": "high"}, "reasoning", "invalid_type"),
        ({"reasoning": {"effort": "hard"}}, "reasoning.effort", "unsupported_value"),
        ({"reasoning": {"efort": "low"}}, "reasoning.efort", "unknown_parameter"),
        ({"reasoning": {"effort": "high"}, "enable_thinking": False}, "reasoning.effort", None),
        ({"reasoning": {"exclude": True}, "reasoning_format": "none"}, "reasoning_format", None),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "previous_response_not_found"),
        (
            {"extra_body": {"previous_response_id": "resp_1"}},
            "extra_body.previous_response_id",
            "previous_response_not_found",
        ),
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter"),
        ({"background": True}, "background", "unsupported_value"),
        ({"background_options": {}}, "background_options", "unsupported_parameter"),
        ({"context_management": [{"type": "compaction"}]}, "context_management", "unsupported_value"),
        ({"image": {"context_compression": "enabled"}}, "image", "unsupported_value"),
        ({"service_tier": "priority"}, "service_tier", "unsupported_value"),
        ({"truncation": "middle"}, "truncation", "unsupported_value"),
        ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm", "unsupported_value"),
        ({"prompt_cache_options": {"mod": "x"}}, "prompt_cache_options.mod", "unknown_parameter"),
        ({"metadata": {"a": 1}}, "metadata", "invalid_type"),
        ({"prompt_cache_key": 5}, "prompt_cache_key", "invalid_type"),
        ({"max_tool_calls": "5"}, "max_tool_calls", "invalid_type"),
        ({"instructions": ["x"]}, "instructions", "invalid_type"),
        ({"messages": []}, "messages", "unsupported_parameter"),
        ({"response_format": {"type": "text"}}, "response_format", "unsupported_parameter"),
        ({"logprobs": True}, "logprobs", "unsupported_parameter"),
        ({"return_token_ids": True}, "return_token_ids", "unsupported_parameter"),
        ({"n": 2}, "n", "unsupported_value"),
        ({"id_slot": 1}, "id_slot", "unsupported_parameter"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs.bos_token", "unsupported_parameter"),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "unsupported_value"),
        ({"input": 5}, "input", "invalid_type"),
        ({"model": None}, "model", "missing_required_parameter"),
    ],
)
def test_what_is_refused_names_the_clients_own_path(fields: dict[str, Any], param: str, code: str | None) -> None:
    error = refusal(body(**fields))
    assert error.kind.status == 400
    assert (error.param, error.code) == (param, code)
    assert param.split("[")[0].split(".")[-1] in error.message


@pytest.mark.parametrize(
    ("name", "value"),
    [("previous_response_id", "x"), ("conversation", {"id": "x"}), ("prompt", {"id": "x"}), ("background", True)],
)
def test_what_needs_storage_is_refused_with_the_remedy(name: str, value: Any) -> None:
    assert "not supported; replay the full input instead" in refusal(body(**{name: value})).message
    upstream(body(**{name: None}))


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"store": True}, ["store"]),
        ({"store": False}, ["store"]),
        ({}, []),
        ({"metadata": {"a": "b"}, "user": "u"}, ["metadata", "user"]),
        (
            {"access_programs": ["x"], "client_metadata": {"a": "b"}, "request_country": "ZZ"},
            ["access_programs", "client_metadata", "request_country"],
        ),
        ({"prompt_cache_key": "s", "safety_identifier": "x"}, ["prompt_cache_key", "safety_identifier"]),
        (
            {"prompt_cache_retention": "24h", "prompt_cache_options": {"mode": "implicit", "ttl": "30m"}},
            ["prompt_cache_options.mode", "prompt_cache_options.ttl", "prompt_cache_retention"],
        ),
        ({"truncation": "auto"}, ["truncation"]),
        ({"truncation": "disabled"}, []),
        ({"service_tier": "auto", "background": False}, ["background", "service_tier"]),
        ({"max_tool_calls": 5, "moderation": {"model": "x"}}, ["max_tool_calls", "moderation"]),
        ({"reasoning": {"summary": "auto"}}, ["reasoning.summary"]),
        (
            {"reasoning": {"generate_summary": "auto", "context": "all_turns", "mode": "pro"}},
            ["reasoning.context", "reasoning.generate_summary", "reasoning.mode"],
        ),
        (
            {"include": ["reasoning.encrypted_content", "web_search_call.results"]},
            ["include[](reasoning.encrypted_content)", "include[](web_search_call.results)"],
        ),
        ({"top_logprobs": 2}, ["top_logprobs"]),
        ({"top_logprobs": 0}, []),
        ({"text": {"verbosity": "low"}}, ["text.verbosity"]),
        (
            {"text": {"format": {**FORMAT, "strict": True, "description": "d"}}},
            ["text.format.description", "text.format.strict"],
        ),
        ({"text": {"format": {**FORMAT, "strict": False}}}, []),
        (
            {"text": {"format": {**FORMAT, "schema": {**SCHEMA, "minProperties": 1}}}},
            ["text.format.schema.minProperties"],
        ),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True, "reasoning_summary_delivery": "x"}},
            ["stream_options.include_obfuscation", "stream_options.reasoning_summary_delivery"],
        ),
        ({"parallel_tool_calls": True}, ["parallel_tool_calls"]),
        ({"return_progress": True}, ["return_progress"]),
        ({"reasoning_budget_message": "enough"}, ["reasoning_budget_message"]),
        ({"context_management": [], "image": {"context_compression": "auto"}}, ["context_management", "image"]),
        ({"extra_body": {"metadata": {}}}, ["extra_body.metadata"]),
    ],
)
def test_what_is_ignored_is_named(fields: dict[str, Any], names: list[str]) -> None:
    assert ignored(upstream(body(**fields))[1]) == names


def test_no_value_of_an_annotation_reaches_llama_server() -> None:
    got, report = upstream(body(metadata={"k": "canary-1"}, user="canary-2", client_metadata={"x": "canary-3"}))
    assert "canary" not in repr(got)
    assert "canary" not in repr(report.headers())


def test_other_spellings_of_the_budget_are_shown() -> None:
    assert changed(upstream(body(max_tokens=5))[1]) == ["max_tokens>max_output_tokens"]
    assert changed(upstream(body(max_output_tokens=2**31))[1]) == ["max_output_tokens>2147483647"]
    assert changed(upstream(body(max_output_tokens=5))[1]) == []


def test_the_clients_own_path_of_the_budget_is_remembered() -> None:
    assert parse(body(max_output_tokens=5))[0].paths["max_tokens"] == "max_output_tokens"
    assert parse(body(extra_body={"n_predict": 5}))[0].paths["max_tokens"] == "extra_body.n_predict"


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"temprature": 0.5}, ["temprature"]),
        ({"service_tier": "flex"}, ["service_tier"]),
        ({"include": ["news"]}, ["include[](news)"]),
        ({"tools": [TOOL, {"type": "news"}]}, ["tools[](news)"]),
    ],
)
def test_lenient_removes_and_reports_what_is_a_mere_hint(fields: dict[str, Any], names: list[str]) -> None:
    assert ignored(upstream(body(**fields), lenient=True)[1]) == names


@pytest.mark.parametrize("fields", [{"n": 2}, {"previous_response_id": "x"}, {"background": True}, {"id_slot": 1}])
def test_lenient_still_refuses_what_changes_the_answer(fields: dict[str, Any]) -> None:
    assert refusal(body(**fields), lenient=True).kind.status == 400


def test_a_count_reads_the_input_and_says_what_else_it_was_sent() -> None:
    fields = {"tools": [TOOL], "reasoning": {"effort": "low"}, "temperature": 1, "stream": True, "personality": "calm"}
    report = upstream(body(**fields), operation="count")[1]
    assert ignored(report) == ["personality", "stream", "temperature"]


def test_template_variables_that_the_profile_allows_pass() -> None:
    got, _ = upstream(body(chat_template_kwargs={"locale": "en"}), kwargs=frozenset({"locale"}))
    assert got["chat_template_kwargs"] == {"locale": "en"}


def test_the_input_is_never_changed() -> None:
    nested = {"type": "function", "function": {"name": "now"}}
    request = body(
        extra_body={"top_k": 1},
        tools=[TOOL, nested, {"type": "namespace", "name": "n", "description": "d", "tools": [TOOL]}],
        input=[{"role": "developer", "content": "x"}, user([{"type": "input_text", "text": "a"}])],
    )
    before = repr(request)
    upstream(request)
    assert repr(request) == before


def test_the_answer_needs_the_tokens_of_the_thoughts() -> None:
    assert parse(body())[0].needs.reasoning_tokens
