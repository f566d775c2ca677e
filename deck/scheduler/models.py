"""What the policy must know of each profile: its settings, an estimate of its memory, and what was measured."""

from __future__ import annotations

from collections.abc import Callable

from deck.contracts import Replicated, Server
from deck.profile import Profile
from deck.scheduler.values import Model


class Models:
    """The profiles that were ever wanted, as the policy sees them.

    Args:
        memory_of: what a profile's server will take in bytes before it has ever run, None = unknown.
    """

    def __init__(self, memory_of: Callable[[Profile], int | None]) -> None:
        self._memory_of = memory_of
        self._known: dict[str, tuple[Profile, Model]] = {}
        self._measured: dict[str, int] = {}
        self._removed: set[str] = set()
        self._outdated: dict[str, Server] = {}

    def of(self, profile: Profile) -> Model:
        """Return what the policy must know of a profile: what was measured of its memory counts above an estimate.

        What is known stays until `renew`: whoever still holds an older profile must not bring it back.
        """
        known = self._known.get(profile.id)
        if known is not None and profile.id not in self._removed:
            return known[1]
        self._removed.discard(profile.id)
        schedule = profile.schedule
        memory, measured = self._memory_of(profile), self._measured.get(profile.id, 0)
        model = Model(
            name=profile.id,
            is_local=not profile.server.is_remote,
            memory=memory if memory is None or profile.server.memory is not None else max(memory, measured),
            group=schedule.group,
            is_pinned=schedule.pinned,
            is_warm=schedule.keep_warm,
            restarts=schedule.restart == "always",
            priority=schedule.priority,
            concurrency=schedule.concurrency,
            min_resident=schedule.min_resident,
        )
        self._known[profile.id] = (profile, model)
        return model

    def profile(self, name: str) -> Profile:
        """Return the profile of a model that was wanted, as it was then or has become since."""
        return self._known[name][0]

    def memory(self, name: str) -> int | None:
        """Return the bytes that the policy reckons with for a model that was ever wanted, None = unknown."""
        known = self._known.get(name)
        return known[1].memory if known is not None else None

    def renew(self, profile: Profile) -> bool:
        """Take a changed profile; return whether it was ever wanted."""
        if self._known.pop(profile.id, None) is None:
            return False
        self.of(profile)
        return True

    def remove(self, name: str) -> None:
        """Note that a model was removed: the next profile of this name is another's."""
        self._removed.add(name)
        self._measured.pop(name, None)

    def forget(self, name: str, server: Server | None) -> None:
        """Forget what was measured: the model is launched another way from now on, and this server is of before."""
        self._measured.pop(name, None)
        if server is not None:
            self._outdated[name] = server

    def measure(self, server: Server) -> None:
        """Learn what a server really takes, for the next time that room is made for it."""
        found, name = server.memory(), server.profile.id
        if self._outdated.get(name) is server:
            return
        if found is not None and found > self._measured.get(name, 0):
            self._measured[name] = found
            profile, _ = self._known.pop(name)
            self.of(profile)


def slots_of(server: Server) -> int:
    """Return how many exchanges a server takes at a time, 0 = no bound."""
    if isinstance(server, Replicated):
        return server.slots
    if server.profile.server.is_remote:
        return server.profile.server.parallel or 0
    return server.facts.slots or server.profile.server.parallel or 1
