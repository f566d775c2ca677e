"""Run a program that ends when its parent does: `child.py --parent PID -- PROGRAM ARGUMENT…`.

Run as a script, standard library only, so that it starts in a few milliseconds. Where the kernel can send a signal on
a parent's death (Linux) it becomes the program; elsewhere, or with `--watch`, it stays and watches. The kernel's signal
ends the program alone, so a script, which may have llama-server as its child, and any program with `--guard` also get a
guard: a process of their group that sleeps until the parent dies and then kills the group.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_WATCH_EVERY = 0.1
_CANNOT_RUN = 127
# Python ignores these and a program inherits that over exec.
_RESTORED = ("SIGPIPE", "SIGXFSZ")
_GUARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(argv: Sequence[str]) -> int:
    """Run the program; return only if it could not be run or after it ended."""
    split = argv.index("--")
    options, program = argv[:split], argv[split + 1 :]
    parent = int(options[options.index("--parent") + 1])
    if "--watch" in options or not _ask_for_signal():
        return _watch(parent, program)
    # The parent may have died before the kernel was asked, then no signal comes.
    if os.getppid() != parent:
        return 1
    may_fork = "--guard" in options or _is_script(program[0])
    if parent != 1 and _leads_group() and may_fork:  # with the first process everything dies anyway
        _leave_guard(parent)
    return _become(program)


def _ask_for_signal() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    status: int = ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return status == 0


def _leads_group() -> bool:
    return os.getpgrp() == os.getpid()


def _is_script(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def _leave_guard(parent: int) -> None:
    """Fork twice, so that the program gets no child that it does not know."""
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return
    if os.fork():
        os._exit(0)
    for number in _GUARDED:
        signal.signal(number, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # or the program's output would not end with the program
        os.dup2(nowhere, stream)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # uvloop's children inherit more copies of it
    _wait_for_end(parent)
    os.killpg(0, signal.SIGKILL)


def _wait_for_end(pid: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # a kernel before 5.3
        while os.path.exists(f"/proc/{pid}"):
            time.sleep(_WATCH_EVERY)
        return
    ended = select.poll()
    ended.register(handle, select.POLLIN)
    ended.poll()


def _become(program: Sequence[str]) -> int:
    for name in _RESTORED:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execv(program[0], list(program))
    except OSError as exc:
        print(f"error: cannot run {program[0]!r}: {exc.strerror}", file=sys.stderr, flush=True)
        return _CANNOT_RUN


def _watch(parent: int, program: Sequence[str]) -> int:
    """Keep the program as a child in the same process group, which is who gets Deck's signals."""
    for number in _GUARDED:
        signal.signal(number, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        for number in _GUARDED:
            signal.signal(number, signal.SIG_DFL)
        os._exit(_become(program))
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return _end_alike(status)
        if os.getppid() != parent:
            if _leads_group():
                os.killpg(0, signal.SIGKILL)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return 1
        time.sleep(_WATCH_EVERY)


def _end_alike(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
