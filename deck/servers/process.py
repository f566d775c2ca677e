"""A llama-server that Deck runs as its child, from its command line to its last line of output.

The only writer of the child's state. Does not know when to start or stop one: the scheduler does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from deck.config import Config
from deck.contracts import Address, Facts, ServerState
from deck.errors import DeckError, ErrorKind
from deck.profile import Profile
from deck.servers import gguf
from deck.servers.command import (
    Binary,
    CommandError,
    arguments,
    environment,
    family_faults,
    find_binary,
    guarded,
    setting_faults,
)
from deck.servers.journal import Journal, telling_line
from deck.servers.memory import resident_bytes
from deck.servers.place import Place, make_place
from deck.servers.probe import Health, Probe, facts_of, probing

_log = logging.getLogger("deck.servers")

_POLL_FIRST, _POLL_MOST, _POLL_GROWTH = 0.02, 0.25, 1.5
_READ = 65536
_STOPPED_EARLY = "was stopped while it started"
# How long output may still come after the end of the process, and how long SIGKILL may take.
_DRAIN, _REAP = 1.0, 10.0


class Process:
    """One llama-server of ours; implements `contracts.Server`.

    Args:
        profile: what it serves.
        config: where its files lie.
        environ: what the child's environment is taken from.
        family_arguments: what the model's family wants of llama-server.
    """

    def __init__(
        self,
        profile: Profile,
        config: Config,
        environ: Mapping[str, str] = os.environ,
        *,
        family_arguments: Sequence[str] = (),
    ) -> None:
        self.profile = profile
        self._family_arguments = family_arguments
        self._config = config
        self._environ = environ
        self._state = ServerState.STOPPED
        self._facts = Facts()
        self._key: str | None = None
        self._reason: str | None = None
        self._place: Place | None = None
        self._journal: Journal | None = None
        self._pid: int | None = None
        self._watch: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    @property
    def state(self) -> ServerState:
        """Where it is in its life."""
        return self._state

    @property
    def facts(self) -> Facts:
        """What it said of itself; empty before it is ready."""
        return self._facts

    @property
    def address(self) -> Address:
        """Where it listens; means nothing before it is started."""
        return self._place.address if self._place is not None else Address()

    @property
    def key(self) -> str | None:
        """The key it wants."""
        return self._key

    @property
    def reason(self) -> str | None:
        """Why it failed or ended, with its last log lines."""
        return self._reason

    @property
    def log(self) -> Path | None:
        """The file of what the process prints."""
        return self._place.log if self._place is not None else None

    @property
    def pid(self) -> int | None:
        """The process, None = none runs."""
        return self._pid

    def memory(self) -> int | None:
        """Return the bytes of memory that the process takes now; not what it takes on a graphics card."""
        return resident_bytes(self._pid) if self._pid is not None else None

    async def start(self) -> None:
        """Start and wait until ready; when this is cancelled or fails, nothing is left running.

        Raises:
            DeckError: `UNAVAILABLE` with the exit reason and the last log lines.
        """
        assert self._state in (ServerState.STOPPED, ServerState.FAILED), "started twice"
        self._state, self._reason, self._facts = ServerState.STARTING, None, Facts()
        self._ended.clear()
        try:
            await self._spawn(self._prepared())
            if self._state is not ServerState.STARTING:
                raise self._failure(_STOPPED_EARLY)
            await self._until_ready()
        except BaseException as exc:
            await self._abandon(exc)
            raise
        self._state = ServerState.READY

    async def stop(self, *, grace: float) -> None:
        """Stop in order: SIGTERM to the group, grace seconds, SIGKILL; idempotent."""
        watch = self._watch
        if watch is None or watch.done():
            self._state = self._state if self._state is ServerState.FAILED else ServerState.STOPPED
            return
        self._state = ServerState.DRAINING
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait({watch}, timeout=grace)
        finally:
            self._signal(signal.SIGKILL)
        await asyncio.wait({watch}, timeout=_REAP)
        self._state = ServerState.STOPPED

    async def wait_ended(self) -> None:
        """Return when the process has ended; its state is `FAILED` if it did so by itself."""
        await self._ended.wait()

    def _prepared(self) -> Binary:
        """Check what can be checked before anything runs, and choose the places of its files."""
        faults = [*start_faults(self.profile), *family_faults(self._family_arguments)]
        try:
            binary = find_binary(self.profile, self._config, self._environ.get("PATH"))
        except CommandError as exc:
            faults.append(str(exc))
        if faults:
            raise self._failure("; ".join(faults), is_permanent=True)
        try:
            self._place = make_place(self.profile.id, self._config.state)
        except OSError as exc:
            raise self._failure(f"no private directory for its files: {exc}", is_permanent=True) from exc
        return binary

    async def _spawn(self, binary: Binary) -> None:
        assert self._place is not None
        self._key = secrets.token_urlsafe(32)
        self._journal = Journal(self._place.log, keep=self.profile.server.log_lines, secret=self._key)
        argv = guarded([*binary.argv, *self._arguments(binary)])
        env = self._environment()
        output, printed = os.pipe()
        directory = self.profile.source.absolute().parent
        options: dict[str, Any] = {
            "stdin": asyncio.subprocess.DEVNULL,
            "stdout": printed,
            "stderr": printed,
            "env": env,
            "cwd": directory if directory.is_dir() else None,
            "start_new_session": True,
        }
        spawning = asyncio.ensure_future(asyncio.create_subprocess_exec(*argv, **options))
        try:
            await asyncio.shield(spawning)
        except OSError as exc:
            os.close(output)
            raise self._failure(f"cannot be run: {exc}") from exc
        finally:
            # A cancelled start must still learn of a child that was just made, or it would leak.
            await asyncio.wait({spawning})
            os.close(printed)
            if spawning.exception() is None:
                child = spawning.result()
                self._pid = child.pid
                self._watch = asyncio.create_task(self._watched(child, output, self._journal))

    def _environment(self) -> dict[str, str]:
        assert self._place is not None
        return environment(self.profile, self._environ, key=self._key, config_home=self._place.config_home)

    def _arguments(self, binary: Binary) -> list[str]:
        assert self._place is not None
        return arguments(self.profile, self._place.address, embedded=binary.is_embedded, family=self._family_arguments)

    async def _watched(self, child: asyncio.subprocess.Process, output: int, journal: Journal) -> None:
        """Own the child and its output until both have ended."""
        draining = asyncio.create_task(_drain(output, journal))
        try:
            await child.wait()
        finally:
            self._signal(signal.SIGKILL)  # it, if this is cancelled with the loop; else whatever it started itself
            code = await child.wait()
            self._pid = None
            await asyncio.wait({draining}, timeout=_DRAIN)
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)
            journal.close()
            if self._place is not None:
                self._place.release()
        if self._state is not ServerState.DRAINING:
            self._state = ServerState.FAILED
            self._reason = self._told(_exit_text(code))
        self._ended.set()

    async def _until_ready(self) -> None:
        limit = self.profile.server.load_timeout
        try:
            async with asyncio.timeout(limit), probing(self.address, self._key) as probe:
                await self._poll(probe)
                props = await probe.props() or {}
                self._check_own(props)
                self._facts = facts_of(props, await self._metadata(probe))
        except TimeoutError:
            message = f"was not ready after {limit:g} s; see [server] load_timeout in {self.profile.source}"
            raise self._failure(self._told(message)) from None
        except httpx.HTTPError as exc:
            await self._raise_if_ended()
            raise self._failure(self._told(f"is ready but does not say what it is: {exc}")) from exc
        await self._raise_if_ended()

    async def _poll(self, probe: Probe) -> None:
        pause = _POLL_FIRST
        while (health := await probe.health()) is not Health.READY:
            if health is Health.LOADING and self._state is ServerState.STARTING:
                self._state = ServerState.LOADING
            await self._rest(pause)
            pause = min(pause * _POLL_GROWTH, _POLL_MOST)

    async def _rest(self, pause: float) -> None:
        """Wait so many seconds for the next look, no longer than the process lives."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._ended.wait()
        await self._raise_if_ended()

    async def _raise_if_ended(self) -> None:
        if not self._ended.is_set():
            return
        if self._reason is None:
            raise self._failure(_STOPPED_EARLY)
        raise self._failure(self._reason)

    async def _metadata(self, probe: Probe) -> Mapping[str, Any]:
        model = self.profile.server.model
        head = await asyncio.to_thread(gguf.read_metadata, model) if model is not None else {}
        return {**head, **await probe.meta()}

    def _check_own(self, props: Mapping[str, Any]) -> None:
        """Never adopt somebody else's server that took the port between its choice and its use."""
        alias = props.get("model_alias", self.profile.id)
        if self.address.uds is None and alias != self.profile.id:
            raise self._failure(f"another server, of {alias!r}, listens on port {self.address.port}")

    async def _abandon(self, cause: BaseException) -> None:
        """Leave nothing of a start that did not succeed."""
        is_stopped = self._state in (ServerState.DRAINING, ServerState.STOPPED) or not isinstance(cause, DeckError)
        self._state = ServerState.DRAINING
        self._signal(signal.SIGKILL)
        if self._watch is not None:
            await asyncio.wait({self._watch}, timeout=_REAP)
        elif self._place is not None:
            self._place.release()
        self._state = ServerState.STOPPED if is_stopped else ServerState.FAILED
        if isinstance(cause, DeckError):
            self._reason = cause.message

    def _failure(self, what: str, *, is_permanent: bool = False) -> DeckError:
        message = f"model {self.profile.id!r} did not start: {what}"
        return DeckError(ErrorKind.UNAVAILABLE, message, should_retry=False if is_permanent else None)

    def _told(self, what: str) -> str:
        tail = self._journal.tail if self._journal is not None else ()
        line = telling_line(tail)
        if line is None:
            return f"{what}; it printed nothing"
        return (
            f"{what}: {line}\nlast lines of {self._journal.path.name if self._journal else 'its log'}:\n"
            + "\n".join(tail)
        )

    def _signal(self, number: int) -> None:
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, number)


def start_faults(profile: Profile) -> list[str]:
    """Return what would make the start of a local profile fail, as far as it is plain without running anything."""
    found = setting_faults(profile)
    if profile.server.model is not None:
        fault = gguf.fault(profile.server.model)
        if fault is not None:
            found.insert(0, f"{fault}: set [server] model in {profile.source}")
    return found


async def _drain(output: int, journal: Journal) -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    pipe = os.fdopen(output, "rb", buffering=0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        while chunk := await reader.read(_READ):
            journal.write(chunk)
    finally:
        transport.close()


def _exit_text(code: int) -> str:
    return f"exited with status {code}" if code >= 0 else f"killed by signal {-code}"
