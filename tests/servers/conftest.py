from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deck.config import Config
from deck.profile import Profile, ServerSettings

MakeProfile = Callable[..., Profile]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(state=tmp_path / "state")


@pytest.fixture
def binary(tmp_path: Path) -> str:
    """A llama-server without a model."""
    path = tmp_path / "fake-llama-server"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -m deck.testing.fake_llama "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def make_profile(tmp_path: Path, binary: str) -> MakeProfile:
    """Make a profile of the fake llama-server, with further `[server]` keys."""
    model = tmp_path / "any.gguf"
    model.write_bytes(b"GGUF and nothing else")

    def make(*args: str, **keys: Any) -> Profile:
        settings = {"model": model, "binary": binary, "args": args, "ctx_size": 8192, **keys}
        return Profile(id="any", server=ServerSettings(**settings), source=tmp_path / "any.toml")

    return make
