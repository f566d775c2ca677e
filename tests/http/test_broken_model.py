"""A model that cannot start: no client takes the error for load, and only operators see paths of the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from app_support import App, app

from deck.errors import DeckError, ErrorKind, without_paths

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"input": "hi"},
}


def broken(tmp_path: Path) -> dict[str, str]:
    weights = tmp_path / "no-model.gguf"
    weights.write_text("this is no model", encoding="utf-8")
    return {"broken": f'id = "broken"\n[server]\nmodel = "{weights}"\nbinary = "/bin/false"\n'}


def asked(deck: App, path: str, **options: Any) -> dict[str, Any]:
    answer = deck.send("POST", path, json={"model": "broken", **BODIES[path]}, **options)
    assert answer.status_code == 503, answer.text
    assert answer.headers["x-should-retry"] == "false"
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize("path", BODIES)
def test_it_is_no_overload(tmp_path: Path, path: str) -> None:
    with app(tmp_path, profiles=broken(tmp_path)) as deck:
        error = asked(deck, path)
    assert error["type"] == ("api_error" if path == "/v1/messages" else "server_error")
    assert error.get("code") in (None, "server_error")
    assert "'broken' did not start" in error["message"]


def test_only_operators_see_paths(tmp_path: Path) -> None:
    with app(tmp_path, profiles=broken(tmp_path)) as deck:
        _, plain = deck.tokens.create("plain")
        seen = asked(deck, "/v1/chat/completions")["message"]
        other = asked(deck, "/v1/chat/completions", token=plain)["message"]
    assert "/bin/false" in seen or str(tmp_path) in seen
    assert "/bin/" not in other
    assert str(tmp_path) not in other
    assert "…/" in other


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("'/srv/models/a.gguf' is no GGUF", "'…/a.gguf' is no GGUF"),
        ("the server at '/run/deck/x-1.sock' stops", "the server at '…/x-1.sock' stops"),
        ("POST /v1/chat/completions is refused", "POST /v1/chat/completions is refused"),
        ("see https://example.org/a/b", "see https://example.org/a/b"),
        ("1/2 of it, and/or /tmp", "1/2 of it, and/or /tmp"),
    ],
)
def test_paths_are_told_apart(message: str, shown: str) -> None:
    error = DeckError(ErrorKind.UNAVAILABLE, message, retry_after=2, should_retry=False)
    found = without_paths(error)
    assert (found.message, found.kind, found.retry_after, found.should_retry) == (
        shown,
        ErrorKind.UNAVAILABLE,
        2,
        False,
    )
    assert without_paths(DeckError(ErrorKind.INVALID_REQUEST, message)).message == message
