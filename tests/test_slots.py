"""What a slot has and what slots share: by the profile, and by what the server says."""

from __future__ import annotations

from pathlib import Path

import pytest

from deck.contracts import Facts
from deck.profile import Profile, load_profile
from deck.slots import declared_context, is_pooled, pool_of, shifts

LOCAL = 'model = "x.gguf"\n'
REMOTE = 'url = "http://127.0.0.1:1"\n'
SHARED = 'args = ["--kv-unified"]\n'


def profile(tmp_path: Path, server: str, more: str = "") -> Profile:
    path = tmp_path / "p.toml"
    path.write_text(f'id = "p"\n[server]\n{server}{more}', encoding="utf-8")
    return load_profile(path)


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (LOCAL, None),
        (LOCAL + "ctx_size = 0\n", None),
        (LOCAL + "ctx_size = 4096\n", 4096),
        (LOCAL + "ctx_size = 4096\nparallel = 2\n", 2048),
        (LOCAL + "ctx_size = 1000\nparallel = 3\n", 512),
        (LOCAL + "ctx_size = 4096\nparallel = 2\n" + SHARED, 4096),
        (LOCAL + 'ctx_size = 4096\nparallel = 2\nargs = ["-kvu", "--no-kv-unified"]\n', 2048),
        (REMOTE + "ctx_size = 4096\n", 4096),
    ],
)
def test_a_slot_is_as_large_as_llama_server_makes_it(tmp_path: Path, server: str, expected: int | None) -> None:
    assert declared_context(profile(tmp_path, server)) == expected


def test_what_the_launch_line_says_counts_above_what_is_declared_above_what_was_measured(tmp_path: Path) -> None:
    measured = '[capabilities.measured]\nat = 2026-11-01\nof = "x.gguf"\ncontext = 300\n'
    assert declared_context(profile(tmp_path, LOCAL, measured)) == 300
    declared = "[capabilities]\ncontext = 200\n" + measured
    assert declared_context(profile(tmp_path, LOCAL, declared)) == 200
    assert declared_context(profile(tmp_path, LOCAL + "ctx_size = 512\n", declared)) == 512
    of_another = measured.replace("x.gguf", "y.gguf")
    assert declared_context(profile(tmp_path, LOCAL, of_another)) is None


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("", False),
        ('"-kvu"', True),
        ('"--kv_unified"', True),
        ('"--kv-unified-per-slot", "512"', True),
        ('"--kv-unified", "-no-kvu"', False),
        ('"-no-kvu", "-kvu"', True),
        ('"--chat-template", "kv-unified"', False),
    ],
)
def test_the_last_word_on_sharing_counts(tmp_path: Path, args: str, expected: bool) -> None:
    assert is_pooled(profile(tmp_path, f"{LOCAL}args = [{args}]\n").server) is expected


@pytest.mark.parametrize(
    ("server", "slot", "slots", "expected"),
    [
        (LOCAL + "ctx_size = 4096\nparallel = 4\n", 1024, 4, None),
        (LOCAL + "ctx_size = 1000\nparallel = 3\n", 512, 3, None),
        (LOCAL + "ctx_size = 4096\nparallel = 4\n" + SHARED, 4096, 4, 4096),
        (LOCAL + "parallel = 4\n" + SHARED, 2048, 4, 2048),
        # The model was trained for less than the whole pool.
        (LOCAL + "ctx_size = 65536\nparallel = 4\n" + SHARED, 16384, 4, 65536),
        (LOCAL + "ctx_size = 300\nparallel = 4\n" + SHARED, 512, 4, 512),
        (LOCAL + "ctx_size = 4096\nparallel = 1\n" + SHARED, 4096, 1, None),
        # Nothing says that it shares, but its slots have more together than there is.
        (LOCAL + "ctx_size = 4096\nparallel = 4\n", 4096, 4, 4096),
        (REMOTE + "ctx_size = 4096\n", 4096, 4, 4096),
        (REMOTE + "ctx_size = 16384\n", 4096, 4, None),
        (REMOTE, 4096, 4, None),
        (REMOTE + "ctx_size = 4096\n", None, 4, None),
        (REMOTE + "ctx_size = 4096\n", 4096, None, None),
        (LOCAL + 'ctx_size = 4096\nparallel = 4\nargs = ["-kvu", "-md", "small.gguf"]\n', 4096, 4, 4096 - 256),
    ],
)
def test_a_pool_is_what_the_slots_share(
    tmp_path: Path, server: str, slot: int | None, slots: int | None, expected: int | None
) -> None:
    assert pool_of(profile(tmp_path, server), Facts(context=slot, slots=slots)) == expected


def test_a_context_that_shifts_is_never_full(tmp_path: Path) -> None:
    assert shifts(profile(tmp_path, LOCAL + 'args = ["--context-shift"]\n').server)
    assert not shifts(profile(tmp_path, LOCAL).server)
