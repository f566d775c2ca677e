"""What a server is estimated to take, from files of known size."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from deck.profile import Profile
from deck.servers.memory import estimate_memory

MIB = 1 << 20
FIXED = 192 * MIB
LLAMA = {
    "llama.block_count": 10,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2,
    "llama.embedding_length": 512,
    "llama.context_length": 4096,
}


def gguf(path: Path, numbers: dict[str, int], size: int = 10 * MIB) -> Path:
    """Write a head that says these numbers, in a sparse file of `size` bytes."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    head = struct.pack("<4sIQQ", b"GGUF", 3, 0, len(numbers) + 1)
    head += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    for key, value in numbers.items():
        head += text(key) + struct.pack("<II", 4, value)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)
    return path


def profile(model: Path, **server: Any) -> Profile:
    return Profile.model_validate({"id": "m", "server": {"model": str(model), **server}})


def estimated(profile: Profile) -> int:
    found = estimate_memory(profile)
    assert found is not None
    return found


def test_weights_and_the_cache_of_a_full_context_count(tmp_path: Path) -> None:
    # Context x layers x heads of the cache x (key + value width) x two bytes each.
    cache = 8192 * 10 * 2 * (64 + 64) * 2
    assert estimated(profile(gguf(tmp_path / "m.gguf", LLAMA), ctx_size=8192)) == int((10 * MIB + cache) * 1.05) + FIXED


def test_without_a_context_the_model_s_own_counts(tmp_path: Path) -> None:
    model = gguf(tmp_path / "m.gguf", LLAMA)
    assert estimated(profile(model)) == estimated(profile(model, ctx_size=4096))


@pytest.mark.parametrize(
    ("args", "share"),
    [
        (["--cache-type-k", "q8_0", "--cache-type-v", "q8_0"], 34 / 64),
        (["-ctk=q4_0", "-ctv=q4_0"], 18 / 64),
        (["-ctk", "unknown", "-ctv", "unknown"], 2.0),
    ],
)
def test_the_type_of_the_cache_counts(tmp_path: Path, args: list[str], share: float) -> None:
    model = gguf(tmp_path / "m.gguf", LLAMA, size=MIB)
    plain = estimated(profile(model, ctx_size=65536)) - FIXED - 1.05 * MIB
    other = estimated(profile(model, ctx_size=65536, args=args)) - FIXED - 1.05 * MIB
    assert other / plain == pytest.approx(share, abs=1e-6)


def test_a_model_of_several_parts_counts_whole(tmp_path: Path) -> None:
    first = gguf(tmp_path / "m-00001-of-00003.gguf", {}, size=MIB)
    for number in (2, 3):
        (tmp_path / f"m-0000{number}-of-00003.gguf").write_bytes(bytes(MIB))
    assert estimated(profile(first)) == int(3 * MIB * 1.05) + FIXED


def test_a_projector_and_a_draft_model_count(tmp_path: Path) -> None:
    model = gguf(tmp_path / "m.gguf", {}, size=MIB)
    other = gguf(tmp_path / "p.gguf", {}, size=2 * MIB)
    args = ["--mmproj", str(other), f"--model-draft={other}"]
    assert estimated(profile(model, args=args)) == int(5 * MIB * 1.05) + FIXED


@pytest.mark.parametrize("args", [["--mmproj", "p.gguf"], ["-mm", "p.gguf"], ["--model_draft", "p.gguf"]])
def test_files_are_looked_for_where_the_server_runs(tmp_path: Path, args: list[str]) -> None:
    model = gguf(tmp_path / "m.gguf", {}, size=MIB)
    gguf(tmp_path / "p.gguf", {}, size=2 * MIB)
    found = profile(model, args=args).model_copy(update={"source": tmp_path / "m.toml"})
    assert estimated(found) == int(3 * MIB * 1.05) + FIXED


def test_what_the_operator_declares_stands(tmp_path: Path) -> None:
    assert estimate_memory(profile(tmp_path / "none.gguf", memory="20GiB")) == 20 << 30


def test_nothing_is_known_of_a_missing_file_or_of_another_machine_s_model(tmp_path: Path) -> None:
    assert estimate_memory(profile(tmp_path / "none.gguf")) is None
    assert estimate_memory(Profile.model_validate({"id": "m", "server": {"hf": "org/repo:Q4"}})) is None
