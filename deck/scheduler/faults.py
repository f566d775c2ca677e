"""Failures of a model in a row: how long the next try is held off, and what those are told who want it meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from deck.errors import DeckError, ErrorKind

# Failures in a row after which the next try waits, and the longest such wait.
_FREE_TRIES = 2
_MOST_BACKOFF = 300.0
# Who would wait no longer for the next try waits; anyone else is told the reason at once.
_PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class Fault:
    """The last of `count` failures in a row; the next try waits until then."""

    count: int
    until: float
    error: DeckError

    @property
    def patience(self) -> float:
        """How long one may have to wait for the next try and not be told the reason at once instead."""
        return 0.0 if self.error.should_retry is False else _PATIENCE

    def again(self, now: float) -> DeckError:
        """Return the error for who is not waited with."""
        error, left = self.error, self.until - now
        message = f"{error.message} (failed {self.count} times in a row; tried again in {max(1, round(left))} s)"
        # Who is told not to try again is not told when.
        retry_after = None if error.should_retry is False else max(1.0, left)
        return DeckError(ErrorKind.UNAVAILABLE, message, retry_after=retry_after, should_retry=error.should_retry)


class Faults:
    """The failures of all models, by profile."""

    def __init__(self) -> None:
        self._known: dict[str, Fault] = {}

    def get(self, profile: str) -> Fault | None:
        """Return what failed of a model, None = nothing that counts."""
        return self._known.get(profile)

    def add(self, profile: str, error: DeckError, now: float) -> None:
        """Note one more failure in a row."""
        known = self._known.get(profile)
        count = known.count + 1 if known else 1
        backoff = 0.0 if count <= _FREE_TRIES else min(_MOST_BACKOFF, 2.0 ** (count - _FREE_TRIES))
        self._known[profile] = Fault(count, now + backoff, error)

    def forgive(self, profile: str) -> None:
        """Forget the failures of a model."""
        self._known.pop(profile, None)

    def held_off(self, now: float) -> dict[str, tuple[int, float]]:
        """Return the models that are not tried now: failures in a row, and seconds until the next try."""
        return {name: (item.count, item.until - now) for name, item in self._known.items() if now < item.until}

    def ends(self, profiles: Iterable[str]) -> Iterator[float]:
        """Yield when those of these models may be tried again that have failed."""
        return (self._known[name].until for name in profiles if name in self._known)
