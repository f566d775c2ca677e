"""What a surface may ask for beyond the answer: reasoning tokens, the stop string, progress; and its headers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from app_support import BODY, App, app, error_of
from engine_support import Engine, client_of, needs_engine, running
from needy_surface import POINTS, Needy

from deck.testing.fake_llama import Received, Reply, say
from deck.testing.frames import chunk, content, done, finish, frame, reasoning, role, usage

NEEDY = "/v1/needy"
TOKENIZE = "/tokenize"
THOUGHT = Reply(steps=(role(), reasoning("hm "), reasoning("so"), content("ok"), finish(), usage(5, 4), done()))
STOPPED = Reply(
    steps=(
        role(),
        content("a"),
        chunk({}, "stop", __verbose={"stop_type": "word", "stopping_word": "END"}),
        usage(5, 1),
        done(),
    )
)


def ask(deck: App, needs: str = "", path: str = NEEDY, **fields: Any) -> httpx.Response:
    return deck.send("POST", path, json={**BODY, **fields}, headers={"x-needs": needs})


def tokenized(deck: App) -> list[Received]:
    return [item for item in deck.fake.requests if item.path == TOKENIZE]


# Reasoning tokens


def test_reasoning_tokens_are_counted_by_the_models_own_tokenizer(tmp_path: Path) -> None:
    with app(tmp_path, [THOUGHT], routes={TOKENIZE: {"tokens": [1, 2, 3]}}, points=POINTS) as deck:
        counts = ask(deck, "reasoning_tokens").json()["usage"]
        assert counts["completion_tokens_details"] == {"reasoning_tokens": 3}
        (asked,) = tokenized(deck)
        assert asked.json() == {"content": "hm so", "add_special": False, "parse_special": False}


def test_reasoning_tokens_stand_in_a_streams_usage_too(tmp_path: Path) -> None:
    with app(tmp_path, [THOUGHT], routes={TOKENIZE: {"tokens": [1, 2, 3]}}, points=POINTS) as deck:
        answer = ask(deck, "reasoning_tokens", stream=True, stream_options={"include_usage": True})
        assert b'"reasoning_tokens":3' in answer.content
        assert answer.content.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("reply", [{"tokens": "x"}, {}, [], None])
def test_a_tokenizer_that_fails_leaves_the_number_out_with_a_note(tmp_path: Path, reply: Any) -> None:
    routes = {} if reply is None else {TOKENIZE: reply}
    with app(tmp_path, [THOUGHT], routes=routes, points=POINTS) as deck:
        answer = ask(deck, "reasoning_tokens")
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["message"]["content"] == "ok"
        assert "completion_tokens_details" not in answer.json()["usage"]
        assert answer.headers["x-athena-compatibility-ignored"] == "usage.reasoning_tokens"


def test_an_answer_without_thoughts_has_none_and_asks_nobody(tmp_path: Path) -> None:
    with app(tmp_path, [say("x")], points=POINTS) as deck:
        counts = ask(deck, "reasoning_tokens").json()["usage"]
        assert counts["completion_tokens_details"] == {"reasoning_tokens": 0}
        assert tokenized(deck) == []


def test_a_count_that_llama_server_gives_itself_stands(tmp_path: Path) -> None:
    counts = {"prompt_tokens": 5, "completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": 2}}
    own = frame({"choices": [], "usage": counts})
    steps = (role(), reasoning("hm"), content("ok"), finish(), own, done())
    with app(tmp_path, [Reply(steps=steps)], points=POINTS) as deck:
        assert ask(deck, "reasoning_tokens").json()["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
        assert tokenized(deck) == []


def test_what_is_not_needed_is_not_asked_for(tmp_path: Path) -> None:
    with app(tmp_path, [THOUGHT], points=POINTS) as deck:
        answer = ask(deck)
        assert "completion_tokens_details" not in answer.json()["usage"]
        assert tokenized(deck) == []
        assert not {"verbose", "response_fields", "return_progress"} & set(deck.upstream()[0])


# The stop string


def test_the_stop_string_is_named(tmp_path: Path) -> None:
    with app(tmp_path, [STOPPED, say("x")], points=POINTS) as deck:
        assert ask(deck, "stop_sequence", stop=["END", "x"]).json()["stop_sequence"] == "END"
        assert ask(deck, "stop_sequence", stop=["END", "x"]).json()["stop_sequence"] is None
        sent = deck.upstream()[0]
        assert (sent["verbose"], sent["response_fields"]) == (True, ["stop_type", "stopping_word"])


def test_nothing_of_the_verbose_object_reaches_the_client(tmp_path: Path) -> None:
    loud = {"stop_type": "eos", "stopping_word": "", "prompt": "SECRET", "generation_settings": {"seed": 1}}
    steps = (role(), content("a"), chunk({}, "stop", __verbose=loud), usage(5, 1), done())
    with app(tmp_path, [Reply(steps=steps)], points=POINTS) as deck:
        for stream in (True, False):
            answer = ask(deck, "stop_sequence", stream=stream)
            assert b"SECRET" not in answer.content
            assert b"verbose" not in answer.content


@needs_engine
@pytest.mark.engine
def test_naming_the_stop_string_costs_a_few_bytes_of_the_last_frame_only() -> None:
    """Without `response_fields` the object holds the prompt and every setting, once; a longer prompt costs more."""
    with running("-c", "4096") as engine:
        body = {
            "messages": [{"role": "user", "content": "Count to 5. " + "And be brief. " * 50}],
            "temperature": 0,
            "stop": ["3"],
            "stream": True,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        plain = streamed(engine, body)
        cheap = streamed(engine, {**body, "verbose": True, "response_fields": ["stop_type", "stopping_word"]})
        whole = streamed(engine, {**body, "verbose": True})
    assert [len(frame) for frame in plain[:-2]] == [len(frame) for frame in cheap[:-2]]
    extra = sum(map(len, cheap)) - sum(map(len, plain))
    assert 0 < extra < 80
    assert sum(map(len, whole)) - sum(map(len, plain)) > 1500
    assert json.loads(cheap[-2][6:])["__verbose"] == {"stop_type": "word", "stopping_word": "3"}


def streamed(engine: Engine, body: dict[str, Any]) -> list[bytes]:
    # The engine may close a connection that has streamed; a client that asks once has none to lose.
    with client_of(engine.socket) as client:
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return [frame for frame in answer.content.split(b"\n\n") if frame]


# Progress


def test_progress_of_the_prompt_is_asked_for(tmp_path: Path) -> None:
    with app(tmp_path, [say("x")], points=POINTS) as deck:
        assert ask(deck, "prompt_progress").status_code == 200
        assert deck.upstream()[0]["return_progress"] is True


# Headers, query, paths


def test_the_requests_id_stands_in_every_header_that_the_surface_names(tmp_path: Path) -> None:
    with app(tmp_path, [say("x")], points=POINTS) as deck:
        for answer in (ask(deck), ask(deck, stream=True), ask(deck, path="/v1/needy/count"), ask(deck, foo=1)):
            assert answer.headers["x-request-id"] == answer.headers["request-id"]
        for answer in (deck.send("GET", NEEDY), deck.send("POST", NEEDY, token=None, json=BODY)):
            assert answer.headers["x-request-id"] == answer.headers["request-id"]
        assert "request-id" not in deck.chat().headers


def test_a_surface_sees_the_headers_that_it_named_and_no_others(tmp_path: Path) -> None:
    with app(tmp_path, [say("x")], points=POINTS) as deck:
        headers = {"X-Needs": "", "X-Other": "o"}
        deck.send("POST", NEEDY, json=BODY, headers=headers)
        surface = deck.deck.plugins.surfaces["needy"]
        assert isinstance(surface, Needy)
        assert dict(surface.seen.headers) == {"x-needs": ""}
        assert surface.seen.operation == "generate"
        deck.send("POST", NEEDY, json=BODY)
        assert dict(surface.seen.headers) == {}
        ask(deck, path="/v1/needy/count")
        assert surface.seen.operation == "count"


def test_a_query_is_reported(tmp_path: Path) -> None:
    with app(tmp_path, [say("x")]) as deck:
        answer = deck.send("POST", "/v1/chat/completions?beta=true&x=1&=2&&flag", json=BODY)
        assert answer.status_code == 200
        assert answer.headers["x-athena-compatibility-ignored"] == "?beta, ?flag, ?x"
        assert "true" not in answer.headers["x-athena-compatibility-ignored"]
        many = "&".join(f"p{place}=1" for place in range(400))
        answer = deck.send("POST", f"/v1/chat/completions?{many}", json=BODY)
        assert answer.headers["x-athena-compatibility-ignored"].count("?p") == 16


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize("path", ["/v1/chat/completions/abc", "/v1/completions/abc/cancel"])
def test_what_lies_below_a_route_is_not_implemented(tmp_path: Path, method: str, path: str) -> None:
    with app(tmp_path) as deck:
        error = error_of(deck.send(method, path, json={} if method == "POST" else None), 404)
        assert "is not implemented by Deck, which stores nothing" in error["message"]
        assert path in error["message"]
        assert deck.fake.requests == []


# Thinking of a model that does not


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"enable_thinking": True}, "enable_thinking"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ({"thinking": {"type": "enabled"}}, "thinking.type"),
        (
            {"reasoning_budget_tokens": 9, "reasoning_budget_message": "so"},
            "reasoning_budget_message, reasoning_budget_tokens",
        ),
        ({"enable_thinking": False}, None),
    ],
)
def test_a_model_that_is_declared_not_to_think_says_so_of_the_clients_own_fields(
    tmp_path: Path, fields: dict[str, Any], named: str | None
) -> None:
    with app(tmp_path, profiles={"m1": 'id = "m1"\n{server}[capabilities]\nreasoning = false\n'}) as deck:
        answer = deck.chat(json={**BODY, **fields})
        assert answer.status_code == 200
        assert answer.headers.get("x-athena-compatibility-ignored") == named
        (sent,) = deck.upstream()
        assert not {"reasoning_budget_tokens", "reasoning_budget_message", "chat_template_kwargs"} & set(sent)
