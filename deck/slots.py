"""How the tokens of a llama-server's context are shared among its slots: what a profile says, and what the server says.

Every slot has a part of its own, or all of them take what they need from one pool.
"""

from __future__ import annotations

from collections.abc import Collection

from deck.contracts import Facts
from deck.profile import Profile, ServerSettings

_SHARED = frozenset({"-kvu", "--kv-unified"})
_APART = frozenset({"-no-kvu", "--no-kv-unified"})
_PER_SLOT = "--kv-unified-per-slot"
_SHIFTS = frozenset({"--context-shift"})
_DRAFTS = ("--spec", "--draft", "--model-draft", "-md", "-hfd", "--hf-repo-draft")
# llama-server rounds the context of a slot up to a multiple of this.
_GRAIN = 256
# Most tokens beyond its answer that a slot may hold while it tries what a draft model guessed.
_DRAFT = 64


def is_pooled(server: ServerSettings) -> bool:
    """Tell whether the profile's arguments make the slots share one pool; the last one counts."""
    found = False
    for flag in _flags(server.args):
        if flag in _SHARED or flag == _PER_SLOT:
            found = True
        elif flag in _APART:
            found = False
    return found


def shifts(server: ServerSettings) -> bool:
    """Tell whether a full context loses its beginning, so that an answer may be longer than what is left."""
    return not _SHIFTS.isdisjoint(_flags(server.args))


def declared_context(profile: Profile) -> int | None:
    """Return the most tokens that a slot can have by what the profile says, None = it says nothing.

    The word of `[server] ctx_size` counts above those of `[capabilities]`, a declared one above a measured one.
    """
    size, slots = profile.server.ctx_size, profile.server.parallel
    if size:
        return _rounded(size if is_pooled(profile.server) or not slots else -(-size // slots))
    measured = profile.measured
    return profile.capabilities.context or (measured.context if measured is not None else None)


def pool_of(profile: Profile, facts: Facts) -> int | None:
    """Return the tokens that the slots of a running server share, None = each has its own, or nobody knows.

    A server whose slots could together hold more than `ctx_size` shares it, whatever its arguments.
    """
    server, slot, slots = profile.server, facts.context, facts.slots
    if slot is None or slots == 1:
        return None
    size = server.ctx_size or 0
    is_overbooked = bool(size and slots) and slot > _rounded(-(-size // (slots or 1)))
    if not is_pooled(server) and not is_overbooked:
        return None
    has_draft = any(flag.startswith(_DRAFTS) for flag in _flags(server.args))
    return max(size, slot) - (_DRAFT * (slots or 1) if has_draft else 0)


def _flags(args: Collection[str]) -> list[str]:
    """Return the arguments that may be flags, as llama-server reads them: `--kv_unified` is `--kv-unified`."""
    found = [item.partition("=")[0] for item in args if item.startswith("-")]
    return [flag.replace("_", "-") if flag.startswith("--") else flag for flag in found]


def _rounded(size: int) -> int:
    return -(-size // _GRAIN) * _GRAIN
