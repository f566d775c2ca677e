"""A child's life, with a llama-server that has no model."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from deck.config import Config
from deck.contracts import ServerState
from deck.errors import DeckError, ErrorKind
from deck.profile import Profile
from deck.servers.process import Process

MakeProfile = Callable[..., Profile]
Run = Callable[[Coroutine[Any, Any, None]], None]
_DEADLINE = 20.0
_LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    runner = asyncio.run if request.param == "asyncio" else uvloop.run

    def limited(work: Coroutine[Any, Any, None]) -> None:
        async def main() -> None:
            async with asyncio.timeout(_DEADLINE):
                await work

        runner(main())

    return limited


async def until(is_so: Callable[[], object]) -> None:
    """Wait for what a running test's own deadline bounds."""
    while not is_so():
        await asyncio.sleep(0.01)


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_serves_and_stops_and_leaves_nothing(run: Run, config: Config, make_profile: MakeProfile) -> None:
    async def main() -> None:
        server = Process(make_profile(parallel=2), config)
        assert server.state is ServerState.STOPPED
        await server.start()
        assert server.state is ServerState.READY
        assert (server.facts.slots, server.facts.context) == (2, 4096)
        assert server.facts.template_caps["supports_tools"] is True
        uds, pid = server.address.uds, server.pid
        assert uds is not None
        assert pid is not None
        assert stat.S_IMODE(Path(uds).parent.stat().st_mode) == 0o700
        assert os.getpgid(pid) == pid
        await server.stop(grace=5)
        assert server.state is ServerState.STOPPED
        assert not lives(pid)
        assert not Path(uds).exists()
        await asyncio.wait_for(server.wait_ended(), 1)
        await server.stop(grace=5)

    run(main())


def test_the_key_is_wanted_and_is_in_no_command_line(run: Run, config: Config, make_profile: MakeProfile) -> None:
    async def main() -> None:
        server = Process(make_profile(), config)
        await server.start()
        try:
            transport = httpx.AsyncHTTPTransport(uds=server.address.uds)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                assert (await client.get("/props")).status_code == 401
                headers = {"authorization": f"Bearer {server.key}"}
                assert (await client.get("/props", headers=headers)).status_code == 200
            shown = subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(server.pid)], capture_output=True, check=True)
            assert b"--alias any" in shown.stdout
            assert (server.key or "?").encode() not in shown.stdout
        finally:
            await server.stop(grace=5)

    run(main())


@_LINUX
def test_the_environment_is_scrubbed(run: Run, config: Config, make_profile: MakeProfile) -> None:
    async def main() -> None:
        environ = {**os.environ, "LLAMA_ARG_CTX_SIZE": "1", "AIP_MODE": "PREDICTION", "DECK_TOKEN": "secret"}
        server = Process(make_profile(env={"GGML_OWN": "1"}), config, environ)
        await server.start()
        try:
            seen = Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")
            names = {item.partition(b"=")[0].decode() for item in seen if item}
            assert {"PATH", "GGML_OWN", "LLAMA_API_KEY", "XDG_CONFIG_HOME"} <= names
            assert not {name for name in names if name.startswith(("LLAMA_ARG", "AIP_", "DECK_"))}
        finally:
            await server.stop(grace=5)

    run(main())


def test_a_slow_load_is_waited_for(run: Run, config: Config, make_profile: MakeProfile) -> None:
    async def main() -> None:
        server = Process(make_profile("--fake-unhealthy", "3"), config)
        starting = asyncio.create_task(server.start())
        await until(lambda: server.state is ServerState.LOADING)
        await starting
        await server.stop(grace=5)

    run(main())


def test_a_failed_load_says_why(run: Run, config: Config, make_profile: MakeProfile) -> None:
    async def main() -> None:
        server = Process(make_profile("--fake-exit", "1"), config)
        with pytest.raises(DeckError) as caught:
            await server.start()
        assert caught.value.kind is ErrorKind.UNAVAILABLE
        assert "model 'any' did not start: exited with status 1: failed to load model '" in caught.value.message
        assert "\nexiting due to model loading error" in caught.value.message
        assert server.state is ServerState.FAILED
        assert server.reason == caught.value.message
        assert server.pid is None
        log = (config.state / "logs" / "any.log").read_text(encoding="utf-8")
        assert "exiting due to model loading error" in log

    run(main())


@pytest.mark.parametrize("others", [(), ("--fake-heir", "2")], ids=["known at once", "known late"])
def test_one_that_dies_when_it_is_asked_what_it_is_says_of_what(
    run: Run, config: Config, make_profile: MakeProfile, others: tuple[str, ...]
) -> None:
    async def main() -> None:
        server = Process(make_profile("--fake-shy", *others), config)
        with pytest.raises(DeckError, match="model 'any' did not start: exited with status 134: "):
            await server.start()
        assert server.state is ServerState.FAILED

    run(main())


@pytest.mark.parametrize("error", [OSError(11, "no more processes"), ValueError("embedded null byte")])
@pytest.mark.parametrize("is_cancelled", [False, True], ids=["waited for", "cancelled"])
def test_one_that_cannot_be_run_leaves_no_pipe(
    run: Run,
    config: Config,
    make_profile: MakeProfile,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    is_cancelled: bool,
) -> None:
    gate = asyncio.Event()

    async def fail(*args: Any, **options: Any) -> None:
        await gate.wait()
        raise error

    async def main() -> None:
        monkeypatch.setattr(asyncio, "create_subprocess_exec", fail)
        before = set(os.listdir("/proc/self/fd"))
        server = Process(make_profile(), config)
        starting = asyncio.ensure_future(server.start())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if is_cancelled:
            starting.cancel()
            await asyncio.sleep(0)
        gate.set()
        with pytest.raises(asyncio.CancelledError if is_cancelled else DeckError):
            await starting
        assert len(set(os.listdir("/proc/self/fd")) - before) == 0

    run(main())


def test_without_a_pipe_it_is_told_why(
    run: Run, config: Config, make_profile: MakeProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(24, "Too many open files")

    async def main() -> None:
        server = Process(make_profile(), config)
        monkeypatch.setattr(os, "pipe", fail)
        with pytest.raises(DeckError, match="'any' did not start: cannot be run: Too many open files"):
            await server.start()

    run(main())


def test_one_that_never_gets_ready_is_ended(run: Run, config: Config, make_profile: MakeProfile) -> None:
    async def main() -> None:
        server = Process(make_profile("--fake-unhealthy", "1000000", load_timeout="800ms"), config)
        with pytest.raises(DeckError, match=r"was not ready after 0.8 s; see \[server\] load_timeout"):
            await server.start()
        assert server.state is ServerState.FAILED
        assert server.pid is None

    run(main())


def test_one_that_ignores_sigterm_is_killed(run: Run, config: Config, make_profile: MakeProfile) -> None:
    async def main() -> None:
        server = Process(make_profile("--fake-deaf"), config)
        await server.start()
        pid = server.pid
        assert pid is not None
        await server.stop(grace=0.1)
        assert server.state is ServerState.STOPPED
        assert not lives(pid)

    run(main())


def test_a_crash_is_noticed_and_can_be_started_again(run: Run, config: Config, make_profile: MakeProfile) -> None:
    async def main() -> None:
        server = Process(make_profile(), config)
        await server.start()
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await server.wait_ended()
        assert server.state is ServerState.FAILED
        assert server.reason is not None
        assert server.reason.startswith("killed by signal 9")
        await server.start()
        assert server.state is ServerState.READY
        assert server.reason is None
        await server.stop(grace=5)

    run(main())


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 50])
def test_a_cancelled_start_leaks_no_child(run: Run, config: Config, make_profile: MakeProfile, turns: int) -> None:
    async def main() -> None:
        mark = f"--mark-{turns}-{time.monotonic_ns()}"
        server = Process(make_profile("--fake-unhealthy", "1000000", mark), config)
        starting = asyncio.create_task(server.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        if turns == 50:
            await until(lambda: server.state is ServerState.LOADING)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert server.pid is None
        assert server.state is ServerState.STOPPED
        await until(lambda: mark.encode() not in _commands())  # nobody waits for the end of a script's guard
        await server.stop(grace=5)

    run(main())


def test_a_stop_ends_a_start(run: Run, config: Config, make_profile: MakeProfile) -> None:
    async def main() -> None:
        server = Process(make_profile("--fake-unhealthy", "1000000"), config)
        starting = asyncio.create_task(server.start())
        await until(lambda: server.state is ServerState.LOADING)
        await server.stop(grace=5)
        with pytest.raises(DeckError, match="was stopped while it started"):
            await starting
        assert server.state is ServerState.STOPPED

    run(main())


def test_an_ending_loop_takes_its_children_along(run: Run, config: Config, make_profile: MakeProfile) -> None:
    pids = []

    async def main() -> None:
        server = Process(make_profile(), config)
        await server.start()
        pids.append(server.pid)

    run(main())
    deadline = time.monotonic() + _DEADLINE
    while _running(pids[0]):
        assert time.monotonic() < deadline


def test_a_long_state_directory_still_gets_a_socket(run: Run, tmp_path: Path, make_profile: MakeProfile) -> None:
    async def main() -> None:
        server = Process(make_profile(), Config(state=tmp_path / ("long" * 30)))
        await server.start()
        uds = server.address.uds
        assert uds is not None
        assert len(uds) < 100
        await server.stop(grace=5)
        assert not Path(uds).parent.exists()

    run(main())


_DECK = """
import asyncio, json, sys
from pathlib import Path
from deck.config import Config
from deck.profile import Profile, ServerSettings
from deck.servers.process import Process

async def main():
    keys = json.loads(sys.argv[1])
    server = Process(Profile(id="any", server=ServerSettings(**keys)), Config(state=Path(sys.argv[2])))
    await server.start()
    print(server.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@_LINUX
def test_a_killed_deck_leaves_no_child(tmp_path: Path, binary: str, make_profile: MakeProfile) -> None:
    keys = json.dumps({"model": str(make_profile().server.model), "binary": binary})
    argv = [sys.executable, "-c", _DECK, keys, str(tmp_path / "state")]
    root = Path(__file__).parents[2]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(root)}) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert _running(pid)
        parent.kill()
    deadline = time.monotonic() + _DEADLINE
    while _running(pid):
        assert time.monotonic() < deadline, "the child outlived its Deck"


def _commands() -> bytes:
    return subprocess.run(["ps", "-ww", "-A", "-o", "args="], capture_output=True, check=True).stdout


def _running(pid: int) -> bool:
    """Tell whether a process runs that is not merely waiting to be reaped by its adoptive parent."""
    shown = subprocess.run(
        ["ps", "-ww", "-o", "stat=", "-p", str(pid)], capture_output=True, check=False
    ).stdout.strip()
    return bool(shown) and not shown.startswith(b"Z")


@pytest.mark.parametrize(
    ("says", "should_retry"),
    [("error: invalid argument: --x", False), ("CUDA error: out of memory", None), ("something else", None)],
)
def test_a_start_that_will_fail_again_is_told_from_one_that_may_not(
    run: Run, config: Config, make_profile: MakeProfile, says: str, should_retry: bool | None
) -> None:
    async def main() -> None:
        server = Process(make_profile("--fake-exit", "1", "--fake-says", says), config)
        with pytest.raises(DeckError) as caught:
            await server.start()
        assert caught.value.should_retry is should_retry
        assert says in caught.value.message
        assert ("correct the arguments" in caught.value.message) is (should_retry is False)

    run(main())
