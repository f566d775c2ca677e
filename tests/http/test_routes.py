"""Paths and methods: known aliases work, everything else is a quick JSON answer; nothing redirects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from app_support import BODY, CHAT, App, any_error_of, app, error_of

from deck.discovery import NOT_IMPLEMENTED


@pytest.mark.parametrize(
    "path",
    [
        CHAT,
        "/chat/completions",
        "/v1/v1/chat/completions",
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1//chat//completions",
        "/v1/chat/completions?beta=true",
        "/v1/chat/completions?api-version=2026-01-01",
    ],
)
def test_chat_by_all_its_paths(deck: App, path: str) -> None:
    """B169."""
    answer = deck.send("POST", path, json=BODY)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "Hello!"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models",
        "/models",
        "/v1/v1/models",
        "//v1/models",
        "/v1/models/",
        "/v1/models?client_version=0.171.0",
        "/v1/models?limit=1000",
        "/models?after_id=%00&x=%ff",
    ],
)
def test_models_by_all_its_paths(deck: App, path: str) -> None:
    """B169, and B170: `HEAD /v1/models`."""
    got = deck.send("GET", path)
    assert got.status_code == 200
    assert [item["id"] for item in got.json()["data"]] == ["m1", "m2"]
    head = deck.send("HEAD", path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == got.headers["content-length"]


UNKNOWN = [
    ("GET", "/v1/chat/completions/api/tags"),
    ("GET", "/v1/chat"),
    ("POST", "/v1/v2/chat/completions"),
    ("GET", "/api/tags"),
    ("GET", "/api/version"),
    ("POST", "/api/show"),
    ("POST", "/api/pull"),
    ("GET", "/api/v1/models"),
    ("GET", "/lmstudio-greeting"),
    ("GET", "/props"),
    ("GET", "/v1/props"),
    ("GET", "/props?model=m1&autoload=false"),
    ("GET", "/slots"),
    ("GET", "/"),
    ("GET", "/v1"),
    ("GET", "/v1/"),
    ("GET", "/%2e%2e/%2e%2e/etc/passwd"),
    ("GET", "/v1/models\u202e"),
    ("POST", "/models/load"),
    ("DELETE", "/v1/nothing"),
    ("GET", "/" + "a" * 5000),
]


@pytest.mark.parametrize(("method", "path"), UNKNOWN, ids=lambda value: value[:40])
def test_what_is_not_there_is_json_with_a_hint(deck: App, method: str, path: str) -> None:
    """B169."""
    answer = deck.send(method, path)
    if path == "/models/load":
        assert answer.headers["allow"] == "GET, HEAD"
        error_of(answer, 405)
        return
    error = error_of(answer, 404)
    assert "/v1/chat/completions" in error["message"]
    assert len(answer.content) < 1000
    assert deck.deck.board.states() == {}


@pytest.mark.parametrize("path", [item for item in NOT_IMPLEMENTED if item not in ("/messages", "/responses")])
def test_what_is_not_implemented_says_so(deck: App, path: str) -> None:
    if path in deck.deck.plugins.routes or path in deck.deck.plugins.operation_routes:
        pytest.skip("something serves it")
    for shown in (path, f"/v1{path}", f"/v1{path}/x_123"):
        for method in ("GET", "POST", "DELETE"):
            error = any_error_of(path, deck.send(method, shown), 404)
            assert f"/v1{path}" in error["message"]
            assert "not implemented" in error["message"]


def test_what_is_not_implemented_is_listed(deck: App) -> None:
    listed = deck.send("GET", "/v1/capabilities").json()["not_implemented"]
    served = {*deck.deck.plugins.routes, *deck.deck.plugins.operation_routes}
    assert "/v1/batch" in listed
    assert listed == [f"/v1{path}" for path in NOT_IMPLEMENTED if path not in served]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", CHAT, "POST"),
        ("HEAD", CHAT, "POST"),
        ("GET", "/v1/messages", "POST"),
        ("PUT", CHAT, "POST"),
        ("DELETE", CHAT, "POST"),
        ("OPTIONS", CHAT, "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", "/v1/models/m1", "GET, HEAD"),
        ("OPTIONS", "/v1/models", "GET, HEAD"),
        ("POST", "/v1/capabilities", "GET, HEAD"),
        ("POST", "/metrics", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
        ("GET", "/deck/explain", "POST"),
        ("BREW", "/v1/models", "GET, HEAD"),
    ],
)
def test_a_wrong_method_names_the_right_ones(deck: App, method: str, path: str, allow: str) -> None:
    """B170."""
    answer = deck.send(method, path)
    assert answer.headers["allow"] == allow
    if method == "HEAD":
        assert (answer.status_code, answer.content) == (405, b"")
    else:
        told = any_error_of(path, answer, 405)["message"]
        assert told.startswith(f"{method} ")
        assert told.endswith(f"; use {answer.headers['allow'].replace('GET, HEAD', 'GET').replace(', ', ' or ')}")


def test_a_preflight_gets_no_cors_headers(deck: App) -> None:
    headers = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    for token, status in ((None, 401), ("wrong", 401)):
        answer = deck.send("OPTIONS", CHAT, token=token, headers=headers)
        error_of(answer, status)
        assert not [name for name in answer.headers if name.startswith("access-control")]
    answer = deck.send("OPTIONS", CHAT, headers=headers)
    error_of(answer, 405)
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert not [name for name in deck.chat(headers=headers).headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/v1/responses", "/responses", "/v1/realtime", "/v1/chat/completions"])
def test_a_websocket_is_426_at_once(deck: App, path: str) -> None:
    """Any other status makes Codex wait before it falls back to POST."""
    headers = {"connection": "Upgrade", "upgrade": "WebSocket", "sec-websocket-version": "13"}
    error_of(deck.send("GET", path, headers=headers), 426)
    error_of(deck.send("GET", path, token=None, headers=headers), 401)


def test_nothing_ever_redirects_or_says_detail(deck: App) -> None:
    """B169."""
    for method in ("GET", "POST", "HEAD", "PUT"):
        for path in ("/v1/models/", "/v1", "/v1/chat/completions/", "//", "/docs", "/v1/chat", "/v1/models//m1"):
            answer = deck.send(method, path, json=BODY if method == "POST" else None)
            assert not 300 <= answer.status_code < 400
            assert "location" not in answer.headers
            assert '"detail"' not in answer.text


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/v1/nothing", "/health"])
class TestRequestId:
    def ask(self, deck: App, path: str, headers: dict[str, str], token: str | None = "") -> httpx.Response:
        options: dict[str, Any] = {} if token == "" else {"token": token}
        return deck.send("POST" if path == CHAT else "GET", path, headers=headers, **options)

    def test_a_plain_one_comes_back(self, deck: App, path: str) -> None:
        for sent in ("abc-123", "a" * 128, "0190.a:b_c"):
            assert self.ask(deck, path, {"x-request-id": sent}).headers["x-request-id"] == sent
            assert self.ask(deck, path, {"x-request-id": sent}, None).headers["x-request-id"] == sent

    @pytest.mark.parametrize("sent", ["", "a b", "a" * 129, "a\tb", 'x"y', "<script>", "ü", "a,b"])
    def test_any_other_is_replaced(self, deck: App, path: str, sent: str) -> None:
        got = self.ask(deck, path, {"x-request-id": sent}).headers["x-request-id"]
        assert got.startswith("req_")

    def test_without_one_each_answer_has_its_own(self, deck: App, path: str) -> None:
        seen = {self.ask(deck, path, {}).headers["x-request-id"] for _ in range(20)}
        assert len(seen) == 20


def test_public_metrics_are_open_if_the_operator_says_so(tmp_path: Path) -> None:
    with app(tmp_path, admin={"public_metrics": True}) as deck:
        assert deck.send("GET", "/metrics", token=None).status_code == 200
        assert deck.send("HEAD", "/metrics", token=None).content == b""
        error_of(deck.send("GET", "/v1/metrics", token=None), 401)
        error_of(deck.send("POST", "/metrics", token=None), 401)
        error_of(deck.send("GET", "/v1/stats", token=None), 401)


def test_too_many_headers_are_431(deck: App) -> None:
    for path in (CHAT, "/v1/models", "/health"):
        for headers in (
            [(f"x-h{number}", "v") for number in range(200)],
            [("x-api-key", f"guess-{number}") for number in range(1000)],
            [("x-big", "v" * 70_000)],
        ):
            raw = [(name.encode(), value.encode()) for name, value in headers]
            answer = deck.runner.run(deck.client.request("POST" if path == CHAT else "GET", path, headers=raw))
            error_of(answer, 431)
