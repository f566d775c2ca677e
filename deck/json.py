"""Interim JSON module."""

from __future__ import annotations

from typing import Any

import orjson


def dumps(value: Any) -> bytes:
    """Encode."""
    return orjson.dumps(value)


def loads(data: bytes | str) -> Any:
    """Decode."""
    return orjson.loads(data)
