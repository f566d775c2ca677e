"""What Deck writes down: one line an event as `key=value` pairs, one event an exchange, never a body or a secret.

Knows the form of lines and what a secret looks like. Does not know where lines go: the caller gives the stream.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TextIO

from deck.contracts import ExchangeRecord
from deck.kit.parts import RESCUES

_REMOVED = "[redacted]"
_SHORT = 100
_SECRETS = re.compile(
    r"""
      \bdeck-[\w-]{16,}                                            # a token of Deck
    | \b(?:sk|pk|rk)-[\w-]{16,} | \bhf_\w{16,}                     # keys of the vendors that clients know
    | (?P<scheme>\b(?:bearer|basic)\s+)[^\s'",;)\]}]+
    | (?P<header>\b(?:proxy-)?authorization['"]?\s*[:=,]\s*(?:b?['"])?)(?:[\w-]+\s+)?[^\s'",;)\]}]+
    | (?P<name>\b(?:x-api-key|api[-_]?key|(?:access|auth|refresh)[-_]token|client[-_]secret|password|deck_token)
        ['"]?\s*[:=,]\s*(?:b?['"])?)[^\s'",;)\]}]+
    """,
    re.VERBOSE | re.IGNORECASE,
)
_BARE = re.compile(r"[\w./:@+*\[\]-]+", re.ASCII)
_EXCHANGE = logging.getLogger("deck.exchange")
# Loggers whose lines are Deck's; of all others only warnings are of interest.
_OWN = ("deck", "uvicorn", "uvicorn.error")
_SILENT = "uvicorn.access"


def configure(level: str, stream: TextIO, secrets: Iterable[str] = ()) -> None:
    """Send every logger of the process to `stream`, one line an event; may be called again.

    Args:
        level: least level of Deck's and uvicorn's lines: debug, info, warning or error.
        stream: where lines go.
        secrets: texts to remove wherever they stand, such as a token that an operator chose.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(secrets))
    root = logging.getLogger()
    for old in [item for item in root.handlers if isinstance(item.formatter, LineFormatter)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    for name in _OWN:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(level.upper())
    access = logging.getLogger(_SILENT)
    access.handlers.clear()
    access.propagate = False
    access.disabled = True


def log_exchange(record: ExchangeRecord) -> None:
    """Write the line of an exchange that has ended."""
    if _EXCHANGE.isEnabledFor(logging.INFO):
        # Made by hand: where the call stood in the code is looked for otherwise, and no line shows it.
        line = logging.LogRecord(_EXCHANGE.name, logging.INFO, "", 0, "exchange", None, None)
        line.fields = _fields(record)
        _EXCHANGE.handle(line)


class ExchangeLog:
    """An observer that logs each exchange."""

    def observe(self, record: ExchangeRecord) -> None:
        """Write its line."""
        log_exchange(record)


def redact(text: str) -> str:
    """Return the text without anything that looks like a secret."""
    return _SECRETS.sub(_kept, text)


class LineFormatter(logging.Formatter):
    """Makes one line of a log record: `at=… level=… logger=… event="…" key=value …`, secrets removed."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        super().__init__()
        self._secrets = sorted(filter(None, (item.strip() for item in secrets)), key=len, reverse=True)
        # All but an exchange's id comes from small sets, and looking for secrets costs more than all the rest.
        self._remembered = lru_cache(maxsize=1024)(self._clean)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        pairs: dict[str, object] = {
            "at": _moment(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        pairs |= getattr(record, "fields", {})
        if record.exc_info:
            pairs["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            pairs["stack"] = record.stack_info
        return " ".join(f"{name}={self._shown(value)}" for name, value in pairs.items())

    def _shown(self, value: object) -> str:
        if not isinstance(value, str):
            return str(value)
        return self._remembered(value) if len(value) <= _SHORT else self._clean(value)

    def _clean(self, value: str) -> str:
        # Before quoting, for a quoted secret may no longer look like one.
        for secret in self._secrets:
            value = value.replace(secret, _REMOVED)
        value = redact(value)
        return value if _BARE.fullmatch(value) else json.dumps(value)


def _fields(record: ExchangeRecord) -> Mapping[str, object]:
    """Return what is known of an exchange; what is not, is left out."""
    fields: dict[str, object] = {
        "id": record.id,
        "surface": record.surface,
        "model": record.model or None,
        "principal": record.principal or None,
        "outcome": record.outcome,
        "status": record.status,
        "stream": "true" if record.stream else "false",
        "lane": record.lane,
        "duration": _seconds(record.duration),
        "queued": _seconds(record.queued),
        "first_token": _seconds(record.first_token),
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "cached_tokens": record.cached_tokens,
        "finish": record.finish,
        "notes": len(record.notes),
        "rescued": sum(field in RESCUES for _, field in record.notes) or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _moment(seconds: float) -> str:
    return f"{_second(int(seconds))}.{int(seconds % 1 * 1000):03d}Z"


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _kept(found: re.Match[str]) -> str:
    return next((part for part in found.groups() if part), "") + _REMOVED
