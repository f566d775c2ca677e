"""Bounds on a prompt's tokens, held against the real tokenizer and template of the tiny model."""

from __future__ import annotations

import base64
import pydoc_data.topics
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from engine_support import Engine, needs_engine, running
from hypothesis import given, settings
from hypothesis import strategies as st

from deck import json
from deck.bounds import least_tokens, most_tokens
from deck.canon.request import (
    Audio,
    ChatRequest,
    Image,
    Message,
    Part,
    Reasoning,
    Role,
    Text,
    TextRequest,
    Tool,
    ToolCall,
    ToolResult,
)
from deck.contracts import Facts
from deck.upstream.encode import encode, encode_text

ENOUGH = 1 << 30
FRAGMENTS = [
    "the ",
    "def f(x):\n    ",
    "        ",
    "\n\n\n",
    "====",
    "aaaaaaaa",
    '{"a": 1}',
    "<|im_end|>",
    "<think>",
    "ü€🌍",
]
WORDS = st.lists(st.one_of(st.text(max_size=20), st.sampled_from(FRAGMENTS)), max_size=20).map("".join)
ROLES: list[Role] = ["system", "user", "assistant"]
TOOLS = st.builds(
    Tool,
    name=st.from_regex(r"[a-z_]{1,20}", fullmatch=True),
    description=st.one_of(st.none(), WORDS),
    parameters=st.dictionaries(
        st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.sampled_from([{"type": "string"}, {"type": "integer"}])
    ).map(lambda properties: {"type": "object", "properties": properties, "required": list(properties)}),
)
CALLED = (
    Message("assistant", (ToolCall("123456789", "f", '{"a": 1}'),)),
    Message("tool", (ToolResult("123456789", (Text("b" * 50),)),)),
)
LAST = Message("user", (Text("go on"),))
REQUESTS = st.builds(
    lambda turns, tools, called: ChatRequest(
        model="m", messages=(*turns, *(CALLED if called else ()), LAST), tools=tools
    ),
    st.lists(st.builds(lambda role, text: Message(role, (Text(text),)), st.sampled_from(ROLES), WORDS), min_size=1).map(
        tuple
    ),
    st.lists(TOOLS, max_size=3).map(tuple),
    st.booleans(),
)


def most(request: ChatRequest | TextRequest, facts: Facts = Facts()) -> int:  # noqa: B008  # a constant
    body = encode(request, context=None) if isinstance(request, ChatRequest) else encode_text(request, context=None)
    return most_tokens(request, json.dumps(body), facts)


least = partial(least_tokens, enough=ENOUGH)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with running("-c", "8192", "-np", "1") as found:
        yield found


@pytest.fixture(scope="module")
def facts(engine: Engine) -> Facts:
    return Facts(template=engine.client.get("/props").json()["chat_template"])


def counted(engine: Engine, request: ChatRequest) -> int:
    body: dict[str, Any] = {**encode(request, context=None), "stream": False}
    answer = engine.client.post("/v1/chat/completions/input_tokens", content=json.dumps(body))
    assert answer.status_code == 200, answer.text
    found: int = answer.json()["input_tokens"]
    return found


@needs_engine
@pytest.mark.engine
@settings(max_examples=300, deadline=None)
@given(request=REQUESTS)
def test_what_the_real_template_and_tokenizer_make_is_within_the_bounds(
    engine: Engine, facts: Facts, request: ChatRequest
) -> None:
    assert least(request) <= counted(engine, request) <= most(request, facts)


@needs_engine
@pytest.mark.engine
@settings(max_examples=200, deadline=None)
@given(text=WORDS)
def test_a_raw_prompt_is_within_the_bounds(engine: Engine, text: str) -> None:
    request = TextRequest(model="m", prompt=text)
    body = {"content": text, "add_special": True, "parse_special": True}
    tokens = len(engine.client.post("/tokenize", content=json.dumps(body)).json()["tokens"])
    assert least(request) <= tokens <= most(request)


def said(*parts: Part, role: Role = "user") -> ChatRequest:
    return ChatRequest(model="m", messages=(Message(role, parts),))


def test_token_ids_are_counted() -> None:
    request = TextRequest(model="m", prompt=(1, 2, 3))
    assert (least(request), most(request)) == (3, 3)


def test_a_small_request_has_a_small_bound() -> None:
    assert most(said(Text("hi")), Facts(template="x" * 100)) < 250


def test_a_template_counts_once_by_its_length() -> None:
    request = said(Text("hi"))
    assert most(request, Facts(template="x" * 100)) - most(request, Facts(template="")) == 100


def test_an_unknown_template_may_write_much() -> None:
    assert most(said(Text("hi"))) > 8192


def test_a_picture_counts_as_the_largest_whatever_its_bytes() -> None:
    template = Facts(template="")
    small, large = (
        most(said(Text("hi"), Image("data:image/png;base64," + "A" * size)), template) for size in (10, 1 << 20)
    )
    assert small == large
    assert 16384 < small < 16384 + 300
    two = ToolResult("1", (Image("data:image/png;base64,AAAA"), Image("data:image/png;base64,AAAA")))
    assert most(said(two, role="tool"), template) > 2 * 16384


def test_a_sound_counts_by_its_length() -> None:
    sound = base64.b64encode(bytes(320_000)).decode()  # ten seconds, of which models make 125 to 500 tokens
    found = most(said(Audio(sound, "wav")), Facts(template=""))
    assert 1000 < found < 10_000
    assert most(said(Audio(sound * 2, "wav")), Facts(template="")) > found


PROSE = [pydoc_data.topics.topics[name] for name in ("objects", "strings", "for", "exceptions")]


@pytest.mark.parametrize("text", PROSE, ids=lambda text: text[:20])
def test_prose_has_more_tokens_even_where_every_word_is_one(text: str) -> None:
    """No tokenizer does better than one token for each word or row of signs."""
    found = least(TextRequest(model="m", prompt=text))
    assert len(text) / 16 < found <= len(re.findall(r"\w+|[^\w\s]+", text))


@pytest.mark.parametrize("text", [" " * 10_000, "\n" * 10_000, "=" * 10_000, "a" * 10_000, " \n\t" * 5000])
def test_what_one_token_may_stand_for_in_any_length_counts_next_to_nothing(text: str) -> None:
    assert least(TextRequest(model="m", prompt=text)) == 0


@pytest.mark.parametrize("mark", ["<|im_end|>", "<start_of_turn>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>"])
def test_marks_of_templates_count_nothing(mark: str) -> None:
    assert least(TextRequest(model="m", prompt=mark * 1000)) == 0


def test_what_a_template_may_leave_out_counts_nothing() -> None:
    assert least(said(Text("word " * 100))) == 50
    assert least(said(Text("word " * 100), role="assistant")) == 50
    assert least(said(Text("<think>" + "word " * 100 + "</think>"), role="assistant")) == 0
    assert least(said(Text("</think>" + "word " * 100))) == 50  # a mark may be one token of any length
    assert least(said(Reasoning("word " * 100), role="assistant")) == 0
    assert least(said(ToolCall("1", "f", '{"a": "' + "word " * 100 + '"}'), role="assistant")) == 0
    assert least(said(Image("data:image/png;base64," + "Ab" * 1000))) == 0
    assert least(said(ToolResult("1", (Text("word " * 100),)), role="tool")) == 50


def test_no_more_is_read_than_is_enough() -> None:
    request = ChatRequest(model="m", messages=tuple(Message("user", (Text("word " * 100),)) for _ in range(10)))
    assert least_tokens(request, 1 << 30) == 500
    assert least_tokens(request, 120) == 120
    assert least_tokens(said(Text("word" * 100_000)), 10) == 10
    assert least_tokens(request, 0) == 0
