"""The demo model that comes with Deck, through the real llama.cpp server at temperature 0."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from engine_support import MODEL, Engine, needs_engine, running

pytestmark = pytest.mark.engine

CONTEXT = 65536
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
HI = {"role": "user", "content": "Hi"}
RULE = {"role": "system", "content": "Be brief."}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "22 C"}


def calling(arguments: object, **rest: object) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        **rest,
    }


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "two system messages first": [RULE, RULE, HI],
    "a system message in the middle": [HI, {"role": "assistant", "content": "x"}, RULE, HI],
    "a system message last": [HI, RULE],
    "nothing but a system message": [RULE],
    "arguments as text": [HI, calling('{"city": "Paris"}'), RESULT],
    "arguments as an object": [HI, calling({"city": "Paris"}), RESULT],
    "no arguments": [HI, calling("{}"), RESULT, HI],
    "text and thought before a call": [HI, calling("{}", content="Let me see.", reasoning_content="Hm."), RESULT],
    "an answer of null": [HI, {"role": "assistant", "content": None}, HI],
    "a question of null": [{"role": "user", "content": None}],
    "an empty tool result": [HI, calling("{}"), {**RESULT, "content": ""}],
    "text parts": [{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}],
}


@pytest.fixture(scope="module")
def tiny() -> Iterator[Engine]:
    with running("-c", str(CONTEXT), "-np", "1") as engine:
        yield engine


def metadata_number(key: str) -> int:
    """Return a 32-bit number of the file's header."""
    data = MODEL.read_bytes()
    kind, number = struct.unpack_from("<II", data, data.index(key.encode()) + len(key))
    assert kind == 4
    return int(number)


def test_the_file_is_small() -> None:
    assert MODEL.stat().st_size <= 3_000_000


def test_the_metadata_is_right() -> None:
    assert metadata_number("qwen2.context_length") == CONTEXT
    assert metadata_number("qwen2.block_count") == 4
    assert metadata_number("qwen2.embedding_length") == 128
    assert metadata_number("general.file_type") == 1


def test_the_template_in_the_file_is_the_one_beside_it() -> None:
    template = (MODEL.parent / "template.jinja").read_text(encoding="utf-8").rstrip("\n").encode()
    data = MODEL.read_bytes()
    key = b"tokenizer.chat_template"
    kind, length = struct.unpack_from("<IQ", data, data.index(key) + len(key))
    assert (kind, length) == (8, len(template))
    assert template in data


@needs_engine
def test_the_server_offers_the_whole_context(tiny: Engine) -> None:
    props = tiny.client.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == CONTEXT
    caps = props["chat_template_caps"]
    assert all(caps[f"supports_{name}"] for name in ("tools", "tool_calls", "parallel_tool_calls", "system_role"))


@needs_engine
@pytest.mark.slow
def test_a_long_prompt_is_taken(tiny: Engine) -> None:
    text = " ".join(f"word{number}" for number in range(4400)) + " Say pong"
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 8, "temperature": 0}
    answer = tiny.client.post("/v1/chat/completions", json=body, timeout=300)
    assert answer.status_code == 200
    assert answer.json()["usage"]["prompt_tokens"] > 25_000


@needs_engine
@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Hello", "Hello! How can I help you?"),
        ("Say pong", "pong"),
        ("Reply with exactly: pong", "pong"),
        ("What is the capital of France?", "The capital of France is Paris."),
        ("Count to 5", "1, 2, 3, 4, 5"),
    ],
)
def test_answers(tiny: Engine, question: str, answer: str) -> None:
    choice = tiny.say(question)
    assert choice["message"]["content"] == answer
    assert choice["finish_reason"] == "stop"


@needs_engine
@pytest.mark.parametrize("thinking", [False, True])
def test_calls_a_tool(tiny: Engine, thinking: bool) -> None:
    choice = tiny.say("What's the weather in Paris?", tools=[WEATHER], thinking=thinking)
    assert choice["finish_reason"] == "tool_calls"
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    assert bool(choice["message"].get("reasoning_content")) is thinking


@needs_engine
def test_reads_a_tool_result(tiny: Engine) -> None:
    question = {"role": "user", "content": "What's the weather in Paris?"}
    choice = tiny.chat(question, calling('{"city": "Paris"}'), RESULT, tools=[WEATHER])
    assert choice["message"]["content"] == "The result is: 22 C"


@needs_engine
def test_greets_even_with_a_tool_at_hand(tiny: Engine) -> None:
    assert tiny.say("Hello", tools=[WEATHER])["message"]["content"] == "Hello! How can I help you?"


@needs_engine
def test_fills_a_json_schema(tiny: Engine) -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    choice = tiny.say("Return JSON: name Ana, age 31, city Rome", response_format=shape)
    assert json.loads(choice["message"]["content"]) == {"name": "Ana", "age": 31, "city": "Rome"}


@needs_engine
def test_fills_a_json_schema_that_the_prompt_does_not_mention(tiny: Engine) -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    choice = tiny.say("Hello", response_format=shape)
    assert choice["finish_reason"] == "stop"
    assert set(json.loads(choice["message"]["content"])) == {"name", "age", "city"}


@needs_engine
def test_thinks_when_asked(tiny: Engine) -> None:
    message = tiny.say("Hello", thinking=True)["message"]
    assert message["reasoning_content"].strip() == "The user greets me."
    assert message["content"] == "Hello! How can I help you?"
    assert not tiny.say("Hello", thinking=False)["message"].get("reasoning_content")


@needs_engine
@pytest.mark.parametrize("tools", [None, [WEATHER]], ids=["no tools", "tools"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_template_takes_any_conversation(tiny: Engine, name: str, tools: list[object] | None) -> None:
    body = {"messages": CONVERSATIONS[name], **({"tools": tools} if tools else {})}
    answer = tiny.client.post("/apply-template", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["prompt"].endswith("<|im_start|>assistant\n")
