"""Tool-call ids: nine alphanumerics, which every template and client accepts, without any state.

Deck issues them with the wire's prefix (`call_`, `toolu_`); on replay the prefix comes off, and a foreign id is
mapped by a digest, so that a call and its result still find each other.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
# Two base-62 digits at a time, the lower one first.
_SHORT = 64
_PAIRS = tuple(_ALPHABET[pair % 62] + _ALPHABET[pair // 62] for pair in range(62 * 62))
_OURS = re.compile(r"(?:call_|toolu_|fc_)?([A-Za-z0-9]{9})")


def digest9(text: str) -> str:
    """Return nine alphanumerics that depend on `text` alone."""
    number = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big")
    rest, one = divmod(number, 3844)
    rest, two = divmod(rest, 3844)
    rest, three = divmod(rest, 3844)
    rest, four = divmod(rest, 3844)
    return _PAIRS[one] + _PAIRS[two] + _PAIRS[three] + _PAIRS[four] + _ALPHABET[rest % 62]


def tool_id_of_client(sent: str) -> str:
    """Return the canonical id for one that a client sent."""
    return _remembered(sent) if len(sent) <= _SHORT else _canonical(sent)


def _canonical(sent: str) -> str:
    ours = _OURS.fullmatch(sent)
    return ours.group(1) if ours else digest9(sent)


# An agent sends the whole history again with every turn, so nearly every id was seen before.
_remembered = lru_cache(maxsize=4096)(_canonical)
