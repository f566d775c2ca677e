"""Calls that were answered to a client and whose results it is expected to bring: bounded in number and in time.

Each principal has records of its own: nobody can reclaim, nor displace, another's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from deck.canon.value import value

_MOST_CALLS = 512
_MOST_PRINCIPALS = 1024


@value(frozen=True, slots=True)
class Continuation:
    """What an answer with calls leaves behind.

    Args:
        conversation: that it belongs to.
        head: the digest of the system prompt and the tools.
        profile: the model that answered.
        since: when the conversation's first call was answered, in the caller's clock.
        until: when the client has taken too long.
    """

    conversation: bytes
    head: bytes
    profile: str
    since: float
    until: float


class Continuations:
    """The records of all principals.

    Args:
        grace: seconds that a client may take to bring results.
        longest: seconds for which one conversation may go on being reclaimed.
    """

    def __init__(self, *, grace: float, longest: float) -> None:
        self._grace = grace
        self._longest = longest
        self._of: OrderedDict[str, OrderedDict[tuple[str, str], Continuation]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(records) for records in self._of.values())

    def leave(self, principal: str, surface: str, calls: Iterable[str], record: Continuation) -> None:
        """Remember calls that were answered to a principal on a surface."""
        records = self._of.setdefault(principal, OrderedDict())
        self._of.move_to_end(principal)
        for call in calls:
            records[surface, call] = record
            records.move_to_end((surface, call))
        while len(records) > _MOST_CALLS:
            records.popitem(last=False)
        while len(self._of) > _MOST_PRINCIPALS:
            self._of.popitem(last=False)

    def made(self, conversation: bytes, head: bytes, profile: str, now: float, since: float | None) -> Continuation:
        """Return the record of an answer now; `since` is that of the record it went on from."""
        since = now if since is None else since
        return Continuation(conversation, head, profile, since, min(now + self._grace, since + self._longest))

    def reclaim(self, principal: str, surface: str, calls: Sequence[str], now: float) -> Continuation | None:
        """Return the record that all these calls belong to, None = there is none, or it is too late."""
        records = self._of.get(principal)
        if not records:
            return None
        found = records.get((surface, calls[0]))
        if found is None or any(records.get((surface, call)) is not found for call in calls):
            return None
        if now > found.until:
            for call in calls:
                records.pop((surface, call), None)
            return None
        return found
