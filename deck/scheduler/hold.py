"""A slot of a server while it is waited for and held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deck.contracts import Server
from deck.profile import Profile

if TYPE_CHECKING:
    from deck.scheduler.board import Board


class Admission:
    """A slot while it is waited for and held."""

    __slots__ = ("_board", "_credit", "_profile", "_server", "_ticket", "_token")

    def __init__(self, board: Board, profile: Profile, token: str, credit: int) -> None:
        self._board = board
        self._profile = profile
        self._token = token
        self._credit = credit

    async def __aenter__(self) -> Server:
        self._ticket, self._server = await self._board.acquire(self._profile, self._token, self._credit)
        return self._server

    async def __aexit__(self, *failure: object) -> None:
        self._board.release(self._ticket, self._server)
