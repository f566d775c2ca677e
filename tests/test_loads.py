"""What is told of a load, and to whom."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from app_support import app

from deck.contracts import Doing, ServerState
from deck.loads import load_progress, shown_load
from deck.profile import Profile
from deck.scheduler.board import Board
from deck.scheduler.policy import Policy


class Loading:
    """A server that loads."""

    pid = None
    doing: Doing | None = Doing(line="loading model '/home/me/models/x.gguf'", share=0.5, seconds=3.21)
    state = ServerState.LOADING

    has_slots_back = False

    def condemn(self, reason: str) -> None:
        raise AssertionError(reason)


@pytest.fixture
def board() -> Board:
    found = Board(Policy(queue_limit=1, queue_wait=1), lambda profile: None, grace=1)  # type: ignore[arg-type,return-value]  # launches nothing
    found._servers["a"] = Loading()  # type: ignore[assignment]  # as far as it is looked at
    found._load_seconds["a"] = 9.876
    return found


def test_what_is_shown(board: Board) -> None:
    line = "loading model '/home/me/models/x.gguf'"
    assert shown_load(board, "a") == {"line": line, "done": 0.5, "seconds": 3.2, "last_time": 9.9}
    assert shown_load(board, "b") is None


@pytest.mark.parametrize("is_operator", [True, False])
def test_a_client_is_not_told_the_host_s_paths(board: Board, is_operator: bool) -> None:
    event = load_progress(board, "a", is_operator=is_operator)
    assert event is not None
    assert event.stage == "load"
    assert event.detail is not None
    assert ("/home/me" in event.detail["line"]) is is_operator
    assert "x.gguf" in event.detail["line"]
    assert load_progress(board, "b", is_operator=is_operator) is None


def test_a_server_that_loads_is_in_the_list_and_the_stats(tmp_path: Path) -> None:
    with app(tmp_path) as running:
        running.deck.board._servers["m1"] = Loading()  # type: ignore[assignment]  # as far as it is looked at
        try:
            stats = running.send("GET", "/v1/stats").json()
            assert stats["loading"]["m1"]["done"] == 0.5
            assert stats["loading"]["m1"]["last_time"] is None
        finally:
            running.deck.board._servers.clear()


def test_a_row_of_ps_says_what_a_load_does() -> None:
    from deck.cli_servers import _row

    load = {"line": "loading model x", "done": 0.42, "seconds": 12.3, "last_time": 40.0}
    row = {
        "id": "a",
        "state": "loading",
        "running": 0,
        "waiting": 1,
        "slots": None,
        "memory": None,
        "expected_memory": None,
        "pinned": False,
        "failures": 0,
        "retry_in": None,
        "loading": load,
    }
    assert _row(row)[-1] == "12 s (last time 40 s), 42%: loading model x"
    row["loading"] = {**load, "last_time": None, "done": None, "line": ""}
    assert _row(row)[-1] == "12 s"


def test_a_started_profile_is_not_loading() -> None:
    async def main() -> None:
        board = Board(Policy(queue_limit=1, queue_wait=1), lambda profile: None, grace=1)  # type: ignore[arg-type,return-value]  # launches nothing
        profile = Profile.model_validate({"id": "a", "server": {"model": "/a.gguf"}})
        assert board.doing(profile.id) is None

    asyncio.run(main())
