"""A circuit breaker: whether a server that failed may be used again yet. Pure; knows neither servers nor clocks."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class Circuit(Enum):
    """What a breaker lets through: all, nothing, or one try."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """Opens after failures in a row, for a time that grows with each opening; then one try decides.

    A server that answers again is on probation until an answer has ended well: one more failure opens it, for longer.
    One that was closed for twice as long as it was open before is no worse than any other.

    Args:
        jitter: a number from 0 to 1, so that many who wait for one server do not all come back at once.
        limit: failures in a row that open it.
        first: seconds of the first opening; each further one is twice as long.
        longest: seconds of the longest.
    """

    def __init__(
        self, jitter: Callable[[], float], *, limit: int = 3, first: float = 1.0, longest: float = 30.0
    ) -> None:
        self._jitter = jitter
        self._limit = limit
        self._first = first
        self._longest = longest
        self._failures = 0
        self._openings = 0
        self._until: float | None = None
        self._calm_at = 0.0
        self._is_trying = False

    @property
    def failures(self) -> int:
        """Failures in a row."""
        return self._failures

    def retime(self, now: float, *, first: float, longest: float) -> None:
        """Take other times for what opens from now on; what is open ends no later than they allow."""
        self._first, self._longest = first, longest
        if self._until is not None:
            self._until = min(self._until, now + longest)

    def state(self, now: float) -> Circuit:
        """Return what it lets through; half-open while a try is under way, too."""
        if self._until is None:
            return Circuit.CLOSED
        return Circuit.OPEN if now < self._until else Circuit.HALF_OPEN

    def allows(self, now: float) -> bool:
        """Tell whether an exchange may go now."""
        if self._until is None:
            return True
        return now >= self._until and not self._is_trying

    def retry_in(self, now: float) -> float:
        """Return the seconds until it may be tried, 0 = now."""
        return 0.0 if self._until is None else max(0.0, self._until - now)

    def begin(self, now: float) -> bool:
        """Note an exchange that goes; return whether it is the one try of a half-open breaker."""
        if self.state(now) is not Circuit.HALF_OPEN:
            return False
        self._is_trying = True
        return True

    def abandon(self) -> None:
        """Note that the try came to no verdict: its client left."""
        self._is_trying = False

    def answered(self) -> None:
        """Note that the server answers again, though no answer has ended yet."""
        if self._until is not None:
            self._until, self._is_trying, self._failures = None, False, self._limit - 1

    def succeeded(self) -> None:
        """Note an answer that ended well: all failures are forgotten."""
        self._until, self._is_trying = None, False
        self._failures = self._openings = 0

    def failed(self, now: float) -> None:
        """Note a failure; while it is open, those of exchanges that began before change nothing."""
        self._failures += 1
        was_open = self._until is not None and now < self._until
        if not was_open and (self._failures >= self._limit or self._until is not None):
            self._open(now)

    def trip(self, now: float) -> None:
        """Open at once: the server is known to be gone."""
        self._failures += 1
        if self._until is None or now >= self._until:
            self._open(now)

    def _open(self, now: float) -> None:
        if now >= self._calm_at:
            self._openings = 0
        # Beyond the longest time doubling means nothing, and a power of two has an end.
        time = min(self._longest, self._first * 2.0 ** min(self._openings, 32))
        self._openings += 1
        self._is_trying = False
        self._until = now + time * (0.75 + 0.25 * self._jitter())
        self._calm_at = self._until + 2 * time
