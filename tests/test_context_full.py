"""An answer that the model's context ended, told apart from one that the client's own limit ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from app_support import BODY, app
from engine_support import ROOT, needs_engine
from needy_surface import POINTS

from deck.canon.events import Finish, FinishReason
from deck.canon.request import TextRequest
from deck.exchange import budget_of
from deck.profile import load_profile
from deck.testing import frames
from deck.testing.fake_llama import Reply, say, say_text
from deck.upstream.decode import Decoder


def reason(completion: int, budget: int | None, *, raw: bool = False, word: str = "length") -> FinishReason:
    if raw:
        data = [frames.text("a"), frames.text_end(5, completion, word), frames.done()]
    else:
        data = [frames.content("a"), frames.finish(word), frames.usage(5, completion), frames.done()]
    event = Decoder(seed="s", budget=budget, raw=raw).feed(b"".join(data))[-1]
    assert isinstance(event, Finish)
    return event.reason


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize(
    ("completion", "budget", "expected"),
    [
        (7, 8, FinishReason.CONTEXT),
        (8, 8, FinishReason.LENGTH),
        (9, 8, FinishReason.LENGTH),
        (7, None, FinishReason.CONTEXT),
        (7, 0, FinishReason.LENGTH),
        (0, 8, FinishReason.LENGTH),
        (0, None, FinishReason.LENGTH),
    ],
)
def test_below_the_limit_it_was_the_context(
    completion: int, budget: int | None, expected: FinishReason, raw: bool
) -> None:
    assert reason(completion, budget, raw=raw) is expected


def test_an_answer_that_ended_by_itself_did_not_fill_anything() -> None:
    assert reason(7, None, word="stop") is FinishReason.STOP
    assert reason(7, 8, word="stop") is FinishReason.STOP


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "context"),
        ({"max_tokens": 5}, "context"),
        ({"max_tokens": 2}, "length"),
        ({"max_tokens": 1}, "length"),
        ({"max_tokens": 5, "t_max_predict_ms": 100}, "length"),
    ],
)
def test_the_clients_own_limit_decides(tmp_path: Path, fields: dict[str, Any], expected: str) -> None:
    with app(tmp_path, [say("a", "b", reason="length")], points=POINTS) as deck:
        answer = deck.send("POST", "/v1/needy", json={**BODY, **fields}).json()
        assert answer["reason"] == expected
        assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [("", "context"), ("[defaults]\nmax_tokens = 2\n", "length"), ("[limits]\nmax_tokens = 2\n", "length")],
)
def test_the_profiles_limit_counts_as_the_clients(tmp_path: Path, keys: str, expected: str) -> None:
    profile = f'id = "p"\n{keys}{{server}}'
    with app(tmp_path, [say("a", "b", reason="length")], profiles={"p": profile}, points=POINTS) as deck:
        assert deck.send("POST", "/v1/needy", json={**BODY, "model": "p"}).json()["reason"] == expected


@pytest.mark.parametrize("argument", ["-n", "--predict", "--n-predict"])
def test_a_limit_among_the_servers_arguments_cannot_be_told_apart(tmp_path: Path, argument: str) -> None:
    path = tmp_path / "p.toml"
    path.write_text(f'id = "p"\n[server]\nmodel = "x.gguf"\nargs = ["{argument}", "2"]\n', encoding="utf-8")
    profile = load_profile(path)
    assert budget_of(TextRequest(model="p", prompt="a"), profile) == 0
    assert budget_of(TextRequest(model="p", prompt="a", sampling={"max_tokens": 5}), profile) == 5


def test_the_log_and_observers_say_which_it_was(tmp_path: Path) -> None:
    with app(tmp_path, [say_text("a", "b", reason="length")]) as deck:
        records: list[Any] = []
        deck.deck.endpoint._observers = [type("Seen", (), {"observe": staticmethod(records.append)})()]
        deck.send("POST", "/v1/completions", json={"model": "m1", "prompt": "x"})
        deck.send("POST", "/v1/completions", json={"model": "m1", "prompt": "x", "max_tokens": 2})
        assert [record.finish for record in records] == ["context", "length"]


@needs_engine
@pytest.mark.engine
def test_a_real_server_with_a_tiny_context(tmp_path: Path) -> None:
    profile = (
        f'id = "small"\nbudget_overflow = "cap"\n[server]\nmodel = "{ROOT}/profiles/tiny-chat/tiny-chat.gguf"\n'
        'ctx_size = 256\nargs = ["-t", "1", "-tb", "1"]\n'
    )
    with app(tmp_path, [Reply()], profiles={"small": profile}, points=POINTS) as deck:
        body = {**BODY, "model": "small", "ignore_eos": True}
        full = deck.send("POST", "/v1/needy", json=body).json()
        assert (full["reason"], full["choices"][0]["finish_reason"]) == ("context", "length")
        assert full["usage"]["total_tokens"] <= 256
        assert deck.send("POST", "/v1/needy", json={**body, "max_tokens": 10000}).json()["reason"] == "context"
        assert deck.send("POST", "/v1/needy", json={**body, "max_tokens": 9}).json()["reason"] == "length"
        raw = {"model": "small", "prompt": "a", "ignore_eos": True}
        assert deck.send("POST", "/v1/completions", json=raw).json()["choices"][0]["finish_reason"] == "length"
