"""The grammar of the event stream as a checker; it judges order only, not contents."""

from __future__ import annotations

from typing import assert_never

from deck.canon.events import Event, Failed, Finish, PartDelta, PartEnd, PartStart, Progress, Start


class GrammarError(Exception):
    """An event stood where it may not stand: a bug in whoever emitted it."""


class GrammarChecker:
    """Accept a stream of events, raising at the first that breaks the grammar."""

    def __init__(self) -> None:
        self._state = "new"
        self._open: int | None = None
        self._next = 0

    @property
    def is_complete(self) -> bool:
        """True after `Finish` or `Failed`."""
        return self._state == "ended"

    def feed(self, event: Event) -> None:
        """Take the next event.

        Raises:
            GrammarError: it may not stand here.
        """
        if self._state == "ended":
            raise GrammarError(f"{event!r} after the end")
        match event:
            case Progress():
                return
            case Failed():
                self._state = "ended"
            case Start():
                self._need(self._state == "new", event, "twice")
                self._state = "started"
            case PartStart(index=index):
                self._need(self._state == "started" and self._open is None, event, "while a part is open")
                self._need(index == self._next, event, f"expected index {self._next}")
                self._open, self._next = index, index + 1
            case PartDelta(index=index):
                self._need(index == self._open, event, f"open part is {self._open}")
            case PartEnd(index=index):
                self._need(index == self._open, event, f"open part is {self._open}")
                self._open = None
            case Finish():
                self._need(self._state == "started" and self._open is None, event, "while a part is open")
                self._state = "ended"
            case _:
                assert_never(event)

    @staticmethod
    def _need(holds: bool, event: Event, why: str) -> None:
        if not holds:
            raise GrammarError(f"{event!r}: {why}")
