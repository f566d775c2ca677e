"""A Deck for the real command-line clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.clients.stage import Theatre, profile
from e2e.live import free_port, live_deck


@pytest.fixture(scope="session")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    port = free_port()
    with live_deck(tmp_path_factory.mktemp("clients"), profiles={"local": profile(port)}) as deck:
        yield Theatre(deck, port)
