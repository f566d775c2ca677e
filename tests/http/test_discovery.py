"""What Deck says of itself: every client's decoder reads it, and asking starts nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic.types
import openai.types
import pytest
from app_support import BODY, App, app, error_of
from openai.pagination import SyncPage
from prometheus_client.parser import text_string_to_metric_families

KINDS = {
    "embedding": "/v1/embeddings/models",
    "rerank": "/v1/rerank/models",
    "image": "/v1/images/models",
    "speech": "/v1/audio/speech/models",
    "transcription": "/v1/audio/transcriptions/models",
}
OTHERS = {f"a-{kind}": f'id = "a-{kind}"\nkind = "{kind}"\n{{server}}' for kind in KINDS}
DESCRIBED = (
    'id = "org/model:Q4"\ndescription = "A model"\naliases = ["other/name"]\n{server}[capabilities]\ncontext = 8192\n'
)


@pytest.fixture
def many(tmp_path: Path) -> Iterator[App]:
    with app(tmp_path, profiles={**OTHERS, "described": DESCRIBED}) as running:
        yield running


def models(deck: App, path: str = "/v1/models") -> Any:
    answer = deck.send("GET", path)
    assert answer.status_code == 200
    return answer.json()


def test_openais_sdk_reads_the_list(many: App) -> None:
    page = SyncPage[openai.types.Model].model_validate(models(many))
    assert [model.id for model in page.data] == ["m1", "m2", "org/model:Q4"]
    for model in page.data:
        openai.types.Model.model_validate(model.model_dump(), strict=True)
        assert (model.object, model.owned_by) == ("model", "deck")


def test_anthropics_sdk_reads_the_list(many: App) -> None:
    shown = models(many)
    for item in shown["data"]:
        info = anthropic.types.ModelInfo.model_validate(item)
        assert (info.type, info.id) == ("model", item["id"])
        assert info.display_name
        assert info.created_at.year == 1970
    assert (shown["has_more"], shown["first_id"], shown["last_id"]) == (False, "m1", "org/model:Q4")


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models/m1", "/v1/capabilities", "/v1/stats", "/metrics", "/v1/images/models", "/health"]
)
def test_a_query_that_is_not_read_is_reported(many: App, path: str) -> None:
    answer = many.send("GET", f"{path}?limit=2&after_id=m1")
    assert answer.status_code == 200
    assert answer.headers["X-Athena-Compatibility-Ignored"] == "?after_id, ?limit"
    assert "X-Athena-Compatibility-Ignored" not in many.send("GET", path).headers
    odd = many.send("GET", f"{path}?a%20b=1&%C3%A9")
    assert odd.headers["X-Athena-Compatibility-Ignored"] == "?%C3%A9, ?a%20b"


@pytest.mark.parametrize(
    ("more", "context"),
    [
        ("ctx_size = 8192\nparallel = 2\n", 4096),
        ("ctx_size = 8192\n", 8192),
        ('ctx_size = 8192\nparallel = 2\nargs = ["--kv_unified"]\n', 8192),
        ("parallel = 2\n", None),
    ],
)
def test_the_context_before_a_load_is_that_of_one_slot(tmp_path: Path, more: str, context: int | None) -> None:
    local = f'id = "local"\n[server]\nhf = "org/model"\n{more}'
    with app(tmp_path, profiles={"local": local}) as running:
        shown = running.send("GET", "/v1/models/local").json()
        assert (shown["max_input_tokens"], shown["context_length"], shown["max_model_len"]) == (context,) * 3


def test_codex_reads_the_list(many: App) -> None:
    """`{"models": [...]}` with slug and display_name, whatever version it says in the query."""
    for query in ("", "?client_version=0.171.0", "?client_version="):
        shown = models(many, f"/v1/models{query}")["models"]
        assert [item["slug"] for item in shown] == ["m1", "m2", "org/model:Q4"]
        assert all(isinstance(item["display_name"], str) and item["display_name"] for item in shown)
    assert shown[2]["display_name"] == "A model"
    assert shown[2]["context_window"] == 8192


@pytest.mark.parametrize("query", ["?limit=1", "?limit=1000", "?after_id=m1", "?before_id=x&limit=0", "?refresh"])
def test_queries_change_nothing(many: App, query: str) -> None:
    assert models(many, f"/v1/models{query}") == models(many)


@pytest.mark.parametrize("name", ["m1", "org/model:Q4", "org%2Fmodel:Q4", "org%2Fmodel%3AQ4"])
def test_one_model(many: App, name: str) -> None:
    shown = models(many, f"/v1/models/{name}")
    openai.types.Model.model_validate(shown, strict=True)
    anthropic.types.ModelInfo.model_validate(shown)
    assert shown["id"] in ("m1", "org/model:Q4")


def test_an_alias_is_shown_under_its_name(many: App) -> None:
    assert models(many, "/v1/models/first")["id"] == "first"
    assert models(many, "/v1/models/other/name")["id"] == "other/name"
    assert "first" in models(many)["data"][0]["aliases"]


@pytest.mark.parametrize("name", ["none", "M1", "a-image", "a-embedding", "m1/x", "%00", "x" * 1000])
def test_a_model_that_is_not_there(many: App, name: str) -> None:
    error = error_of(many.send("GET", f"/v1/models/{name}"), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_another_kind_is_found_below_its_own_list(many: App, kind: str) -> None:
    entry = models(many, f"{KINDS[kind]}/a-{kind}")
    assert entry == models(many, KINDS[kind])["data"][0]
    error = error_of(many.send("GET", f"/v1/models/a-{kind}"), 404)
    assert error["message"] == f"the model 'a-{kind}' is of kind {kind}: see {KINDS[kind]}"
    error = error_of(many.send("GET", f"{KINDS[kind]}/m1"), 404)
    assert error["message"] == "the model 'm1' is of kind chat: see /v1/models"
    assert error["code"] == "model_not_found"
    assert "no model named 'none'" in error_of(many.send("GET", f"{KINDS[kind]}/none"), 404)["message"]


def test_a_limited_token_is_not_told_what_there_is(many: App) -> None:
    _, secret = many.tokens.create("limited", models=["m1", "a-image"])
    for path in ("/v1/models/{}", "/v1/embeddings/models/{}"):
        told = {
            error_of(many.send("GET", path.format(name), token=secret), 404)["message"].replace(name, "X")
            for name in ("nobody", "m2", "a-embedding")
        }
        listed = "m1" if path.startswith("/v1/models") else "none"
        assert told == {f"no model named 'X'; this token may use: {listed}"}
    assert "is of kind image" in error_of(many.send("GET", "/v1/models/a-image", token=secret), 404)["message"]


@pytest.mark.parametrize("path", ["/v1/embeddings/x", "/v1/audio/speech/models2/x", "/v1/rerank/x"])
def test_what_lies_below_an_operation_is_not_there(many: App, path: str) -> None:
    assert error_of(many.send("GET", path), 404)["message"] == f"{path} is not implemented by Deck"


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_a_list_of_its_own(many: App, kind: str) -> None:
    assert [item["id"] for item in models(many, KINDS[kind])["data"]] == [f"a-{kind}"]


def test_what_cannot_chat_is_no_chat_model(many: App) -> None:
    for name in OTHERS:
        assert name not in many.send("GET", "/v1/models").text
        error = error_of(many.chat(json={**BODY, "model": name}), 404)
        assert error["code"] == "model_not_found"
        assert f"{name}," not in error["message"]


def test_an_empty_list_is_a_list(many: App) -> None:
    _, token = many.tokens.create("nobody", models=["none"])
    shown = many.send("GET", "/v1/models", token=token).json()
    assert (shown["data"], shown["models"], shown["first_id"]) == ([], [], None)
    error = error_of(many.chat(token=token, json={**BODY, "model": "x"}), 404)
    assert "none" in error["message"]


def test_nothing_is_started_by_asking(many: App) -> None:
    paths = [path for _, path in many.deck.admin.paths()]
    for path in [*paths, *(f"/v1{path}" for path in paths), "/v1/models/m1", "/api/tags", "/props", "/slots", "/"]:
        for method in ("GET", "HEAD"):
            many.send(method, path)
    many.send("POST", "/deck/explain", json=BODY)
    assert many.deck.board.states() == {}
    assert many.fake.requests == []


def test_capabilities_speak_of_the_router(many: App) -> None:
    shown = many.send("GET", "/v1/capabilities").json()
    assert set(shown["models"]) == {"m1", "m2", "org/model:Q4", *OTHERS}
    assert shown["models"]["m1"]["state"] == "stopped"
    assert shown["models"]["m1"]["measured"] == {}
    assert shown["models"]["m1"]["declared"] == {}
    assert shown["models"]["org/model:Q4"]["declared"] == {"context": 8192}
    chat = shown["surfaces"]["chat"]
    assert chat["routes"] == ["POST /v1/chat/completions"]
    assert chat["aliases"]["max_completion_tokens"] == "max_tokens"
    assert shown["headers"]["ignored"] == "X-Athena-Compatibility-Ignored"


def test_capabilities_show_what_was_measured_once_it_ran(many: App) -> None:
    assert many.chat().status_code == 200
    shown = many.send("GET", "/v1/capabilities").json()
    assert shown["models"]["m1"]["state"] == "ready"
    assert shown["models"]["m1"]["measured"]["context"] == 4096
    assert shown["engine"]["builds"] == ["b11434-fake"]
    assert shown["models"]["m2"]["measured"] == {}


def test_metrics_are_parsed_by_prometheus(many: App) -> None:
    for _ in range(3):
        assert many.chat().status_code == 200
    many.chat(json={**BODY, "model": "no-such-model-ABC"})
    answer = many.send("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    counted = {
        (sample.labels["outcome"], sample.labels["status"]): sample.value
        for sample in families["deck_requests"].samples
        if sample.name == "deck_requests_total"
    }
    assert counted[("ok", "200")] == 3
    assert counted[("model_not_found", "404")] == 1
    assert "no-such-model-ABC" not in answer.text


def test_stats_count(many: App) -> None:
    many.chat()
    many.chat(token="wrong")
    many.send("GET", "/v1/models", token="wrong")
    shown = many.send("GET", "/v1/stats").json()
    assert shown["servers"] == {"m1": "ready"}
    assert shown["queue"] == {"waiting": 0, "exchanges": []}
    assert shown["quarantined"] == {}
    assert shown["tasks"] >= 1
    assert shown["requests"]["total"] == 2
    assert shown["requests"]["auth_failures"] == 2
    assert shown["models"]["m1"]["prompt"] == 10


class TestExplain:
    def ask(self, deck: App, body: Any, **options: Any) -> Any:
        return deck.send("POST", "/deck/explain", json=body, **options)

    def test_it_shows_the_upstream_body_and_why(self, many: App) -> None:
        body = {**BODY, "max_completion_tokens": 5, "metadata": {"a": "b"}, "messages": [{"role": "developer"}]}
        body["messages"] = [{"role": "developer", "content": "Be brief."}, *BODY["messages"]]
        answer = self.ask(many, body)
        assert answer.status_code == 200, answer.text
        shown = answer.json()
        assert (shown["surface"], shown["model"], shown["family"]["name"]) == ("chat", "m1", "generic")
        assert shown["upstream"]["max_tokens"] == 5
        assert shown["upstream"]["messages"][0] == {"role": "system", "content": "Be brief."}
        assert {note["path"] for note in shown["notes"]} >= {"metadata", "messages[0].role"}
        assert all(note["reason"] for note in shown["notes"])
        assert shown["headers"]["X-Athena-Compatibility-Ignored"] == "metadata"

    def test_what_it_shows_is_what_is_sent(self, many: App) -> None:
        body = {**BODY, "temperature": 0.5, "stop": "x", "tools": [{"type": "function", "function": {"name": "now"}}]}
        many.chat(json=body)
        assert self.ask(many, body).json()["upstream"] == many.upstream()[0]

    @pytest.mark.parametrize(
        ("body", "status", "param"),
        [
            ({**BODY, "temprature": 1}, 400, "temprature"),
            ({**BODY, "model": "none"}, 404, "model"),
            ({"model": "m1"}, 400, "messages"),
            ({"messages": []}, 400, "model"),
            ([], 400, None),
        ],
    )
    def test_errors_are_those_of_the_request_itself(self, many: App, body: Any, status: int, param: str | None) -> None:
        explained = error_of(self.ask(many, body), status)
        assert explained["param"] == param
        assert explained == error_of(many.chat(json=body), status)

    def test_a_surface_that_is_not_there(self, many: App) -> None:
        error = error_of(self.ask(many, BODY, headers={"x-deck-surface": "telepathy"}), 400)
        assert "telepathy" in error["message"]
        assert "chat" in error["message"]

    def test_everything_it_says_is_json(self, many: App) -> None:
        """Also with images, numbers and nested values."""
        part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
        body = {**BODY, "messages": [{"role": "user", "content": [part]}], "logit_bias": {"5": -1}}
        assert json.loads(self.ask(many, body).content)["model"] == "m1"
