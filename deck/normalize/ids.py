"""Tool-call ids: nine alphanumerics, which every template and client accepts, without any state.

Deck issues them with the wire's prefix (`call_`, `toolu_`); on replay the prefix comes off, and a foreign id is
mapped by a digest, so that a call and its result still find each other.
"""

from __future__ import annotations

import hashlib
import re

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_OURS = re.compile(r"(?:call_|toolu_|fc_)?([A-Za-z0-9]{9})")


def digest9(text: str) -> str:
    """Return nine alphanumerics that depend on `text` alone."""
    number = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big")
    letters = []
    for _ in range(9):
        number, digit = divmod(number, 62)
        letters.append(_ALPHABET[digit])
    return "".join(letters)


def tool_id_of_client(sent: str) -> str:
    """Return the canonical id for one that a client sent."""
    ours = _OURS.fullmatch(sent)
    return ours.group(1) if ours else digest9(sent)
