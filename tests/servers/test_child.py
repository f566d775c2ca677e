"""The wrapper that ends a program with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import deck.servers.child

_CHILD = str(Path(deck.servers.child.__file__))
_MODES = pytest.mark.parametrize("mode", [(), ("--watch",)], ids=["kernel", "watch"])
_DEADLINE = 20.0


def _argv(mode: tuple[str, ...], *program: str, parent: int | None = None) -> list[str]:
    whose = str(parent if parent is not None else os.getpid())
    return [sys.executable, "-I", "-S", _CHILD, "--parent", whose, *mode, "--", *program]


@_MODES
def test_the_status_is_the_programs_own(mode: tuple[str, ...]) -> None:
    assert subprocess.run(_argv(mode, "/bin/sh", "-c", "exit 7"), check=False).returncode == 7
    assert subprocess.run(_argv(mode, "/bin/sh", "-c", "kill -15 $$"), check=False).returncode == -signal.SIGTERM


@_MODES
def test_a_program_that_cannot_be_run_is_named(mode: tuple[str, ...]) -> None:
    ran = subprocess.run(_argv(mode, "/nowhere/x"), capture_output=True, check=False)
    assert ran.returncode == 127
    assert ran.stderr == b"error: cannot run '/nowhere/x': No such file or directory\n"


@_MODES
def test_a_parent_that_has_died_already_is_noticed(mode: tuple[str, ...]) -> None:
    ran = subprocess.run(_argv(mode, "/bin/sleep", "600", parent=1), check=False, timeout=_DEADLINE)
    assert ran.returncode == 1


@_MODES
def test_a_signal_to_the_group_ends_it(mode: tuple[str, ...]) -> None:
    program = ("/bin/sh", "-c", "echo up; exec sleep 600")
    with subprocess.Popen(_argv(mode, *program), start_new_session=True, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        os.killpg(child.pid, signal.SIGTERM)
        assert child.wait(_DEADLINE) == -signal.SIGTERM


@_MODES
def test_a_killed_parent_takes_the_program_along(mode: tuple[str, ...]) -> None:
    code = (
        "import os, subprocess, sys\n"
        "argv = [str(os.getpid()) if item == 'PARENT' else item for item in sys.argv[1:]]\n"
        "subprocess.Popen(argv, start_new_session=True).wait()"
    )
    argv = _argv(mode, "/bin/sh", "-c", "echo $$; exec sleep 600")
    argv[argv.index("--parent") + 1] = "PARENT"
    with subprocess.Popen([sys.executable, "-c", code, *argv], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + _DEADLINE
    while _running(pid):
        assert time.monotonic() < deadline, "the program outlived its parent"


@_MODES
def test_a_script_that_stays_is_not_outlived_by_what_it_runs(mode: tuple[str, ...], tmp_path: Path) -> None:
    program = tmp_path / "wrapper"
    program.write_text("#!/bin/sh\nsleep 600 &\necho $!\nwait\n")
    program.chmod(0o755)
    code = (
        "import os, subprocess, sys\n"
        "argv = [str(os.getpid()) if item == 'PARENT' else item for item in sys.argv[1:]]\n"
        "subprocess.Popen(argv, start_new_session=True).wait()"
    )
    argv = _argv(mode, str(program))
    argv[argv.index("--parent") + 1] = "PARENT"
    with subprocess.Popen([sys.executable, "-c", code, *argv], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert _running(pid)
        parent.kill()
    deadline = time.monotonic() + _DEADLINE
    while _running(pid):
        assert time.monotonic() < deadline, "the script's child outlived its Deck"


def _running(pid: int) -> bool:
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, check=False).stdout.strip()
    return bool(shown) and not shown.startswith(b"Z")
