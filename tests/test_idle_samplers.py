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


def idle(sent: dict[str, Any], asked: dict[str, Any], server: dict[str, float]) -> list[str]:
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


@pytest.mark.parametrize("name", ["chat", "completions"])
def test_a_client_is_told(tmp_path: Path, name: str) -> None:
    wire = WIRES[name]
    with app(tmp_path) as deck:
        for settings, listed in ({"mirostat_tau": 3}, "mirostat_tau"), ({"mirostat_tau": 3, "mirostat": 1}, None):
            answer = deck.send("POST", wire.path, json={**wire.body("hi", False, 5), **settings})
            assert answer.status_code == 200, answer.text
            assert answer.headers.get("x-athena-compatibility-ignored") == listed
