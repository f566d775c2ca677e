"""One Deck for all tests of faults that need no other, in front of a port where each test puts its fake."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.live import free_port, live_deck
from faults.support import Rig, configured, remote


@pytest.fixture(scope="session")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    tmp, port = tmp_path_factory.mktemp("faults"), free_port()
    profiles = {
        "remote": remote("remote", port),
        "single": remote("single", port, parallel=1),
        "hasty": remote("hasty", port, stall_timeout="300ms"),
    }
    with live_deck(tmp, *configured(tmp), profiles=profiles) as deck:
        yield Rig(deck, port)
