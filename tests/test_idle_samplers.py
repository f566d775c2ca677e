"""Settings of samplers that are off: said to have no effect, unless somebody has switched them on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from app_support import app
from wires import WIRES

from deck.canon.request import TextRequest
from deck.contracts import Facts
from deck.normalize.report import Report
from deck.steps import note_idle


def idle(sent: dict[str, Any], asked: dict[str, Any], server: dict[str, Any]) -> list[str]:
    report = Report()
    note_idle(TextRequest(model="m1", prompt="a", sampling=sent), asked, Facts(sampling=server), report, {})
    return [note.path for note in report.notes]


PAIRS = [
    ("mirostat_tau", "mirostat"),
    ("mirostat_eta", "mirostat"),
    ("dynatemp_exponent", "dynatemp_range"),
    ("xtc_threshold", "xtc_probability"),
    ("dry_base", "dry_multiplier"),
    ("dry_allowed_length", "dry_multiplier"),
    ("dry_penalty_last_n", "dry_multiplier"),
    ("dry_sequence_breakers", "dry_multiplier"),
]


@pytest.mark.parametrize(("name", "switch"), PAIRS)
def test_a_setting_without_its_sampler_is_listed(name: str, switch: str) -> None:
    asked = {name: 1}
    assert idle(asked, asked, {}) == [name]
    assert idle({**asked, switch: 0}, asked, {switch: 1}) == [name]
    assert idle({**asked, switch: 1}, asked, {}) == []
    assert idle(asked, asked, {switch: 1}) == []
    assert idle(asked, {}, {}) == [], "the profile's own settings are no matter of the client"


CHAIN = ("top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "dry_multiplier", "xtc_probability", "top_n_sigma")


def test_mirostat_takes_the_place_of_all_others() -> None:
    """llama.cpp, common/sampling.cpp: the chain is made only where `mirostat` is 0."""
    asked = {"mirostat": 2, "temperature": 0.5, "samplers": ["top_k"], **dict.fromkeys(CHAIN, 1)}
    assert idle(asked, asked, {}) == ["samplers", *CHAIN]
    assert idle({"top_k": 1}, {"top_k": 1}, {"mirostat": 1}) == ["top_k"]
    assert idle({"top_k": 1, "mirostat": 0}, {"top_k": 1}, {"mirostat": 1}) == []


def test_what_the_list_of_samplers_leaves_out_is_listed() -> None:
    asked = {"samplers": ["temperature", "typical_p"], "top_k": 1, "typical_p": 0.5, "dynatemp_range": 1, "seed": 1}
    assert idle(asked, asked, {}) == ["top_k"]


def test_a_sampler_that_must_be_named_is_listed_where_it_is_not() -> None:
    asked = {"adaptive_target": 0.3, "adaptive_decay": 0.5}
    assert idle(asked, asked, {}) == list(asked)
    assert idle({**asked, "samplers": ["adaptive_p"]}, asked, {}) == []
    assert idle(asked, asked, {"samplers": ("temperature", "adaptive_p")}) == [], "the operator named it"
    assert idle(asked, asked, {"samplers": ("temperature",)}) == list(asked)


def test_penalties_of_no_tokens_are_listed() -> None:
    asked = {"repeat_penalty": 1.1, "frequency_penalty": 1, "repeat_last_n": 0, "top_k": 1}
    assert idle(asked, asked, {}) == ["repeat_penalty", "frequency_penalty", "repeat_last_n"]
    assert idle({**asked, "repeat_last_n": -1}, asked, {}) == []


@pytest.mark.parametrize("name", ["chat", "completions"])
def test_a_client_is_told(tmp_path: Path, name: str) -> None:
    wire = WIRES[name]
    with app(tmp_path) as deck:
        for settings, listed in (
            ({"mirostat_tau": 3}, "mirostat_tau"),
            ({"mirostat_tau": 3, "mirostat": 1}, None),
            ({"mirostat": 1, "top_k": 3}, "top_k"),
            ({"adaptive_target": 0.3}, "adaptive_target"),
            ({"samplers": ["temperature"], "top_k": 3}, "top_k"),
        ):
            answer = deck.send("POST", wire.path, json={**wire.body("hi", False, 5), **settings})
            assert answer.status_code == 200, answer.text
            assert answer.headers.get("x-athena-compatibility-ignored") == listed
