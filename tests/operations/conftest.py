from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from app_support import App, app
from operations_support import KINDS, ROUTES, Kept


@pytest.fixture
def deck(tmp_path: Path) -> Iterator[App]:
    with app(tmp_path, profiles=KINDS, routes=ROUTES) as running:
        yield running


@pytest.fixture
def kept(deck: App) -> Kept:
    found = Kept()
    deck.deck.endpoint._observers = [*deck.deck.endpoint._observers, found]
    return found
