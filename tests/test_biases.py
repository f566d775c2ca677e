"""Biases for tokens that the model does not have: refused, since llama-server leaves them out without a word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from app_support import App, app, error_of
from wires import WIRES

KNOWN = 1088
META = {"object": "list", "data": [{"id": "fake", "meta": {"n_vocab": KNOWN}}]}


@pytest.fixture(scope="module")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    with app(tmp_path_factory.mktemp("biases"), routes={"/v1/models": META}) as running:
        yield running


@pytest.mark.parametrize("name", ["chat", "completions"])
def test_the_last_token_is_known_and_the_next_is_not(deck: App, name: str) -> None:
    wire = WIRES[name]
    body = wire.body("hi", False, 5)
    last = deck.send("POST", wire.path, json={**body, "logit_bias": {str(KNOWN - 1): -1}})
    assert last.status_code == 200, last.text
    beyond = deck.send("POST", wire.path, json={**body, "logit_bias": {str(KNOWN): -1}})
    error = error_of(beyond, 400)
    assert error["param"] == "logit_bias"
    assert f"its ids are 0 to {KNOWN - 1}" in error["message"]


def test_what_is_no_id_has_no_bound(deck: App) -> None:
    body = {**WIRES["chat"].body("hi", False, 5), "logit_bias": [["cat", -1]]}
    assert deck.send("POST", WIRES["chat"].path, json=body).status_code == 200


def test_a_server_that_does_not_say_how_many_it_has_refuses_none(tmp_path: Path) -> None:
    with app(tmp_path) as deck:
        body = {**WIRES["chat"].body("hi", False, 5), "logit_bias": {str(KNOWN): -1}}
        assert deck.chat(json=body).status_code == 200
