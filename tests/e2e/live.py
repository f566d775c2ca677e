"""A Deck of its own process for end-to-end tests, on a free loopback port, with a token and a state directory."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def until(claim: Callable[[], Any], seconds: float = 20, what: str = "condition") -> Any:
    """Wait for a claim to hold, by polling without a fixed sleep; fail after a deadline."""
    end = time.monotonic() + seconds
    while True:
        found = claim()
        if found:
            return found
        assert time.monotonic() < end, f"{what} did not come within {seconds} s"
        time.sleep(0.02)


@dataclass
class LiveDeck:
    """A running Deck."""

    process: subprocess.Popen[bytes]
    port: int
    token: str
    state: Path
    log: Path

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.base, headers=self.headers, timeout=120, **options)

    def logged(self) -> str:
        return self.log.read_text(errors="replace")

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that is dead but not yet reaped by its parent does not count."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def children(pid: int) -> list[int]:
    """Return the ids of a process's descendants, without the guards that are about to leave a script's side."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            for child in task.read_text().split():
                if not _is_guard(int(child)):
                    found += [int(child), *children(int(child))]
    return found


def _is_guard(pid: int) -> bool:
    with contextlib.suppress(OSError):  # it has just ended
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        # Once its memory is gone only its group tells it from a server, which leads one.
        is_nameless = command == [b""]
        is_named = len(command) > 3 and command[3].endswith(b"/servers/child.py")
        return (is_nameless or is_named) and os.getpgid(pid) != pid
    return False


@contextlib.contextmanager
def live_deck(
    tmp: Path, *arguments: str, profiles: dict[str, str] | None = None, env: dict[str, str] | None = None
) -> Iterator[LiveDeck]:
    """Start `deck serve`, wait until it answers, and stop it at the end."""
    tmp.mkdir(parents=True, exist_ok=True)
    port, token, log = free_port(), "deck-" + secrets.token_urlsafe(32), tmp / "deck.log"
    directory = tmp / "profiles"
    directory.mkdir(exist_ok=True)
    for name, text in (profiles or {}).items():
        (directory / f"{name}.toml").write_text(text)
    command = [sys.executable, "-m", "deck", "serve", "--port", str(port), "--state", str(tmp / "state")]
    command += ["--profiles", str(directory), *arguments]
    environment = {**os.environ, "DECK_TOKEN": token, **(env or {})}
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, env=environment, cwd=ROOT)
    deck = LiveDeck(process, port, token, tmp / "state", log)
    try:
        until(lambda: _answers(deck), 30, "Deck")
        yield deck
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


def _answers(deck: LiveDeck) -> bool:
    assert deck.process.poll() is None, deck.logged()
    try:
        return httpx.get(deck.base + "/health", timeout=2).status_code == 200
    except httpx.TransportError:
        return False
