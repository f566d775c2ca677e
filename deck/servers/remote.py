"""A llama-server that runs elsewhere: Deck asks whether it is there, and never starts or stops it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx

from deck.contracts import Address, Facts, ServerState
from deck.errors import DeckError, ErrorKind
from deck.profile import Profile
from deck.servers.probe import Health, facts_of, probing
from deck.servers.program import is_ready

_PORTS = {"http": 80, "https": 443}
_RETRY_AFTER = 5.0


class Remote:
    """The server at a profile's url; implements `contracts.Server`.

    Args:
        profile: one with `[server] url`.
        environ: where the key is looked up, at each start.
    """

    def __init__(self, profile: Profile, environ: Mapping[str, str] = os.environ) -> None:
        self.profile = profile
        self._environ = environ
        self._state = ServerState.STOPPED
        self._facts = Facts()
        self._address = address_of(profile.server.url or "")
        self._key: str | None = None
        self._reason: str | None = None

    @property
    def state(self) -> ServerState:
        """Where it is in its life, as far as Deck uses it."""
        return self._state

    @property
    def facts(self) -> Facts:
        """What it said of itself; empty before it is ready."""
        return self._facts

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self._address

    @property
    def key(self) -> str | None:
        """The key it wants, None = none."""
        return self._key

    @property
    def reason(self) -> str | None:
        """Why it could not be used."""
        return self._reason

    @property
    def log(self) -> None:
        """None: what it prints stays where it runs."""

    def memory(self) -> int | None:
        """Return None: it takes no memory here."""
        return None

    async def start(self) -> None:
        """Check that it serves, and ask what it is.

        Raises:
            DeckError: `UNAVAILABLE` with what it answered.
        """
        self._state, self._reason = ServerState.STARTING, None
        try:
            self._key = self._read_key()
            async with asyncio.timeout(self.profile.server.load_timeout):
                self._facts = await self._ask()
        except TimeoutError:
            raise self._failed(f"did not answer in {self.profile.server.load_timeout:g} s") from None
        except httpx.HTTPError as exc:
            raise self._failed(str(exc) or type(exc).__name__) from exc
        except asyncio.CancelledError:
            self._state = ServerState.STOPPED
            raise
        self._state = ServerState.READY

    async def stop(self, *, grace: float) -> None:
        """Use it no longer."""
        self._state = ServerState.STOPPED

    async def wait_ended(self) -> None:
        """Never return: how a remote server ends is not known here."""
        await asyncio.get_running_loop().create_future()

    def _read_key(self) -> str | None:
        fault = key_fault(self.profile, self._environ)
        if fault is not None:
            raise self._failed(fault, is_permanent=True)
        name = self.profile.server.api_key_env
        return self._environ[name] if name is not None else None

    async def _ask(self) -> Facts:
        if self.profile.is_foreign:
            if not await is_ready(self._address, self._key, self.profile.server.health):
                raise self._failed("is not ready: nobody listens, or [server] health does not answer 200")
            return Facts()
        async with probing(self._address, self._key) as probe:
            match await probe.health():
                case Health.SILENT:
                    raise self._failed(f"cannot be reached: {probe.said}")
                case Health.LOADING:
                    raise self._failed("is loading its model")
                case Health.READY | Health.STRANGE:
                    props = await probe.props()
            if props is None:
                return Facts()
            return facts_of(props, await probe.meta())

    def _failed(self, what: str, *, is_permanent: bool = False) -> DeckError:
        self._state = ServerState.FAILED
        self._reason = f"the server of {self.profile.id!r} at {self.profile.server.url} {what}"
        retry_after = None if is_permanent else _RETRY_AFTER
        should_retry = False if is_permanent else None
        return DeckError(ErrorKind.UNAVAILABLE, self._reason, retry_after=retry_after, should_retry=should_retry)


def key_fault(profile: Profile, environ: Mapping[str, str]) -> str | None:
    """Return what is wrong with the key of a remote profile, None = nothing."""
    name = profile.server.api_key_env
    if name is None or environ.get(name):
        return None
    return f"needs a key, but the environment variable {name} is not set: see [server] api_key_env in {profile.source}"


def address_of(url: str) -> Address:
    """Return where a url's server listens."""
    parts = urlsplit(url)
    port = parts.port or _PORTS[parts.scheme]
    host = parts.hostname or ""
    return Address(host=host, port=port, tls=parts.scheme == "https", prefix=parts.path.rstrip("/"))
