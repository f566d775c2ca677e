"""What operators do to running servers over HTTP, and by the commands that ask it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from app_support import App, app, error_of

from deck import cli
from deck.testing.fake_llama import say

SERVERS = "/deck/servers"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[App]:
    with app(tmp_path, lambda request: say("Hello")) as found:
        yield found


def shown(running: App, name: str) -> dict[str, Any]:
    servers = running.send("GET", SERVERS).json()["servers"]
    [found] = [item for item in servers if item["id"] == name]
    return dict(found)


def test_every_model_is_listed_with_its_state(running: App) -> None:
    assert shown(running, "m1") == {
        "id": "m1",
        "kind": "chat",
        "state": "stopped",
        "running": 0,
        "waiting": 0,
        "slots": None,
        "memory": None,
        "expected_memory": None,
        "pinned": False,
        "reason": None,
        "failures": 0,
        "retry_in": None,
    }


def test_a_model_is_loaded_and_unloaded(running: App) -> None:
    assert running.send("POST", f"{SERVERS}/first/load").json()["state"] == "ready"
    assert shown(running, "m1")["state"] == "ready"
    assert running.send("POST", f"{SERVERS}/m1/unload").status_code == 200
    assert shown(running, "m1")["state"] == "stopped"
    assert running.chat().status_code == 200


def test_a_model_is_unloaded_at_once(running: App) -> None:
    running.send("POST", f"{SERVERS}/m1/load")
    assert running.send("POST", f"{SERVERS}/m1/unload?now").json()["state"] == "stopped"
    assert running.chat().status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", f"{SERVERS}/nobody/load", 404),
        ("POST", f"{SERVERS}/nobody/unload", 404),
        ("GET", f"{SERVERS}/nobody/log", 404),
        ("GET", f"{SERVERS}/m1/log", 404),
        ("GET", f"{SERVERS}/m1/load", 405),
        ("POST", SERVERS, 405),
        ("POST", f"{SERVERS}/m1/dance", 404),
    ],
)
def test_what_cannot_be_done_is_an_error(running: App, method: str, path: str, status: int) -> None:
    error_of(running.send(method, path), status)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", SERVERS), ("POST", f"{SERVERS}/m1/load"), ("POST", f"{SERVERS}/m1/unload"), ("GET", f"{SERVERS}/m1/log")],
)
def test_only_operators_may(running: App, method: str, path: str) -> None:
    _, plain = running.tokens.create("plain")
    error_of(running.send(method, path, token=plain), 403)
    error_of(running.send(method, path, token=None), 401)


def test_the_commands_say_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DECK_TOKEN", raising=False)
    assert cli.main(["ps"]) == 1
    assert "put an admin token into DECK_TOKEN" in capsys.readouterr().err
    assert cli.main(["ps", "--token-file", str(tmp_path / "none")]) == 1
    assert "cannot be read" in capsys.readouterr().err
    (tmp_path / "token").write_text("deck-x\n")
    assert cli.main(["ps", "--token-file", str(tmp_path / "token"), "--url", "http://127.0.0.1:1"]) == 1
    assert "no Deck answers at http://127.0.0.1:1" in capsys.readouterr().err
