"""An answer that may not end cannot keep to a form: refused before anything is generated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from app_support import app
from chat_support import TOOL
from wires import WIRES

FORM = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("chat", {"response_format": {"type": "json_object"}}),
        ("chat", {"json_schema": FORM}),
        ("chat", {"json_schema": FORM, "tools": [TOOL]}),
        ("completions", {"json_schema": FORM}),
    ],
)
def test_ignore_eos_beside_a_form_is_refused(tmp_path: Path, name: str, form: dict[str, Any]) -> None:
    wire = WIRES[name]
    with app(tmp_path) as deck:
        body = {**wire.body("hi", False, 9), "ignore_eos": True}
        assert deck.send("POST", wire.path, json=body).status_code == 200
        sent = len(deck.upstream())
        answer = deck.send("POST", wire.path, json={**body, **form})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "ignore_eos"
        assert len(deck.upstream()) == sent
