"""Find what would make a server fail, before serving."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from deck import engine
from deck.config import Config
from deck.contracts import Address, Replica
from deck.errors import DeckError
from deck.profile import Profile
from deck.servers.command import Binary, CommandError, arguments, environment, find_binary, flags
from deck.servers.hooks import hook_fault
from deck.servers.journal import error_line
from deck.servers.memory import estimate_memory
from deck.servers.process import start_faults
from deck.servers.program import command_faults
from deck.servers.remote import Remote, key_fault
from deck.settings import nearest, shown_size

_HELP_TIMEOUT = 5.0
_SHOWN = 100
_OWN_FLAGS = ("--model", "--host", "--ctx-size")
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")


def check_profile(profile: Profile, config: Config, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return what would make the profile's server fail; each finding names the file and the remedy."""
    if profile.server.is_remote:
        fault = key_fault(profile, environ)
        return [f"{', '.join(profile.server.addresses)} {fault}"] if fault is not None else []
    return [*_launch_faults(profile, config, environ), *_memory_faults(profile, config)]


def _memory_faults(profile: Profile, config: Config) -> list[str]:
    """Return why the profile's server can never be loaded, whatever goes for it."""
    budget, memory = config.scheduler.memory, estimate_memory(profile)
    if budget is None or memory is None or memory <= budget:
        return []
    takes = f"takes {shown_size(memory, up=True)} of memory"
    if profile.server.memory is None:
        takes = f"is reckoned to take {shown_size(memory, up=True)} of memory"
    what = f"it {takes} and [scheduler] memory is {shown_size(budget)}: it can never be loaded"
    return [f"{what}; raise that, or correct [server] memory in {profile.source}"]


def _launch_faults(profile: Profile, config: Config, environ: Mapping[str, str]) -> list[str]:
    if profile.server.command:
        faults, hook = command_faults(profile, environ.get("PATH")), hook_fault(profile, environ.get("PATH"))
        return [*faults, *([hook] if hook is not None else [])]
    found = start_faults(profile)
    hook = hook_fault(profile, environ.get("PATH"))
    if hook is not None:
        found.append(hook)
    try:
        binary = find_binary(profile, config, environ.get("PATH"))
    except CommandError as exc:
        return [*found, str(exc)]
    known, fault = _known_flags(binary, _plain(profile, environ))
    if fault is not None:
        return [*found, fault]
    unknown = [flag for flag in flags(profile.server.args) if known and flag not in known]
    if binary.is_embedded and not unknown:
        return [*found, *_value_faults(profile, environ)]
    return [*found, *(_unknown(flag, known, binary, profile) for flag in unknown)]


def replica_notes(profile: Profile, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Ask each of a profile's `urls`, for seconds at most, and return which cannot be used, and in what they differ."""
    if not profile.server.urls or key_fault(profile, environ) is not None:
        return []
    found = asyncio.run(_asked(Remote(profile, environ)))
    return [f"{item.url} {note}" for item in found for note in (item.reason, *item.differs) if note is not None]


async def _asked(remote: Remote) -> list[Replica]:
    with contextlib.suppress(DeckError):
        await remote.start()
    try:
        return remote.replicas()
    finally:
        await remote.stop(grace=0)


def _does_not_run(binary: Binary, status: int, lines: Sequence[str]) -> str:
    line = error_line(lines)
    if line is not None:
        return f"{binary.shown} does not run: {line}"
    printed = f"begins with {lines[0].strip()[:_SHOWN]!r}" if lines else "says nothing"
    return f"{binary.shown} is no llama-server that runs: its --help ends with status {status} and {printed}"


def _value_faults(profile: Profile, environ: Mapping[str, str]) -> list[str]:
    """Return what the embedded engine would say of the values in the profile's `args`."""
    directory = profile.source.absolute().parent  # where it runs: relative paths in `args` lie there
    with contextlib.chdir(directory) if directory.is_dir() else contextlib.nullcontext():
        try:
            engine.parse(arguments(profile, Address(), embedded=True), dict(_plain(profile, environ)))
        except engine.EngineError as exc:
            return [f"[server] args of {profile.source}: {exc}"]
    return []


def _unknown(flag: str, known: frozenset[str], binary: Binary, profile: Profile) -> str:
    return f"{flag} in [server] args of {profile.source} is unknown to {binary.shown}{nearest(flag, sorted(known))}"


def _plain(profile: Profile, environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    env = environment(profile, environ, key=None, config_home=Path(tempfile.gettempdir()) / "none")
    return tuple(sorted(env.items()))


@lru_cache(maxsize=32)
def _known_flags(binary: Binary, env: tuple[tuple[str, str], ...]) -> tuple[frozenset[str], str | None]:
    """Return the flags in the program's help, none if it takes too long; or why it does not run."""
    try:
        ran = subprocess.Popen(
            [*binary.argv, "--help"],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as exc:
        return frozenset(), f"{binary.shown} cannot be run: {exc.strerror}"
    with ran:
        try:
            text = ran.communicate(timeout=_HELP_TIMEOUT)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            return frozenset(), None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(ran.pid, signal.SIGKILL)  # a script leaves what it started behind
    if ran.returncode != 0:
        return frozenset(), _does_not_run(binary, ran.returncode, [item for item in text.splitlines() if item.strip()])
    known = frozenset(flags(_FLAG.findall(text)))
    if not known.issuperset(_OWN_FLAGS):
        return frozenset(), f"{binary.shown} is no llama-server: its --help does not name {', '.join(_OWN_FLAGS)}"
    return known, None
