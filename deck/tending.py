"""Looks after servers that are up: finds one that hangs by what it does, has grown too large, or has lost its socket.

A server hangs that owes answers and does nothing for them: nothing has come of any of them, and it either answers no
`/health` or takes no processor time and its loop, if it can be asked, is still. Time alone proves nothing: a slow
prompt takes processor time and is left alone. What the system does not tell counts as life.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from deck.contracts import Server, ServerState, Supervised
from deck.scheduler.board import Board
from deck.servers.vitals import Vitals, vitals

# How often a server is looked at: in this part of the time that it may hang, and no less often than this.
_PART = 6
_LONGEST, _SHORTEST = 5.0, 0.02
# What a server gets to say that it is well, on a machine that is busy: at least, and at most.
_FAIR, _FAIREST = 2.0, 10.0
# Between two looks that are further apart Deck itself stood still, and whatever it looks at may have as well.
_GAP = 30.0
# What one does that only answers whether it is well stays below, in seconds and as a part of the time.
_IDLE_SECONDS, _IDLE_SHARE = 0.03, 0.0005

Owed = Callable[[Server], Mapping[str, int]]
Ask = Callable[[Server, str, float], Awaitable[int | None]]
_OK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was seen of a server at one time.

    Args:
        now: in seconds.
        owed: the exchanges that it owes something, with how much has come of each.
        seen: what its process has used, None = unknown.
        is_heard: it answers `/health`.
    """

    now: float
    owed: Mapping[str, int]
    seen: Vitals | None
    is_heard: bool


class HangPulse:
    """For how long a server has done nothing for those whom it owes something."""

    def __init__(self) -> None:
        self._owed: Mapping[str, int] = {}
        self._idle: tuple[float, float] | None = None
        self._deaf: float | None = None
        self._looked = 0.0

    def take(self, look: Look) -> tuple[float, float]:
        """Take a look; return for how many seconds it has been idle, and deaf to `/health`, while it owed answers."""
        has_moved = any(count != self._owed.get(name, 0) for name, count in look.owed.items())
        self._owed = look.owed
        is_gap, self._looked = look.now - self._looked > _GAP, look.now
        cpu = look.seen.cpu if look.seen is not None else 0.0
        if not look.owed or has_moved or is_gap:
            self._idle, self._deaf = (look.now, cpu), look.now
            return 0.0, 0.0
        if self._idle is None or look.seen is None or self._works(look.now, cpu, *self._idle):
            self._idle = (look.now, cpu)
        if self._deaf is None or look.is_heard:
            self._deaf = look.now
        return look.now - self._idle[0], look.now - self._deaf

    def spare(self) -> None:
        """Begin anew: it was seen to be alive in another way."""
        self._idle = None

    @staticmethod
    def _works(now: float, cpu: float, since: float, before: float) -> bool:
        return cpu - before > _IDLE_SECONDS + (now - since) * _IDLE_SHARE


def has_lost_socket(server: Server) -> bool:
    """Tell whether the file is gone through which a server is reached: nobody new gets to it any more."""
    uds = server.address.uds
    return uds is not None and not os.path.exists(uds)


class Tender:
    """Tends every server of a board that is up, each with one task that ends with it.

    Args:
        board: is told of what hangs or has grown.
        owed: tells, by name, what a server owes and how much has come of it.
        ask: asks a server's route and returns its status, None = nothing within so many seconds.
    """

    def __init__(self, board: Board, owed: Owed, ask: Ask) -> None:
        self._board = board
        self._owed = owed
        self._ask = ask
        self._tasks: set[asyncio.Task[None]] = set()

    def tend(self, server: Server) -> None:
        """Look after a server that is ready, for as long as it is."""
        if isinstance(server, Supervised):
            task = asyncio.get_running_loop().create_task(self._tend(server, server))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Look after nothing any more."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _tend(self, server: Server, process: Supervised) -> None:
        pulse = HangPulse()
        loop = asyncio.get_running_loop()
        ended = asyncio.ensure_future(server.wait_ended())
        try:
            while server.state is ServerState.READY:
                limit = server.profile.server.hang_timeout
                await asyncio.wait({ended}, timeout=max(_SHORTEST, min(_LONGEST, limit / _PART or _LONGEST)))
                self._board.weigh(server)
                if has_lost_socket(server):
                    self._board.replace(server, f"cannot be reached: its socket {server.address.uds} is gone")
                if not limit or server.state is not ServerState.READY:
                    continue
                if not self._owed(server):
                    pulse.take(Look(now=loop.time(), owed={}, seen=None, is_heard=True))
                    continue
                reason = await self._look(server, process, pulse, limit)
                if reason is not None and self._owed(server):
                    self._board.hung(server, f"{reason}; see [server] hang_timeout in {server.profile.source}")
        finally:
            ended.cancel()

    async def _look(self, server: Server, process: Supervised, pulse: HangPulse, limit: float) -> str | None:
        """Return why a server that owes something hangs, None = it does not, or not yet."""
        fair = min(max(limit / _PART, _FAIR), _FAIREST)
        is_heard = await self._ask(server, "/health", fair) is not None
        seen = vitals(process.pid) if process.pid is not None else None
        now = asyncio.get_running_loop().time()
        idle, deaf = pulse.take(Look(now=now, owed=self._owed(server), seen=seen, is_heard=is_heard))
        if deaf >= limit:
            return f"it hung: for {deaf:.0f} s nothing came of an answer, and it does not say that it is well"
        if idle < limit:
            return None
        # Its loop answers this between two batches; a server that has no such route says nothing by it.
        if await self._ask(server, "/metrics", fair) == _OK:
            pulse.spare()
            return None
        return f"it hung: for {idle:.0f} s nothing came of an answer, and it took no processor time"
