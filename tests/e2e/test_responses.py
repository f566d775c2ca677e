"""Responses through a live Deck and a real llama-server: the tiny model, greedy, by the official SDK in strict mode."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from e2e.live import LiveDeck
from pydantic import BaseModel
from responses_automaton import check
from responses_support import validate_event, validate_response

pytestmark = pytest.mark.engine

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
NO_THOUGHT: Any = {"effort": "none"}


@pytest.fixture
def sdk(deck: LiveDeck) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=deck.base + "/v1", api_key=deck.token, _strict_response_validation=True, max_retries=0
    ) as client:
        yield client


def ask(sent: Any, /, **fields: Any) -> dict[str, Any]:
    return {
        "model": "tiny-chat",
        "temperature": 0,
        "reasoning": NO_THOUGHT,
        "max_output_tokens": 64,
        "input": sent,
        **fields,
    }


def post(deck: LiveDeck, body: dict[str, Any], status: int = 200, path: str = "/v1/responses") -> Any:
    with deck.client() as client:
        answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer


def test_create(sdk: openai.OpenAI) -> None:
    found = sdk.responses.create(**ask("Hello"))
    assert found.output_text.startswith("Hello")
    assert (found.model, found.status) == ("tiny-chat", "completed")
    assert found.usage is not None
    assert found.usage.output_tokens > 0
    assert found._request_id is not None
    assert found._request_id.startswith("req_")


def test_what_the_client_leaves_out_is_what_the_server_does(sdk: openai.OpenAI) -> None:
    found = sdk.responses.create(model="tiny-chat", input="Hello", max_output_tokens=8)
    assert (found.temperature, found.top_p) == (0.8, 0.95)
    assert found.max_output_tokens == 8


def test_streamed_and_buffered_agree(deck: LiveDeck) -> None:
    body = ask("Count to 5.", reasoning=None, enable_thinking=True)
    whole = post(deck, body).json()
    validate_response(whole)
    found = check(post(deck, {**body, "stream": True}).content)
    for event in found.events:
        validate_event(event)
    assert [item["type"] for item in found.items] == ["reasoning", "message"]
    assert [item["content"] for item in found.items] == [item["content"] for item in whole["output"]]
    different = {"id", "created_at", "completed_at", "output", "usage"}
    assert {key: value for key, value in found.final.items() if key not in different} == {
        key: value for key, value in whole.items() if key not in different
    }
    for usage in (found.final["usage"], whole["usage"]):
        assert 0 < usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"]


def test_create_streams(sdk: openai.OpenAI) -> None:
    events = list(sdk.responses.create(**ask("Say pong"), stream=True))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert "pong" in events[-1].response.output_text


def test_the_stream_helper(sdk: openai.OpenAI) -> None:
    with sdk.responses.stream(**ask("Say pong")) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text
    assert "pong" in final.output_text


def echoed(found: openai.types.responses.Response) -> list[Any]:
    """Return the output as agents send it back: every item, with every member."""
    return [item.to_dict() for item in found.output]


@pytest.mark.parametrize("thinks", [False, True])
def test_a_tool_call_and_its_result(sdk: openai.OpenAI, thinks: bool) -> None:
    setting: Any = {} if thinks else NO_THOUGHT
    asked: list[Any] = [{"role": "user", "content": "What's the weather in Paris?"}]
    body = ask(asked, tools=[WEATHER], reasoning=setting, max_output_tokens=256)
    found = sdk.responses.create(**body)
    (call,) = [item for item in found.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    assert call.call_id.startswith("call_")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "22 C"}
    again = sdk.responses.create(**{**body, "input": [*asked, *echoed(found), result]})
    assert "22 C" in again.output_text
    more = {"role": "user", "content": "Say pong"}
    last = sdk.responses.create(**{**body, "input": [*asked, *echoed(found), result, *echoed(again), more]})
    assert last.status == "completed"


def test_a_streamed_tool_call_is_parsed_by_the_helper(sdk: openai.OpenAI) -> None:
    with sdk.responses.stream(**ask("What's the weather in Paris?", tools=[WEATHER])) as stream:
        events = list(stream)
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [json.loads(event.arguments) for event in done] == [{"city": "Paris"}]


def test_a_custom_tool_is_called_with_plain_text(sdk: openai.OpenAI, deck: LiveDeck) -> None:
    tool: Any = {"type": "custom", "name": "run", "description": "Run a command"}
    body = ask("Call run", tools=[tool], tool_choice={"type": "custom", "name": "run"}, max_output_tokens=256)
    found = sdk.responses.create(**body)
    (call,) = [item for item in found.output if item.type == "custom_tool_call"]
    assert call.name == "run"
    assert not call.input.startswith("{")
    streamed = check(post(deck, {**body, "stream": True}).content)
    assert [item["input"] for item in streamed.of("custom_tool_call")] == [call.input]
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done"}
    asked = {"role": "user", "content": "Call run"}
    again = sdk.responses.create(**{**body, "input": [asked, *echoed(found), result], "tool_choice": "auto"})
    assert again.status in ("completed", "incomplete")


class Person(BaseModel):
    name: str
    age: int


def test_structured_output(sdk: openai.OpenAI) -> None:
    found = sdk.responses.parse(**ask("Return JSON: name Ana, age 31"), text_format=Person)
    assert isinstance(found.output_parsed, Person)
    raw = sdk.responses.create(**ask("Return JSON: name Ana, age 31", text={"format": {"type": "json_object"}}))
    assert type(json.loads(raw.output_text)) is dict


def test_the_count_is_the_usage(sdk: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "tiny-chat", "input": "Hello", "instructions": "Be brief.", "tools": [WEATHER]}
    used = sdk.responses.create(**fields, reasoning=NO_THOUGHT, max_output_tokens=1).usage
    assert used is not None
    counted = sdk.responses.input_tokens.count(**fields, reasoning=NO_THOUGHT)
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", used.input_tokens)
    shorter = sdk.responses.input_tokens.count(**{**fields, "tools": []}, reasoning=NO_THOUGHT)
    assert shorter.input_tokens < counted.input_tokens


def test_logprobs(sdk: openai.OpenAI) -> None:
    fields = ask("Say pong", include=["message.output_text.logprobs"], top_logprobs=2)
    found = sdk.responses.create(**fields)
    part: Any = found.output[0]
    entries = part.content[0].logprobs
    assert "".join(item.token for item in entries).startswith(found.output_text)
    assert all(len(item.top_logprobs) == 2 for item in entries)
    events = list(sdk.responses.create(**fields, stream=True))
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert sum(len(event.logprobs) for event in deltas) >= len(deltas)


def test_zero_tokens_answer_nothing(sdk: openai.OpenAI) -> None:
    found = sdk.responses.create(**ask("Hello", max_output_tokens=0))
    assert (found.status, found.output) == ("incomplete", [])
    assert found.incomplete_details is not None
    assert found.incomplete_details.reason == "max_output_tokens"
    assert found.usage is not None
    assert found.usage.output_tokens == 0


def test_a_cut_answer_is_incomplete(sdk: openai.OpenAI, deck: LiveDeck) -> None:
    found = sdk.responses.create(**ask("Count to 5.", max_output_tokens=3))
    assert (found.status, found.output[0].status) == ("incomplete", "incomplete")  # type: ignore[union-attr]  # a message
    stream = check(post(deck, ask("Count to 5.", max_output_tokens=3, stream=True)).content)
    assert stream.names()[-1] == "response.incomplete"


def test_errors_are_the_sdks_own(sdk: openai.OpenAI, deck: LiveDeck) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        sdk.responses.create(model="nobody", input="hi")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as stored:
        sdk.responses.create(model="tiny-chat", input="hi", previous_response_id="resp_1")
    assert (stored.value.code, stored.value.param) == ("previous_response_not_found", "previous_response_id")
    with pytest.raises(openai.BadRequestError) as negative:
        sdk.responses.create(model="tiny-chat", input="hi", max_output_tokens=-1)
    assert negative.value.param == "max_output_tokens"
    with pytest.raises(openai.BadRequestError) as long:
        sdk.responses.create(model="tiny-chat", input="alpha bravo charlie " * 9000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=deck.base + "/v1", api_key="wrong").responses.create(model="tiny-chat", input="hi")
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve("resp_1")


def test_an_overflow_of_a_stream_is_the_error_that_agents_compact_on(deck: LiveDeck) -> None:
    error = post(deck, ask("alpha bravo charlie " * 9000, stream=True), 400).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "32768" in error["message"]


def test_an_image_for_a_text_model_is_refused_naming_the_item(deck: LiveDeck) -> None:
    part = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    error = post(deck, ask([{"role": "user", "content": [part]}]), 400).json()["error"]
    assert error["param"] == "input[0].content"


def test_a_grammar_that_cannot_be_read_names_the_clients_field(deck: LiveDeck) -> None:
    assert post(deck, ask("Hello", grammar="root ::= ("), 400).json()["error"]["param"] == "grammar"


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"json_schema": {"type": "strng"}}, "json_schema.type"),
        (
            {"text": {"format": {"type": "json_schema", "name": "r", "schema": {"type": "strng"}}}},
            "text.format.schema.type",
        ),
    ],
)
def test_what_the_grammar_cannot_take_of_a_schema_is_listed(deck: LiveDeck, fields: Any, path: str) -> None:
    answer = post(deck, ask("Hello", **fields))
    assert path in answer.headers["x-athena-compatibility-ignored"].split(", ")


@pytest.mark.parametrize(
    "fields",
    [
        {"min_p": 0.1, "typical_p": 0.9, "top_k": 20, "repeat_penalty": 1.1, "repeat_last_n": -1, "seed": 1},
        {"mirostat": 2, "mirostat_tau": 4, "dynatemp_range": 0.5, "xtc_probability": 0.1},
        {"stop": ["o"], "logit_bias": {"5": -100}, "presence_penalty": 0.5, "frequency_penalty": 0.5},
        {"ignore_eos": True, "max_output_tokens": 8},
        {"grammar": 'root ::= "yes" | "no"'},
        {"reasoning_format": "none"},
        {"reasoning_budget_tokens": 4, "enable_thinking": True, "reasoning": None},
        {"timings_per_token": True, "return_progress": True, "stream": True},
        {"tools": [{"type": "function", "name": "now"}], "parallel_tool_calls": True},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
    ids=lambda fields: ",".join(fields),
)
def test_every_extension_is_taken_by_the_real_server(deck: LiveDeck, fields: dict[str, Any]) -> None:
    post(deck, ask("Hello", **fields))


@pytest.mark.parametrize(
    "items",
    [
        [{"role": "user", "content": "a"}, {"role": "developer", "content": "B"}, {"role": "user", "content": "c"}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "Once"}],
        [
            {"type": "reasoning", "id": "rs_1", "summary": None, "content": None, "encrypted_content": None},
            {"role": "user", "content": "hi"},
        ],
        [
            {"role": "user", "content": "a"},
            {"type": "function_call", "call_id": "x", "name": "get_weather", "arguments": ""},
            {"type": "function_call_output", "call_id": "x", "output": [{"type": "input_text", "text": "fine"}]},
        ],
        [
            {"role": "user", "content": "a"},
            {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "user", "content": None},
        ],
    ],
)
def test_shapes_that_llama_server_refuses_are_made_acceptable(deck: LiveDeck, items: list[Any]) -> None:
    post(deck, ask(items))


def test_capabilities_and_explain_know_the_surface(deck: LiveDeck) -> None:
    with deck.client() as client:
        shown = client.get("/v1/capabilities").raise_for_status().json()
        explained = client.post("/deck/explain", json=ask("Hello"), headers={"x-deck-surface": "responses"})
    surface = shown["surfaces"]["responses"]
    assert surface["routes"] == ["POST /v1/responses", "POST /v1/responses/input_tokens"]
    assert surface["fields"]["max_output_tokens"]["treatment"] == "mapped"
    assert "previous_response_id" in surface["refused"]
    assert surface["members"]["tools[].type"]["namespace"]["treatment"] == "mapped"
    assert "/v1/responses" not in shown["not_implemented"]
    assert explained.raise_for_status().json()["upstream"]["max_tokens"] == 64
