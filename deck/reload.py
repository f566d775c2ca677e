"""What a new set of profiles changes: which models come, go, must be launched anew, or only answer differently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from deck.catalog import Catalog
from deck.profile import Profile

# Keys of `[server]` that do not reach the process or the address: a running server goes on under new ones.
_NOT_LAUNCHED = frozenset(
    {
        *("ttl", "memory", "load_timeout", "load_stall", "stall_timeout", "hang_timeout", "max_rss", "save_limit"),
        *("log_lines", "load_to_count", "health_interval", "health", "model_name", "fields"),
    }
)
# Of servers elsewhere some may come and go while the others go on.
_ELSEWHERE = frozenset({"url", "urls", "parallel"})
_MOST_TOLD = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a reload does, as ids of profiles.

    Args:
        added: new models.
        removed: models that are gone; their servers stop when nobody uses them.
        relaunched: models whose server is started another way; it stops when nobody uses it, and starts when wanted.
        changed: models whose server, running or not, stays as it is.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    relaunched: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True when nothing differs."""
        return not (self.added or self.removed or self.relaunched or self.changed)

    def told(self) -> str:
        """Return it in words for the log."""
        groups = (
            (self.added, "added"),
            (self.removed, "removed"),
            (self.relaunched, "relaunched"),
            (self.changed, "changed, server kept"),
        )
        return "; ".join(f"{_listed(names)} {what}" for names, what in groups if names) or "nothing has changed"

    def shown(self) -> dict[str, list[str]]:
        """Return it as JSON."""
        return {
            "added": list(self.added),
            "removed": list(self.removed),
            "relaunched": list(self.relaunched),
            "changed": list(self.changed),
        }


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_TOLD
    return ", ".join(names[:_MOST_TOLD]) + (f" and {more} more" if more > 0 else "")


def compare(old: Catalog, new: Catalog, flags_of: Callable[[Profile], Sequence[str]] = lambda profile: ()) -> Change:
    """Return what changes between two sets of profiles; `flags_of` tells what a model's family starts a server with."""
    before = {profile.id: profile for profile in old.profiles}
    after = {profile.id: profile for profile in new.profiles}
    both = [name for name in before if name in after]
    relaunched = [name for name in both if _is_relaunched(before[name], after[name], flags_of)]
    return Change(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        relaunched=tuple(relaunched),
        changed=tuple(
            name for name in both if name not in relaunched and before[name].model_dump() != after[name].model_dump()
        ),
    )


def _is_relaunched(old: Profile, new: Profile, flags_of: Callable[[Profile], Sequence[str]]) -> bool:
    if launch_of(old) != launch_of(new):
        return True
    is_started = not (new.server.is_remote or new.server.command)
    return is_started and old.family != new.family and tuple(flags_of(old)) != tuple(flags_of(new))


def launch_of(profile: Profile) -> dict[str, Any]:
    """Return all of a profile that its server is started by; the file's directory is that of the process."""
    left_out = _NOT_LAUNCHED | _ELSEWHERE if profile.server.is_remote else _NOT_LAUNCHED
    server = profile.server.model_dump(exclude=set(left_out))
    return {**server, "directory": str(profile.source.absolute().parent), "kind": profile.kind}
