"""What a llama-server that loads is doing: what it printed in, the last telling words and a share out.

Knows llama-server's words. Does not know a process or a clock.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from deck.servers.journal import plain

_SHOWN = 160
_ESCAPE = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
# One dot for each percent of the tensors, on a line of its own.
_DOTS = re.compile(r"\.{1,100}")
_PERCENT = re.compile(r"(?<![\d.])(100|\d{1,2})(?:\.\d+)? ?%")
# What llama-server prints at each step of a load; what stands between them is detail.
_TELLING = re.compile(
    r"download|loading model|load_tensors|offload|warming up|fitting params|fit_params|KV (?:self|buffer)|kv_cache"
    r"|compute buffer|initializing|mmproj|clip|draft model|model loaded|chat template|restor",
    re.IGNORECASE,
)


def doing(lines: Sequence[str], begun: str = "") -> tuple[str, float | None]:
    """Return the last telling thing and how much is done from 0 to 1, None = that is not said.

    Args:
        lines: the last whole lines.
        begun: of the line that has not ended; a bar of progress is written over and over on one such line.
    """
    begun = _ESCAPE.sub("", begun).rstrip()
    now = begun.rpartition("\r")[2].strip() or begun.rstrip("\r").rpartition("\r")[2].strip()
    line = _last_telling(lines)
    if _DOTS.fullmatch(now):
        return line, len(now) / 100
    found = _PERCENT.search(now)
    if found is not None:
        return _short(now), int(found[1]) / 100
    found = _PERCENT.search(line) if "download" in line.lower() else None
    return line, int(found[1]) / 100 if found is not None else None


def _last_telling(lines: Sequence[str]) -> str:
    for line in reversed(lines):
        if _TELLING.search(line):
            return _short(line)
    return _short(lines[-1]) if lines else ""


def _short(line: str) -> str:
    return plain(_ESCAPE.sub("", line))[:_SHOWN]
