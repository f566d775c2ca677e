"""Commands at turns in a server's life: what they are told, what they may take, and what their failure does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from deck.config import Config
from deck.contracts import ServerState
from deck.errors import DeckError, NotRunError
from deck.profile import Hooks, Profile, ServerSettings
from deck.servers import check_profile, hooks
from deck.servers.hooks import HookError, HookRunner, facts, hook_fault, run_hook
from deck.servers.launcher import LocalLauncher
from deck.servers.process import Process

MakeProfile = Callable[..., Profile]
_TELLS = """
import json, os, sys
told = {name: value for name, value in os.environ.items()}
with open(sys.argv[1], "a") as file:
    file.write(json.dumps({"argv": sys.argv[2:], "cwd": os.getcwd(), **told}) + "\\n")
"""


def run(work: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        try:
            async with asyncio.timeout(20):
                await work
        finally:
            # asyncio waits for ever for a process that is being made when its loop ends: a failure would be a hang.
            if others := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(others, timeout=2)

    asyncio.run(limited())


def hooked(profile: Profile, **hooks: Any) -> Profile:
    return profile.model_copy(update={"hooks": Hooks.model_validate(hooks)})


def teller(tmp_path: Path, *more: str) -> list[str]:
    script = tmp_path / "tell.py"
    script.write_text(_TELLS, encoding="utf-8")
    return [sys.executable, str(script), str(tmp_path / "told"), *more]


def told(tmp_path: Path) -> list[dict[str, Any]]:
    file = tmp_path / "told"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


async def until(claim: Callable[[], object]) -> None:
    while not claim():
        await asyncio.sleep(0.01)


def bare(tmp_path: Path, **hooks: Any) -> Profile:
    server = ServerSettings(model=tmp_path / "x.gguf")
    return hooked(Profile(id="any", server=server, source=tmp_path / "any.toml"), **hooks)


def test_each_turn_has_its_hook_with_its_facts(tmp_path: Path, config: Config, make_profile: MakeProfile) -> None:
    secrets = {
        "DECK_TOKEN": "secret-1",
        "HF_TOKEN": "hf-secret",
        "LLAMA_API_KEY": "llama-secret",
        "MY_KEY": "secret",
    }

    async def main() -> None:
        events = ("before_start", "after_ready", "on_stop", "on_crash")
        profile = hooked(make_profile(env={"OWN": "secret"}), **{name: teller(tmp_path, name) for name in events})
        server = Process(profile, config, {**os.environ, **secrets})
        await server.start()
        pid, uds = server.pid, server.address.uds
        await until(lambda: len(told(tmp_path)) == 2)
        before, after = told(tmp_path)
        assert (before["DECK_EVENT"], before["argv"], before["DECK_PID"]) == ("before_start", ["before_start"], "")
        assert (after["DECK_EVENT"], after["DECK_PID"], after["DECK_ADDRESS"]) == ("after_ready", str(pid), uds)
        await server.stop(grace=5)
        assert [item["DECK_EVENT"] for item in told(tmp_path)] == ["before_start", "after_ready", "on_stop"]
        await server.start()
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: told(tmp_path)[-1]["DECK_EVENT"] == "on_crash")
        assert "killed by signal 9" in told(tmp_path)[-1]["DECK_REASON"]
        for each in told(tmp_path):
            assert each["DECK_MODEL"] == "any"
            assert each["cwd"] == str(tmp_path)
            assert "secret" not in json.dumps(each)
            assert (server.key or "?") not in json.dumps(each)
        await server.stop(grace=1)

    run(main())


@pytest.mark.parametrize(
    ("reason", "told_as"),
    [
        ("exited with status 3:\nno memory\n", "exited with status 3: no memory"),
        ("word " * 400, "word " * 198 + "word…"),
        ("x" * 2000, "x" * 999 + "…"),
    ],
    ids=["lines", "words", "no-words"],
)
def test_a_reason_is_one_line_that_ends_behind_a_word(tmp_path: Path, reason: str, told_as: str) -> None:
    found = facts("on_crash", bare(tmp_path), pid=None, address="", reason=reason)["DECK_REASON"]
    assert found == told_as
    assert len(found) <= 1000


def test_a_start_that_fails_is_told_as_a_crash(tmp_path: Path, config: Config, make_profile: MakeProfile) -> None:
    async def main() -> None:
        server = Process(hooked(make_profile("--fake-exit", "3"), on_crash=teller(tmp_path)), config)
        with pytest.raises(DeckError):
            await server.start()
        await until(lambda: told(tmp_path))
        assert "exited with status 3" in told(tmp_path)[0]["DECK_REASON"]
        assert "\n" not in told(tmp_path)[0]["DECK_REASON"]

    run(main())


def test_a_failing_first_hook_refuses_the_start(config: Config, make_profile: MakeProfile) -> None:
    async def main() -> None:
        argv = [sys.executable, "-c", "import sys; print('no card is free'); sys.exit(7)"]
        server = Process(hooked(make_profile(), before_start=argv), config)
        with pytest.raises(DeckError, match=r"before_start ended with status 7; it printed: no card is free") as caught:
            await server.start()
        assert not isinstance(caught.value, NotRunError)
        assert caught.value.should_retry is None
        assert server.state is ServerState.FAILED
        assert server.pid is None

    run(main())


def test_any_other_failing_hook_changes_nothing(
    config: Config, make_profile: MakeProfile, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        server = Process(hooked(make_profile(), after_ready=["/bin/false"], on_stop=["/nowhere"]), config)
        await server.start()
        await until(lambda: "the hook after_ready ended with status 1" in caplog.text)
        assert server.state is ServerState.READY
        await server.stop(grace=5)
        assert "the hook on_stop cannot be run" in caplog.text

    run(main())


def test_a_stop_ends_what_still_runs_since_it_was_ready(
    config: Config, make_profile: MakeProfile, tmp_path: Path
) -> None:
    code = f"import os\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\nimport time\ntime.sleep(60)"

    async def main() -> None:
        hooks = {"after_ready": [sys.executable, "-c", code], "on_stop": teller(tmp_path), "timeout": "60s"}
        server = Process(hooked(make_profile(), **hooks), config)
        await server.start()
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        async with asyncio.timeout(15):
            await server.stop(grace=5)
        assert not is_running(int((tmp_path / "pid").read_text()))
        assert [item["DECK_EVENT"] for item in told(tmp_path)] == ["on_stop"]

    run(main())


def test_a_start_waits_for_what_the_crash_before_it_began(
    config: Config, make_profile: MakeProfile, tmp_path: Path
) -> None:
    """What a crash gives back may be what the next start takes."""
    slow = [
        sys.executable,
        "-c",
        "import runpy, sys, time\ntime.sleep(0.5)\nsys.argv.pop(0)\nrunpy.run_path(sys.argv[0])",
    ]

    async def main() -> None:
        hooks = {"on_crash": [*slow, *teller(tmp_path)[1:]], "before_start": teller(tmp_path)}
        profile, launcher = hooked(make_profile(), **hooks), LocalLauncher(config)
        for _ in range(2):  # each start has a server of its own
            server = launcher.launch(profile)
            assert isinstance(server, Process)
            await server.start()
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
            await server.wait_ended()
        assert [item["DECK_EVENT"] for item in told(tmp_path)] == ["before_start", "on_crash", "before_start"]
        await until(lambda: len(told(tmp_path)) == 4)

    run(main())


@pytest.mark.parametrize("also", ["on_crash", "nothing"])
def test_a_crash_ends_what_still_runs_since_it_was_ready(
    config: Config, make_profile: MakeProfile, tmp_path: Path, also: str
) -> None:
    code = f"import os\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\nimport time\ntime.sleep(60)"

    async def main() -> None:
        hooks = {"after_ready": [sys.executable, "-c", code], "timeout": "60s"}
        if also == "on_crash":
            hooks["on_crash"] = teller(tmp_path)
        server = Process(hooked(make_profile(), **hooks), config)
        await server.start()
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: not is_running(int((tmp_path / "pid").read_text())))
        if also == "on_crash":
            await until(lambda: told(tmp_path))
            assert [item["DECK_EVENT"] for item in told(tmp_path)] == ["on_crash"]
        await server.stop(grace=5)

    run(main())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_hook_that_is_cancelled_leaves_nothing(tmp_path: Path, loop: str) -> None:
    """Whenever that is, and however often: no process, no descriptor."""

    async def main() -> None:
        profile = bare(tmp_path, after_ready=[sys.executable, "-c", "import time\ntime.sleep(60)"])
        await run_hook(bare(tmp_path, after_ready=["/bin/true"]), "after_ready", {}, os.environ)
        held = len(os.listdir("/proc/self/fd"))
        for turn in range(24):
            work = asyncio.ensure_future(run_hook(profile, "after_ready", {}, os.environ))
            for _ in range(turn // 2):
                await asyncio.sleep(0)
            work.cancel()
            if turn % 2:
                await asyncio.sleep(0)
                work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            async with asyncio.timeout(20):
                await until(lambda: not hooks._working and len(os.listdir("/proc/self/fd")) <= held)

    before = children()
    factory = pytest.importorskip("uvloop").new_event_loop if loop == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
    assert not [pid for pid in children() if pid not in before and is_running(pid)]


@pytest.mark.parametrize("turns", range(6))
def test_a_hook_that_is_ended_at_once_leaves_nothing(tmp_path: Path, turns: int) -> None:
    """Whenever it is ended: also while its process is being made."""
    code, before = "import time\ntime.sleep(60)", children()

    async def main() -> None:
        profile = bare(tmp_path, after_ready=[sys.executable, "-c", code])
        runner = HookRunner(os.environ)
        runner.spawn(profile, {"DECK_EVENT": "after_ready", "DECK_MODEL": str(tmp_path)})
        for _ in range(turns):
            await asyncio.sleep(0)
        await runner.end("after_ready")
        await runner.settle()

    run(main())
    assert not [pid for pid in children() if pid not in before and is_running(pid)]


def children() -> list[int]:
    found = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(pid) for pid in found.read_text(encoding="utf-8").split()] if found.exists() else []


def test_a_hook_that_takes_too_long_is_killed_with_what_it_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
    )
    code += f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\nprint('waiting', flush=True)\nchild.wait()"

    async def main() -> None:
        profile = bare(tmp_path, on_stop=[sys.executable, "-c", code], timeout="1500ms")
        began = time.monotonic()
        with pytest.raises(HookError, match=r"took more than 1.5 s"):
            await run_hook(profile, "on_stop", {}, os.environ)
        assert time.monotonic() - began < 10
        pid = int((tmp_path / "pid").read_text())
        await until(lambda: not is_running(pid))

    run(main())


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("status", [0, 7])
def test_what_a_hook_leaves_in_the_background_is_not_waited_for(tmp_path: Path, status: int, loop: str) -> None:
    """It may hold the output: what counts is how the hook itself ended."""
    script = tmp_path / "hook.sh"
    script.write_text(
        f"#!/bin/sh\necho no card\nsleep 60 &\necho $! > {tmp_path}/pid\nexit {status}\n", encoding="utf-8"
    )
    script.chmod(0o755)

    async def play() -> None:
        began = time.monotonic()
        work = run_hook(bare(tmp_path, before_start=[str(script)], timeout="30s"), "before_start", {}, os.environ)
        if status:
            with pytest.raises(HookError, match=r"before_start ended with status 7; it printed: no card"):
                await work
        else:
            assert await work == "no card"
        assert time.monotonic() - began < 15
        async with asyncio.timeout(10):
            await until(lambda: not is_running(int((tmp_path / "pid").read_text())))

    factory = pytest.importorskip("uvloop").new_event_loop if loop == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(play())


def test_of_endless_output_the_end_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        code = "import sys\nfor _ in range(300): sys.stdout.write('x' * 10000)\nprint('\\x1b[31mthe end')"
        found = await run_hook(bare(tmp_path, on_stop=[sys.executable, "-c", code]), "on_stop", {}, os.environ)
        assert len(found) <= 500
        assert found.endswith("the end")
        assert "\x1b" not in found

    run(main())


def test_there_is_no_shell(tmp_path: Path) -> None:
    async def main() -> None:
        argv = ["/bin/echo", "$HOME", ";", "touch", str(tmp_path / "made")]
        found = await run_hook(bare(tmp_path, on_stop=argv), "on_stop", {}, os.environ)
        assert found.startswith("$HOME ; touch")
        assert not (tmp_path / "made").exists()

    run(main())


@pytest.mark.parametrize("program", ["no-such-program", "./nowhere", "/nowhere", "./any.toml"])
def test_a_hook_that_is_no_program_is_found_before_serving(tmp_path: Path, config: Config, program: str) -> None:
    (tmp_path / "any.toml").write_text("")
    profile = bare(tmp_path, on_crash=[program])
    fault = hook_fault(profile, os.environ["PATH"])
    assert fault is not None
    assert "hooks.on_crash" in fault
    assert fault in check_profile(profile, config, {"PATH": ""}) or "no-such" in program


def test_hooks_are_not_for_a_server_elsewhere() -> None:
    server = {"url": "http://127.0.0.1:1"}
    with pytest.raises(ValueError, match=r"hooks: not with server\.url"):
        Profile.model_validate({"id": "a", "server": server, "hooks": {"on_stop": ["/bin/true"]}})


def test_a_script_ends_with_itself_on_uvloop_too(make_profile: MakeProfile, tmp_path: Path) -> None:
    """Its children inherit more of the pipe than what stands in 0 to 2, and a script has a guard beside it."""
    uvloop = pytest.importorskip("uvloop")
    script = tmp_path / "notify.sh"
    script.write_text("#!/bin/sh\necho told\n", encoding="utf-8")
    script.chmod(0o755)
    wanted = hooked(make_profile(), on_stop=[str(script)], timeout="20s")

    async def play() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await run_hook(wanted, "on_stop", {"DECK_EVENT": "on_stop"}, os.environ) == "told"
        assert loop.time() - began < 10

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play())
