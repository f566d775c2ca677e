"""Writes parts anew while a filter takes some apart: it opens a part when there is something in it, and counts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deck.canon.events import Event, PartDelta, PartEnd, PartKind, PartStart


class PartWriter:
    """Collects the events of the parts that a filter lets out; their indices count from 0 without a gap."""

    __slots__ = ("_count", "_open", "events")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._count = 0
        self._open: PartKind | None = None

    def text(
        self,
        kind: PartKind,
        text: str,
        logprobs: tuple[Mapping[str, Any], ...] = (),
        timings: Mapping[str, Any] | None = None,
    ) -> None:
        """Add to the open part of `kind`, or to a new one; empty text opens nothing."""
        if not text:
            return
        if self._open != kind:
            self.close()
            self.events.append(PartStart(self._count, kind))
            self._open = kind
        self.events.append(PartDelta(self._count, text, logprobs, timings))

    def rest(self, kind: PartKind, logprobs: tuple[Mapping[str, Any], ...], *, is_last: bool = False) -> bool:
        """Add the logprobs of tokens that show no text to the open part, at the end of an answer to one of their own.

        Returns:
            False = none of that kind is open, and they wait for the next part.
        """
        if self._open != kind:
            if not is_last:
                return False
            self.close()
            self.events.append(PartStart(self._count, kind))
            self._open = kind
        self.events.append(PartDelta(self._count, "", logprobs))
        return True

    def pass_on(self, kind: PartKind, event: PartDelta) -> bool:
        """Add a piece of text as it is where it is of the open part, else to one of its kind; tell which it was."""
        if self._open == kind and self._count == event.index:
            self.events.append(event)
            return True
        self.text(kind, event.text, event.logprobs, event.timings)
        return False

    def pass_whole(self, start: PartStart) -> bool:
        """Begin a part as it is where it has the next index and none is open; tell whether that was so.

        Its pieces then pass by this writer, and `close` ends it.
        """
        if self._open is not None or self._count != start.index:
            return False
        self._open = start.kind
        return True

    def call(self, tool_id: str, name: str, arguments: str) -> None:
        """Add a whole call."""
        self.open_call(tool_id, name)
        if arguments:
            self.more_of_call(arguments)
        self.close()

    def open_call(self, tool_id: str, name: str) -> None:
        """Open a call."""
        self.close()
        self.events.append(PartStart(self._count, "tool_call", tool_id, name))
        self._open = "tool_call"

    def more_of_call(self, arguments: str, timings: Mapping[str, Any] | None = None) -> None:
        """Add to the arguments of the open call."""
        self.events.append(PartDelta(self._count, arguments, (), timings))

    def close(self) -> None:
        """Close the open part, if there is one."""
        if self._open is not None:
            self.events.append(PartEnd(self._count))
            self._count += 1
            self._open = None

    def taken(self) -> list[Event]:
        """Return the events since the last time."""
        events, self.events = self.events, []
        return events
