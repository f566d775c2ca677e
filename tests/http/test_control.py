"""What operators do to running servers over HTTP, and by the commands that ask it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from app_support import TOKEN, App, app, error_of

from deck import cli, cli_servers
from deck.contracts import ServerState
from deck.testing.fake_llama import say

SERVERS = "/deck/servers"
HEADERS = {"authorization": f"Bearer {TOKEN}"}


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
        "loading": None,
        "running": 0,
        "waiting": 0,
        "slots": None,
        "memory": None,
        "expected_memory": None,
        "pinned": False,
        "removed": False,
        "reason": None,
        "failures": 0,
        "retry_in": None,
        "replicas": [],
    }


def test_a_model_is_loaded_and_unloaded(running: App) -> None:
    assert running.send("POST", f"{SERVERS}/first/load").json()["state"] == "ready"
    assert shown(running, "m1")["state"] == "ready"
    unloaded = running.send("POST", f"{SERVERS}/m1/unload").json()
    assert (unloaded["state"], unloaded["unload"]) == ("stopped", "stopped")
    assert shown(running, "m1")["state"] == "stopped"
    assert running.chat().status_code == 200


def test_a_removed_model_is_listed_while_its_server_is_there(tmp_path: Path, running: App) -> None:
    """It is stopped like any other, also where its name has become another's; that one is loaded."""
    assert running.send("POST", f"{SERVERS}/m1/load").json()["state"] == "ready"
    deck = running.deck

    async def play() -> None:
        async with deck.board.admit(deck.pipeline.catalog.profiles[0]):
            (tmp_path / "profiles" / "m1.toml").unlink()
            other = tmp_path / "profiles" / "m3.toml"
            other.write_text(f'id = "m3"\naliases = ["m1"]\n[server]\nurl = "{running.fake.url}"\n')
            deck.reload()
            answer = await running.client.get(SERVERS, headers=HEADERS)
            [found] = [item for item in answer.json()["servers"] if item["id"] == "m1"]
            assert (found["removed"], found["state"], found["running"]) == (True, "ready", 1)
            loaded = (await running.client.post(f"{SERVERS}/m1/load", headers=HEADERS)).json()
            assert (loaded["id"], loaded["state"]) == ("m3", "ready")  # the name is an alias now
            answer = await running.client.post(f"{SERVERS}/m1/unload?now", headers=HEADERS)
            assert (answer.json()["id"], answer.json()["unload"], answer.json()["removed"]) == ("m1", "stopped", True)

    running.runner.run(play())
    assert "m1" not in [item["id"] for item in running.send("GET", SERVERS).json()["servers"]]
    assert running.send("POST", f"{SERVERS}/m1/unload").json()["id"] == "m3"


def test_a_model_is_unloaded_at_once(running: App) -> None:
    running.send("POST", f"{SERVERS}/m1/load")
    unloaded = running.send("POST", f"{SERVERS}/m1/unload?now").json()
    assert (unloaded["state"], unloaded["unload"]) == ("stopped", "stopped")
    assert running.chat().status_code == 200


def test_a_model_in_use_is_unloaded_later(running: App) -> None:
    async def unload() -> tuple[Any, Any]:
        board = running.deck.board
        profile = running.deck.pipeline.catalog.profiles[0]
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with board.admit(profile):
            kept = await running.client.post(f"{SERVERS}/{profile.id}/unload?now=false", headers=headers)
        await board.wait_stopped(profile.id)
        return kept.json(), board.server(profile.id)

    kept, server = running.runner.run(unload())
    assert (kept["state"], kept["running"], kept["unload"]) == ("ready", 1, "pending")
    assert server.state is ServerState.STOPPED


@pytest.mark.parametrize("query", ["", "?now"])
def test_a_server_that_takes_long_to_stop_is_stopping(
    running: App, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    stops, may_stop = [], asyncio.Event()

    async def stop(server: Any, *, grace: float) -> None:
        stops.append(server)
        await may_stop.wait()
        server._state = ServerState.STOPPED

    running.send("POST", f"{SERVERS}/m1/load")
    monkeypatch.setattr(type(running.deck.board.server("m1")), "stop", stop)
    monkeypatch.setattr("deck.control._STOPPING", 0.01)
    if query:  # it waits for the stop, however long that takes
        running.runner.get_loop().call_soon(may_stop.set)
    said = running.send("POST", f"{SERVERS}/m1/unload{query}").json()["unload"]
    assert said == ("stopped" if query else "stopping")
    may_stop.set()
    running.runner.run(running.deck.board.wait_stopped("m1"))
    assert len(stops) == 1
    assert running.send("POST", f"{SERVERS}/m1/unload").json()["unload"] == "stopped"


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ({}, ""),
        ({"pinned": True}, "pinned"),
        (
            {"state": "failed", "reason": "exited with status 1: no such flag\nmore"},
            "exited with status 1: no such flag",
        ),
        ({"state": "failed", "reason": "x" * 500}, "x" * 80 + "…"),
        (
            {"state": "failed", "reason": "exited\nmore", "failures": 3, "retry_in": 4.0},
            "failed 3 times, tried again in 4.0 s: exited",
        ),
        ({"state": "ready", "reason": "an old one"}, ""),
    ],
    ids=["nothing", "pinned", "failed", "long", "quarantined", "ready"],
)
def test_a_failed_model_is_listed_with_its_reason(
    more: dict[str, Any], note: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = {"id": "m1", "state": "stopped", "running": 0, "waiting": 0, "slots": None, "memory": None}
    server |= {"expected_memory": None, "pinned": False, "reason": None, "failures": 0, "replicas": []}
    monkeypatch.setattr(cli_servers, "_ask", lambda *asked, **options: {"servers": [server | more]})
    assert cli.main(["ps"]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert line[head.index("NOTE") :] == note


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"unload": "stopped", "running": 0}, "stopped"),
        ({"unload": "stopping", "running": 0}, "stopping"),
        ({"unload": "pending", "running": 1}, "will stop when 1 running answer has ended"),
        ({"unload": "pending", "running": 2}, "will stop when 2 running answers have ended"),
        ({"unload": "pending", "running": 0}, "will stop when it has been loaded and nobody uses it"),
    ],
)
def test_the_command_says_what_becomes_of_an_unloaded_model(
    answer: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_servers, "_ask", lambda *asked, **options: answer)
    assert cli.main(["unload", "m1"]) == 0
    assert capsys.readouterr().out == f"{said}\n"


def test_the_log_is_asked_for_as_many_lines_as_are_wanted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(cli_servers, "_ask", lambda given, method, path: asked.append(path) or {"lines": []})
    assert cli.main(["logs", "m1", "-n", "0"]) == 0
    assert asked == ["/m1/log?lines=0"]
    for wrong in ("-1", "x"):
        with pytest.raises(SystemExit):
            cli.main(["logs", "m1", f"--lines={wrong}"])
        assert f"expected a whole number, 0 or more, not '{wrong}'" in capsys.readouterr().err


@pytest.mark.parametrize(("query", "lines"), [("", 100), ("?lines=2", 2), ("?lines=0", 0), ("?after=0", 150)])
def test_a_log_has_as_many_lines_as_are_asked_for(
    running: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str, lines: int
) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"{number}\n" for number in range(150)), encoding="utf-8")
    running.send("POST", f"{SERVERS}/m1/load")
    monkeypatch.setattr(type(running.deck.board.server("m1")), "log", log)
    shown = running.send("GET", f"{SERVERS}/m1/log{query}").json()["lines"]
    assert shown == [str(number) for number in range(150 - lines, 150)]


@pytest.mark.parametrize(
    ("method", "path", "known"),
    [
        ("POST", "/deck/reload?dryrun", "?dry_run"),
        ("POST", "/deck/reload?dry_run&dryrun=1", "?dry_run"),
        ("GET", f"{SERVERS}?limit=1", "no query parameters"),
        ("POST", f"{SERVERS}/m1/load?now", "no query parameters"),
        ("POST", f"{SERVERS}/m1/unload?Now", "?now"),
        ("GET", f"{SERVERS}/m1/log?line=3", "?after, ?lines"),
        ("POST", "/deck/explain?surface=chat", "no query parameters"),
    ],
)
def test_an_unknown_parameter_is_refused(running: App, method: str, path: str, known: str) -> None:
    error = error_of(running.send(method, path), 400)
    assert error["param"] in path
    assert f"no query parameter {error['param']!r}" in error["message"]
    assert error["message"].endswith(known)


@pytest.mark.parametrize(("path", "name"), [("/deck/reload", "dry_run"), (f"{SERVERS}/m1/unload", "now")])
def test_switches_are_on_off_or_refused(running: App, path: str, name: str) -> None:
    for value in ("", "=", "=true", "=1", "=false", "=0"):
        answer = running.send("POST", f"{path}?{name}{value}")
        assert answer.status_code == 200
        if name in answer.json():
            assert answer.json()[name] is (value not in ("=false", "=0"))
    for value in ("=no", "=True", f"=1&{name}=0"):
        assert error_of(running.send("POST", f"{path}?{name}{value}"), 400)["param"] == name


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("/deck/reload", "?dry_run"),
        (f"{SERVERS}/m1/load", "no query parameters"),
        (f"{SERVERS}/m1/unload", "?now"),
    ],
)
def test_a_body_that_nothing_reads_is_refused(running: App, path: str, known: str) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b""
        yield b"{}"

    for body in (b'{"dry_run":true}', chunks()):
        error = error_of(running.send("POST", path, content=body), 400)
        assert error["message"].startswith("this route takes no body; it")
        assert error["message"].endswith(known)
    assert shown(running, "m1")["state"] == "stopped"
    assert running.send("POST", path, content=b"").status_code == 200


@pytest.mark.parametrize("number", ["-1", "x", "9" * 5000, "10001"])
def test_numbers_of_the_log_are_whole(
    running: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    running.send("POST", f"{SERVERS}/m1/load")
    monkeypatch.setattr(type(running.deck.board.server("m1")), "log", tmp_path / "log")
    (tmp_path / "log").touch()
    assert error_of(running.send("GET", f"{SERVERS}/m1/log?lines={number}"), 400)["param"] == "lines"


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
    for wrong in (b"", b"a\nb\n", b"deck x", "dé".encode(), b"\xff"):
        (tmp_path / "token").write_bytes(wrong)
        assert cli.main(["ps", "--token-file", str(tmp_path / "token")]) == 1
        assert f"{tmp_path / 'token'} holds no token" in capsys.readouterr().err
    monkeypatch.setenv("DECK_TOKEN", "dé")
    assert cli.main(["ps"]) == 1
    assert "DECK_TOKEN holds no token" in capsys.readouterr().err
    monkeypatch.delenv("DECK_TOKEN")
    (tmp_path / "token").write_text("deck-x\n")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:2")  # which is asked for nothing that is on this machine
    assert cli.main(["ps", "--token-file", str(tmp_path / "token"), "--url", "http://127.0.0.1:1"]) == 1
    assert "no Deck answers at http://127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "answer",
    [(200, {"status": "ok"}), (200, []), (404, {"error": "not found"}), (404, []), (500, {"error": {"message": 5}})],
    ids=str,
)
def test_what_is_no_deck_is_said_to_be_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: tuple[int, Any]
) -> None:
    monkeypatch.setenv("DECK_TOKEN", "deck-x")
    monkeypatch.setattr(httpx, "request", lambda *args, **options: httpx.Response(answer[0], json=answer[1]))
    assert cli.main(["ps"]) == 1
    assert "is no Deck" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "may_have_proxy"),
    [("http://127.0.0.1:8484", False), ("http://[::1]:1", False), ("http://localhost", False), ("http://deck", True)],
)
def test_no_proxy_gets_the_token_on_the_way_to_this_machine(
    monkeypatch: pytest.MonkeyPatch, url: str, may_have_proxy: bool
) -> None:
    seen = []

    def request(*args: Any, **options: Any) -> httpx.Response:
        seen.append(options["trust_env"])
        return httpx.Response(200, json={"servers": []})

    monkeypatch.setenv("DECK_TOKEN", "deck-x")
    monkeypatch.setattr(httpx, "request", request)
    assert cli.main(["ps", "--url", url]) == 0
    assert seen == [may_have_proxy]
