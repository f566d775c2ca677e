"""Makes the server of a profile: a child of ours, or one that runs elsewhere."""

from __future__ import annotations

from deck.config import Config
from deck.contracts import Server
from deck.profile import Profile
from deck.servers.process import Process
from deck.servers.remote import Remote


class LocalLauncher:
    """Deck's own launcher; implements `contracts.Launcher`."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def launch(self, profile: Profile) -> Server:
        """Return the server of the profile, not yet started."""
        if profile.server.url is not None:
            return Remote(profile)
        return Process(profile, self._config)
