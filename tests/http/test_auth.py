"""Nobody gets anything without a token; a token that is limited to some models shows nothing of the others."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from app_support import BODY, CHAT, TOKEN, App, any_error_of, app, error_of
from faults.support import local

from deck.admin import PUBLIC
from deck.discovery import NOT_IMPLEMENTED

ODD = (
    "/",
    "/v1",
    "/v1/",
    "/docs",
    "/openapi.json",
    "/favicon.ico",
    "/api/tags",
    "/%2e%2e/health",
    "/v1/healthz",
    "//v1//health",
    "/v1/v1/models",
    "/health/x",
    "/healthy",
    "/%2e%2e/health",
    "/slots",
    "/props",
)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def every_path(deck: App) -> list[str]:
    surfaces = [*deck.deck.plugins.routes, *deck.deck.plugins.operation_routes]
    fixed = [path for _, path in deck.deck.admin.paths()]
    plain = [*surfaces, *fixed, *NOT_IMPLEMENTED]
    return [*plain, *(f"/v1{path}" for path in plain), *ODD]


def test_every_route_and_method_refuses_without_a_token(deck: App) -> None:
    seen = 0
    for path in every_path(deck):
        for method in METHODS:
            if (method, path) in PUBLIC:
                continue
            answer = deck.send(method, path, token=None)
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"] == 'Bearer realm="deck"'
            if method == "HEAD":
                assert answer.content == b""
            else:
                error = any_error_of(path, answer, 401)
                assert error.get("code", error["type"]) in ("invalid_api_key", "authentication_error")
            seen += 1
    assert seen > 300
    assert deck.deck.board.states() == {}


def test_a_request_without_a_token_is_refused_before_its_body_is_judged(deck: App) -> None:
    for content in (b"", b"{", b"[1]"):
        error_of(deck.send("POST", CHAT, token=None, content=content), 401)


@pytest.mark.parametrize(("method", "path"), sorted(PUBLIC))
def test_only_the_health_routes_are_open(deck: App, method: str, path: str) -> None:
    """B170: `HEAD /` needs no token."""
    answer = deck.send(method, path, token=None)
    assert answer.status_code == 200
    if method == "HEAD":
        assert answer.content == b""
    else:
        assert set(answer.json()) == {"status", "version"}


def test_what_is_open_is_closed_list() -> None:
    assert set(PUBLIC) == {
        ("HEAD", "/"),
        ("GET", "/health"),
        ("HEAD", "/health"),
        ("GET", "/healthz"),
        ("HEAD", "/healthz"),
    }


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer "},
        {"authorization": "Bearer"},
        {"authorization": ""},
        {"authorization": "Bearer null"},
        {"authorization": "Bearer undefined"},
        {"authorization": "Bearer sk-no-key-required"},
        {"authorization": TOKEN},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": f"Token {TOKEN}"},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": f"Bearer {TOKEN[:-1]}"},
        {"authorization": f"Bearer {TOKEN.upper()}"},
        {"authorization": f"Bearer Bearer {TOKEN}"},
        {"authorization": f"Bearer {TOKEN}, Bearer x"},
        {"x-api-key": ""},
        {"x-api-key": "null"},
        {"x-api-key": f"Bearer {TOKEN}"},
        {"api-key": "x"},
        {"cookie": f"token={TOKEN}"},
        {"x-auth-token": TOKEN},
        {"proxy-authorization": f"Bearer {TOKEN}"},
    ],
    ids=str,
)
def test_credentials_that_are_none(deck: App, headers: dict[str, str]) -> None:
    """B167."""
    for answer in (
        deck.send("GET", "/v1/models", token=None, headers=headers),
        deck.chat(token=None, headers=headers),
    ):
        error = error_of(answer, 401)
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
        assert TOKEN[:-1] not in answer.text
    assert not deck.fake.requests


def test_a_token_in_the_query_is_none(deck: App) -> None:
    for name in ("api_key", "key", "token", "access_token"):
        error_of(deck.send("GET", f"/v1/models?{name}={TOKEN}", token=None), 401)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {TOKEN}"},
        {"authorization": f"bearer {TOKEN}"},
        {"authorization": f"BEARER   {TOKEN}  "},
        {"x-api-key": TOKEN},
        {"x-api-key": f" {TOKEN} "},
        {"api-key": TOKEN},
        {"authorization": f"Bearer {TOKEN}", "x-api-key": TOKEN},
        {"authorization": "Bearer oauth-of-someone", "x-api-key": TOKEN},
        {"authorization": f"Bearer {TOKEN}", "x-api-key": "sk-ant-foreign"},
        {"authorization": "Bearer ", "x-api-key": TOKEN},
        {"authorization": "Bearer null", "api-key": TOKEN},
    ],
    ids=str,
)
def test_one_valid_credential_in_a_known_header_is_enough(deck: App, headers: dict[str, str]) -> None:
    """B167."""
    assert deck.send("GET", "/v1/models", token=None, headers=headers).status_code == 200
    assert deck.chat(token=None, headers=headers).status_code == 200


def test_a_revoked_token_is_refused_without_a_restart(deck: App) -> None:
    _, token = deck.tokens.create("laptop")
    assert deck.chat(token=token).status_code == 200
    deck.tokens.revoke("laptop")
    error_of(deck.chat(token=token), 401)
    error_of(deck.send("GET", "/v1/models", token=token), 401)


def test_another_process_revokes(deck: App) -> None:
    """The store of `deck token revoke` is not the store of the running Deck."""
    from deck.tokens import TokenStore

    _, token = deck.tokens.create("laptop")
    other = TokenStore(deck.deck.config.state / "tokens.json", None)
    other.revoke("laptop")
    deck.clock.time += 2
    error_of(deck.chat(token=token), 401)


def test_another_process_creates(deck: App) -> None:
    from deck.tokens import TokenStore

    _, token = TokenStore(deck.deck.config.state / "tokens.json", None).create("desk")
    deck.clock.time += 2
    assert deck.chat(token=token).status_code == 200


def test_an_expired_token_is_refused(deck: App, monkeypatch: pytest.MonkeyPatch) -> None:
    _, token = deck.tokens.create("guest", expires_in=60)
    assert deck.chat(token=token).status_code == 200
    late = time.time() + 61
    monkeypatch.setattr(time, "time", lambda: late)
    error_of(deck.chat(token=token), 401)
    error_of(deck.send("GET", "/v1/models", token=token), 401)


class TestLimitedToModels:
    """m1 is allowed, m2 is there."""

    @pytest.fixture
    def token(self, deck: App) -> str:
        return deck.tokens.create("guest", models=["m1"])[1]

    def test_its_own_model_answers(self, deck: App, token: str) -> None:
        assert deck.chat(token=token).status_code == 200
        assert deck.chat(token=token, json={**BODY, "model": "first"}).status_code == 200

    def test_another_model_is_forbidden(self, deck: App, token: str) -> None:
        error = error_of(deck.chat(token=token, json={**BODY, "model": "m2"}), 403)
        assert (error["type"], error["param"]) == ("permission_error", "model")
        assert not deck.fake.requests

    def test_unknown_names_list_only_its_own(self, deck: App, token: str) -> None:
        error = error_of(deck.chat(token=token, json={**BODY, "model": "m3"}), 404)
        assert error["code"] == "model_not_found"
        assert "m1" in error["message"]
        assert "m2" not in error["message"]

    @pytest.mark.parametrize("path", ["/v1/models", "/v1/capabilities"])
    def test_nothing_shows_the_others(self, deck: App, token: str, path: str) -> None:
        assert deck.chat(json={**BODY, "model": "m2"}).status_code == 200
        assert deck.chat().status_code == 200
        answer = deck.send("GET", path, token=token)
        assert answer.status_code == 200
        assert '"m1"' in answer.text
        assert "m2" not in answer.text

    def test_retrieving_another_model_is_404_like_one_that_is_not_there(self, deck: App, token: str) -> None:
        hidden = error_of(deck.send("GET", "/v1/models/m2", token=token), 404)
        absent = error_of(deck.send("GET", "/v1/models/m3", token=token), 404)
        assert hidden == {**absent, "message": absent["message"].replace("m3", "m2")}

    def test_what_shows_all_models_is_forbidden(self, deck: App, token: str) -> None:
        for path in ("/metrics", "/v1/metrics", "/v1/stats"):
            assert "--admin" in error_of(deck.send("GET", path, token=token), 403)["message"]

    def test_explain_is_forbidden_for_another_model(self, deck: App, token: str) -> None:
        error_of(deck.send("POST", "/deck/explain", token=token, json={**BODY, "model": "m2"}), 403)


@pytest.mark.parametrize("is_busy", [False, True], ids=["pinned", "in use"])
def test_a_refusal_names_no_model_that_the_token_may_not_use(tmp_path: Path, is_busy: bool) -> None:
    hidden = local(tmp_path / "hidden", "hidden") + ("" if is_busy else "\n[schedule]\npinned = true")
    profiles = {"hidden": hidden, "open": local(tmp_path / "open", "open")}
    with app(tmp_path, profiles=profiles, queue_wait=0.05) as deck:
        _, guest = deck.tokens.create("guest", models=["open"])
        holder = deck.deck.pipeline.catalog.resolve("hidden")
        assert holder is not None

        async def refused(token: str) -> str:
            async with deck.deck.board.admit(holder.profile) if is_busy else nullcontext():
                headers = {"authorization": f"Bearer {token}"}
                answer = await deck.client.post(CHAT, json={**BODY, "model": "open"}, headers=headers)
            message: str = error_of(answer, 503)["message"]
            return message

        assert deck.chat(json={**BODY, "model": "hidden"}).status_code == 200
        told = deck.runner.run(refused(TOKEN))
        assert "'hidden'" in told
        assert deck.runner.run(refused(guest)) == told.replace("'hidden'", "another model")


def test_what_observes_deck_is_for_operators(deck: App) -> None:
    _, token = deck.tokens.create("laptop")
    _, operator = deck.tokens.create("operator", admin=True)
    for path in ("/metrics", "/v1/stats"):
        error_of(deck.send("GET", path, token=token), 403)
        assert deck.send("GET", path, token=operator).status_code == 200
