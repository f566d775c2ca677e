"""Runs an operator's command at a turn in a server's life: before its start, when ready, at its stop, after a crash.

Knows how a command is run within bounds of time and output. Does not know when, nor what its failure means.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from deck.profile import Profile
from deck.servers.command import guarded, plain_environment
from deck.settings import expanded

_log = logging.getLogger("deck.servers")

EVENTS = ("before_start", "after_ready", "on_stop", "on_crash")
_WHILE_READY = "after_ready"
_OUTPUT = 4096
_READ = 4096
_SHOWN = 500
_REASON = 1000
_REAP = 5.0
# How long the end of what an ended hook printed is waited for.
_DRAIN = 0.2
_CONTROLS = re.compile(r"[^\x20-\x7e\xa0-\U0010ffff]+")


class HookError(Exception):
    """A hook could not be run, took too long or failed; the message says what it printed last."""


def hook_fault(profile: Profile, path: str | None) -> str | None:
    """Return which hook of a profile names no program that can be run, None = none does."""
    for event in EVENTS:
        argv = getattr(profile.hooks, event)
        if argv and _program(argv[0], profile.source.absolute().parent, path) is None:
            return f"hooks.{event} of {profile.source}: {argv[0]!r} is no program: give its path, or one on PATH"
    return None


def facts(event: str, profile: Profile, *, pid: int | None, address: str, reason: str) -> dict[str, str]:
    """Return what a hook is told, as variables."""
    return {
        "DECK_EVENT": event,
        "DECK_MODEL": profile.id,
        "DECK_PID": str(pid) if pid is not None else "",
        "DECK_ADDRESS": address,
        "DECK_REASON": _in_one_line(reason),
    }


def _in_one_line(reason: str) -> str:
    """Return a reason without line breaks; one that is too long ends behind a word, with an ellipsis."""
    line = _CONTROLS.sub(" ", reason).strip()
    if len(line) <= _REASON:
        return line
    kept = line[: _REASON - 1]
    return f"{kept.rpartition(' ')[0].rstrip() or kept}…"


class HookRunner:
    """Runs the hooks of one model, one at a time and in the order of its servers' turns.

    What runs since the server was ready is ended by whatever turn comes next: its server is gone.

    Args:
        environ: what their environment is taken from.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._tasks: dict[asyncio.Task[None], str] = {}

    async def run(self, profile: Profile, told: Mapping[str, str]) -> None:
        """Run the hook of the event that is told when those before it have ended, and log what it printed.

        Raises:
            HookError: it failed.
        """
        await self.settle()
        await self._run(profile, told)

    async def _run(self, profile: Profile, told: Mapping[str, str]) -> None:
        event = told["DECK_EVENT"]
        printed = await run_hook(profile, event, told, self._environ)
        _log.info("model %s: the hook %s ended%s", profile.id, event, f": {printed}" if printed else "")

    def spawn(self, profile: Profile, told: Mapping[str, str]) -> None:
        """Run the hook of the event that is told, if there is one; nobody waits for it, and a failure is logged."""
        self._cancel(_WHILE_READY)
        if not getattr(profile.hooks, told["DECK_EVENT"]):
            return
        earlier = set(self._tasks)
        task = asyncio.get_running_loop().create_task(self._run_logged(profile, told, earlier))
        self._tasks[task] = told["DECK_EVENT"]
        task.add_done_callback(self._tasks.pop)

    async def end(self, event: str) -> None:
        """End the hooks of an event that still run: their time is over."""
        tasks = self._cancel(event)
        if tasks:
            await asyncio.wait(tasks)

    def _cancel(self, event: str) -> list[asyncio.Task[None]]:
        tasks = [task for task, running in self._tasks.items() if running == event]
        for task in tasks:
            task.cancel()
        return tasks

    async def settle(self) -> None:
        """Wait until those that were spawned have ended; each has a limit of its own."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _run_logged(self, profile: Profile, told: Mapping[str, str], earlier: set[asyncio.Task[None]]) -> None:
        if earlier:
            await asyncio.wait(earlier)
        try:
            await self._run(profile, told)
        except HookError as exc:
            _log.warning("model %s: %s", profile.id, exc)


async def run_hook(profile: Profile, event: str, told: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Run the profile's command for an event, if it has one, and return the end of what it printed.

    It gets no shell, no input, a scrubbed environment without secrets, and `[hooks] timeout` seconds; then its process
    group is killed, as it is when this is cancelled, however often.

    Raises:
        HookError: it cannot be run, took too long, or ended with another status than 0.
    """
    argv: Sequence[str] = getattr(profile.hooks, event)
    if not argv:
        return ""
    directory = profile.source.absolute().parent
    program = _program(argv[0], directory, environ.get("PATH"))
    if program is None:
        raise HookError(f"the hook {event} cannot be run: {argv[0]!r} is no program")
    options = {
        "env": {**plain_environment(environ), **told},
        "cwd": directory if directory.is_dir() else None,
    }
    # In a task of its own, which nobody cancels: it must learn of a child that was just made, or that would leak.
    is_over = asyncio.Event()
    work = asyncio.ensure_future(_run(event, [program, *argv[1:]], options, profile.hooks.timeout, is_over))
    _working.add(work)
    work.add_done_callback(_forget)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        is_over.set()
        await asyncio.wait({work})
        raise


_working: set[asyncio.Future[str]] = set()


def _forget(work: asyncio.Future[str]) -> None:
    _working.discard(work)
    if not work.cancelled():
        work.exception()  # who was cancelled does not ask for it


async def _run(
    event: str, argv: Sequence[str], options: Mapping[str, Any], limit: float, is_over: asyncio.Event
) -> str:
    """Run a program until it ends, its time is up, or `is_over`; leave nothing of it."""
    printed: deque[bytes] = deque(maxlen=1)
    try:
        # A pipe of ours, not the process's: what a hook leaves in the background may hold it, and is not waited for.
        output, printing = os.pipe()
    except OSError as exc:
        raise HookError(f"the hook {event} cannot be run: {exc.strerror}") from exc
    with os.fdopen(output, "rb", buffering=0) as pipe:
        try:
            child = await asyncio.create_subprocess_exec(
                *guarded(argv, is_forking=True),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=printing,
                stderr=printing,
                start_new_session=True,
                **options,
            )
        except OSError as exc:
            raise HookError(f"the hook {event} cannot be run: {exc.strerror}") from exc
        finally:
            os.close(printing)
        reading = asyncio.ensure_future(_read(pipe, printed))
        ended = asyncio.ensure_future(child.wait())
        over = asyncio.ensure_future(is_over.wait())
        try:
            await asyncio.wait({ended, over}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                await asyncio.wait({reading}, timeout=_DRAIN)
        finally:
            over.cancel()
            has_ended = ended.done()
            await _end(child)
            for task in (reading, ended):
                task.cancel()
            await asyncio.gather(reading, ended, over, return_exceptions=True)
    if not has_ended:
        raise HookError(f"the hook {event} took more than {limit:g} s{_said(printed)}")
    status = ended.result()
    if status != 0:
        what = f"ended with status {status}" if status > 0 else f"was killed by signal {-status}"
        raise HookError(f"the hook {event} {what}{_said(printed)}")
    return _text(printed)


async def _read(pipe: IO[bytes], printed: deque[bytes]) -> None:
    """Read all that is printed, and keep its end."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    kept = b""
    try:
        while data := await reader.read(_READ):
            kept = (kept + data)[-_OUTPUT:]
            printed.append(kept)
    finally:
        transport.close()


async def _end(child: asyncio.subprocess.Process) -> None:
    """Leave nothing of it running, whatever it started itself."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REAP):
            await child.wait()


def _program(name: str, directory: Path, path: str | None) -> str | None:
    if "/" not in name:
        found = shutil.which(name, path=path)
        return os.path.abspath(found) if found is not None else None
    try:
        place = directory / expanded(name)
    except ValueError:
        return None
    return str(place) if place.is_file() and os.access(place, os.X_OK) else None


def _text(printed: Sequence[bytes]) -> str:
    text = printed[-1].decode(errors="replace") if printed else ""
    return _CONTROLS.sub(" ", text).strip()[-_SHOWN:]


def _said(printed: Sequence[bytes]) -> str:
    text = _text(printed)
    return f"; it printed: {text}" if text else " and printed nothing"
