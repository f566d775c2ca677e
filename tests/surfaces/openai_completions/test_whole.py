"""Completions through a whole Deck and a scripted llama-server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from app_support import App, app, error_of
from completions_automaton import check

from deck.testing.fake_llama import Act, Reply, refuse, say_text
from deck.testing.frames import error_frame, text, text_end

ROUTE = "/v1/completions"
BODY: dict[str, Any] = {"model": "m1", "prompt": "Once"}


def ask(deck: App, path: str = ROUTE, **fields: Any) -> httpx.Response:
    return deck.send("POST", path, json={**BODY, **fields})


def sent(deck: App) -> list[dict[str, Any]]:
    return [item.json() for item in deck.fake.requests if item.path == ROUTE]


@pytest.mark.parametrize("path", ["/v1/completions", "/completions", "/v1/completions/"])
def test_a_raw_prompt_goes_to_the_raw_route_alone(tmp_path: Path, path: str) -> None:
    with app(tmp_path, [say_text(" upon", " a", " time")]) as deck:
        answer = ask(deck, path, stop="time", max_tokens=5)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["text"] == " upon a time"
        assert answer.headers["x-request-id"].startswith("req_")
        assert deck.upstream() == []
        assert sent(deck) == [
            {
                "prompt": "Once",
                "stream": True,
                "stream_options": {"include_usage": True},
                "stop": ["time"],
                "max_tokens": 5,
            }
        ]


def test_a_stream_with_its_usage(tmp_path: Path) -> None:
    with app(tmp_path, [say_text(" upon", " a", prompt=4)]) as deck:
        answer = ask(deck, stream=True, stream_options={"include_usage": True})
        assert answer.headers["content-type"] == "text/event-stream"
        got = check(answer.content, include_usage=True)
        assert (got.text, got.finish) == (" upon a", "stop")
        assert got.usage is not None
        assert (got.usage["prompt_tokens"], got.usage["completion_tokens"]) == (4, 2)


@pytest.mark.parametrize("stream", [True, False])
def test_zero_tokens_answer_nothing(tmp_path: Path, stream: bool) -> None:
    """llama-server makes one token even then; it reaches nobody and is not counted."""
    with app(tmp_path, [say_text("x", reason="length", prompt=4)]) as deck:
        answer = ask(deck, max_tokens=0, stream=stream)
        if stream:
            got = check(answer.content)
            assert (got.text, got.finish) == ("", "length")
        else:
            whole = answer.json()
            assert (whole["choices"][0]["text"], whole["choices"][0]["finish_reason"]) == ("", "length")
            assert whole["usage"]["completion_tokens"] == 0


def test_the_profile_has_its_say(tmp_path: Path) -> None:
    profile = (
        'id = "p"\ndrop = ["seed"]\n[defaults]\nmin_p = 0.1\n[force]\ntop_k = 7\n[limits]\nmax_tokens = 9\n{server}'
    )
    with app(tmp_path, [say_text("x")], profiles={"p": profile}) as deck:
        answer = ask(deck, model="p", seed=1, top_k=40, max_new_tokens=50)
        assert answer.status_code == 200, answer.text
        (got,) = sent(deck)
        assert {name: got.get(name) for name in ("min_p", "top_k", "max_tokens", "seed")} == {
            "min_p": 0.1,
            "top_k": 7,
            "max_tokens": 9,
            "seed": None,
        }
        assert answer.headers["x-athena-compatibility-ignored"] == "seed"
        shown = answer.headers["x-athena-compatibility-changed"]
        assert shown == "max_new_tokens=50>9, max_new_tokens>max_tokens, top_k=40>7"


def test_a_failure_in_mid_stream_is_the_wires_own_error(tmp_path: Path) -> None:
    replies = [
        Reply(steps=(text("a"), error_frame(500, "Compute error."))),
        Reply(steps=(text("a"), Act.CLOSE)),
        Reply(steps=(text("a"), b"data: nonsense\n\n")),
    ]
    with app(tmp_path, replies) as deck:
        for _ in replies:
            got = check(ask(deck, stream=True).content)
            assert got.error is not None
            assert (got.text, got.error["code"], got.is_done) == ("a", "upstream_error", False)


def test_a_failure_before_the_answer_has_its_status(tmp_path: Path) -> None:
    replies = [
        refuse(400, "Prompt contains invalid tokens", "invalid_request_error"),
        refuse(
            400,
            "request (36000 tokens) exceeds the available context size (4096 tokens), try increasing it",
            "exceed_context_size_error",
        ),
        Reply(steps=(error_frame(500, "Compute error."),)),
    ]
    with app(tmp_path, replies) as deck:
        assert error_of(ask(deck, prompt=[999999999], stream=True), 400)["param"] == "prompt"
        assert error_of(ask(deck), 400)["code"] == "context_length_exceeded"
        assert error_of(ask(deck, stream=True), 502)["code"] == "upstream_error"


def test_a_full_context_is_a_length(tmp_path: Path) -> None:
    with app(tmp_path, [say_text("a", "b", reason="length")]) as deck:
        assert ask(deck).json()["choices"][0]["finish_reason"] == "length"
        assert ask(deck, max_tokens=2).json()["choices"][0]["finish_reason"] == "length"


def test_logprobs_are_converted(tmp_path: Path) -> None:
    entry = {"id": 5, "token": "a", "bytes": [97], "logprob": -0.1, "top_logprobs": []}
    with app(tmp_path, [Reply(steps=(text("a", entries=[entry]), text_end(3, 1)))]) as deck:
        found = ask(deck, logprobs=0).json()["choices"][0]["logprobs"]
        assert found == {
            "tokens": ["a"],
            "token_logprobs": [-0.1],
            "top_logprobs": [{"a": -0.1}],
            "text_offset": [0],
        }
        assert sent(deck)[0]["logprobs"] == 1


def test_a_refusal_reaches_no_server(tmp_path: Path) -> None:
    with app(tmp_path) as deck:
        error = error_of(ask(deck, suffix="}"), 400)
        assert (error["param"], error["code"]) == ("suffix", "unsupported_value")
        assert error_of(deck.send("GET", ROUTE), 405)
        assert error_of(deck.send("POST", ROUTE, token=None, json=BODY), 401)
        assert error_of(ask(deck, model="nobody"), 404)["code"] == "model_not_found"
        assert error_of(ask(deck, f"{ROUTE}/x"), 404)
        assert sent(deck) == []


def test_capabilities_have_the_surface(tmp_path: Path) -> None:
    with app(tmp_path) as deck:
        shown = deck.send("GET", "/v1/capabilities").json()
        assert "/v1/completions" not in shown["not_implemented"]
        surface = shown["surfaces"]["completions"]
        assert surface["routes"] == ["POST /v1/completions"]
        assert surface["aliases"]["max_new_tokens"] == "max_tokens"
        assert surface["fields"]["suffix"]["treatment"] == "tolerated"


def test_a_schema_is_read_by_the_chat_route_first(tmp_path: Path) -> None:
    """llama-server's raw route leaves out a schema that it cannot read, and answers freely."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    template = "/apply-template"
    with app(tmp_path, [say_text("{}")], routes={template: {"prompt": "x"}}) as deck:
        assert ask(deck, json_schema=schema).status_code == 200
        (read,) = [item.json() for item in deck.fake.requests if item.path == template]
        assert read["json_schema"] == schema
        assert sent(deck)[0]["json_schema"] == schema
        assert ask(deck, grammar='root ::= "x"').status_code == 200
        assert ask(deck).status_code == 200
        assert [item.path for item in deck.fake.requests].count(template) == 1


def test_a_server_that_cannot_read_schemas_first_is_asked_all_the_same(tmp_path: Path) -> None:
    with app(tmp_path, [say_text("{}")]) as deck:
        assert ask(deck, json_schema={"type": "object"}).status_code == 200
