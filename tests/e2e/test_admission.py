"""What cannot fit the real engine's context, in the words of each wire, loaded and not loaded, whole and streamed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from e2e.live import ROOT, LiveDeck, live_deck
from wires import WIRES

CONTEXT = 512
SERVER = (
    f'[server]\nmodel = "{ROOT}/profiles/tiny-chat/tiny-chat.gguf"\nctx_size = {2 * CONTEXT}\nparallel = 2\n'
    'args = ["-t", "1", "-tb", "1"]\n'
)
PROFILES = {
    "small": f'id = "small"\n{SERVER}',
    "capped": f'id = "capped"\nbudget_overflow = "cap"\n{SERVER}',
    "cold": f'id = "cold"\n{SERVER}',
}
CHANGED = "x-athena-compatibility-changed"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDeck]:
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("needs the extra 'engine'")
    with live_deck(tmp_path_factory.mktemp("small"), profiles=PROFILES) as running:
        yield running


@pytest.fixture(params=list(WIRES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["buffered", "streamed"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def send(deck: LiveDeck, name: str, words: str, limit: int | None, *, model: str, stream: bool) -> httpx.Response:
    with deck.client() as client:
        return client.post(WIRES[name].path, json={**WIRES[name].body(words, stream, limit), "model": model})


def message(answer: httpx.Response) -> str:
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error.get("code", "context_length_exceeded") == "context_length_exceeded"
    found: str = error["message"]
    return found


def state(deck: LiveDeck, model: str) -> str:
    with deck.client() as client:
        found: str = client.get(f"/v1/models/{model}").json()["state"]
        return found


def tokens(deck: LiveDeck, name: str, words: str) -> int:
    """Return what a prompt takes, by what its answer says that it took."""
    with deck.client() as client:
        usage = client.post(WIRES[name].path, json={**WIRES[name].body(words, False, 1), "model": "capped"}).json()[
            "usage"
        ]
    return int(usage.get("prompt_tokens") or usage.get("input_tokens", 0) + usage.get("cache_read_input_tokens", 0))


def test_a_model_that_is_not_loaded_stays_so_for_what_plainly_does_not_fit(
    small: LiveDeck, name: str, stream: bool
) -> None:
    said = message(send(small, name, "alpha bravo charlie " * 1000, 10, model="cold", stream=stream))
    assert str(CONTEXT) in said
    assert "not loaded" in said
    said = message(send(small, name, "hi", 600, model="cold", stream=stream))
    assert "600" in said
    assert state(small, "cold") == "stopped"


def test_what_only_the_model_can_count_is_refused_once_it_is_loaded(tmp_path: Path, name: str) -> None:
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("needs the extra 'engine'")
    with live_deck(tmp_path, profiles=PROFILES) as deck:
        said = message(send(deck, name, "7 " * 600, 10, model="small", stream=False))
        assert "not loaded" not in said
        assert str(CONTEXT) in said
        assert state(deck, "small") == "ready"


def test_a_prompt_that_is_too_long(small: LiveDeck, name: str, stream: bool) -> None:
    send(small, name, "hi", 1, model="small", stream=False)
    said = message(send(small, name, "7 " * 600, 10, model="small", stream=stream))
    of = "prompt" if name == "completions" else "messages"
    start, end = (
        ("prompt is too long: ", f" tokens > {CONTEXT} maximum")
        if name == "messages"
        else (
            f"This model's maximum context length is {CONTEXT} tokens. However, your {of} resulted in ",
            f" tokens. Please reduce the length of the {of}.",
        )
    )
    assert said.startswith(start)
    assert said.endswith(end)
    assert 1200 <= int(said[len(start) : -len(end)]) < 1300


def test_a_budget_that_is_too_large(small: LiveDeck, name: str, stream: bool) -> None:
    prompt = tokens(small, name, "Say pong")
    assert send(small, name, "Say pong", CONTEXT - prompt, model="small", stream=stream).status_code == 200
    said = message(send(small, name, "Say pong", CONTEXT - prompt + 1, model="small", stream=stream))
    if name == "messages":
        assert said.startswith(
            f"input length and `max_tokens` exceed context limit: {prompt} + {CONTEXT - prompt + 1} > {CONTEXT},"
        )
    else:
        of = "prompt" if name == "completions" else "messages"
        assert f"you requested {CONTEXT + 1} tokens ({prompt} in the {of}, {CONTEXT - prompt + 1} in the" in said


def test_a_budget_that_is_lowered(small: LiveDeck, name: str, stream: bool) -> None:
    prompt = tokens(small, name, "Say pong")
    answer = send(small, name, "Say pong", 32000, model="capped", stream=stream)
    assert answer.status_code == 200, answer.text
    assert f"=32000>{CONTEXT - prompt}" in answer.headers[CHANGED]


def test_ids_of_tokens_are_counted_by_their_number(small: LiveDeck) -> None:
    with small.client() as client:
        ids = client.post("/v1/completions", json={"model": "small", "prompt": [5] * 600, "max_tokens": 1})
    assert "maximum context length is 512 tokens. However, your prompt resulted in 600 tokens" in message(ids)


def test_the_official_sdk_knows_the_code(small: LiveDeck) -> None:
    client = openai.OpenAI(base_url=small.base + "/v1", api_key=small.token)
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="small", messages=[{"role": "user", "content": "7 " * 600}], max_tokens=1, stream=True
        )
    assert refused.value.code == "context_length_exceeded"
