"""Raw prompts through a live Deck and a real llama-server: the tiny model, greedy."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from completions_automaton import TextStream, check
from e2e.live import LiveDeck, until

pytestmark = pytest.mark.engine

PROMPT = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def ask(prompt: Any = PROMPT, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny-chat", "prompt": prompt, "temperature": 0, "max_tokens": 64, **fields}


def post(deck: LiveDeck, body: dict[str, Any], status: int = 200) -> httpx.Response:
    with deck.client() as client:
        answer = client.post("/v1/completions", json=body)
    assert answer.status_code == status, answer.text
    return answer


def choice(deck: LiveDeck, body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = post(deck, body).json()["choices"][0]
    return found


def stream(deck: LiveDeck, body: dict[str, Any]) -> TextStream:
    wanted = {"stream": True, "stream_options": {"include_usage": True}}
    return check(post(deck, {**body, **wanted}).content, include_usage=True)


def test_a_prompt_that_is_a_chat_by_hand(deck: LiveDeck) -> None:
    whole = post(deck, ask()).json()
    assert whole["choices"][0]["text"].startswith("Hello")
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["id"].startswith("cmpl-")
    assert whole["usage"]["completion_tokens"] > 0


def test_no_template_touches_the_prompt(deck: LiveDeck) -> None:
    """The same words as a chat take more tokens."""
    chat = {"model": "tiny-chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 0}
    with deck.client() as client:
        templated = client.post("/v1/chat/completions", json=chat).json()["usage"]["prompt_tokens"]
    assert 0 < post(deck, ask("Hello", max_tokens=0)).json()["usage"]["prompt_tokens"] < templated


@pytest.mark.parametrize("prompt", [[32, 866, 859], [[32, 866, 859]]])
def test_a_prompt_of_token_ids(deck: LiveDeck, prompt: Any) -> None:
    whole = post(deck, ask(prompt)).json()
    assert whole["usage"]["prompt_tokens"] == 3
    assert whole["choices"][0]["text"] == "!"


def test_token_ids_that_the_model_has_not_are_refused_naming_the_prompt(deck: LiveDeck) -> None:
    assert post(deck, ask([2**31 - 1]), 400).json()["error"]["param"] == "prompt"


@pytest.mark.parametrize(
    "fields", [{}, {"logprobs": 2}, {"max_tokens": 3}, {"stop": ["can"]}, {"json_schema": SCHEMA}], ids=str
)
def test_streamed_and_buffered_agree(deck: LiveDeck, fields: dict[str, Any]) -> None:
    whole = choice(deck, ask(**fields))
    got = stream(deck, ask(**fields))
    assert (got.text, got.finish) == (whole["text"], whole["finish_reason"])
    if "logprobs" in fields:
        assert got.logprobs["tokens"] == whole["logprobs"]["tokens"]
        assert got.logprobs["text_offset"] == whole["logprobs"]["text_offset"]
        assert "".join(got.logprobs["tokens"]) == got.text
        assert all(2 <= len(item) <= 3 for item in got.logprobs["top_logprobs"])


def test_a_limit_and_a_stop_string(deck: LiveDeck) -> None:
    assert choice(deck, ask(max_tokens=2))["finish_reason"] == "length"
    stopped = choice(deck, ask(stop=["can"]))
    assert (stopped["finish_reason"], "can" in stopped["text"]) == ("stop", False)


def test_zero_tokens_answer_nothing(deck: LiveDeck) -> None:
    whole = post(deck, ask(max_tokens=0)).json()
    assert (whole["choices"][0]["text"], whole["choices"][0]["finish_reason"]) == ("", "length")
    assert whole["usage"]["completion_tokens"] == 0


def test_an_empty_prompt_gets_what_llama_server_gives(deck: LiveDeck) -> None:
    whole = post(deck, ask("")).json()
    assert (whole["choices"][0]["text"], whole["choices"][0]["finish_reason"]) == ("", "length")


def test_samplers_are_reported_as_the_engine_runs_them(deck: LiveDeck) -> None:
    """Its own list holds all but one, which must be named."""
    chain = {"top_k": 5, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.9, "top_n_sigma": 1, "repeat_penalty": 1.1}
    chain |= {"xtc_probability": 0.1, "dry_multiplier": 0.5, "dynatemp_range": 0.1, "presence_penalty": 0.1}
    assert "x-athena-compatibility-ignored" not in post(deck, ask(**chain)).headers
    told = post(deck, ask(adaptive_target=0.3, mirostat=0)).headers["x-athena-compatibility-ignored"]
    assert told == "adaptive_target"
    told = post(deck, ask(**chain, mirostat=2)).headers["x-athena-compatibility-ignored"]
    assert told.split(", ") == sorted(chain)


def test_a_grammar_is_held(deck: LiveDeck) -> None:
    assert choice(deck, ask(grammar='root ::= "yes" | "no"'))["text"] in ("yes", "no")
    assert choice(deck, ask(grammar='root ::= "x🌍y"'))["text"] == "x🌍y"


def test_a_schema_is_held(deck: LiveDeck) -> None:
    prompt = PROMPT.replace("Hello", "Return JSON: name Ana, age 31")
    assert json.loads(choice(deck, ask(prompt, json_schema=SCHEMA))["text"]) == {"name": "Ana", "age": 31}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"grammar": "root ::= ("}, "grammar"),
        ({"json_schema": {"type": "strng"}}, "json_schema"),
        ({"guided_json": {"$ref": "#/nowhere"}}, "guided_json"),
    ],
)
def test_what_cannot_be_read_as_a_grammar_is_refused(deck: LiveDeck, fields: dict[str, Any], param: str) -> None:
    """On this route llama-server itself drops such a schema and answers freely."""
    assert post(deck, ask(**fields), 400).json()["error"]["param"] == param


def test_token_ids_and_timings(deck: LiveDeck) -> None:
    whole = post(deck, ask(return_token_ids=True, timings_per_token=True)).json()
    assert len(whole["choices"][0]["token_ids"]) == whole["usage"]["completion_tokens"]
    assert whole["choices"][0]["logprobs"] is None
    assert whole["timings"]["predicted_n"] == whole["usage"]["completion_tokens"]


@pytest.mark.parametrize(
    "fields",
    [
        {"min_p": 0.1, "typical": 0.9, "top_k": 20, "nsigma": 1, "rep_pen": 1.1, "rep_pen_range": -1},
        {"mirostat_mode": 2, "mirostat_tau": 4, "mirostat_eta": 0.2},
        {"dynatemp_range": 0.5, "dynatemp_exponent": 1, "xtc_probability": 0.1, "xtc_threshold": 0.2},
        {"dry_multiplier": 0.5, "dry_base": 1.75, "dry_sequence_breakers": '["\\n"]', "dry_penalty_last_n": -1},
        {"sampler_priority": ["top_k", "temperature"], "min_keep": 1},
        {"ban_eos_token": True, "max_tokens": 8},
        {"logit_bias": [[5, False], ["cat", 1]]},
        {"seed": 1, "frequency_penalty": 0.5, "presence_penalty": 0.5, "cache_prompt": False, "n_keep": 4},
        {"stop": [str(place) * 3 for place in range(30)]},
    ],
    ids=lambda fields: ",".join(fields),
)
def test_every_extension_is_taken_by_the_real_server(deck: LiveDeck, fields: dict[str, Any]) -> None:
    post(deck, ask(**fields))


def test_progress_of_the_prompt(deck: LiveDeck) -> None:
    body = ask("tell me more " * 300, max_tokens=2, stream=True, return_progress=True, cache_prompt=False)
    shown = [chunk["prompt_progress"] for chunk in check(post(deck, body).content).chunks if "prompt_progress" in chunk]
    assert shown[-1]["processed"] == shown[-1]["total"] > 300


def test_overflow_names_both_numbers(deck: LiveDeck) -> None:
    error = post(deck, ask("alpha bravo charlie " * 9000), 400).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "32768" in error["message"]


def test_a_client_that_leaves_frees_the_slot(deck: LiveDeck) -> None:
    """Two endless answers hold both slots until their clients leave; then a third is served."""
    endless = ask(ban_eos_token=True, max_tokens=30000, stream=True)

    def running() -> int:
        with deck.client() as client:
            text = client.get("/metrics").raise_for_status().text
        (line,) = [item for item in text.splitlines() if item.startswith("deck_streams_open ")]
        return int(float(line.split()[1]))

    with deck.client() as one, deck.client() as two:
        with one.stream("POST", "/v1/completions", json=endless) as first:
            next(first.iter_raw())
            with two.stream("POST", "/v1/completions", json=endless) as second:
                next(second.iter_raw())
        until(lambda: running() == 0, 10, "the end of both")
    assert choice(deck, ask())["text"].startswith("Hello")


def test_the_official_sdk_buffered_in_strict_mode(deck: LiveDeck) -> None:
    client = openai.OpenAI(base_url=deck.base + "/v1", api_key=deck.token, _strict_response_validation=True)
    got = client.completions.create(model="tiny-chat", prompt=PROMPT, temperature=0, max_tokens=64, logprobs=1)
    assert got.choices[0].text.startswith("Hello")
    assert got.choices[0].logprobs is not None
    assert got.choices[0].logprobs.text_offset is not None
    assert got._request_id


def test_the_official_sdk_streams(deck: LiveDeck) -> None:
    """Not strict: the SDK types the reason as never null, which no real stream of this wire obeys."""
    client = openai.OpenAI(base_url=deck.base + "/v1", api_key=deck.token)
    chunks = list(
        client.completions.create(
            model="tiny-chat",
            prompt=PROMPT,
            temperature=0,
            max_tokens=64,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]).startswith("Hello")
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None


def test_the_official_sdk_raises_what_deck_refuses(deck: LiveDeck) -> None:
    client = openai.OpenAI(base_url=deck.base + "/v1", api_key=deck.token)
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny-chat", prompt="a", suffix="b")
    assert caught.value.param == "suffix"
