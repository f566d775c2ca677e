"""The families that Deck brings, and what their models were seen to write."""

from __future__ import annotations

from pathlib import Path

from deck.config import Config
from deck.plugins import Plugins
from deck.testing.family import read_leaks

LEAKS = Path(__file__).parent / "families" / "leaks"
FAMILIES = Plugins(Config()).families
CASES = [(file.parent.name, file.stem, leak) for file in sorted(LEAKS.glob("*/*.toml")) for leak in read_leaks(file)]
