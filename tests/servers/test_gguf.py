"""The head of a model file."""

from __future__ import annotations

import struct
from pathlib import Path

from deck.servers import gguf


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


HEAD = struct.pack("<4sIQQ", b"GGUF", 3, 0, 4) + b"".join(
    (
        _string("general.architecture") + struct.pack("<I", 8) + _string("llama"),
        _string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + _string("a") + _string("bc"),
        _string("tokenizer.ggml.scores") + struct.pack("<IIQ2f", 9, 6, 2, 0.5, 1.5),
        _string("llama.context_length") + struct.pack("<II", 4, 32768),
    )
)


def test_scalars_are_read_and_vocabularies_left_out(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(HEAD)
    assert gguf.fault(path) is None
    assert gguf.read_metadata(path) == {"general.architecture": "llama", "llama.context_length": 32768}


def test_a_cut_head_never_raises(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for length in range(len(HEAD)):
        path.write_bytes(HEAD[:length])
        gguf.read_metadata(path)


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    assert gguf.fault(path) == f"model file '{path}' does not exist"
    path.write_text("version https://git-lfs.github.com/spec/v1", encoding="utf-8")
    assert "git lfs pull" in (gguf.fault(path) or "")
    path.write_bytes(b"PK\x03\x04")
    assert "is not a GGUF file" in (gguf.fault(path) or "")
    assert "is a directory" in (gguf.fault(tmp_path) or "")
