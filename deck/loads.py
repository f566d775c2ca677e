"""How the load of a model is shown: to operators as it is, to clients without the host's paths."""

from __future__ import annotations

from typing import Any

from deck.canon.events import Progress
from deck.errors import hide_paths
from deck.scheduler.board import Board


def shown_load(board: Board, model: str) -> dict[str, Any] | None:
    """Return what a model that loads is doing, None = it does not load; seconds, and `done` from 0 to 1."""
    found = board.doing(model)
    if found is None:
        return None
    last = board.load_seconds(model)
    return {
        "line": found.line,
        "done": found.share,
        "seconds": round(found.seconds, 1),
        "last_time": round(last, 1) if last is not None else None,
    }


def load_progress(board: Board, model: str, *, is_operator: bool) -> Progress | None:
    """Return the event that tells a client who waits what its model does, None = it does not load."""
    shown = shown_load(board, model)
    if shown is None:
        return None
    return Progress("load", shown if is_operator else {**shown, "line": hide_paths(shown["line"])})
