"""The routes of all operations: tokens, models, methods, lists, and what Deck says of them."""

from __future__ import annotations

from typing import Any

import pytest
from app_support import BODY, App, error_of
from operations_support import LEAST, WAV, post, sent


def test_every_route_of_every_operation_is_tried_here(deck: App) -> None:
    assert set(LEAST) == {f"/v1{path}" for path in deck.deck.plugins.operation_routes}


@pytest.mark.parametrize("path", LEAST)
def test_the_least_request_is_answered_with_or_without_v1(deck: App, path: str) -> None:
    for shown in (path, path.removeprefix("/v1"), f"/v1{path}/"):
        answer = post(deck, shown, **LEAST[path])
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-request-id"]
        assert "x-athena-compatibility-ignored" not in answer.headers


@pytest.mark.parametrize("path", LEAST)
def test_no_token_no_wrong_method_and_no_other_body(deck: App, path: str) -> None:
    error_of(post(deck, path, token=None, **LEAST[path]), 401)
    answer = deck.send("GET", path)
    assert answer.headers["allow"] == "POST"
    error_of(answer, 405)
    if "json" in LEAST[path]:
        error_of(post(deck, path, data={"model": "m1"}, files={"file": WAV}), 415)
        error_of(post(deck, path, content=b"{"), 400)
    else:
        assert "multipart/form-data" in error_of(post(deck, path, json={"model": "m1"}), 415)["message"]
    assert deck.fake.requests == []


def with_model(path: str, model: str | None) -> dict[str, Any]:
    options = {name: dict(item) for name, item in LEAST[path].items()}
    fields = options["json" if "json" in options else "data"]
    fields.pop("model")
    return (
        options if model is None else {**options, "json" if "json" in options else "data": {**fields, "model": model}}
    )


@pytest.mark.parametrize("path", LEAST)
def test_the_model(deck: App, path: str) -> None:
    error = error_of(post(deck, path, **with_model(path, None)), 400)
    assert (error["param"], error["code"]) == ("model", "missing_required_parameter")
    error = error_of(post(deck, path, **with_model(path, "nobody")), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    serving = deck.deck.plugins.operation_routes[path.removeprefix("/v1")].kinds
    other = "i" if "image" not in serving else "s"
    error = error_of(post(deck, path, **with_model(path, other)), 404)
    assert error["code"] == "model_not_found"
    kind, route = {"i": ("image", "/v1/images/generations"), "s": ("speech", "/v1/audio/speech")}[other]
    assert kind in error["message"]
    assert route in error["message"]
    _, token = deck.tokens.create("guest", models=["m2"])
    assert error_of(post(deck, path, token=token, **LEAST[path]), 403)["param"] == "model"
    hidden = error_of(post(deck, path, token=token, **with_model(path, other)), 404)
    assert f"kind {kind}" not in hidden["message"]
    assert deck.fake.requests == []


def test_a_chat_route_names_the_route_of_another_kind(deck: App) -> None:
    for model, route in (("e", "/v1/embeddings"), ("r", "/v1/rerank"), ("t", "/v1/audio/transcriptions")):
        error = error_of(deck.chat(json={**BODY, "model": model}), 404)
        assert route in error["message"]


@pytest.mark.parametrize("path", LEAST)
def test_an_unknown_field_is_refused_or_listed(deck: App, path: str) -> None:
    options = {name: dict(item) for name, item in LEAST[path].items()}
    fields = options["json" if "json" in options else "data"]
    fields["frobnicate"] = "x"
    answer = post(deck, path, **options)
    if fields["model"] == "i":
        assert answer.status_code == 200
        assert answer.headers["x-athena-compatibility-ignored"] == "frobnicate"
        assert b"frobnicate" not in sent(deck, path).body
        return
    assert error_of(answer, 400)["param"] == "frobnicate"
    assert deck.fake.requests == []


# What Deck says of them


def test_capabilities_list_them(deck: App) -> None:
    shown = deck.send("GET", "/v1/capabilities").json()
    assert set(shown["operations"]) == set(deck.deck.plugins.operations)
    embeddings = shown["operations"]["embeddings"]
    assert embeddings["routes"] == ["POST /v1/embeddings"]
    assert "embedding" in embeddings["kinds"]
    assert embeddings["fields"]["encoding_format"]["accepts"]
    assert shown["operations"]["apply-template"]["fields_of"] == "chat"
    assert shown["operations"]["transcriptions"]["body"] == "multipart"
    assert "/v1/embeddings" not in shown["not_implemented"]
    assert "/v1/audio/translations" in shown["not_implemented"]


def test_they_take_no_lane_and_are_counted(deck: App) -> None:
    assert post(deck, "/v1/embeddings", **LEAST["/v1/embeddings"]).status_code == 200
    exposition = deck.send("GET", "/metrics").text
    assert 'deck_requests_total{outcome="ok",status="200",stream="false",surface="embeddings"} 1' in exposition
    assert 'deck_route_requests_total{lane="continuous",surface="chat"}' in exposition
    assert 'deck_route_requests_total{lane="continuous",surface="embeddings"}' not in exposition


def test_the_lists_of_models_stay_apart(deck: App) -> None:
    assert [item["id"] for item in deck.send("GET", "/v1/models").json()["data"]] == ["m1", "m2"]
    for path, name in (("/v1/embeddings/models", "e"), ("/v1/rerank/models", "r"), ("/v1/images/models", "i")):
        assert [item["id"] for item in deck.send("GET", path).json()["data"]] == [name]
