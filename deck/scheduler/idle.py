"""Finds out when a model has been idle for its `ttl`.

One lazy timer for each model: to move it with each exchange would cost more than the rest of a release.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from deck.contracts import Server, ServerState
from deck.profile import Profile

TICK = 0.001  # uvloop's clock counts whole milliseconds, so a timer may fire this early


class IdleTimers:
    """The time since each model was last used.

    Args:
        running: how many exchanges use a model's server.
        on_idle: told of a model that has been idle for its `ttl`, and the time of the loop.
    """

    def __init__(self, running: Callable[[str], int], on_idle: Callable[[str, float], None]) -> None:
        self._running = running
        self._on_idle = on_idle
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._since: dict[str, float] = {}
        self._is_closed = False

    def watch(self, profile: Profile, now: float) -> None:
        """Begin to count the time of a model, if it may be stopped and nobody uses it; `now` is the loop's time."""
        name, ttl = profile.id, profile.server.ttl
        if not ttl or profile.schedule.pinned or self._is_closed or self._running(name):
            return
        self._since[name] = now
        if name not in self._timers:
            self._timers[name] = asyncio.get_running_loop().call_later(ttl, self._look, name, ttl)

    def renew(self, server: Server) -> None:
        """Begin to count anew: the profile has changed."""
        timer = self._timers.pop(server.profile.id, None)
        if timer is not None:
            timer.cancel()
        if server.state is ServerState.READY:
            self.watch(server.profile, asyncio.get_running_loop().time())

    def close(self) -> None:
        """Count nothing any more."""
        self._is_closed = True
        for timer in self._timers.values():
            timer.cancel()

    def _look(self, name: str, ttl: float) -> None:
        del self._timers[name]
        if self._running(name):
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        left = self._since[name] + ttl - now
        if left > TICK:
            self._timers[name] = loop.call_later(left, self._look, name, ttl)
        else:
            self._on_idle(name, now)
