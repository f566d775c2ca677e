"""The part that is open, and nothing else: it keeps the event stream within its grammar.

Knows no wire; who opens and closes parts, and why, is the decoder's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deck.canon.events import Event, PartDelta, PartEnd, PartKind, PartStart


class Parts:
    """Emit parts one at a time into `events`; what rides on a chunk waits in it for the next delta."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.kind: PartKind | None = None
        self.logprobs: tuple[Mapping[str, Any], ...] = ()
        self.timings: Mapping[str, Any] | None = None
        self._index = -1

    def open(self, kind: PartKind, tool_id: str = "", tool_name: str = "") -> None:
        """Begin a part, closing the one before."""
        self.close()
        self._index += 1
        self.kind = kind
        self.events.append(PartStart(self._index, kind, tool_id, tool_name))

    def delta(self, text: str) -> None:
        """Add to the open part."""
        self.events.append(PartDelta(self._index, text, self.logprobs, self.timings))
        self.logprobs, self.timings = (), None

    def close(self) -> None:
        """End the open part, if there is one."""
        if self.kind is not None:
            self.kind = None
            self.events.append(PartEnd(self._index))

    def finish(self) -> None:
        """End the open part after whatever still waits for a delta; an answer of nothing but that is a text."""
        if self.logprobs and self._index < 0:
            self.open("text")
        if self.kind is not None and self.logprobs:
            self.delta("")
        self.close()
