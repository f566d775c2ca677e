"""Measures again what waits for a server, once there is one to measure by."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from deck.contracts import Server
from deck.errors import DeckError
from deck.scheduler.values import Ticket

_log = logging.getLogger("deck.scheduler")
Quote = Callable[[Server], int]


class Quotes:
    """How the credit of each ticket that waits is measured."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Ticket, Quote]] = {}

    def keep(self, ticket: Ticket, quote: Quote) -> None:
        """Take a ticket that begins to wait."""
        self._known[ticket.id] = ticket, quote

    def drop(self, ticket: Ticket) -> None:
        """Forget a ticket that waits no more."""
        self._known.pop(ticket.id, None)

    def ask(self, server: Server) -> Iterator[tuple[Ticket, int]]:
        """Yield the credits of all that wait for a server; who cannot be measured is told why when granted."""
        name = server.profile.id
        for ticket, quote in [item for item in self._known.values() if item[0].profile == name]:
            try:
                yield ticket, quote(server)
            except DeckError:
                continue
            except Exception:
                _log.exception("a request for %s could not be measured", name)
