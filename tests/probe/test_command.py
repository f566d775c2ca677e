"""`deck probe` from the command line: against a fake server, and against the real one with the tiny model."""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from app_support import app, error_of
from e2e.live import ROOT, children, is_alive, until
from engine_support import MODEL, needs_engine
from faults.support import local
from probe_support import able, only, profile_at, whole
from rich.console import Console

from deck import cli, cli_probe, loading
from deck.config import Config
from deck.errors import DeckError
from deck.loading import StartError
from deck.plugins import Plugins
from deck.probe import probe
from deck.testing.fake_llama import FakeLlama, say


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DECK_TOKEN", "DECK_CONFIG", "DECK_PROFILES", "DECK_STATE", "DECK_LLAMA_SERVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def fake() -> Iterator[FakeLlama]:
    """A fake server in a thread of its own, since the command has its own loop."""
    loop = asyncio.new_event_loop()
    server = FakeLlama(able, routes={"/apply-template": whole})
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
    yield server
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def written(tmp: Path, url: str, more: str = "", name: str = "m") -> Path:
    directory = tmp / "profiles"
    directory.mkdir(exist_ok=True)
    path = directory / f"{name}.toml"
    path.write_text(f'id = "{name}"\n{more}\n[server]\nurl = "{url}"\n', encoding="utf-8")
    return path


def options(tmp: Path) -> list[str]:
    return ["--profiles", str(tmp / "profiles"), "--state", str(tmp / "state")]


def test_a_table_and_progress(tmp_path: Path, fake: FakeLlama, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, fake.url, 'aliases = ["other"]')
    assert cli.main(["probe", "other", *options(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "calls a tool" in out
    assert "--write" in out
    assert err.splitlines()[0] == f"asking {fake.url} …"
    assert "  answers in text: yes" in err


def test_json_and_write(tmp_path: Path, fake: FakeLlama, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, fake.url, "# mine")
    assert cli.main(["probe", "m", "--json", "--write", *options(tmp_path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["model"], shown["of"], shown["family"]) == ("m", fake.url, "generic")
    assert (shown["build"], shown["written"]) == ("b11434-fake", str(path))
    values = {item["name"]: item["value"] for item in shown["findings"]}
    assert (values["tools"], values["vision"], values["context"]) == (True, False, 4096)
    table = tomllib.loads(path.read_text(encoding="utf-8"))["capabilities"]["measured"]
    assert table["at"].isoformat() == shown["at"]
    assert {name: value for name, value in table.items() if name not in ("at", "of", "build")} == {
        name: value for name, value in values.items() if value is not None
    }
    assert "# mine" in path.read_text(encoding="utf-8")


def test_a_model_that_does_not_answer_is_status_1(
    tmp_path: Path, fake: FakeLlama, capsys: pytest.CaptureFixture[str]
) -> None:
    fake._script = lambda request: say()
    written(tmp_path, fake.url)
    assert cli.main(["probe", "m", "--json", *options(tmp_path)]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["value"] is None


def test_a_server_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, "http://127.0.0.1:9")
    assert cli.main(["probe", "m", *options(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("cannot be reached") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x"], "no model named 'x'; known: m, tiny-chat"),
        (["gpt-oss-20b"], "run `deck profiles enable gpt-oss-20b` first"),
        (["e"], "of kind embedding"),
        (["tiny-chat", "--write"], "is Deck's own"),
    ],
    ids=["unknown", "not-enabled", "kind", "shipped"],
)
def test_what_cannot_be_probed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    written(tmp_path, "http://127.0.0.1:9")
    written(tmp_path, "http://127.0.0.1:9", 'kind = "embedding"', "e")
    assert cli.main(["probe", *arguments, *options(tmp_path)]) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_of_somebody_else_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, "http://127.0.0.1:9").chmod(0o400)
    assert cli.main(["probe", "m", "--write", *options(tmp_path)]) == 1
    assert "may not be written" in capsys.readouterr().err


@pytest.mark.parametrize("time", ["0", "soon", "-1"])
def test_a_wrong_limit_is_wrong_usage(capsys: pytest.CaptureFixture[str], time: str) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["probe", "m", f"--limit={time}"])
    assert caught.value.code == 2


def test_two_probes_of_one_state_directory_do_not_run_at_once(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "probe").mkdir(parents=True)
    config = Config(state=state)

    async def work() -> None:
        async with FakeLlama(able) as server:
            profile = profile_at(tmp_path, server.url)
            with pytest.raises(StartError, match="another `deck probe` runs"):
                await probe(
                    profile,
                    config,
                    Plugins(config),
                    only("text"),
                    limit=5,
                    on_begin=lambda what: None,
                    on_end=lambda finding: None,
                )
            assert server.requests == []

    with (state / "probe" / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        asyncio.run(work())


def test_a_state_directory_that_cannot_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, "http://127.0.0.1:9")
    (tmp_path / "state").write_text("a file")
    assert cli.main(["probe", "m", *options(tmp_path)]) == 1
    assert "choose another directory with --state" in capsys.readouterr().err


def test_a_local_model_that_does_not_load_leaves_nothing_running(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    (tmp_path / "bad.gguf").write_bytes(b"GGUF and nothing else")
    text = f'id = "m"\n[server]\nmodel = "bad.gguf"\nbinary = "{sys.executable}"\n'
    path.write_text(text, encoding="utf-8")
    config = Config(state=tmp_path / "state", stop_grace=1)

    async def work() -> None:
        with pytest.raises(DeckError, match="did not start"):
            await probe(
                loading.load(Config(state=tmp_path / "state", profiles=(tmp_path,)))[1].resolve("m").profile,  # type: ignore[union-attr]
                config,
                Plugins(config),
                only("text"),
                limit=5,
                on_begin=lambda what: None,
                on_end=lambda finding: None,
            )

    before = children(os.getpid())
    asyncio.run(work())
    assert set(children(os.getpid())) <= set(before)


class TestWritten:
    """A written result is in force like a declaration, and is told apart from one."""

    MEASURED = '[capabilities.measured]\nat = 2026-11-30\nbuild = "b7"\nof = "{of}"\ntools = false\nspeed = 40.5\n'

    def profiles(self, of: str) -> dict[str, str]:
        return {"p": f'id = "p"\n[capabilities]\nvision = true\n{self.MEASURED.replace("{of}", of)}{{server}}'}

    def test_a_request_for_what_was_measured_missing_is_refused(self, tmp_path: Path) -> None:
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
        for of, status in (("FAKE", 400), ("another", 200)):
            with app(tmp_path / of, [say("hi")], profiles=self.profiles("@")) as deck:
                path = tmp_path / of / "profiles" / "p.toml"
                path.write_text(
                    path.read_text(encoding="utf-8").replace('"@"', f'"{deck.fake.url if of == "FAKE" else of}"'),
                    encoding="utf-8",
                )
                deck.deck.pipeline.catalog = type(deck.deck.pipeline.catalog).load([path.parent])
                answer = deck.chat(json={"model": "p", "messages": [{"role": "user", "content": "x"}], "tools": [tool]})
                assert answer.status_code == status
                if status == 400:
                    assert error_of(answer, 400)["message"] == "tools: the model 'p' calls no tools"

    def test_capabilities_tell_declared_from_measured_and_when(self, tmp_path: Path) -> None:
        with app(tmp_path, profiles={"p": 'id = "p"\n[server]\nurl = "http://127.0.0.1:9"\n'}) as deck:
            path = tmp_path / "profiles" / "p.toml"
            table = self.MEASURED.replace("{of}", "http://127.0.0.1:9")
            path.write_text(
                path.read_text(encoding="utf-8") + f"[capabilities]\nvision = true\n{table}", encoding="utf-8"
            )
            deck.deck.pipeline.catalog = type(deck.deck.pipeline.catalog).load([path.parent])
            shown: dict[str, Any] = deck.send("GET", "/v1/capabilities").json()["models"]
        assert shown["p"]["declared"] == {"vision": True}
        assert shown["p"]["measured"] == {"tools": False, "speed": 40.5}
        assert shown["p"]["probe"] == {"at": "2026-11-30", "build": "b7", "of": "http://127.0.0.1:9"}
        assert shown["m1"]["probe"] is None

    def test_check_says_when_the_model_is_another_now(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = written(tmp_path, "http://127.0.0.1:9")
        path.write_text(path.read_text(encoding="utf-8") + self.MEASURED.replace("{of}", "o/r:q8"), encoding="utf-8")
        assert cli.main(["check", "--profiles", str(path.parent)]) in (0, 1)
        assert "note: what was measured is of 'o/r:q8' and counts no more" in capsys.readouterr().out


@needs_engine
@pytest.mark.engine
@pytest.mark.slow
class TestTiny:
    """The real llama.cpp server, in a process as an operator starts it."""

    def command(self, tmp: Path, *arguments: str) -> list[str]:
        directory = tmp / "profiles"
        directory.mkdir(exist_ok=True)
        text = f'id = "t"\n# mine\n[server]\nmodel = "{MODEL}"\nctx_size = 2048\nargs = ["-t", "1", "-tb", "1"]\n'
        (directory / "t.toml").write_text(text, encoding="utf-8")
        return [sys.executable, "-m", "deck", "probe", "t", *options(tmp), *arguments]

    def test_what_the_tiny_model_can(self, tmp_path: Path) -> None:
        command = self.command(tmp_path, "--json", "--write", "--limit", "60s")
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
        assert ran.returncode == 0, ran.stderr
        shown = json.loads(ran.stdout)
        values = {item["name"]: item["value"] for item in shown["findings"]}
        sure = ("text", "streaming", "system", "developer", "late_system", "tools", "tool_results", "reasoning")
        assert {name: values[name] for name in sure} == dict.fromkeys(sure, True)
        assert (values["reasoning_off"], values["json_schema"], values["efforts"]) == (True, True, False)
        assert (values["vision"], values["audio"], values["context"]) == (False, False, 2048)
        assert values["speed"] > 0
        assert values["prompt_speed"] > 0
        text = (tmp_path / "profiles" / "t.toml").read_text(encoding="utf-8")
        assert "# mine" in text
        assert tomllib.loads(text)["capabilities"]["measured"]["of"] == MODEL.name
        home = tmp_path / "state" / "probe"
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        assert (home / "logs" / "t.log").exists()
        assert list((home / "run").iterdir()) == []
        assert not (tmp_path / "state" / "tokens.json").exists()

    def test_an_interrupt_ends_the_model_too(self, tmp_path: Path) -> None:
        command = self.command(tmp_path)
        loading = local(tmp_path / "fake", "t", "--fake-unhealthy", "1000000")
        (tmp_path / "profiles" / "t.toml").write_text(loading, encoding="utf-8")
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        try:
            started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        finally:
            signal.signal(signal.SIGINT, before)
        with started as process:
            found = until(lambda: children(process.pid), what="the model's process")
            process.send_signal(signal.SIGINT)
            try:
                _, err = process.communicate(timeout=30)
            finally:
                process.kill()  # or a test that fails would not end
        assert process.returncode == 130
        assert "Traceback" not in err
        until(lambda: not any(is_alive(pid) for pid in found), what="the end of the model's process")


def test_on_a_terminal_one_line_tells_what_is_under_way() -> None:
    out = io.StringIO()
    with cli_probe._progress(Console(file=out, force_terminal=True, width=100), 2) as begun:
        for what in ("starting m", "calls a tool", "images"):
            begun(what)
    shown = out.getvalue()
    assert "2 of 2: images …" in shown
    assert "\x1b[" in shown
