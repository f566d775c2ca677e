"""Names of tools: what llama-server calls them, and what the client called them.

llama-server knows one flat list of functions. A tool in a namespace gets a joined name there; the same pair always
gets the same name, so that calls of earlier turns keep theirs without any state.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from deck.api import digest9

# The tools of this namespace are top-level tools: what agents say of it.
TOP = "functions"
_LONGEST = 64
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class Named:
    """How the client knows a tool: its kind, its name, and the namespace that calls of it must bear."""

    kind: Literal["function", "custom"]
    name: str
    namespace: str | None = None


def upstream_name(name: str, namespace: str | None) -> str:
    """Return the name a tool has at llama-server: at most 64 of `A-Za-z0-9_-`.

    A joined name that does not fit is shortened and ends in a digest of the pair.
    """
    if namespace is None or namespace in ("", TOP):
        return name
    joined = f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"
    plain = _UNSAFE.sub("_", joined)
    if plain == joined and len(plain) <= _LONGEST:
        return plain
    digest = digest9(f"{namespace}\0{name}")
    return f"{plain[: _LONGEST - len(digest) - 1]}_{digest}"
