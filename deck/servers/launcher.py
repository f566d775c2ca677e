"""Makes the server of a profile: a child of ours, or one that runs elsewhere."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence

from deck.config import Config
from deck.contracts import Server
from deck.plugins import Plugins
from deck.profile import Profile
from deck.servers.claim import Claim
from deck.servers.gguf import facts_of_file
from deck.servers.hooks import HookRunner
from deck.servers.process import Process
from deck.servers.program import Program
from deck.servers.remote import Remote
from deck.servers.slots import remove_old

_log = logging.getLogger("deck.servers")


class LocalLauncher:
    """Deck's own launcher; implements `contracts.Launcher`.

    Args:
        config: where the servers' files lie.
        plugins: whose families may want flags of their own.
    """

    def __init__(self, config: Config, plugins: Plugins | None = None) -> None:
        self._config = config
        self._plugins = plugins
        self._claim: Claim | None = None
        self._hooks: dict[str, HookRunner] = {}

    def open(self) -> None:
        """Claim the state directory, remove what Decks that were killed left in it, and warn of others that use it."""
        try:
            self._claim = claim = Claim(self._config.state)
            removed = claim.sweep()
            remove_old(self._config.state, time.time())
        except OSError as exc:
            _log.warning(
                "the state directory %s cannot be claimed: %s; what dead Decks left there stays, and another Deck that"
                " uses it is not noticed; choose another with --state",
                self._config.state,
                exc.strerror,
            )
            return
        if removed:
            _log.info("removed %d files that a dead Deck left in %s", removed, claim.directory)
        if others := claim.others():
            pids = ", ".join(map(str, others))
            _log.warning(
                "another Deck (process %s) uses the state directory %s too: neither knows what memory the other takes;"
                " give each its own with --state",
                pids,
                self._config.state,
            )

    def close(self) -> None:
        """Give the state directory up."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def launch(self, profile: Profile) -> Server:
        """Return the server of the profile, not yet started."""
        if profile.server.is_remote:
            return Remote(profile)
        hooks = self._hooks.get(profile.id)
        if hooks is None:
            hooks = self._hooks[profile.id] = HookRunner(os.environ)
        if profile.server.command:
            return Program(profile, self._config, claim=self._claim, hooks=hooks)
        arguments = self._arguments(profile)
        return Process(profile, self._config, family_arguments=arguments, claim=self._claim, hooks=hooks)

    def faulty(self, profile: Profile) -> Server | None:
        """Return the failed server of a profile that cannot start, None = it may; runs nothing."""
        if profile.server.is_remote:
            return None
        kind = Program if profile.server.command else Process
        server = kind(profile, self._config)
        return server if server.is_faulty() else None

    def _arguments(self, profile: Profile) -> Sequence[str]:
        """Return what the model's family wants; the file is read only where a family wants anything."""
        if self._plugins is None or not any(family.arguments() for family in self._plugins.families.values()):
            return ()
        return self._plugins.family(profile, facts_of_file(profile.server.model))[0].arguments()
