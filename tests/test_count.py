"""Counting the tokens of a prompt: by the running server's own counter, else an estimate that says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from app_support import BODY, App, app, error_of
from chat_support import TOOL
from engine_support import ROOT, needs_engine
from faults.support import local
from needy_surface import POINTS

from deck.counting import estimate
from deck.testing.fake_llama import Received, say

COUNTER = "/v1/chat/completions/input_tokens"
COUNT = "/v1/needy/count"
RICH: dict[str, Any] = {
    **BODY,
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
    "tools": [TOOL],
}


@pytest.fixture
def deck(tmp_path: Path) -> Iterator[App]:
    with app(tmp_path, [say("x")], routes={COUNTER: {"input_tokens": 42}}, points=POINTS) as running:
        yield running


def count(deck: App, body: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
    return deck.send("POST", COUNT, json=body or RICH, headers=headers)


def counted(deck: App) -> list[Received]:
    return [item for item in deck.fake.requests if item.path == COUNTER]


def test_a_loaded_model_counts_the_body_that_it_would_answer(deck: App) -> None:
    assert deck.send("POST", "/v1/needy", json=RICH).status_code == 200
    answer = count(deck)
    assert (answer.status_code, answer.json()) == (200, {"tokens": 42})
    assert "x-deck-estimate" not in answer.headers
    (asked,) = counted(deck)
    assert asked.json() == {**deck.upstream()[0], "stream": False}


def test_a_model_that_is_not_loaded_is_estimated_and_nothing_is_asked(deck: App) -> None:
    answer = count(deck)
    assert answer.status_code == 200
    assert answer.headers["x-deck-estimate"] == "1"
    assert answer.json()["tokens"] > 20
    assert deck.fake.requests == []
    assert deck.deck.board.states().get("m1") in (None, "stopped")


def test_an_estimate_starts_no_process(tmp_path: Path) -> None:
    with app(tmp_path, profiles={"cold": local(tmp_path / "cold", "cold")}, points=POINTS) as deck:
        answer = count(deck, {**RICH, "model": "cold"})
        assert answer.headers["x-deck-estimate"] == "1"
        assert deck.deck.board.server("cold") is None


def test_a_profile_may_let_a_count_load_the_model(tmp_path: Path) -> None:
    profile = 'id = "eager"\n{server}load_to_count = true\n'
    routes = {COUNTER: {"input_tokens": 42}}
    with app(tmp_path, profiles={"eager": profile}, routes=routes, points=POINTS) as deck:
        answer = count(deck, {**RICH, "model": "eager"})
        assert (answer.json(), answer.headers.get("x-deck-estimate")) == ({"tokens": 42}, None)
        assert len(counted(deck)) == 1
        assert deck.upstream() == []


def test_a_count_is_no_stream_whatever_its_body_says(deck: App) -> None:
    answer = count(deck, {**RICH, "stream": True})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["tokens"] > 0


def test_a_count_is_refused_as_the_request_would_be(deck: App) -> None:
    assert error_of(count(deck, {**RICH, "foo": 1}), 400)["param"] == "foo"
    assert error_of(count(deck, {**RICH, "model": "nobody"}), 404)["code"] == "model_not_found"
    assert error_of(deck.send("POST", COUNT, token=None, json=RICH), 401)


def test_a_counter_that_counts_nothing_is_an_upstream_error(tmp_path: Path) -> None:
    with app(tmp_path, [say("x")], routes={COUNTER: {"object": "x"}}, points=POINTS) as deck:
        deck.send("POST", "/v1/needy", json=RICH)
        assert "did not say a count" in error_of(count(deck), 502)["message"]


def test_a_counter_that_is_not_there_is_an_upstream_error(tmp_path: Path) -> None:
    with app(tmp_path, [say("x")], points=POINTS) as deck:
        deck.send("POST", "/v1/needy", json=RICH)
        assert error_of(count(deck), 502)["code"] == "upstream_error"


def test_the_report_goes_with_a_count(deck: App) -> None:
    assert count(deck, {**RICH, "metadata": {}}).headers["x-athena-compatibility-ignored"] == "metadata"


def test_an_estimate_grows_with_what_the_model_reads() -> None:
    one = {"messages": [{"role": "user", "content": "a" * 400}]}
    assert 100 <= estimate(one) < 120
    assert estimate({**one, "tools": [TOOL]}) > estimate(one)
    assert estimate({**one, "max_tokens": 100_000, "stop": ["x" * 4000]}) == estimate(one)
    assert 100 <= estimate({"prompt": "a" * 400}) < 110
    assert estimate({"prompt": [1, 2, 3]}) == 3


def test_a_picture_is_estimated_by_its_kind_not_by_its_bytes() -> None:
    def with_picture(size: int) -> dict[str, Any]:
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * size}}
        return {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, picture]}]}

    assert estimate(with_picture(10)) == estimate(with_picture(1_000_000))
    assert 1024 < estimate(with_picture(10)) < 1060


@needs_engine
@pytest.mark.engine
def test_the_real_servers_count_is_what_the_answer_costs(tmp_path: Path) -> None:
    profile = (
        f'id = "tiny"\n[server]\nmodel = "{ROOT}/profiles/tiny-chat/tiny-chat.gguf"\n'
        'ctx_size = 4096\nargs = ["-t", "1", "-tb", "1"]\n'
    )
    bodies: list[dict[str, Any]] = [
        {**RICH, "model": "tiny", "max_tokens": 1},
        {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]},
        {**RICH, "model": "tiny", "max_tokens": 1, "tool_choice": "none"},
        {**RICH, "model": "tiny", "max_tokens": 1, "enable_thinking": False},
    ]
    with app(tmp_path, profiles={"tiny": profile}, points=POINTS) as deck:
        before = count(deck, bodies[0])
        assert before.headers["x-deck-estimate"] == "1"
        for body in bodies:
            usage = deck.send("POST", "/v1/needy", json=body).json()["usage"]
            exact = count(deck, body)
            assert exact.json()["tokens"] == usage["prompt_tokens"]
            assert "x-deck-estimate" not in exact.headers
