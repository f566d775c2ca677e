"""One Deck with the shipped tiny model on the embedded engine, for all live tests of this directory."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from e2e.live import LiveDeck, live_deck


@pytest.fixture(scope="session")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDeck]:
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("needs the extra 'engine'")
    with live_deck(tmp_path_factory.mktemp("deck")) as running:
        yield running
