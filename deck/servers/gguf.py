"""The head of a GGUF file: what a model says of itself, without loading it.

Knows the format's versions 2 and 3. Does not know what the keys mean.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from deck.contracts import Facts

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_KEYS = 10_000
_LONGEST = 1 << 20


def fault(path: Path) -> str | None:
    """Return why the file cannot be a model, None = it may be one."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except FileNotFoundError:
        return f"model file {str(path)!r} does not exist"
    except IsADirectoryError:
        return f"model {str(path)!r} is a directory; name the .gguf file in it, of several parts the first"
    except OSError as exc:
        return f"model file {str(path)!r} cannot be read: {exc.strerror}"
    if magic == b"vers":
        return f"model file {str(path)!r} is a Git LFS pointer, not the model: run `git lfs pull`"
    return None if magic == _MAGIC else f"model file {str(path)!r} is not a GGUF file: it starts with {magic!r}"


def read_metadata(path: Path) -> Mapping[str, Any]:
    """Return the scalar and short string values of the head; arrays (vocabularies) are left out, {} = unreadable."""
    found: dict[str, Any] = {}
    try:
        with path.open("rb") as file:
            magic, version, _, count = struct.unpack("<4sIQQ", file.read(24))
            if magic != _MAGIC or version not in _VERSIONS or count > _MOST_KEYS:
                return {}
            for _ in range(count):
                key = _string(file)
                value = _value(file, _number(file, "I"))
                if value is not None:
                    found[key] = value
    except (OSError, ValueError, struct.error):
        return {}
    return found


def facts_of_file(path: Path | None) -> Facts:
    """Return what the file says of its model, as the running server would; empty = there is none or it says nothing."""
    metadata = read_metadata(path) if path is not None else {}
    template = metadata.get("tokenizer.chat_template")
    return Facts(metadata=metadata, template=template if isinstance(template, str) else None)


def _number(file: BinaryIO, code: str) -> Any:
    return struct.unpack("<" + code, file.read(struct.calcsize(code)))[0]


def _string(file: BinaryIO) -> str:
    length = _number(file, "Q")
    if length > _LONGEST:
        raise ValueError("a string of this length is no metadata")
    return file.read(length).decode(errors="replace")


def _value(file: BinaryIO, kind: int) -> Any:
    if kind in _SCALARS:
        return _number(file, _SCALARS[kind])
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        raise ValueError("unknown kind of value")
    of, count = _number(file, "I"), _number(file, "Q")
    if of in _SCALARS:
        file.seek(count * struct.calcsize(_SCALARS[of]), 1)
    else:
        for _ in range(count):
            _skip(file, of)
    return None


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        file.seek(_number(file, "Q"), 1)
    else:
        _value(file, kind)
