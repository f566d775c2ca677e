"""The embedded engine as a process of its own, with the real llama.cpp server in it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_support import MODEL, ROOT, SECONDS, Engine, client_of, command, environment, needs_engine, running, until

from deck import engine

pytestmark = pytest.mark.engine

PARENT = """
import os, subprocess, sys
child = subprocess.Popen(
    [*sys.argv[1:], "--parent-death", "--parent-pid", str(os.getpid())], stdout=sys.stderr
)
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture(scope="module")
def served() -> Iterator[Engine]:
    with running("-c", "4096", "-np", "2", "--alias", "tiny,small", "--metrics", key="hush") as running_engine:
        running_engine.client.headers["authorization"] = "Bearer hush"
        yield running_engine


def refused(*arguments: str) -> str:
    done = subprocess.run(
        command(*arguments), cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@needs_engine
def test_serves_chat_on_a_unix_socket(served: Engine) -> None:
    assert served.say("Hello")["message"]["content"] == "Hello! How can I help you?"


@needs_engine
def test_only_the_owner_can_connect(served: Engine) -> None:
    assert served.socket.stat().st_mode & 0o077 == 0


@needs_engine
def test_the_key_from_the_environment_is_needed(served: Engine) -> None:
    with client_of(served.socket) as stranger:
        assert stranger.get("/v1/models").status_code == 401
        assert stranger.get("/v1/models", headers={"authorization": "Bearer loud"}).status_code == 401
        assert stranger.get("/health").status_code == 200
    assert served.client.get("/v1/models").status_code == 200


@needs_engine
def test_flags_reach_the_server(served: Engine) -> None:
    props: dict[str, Any] = served.client.get("/props").json()
    assert props["total_slots"] == 2
    assert props["default_generation_settings"]["n_ctx"] == 2048
    assert served.client.get("/v1/models").json()["data"][0]["aliases"] == ["small", "tiny"]
    assert served.client.get("/metrics").status_code == 200


@needs_engine
def test_stops_on_sigterm_with_status_zero() -> None:
    with running("-c", "4096") as started:
        started.process.send_signal(signal.SIGTERM)
        assert started.process.wait(SECONDS) == 0
        assert not started.socket.exists()


@needs_engine
def test_sigterm_does_not_wait_for_a_stream() -> None:
    with running("-c", "65536") as started:
        body = {"prompt": "a", "n_predict": 60000, "ignore_eos": True, "stream": True}
        with started.client.stream("POST", "/completion", json=body) as stream:
            next(stream.iter_raw())
            began = time.monotonic()
            started.process.send_signal(signal.SIGTERM)
            assert started.process.wait(SECONDS) == 0
            assert time.monotonic() - began < 5


@needs_engine
def test_dies_with_a_parent_that_was_killed() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = command("-m", str(MODEL), "--port", str(port), "-c", "4096")
    with (
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=SECONDS) as client,
        subprocess.Popen(
            [sys.executable, "-c", PARENT, *arguments],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as parent,
    ):
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            until(lambda: answers(client), "a healthy engine")
            parent.kill()
            until(lambda: not answers(client), "the engine's end", seconds=10)
        finally:
            parent.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


@needs_engine
def test_a_stale_socket_file_is_removed() -> None:
    with running("-c", "4096") as started:
        started.process.kill()
        started.process.wait(SECONDS)
        assert started.socket.exists()
        engine.clear_socket(str(started.socket))
        assert not started.socket.exists()


@needs_engine
def test_the_socket_of_a_live_server_is_left_alone(served: Engine) -> None:
    with pytest.raises(engine.EngineError, match="another server listens"):
        engine.clear_socket(str(served.socket))


def test_a_file_in_the_way_of_the_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(engine.EngineError, match="not a socket"):
        engine.clear_socket(str(path))


@needs_engine
def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            command("-m", str(MODEL), "--port", port),
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("flag", ["-ngl", "-fa", "--flash-attn", "-md", "--lora", "-hf", "-nkvo", "--no-such-flag"])
def test_flags_that_cannot_be_honoured_are_refused(flag: str) -> None:
    message = refused("-m", str(MODEL), flag, "1")
    assert message == (
        f"error: the embedded engine cannot honour {flag!r}: install llama-server and set [server] binary "
        "(or DECK_LLAMA_SERVER)\n"
    )


def test_a_missing_model_file_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "gone.gguf") in refused("-m", str(tmp_path / "gone.gguf"))


def test_a_file_that_is_not_gguf_is_named(tmp_path: Path) -> None:
    path = tmp_path / "page.gguf"
    path.write_bytes(b"<html>")
    assert f"{str(path)!r} is not a GGUF file" in refused("-m", str(path))


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["-c", "many"], "'-c' needs a whole number, not 'many'"),
        (["-b", "99999999999999999999"], "'-b' needs a whole number, not '9"),
        (["-c"], "'-c' needs a value"),
        (["--reasoning", "maybe"], "'--reasoning' needs one of on, off, auto, not 'maybe'"),
        (["--chat-template-kwargs", "[]"], "'--chat-template-kwargs' needs a JSON object, not '[]'"),
        (["--chat-template-file", "/gone"], "'--chat-template-file' needs a readable file"),
        ([], "no model"),
    ],
)
def test_bad_values_are_refused(arguments: list[str], wanted: str) -> None:
    with pytest.raises(engine.EngineError) as caught:
        engine.parse(arguments, {})
    assert str(caught.value).startswith(wanted)


def test_flags_become_parameters(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("c\n\nd\n", encoding="utf-8")
    line = "-m m.gguf -t 3 --api-key b -a x,y --no-slots --reasoning off --host /run/e.sock"
    values = ["--api-key-file", str(keys), "--chat-template-kwargs", '{"enable_thinking": false}']
    launch = engine.parse([*line.split(), *values], {"LLAMA_API_KEY": "a"})
    assert launch.is_unix
    assert launch.params["api_keys"] == ["a", "b", "c", "d"]
    assert launch.params["model_alias"] == {"x", "y"}
    assert launch.params["cpuparams.n_threads"] == launch.params["cpuparams_batch.n_threads"] == 3
    assert launch.params["endpoint_slots"] is False
    assert launch.params["default_template_kwargs"] == {"enable_thinking": "false"}
    assert launch.params["enable_reasoning"] == 0


def test_reranking_is_embedding_with_ranks() -> None:
    params = engine.parse(["-m", "m.gguf", "--rerank"], {}).params
    assert params["embedding"] is True
    assert params["pooling_type"] == "LLAMA_POOLING_TYPE_RANK"


def test_an_underscore_is_a_dash_in_a_long_flag() -> None:
    assert engine.parse(["-m", "m.gguf", "--ctx_size", "5"], {}).params["n_ctx"] == 5


def test_one_thread_is_the_default() -> None:
    params = engine.parse(["-m", "m.gguf"], {}).params
    assert params["cpuparams.n_threads"] == params["cpuparams_batch.n_threads"] == 1


@needs_engine
def test_every_flag_has_its_attribute_in_the_binding() -> None:
    params = pytest.importorskip("xllamacpp").CommonParams()
    for flag in engine.FLAGS:
        if not flag.target.startswith("@"):
            owner = params
            for step in flag.target.split("."):
                assert hasattr(owner, step), flag.names
                owner = getattr(owner, step)


@needs_engine
def test_every_name_of_an_enumeration_is_in_the_binding() -> None:
    binding = pytest.importorskip("xllamacpp")
    words = {
        "--reasoning-format": ["none", "auto", "deepseek", "deepseek-legacy"],
        "--pooling": ["none", "mean", "cls", "last", "rank"],
    }
    for name, values in words.items():
        for value in values:
            params = engine.parse(["-m", "m.gguf", name, value], {}).params
            [target] = params.keys() & engine.ENUMERATIONS.keys()
            assert hasattr(getattr(binding, engine.ENUMERATIONS[target]), str(params[target]))


def test_no_spelling_is_used_twice() -> None:
    names = [name for flag in engine.FLAGS for name in flag.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("argv", [["-h"], ["--help"], ["-t", "1", "--help"], ["--jinja", "--help", "-m"]])
def test_help_is_given_among_other_flags(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """So that a script which adds flags of its own can be asked for it."""
    assert engine.main(argv) == 0
    assert "--ctx-size" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"), [(["--alias", "--help"], "no model"), (["--flash", "--help"], "cannot honour '--flash'")]
)
def test_help_is_not_given_for_a_value_nor_behind_a_wrong_flag(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert engine.main(argv) == 1
    assert said in capsys.readouterr().err


def test_help_names_every_flag() -> None:
    text = engine.describe()
    assert all(name in text for flag in engine.FLAGS for name in flag.names)
