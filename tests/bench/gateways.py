"""Gateways under test: read from a file, started, awaited, and ended."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HERE = Path(__file__).parent.absolute()
BUILD = HERE / "build"
UPSTREAM_PORT = 9001


@dataclass(slots=True, kw_only=True)
class Gateway:
    """One entry of a gateways file; `process` is there once it was started."""

    name: str
    port: int
    cmd: list[str] = field(default_factory=list)
    health: str = "/health"
    env: Mapping[str, str] = field(default_factory=dict)
    headers: list[str] = field(default_factory=list)
    model: str = "m"
    start_s: float = 60
    cpus: list[int] = field(default_factory=list)
    scenarios: list[str] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    @property
    def is_installed(self) -> bool:
        """True if its program can be run."""
        return shutil.which(self.cmd[0]) is not None


def read_gateways(path: Path, only: Collection[str] = ()) -> list[Gateway]:
    """Return the gateways of a file; HERE, BUILD and PYTHON in it stand for their paths."""
    text = path.read_text(encoding="utf-8")
    for word, value in (("HERE", str(HERE)), ("BUILD", str(BUILD)), ("PYTHON", sys.executable)):
        text = re.sub(f'"{word}(?=["/])', f'"{value}', text)
    return [Gateway(**entry) for entry in json.loads(text) if not only or entry["name"] in only]


class Bench:
    """The processes of a run; leaving the context ends them all."""

    def __init__(self, *, is_pinned: bool = True) -> None:
        allowed = sorted(os.sched_getaffinity(0))
        self.load_cpus = {allowed[0]} if is_pinned else set()
        self.gateway_cpus = {allowed[-1]} if is_pinned else set()
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: sys.exit(1))
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        alive = [process for process in self._processes if process.poll() is None]
        for process in alive:
            _signal(process, signal.SIGTERM)
        end = time.monotonic() + 5
        for process in alive:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)

    def upstream(self) -> subprocess.Popen[bytes]:
        """Start fakellm."""
        process = self._spawn([str(BUILD / "fakellm"), "-p", str(UPSTREAM_PORT)], self.load_cpus, "fakellm", {})
        if not _is_up(process, UPSTREAM_PORT, "/health", 5):
            sys.exit("fakellm did not start: is the port taken?")
        return process

    def start(self, gateway: Gateway) -> None:
        """Start a gateway without waiting for it."""
        cpus = set(gateway.cpus) or self.gateway_cpus
        gateway.process = self._spawn(gateway.cmd, cpus, gateway.name, gateway.env)

    def await_up(self, gateway: Gateway) -> bool:
        """Return true once the gateway answers, false if it ended or took too long."""
        assert gateway.process is not None
        return _is_up(gateway.process, gateway.port, gateway.health, gateway.start_s)

    def _spawn(self, cmd: list[str], cpus: set[int], name: str, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with (BUILD / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*_pinning(cpus), *cmd],
                start_new_session=True,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                cwd=BUILD,
            )
        self._processes.append(process)
        return process

    def run(self, cmd: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a program of the load's side to its end."""
        return subprocess.run([*_pinning(self.load_cpus), *cmd], capture_output=True, text=True, check=False)


def get(port: int, path: str) -> Any:
    """Return the JSON that a local server answers, its text if it is none.

    Raises:
        OSError: nobody answers, or not with 200.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        content = response.read()
    if response.status != 200:
        raise OSError(response.status)
    try:
        return json.loads(content)
    except ValueError:
        return content.decode(errors="replace")


def polls(seconds: float, interval: float) -> Iterator[None]:
    """Yield again and again until the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(interval)


def _is_up(process: subprocess.Popen[bytes], port: int, health: str, seconds: float) -> bool:
    for _ in polls(seconds, 0.05):
        if process.poll() is not None:
            return False
        with contextlib.suppress(OSError, http.client.HTTPException):
            get(port, health)
            return True
    return False


def _pinning(cpus: set[int]) -> list[str]:
    return ["taskset", "-c", ",".join(map(str, sorted(cpus)))] if cpus else []


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, number)
