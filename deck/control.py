"""What operators do to running servers: list, load, unload, read logs, reload profiles. For admin tokens only."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

from deck import query
from deck.catalog import no_model
from deck.contracts import Replica, ServerState
from deck.errors import DeckError, ErrorKind, invalid
from deck.http import Receive, Scope, normal_path
from deck.loads import shown_load
from deck.pipeline import Pipeline
from deck.profile import Profile
from deck.reload import Change

Answer = tuple[int, Any]
Handler = Callable[[Scope, Receive], Awaitable[Answer]]


def shown_replica(replica: Replica) -> dict[str, Any]:
    """Return one of several servers of a model as JSON."""
    return {**dataclasses.asdict(replica), "state": replica.state.value}


_SERVERS = "/deck/servers"
_OVER = (ServerState.STOPPED, ServerState.FAILED)
_LINES, _MOST_LINES = 100, 10_000
_MOST_BYTES = 1 << 20
# How long an answer waits for an idle server to stop.
_STOPPING = 10.0


class Control:
    """Serves the routes that change what runs; whoever routes has checked that the token is an admin's.

    Args:
        pipeline: holds the catalog and the board.
        reload: reads the profiles anew, or tells what would change.
        profiles_fault: tells why the profiles as they are on disk are not in force, None = they are.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        reload: Callable[..., Change],
        profiles_fault: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._pipeline = pipeline
        self._reload = reload
        self.profiles_fault = profiles_fault

    def find(self, path: str) -> dict[str, Handler] | None:
        """Return the methods of a normal path, None = not a route of this module."""
        if path == _SERVERS:
            return {"GET": self._list}
        if path == "/deck/reload":
            return {"POST": self._read_anew}
        if not path.startswith(f"{_SERVERS}/"):
            return None
        match path.rpartition("/")[2]:
            case "load":
                return {"POST": self._load}
            case "unload":
                return {"POST": self._unload}
            case "log":
                return {"GET": self._log}
            case _:
                return None

    def paths(self) -> list[tuple[str, str]]:
        """Return every route as (method, path)."""
        one = f"{_SERVERS}/x"
        return [
            ("GET", _SERVERS),
            ("POST", f"{one}/load"),
            ("POST", f"{one}/unload"),
            ("GET", f"{one}/log"),
            ("POST", "/deck/reload"),
        ]

    async def _list(self, scope: Scope, receive: Receive) -> Answer:
        query.read(scope)
        shown = [self._shown(profile) for profile in (*self._pipeline.catalog.profiles, *self._leaving())]
        return 200, {"servers": shown, "profiles_fault": self.profiles_fault()}

    def _leaving(self) -> list[Profile]:
        """Return the profiles that were removed and whose servers are still there, until nobody uses them."""
        board, catalog = self._pipeline.board, self._pipeline.catalog
        known = {profile.id for profile in catalog.profiles}
        up = [name for name, state in board.states().items() if name not in known and state not in _OVER]
        return [server.profile for name in up if (server := board.server(name)) is not None]

    def _shown(self, profile: Profile) -> dict[str, Any]:
        board = self._pipeline.board
        match = self._pipeline.catalog.resolve(profile.id)
        server = board.server(profile.id)
        waiting = [item for item in board.waiting() if item.ticket.profile == profile.id]
        held_off = board.quarantined().get(profile.id)
        return {
            "id": profile.id,
            "kind": profile.kind,
            "state": (server.state if server is not None else ServerState.STOPPED).value,
            "loading": shown_load(board, profile.id),
            "running": board.running(profile.id),
            "waiting": len(waiting),
            "slots": board.slots(profile.id),
            "memory": server.memory() if server is not None else None,
            "expected_memory": board.memory(profile.id),
            "pinned": profile.schedule.pinned,
            "removed": match is None or match.profile.id != profile.id,
            "reason": server.reason if server is not None else None,
            "failures": held_off[0] if held_off else 0,
            "retry_in": round(held_off[1], 1) if held_off else None,
            "replicas": [shown_replica(item) for item in board.replicas().get(profile.id, ())],
        }

    def _named(self, scope: Scope, *, may_leave: bool = True) -> Profile:
        """Return the profile that a path names; `may_leave` = one that was removed and still has a server counts."""
        path = normal_path(scope["path"])
        name = unquote(path.removeprefix(f"{_SERVERS}/").rpartition("/")[0])
        match = self._pipeline.catalog.resolve(name)
        profile = match.profile if match is not None else None
        if may_leave and (profile is None or profile.id != name):  # what has this very name goes before an alias
            profile = next((item for item in self._leaving() if item.id == name), profile)
        if profile is None:
            raise no_model(name, (item.id for item in self._pipeline.catalog.profiles))
        return profile

    async def _load(self, scope: Scope, receive: Receive) -> Answer:
        query.read(scope)
        await query.refuse_body(scope, receive)
        profile, board = self._named(scope, may_leave=False), self._pipeline.board
        async with board.admit(profile, again=True):
            return 200, self._shown(profile)

    async def _unload(self, scope: Scope, receive: Receive) -> Answer:
        asked = query.read(scope, ("now",))
        await query.refuse_body(scope, receive, ("now",))
        is_now = query.switch(asked, "now")
        profile, board = self._named(scope), self._pipeline.board
        server = board.server(profile.id)  # whoever waits may have another started when this one has stopped
        if is_now:
            await board.unload_now(profile.id)
        else:
            board.unload(profile.id)
            await board.wait_stopped(profile.id, _STOPPING)
        is_over = server is None or server.state in _OVER
        fate = "stopped" if is_over else "stopping" if board.is_stopping(profile.id) else "pending"
        return 200, {**self._shown(profile), "unload": fate}

    async def _log(self, scope: Scope, receive: Receive) -> Answer:
        asked = query.read(scope, ("after", "lines"))
        profile = self._named(scope)
        server = self._pipeline.board.server(profile.id)
        path = server.log if server is not None else None
        if path is None or not path.is_file():
            raise DeckError(ErrorKind.NOT_FOUND, f"the model {profile.id!r} has no log: it was not started here yet")
        after, lines = query.number(asked, "after"), query.number(asked, "lines")
        if lines is not None and lines > _MOST_LINES:
            raise invalid(f"lines: expected at most {_MOST_LINES}, got {lines}", "lines")
        size = path.stat().st_size
        with path.open("rb") as file:
            # A log that was rotated meanwhile is shorter than what was read of it.
            begin = (
                after if after is not None and after <= size else 0 if after is not None else max(0, size - _MOST_BYTES)
            )
            file.seek(begin)
            content = file.read(_MOST_BYTES)
        text = content.decode("utf-8", "replace")
        shown = text.splitlines()
        if after is None:
            kept = _LINES if lines is None else lines
            shown = shown[max(0, len(shown) - kept) :]
        return 200, {"id": profile.id, "lines": shown, "after": begin + len(content)}

    async def _read_anew(self, scope: Scope, receive: Receive) -> Answer:
        asked = query.read(scope, ("dry_run",))
        await query.refuse_body(scope, receive, ("dry_run",))
        is_dry = query.switch(asked, "dry_run")
        return 200, {"dry_run": is_dry, **self._reload(dry_run=is_dry).shown()}
