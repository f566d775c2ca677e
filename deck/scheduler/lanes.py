"""How an exchange is scheduled: one pure decision from its needs."""

from __future__ import annotations

from enum import Enum


class Lane(Enum):
    """Where an exchange runs."""

    SERIAL = "serial"
    CONTINUOUS = "continuous"
    STATIC = "static"


def route_decide() -> Lane:
    """Return the lane; every exchange runs in the server's continuous batch until the others are built."""
    return Lane.CONTINUOUS
