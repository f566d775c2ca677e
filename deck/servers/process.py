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
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from deck.config import Config
from deck.contracts import Address, Doing, Facts, ServerState
from deck.errors import DeckError, ErrorKind, NotRunError
from deck.profile import Profile
from deck.servers import gguf
from deck.servers.causes import lasting
from deck.servers.claim import Claim
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
from deck.servers.hooks import HookError, HookRunner, facts
from deck.servers.journal import Journal, telling_line
from deck.servers.place import Place, make_place, no_directory
from deck.servers.probe import Health, Probe, facts_of, probing
from deck.servers.progress import doing
from deck.servers.slots import SlotFiles, signature_of
from deck.servers.vitals import LoadPulse, vitals

_log = logging.getLogger("deck.servers")

_POLL_FIRST, _POLL_MOST, _POLL_GROWTH = 0.02, 0.25, 1.5
_READ = 65536
# How often a load is looked at for signs of life.
_LOOK = 1.0
_STOPPED_EARLY = "was stopped while it started"
# How long output may come after the end of the process, how long SIGKILL may take, and how long after its connections
# broke the end of a process may be known.
_DRAIN, _REAP, _DYING = 0.25, 10.0, 0.5


class Process:
    """One llama-server of ours; implements `contracts.Server`.

    Args:
        profile: what it serves.
        config: where its files lie.
        environ: what the child's environment is taken from.
        family_arguments: what the model's family wants of llama-server.
        claim: whose its files are, None = nobody says.
        hooks: runs the model's hooks, those of servers before this one among them; None = one of its own.
    """

    def __init__(
        self,
        profile: Profile,
        config: Config,
        environ: Mapping[str, str] = os.environ,
        *,
        family_arguments: Sequence[str] = (),
        claim: Claim | None = None,
        hooks: HookRunner | None = None,
    ) -> None:
        self.profile = profile
        self._claim = claim
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
        self._began = 0.0
        self._has_slots_back = self._has_served = False
        self._remedy: str | None = None
        self._condemned: str | None = None
        self._slots: SlotFiles | None = None
        self._signature: str | None = None
        self._hooks = hooks if hooks is not None else HookRunner(environ)

    # A script is known by itself; whatever else llama-server is, it has no children.
    _may_fork = False

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

    @property
    def doing(self) -> Doing | None:
        """What it is about while it starts, None = it does not."""
        if self._state not in (ServerState.STARTING, ServerState.LOADING):
            return None
        journal = self._journal
        line, share = doing(journal.recent, journal.begun) if journal is not None else ("", None)
        return Doing(line=line, share=share, seconds=time.monotonic() - self._began)

    @property
    def has_slots_back(self) -> bool:
        """Whether its slots hold what those of its last run held."""
        return self._has_slots_back

    def is_faulty(self) -> bool:
        """Tell whether it cannot start, as far as that is plain without running anything; `reason` then says why."""
        try:
            self._checked()
        except DeckError as exc:
            self._state, self._reason = ServerState.FAILED, exc.message
            return True
        return False

    def memory(self) -> int | None:
        """Return the bytes of memory that the process takes now; not what it takes on a graphics card."""
        found = vitals(self._pid) if self._pid is not None else None
        return found.resident if found is not None else None

    async def start(self) -> None:
        """Start and wait until ready; when this is cancelled or fails, nothing is left running.

        Raises:
            DeckError: `UNAVAILABLE` with the exit reason and the last log lines.
        """
        assert self._state in (ServerState.STOPPED, ServerState.FAILED), "started twice"
        self._state, self._reason, self._facts = ServerState.STARTING, None, Facts()
        self._remedy = self._condemned = self._slots = self._signature = self._watch = self._journal = None
        self._began = time.monotonic()
        self._ended.clear()
        try:
            binary = self._prepared()
            if self.profile.hooks.before_start:
                await self._first_hook()
                self._check_wanted()
            await self._spawn(binary)
            self._check_wanted()
            await self._until_ready()
        except BaseException as exc:
            await self._abandon(exc)
            raise
        self._state = ServerState.READY
        self._hook("after_ready")

    async def stop(self, *, grace: float) -> None:
        """Stop in order: SIGTERM to the group, grace seconds, SIGKILL; idempotent."""
        watch = self._watch
        if watch is None or watch.done():
            self._state = self._state if self._state is ServerState.FAILED else ServerState.STOPPED
            return
        was_ready = self._state is ServerState.READY
        if self._condemned is None:
            self._state = ServerState.DRAINING
        try:
            await self._hooks.end("after_ready")
            if was_ready:
                await self._keep_slots()
            self._signal(signal.SIGTERM)
            await asyncio.wait({watch}, timeout=grace)
        finally:
            self._signal(signal.SIGKILL)
        await asyncio.wait({watch}, timeout=_REAP)
        if self._condemned is None:
            self._state = ServerState.STOPPED
            self._hook("on_stop")
        await self._hooks.settle()

    def condemn(self, reason: str) -> None:
        """Give it up as hung: from now on it has failed for this reason; `stop` then ends its process."""
        if self._state is ServerState.READY:
            self._condemned = self._reason = reason
            self._state = ServerState.FAILED

    async def wait_ended(self) -> None:
        """Return when the process has ended; its state is `FAILED` if it did so by itself."""
        await self._ended.wait()

    def _check_wanted(self) -> None:
        if self._state is not ServerState.STARTING:
            raise self._failure(_STOPPED_EARLY)

    def _checked(self) -> Binary:
        """Check what can be checked before anything runs."""
        faults = [*start_faults(self.profile), *family_faults(self._family_arguments)]
        try:
            binary = find_binary(self.profile, self._config, self._environ.get("PATH"))
        except CommandError as exc:
            faults.append(str(exc))
        if faults:
            raise self._failure("; ".join(faults), is_permanent=True)
        return binary

    def _prepared(self) -> Binary:
        """Check, and choose the places of its files."""
        binary = self._checked()
        try:
            self._place = make_place(self.profile.id, self._config.state, self._claim)
            if self.profile.server.save_slots:
                limit = self.profile.server.save_limit
                self._slots = SlotFiles(self.profile.id, self._config.state, limit=limit)
        except OSError as exc:
            raise self._failure(no_directory(exc), is_permanent=True) from exc
        return binary

    async def _spawn(self, binary: Binary) -> None:
        assert self._place is not None
        self._key = secrets.token_urlsafe(32)
        self._journal = Journal(self._place.log, keep=self.profile.server.log_lines, secret=self._key)
        command = [*binary.argv, *self._arguments(binary), *self._slot_arguments(binary)]
        argv = guarded(command, is_forking=self._may_fork)
        env = self._environment()
        try:
            output, printed = os.pipe()
        except OSError as exc:
            raise self._failure(f"cannot be run: {exc.strerror}") from exc
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
        except (OSError, ValueError) as exc:  # a NUL in an argument is the latter
            raise self._failure(f"cannot be run: {exc}") from exc
        finally:
            # A cancelled start must still learn of a child that was just made, or it would leak.
            await asyncio.wait({spawning})
            os.close(printed)
            if spawning.exception() is not None:
                os.close(output)
            else:
                child = spawning.result()
                self._pid = child.pid
                self._watch = asyncio.create_task(self._watched(child, output, self._journal))

    def _environment(self) -> dict[str, str]:
        assert self._place is not None
        return environment(self.profile, self._environ, key=self._key, config_home=self._place.config_home)

    def _arguments(self, binary: Binary) -> list[str]:
        assert self._place is not None
        return arguments(self.profile, self._place.address, embedded=binary.is_embedded, family=self._family_arguments)

    def _slot_arguments(self, binary: Binary) -> list[str]:
        """Return the flag that lets slots be saved, and note what tells this launch from any other."""
        if self._slots is None:
            return []
        argv = arguments(self.profile, Address(), embedded=binary.is_embedded, family=self._family_arguments)
        self._signature = signature_of([*binary.argv, *argv], self.profile.source.absolute().parent)
        return ["--slot-save-path", str(self._slots.directory)]

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
        self._has_served = self._condemned is not None or self._state is ServerState.READY
        if self._condemned is not None:
            self._reason = self._told(self._condemned)
            self._hook("on_crash")
        elif self._state is not ServerState.DRAINING:
            self._state = ServerState.FAILED
            self._remedy = None if self._has_served else lasting(code, journal.recent)
            self._reason = self._told(_exit_text(code), self._remedy)
            if self._has_served:
                self._hook("on_crash")
        self._ended.set()

    async def _until_ready(self) -> None:
        limit = self.profile.server.load_timeout
        try:
            async with asyncio.timeout(limit), probing(self.address, self._key) as probe:
                await self._poll(lambda: self._has_loaded(probe))
                props = await probe.props() or {}
                self._check_own(props)
                self._facts = facts_of(props, await self._metadata(probe))
        except TimeoutError:
            message = f"was not ready after {limit:g} s; see [server] load_timeout in {self.profile.source}"
            raise self._failure(self._told(message)) from None
        except httpx.HTTPError as exc:
            await self._rest(_DYING)
            what = str(exc) or type(exc).__name__
            raise self._failure(self._told(f"is ready but does not say what it is: {what}")) from exc
        await self._bring_slots()
        await self._raise_if_ended()

    async def _has_loaded(self, probe: Probe) -> bool:
        health = await probe.health()
        if health is Health.LOADING and self._state is ServerState.STARTING:
            self._state = ServerState.LOADING
        return health is Health.READY

    async def _poll(self, is_ready: Callable[[], Awaitable[bool]]) -> None:
        """Ask until it is ready, no longer than it shows that it is alive."""
        pause = _POLL_FIRST
        looked = time.monotonic()
        pulse = LoadPulse(looked)
        while not await is_ready():
            await self._rest(pause)
            pause = min(pause * _POLL_GROWTH, _POLL_MOST)
            now = time.monotonic()
            if now - looked >= _LOOK:
                looked = now
                self._check_alive(pulse, now)

    def _check_alive(self, pulse: LoadPulse, now: float) -> None:
        """Give up on a load that shows no sign of life for too long; where none can be seen, its time alone counts."""
        limit = self.profile.server.load_stall
        if not limit or self._pid is None or self._journal is None:
            return
        if pulse.silent(now, vitals(self._pid), self._journal.written) >= limit:
            what = f"hung: for {limit:g} s it printed nothing, took no processor time and read nothing"
            raise self._failure(self._told(f"{what}; see [server] load_stall in {self.profile.source}"))

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
        raise self._failure(self._reason, should_retry=None if self._remedy is None else False)

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
        else:  # nothing was run that would own them
            if self._place is not None:
                self._place.release()
            if self._journal is not None:
                self._journal.close()
        self._state = ServerState.STOPPED if is_stopped else ServerState.FAILED
        if isinstance(cause, DeckError):
            self._reason = cause.message
        if not is_stopped:
            self._hook("on_crash")

    def _failure(self, what: str, *, is_permanent: bool = False, should_retry: bool | None = None) -> DeckError:
        """Return the error of a start; `is_permanent` = what was found before anything ran."""
        message = f"model {self.profile.id!r} did not start: {what}"
        if is_permanent:
            return NotRunError(ErrorKind.UNAVAILABLE, message, should_retry=False)
        return DeckError(ErrorKind.UNAVAILABLE, message, should_retry=should_retry)

    async def _keep_slots(self) -> None:
        """Save what the slots hold, for the next start."""
        if self._slots is None or self._signature is None:
            return
        async with probing(self.address, self._key) as probe:
            tokens = await self._slots.save(probe, f"{self._signature} {self._facts.build}", self._facts.slots or 1)
        if tokens:
            _log.info("model %s: %d tokens of its slots are saved", self.profile.id, tokens)

    async def _bring_slots(self) -> None:
        """Give the slots what was saved of a server like this one; it takes its own time and never fails a start."""
        self._has_slots_back = False
        if self._slots is None or self._signature is None:
            return
        async with probing(self.address, self._key) as probe:
            tokens = await self._slots.restore(probe, f"{self._signature} {self._facts.build}")
        if tokens:
            self._has_slots_back = True
            _log.info("model %s: %d tokens of its slots are restored", self.profile.id, tokens)

    async def _first_hook(self) -> None:
        try:
            await self._hooks.run(self.profile, self._event("before_start"))
        except HookError as exc:
            raise self._failure(str(exc)) from exc

    def _hook(self, event: str) -> None:
        """Run the hook of a turn, if there is one; nobody waits for it."""
        self._hooks.spawn(self.profile, self._event(event))

    def _event(self, event: str) -> Mapping[str, str]:
        address = self.address.uds or f"{self.address.host}:{self.address.port}"
        return facts(event, self.profile, pid=self._pid, address=address, reason=self._reason or "")

    def _told(self, what: str, remedy: str | None = None) -> str:
        tail = self._journal.tail if self._journal is not None else ()
        line = telling_line(tail)
        if line is None:
            return f"{what}; it printed nothing{f' ({remedy})' if remedy else ''}"
        where = self._journal.path.name if self._journal is not None else "its log"
        cause = f"{line} ({remedy})" if remedy else line
        return f"{what}: {cause}\nlast lines of {where}:\n" + "\n".join(tail)

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
