"""Messages through a live Deck and a real llama-server with the official SDK, which validates every answer strictly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam, TextBlock, ThinkingBlock, ToolParam, ToolUseBlock
from e2e.live import LiveDeck
from messages_automaton import MessagesStream, check
from messages_support import COUNT, MESSAGES
from pydantic import BaseModel

pytestmark = pytest.mark.engine

WEATHER: ToolParam = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
OFF: Any = {"type": "disabled"}


@pytest.fixture
def client(deck: LiveDeck) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=deck.base, api_key=deck.token, max_retries=0, _strict_response_validation=True
    ) as found:
        yield found


def ask(text: str, **fields: Any) -> dict[str, Any]:
    base = {"model": "tiny-chat", "max_tokens": 64, "thinking": OFF, "extra_body": {"temperature": 0}}
    return {**base, "messages": [{"role": "user", "content": text}], **fields}


def text_of(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if isinstance(block, TextBlock))


def post(deck: LiveDeck, body: dict[str, Any], path: str = MESSAGES, status: int = 200) -> Any:
    body = {**{key: value for key, value in body.items() if key != "extra_body"}, **body.get("extra_body", {})}
    with deck.client() as client:
        answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer


def test_a_greeting(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**ask("Hello"))
    assert text_of(message).startswith("Hello")
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.model == "tiny-chat"
    assert message.usage.output_tokens > 0
    assert message._request_id is not None
    assert message._request_id.startswith("req_")


def test_streamed_and_buffered_agree(deck: LiveDeck) -> None:
    body = ask("Count to 5.")
    whole = post(deck, body).json()
    got: MessagesStream = check(post(deck, {**body, "stream": True}).content)
    assert got.content == whole["content"]
    assert got.stop_reason == whole["stop_reason"]
    assert got.usage is not None
    assert got.usage["output_tokens"] == whole["usage"]["output_tokens"]
    begun = got.message["usage"]
    assert begun["input_tokens"] + begun["cache_read_input_tokens"] > 0
    assert {**begun, "output_tokens": got.usage["output_tokens"]} == got.usage


def test_the_sdk_reads_raw_events(client: anthropic.Anthropic) -> None:
    events = list(client.messages.create(**ask("Say pong"), stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_the_sdks_helper_streams(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**ask("Say pong")) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert "pong" in text
    assert text_of(final) == text
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens > 0


@pytest.mark.parametrize("streams", [False, True])
def test_a_tool_call_and_its_result(client: anthropic.Anthropic, streams: bool) -> None:
    body = ask("What's the weather in Paris?", tools=[WEATHER])

    def answer(**fields: Any) -> anthropic.types.Message:
        if not streams:
            return client.messages.create(**{**body, **fields})
        with client.messages.stream(**{**body, **fields}) as stream:
            return stream.get_final_message()

    first = answer()
    assert first.stop_reason == "tool_use"
    [call] = [block for block in first.content if isinstance(block, ToolUseBlock)]
    assert call.id.startswith("toolu_")
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "22 C"}]}
    history: list[MessageParam] = [
        *body["messages"],
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    assert "22 C" in text_of(answer(messages=history))


def test_a_named_tool_is_the_only_one_called(client: anthropic.Anthropic) -> None:
    other: ToolParam = {"name": "now", "input_schema": {"type": "object", "properties": {}}}
    choice: Any = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
    message = client.messages.create(**ask("Weather in Rome?", tools=[other, WEATHER], tool_choice=choice))
    assert [block.name for block in message.content if isinstance(block, ToolUseBlock)] == ["get_weather"]


def test_no_tool_is_called_when_none_may_be(client: anthropic.Anthropic) -> None:
    message = client.messages.create(
        **ask("What's the weather in Paris?", tools=[WEATHER], tool_choice={"type": "none"})
    )
    assert not any(isinstance(block, ToolUseBlock) for block in message.content)
    assert "<tool_call>" not in text_of(message)


@pytest.mark.parametrize("streams", [False, True])
def test_thinking_is_shown_signed_and_taken_back(client: anthropic.Anthropic, streams: bool) -> None:
    body = ask("Hello", thinking={"type": "adaptive"})
    if streams:
        with client.messages.stream(**body) as stream:
            message = stream.get_final_message()
    else:
        message = client.messages.create(**body)
    thought = message.content[0]
    assert isinstance(thought, ThinkingBlock)
    assert thought.thinking
    assert thought.signature
    assert text_of(message)
    history = [*body["messages"], {"role": "assistant", "content": message.content}]
    again = client.messages.create(**{**body, "messages": [*history, {"role": "user", "content": "Say pong"}]})
    assert text_of(again)


def test_thinking_may_be_hidden_or_off(client: anthropic.Anthropic) -> None:
    hidden = client.messages.create(**ask("Hello", thinking={"type": "adaptive", "display": "omitted"}))
    assert isinstance(hidden.content[0], ThinkingBlock)
    assert (hidden.content[0].thinking, bool(hidden.content[0].signature)) == ("", True)
    assert not any(isinstance(block, ThinkingBlock) for block in client.messages.create(**ask("Hello")).content)


def test_a_probe_of_one_token_with_thinking(client: anthropic.Anthropic) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    message = client.messages.create(**ask("foo", max_tokens=1, thinking=thinking))
    assert message.usage.output_tokens == 1
    assert message.stop_reason == "max_tokens"


def test_zero_tokens_answer_nothing(deck: LiveDeck) -> None:
    whole = post(deck, ask("Hello", max_tokens=0)).json()
    assert (whole["content"], whole["stop_reason"], whole["usage"]["output_tokens"]) == ([], "max_tokens", 0)
    got = check(post(deck, ask("Hello", max_tokens=0, stream=True)).content)
    assert (got.content, got.stop_reason) == ([], "max_tokens")


@pytest.mark.parametrize("streams", [False, True])
def test_a_stop_sequence_is_named(client: anthropic.Anthropic, streams: bool) -> None:
    body = ask("Count to 5.", stop_sequences=["3", "never"])
    if streams:
        with client.messages.stream(**body) as stream:
            message = stream.get_final_message()
    else:
        message = client.messages.create(**body)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "3")
    assert "3" not in text_of(message)


def test_a_schema_is_held(client: anthropic.Anthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    config: Any = {"format": {"type": "json_schema", "schema": schema}}
    message = client.messages.create(**ask("Return JSON: name Ana, age 31", output_config=config))
    assert set(json.loads(text_of(message))) == {"name", "age"}


def test_a_prefill_is_continued(client: anthropic.Anthropic) -> None:
    body = ask("Count to 5.")
    history: Any = [*body["messages"], {"role": "assistant", "content": "1, 2,"}]
    message = client.messages.create(**{**body, "messages": history})
    assert text_of(message).lstrip().startswith("3")


def test_a_count_is_what_the_request_then_costs(client: anthropic.Anthropic) -> None:
    common: dict[str, Any] = {
        "model": "tiny-chat",
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "hi"}],
        "thinking": OFF,
    }
    client.messages.create(**ask("Hello"))  # loads the model
    bare = client.messages.count_tokens(**common)
    counted = client.messages.count_tokens(**common, tools=[WEATHER])
    assert counted.input_tokens > bare.input_tokens
    usage = client.messages.create(**common, tools=[WEATHER], max_tokens=1).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_second_turn_reads_from_the_cache(client: anthropic.Anthropic) -> None:
    body = ask("Hello", system="You are a helpful assistant. " * 20)
    client.messages.create(**body)
    usage = client.messages.create(**body).usage
    assert (usage.cache_read_input_tokens or 0) > usage.input_tokens


def test_every_sampler_reaches_the_server_through_the_sdk(client: anthropic.Anthropic) -> None:
    extra = {"temperature": 0, "min_p": 0.05, "seed": 7, "repeat_penalty": 1.1, "top_k": 20}
    assert text_of(client.messages.create(**ask("Hello", extra_body=extra)))


def test_the_sdks_beta_resource(client: anthropic.Anthropic) -> None:
    body = ask("Hello", betas=["context-management-2025-06-27", "effort-2025-11-24"])
    edits: Any = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    answer = client.beta.messages.with_raw_response.create(**body, context_management=edits)
    assert answer.parse().stop_reason == "end_turn"
    assert answer.headers["x-athena-compatibility-ignored"] == "anthropic-beta, context_management"
    with client.beta.messages.stream(**body) as stream:
        assert stream.get_final_message().stop_reason == "end_turn"


def test_the_sdk_runs_a_tool_by_itself(client: anthropic.Anthropic) -> None:
    asked: list[str] = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Weather of a city"""
        asked.append(city)
        return "22 C"

    runner = client.beta.messages.tool_runner(
        model="tiny-chat",
        max_tokens=64,
        tools=[get_weather],
        messages=[{"role": "user", "content": "What's the weather in Paris?"}],
        thinking=OFF,
        thread=False,
        extra_body={"temperature": 0},
    )
    final = runner.until_done()
    assert asked == ["Paris"]
    assert "22 C" in "".join(block.text for block in final.content if block.type == "text")


class Person(BaseModel):
    name: str
    age: int


def test_the_sdk_parses_an_answer_into_a_model(client: anthropic.Anthropic) -> None:
    message = client.messages.parse(**ask("Return JSON: name Ana, age 31", output_format=Person))
    assert isinstance(message.parsed_output, Person)


# Errors, as the SDK raises them


def test_errors_become_the_sdks_own_classes(client: anthropic.Anthropic, deck: LiveDeck) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(**ask("Hello", extra_body={"temprature": 1}))
    assert refused.value.type == "invalid_request_error"
    assert refused.value.request_id is not None
    assert "'temprature'" in str(refused.value)
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(**ask("Hello", model="nobody"))
    assert missing.value.type == "not_found_error"
    assert "tiny-chat" in str(missing.value)
    with (
        anthropic.Anthropic(base_url=deck.base, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError) as unknown,
    ):
        stranger.messages.create(**ask("Hello"))
    assert unknown.value.type == "authentication_error"
    with pytest.raises(anthropic.BadRequestError) as counted:
        client.messages.count_tokens(model="tiny-chat", messages=[], extra_body={"max_tokens": 1})
    assert counted.value.type == "invalid_request_error"


@pytest.mark.parametrize("streams", [False, True])
def test_an_overflow_names_both_numbers(deck: LiveDeck, streams: bool) -> None:
    answer = post(deck, ask("alpha bravo charlie " * 9000, stream=streams), status=400).json()
    assert answer["error"]["type"] == "invalid_request_error"
    words = answer["error"]["message"].split()
    assert words[:4] == ["prompt", "is", "too", "long:"]
    assert int(words[4]) > int(words[7]) == 32768
    assert (words[5], words[8:]) == ("tokens", ["maximum"])


def test_both_credentials_are_accepted(deck: LiveDeck) -> None:
    for headers in ({"x-api-key": deck.token}, {"authorization": f"Bearer {deck.token}"}):
        with deck.client() as client:
            client.headers.pop("authorization")
            assert client.post(COUNT, json={"model": "tiny-chat", "messages": []}, headers=headers).status_code == 400
            body = {"model": "tiny-chat", "messages": [{"role": "user", "content": "hi"}]}
            assert client.post(COUNT, json=body, headers=headers).json()["input_tokens"] > 0
