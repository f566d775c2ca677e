"""Structured logs: one line per exchange, key=value, without bodies and without secrets."""

from __future__ import annotations

import logging
import re
from typing import TextIO

from deck.contracts import ExchangeRecord

_SECRET = re.compile(r"(deck-[A-Za-z0-9_-]{8,}|(?i:bearer)\s+\S+|(?i:api[-_]?key)[=:]\s*\S+)")
_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_log = logging.getLogger("deck.exchange")


class _Redacting(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return _SECRET.sub("[redacted]", super().format(record))


def configure(level: str, stream: TextIO) -> None:
    """Send every logger, uvicorn's among them, to `stream`, with anything like a secret taken out."""
    output = logging.StreamHandler(stream)
    output.setFormatter(_Redacting(_FORMAT))
    root = logging.getLogger()
    root.handlers[:] = [output]
    root.setLevel(level.upper())
    for name in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)


class ExchangeLog:
    """Logs each exchange at INFO."""

    def observe(self, record: ExchangeRecord) -> None:
        """Write the line."""
        if not _log.isEnabledFor(logging.INFO):
            return
        first = "-" if record.first_token is None else f"{record.first_token:.3f}"
        _log.info(
            "id=%s surface=%s model=%s principal=%s outcome=%s status=%d stream=%s duration=%.3f queued=%.3f "
            "first_token=%s prompt=%s completion=%s cached=%s finish=%s notes=%d",
            record.id,
            record.surface,
            record.model or "-",
            record.principal or "-",
            record.outcome,
            record.status,
            str(record.stream).lower(),
            record.duration,
            record.queued,
            first,
            record.prompt_tokens,
            record.completion_tokens,
            record.cached_tokens,
            record.finish,
            len(record.notes),
        )
