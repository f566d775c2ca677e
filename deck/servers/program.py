"""A server that is no llama-server and that Deck runs as its child, by the `command` of its profile.

It lives as a llama-server of Deck's does, with its own process group, log and end. Only its command line, its key and
how it becomes ready differ: nothing is known of it but where it listens.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import replace

import httpx

from deck.contracts import Address, Facts
from deck.profile import Profile
from deck.servers.command import Binary, setting_faults
from deck.servers.listener import listens
from deck.servers.place import free_port, make_place, no_directory
from deck.servers.probe import probing
from deck.servers.process import Process
from deck.settings import expanded

_PORT, _SOCKET = "{port}", "{socket}"


class Program(Process):
    """One server of a profile with a `command`; implements `contracts.Server`."""

    _may_fork = True

    def _checked(self) -> Binary:
        faults = command_faults(self.profile, self._environ.get("PATH"))
        if faults:
            raise self._failure("; ".join(faults), is_permanent=True)
        return Binary(argv=(_place_of(self.profile, self._environ.get("PATH")) or "",))

    def _prepared(self) -> Binary:
        binary = self._checked()
        try:
            place = make_place(self.profile.id, self._config.state, self._claim)
        except OSError as exc:
            raise self._failure(no_directory(exc), is_permanent=True) from exc
        is_socket = any(_SOCKET in item for item in self.profile.server.command)
        self._place = place if is_socket else replace(place, address=Address(port=free_port()))
        return binary

    def _arguments(self, binary: Binary) -> list[str]:
        address = self.address
        return [
            item.replace(_PORT, str(address.port)).replace(_SOCKET, address.uds or "")
            for item in self.profile.server.command[1:]
        ]

    def _told(self, what: str, remedy: str | None = None) -> str:
        # What other programs print may be what clients sent; those who ask next are told nothing of it.
        return f"{what}; see `deck logs {self.profile.id}`" if self._has_served else super()._told(what, remedy)

    def _environment(self) -> dict[str, str]:
        env = super()._environment()
        env.pop("PYTHONPATH", None)  # Deck's own place is no business of other programs
        if "PYTHONPATH" in self._environ:
            env["PYTHONPATH"] = self._environ["PYTHONPATH"]
        # It is no llama-server: it gets a key only where its profile says in which variable it looks for one.
        key, name = env.pop("LLAMA_API_KEY", None), self.profile.server.api_key_env
        if name is None or key is None:
            self._key = None
            return env
        return {**env, name: key}

    async def _until_ready(self) -> None:
        limit = self.profile.server.load_timeout
        try:
            async with asyncio.timeout(limit):
                await self._poll(self._is_up)
        except TimeoutError:
            stranger = self._stranger()
            message = f"was not ready after {limit:g} s{stranger}; see [server] load_timeout in {self.profile.source}"
            raise self._failure(self._told(message)) from None
        await self._raise_if_ended()
        self._facts = Facts()

    async def _is_up(self) -> bool:
        # Whoever else listens there is not even asked: the key would go with the question.
        return self._listens() and await is_ready(self.address, self.key, self.profile.server.health)

    def _listens(self) -> bool:
        """Tell whether it lives and may be what listens at its place; where the system does not tell, it may."""
        if self._pid is None:
            return False
        return self.address.uds is not None or listens(self.address.port, self._pid) is not False

    def _stranger(self) -> str:
        is_taken = self.address.uds is None and self._pid is not None and not self._listens()
        return f", and does not itself listen on port {self.address.port}" if is_taken else ""


async def is_ready(address: Address, key: str | None, health: str | None) -> bool:
    """Tell whether a server answers 200 to its health path, or listens if it has none."""
    if health is None:
        try:
            if address.uds is not None:
                _, writer = await asyncio.open_unix_connection(address.uds)
            else:
                _, writer = await asyncio.open_connection(address.host, address.port)
        except OSError:
            return False
        writer.close()
        return True
    async with probing(address, key) as probe:
        try:
            return await probe.status_of(health) == httpx.codes.OK
        except httpx.HTTPError:
            return False


def command_faults(profile: Profile, path: str | None = None) -> list[str]:
    """Return what would make the start of a profile's `command` fail, as far as it is plain without running it."""
    found = setting_faults(profile)
    if _place_of(profile, path) is None:
        name = profile.server.command[0]
        found.insert(
            0, f"the program {name!r} is not there or not executable: set [server] command in {profile.source}"
        )
    return found


def _place_of(profile: Profile, path: str | None) -> str | None:
    """Return the program's place: of one with a slash under the profile's directory, else on PATH."""
    name = profile.server.command[0]
    if "/" not in name:
        found = shutil.which(name, path=path)
        return os.path.abspath(found) if found is not None else None
    try:
        place = profile.source.absolute().parent / expanded(name)
    except ValueError:
        return None
    return str(place) if place.is_file() and os.access(place, os.X_OK) else None
