"""The command line: it teaches, its exit statuses tell, and the first start hands out a token."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.live import free_port, live_deck, until

from deck import __version__, cli, loading

COMMANDS = [
    ["serve"],
    ["check"],
    ["explain"],
    ["profiles"],
    ["profiles", "available"],
    ["profiles", "enable"],
    ["probe"],
    ["plugins"],
    ["token"],
    ["token", "create"],
    ["token", "list"],
    ["token", "revoke"],
]
BODY = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No shipped profile, no file or variable of whoever runs the tests."""
    for name in ("DECK_TOKEN", "DECK_CONFIG", "DECK_PROFILES", "DECK_STATE", "DECK_PORT", "DECK_LLAMA_SERVER"):
        monkeypatch.delenv(name, raising=False)
    empty = tmp_path / "shipped"
    empty.mkdir()
    monkeypatch.setattr(loading, "shipped_dir", lambda: empty)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)
    return


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    path = tmp_path / "fake-llama-server"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -m deck.testing.fake_llama "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    (tmp_path / "any.gguf").write_bytes(b"GGUF and nothing else")
    return path


def profiles(tmp: Path, *texts: str) -> list[str]:
    directory = tmp / "profiles"
    directory.mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        (directory / f"p{number}.toml").write_text(text, encoding="utf-8")
    return ["--profiles", str(directory)]


def remote(name: str = "m1", more: str = "") -> str:
    return f'id = "{name}"\n{more}\n[server]\nurl = "http://127.0.0.1:9"\n'


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_teaches(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([*command, "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    usage, described = shown.split("\n\n", 1)
    assert usage.startswith(f"usage: deck {' '.join(command)}")
    assert len(described.split("\n\n")[0]) > 40, "a description follows the usage"
    assert max(len(line) for line in shown.splitlines()) <= 120


def test_the_first_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    shown = capsys.readouterr().out
    for command in COMMANDS:
        assert command[0] in shown
    assert "deck serve" in shown


@pytest.mark.parametrize(
    "wrong", [[], ["serv"], ["serve", "--prot", "1"], ["token"], ["explain"], ["token", "create"], ["probe"]]
)
def test_wrong_usage_is_status_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(wrong)
    assert caught.value.code == 2
    assert "usage: deck" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"deck {__version__}\n"


class TestCheck:
    @pytest.fixture(autouse=True)
    def state(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Where nobody else keeps anything."""
        state = tmp_path / "state"
        monkeypatch.setenv("DECK_STATE", str(state))
        monkeypatch.delenv("DECK_TOKEN", raising=False)
        return state

    def test_a_state_directory_is_looked_at_and_not_made(
        self, tmp_path: Path, state: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["check", *profiles(tmp_path, remote())]) == 0
        assert f"ok       state in {state}" in capsys.readouterr().out
        assert not state.exists()

    @pytest.mark.parametrize("name", ["", "logs", "run", "tokens.json"])
    def test_a_state_directory_that_cannot_be_used_is_found(
        self, tmp_path: Path, state: Path, capsys: pytest.CaptureFixture[str], name: str
    ) -> None:
        (state / name).parent.mkdir(exist_ok=True)
        (state / name).write_text("no directory, nor JSON", encoding="utf-8")
        assert cli.main(["check", *profiles(tmp_path, remote())]) == 1
        shown = capsys.readouterr().out
        assert f"FAILED   state: {state / name} is no" in shown

    def test_a_state_directory_that_cannot_be_written_is_found(
        self, tmp_path: Path, state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        state.mkdir()
        monkeypatch.setattr(os, "access", lambda path, mode: path != state)  # to root every directory is open
        assert cli.main(["check", *profiles(tmp_path, remote())]) == 1
        assert f"{state} cannot be written; choose another place with --state" in capsys.readouterr().out

    def test_all_good(self, tmp_path: Path, binary: Path, capsys: pytest.CaptureFixture[str]) -> None:
        local = f'id = "m2"\n[server]\nmodel = "{tmp_path}/any.gguf"\nbinary = "{binary}"\nctx_size = 4096\n'
        assert cli.main(["check", *profiles(tmp_path, remote(), local)]) == 0
        shown = capsys.readouterr().out
        assert "m1" in shown
        assert "m2" in shown
        assert "FAILED" not in shown

    def test_one_that_can_never_be_loaded_fails(
        self, tmp_path: Path, binary: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "deck.toml"
        file.write_text('[scheduler]\nmemory = "700MiB"\n', encoding="utf-8")
        text = f'[server]\nmodel = "{tmp_path}/any.gguf"\nbinary = "{binary}"\nctx_size = 4096\nmemory = '
        huge, fits = f'id = "huge"\n{text}"900MiB"\n', f'id = "fits"\n{text}"700MiB"\n'
        assert cli.main(["check", *profiles(tmp_path, huge, fits), "--config", str(file)]) == 1
        shown = capsys.readouterr().out
        assert "FAILED   huge " in shown
        assert "it takes 900 MiB of memory and [scheduler] memory is 700 MiB: it can never be loaded" in shown
        assert "ok       fits " in shown
        assert "note: takes about 700 MiB of 700 MiB" in shown

    def test_hosts_of_images(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "deck.toml"
        file.write_text('[media]\nallow = ["a.example", "*.b.example"]\n', encoding="utf-8")
        command = ["check", *profiles(tmp_path, remote()), "--config", str(file)]
        assert cli.main(command) == 0
        assert "fetched from a.example, *.b.example\n" in capsys.readouterr().out
        file.write_text('[media]\nallow = ["http://a.example"]\n', encoding="utf-8")
        assert cli.main(command) == 1
        assert "media.allow" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('id = "m"\n[server]\nmodel = "none.gguf"\nctx_size = 4096\n', "none.gguf"),
            ('id = "m"\n[server]\nmodel = "../any.gguf"\nbinary = "/none/llama"\nctx_size = 4096\n', "/none/llama"),
            ('id = "m"\n[server]\nurl = "http://127.0.0.1:9"\napi_key_env = "NOT_SET"\n', "NOT_SET"),
        ],
        ids=["no-model", "no-binary", "no-key"],
    )
    def test_what_would_fail_is_found(
        self, tmp_path: Path, binary: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
    ) -> None:
        assert cli.main(["check", *profiles(tmp_path, text, remote())]) == 1
        shown = capsys.readouterr().out
        assert "FAILED   m " in shown
        assert said in shown
        assert "ok       m1" in shown

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (remote(more="aliass = []"), "aliass: unknown key (did you mean 'aliases'?)"),
            (remote(more="[defaults]\ntemprature = 1"), "temprature (did you mean 'temperature'?)"),
            (remote(more='family = "generik"'), "no family named 'generik'"),
            ("id = \n", "p0.toml"),
            ('id = "m"\n[server]\nmodel = "~no-such-user/x"\n', "server.model: '~no-such-user/x': nobody knows that"),
            ('id = "m"\n[server]\nmodel = "x"\nbinary = "~no-such-user/x"\n', "server.binary: '~no-such-user/x'"),
            ('id = "m"\n[server]\nurl = "http://h"\nmodel = "x"\n', "exactly one of model, hf, url, urls and command"),
        ],
    )
    def test_a_wrong_profile_is_named(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
    ) -> None:
        assert cli.main(["check", *profiles(tmp_path, text)]) == 1
        shown = capsys.readouterr().err
        assert "p0.toml" in shown
        assert said in shown
        assert "Traceback" not in shown

    def test_two_profiles_of_one_name(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["check", *profiles(tmp_path, remote("a", 'aliases = ["b"]'), remote("b"))]) == 1
        assert "'b' is already an id" in capsys.readouterr().err

    def test_no_profiles(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["check"]) == 1
        assert "--profiles" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", "prot: unknown key (did you mean 'port'?)"),
        ("body_limt = 1", "body_limt: unknown key (did you mean 'body_limit'?)"),
        ("[admin]\npublic_metric = true", "admin.public_metric: unknown key (did you mean 'public_metrics'?)"),
        ("[lanes.chat]\nserail = true", "lanes.chat.serail: unknown key (did you mean 'serial'?)"),
        ('port = "x"', "port: "),
        ("port = ", "deck.toml"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "check", "profiles", "plugins", "token list"])
def test_a_wrong_configuration_names_file_key_and_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, text: str, said: str
) -> None:
    file = tmp_path / "deck.toml"
    file.write_text(text, encoding="utf-8")
    assert cli.main([*command.split(), "--config", str(file)]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("deck: ")
    assert str(file) in shown
    assert said in shown


class TestExplain:
    def run(self, tmp: Path, content: bytes, *arguments: str) -> int:
        file = tmp / "request.json"
        file.write_bytes(content)
        return cli.main(["explain", *profiles(tmp, remote()), *arguments, str(file)])

    def test_a_request(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.run(tmp_path, json.dumps({**BODY, "max_completion_tokens": 5, "user": "x"}).encode()) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["model"], shown["upstream"]["max_tokens"]) == ("m1", 5)
        assert [note["path"] for note in shown["notes"] if note["kind"] == "ignored"] == ["user"]

    @pytest.mark.parametrize(
        ("content", "param"),
        [(json.dumps({**BODY, "temprature": 1}).encode(), "temprature"), (b"{", None), (b"\xff", None), (b"", None)],
    )
    def test_what_would_be_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, param: str | None
    ) -> None:
        assert self.run(tmp_path, content) == 1
        assert json.loads(capsys.readouterr().out)["error"]["param"] == param

    def test_standard_input(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(BODY).encode()), encoding="utf-8"))
        assert cli.main(["explain", *profiles(tmp_path, remote()), "-"]) == 0
        assert json.loads(capsys.readouterr().out)["model"] == "m1"

    def test_a_file_that_is_not_there(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["explain", *profiles(tmp_path, remote()), str(tmp_path / "none.json")]) == 1
        assert "none.json" in capsys.readouterr().err

    def test_an_unknown_surface(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.run(tmp_path, b"{}", "--surface", "telepathy") == 1
        assert "chat" in capsys.readouterr().err

    def test_it_leaves_nothing_behind(self, tmp_path: Path) -> None:
        assert self.run(tmp_path, json.dumps(BODY).encode()) == 0
        assert not (tmp_path / "xdg").exists()


class TestToken:
    def run(self, tmp: Path, *arguments: str) -> int:
        return cli.main(["token", *arguments, "--state", str(tmp / "state")])

    def test_create_list_revoke(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.run(tmp_path, "create", "laptop", "--models", "m1, m2", "--expires", "30d") == 0
        token = capsys.readouterr().out.strip()
        assert re.fullmatch(r"deck-[A-Za-z0-9_-]{43}", token)
        assert self.run(tmp_path, "list") == 0
        shown = capsys.readouterr().out
        assert "laptop" in shown
        assert "m1,m2" in shown
        assert token not in shown
        assert self.run(tmp_path, "revoke", "laptop") == 0
        capsys.readouterr()
        assert self.run(tmp_path, "list") == 0
        assert "laptop" not in capsys.readouterr().out

    def test_names_of_models_are_judged_by_the_directories_that_are_given(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("DECK_PROFILES", raising=False)
        monkeypatch.chdir(tmp_path)
        assert self.run(tmp_path, "create", "a", "--models", "m1,m9") == 0
        assert "warning" not in capsys.readouterr().err
        assert self.run(tmp_path, "create", "b", "--models", "m1,m9", *profiles(tmp_path, remote())) == 0
        warned = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
        assert len(warned) == 1
        assert warned[0].endswith("has the id 'm9'")

    def test_a_file_that_cannot_be_used_is_not_shown_as_empty(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "state").mkdir()
        (tmp_path / "state" / "tokens.json").write_text('{"tok', encoding="utf-8")
        for command in (["list"], ["create", "a"], ["revoke", "a"]):
            assert self.run(tmp_path, *command) == 1
            out, err = capsys.readouterr()
            assert out == ""
            assert "tokens.json is not JSON" in err

    @pytest.mark.parametrize("time", ["9999999d", "99999999999999999999d"])
    def test_a_life_that_is_too_long_makes_no_token(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], time: str
    ) -> None:
        with pytest.raises(SystemExit):
            self.run(tmp_path, "create", "a", "--expires", time)
        assert "100 years at most" in capsys.readouterr().err
        assert self.run(tmp_path, "list") == 0

    def test_a_time_that_is_none_is_shown_as_it_is(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.run(tmp_path, "create", "a", "--expires", "30d") == 0
        file = tmp_path / "state" / "tokens.json"
        document = json.loads(file.read_text())
        document["tokens"][0]["expires"] = 10**15
        file.write_text(json.dumps(document))
        capsys.readouterr()
        assert self.run(tmp_path, "list") == 0
        assert f"{10**15} s" in capsys.readouterr().out

    def test_a_name_that_is_taken(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.run(tmp_path, "create", "laptop") == 0
        capsys.readouterr()
        assert self.run(tmp_path, "create", "laptop") == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert "'laptop'" in err

    def test_revoking_what_is_not_there(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.run(tmp_path, "revoke", "nobody") == 1
        assert "'nobody'" in capsys.readouterr().err


def test_profiles_and_plugins_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profiles", *profiles(tmp_path, remote(more='aliases = ["a"]'))]) == 0
    shown = capsys.readouterr().out
    assert "m1  [chat]  family generic" in shown
    assert "p0.toml" in shown
    assert cli.main(["plugins"]) == 0
    shown = capsys.readouterr().out
    assert "openai_chat" in shown
    assert "surfaces  chat" in shown


def models_of(base: str, token: str) -> int:
    return httpx.get(f"{base}/v1/models", headers={"x-api-key": token}).status_code


def test_the_first_start_makes_a_token_and_the_second_does_not(tmp_path: Path) -> None:
    options: dict[str, Any] = {"profiles": {"m1": remote()}, "env": {"DECK_TOKEN": ""}}
    with live_deck(tmp_path / "deck", **options) as deck:
        until(lambda: "Try:" in deck.logged() and "-d '" in deck.logged(), what="the greeting")
        shown = deck.logged()
        token = re.search(r"^Your token, shown once: (deck-\S+)$", shown, re.MULTILINE)
        assert token is not None
        assert set(re.findall(r"deck-[\w-]{43}", shown)) == {token[1]}
        assert f"Authorization: Bearer {token[1]}" in shown
        assert f"http://127.0.0.1:{deck.port}/v1/chat/completions" in shown
        assert models_of(deck.base, token[1]) == 200
        assert models_of(deck.base, "") == 401
        assert deck.stop() == 0
    with live_deck(tmp_path / "deck", **options) as deck:
        until(lambda: "Try:" in deck.logged(), what="the greeting")
        assert "Your token" not in deck.logged()
        assert token[1] not in deck.logged()
        assert models_of(deck.base, token[1]) == 200
        assert cli.main(["token", "revoke", "first", "--state", str(deck.state)]) == 0
        until(lambda: models_of(deck.base, token[1]) == 401, what="the revocation")


def test_a_token_of_the_environment_is_not_kept(tmp_path: Path) -> None:
    with live_deck(tmp_path / "deck", profiles={"m1": remote()}) as deck:
        until(lambda: "Try:" in deck.logged(), what="the greeting")
        assert models_of(deck.base, deck.token) == 200
        assert "$DECK_TOKEN" in deck.logged()
        assert deck.token not in deck.logged()
        assert not (deck.state / "tokens.json").exists()


def test_a_home_that_nobody_knows_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = profiles(tmp_path, remote())
    (tmp_path / "deck.toml").write_text('llama_server = "~no-such-user/x"\n', encoding="utf-8")
    for more in (["--profiles", "~no-such-user"], ["--config", "deck.toml"]):
        assert cli.main(["check", *where, *more]) == 1
        assert "'~no-such-user" in capsys.readouterr().err
    (tmp_path / "deck.toml").unlink()
    monkeypatch.setenv("DECK_LLAMA_SERVER", "~no-such-user/x")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    local = f'id = "m"\n[server]\nmodel = "{tmp_path}/m.gguf"\n[hooks]\nbefore_start = ["~no-such-user/h"]\n'
    assert cli.main(["check", *profiles(tmp_path, local)]) == 1
    shown = capsys.readouterr().out
    assert "llama-server binary '~no-such-user/x': nobody knows that home directory" in shown
    assert "~no-such-user/h" in shown


def test_without_a_home_a_state_directory_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def nobody(*args: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    assert cli.main(["check", *profiles(tmp_path, remote()), "--state", str(tmp_path / "state")]) == 0


def test_a_start_that_could_let_nobody_in_is_refused(tmp_path: Path) -> None:
    import subprocess

    state = tmp_path / "state"
    state.mkdir()
    (state / "tokens.json").write_text('{"tok', encoding="utf-8")
    command = [sys.executable, "-m", "deck", "serve", "--port", str(free_port()), "--state", str(state)]
    env = {name: item for name, item in os.environ.items() if name != "DECK_TOKEN"}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=env)
    assert ran.returncode == 1
    assert "tokens.json is not JSON" in ran.stderr
    assert "repair or remove it, or give a token by DECK_TOKEN" in ran.stderr
    with live_deck(tmp_path) as deck:  # it has one by DECK_TOKEN
        assert "so that only DECK_TOKEN lets anybody in" in deck.logged()


def test_a_port_in_use_ends_serve_with_status_1(tmp_path: Path) -> None:
    import socket
    import subprocess

    port = free_port()
    command = [sys.executable, "-m", "deck", "serve", "--port", str(port), "--state", str(tmp_path / "state")]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=False, cwd=Path(cli.__file__).parents[1]
        )
    assert ran.returncode == 1
    assert str(port) in ran.stderr
    assert "Traceback" not in ran.stderr
    assert "Your token" not in ran.stdout
