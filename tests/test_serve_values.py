"""A profile's own values are checked at start: the client must not be blamed for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from deck.config import load_config
from deck.loading import StartError, load


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ('[force]\ntop_k = "x"', "force.top_k: expected an integer"),
        ("[defaults]\ntemperature = 9", "defaults.temperature: expected a number 0…2"),
        ("[limits]\nstop = 3", "limits.stop: only a number can be limited"),
        ("[limits]\nmax_tokens = 0", "limits.max_tokens: must be at least 1"),
    ],
)
def test_a_wrong_value_names_file_and_key(tmp_path: Path, section: str, message: str) -> None:
    path = tmp_path / "p.toml"
    path.write_text(f'id = "p"\n{section}\n[server]\nurl = "http://127.0.0.1:1"\n', encoding="utf-8")
    config = load_config(None, {}, {"profiles": [tmp_path], "state": tmp_path})
    with pytest.raises(StartError, match=f"p.toml: {message}"):
        load(config)
