"""Every field of a Chat request: honoured, translated, reported or refused."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
from chat_support import OTHER, TOOL, body, changed, ignored, parse, refusal, upstream, user

from deck.api import DeckError, Facts, Memory, ParseOptions, Report, Treatment
from deck.canon.request import UNSET_REASONING
from deck.config import Config
from deck.exchange import Exchange
from deck.plugins import Plugins
from deck.profile import Profile
from deck.serving import NOBODY
from deck.shaping import Shaper
from deck_plugins.surfaces.openai_chat import OpenAIChat
from deck_plugins.surfaces.openai_chat.fields import FIELDS, MESSAGE

parsing = sys.modules["deck_plugins.surfaces.openai_chat.parse"]  # the package has a function of that name

ALLOWED: dict[str, Any] = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "read_note"}}]},
}


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"temperature": 0.5}, {"temperature": 0.5}),
        ({"top_p": 1}, {"top_p": 1}),
        ({"max_tokens": 16}, {"max_tokens": 16}),
        ({"max_tokens": 16.0}, {"max_tokens": 16}),
        ({"max_tokens": 0}, {"max_tokens": 0}),
        ({"max_completion_tokens": 16}, {"max_tokens": 16}),
        ({"n_predict": 16}, {"max_tokens": 16}),
        ({"max_completion_tokens": 16, "max_tokens": 16}, {"max_tokens": 16}),
        ({"max_tokens": 2**31}, {"max_tokens": 2**31 - 1}),
        ({"max_tokens": None, "temperature": None, "stop": None, "tools": None, "stream_options": None}, {}),
        ({"stop": "a"}, {"stop": ["a"]}),
        ({"stop": ["a", "b"]}, {"stop": ["a", "b"]}),
        ({"stop": []}, {}),
        ({"seed": 7}, {"seed": 7}),
        ({"frequency_penalty": -2, "presence_penalty": 2}, {"frequency_penalty": -2, "presence_penalty": 2}),
        ({"min_p": 0.1, "typical_p": 0.9, "top_k": 5}, {"min_p": 0.1, "typical_p": 0.9, "top_k": 5}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"repetition_penalty": 1.1}, {"repeat_penalty": 1.1}),
        ({"repeat_last_n": -1, "dry_penalty_last_n": -1}, {"repeat_last_n": 4096, "dry_penalty_last_n": 4096}),
        (
            {"mirostat": 2, "mirostat_tau": 5, "mirostat_eta": 0.1},
            {"mirostat": 2, "mirostat_tau": 5, "mirostat_eta": 0.1},
        ),
        ({"samplers": ["top_k", "temperature"]}, {"samplers": ["top_k", "temperature"]}),
        ({"cache_prompt": False, "ignore_eos": True}, {"cache_prompt": False, "ignore_eos": True}),
        ({"n_keep": 4, "t_max_predict_ms": 100}, {"n_keep": 4, "t_max_predict_ms": 100}),
        ({"logit_bias": {"5": -100, "12": 3.5}}, {"logit_bias": [[5, -100], [12, 3.5]]}),
        ({"logit_bias": [[5, False], ["cat", 1]]}, {"logit_bias": [[5, False], ["cat", 1]]}),
        ({"logit_bias": {" cat": -1}}, {"logit_bias": [[" cat", -1]]}),
        ({"logprobs": True}, {"logprobs": True, "top_logprobs": 1}),
        ({"logprobs": True, "top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        ({"logprobs": False}, {}),
        ({"extra_body": {"top_k": 20}}, {"top_k": 20}),
        ({"extra_body": {"top_k": 20}, "top_k": 20}, {"top_k": 20}),
        ({"reasoning_format": "none"}, {"reasoning_format": "none"}),
        ({"timings_per_token": True, "return_progress": True}, {"timings_per_token": True, "return_progress": True}),
        ({"return_token_ids": True}, {"logprobs": True, "top_logprobs": 1}),
        ({"reasoning_budget_tokens": 64}, {"reasoning_budget_tokens": 64}),
        ({"grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
        (
            {"json_schema": {"type": "object"}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": {"type": "object"}},
                }
            },
        ),
        ({"response_format": {"type": "json_object"}}, {"response_format": {"type": "json_object"}}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {}}, {}),
        ({"response_format": None}, {}),
        ({"tools": []}, {}),
        ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}, {}),
        ({"tools": [TOOL]}, {"tools": [TOOL]}),
        ({"tools": [TOOL], "parallel_tool_calls": False}, {"tools": [TOOL], "parallel_tool_calls": False}),
        ({"tools": [TOOL], "tool_choice": "auto"}, {"tools": [TOOL], "tool_choice": "auto"}),
        ({"tools": [TOOL], "tool_choice": "any"}, {"tools": [TOOL], "tool_choice": "required"}),
        ({"tools": [TOOL], "tool_choice": {"type": "auto"}}, {"tools": [TOOL], "tool_choice": "auto"}),
        ({"tools": [TOOL], "tool_choice": "none"}, {}),
        (
            {"tools": [TOOL, OTHER], "tool_choice": {"type": "function", "function": {"name": "read_note"}}},
            {"tools": [TOOL], "tool_choice": "required"},
        ),
        (
            {"tools": [TOOL, OTHER], "tool_choice": {"type": "function", "name": "read_note"}},
            {"tools": [TOOL], "tool_choice": "required"},
        ),
        (
            {
                "tools": [TOOL, OTHER],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "mode": "auto",
                        "tools": [{"type": "function", "function": {"name": "read_note"}}],
                    },
                },
            },
            {"tools": [TOOL], "tool_choice": "auto"},
        ),
        (
            {"functions": [TOOL["function"]], "function_call": {"name": "read_note"}},
            # an answer in this form has room for one call (`message.function_call`, OpenAI's reference)
            {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        ),
        ({"tools": [{"type": "function", **TOOL["function"]}]}, {"tools": [TOOL]}),
        (
            {"tools": [OTHER]},
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "now", "parameters": {"type": "object", "properties": {}}},
                    }
                ]
            },
        ),
    ],
)
def test_what_reaches_llama_server(fields: dict[str, Any], sent: dict[str, Any]) -> None:
    got, _ = upstream(body(**fields))
    fixed = {"messages": [user()], "stream": True, "stream_options": {"include_usage": True}}
    assert got == {**fixed, **sent}


@pytest.mark.parametrize(
    "spelling",
    [
        {"reasoning_effort": "none"},
        {"reasoning": {"effort": "none"}},
        {"reasoning": {"enabled": False}},
        {"thinking": {"type": "disabled"}},
        {"thinking": False},
        {"enable_thinking": False},
        {"think": False},
        {"chat_template_args": {"enable_thinking": False}},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "none", "enable_thinking": False},
    ],
)
def test_all_spellings_of_not_thinking_have_one_effect(spelling: dict[str, Any]) -> None:
    got, _ = upstream(body(**spelling))
    assert got["chat_template_kwargs"] == {"enable_thinking": False}
    assert "reasoning_effort" not in got


@pytest.mark.parametrize("effort", ["low", "medium", "high"])
def test_an_effort_is_sent_and_switches_thinking_on(effort: str) -> None:
    got, _ = upstream(body(reasoning_effort=effort))
    assert got["reasoning_effort"] == effort
    assert got["chat_template_kwargs"] == {"enable_thinking": True}


@pytest.mark.parametrize(("asked", "near"), [("minimal", "low"), ("xhigh", "high"), ("max", "high")])
def test_an_effort_the_template_lacks_becomes_the_nearest(asked: str, near: str) -> None:
    got, report = upstream(body(reasoning_effort=asked))
    assert got["reasoning_effort"] == near
    assert changed(report) == [f"reasoning_effort={asked}>{near}"]
    knows = Facts(template="{% if reasoning_effort == '" + asked + "' %}")
    assert upstream(body(reasoning_effort=asked), knows)[0]["reasoning_effort"] == asked


CALLING = {"id": "abc123def", "type": "function", "function": {"name": "now", "arguments": "{}"}}
DATED = {"type": "object", "properties": {"a": {"type": "number", "minimum": 1}}}


def test_an_effort_on_a_template_without_efforts_is_reported() -> None:
    facts = Facts(template_caps={"supports_reasoning_effort": False})
    got, report = upstream(body(reasoning={"effort": "high"}), facts)
    assert "reasoning_effort" not in got
    assert ignored(report) == ["reasoning.effort"]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temprature": 0.5}, "temprature", "unknown_parameter"),
        (
            {"stream": True, "stream_options": {"include_usag": True}},
            "stream_options.include_usag",
            "unknown_parameter",
        ),
        ({"extra_body": {"top_kk": 1}}, "extra_body.top_kk", "unknown_parameter"),
        ({"extra_body": {"top_k": 20}, "top_k": 40}, "extra_body.top_k", None),
        ({"extra_body": {"messages": []}}, "extra_body.messages", None),
        ({"extra_body": {"model": "x"}}, "extra_body.model", None),
        ({"extra_body": {"stream": True}}, "extra_body.stream", None),
        ({"extra_body": {"tools": []}}, "extra_body.tools", None),
        ({"extra_body": []}, "extra_body", "invalid_type"),
        ({"max_tokens": 32, "max_completion_tokens": 16}, "max_completion_tokens", None),
        ({"max_completion_tokens": -1}, "max_completion_tokens", "unsupported_value"),
        ({"n_predict": -1}, "n_predict", "unsupported_value"),
        ({"max_tokens": 1.5}, "max_tokens", "unsupported_value"),
        ({"max_tokens": "16"}, "max_tokens", "invalid_type"),
        ({"max_tokens": True}, "max_tokens", "invalid_type"),
        ({"temperature": 2.5}, "temperature", "unsupported_value"),
        ({"temperature": -1}, "temperature", "unsupported_value"),
        ({"temperature": math.inf}, "temperature", "unsupported_value"),
        ({"temperature": math.nan}, "temperature", "unsupported_value"),
        ({"temperature": "1"}, "temperature", "invalid_type"),
        ({"top_p": 1.1}, "top_p", "unsupported_value"),
        ({"top_logprobs": 3}, "top_logprobs", "unsupported_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "unsupported_value"),
        ({"logprobs": "yes"}, "logprobs", "invalid_type"),
        ({"logprobs": True, "tools": [TOOL]}, "logprobs", "unsupported_parameter"),
        ({"return_token_ids": True, "tools": [TOOL]}, "return_token_ids", "unsupported_parameter"),
        ({"stop": ""}, "stop", "unsupported_value"),
        ({"stop": ["a", ""]}, "stop[1]", "unsupported_value"),
        ({"stop": ["a", 1]}, "stop[1]", "invalid_type"),
        ({"stop": list("abcde")}, "stop", "unsupported_value"),
        ({"seed": 2**32 - 1}, "seed", "unsupported_value"),
        ({"seed": 1.5}, "seed", "unsupported_value"),
        ({"mirostat": 3}, "mirostat", "unsupported_value"),
        ({"samplers": ["topk"]}, "samplers[0]", "unsupported_value"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "unsupported_value"),
        ({"logit_bias": {"5": True}}, "logit_bias.5", "invalid_type"),
        ({"logit_bias": "5"}, "logit_bias", "invalid_type"),
        ({"logit_bias": {"-1": 5}}, "logit_bias.-1", "unsupported_value"),
        ({"logit_bias": [[1, 2], ["1", 3]]}, "logit_bias", None),
        ({"thinking": {"type": "disabled", "budget_tokens": 9}}, "thinking.budget_tokens", None),
        ({"reasoning_format": "none", "include_reasoning": False}, "reasoning_format", None),
        ({"response_format": {"type": "json_object", "json_schema": {}}}, "response_format.json_schema", None),
        ({"logit_bias": [[5]]}, "logit_bias[0]", "invalid_type"),
        ({"stream": "true"}, "stream", "invalid_type"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "unsupported_parameter"),
        ({"n": 2}, "n", "unsupported_value"),
        ({"store": True}, "store", "unsupported_value"),
        ({"service_tier": "priority"}, "service_tier", "unsupported_value"),
        ({"modalities": ["text", "audio"]}, "modalities", "unsupported_value"),
        ({"audio": {"voice": "x"}}, "audio", "unsupported_value"),
        ({"web_search_options": {"search_context_size": "low"}}, "web_search_options", "unsupported_value"),
        ({"id_slot": 1}, "id_slot", "unsupported_parameter"),
        ({"slot_id": 1}, "slot_id", "unsupported_parameter"),
        ({"lora": []}, "lora", "unsupported_parameter"),
        ({"n_discard": 1}, "n_discard", "unsupported_parameter"),
        ({"speculative.n_max": 1}, "speculative.n_max", "unsupported_parameter"),
        ({"chat_template": "x"}, "chat_template", "unsupported_parameter"),
        ({"input": "hi"}, "input", "unsupported_parameter"),
        (
            {"chat_template_kwargs": {"enable_thinking": "false"}},
            "chat_template_kwargs.enable_thinking",
            "invalid_type",
        ),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs.bos_token", "unsupported_parameter"),
        ({"reasoning_effort": "high", "enable_thinking": False}, "enable_thinking", None),
        ({"reasoning_effort": "high", "reasoning": {"effort": "low"}}, "reasoning.effort", None),
        ({"reasoning_effort": "hard"}, "reasoning_effort", "unsupported_value"),
        ({"reasoning": {"efort": "low"}}, "reasoning.efort", "unknown_parameter"),
        ({"thinking": {"budget_tokens": 5}}, "thinking.type", "missing_required_parameter"),
        ({"response_format": "json_object"}, "response_format", "invalid_type"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "unsupported_value"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing_required_parameter"),
        ({"response_format": {"type": "json_object"}, "grammar": "root ::= x"}, "grammar", None),
        ({"grammar": 'root ::= "a"', "tools": [TOOL]}, "grammar", None),
        ({"tools": {}}, "tools", "invalid_type"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type", "unsupported_value"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "unsupported_value"),
        ({"tools": [TOOL, TOOL]}, "tools", None),
        ({"tools": [TOOL], "functions": [TOOL["function"]]}, "functions", None),
        ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice", "unsupported_value"),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", None),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
            "unsupported_value",
        ),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice", "unsupported_value"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "read_note", "bogus": 1}}},
            "tool_choice.function.bogus",
            "unknown_parameter",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "read_note"}, "bogus": 1}},
            "tool_choice.bogus",
            "unknown_parameter",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "x", "function": {"name": "read_note"}}},
            "tool_choice.name",
            None,
        ),
        (
            {"tools": [TOOL], "tool_choice": {**ALLOWED, "allowed_tools": {**ALLOWED["allowed_tools"], "x": 1}}},
            "tool_choice.allowed_tools.x",
            "unknown_parameter",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "read_note", "mode": "auto"}},
            "tool_choice.mode",
            "unsupported_parameter",
        ),
        (
            {"tools": [TOOL], "tool_choice": {**ALLOWED, "name": "read_note"}},
            "tool_choice.name",
            "unsupported_parameter",
        ),
        ({"tools": [TOOL], "tool_choice": {**ALLOWED, "mode": "auto"}}, "tool_choice.mode", "unsupported_parameter"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom"}]}},
            "tool_choice.tools[0].type",
            None,
        ),
        (
            {"functions": [TOOL["function"]], "function_call": {"name": "read_note", "arguments": "{}"}},
            "function_call.arguments",
            "unknown_parameter",
        ),
        ({"tools": [{**TOOL, "description": "other"}]}, "tools[0].description", None),
        ({"tools": [{**TOOL, "parameters": {"type": "object"}}]}, "tools[0].parameters", None),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}, "schema": {"type": "object"}}},
            "response_format.schema",
            None,
        ),
        ({"tools": [TOOL], "tool_choice": {"type": []}}, "tool_choice.type", "invalid_type"),
        ({"messages": []}, "messages", "unsupported_value"),
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"model": None}, "model", "missing_required_parameter"),
    ],
)
def test_what_is_refused_names_the_clients_own_path(fields: dict[str, Any], param: str, code: str | None) -> None:
    error = refusal(body(**fields))
    assert error.kind.status == 400
    assert (error.param, error.code) == (param, code)
    assert param.split("[")[0].split(".")[-1] in error.message


def test_an_unknown_member_of_a_choice_is_let_go_where_that_is_asked_for() -> None:
    choice = {"type": "function", "function": {"name": "read_note", "bogus": 1}}
    got, report = upstream(body(tools=[TOOL], tool_choice=choice), lenient=True)
    assert got["tool_choice"] == "required"
    assert "tool_choice.function.bogus" in ignored(report)


def test_several_calls_cannot_be_had_in_the_old_form() -> None:
    got, report = upstream(body(functions=[TOOL["function"]], parallel_tool_calls=True))
    assert got["parallel_tool_calls"] is False
    assert ignored(report) == ["parallel_tool_calls"]


def test_conflicting_aliases_are_both_named() -> None:
    message = refusal(body(max_tokens=32, max_completion_tokens=16)).message
    assert "'max_tokens'" in message
    assert "'max_completion_tokens'" in message


def test_the_nearest_known_name_is_suggested() -> None:
    assert "'temperature'" in refusal(body(temprature=0.5)).message


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"metadata": {"a": "b"}, "user": "u"}, ["metadata", "user"]),
        ({"promptCacheKey": "s1"}, ["promptCacheKey"]),
        (
            {"prompt_cache_key": "s1", "safety_identifier": "x", "verbosity": "low"},
            ["prompt_cache_key", "safety_identifier", "verbosity"],
        ),
        ({"store": False, "service_tier": "auto", "n": 1}, ["n", "service_tier", "store"]),
        ({"store": None}, ["store"]),
        ({"modalities": ["text"], "web_search_options": {}}, ["modalities", "web_search_options"]),
        ({"tools": [{**TOOL, "function": {**TOOL["function"], "strict": True}}]}, ["tools[].function.strict"]),
        ({"tools": [TOOL, {"type": "web_search"}]}, ["tools[]"]),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, ["stream_options.include_obfuscation"]),
        ({"extra_body": {"metadata": {}}}, ["extra_body.metadata"]),
        ({"return_progress": True}, ["return_progress"]),
        ({"reasoning_budget_message": "enough"}, ["reasoning_budget_message"]),
        (
            {"messages": [user(), {"role": "assistant", "content": "a", "prefix": True}, user()]},
            ["messages[].prefix"],
        ),
        (
            {
                "json_schema": {
                    "type": "object",
                    "properties": {
                        "a": {"type": "number", "minimum": 1},
                        "b": {"type": "integer", "minimum": 1},
                        "c": {"type": "string", "pattern": "x"},
                        "d": {"type": "string", "pattern": "^x$", "format": "date"},
                        "minimum": {"type": "string", "format": "email"},
                    },
                    "minProperties": 2,
                }
            },
            [
                "json_schema.minProperties",
                "json_schema.properties.a.minimum",
                "json_schema.properties.c.pattern",
                "json_schema.properties.minimum.format",
            ],
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": DATED}}},
            ["response_format.json_schema.schema.properties.a.minimum"],
        ),
        (
            {"response_format": {"type": "json_object", "schema": DATED}},
            ["response_format.schema.properties.a.minimum"],
        ),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, ["reasoning.summary"]),
        ({"messages": [{**user(), "name": "bob"}]}, ["messages[].name"]),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {}}]}]},
            ["messages[].content[].cache_control"],
        ),
        (
            {"messages": [{**user(), "copilot_references": [], "cot_id": "1"}]},
            ["messages[].copilot_references", "messages[].cot_id"],
        ),
    ],
)
def test_what_is_ignored_is_named(fields: dict[str, Any], names: list[str]) -> None:
    _, report = upstream(body(**fields))
    assert ignored(report) == names


def test_no_value_of_an_annotation_reaches_llama_server() -> None:
    got, report = upstream(body(metadata={"k": "canary-1"}, user="canary-2", prompt_cache_key="canary-3"))
    assert "canary" not in repr(got)
    assert "canary" not in repr(report.headers())


@pytest.mark.parametrize("fields", [{"temprature": 0.5}, {"store": True}, {"service_tier": "flex"}])
def test_lenient_removes_and_reports_what_is_a_mere_hint(fields: dict[str, Any]) -> None:
    _, report = upstream(body(**fields), lenient=True)
    assert ignored(report) == list(fields)


@pytest.mark.parametrize("fields", [{"n": 2}, {"id_slot": 1}, {"modalities": ["audio"]}])
def test_lenient_still_refuses_what_changes_the_answer(fields: dict[str, Any]) -> None:
    assert refusal(body(**fields), lenient=True).kind.status == 400


def test_template_variables_that_the_profile_allows_pass() -> None:
    got, _ = upstream(body(chat_template_kwargs={"locale": "en"}), kwargs=frozenset({"locale"}))
    assert got["chat_template_kwargs"] == {"locale": "en"}


def test_the_input_is_never_changed() -> None:
    request = body(
        extra_body={"top_k": 1}, tools=[TOOL], functions=None, messages=[{"role": "developer", "content": "x"}, user()]
    )
    before = repr(request)
    upstream(request)
    assert repr(request) == before


def test_every_row_that_is_not_mapped_gives_its_reason() -> None:
    for table in (FIELDS, MESSAGE):
        for field in table:
            assert field.treatment is Treatment.MAPPED or field.reason, field.name


@pytest.mark.parametrize("name", ["continue_final_message", "add_generation_prompt"])
def test_the_last_message_is_continued(name: str) -> None:
    messages = [user(), {"role": "assistant", "content": "Once"}]
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    sent, _ = upstream(body(messages=messages, **{"continue_final_message": True, name: fields[name]}))
    assert {key: sent[key] for key in fields} == fields


@pytest.mark.parametrize(
    ("messages", "fields", "param", "said"),
    [
        (
            [user()],
            {},
            "continue_final_message",
            "the last message must be the assistant's, which the answer continues",
        ),
        ([user()], {"add_generation_prompt": False}, "continue_final_message", "it is a user's"),
        (
            [user(), {"role": "assistant", "content": "Once"}],
            {"add_generation_prompt": True},
            "add_generation_prompt",
            "continue_final_message begins no new turn; leave it out, or send false",
        ),
        (
            [user(), {"role": "assistant", "content": None, "tool_calls": [CALLING]}],
            {},
            "continue_final_message",
            "a message that calls tools is complete",
        ),
    ],
)
def test_what_cannot_be_continued_is_refused(messages: Any, fields: Any, param: str, said: str) -> None:
    error = refusal(body(messages=messages, continue_final_message=True, **fields))
    assert error.param == param
    assert said in error.message


def test_extra_body_is_not_nested() -> None:
    error = refusal(body(extra_body={"extra_body": {"top_k": 20}}))
    assert (error.param, error.code) == ("extra_body.extra_body", "unknown_parameter")
    assert error.message.endswith("; extra_body is not nested")
    _, report = upstream(body(extra_body={"extra_body": {"top_k": 20}}), lenient=True)
    assert ignored(report) == ["extra_body.extra_body"]


def test_a_hint_names_only_what_is_much_alike() -> None:
    assert "did you mean 'temperature'?" in refusal(body(temprature=1)).message
    assert "did you mean" not in refusal(body(extra_bodies={})).message


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"continue_final_message": False}, ["continue_final_message"]),
        ({"add_generation_prompt": True}, ["add_generation_prompt"]),
        (
            {"continue_final_message": False, "add_generation_prompt": True},
            ["continue_final_message", "add_generation_prompt"],
        ),
        ({"add_generation_prompt": False}, []),
        ({"continue_final_message": True}, []),
    ],
)
def test_who_wants_no_turn_continued_is_told_that_it_is(fields: dict[str, Any], named: list[str]) -> None:
    _, report = upstream(body(messages=[user(), {"role": "assistant", "content": "red"}], **fields))
    assert ignored(report) == sorted(named)
    _, report = upstream(
        body(**{name: value for name, value in fields.items() if not fields.get("continue_final_message")})
    )
    assert ignored(report) == []


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"reasoning_effort": "high"}, ["reasoning_effort"]),
        ({"reasoning": {"enabled": True, "max_tokens": 50}}, ["reasoning.enabled", "reasoning.max_tokens"]),
        ({"enable_thinking": True}, ["enable_thinking"]),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, ["thinking.type", "thinking.budget_tokens"]),
        ({"think": True}, ["think"]),
        ({"chat_template_kwargs": {"enable_thinking": True}}, ["chat_template_kwargs.enable_thinking"]),
        (
            {"reasoning_budget_tokens": 50, "reasoning_budget_message": "so"},
            ["reasoning_budget_tokens", "reasoning_budget_message"],
        ),
        ({"reasoning_budget_message": "so"}, ["reasoning_budget_message"]),
        ({"chat_template_kwargs": {"preserve_thinking": True}}, []),
        ({"enable_thinking": False}, []),
        ({"reasoning_effort": "none"}, []),
    ],
)
def test_thinking_that_a_begun_answer_leaves_no_room_for_is_named(fields: dict[str, Any], named: list[str]) -> None:
    """Each field by the client's own path; a message for the end of a budget goes with the budget."""
    sent, report = upstream(body(messages=[user(), {"role": "assistant", "content": "red"}], **fields))
    assert ignored(report) == sorted(named)
    assert sum(note.kind.value == "ignored" for note in report.notes) == len(named)
    assert not {"reasoning_effort", "reasoning_budget_tokens", "reasoning_budget_message"} & set(sent)


@pytest.mark.parametrize("flag", [(), ("--no-prefill-assistant",)])
def test_a_server_that_continues_no_turn_is_not_said_to(flag: tuple[str, ...]) -> None:
    profile = Profile.model_validate({"id": "m1", "server": {"model": "/m.gguf", "args": list(flag)}})
    parsed, report = parse(body(messages=[user(), {"role": "assistant", "content": "red"}], add_generation_prompt=True))
    exchange = Exchange("x", OpenAIChat(), NOBODY, "s" * 40, 0.0, report=report, profile=profile, parsed=parsed)
    Shaper(Plugins(Config())).shape(exchange, Facts())
    assert ignored(report) == ([] if flag else ["add_generation_prompt"])


def test_settings_that_were_read_before_say_the_same_again() -> None:
    fields = {"store": False, "max_completion_tokens": 9, "tools": [TOOL], "user": "someone"}
    first, noted = parse(body(**fields, messages=[{**user(), "name": "ann"}]))
    again, noted_again = parse(body(**fields))
    assert again.request == first.request
    assert again.reply == first.reply
    assert again.paths == first.paths == {"max_tokens": "max_completion_tokens"}
    assert changed(noted_again) == changed(noted) == ["max_completion_tokens>max_tokens"]
    # What the turns led to is not said of other turns.
    assert set(ignored(noted)) - set(ignored(noted_again)) == {"messages[].name"}
    assert set(ignored(noted_again)) >= {"store", "user"}
    noted_again.ignored("other", "said of this request only")
    assert "other" not in ignored(parse(body(**fields))[1])


@pytest.mark.parametrize("fields", [{"seed": 1.5}, {"store": "x"}, {"unheard_of": 1}, {"temperature": 9}])
def test_what_was_refused_is_refused_again(fields: dict[str, Any]) -> None:
    first, again = refusal(body(**fields)), refusal(body(**fields))
    assert (first.message, first.param) == (again.message, again.param)


def test_an_error_keeps_the_notes_of_what_was_read_before_it() -> None:
    for _ in range(2):
        report = Report()
        with pytest.raises(DeckError):
            OpenAIChat().parse(
                {"model": "m1", "user": "u", "temperature": "hot", "messages": [user()]}, report, ParseOptions()
            )
        assert ignored(report) == ["user"]


def test_what_was_read_leniently_for_a_count_or_another_profile_is_read_anew_otherwise() -> None:
    fields = {"unheard_of": 1, "temperature": 0.5}
    assert ignored(parse(body(**fields), lenient=True)[1]) == ["unheard_of"]
    assert refusal(body(**fields)).code == "unknown_parameter"
    variables = {"chat_template_kwargs": {"custom": 1}}
    assert parse(body(**variables), kwargs=frozenset({"custom"}))[0].request.template_kwargs == {"custom": 1}
    assert "custom" in refusal(body(**variables)).message
    report = Report()
    OpenAIChat().parse(body(temperature=0.25), report, ParseOptions(operation="count"))
    assert ignored(report) == ["temperature"]
    assert ignored(parse(body(temperature=0.25))[1]) == []


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), (1, True), (0, False), (0.0, -0.0), ("1", 1)])
def test_values_that_compare_equal_are_told_apart(one: object, other: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def outcome(value: object) -> object:
        try:
            return repr(upstream(body(cache_prompt=value))[0]), repr(upstream(body(seed=value))[0])
        except DeckError as error:
            return error.message

    monkeypatch.setattr(parsing, "_memory", Memory())
    fresh = outcome(other)
    monkeypatch.setattr(parsing, "_memory", Memory())
    outcome(one)
    assert outcome(other) == fresh


def test_a_client_that_says_nothing_of_thinking_has_the_one_unset_setting() -> None:
    assert parse(body())[0].request.reasoning is UNSET_REASONING
