"""Filters one behind the other, and one that hides what a family adds of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from deck.canon.events import Event, Finish


class Feeds(Protocol):
    """Events in, events out."""

    def feed(self, event: Event) -> Iterable[Event]:
        """Return what becomes of `event`."""
        ...


def chain(filters: Sequence[Feeds | None]) -> Feeds | None:
    """Return one filter that is all of them in their order, None = there is none."""
    found = [item for item in filters if item is not None]
    if not found:
        return None
    return found[0] if len(found) == 1 else _Chain(found)


class _Chain:
    def __init__(self, filters: Sequence[Feeds]) -> None:
        self._filters = filters

    def feed(self, event: Event) -> Iterator[Event]:
        events = [event]
        for item in self._filters:
            events = [made for given in events for made in item.feed(given)]
        return iter(events)


class OwnStops:
    """Keeps from the client that a stop string ended the answer which it never sent.

    Args:
        stops: the family's own.
    """

    def __init__(self, stops: Collection[str]) -> None:
        self._stops = stops

    def feed(self, event: Event) -> Iterator[Event]:
        """Return the event; an end by one of the family's stop strings names none."""
        if isinstance(event, Finish) and event.stop_sequence in self._stops:
            event = replace(event, stop_sequence=None)
        yield event
