"""Chat through a live Deck and a real llama-server: the tiny model, greedy."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from chat_automaton import check
from chat_support import TOOL
from e2e.live import LiveDeck

pytestmark = pytest.mark.engine

IGNORED = "x-athena-compatibility-ignored"
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def ask(text: str, **fields: Any) -> dict[str, Any]:
    base = {"model": "tiny-chat", "temperature": 0, "reasoning_effort": "none", "max_tokens": 64}
    return {**base, "messages": [{"role": "user", "content": text}], **fields}


def post(deck: LiveDeck, body: dict[str, Any], status: int = 200) -> Any:
    with deck.client() as client:
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == status, answer.text
    return answer


def test_a_greeting(deck: LiveDeck) -> None:
    answer = post(deck, ask("Hello"))
    whole = answer.json()
    assert whole["choices"][0]["message"]["content"].startswith("Hello")
    assert whole["model"] == "tiny-chat"
    assert whole["usage"]["completion_tokens"] > 0
    assert answer.headers["x-request-id"].startswith("req_")


def test_streamed_and_buffered_agree(deck: LiveDeck) -> None:
    body = ask("Count to 5.")
    whole = post(deck, body).json()["choices"][0]
    answer = post(deck, {**body, "stream": True, "stream_options": {"include_usage": True}})
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    stream = check(answer.content, include_usage=True)
    assert stream.text == whole["message"]["content"]
    assert stream.finish == whole["finish_reason"]


def test_thinking_comes_as_reasoning_content(deck: LiveDeck) -> None:
    on = post(deck, ask("Hello", reasoning_effort=None, enable_thinking=True)).json()["choices"][0]["message"]
    off = post(deck, ask("Hello")).json()["choices"][0]["message"]
    assert on["reasoning_content"]
    assert "reasoning_content" not in off


def test_a_tool_call_and_its_result(deck: LiveDeck) -> None:
    body = ask("What's the weather in Paris?", tools=[WEATHER])
    choice = post(deck, body).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    call = choice["message"]["tool_calls"][0]
    assert call["id"].startswith("call_")
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    history = [*body["messages"], choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": "22 C"}]
    again = post(deck, {**body, "messages": history}).json()["choices"][0]
    assert "22 C" in again["message"]["content"]
    stream = check(post(deck, {**body, "stream": True}).content)
    assert [json.loads(item["arguments"]) for item in stream.calls] == [{"city": "Paris"}]
    assert stream.finish == "tool_calls"


def test_tool_choice_none_offers_no_tools(deck: LiveDeck) -> None:
    choice = post(deck, ask("What's the weather in Paris?", tools=[WEATHER], tool_choice="none")).json()["choices"][0]
    assert "tool_calls" not in choice["message"]
    assert "<tool_call>" not in choice["message"]["content"]


def test_a_named_tool_is_the_only_one_called(deck: LiveDeck) -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    body = ask("What's the weather in Rome?", tools=[TOOL, WEATHER], tool_choice=choice)
    calls = post(deck, body).json()["choices"][0]["message"]["tool_calls"]
    assert {call["function"]["name"] for call in calls} == {"get_weather"}


def test_a_schema_is_held(deck: LiveDeck) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    body = ask("Return JSON: name Ana, age 31", response_format=form)
    answer = post(deck, body)
    assert set(json.loads(answer.json()["choices"][0]["message"]["content"])) == {"name", "age"}
    assert "strict" not in answer.headers.get(IGNORED, ""), "the whole answer was checked"
    assert "response_format.json_schema.strict" in post(deck, {**body, "stream": True}).headers[IGNORED]


def test_a_schema_beyond_the_grammar_is_not_claimed_to_hold(deck: LiveDeck) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string", "pattern": "Zoe"}}, "required": ["name"]}
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    answer = post(deck, ask("Return JSON: name Ana, age 31", response_format=form))
    listed = answer.headers[IGNORED].split(", ")
    assert "response_format" in listed
    assert "response_format.json_schema.strict" in listed


@pytest.mark.parametrize("bias", [{"999999999": 1}, [[99999999, -100]]])
def test_a_bias_for_no_token_is_refused(deck: LiveDeck, bias: Any) -> None:
    with deck.client() as client:
        answer = client.post("/v1/chat/completions", json=ask("Hello", logit_bias=bias))
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "logit_bias"
        assert "has no token" in answer.json()["error"]["message"]
        raw = client.post("/v1/completions", json={"model": "tiny-chat", "prompt": "a", "logit_bias": bias})
        assert raw.status_code == 400
        assert raw.json()["error"]["param"] == "logit_bias"


def test_a_strict_call_is_checked(deck: LiveDeck) -> None:
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    answer = post(deck, ask("What's the weather in Paris?", tools=[strict]))
    assert answer.json()["choices"][0]["finish_reason"] == "tool_calls"
    assert "strict" not in answer.headers.get(IGNORED, "")
    assert "tools[].function.strict" in post(deck, ask("Hello", tools=[strict])).headers[IGNORED]


def test_zero_tokens_answer_nothing(deck: LiveDeck) -> None:
    choice = post(deck, ask("Hello", max_tokens=0)).json()
    assert choice["choices"][0]["message"]["content"] == ""
    assert choice["choices"][0]["finish_reason"] == "length"
    assert choice["usage"]["completion_tokens"] == 0


def test_logprobs_and_token_ids(deck: LiveDeck) -> None:
    choice = post(deck, ask("Say pong", logprobs=True, top_logprobs=2, return_token_ids=True)).json()["choices"][0]
    assert "".join(item["token"] for item in choice["logprobs"]["content"]).startswith(choice["message"]["content"])
    assert all(len(item["top_logprobs"]) == 2 for item in choice["logprobs"]["content"])
    assert choice["token_ids"]


@pytest.mark.parametrize("budget", [1, 2])
def test_logprobs_of_an_answer_that_ends_in_its_first_tag(deck: LiveDeck, budget: int) -> None:
    fields = {"max_tokens": budget, "logprobs": True, "return_token_ids": True, "reasoning_effort": "medium"}
    choice = post(deck, ask("Hello", **fields)).json()["choices"][0]
    assert [item["token"] for item in choice["logprobs"]["content"]] == ["<think>"]
    assert len(choice["token_ids"]) == 1
    found = check(post(deck, ask("Hello", stream=True, **fields)).content)
    shown = [chunk["choices"][0]["logprobs"] for chunk in found.chunks if chunk["choices"]]
    assert [item["token"] for entry in shown if entry for item in entry["content"]] == ["<think>"]


def test_overflow_names_both_numbers(deck: LiveDeck) -> None:
    answer = post(deck, ask("alpha bravo charlie " * 9000), 400).json()["error"]
    assert answer["code"] == "context_length_exceeded"
    assert "32768" in answer["message"]


def test_the_official_sdk_streams(deck: LiveDeck) -> None:
    client = openai.OpenAI(base_url=deck.base + "/v1", api_key=deck.token, _strict_response_validation=True)
    with client.chat.completions.stream(
        model="tiny-chat", messages=[{"role": "user", "content": "Say pong"}], temperature=0, reasoning_effort="none"
    ) as stream:
        for _ in stream:
            pass
        assert "pong" in (stream.get_final_completion().choices[0].message.content or "")


def test_the_official_sdk_lists_models(deck: LiveDeck) -> None:
    client = openai.OpenAI(base_url=deck.base + "/v1", api_key=deck.token)
    assert [model.id for model in client.models.list()] == ["tiny-chat"]
    assert client.models.retrieve("tiny-chat").id == "tiny-chat"


@pytest.mark.parametrize(
    "fields",
    [
        {"min_p": 0.1, "typical_p": 0.9, "top_k": 20, "top_n_sigma": 1, "repeat_penalty": 1.1, "repeat_last_n": -1},
        {"mirostat": 2, "mirostat_tau": 4, "mirostat_eta": 0.2},
        {"dynatemp_range": 0.5, "dynatemp_exponent": 1, "xtc_probability": 0.1, "xtc_threshold": 0.2},
        {"dry_multiplier": 0.5, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1},
        {"dry_multiplier": 0.5, "dry_sequence_breakers": ["\n"]},
        {"adaptive_target": 0.5, "adaptive_decay": 0.9},
        {"samplers": ["top_k", "temperature"], "min_keep": 1},
        {"cache_prompt": False, "n_keep": 4, "n_indent": 0, "t_max_predict_ms": 5000},
        {"ignore_eos": True, "max_tokens": 8},
        {"logit_bias": {"5": -100}},
        {"logit_bias": [[5, False], ["cat", 1]]},
        {"grammar": 'root ::= "yes" | "no"'},
        {"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
        {"reasoning_format": "none"},
        {"reasoning_budget_tokens": 4, "enable_thinking": True, "reasoning_effort": None},
        {"timings_per_token": True},
        {"response_format": {"type": "json_object"}},
        {"stop": ["o"]},
        {"seed": 1, "frequency_penalty": 0.5, "presence_penalty": 0.5},
        {"reasoning_budget_message": "enough"},
        {"add_generation_prompt": True},
        {"parallel_tool_calls": True, "tools": [WEATHER]},
    ],
    ids=lambda fields: ",".join(fields),
)
def test_every_extension_is_taken_by_the_real_server(deck: LiveDeck, fields: dict[str, Any]) -> None:
    post(deck, ask("Hello", **fields))


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "developer", "content": "A"}, {"role": "system", "content": "B"}, {"role": "user", "content": "hi"}],
        [{"role": "user", "content": "a"}, {"role": "system", "content": "B"}, {"role": "user", "content": "c"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": []}],
        [{"role": "user"}],
        [{"role": "user", "content": "a", "name": None}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "Once", "reasoning_content": None}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": None}],
        [
            {"role": "user", "content": "a"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "x", "function": {"name": "get_weather", "arguments": {}}}],
            },
            {"role": "tool", "tool_call_id": "x", "content": [{"type": "text", "text": "fine"}]},
        ],
    ],
)
def test_shapes_that_llama_server_refuses_are_made_acceptable(deck: LiveDeck, messages: list[Any]) -> None:
    post(deck, ask("", messages=messages))


def test_the_real_server_continues_the_last_message(deck: LiveDeck) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "On"}]
    post(deck, ask("", messages=messages, continue_final_message=True))


def test_an_image_for_a_text_model_is_refused_naming_the_message(deck: LiveDeck) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    error = post(deck, ask("", messages=[{"role": "user", "content": [part]}]), 400).json()["error"]
    assert error["param"] == "messages[0].content"


def test_a_grammar_that_cannot_be_read_names_the_clients_field(deck: LiveDeck) -> None:
    assert post(deck, ask("Hello", grammar="root ::= ("), 400).json()["error"]["param"] == "grammar"


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"json_schema": {"type": "strng"}}, "json_schema.type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strng"}}}},
            "response_format.json_schema.schema.type",
        ),
    ],
)
def test_what_no_grammar_can_hold_is_let_go_and_listed(deck: LiveDeck, fields: Any, path: str) -> None:
    answer = post(deck, ask("Hello", **fields))
    assert path in answer.headers["x-athena-compatibility-ignored"]


def test_capabilities_list_what_is_accepted(deck: LiveDeck) -> None:
    post(deck, ask("Hello"))
    with deck.client() as client:
        shown = client.get("/v1/capabilities").raise_for_status().json()
    chat = shown["surfaces"]["chat"]
    assert chat["fields"]["temperature"] == {"treatment": "mapped", "type": "number", "accepts": "number 0…2"}
    assert chat["aliases"]["max_completion_tokens"] == "max_tokens"
    assert "metadata" in chat["annotations"]
    assert "min_p" in chat["extensions"]
    assert "/v1/batch" in shown["not_implemented"]
    model = shown["models"]["tiny-chat"]
    assert model["state"] == "ready"
    assert model["measured"]["context"] == 32768
    assert model["declared"]["tools"] is True


def test_stats_and_metrics_count(deck: LiveDeck) -> None:
    post(deck, ask("Hello", metadata={"a": "b"}))
    with deck.client() as client:
        text = client.get("/metrics").raise_for_status().text
        stats = client.get("/v1/stats").raise_for_status().json()
    assert "deck_requests_total{" in text
    assert 'deck_request_notes_total{field="metadata",kind="ignored",surface="chat"}' in text
    assert stats["servers"] == {"tiny-chat": "ready"}
