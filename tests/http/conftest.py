from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from app_support import App, app

from deck.testing.fake_llama import say


@pytest.fixture
def deck(tmp_path: Path) -> Iterator[App]:
    with app(tmp_path, [say("Hello", "!")]) as running:
        yield running
