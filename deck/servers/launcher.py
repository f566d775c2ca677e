"""Makes the server of a profile: a child of ours, or one that runs elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from deck.config import Config
from deck.contracts import Server
from deck.plugins import Plugins
from deck.profile import Profile
from deck.servers.gguf import facts_of_file
from deck.servers.process import Process
from deck.servers.program import Program
from deck.servers.remote import Remote


class LocalLauncher:
    """Deck's own launcher; implements `contracts.Launcher`.

    Args:
        config: where the servers' files lie.
        plugins: whose families may want flags of their own.
    """

    def __init__(self, config: Config, plugins: Plugins | None = None) -> None:
        self._config = config
        self._plugins = plugins

    def launch(self, profile: Profile) -> Server:
        """Return the server of the profile, not yet started."""
        if profile.server.url is not None:
            return Remote(profile)
        if profile.server.command:
            return Program(profile, self._config)
        return Process(profile, self._config, family_arguments=self._arguments(profile))

    def _arguments(self, profile: Profile) -> Sequence[str]:
        """Return what the model's family wants; the file is read only where a family wants anything."""
        if self._plugins is None or not any(family.arguments() for family in self._plugins.families.values()):
            return ()
        return self._plugins.family(profile, facts_of_file(profile.server.model))[0].arguments()
