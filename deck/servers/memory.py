"""How much memory a llama-server will take, estimated from its model's file, its context and its arguments.

An estimate errs upward: what does not fit is worse than what waits. It is replaced by what was measured once the
server has run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deck.profile import Profile
from deck.servers import gguf

_PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
# Bytes of one value in the cache, by llama.cpp's name of its type; quantised ones carry a scale for each 32 values.
_CACHE_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
# Compute buffers, and the process itself.
_SHARE = 0.05
_FIXED = 192 << 20


def estimate_memory(profile: Profile) -> int | None:
    """Return bytes that the profile's local server is likely to take, None = nothing is known of its model."""
    settings = profile.server
    if settings.memory is not None:
        return settings.memory
    if settings.model is None:
        return None
    weights = _file_bytes(settings.model)
    if weights is None:
        return None
    for extra in _values(settings.args, ("-mm", "--mmproj", "-md", "--model-draft", "--lora")):
        weights += _file_bytes(profile.source.absolute().parent / extra) or 0  # where the server runs
    cache = _cache_bytes(gguf.read_metadata(settings.model), settings.ctx_size, settings.args)
    return int((weights + cache) * (1 + _SHARE)) + _FIXED


def resident_bytes(pid: int) -> int | None:
    """Return what a process holds in memory, None where the system does not say (Linux does)."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _file_bytes(path: Path) -> int | None:
    """Return the size of a model, over all the parts that it is split into."""
    found = _PART.search(path.name)
    parts = [path]
    if found is not None:
        stem = path.name[: found.start()]
        parts = [path.with_name(f"{stem}-{number:05d}-of-{found[1]}.gguf") for number in range(1, int(found[1]) + 1)]
    try:
        return sum(part.stat().st_size for part in parts)
    except OSError:
        return None


def _cache_bytes(metadata: Any, ctx_size: int | None, args: Sequence[str]) -> float:
    """Return bytes of the key and value cache of a full context, 0 where the file does not say what it takes."""
    architecture = metadata.get("general.architecture")

    def number(name: str) -> int:
        value = metadata.get(f"{architecture}.{name}")
        return value if isinstance(value, int) and value > 0 else 0

    layers, heads = number("block_count"), number("attention.head_count")
    if not layers or not heads:
        return 0.0
    width = number("embedding_length") // heads
    keys, values = number("attention.key_length") or width, number("attention.value_length") or width
    context = ctx_size or number("context_length")
    # Where the heads differ by layer the file has a list, which is not read: all heads is the upper bound.
    groups = number("attention.head_count_kv") or heads
    key_bytes = _type_bytes(args, ("-ctk", "--cache-type-k"))
    value_bytes = _type_bytes(args, ("-ctv", "--cache-type-v"))
    return context * layers * groups * (keys * key_bytes + values * value_bytes)


def _type_bytes(args: Sequence[str], names: tuple[str, ...]) -> float:
    said = _values(args, names)
    return _CACHE_BYTES.get(said[-1].lower(), 4.0) if said else 2.0


def _values(args: Sequence[str], names: tuple[str, ...]) -> list[str]:
    """Return the values that arguments of these names have, written apart or with `=`."""
    found = []
    for place, item in enumerate(args):
        name, equals, value = item.partition("=")
        if (name.replace("_", "-") if name.startswith("--") else name) not in names:
            continue
        if equals:
            found.append(value)
        elif place + 1 < len(args):
            found.append(args[place + 1])
    return found
