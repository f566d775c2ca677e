"""The operator's commands against a live Deck with the real engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.live import ROOT, LiveDeck, children, live_deck, until
from engine_support import MODEL, needs_engine
from wires import WIRES

TINY = f'id = "small"\n[server]\nmodel = "{MODEL}"\nctx_size = 4096\nargs = ["--threads", "1"]\n'


def run(deck: LiveDeck, *arguments: str) -> str:
    environment = {**os.environ, "DECK_TOKEN": deck.token}
    command = [sys.executable, "-m", "deck", *arguments, "--url", deck.base]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def row(deck: LiveDeck, model: str) -> list[str]:
    lines = run(deck, "ps").splitlines()
    assert lines[0].split() == ["MODEL", "STATE", "RUNNING", "WAITING", "SLOTS", "MEMORY", "NOTE"]
    return next(line.split() for line in lines if line.startswith(f"{model} "))


def ask(client: httpx.Client, model: str = "small", **more: Any) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **more}
    return client.post("/v1/chat/completions", json=body)


@pytest.mark.engine
@needs_engine
def test_a_model_from_load_to_unload(tmp_path: Path) -> None:
    with live_deck(tmp_path, profiles={"small": TINY}) as deck:
        assert row(deck, "small")[1:4] == ["stopped", "0", "0"]
        assert run(deck, "load", "small") == "ready\n"
        state = row(deck, "small")
        assert state[1] == "ready"
        assert state[6] == "MiB"
        assert float(state[5]) > 10
        assert "model loaded" in run(deck, "logs", "small", "-n", "10000")
        assert len(run(deck, "logs", "small", "-n", "3").splitlines()) == 3
        run(deck, "unload", "small")
        until(lambda: row(deck, "small")[1] == "stopped", what="an unloaded model")
        assert children(deck.process.pid) == []


@pytest.mark.engine
@needs_engine
@pytest.mark.parametrize("wire", WIRES)
def test_an_unload_at_once_ends_a_stream_in_its_wire_s_error(tmp_path: Path, wire: str) -> None:
    reads = WIRES[wire]
    body = {**reads.body("Count to 10", True, 2000), "model": "small", "ignore_eos": True}
    with live_deck(tmp_path, profiles={"small": TINY}) as deck, deck.client() as client:
        with client.stream("POST", reads.path, json=body) as answer:
            pieces = answer.iter_bytes()
            data = next(pieces)
            # Not by the command, which takes longer to start than this model to answer.
            assert client.post("/deck/servers/small/unload?now").json()["unload"] == "stopped"
            data += b"".join(pieces)
        said = reads.stream(data)
        assert said.error == "the llama-server of 'small' was stopped before the answer ended"
        assert children(deck.process.pid) == []
        assert ask(client, "small").status_code == 200


@pytest.mark.engine
@needs_engine
def test_a_reload_of_one_model_leaves_the_other_s_stream_whole(tmp_path: Path) -> None:
    config = tmp_path / "deck.toml"
    config.write_text('[scheduler]\nmemory = "8GiB"\n')
    profiles = {"small": TINY, "other": TINY.replace('"small"', '"other"')}
    with live_deck(tmp_path, "--config", str(config), profiles=profiles) as deck, deck.client() as client:
        for name in profiles:
            assert ask(client, name).status_code == 200
        engines = set(children(deck.process.pid))
        assert len(engines) == 2
        long = {"model": "small", "messages": [{"role": "user", "content": "Count to 10"}], "stream": True}
        with client.stream(
            "POST", "/v1/chat/completions", json={**long, "max_tokens": 400, "ignore_eos": True}
        ) as told:
            pieces = told.iter_bytes()
            first = next(pieces)
            path = tmp_path / "profiles" / "other.toml"
            path.write_text(path.read_text().replace("4096", "2048"))
            assert run(deck, "reload", "--diff") == "launched anew: other\n"
            assert run(deck, "reload") == "launched anew: other\n"
            answer = ask(client, "other")
            assert answer.status_code == 200, answer.text
            data = first + b"".join(pieces)
        assert data.endswith(b"data: [DONE]\n\n")
        assert data.count(b'"content"') > 50
        now = set(children(deck.process.pid))
        assert len(now) == 2
        assert len(now & engines) == 1, "one server went on, the other is new"


@pytest.mark.engine
@needs_engine
def test_a_signal_reloads_and_a_wrong_profile_is_logged(tmp_path: Path) -> None:
    with live_deck(tmp_path, profiles={"small": TINY}) as deck, deck.client() as client:
        directory = tmp_path / "profiles"
        (directory / "late.toml").write_text(TINY.replace('"small"', '"late"'))
        deck.process.send_signal(signal.SIGHUP)
        until(lambda: client.get("/v1/models/late").status_code == 200, what="the new model")
        (directory / "late.toml").write_text('id = "late"\ncolour = "red"\n')
        deck.process.send_signal(signal.SIGHUP)
        until(lambda: "colour: unknown key" in deck.logged(), what="the reason in the log")
        assert ask(client, "late").status_code == 200
