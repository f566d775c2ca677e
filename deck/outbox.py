"""What is to be written in one turn of the loop is written together, at its end.

Each write enters the kernel, and afterwards the processor's caches hold little of Python: exchanges that take turns
with writes run a fifth slower than exchanges that run one behind the other. Nobody waits for it who is alone: who is
the last of those that something came for writes at once. Knows transports; does not know what is written.
"""

from __future__ import annotations

import asyncio
import logging
from weakref import WeakKeyDictionary

_log = logging.getLogger("deck.outbox")
# So many writes are held at most; a piece of a stream, which is soon made, waits for fewer; what is large for none.
_MOST = 24
PIECES = 8
_LARGE = 64 * 1024


class Outbox:
    """The writes of one loop that wait for the end of its turn; they keep their order."""

    __slots__ = ("_came", "_done", "_held", "_is_due", "_mark")

    def __init__(self) -> None:
        self._held: list[tuple[asyncio.Transport, bytes]] = []
        self._came = 0  # how many were expected so far
        self._done = 0  # how many of these have written, or are waited for no more
        self._mark = 0  # how many are waited for no more when the turn ends
        self._is_due = False

    def expect(self) -> None:
        """Note that something came which leads to a write, as a rule, before this turn of the loop is over."""
        self._came += 1

    def write(self, transport: asyncio.Transport, data: bytes, most: int = _MOST) -> None:
        """Write at once if nobody else is expected to, else when they have, or at the end of the turn.

        Args:
            transport: to write to; who closes it must flush first.
            data: what to write.
            most: all is written as soon as so many writes are held.
        """
        self._done += 1
        held = self._held
        if self._done >= self._came:
            self._done = self._came
            if held:
                self.flush()
            transport.write(data)
            return
        held.append((transport, data))
        if not self._is_due:
            self._is_due, self._mark = True, self._came
            asyncio.get_running_loop().call_soon(self._end_turn)
        if len(held) >= most or len(data) > _LARGE:
            self.flush()

    def flush(self) -> None:
        """Write what is held."""
        if self._held:
            held, self._held = self._held, []
            for transport, data in held:
                try:
                    transport.write(data)  # also where it is closing: what was written before may still be delivered
                except Exception:  # the others' answers must not be lost with it
                    _log.exception("a connection could not be written to")
                    transport.abort()

    def _end_turn(self) -> None:
        """Write what is held for those who were expected to write and did not; nobody waits for them any more."""
        self._is_due = False
        self._done = max(self._done, self._mark)
        self.flush()


_outboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, Outbox] = WeakKeyDictionary()


def outbox_of(loop: asyncio.AbstractEventLoop) -> Outbox:
    """Return the outbox of a loop: who is to be written to together shares it."""
    found = _outboxes.get(loop)
    if found is None:
        found = _outboxes[loop] = Outbox()
    return found
