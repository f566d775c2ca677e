"""An embedded engine of a test's own: the real llama.cpp server with the tiny model, on a UNIX socket."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "profiles" / "tiny-chat" / "tiny-chat.gguf"
SECONDS = 60.0

needs_engine = pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "deck.engine", *arguments]


def environment(key: str | None = None) -> dict[str, str]:
    """This process's environment without a key, or with this one."""
    rest = {name: value for name, value in os.environ.items() if name != "LLAMA_API_KEY"}
    return rest if key is None else {**rest, "LLAMA_API_KEY": key}


def until(claim: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    """Wait for a claim to hold; fail after a deadline."""
    end = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < end, f"{what} did not come within {seconds} s"
        time.sleep(0.01)


@dataclass
class Engine:
    """A running engine and a client that talks to it."""

    process: subprocess.Popen[str]
    socket: Path
    log: Path
    client: httpx.Client

    def is_ready(self) -> bool:
        """Whether the engine has said so; `/health` is good a moment earlier."""
        assert self.process.poll() is None, "the engine ended before it was ready"
        return "\nlistening on " in "\n" + self.log.read_text(encoding="utf-8") and self.is_healthy()

    def is_healthy(self) -> bool:
        # httpcore leaks the socket when a connection is refused, so a plain one asks first.
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(self.socket)) != 0:
                return False
        return self.client.get("/health").status_code == 200

    def chat(self, *messages: dict[str, Any], thinking: bool = False, **fields: Any) -> dict[str, Any]:
        """Return the one choice of a greedy answer."""
        body = {
            "messages": messages,
            "temperature": 0,
            "max_tokens": 300,
            "chat_template_kwargs": {"enable_thinking": thinking},
            **fields,
        }
        answer = self.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        choice: dict[str, Any] = answer.json()["choices"][0]
        return choice

    def say(self, text: str, **fields: Any) -> dict[str, Any]:
        return self.chat({"role": "user", "content": text}, **fields)


def client_of(path: Path) -> httpx.Client:
    return httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://engine", timeout=SECONDS)


@contextmanager
def running(*arguments: str, key: str | None = None) -> Iterator[Engine]:
    """Run an engine for as long as the block lasts."""
    # The path of a socket may have about a hundred bytes, which pytest's own temporary folders can exceed.
    with tempfile.TemporaryDirectory(prefix="deck-") as folder:
        path, output = Path(folder) / "engine.sock", Path(folder) / "log"
        with (
            client_of(path) as client,
            output.open("w", encoding="utf-8") as log,
            subprocess.Popen(
                command("-m", str(MODEL), "--host", str(path), *arguments),
                cwd=ROOT,
                env=environment(key),
                stdout=log,
                stderr=log,
                text=True,
            ) as process,
        ):
            engine = Engine(process, path, output, client)
            try:
                until(engine.is_ready, "a ready engine")
                yield engine
            finally:
                process.kill()
