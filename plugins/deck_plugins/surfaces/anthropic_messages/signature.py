"""Signatures of thoughts: opaque to clients, and where a thought is not shown, the only place where it can travel.

A client that asks not to be shown thoughts sends their blocks back empty, signature included. Templates want the
thoughts of a loop of tools back, and so does the prompt cache; Deck keeps nothing, so the signature carries them.
"""

from __future__ import annotations

import base64
import binascii
import zlib

from deck.api import ReplyHead, digest9

_SEALED = "deck:"
# A thought larger than this is not Deck's: 4 MiB of text.
_LIMIT = 4 << 20


def signature(head: ReplyHead, index: int) -> str:
    """Return the signature of the shown block `index`: the same for the same answer, of no meaning to Deck."""
    return f"deck{digest9(f'{head.seed}:{index}')}{head.seed}"


def seal(thought: str) -> str:
    """Return the signature of a block that shows nothing: the thought itself, compressed."""
    return _SEALED + base64.b64encode(zlib.compress(thought.encode("utf-8", "surrogatepass"))).decode()


def unseal(text: str) -> str | None:
    """Return the thought that a signature carries, None = none."""
    if not text.startswith(_SEALED):
        return None
    try:
        data = base64.b64decode(text[len(_SEALED) :], validate=True)
        inflating = zlib.decompressobj()
        thought = inflating.decompress(data, _LIMIT)
        return thought.decode("utf-8", "surrogatepass") if inflating.eof else None
    except (binascii.Error, zlib.error, ValueError):
        return None
