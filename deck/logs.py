"""What Deck writes down: one line an event as `key=value` pairs, one event an exchange, never a body or a secret.

Knows the form of lines and what a secret looks like. Does not know where lines go: the caller gives the stream.
Exchanges' lines are gathered for a few milliseconds and written together; any other line writes them out first.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import re
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TextIO

from deck.contracts import ExchangeRecord
from deck.normalize.repairs import REPAIRS

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
# How Deck itself names requests, and what of an operator's secrets may stand within such a name.
_OWN_ID = re.compile(r"req_[0-9a-f]{24}")
_IN_OWN_ID = re.compile(r"[0-9a-freq_]{1,28}")
_BARE = re.compile(r"[\w./:@+*\[\]-]+", re.ASCII)
_EXCHANGE = logging.getLogger("deck.exchange")
# Loggers whose lines are Deck's; of all others only warnings are of interest.
_OWN = ("deck", "uvicorn", "uvicorn.error")
_SILENT = "uvicorn.access"
# Seconds for which exchanges' lines are gathered, and how many at most.
_GATHER = 0.005
_MOST_GATHERED = 256


def configure(level: str, stream: TextIO, secrets: Iterable[str] = ()) -> None:
    """Send every logger of the process to `stream`, one line an event; may be called again.

    Args:
        level: least level of Deck's and uvicorn's lines: debug, info, warning or error.
        stream: where lines go.
        secrets: texts to remove wherever they stand, such as a token that an operator chose.
    """
    handler = _Handler(stream, LineFormatter(secrets))
    root = logging.getLogger()
    for old in [item for item in root.handlers if isinstance(item, _Handler)]:
        old.release()
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
    global _handler
    _handler = handler


class _Handler(logging.StreamHandler[TextIO]):
    """Writes lines; those of exchanges are gathered while a loop runs that can write them a little later."""

    def __init__(self, stream: TextIO, lines: LineFormatter) -> None:
        super().__init__(stream)
        self.setFormatter(lines)
        self.lines = lines
        self._gathered: list[tuple[ExchangeRecord, float]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self.release()
        super().emit(record)

    def gather(self, record: ExchangeRecord) -> None:
        self._gathered.append((record, time.time()))
        if len(self._gathered) >= _MOST_GATHERED:
            self.release()
        if self._loop is None or self._loop.is_closed():
            try:
                self._loop = asyncio.get_running_loop()
            except RuntimeError:
                self.release()
            else:
                self._loop.call_later(_GATHER, self._due)

    def _line(self, gathered: tuple[ExchangeRecord, float]) -> str:
        try:
            return self.lines.exchange(*gathered)
        except Exception:
            self.handleError(logging.makeLogRecord({"name": _EXCHANGE.name, "levelno": logging.INFO}))
            return ""

    def _due(self) -> None:
        self._loop = None
        self.release()

    def release(self) -> None:
        """Write what was gathered: to make many lines in a row takes less than one now and then."""
        gathered, self._gathered = self._gathered, []
        if gathered:
            try:
                self.stream.write("".join(map(self._line, gathered)))
                self.stream.flush()
            except (OSError, ValueError):
                self.handleError(logging.makeLogRecord({"name": _EXCHANGE.name, "levelno": logging.INFO}))


_handler: _Handler | None = None


def release() -> None:
    """Write what is gathered, as at the end of the process."""
    if _handler is not None:
        _handler.release()


atexit.register(release)


class ExchangeLog:
    """An observer that logs each exchange."""

    def observe(self, record: ExchangeRecord) -> None:
        """Write the line of an exchange that has ended."""
        if not _EXCHANGE.isEnabledFor(logging.INFO):
            return
        if _handler is not None:
            _handler.gather(record)
        else:
            _EXCHANGE.info("exchange", extra={"fields": fields_of(record)})


def redact(text: str) -> str:
    """Return the text without anything that looks like a secret."""
    return _SECRETS.sub(_kept, text)


class LineFormatter(logging.Formatter):
    """Makes one line of a log record: `at=… level=… logger=… event="…" key=value …`, secrets removed."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        super().__init__()
        self._secrets = sorted(filter(None, (item.strip() for item in secrets)), key=len, reverse=True)
        self._secrets_in_ids = [secret for secret in self._secrets if _IN_OWN_ID.fullmatch(secret)]
        # All but an exchange's id comes from small sets, and looking for secrets costs more than all the rest.
        self._remembered = lru_cache(maxsize=1024)(self._clean)
        self._words = lru_cache(maxsize=1024)(self._pairs)

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

    def exchange(self, record: ExchangeRecord, now: float) -> str:
        """Return the line of an exchange with its end: what `format` makes of `fields_of`, put together faster."""
        identity = record.id
        if self._secrets_in_ids or not _OWN_ID.fullmatch(identity):
            identity = self._clean(identity)
        words, end = self._words(
            record.surface,
            record.model,
            record.principal,
            record.outcome,
            record.status,
            record.stream,
            record.lane,
            record.finish,
            record.left_lane,
        )
        prompt, completion, cached, first = (
            record.prompt_tokens,
            record.completion_tokens,
            record.cached_tokens,
            record.first_token,
        )
        return (
            f"at={_moment(now)} level=info logger=deck.exchange event=exchange id={identity}{words}"
            f" duration={record.duration:.4f} queued={record.queued:.4f}"
            f"{'' if first is None else f' first_token={first:.4f}'}"
            f"{'' if prompt is None else f' prompt_tokens={prompt}'}"
            f"{'' if completion is None else f' completion_tokens={completion}'}"
            f"{'' if cached is None else f' cached_tokens={cached}'}"
            f"{end} notes={len(record.notes)}{_repaired(record) if record.notes else ''}"
            f"{self._on_replica(record) if record.replica else ''}\n"
        )

    def _on_replica(self, record: ExchangeRecord) -> str:
        return f" replica={self._shown(record.replica)}{f' retries={record.retries}' if record.retries else ''}"

    def _pairs(
        self,
        surface: str,
        model: str,
        principal: str,
        outcome: str,
        status: int,
        stream: bool,
        lane: str,
        finish: str | None,
        left_lane: str | None,
    ) -> tuple[str, str]:
        """Return what comes from small sets of an exchange's line: its middle, and what stands behind the tokens."""
        text = f" surface={self._shown(surface)}"
        if model:
            text += f" model={self._shown(model)}"
        if principal:
            text += f" principal={self._shown(principal)}"
        text += f" outcome={self._shown(outcome)} status={status} stream={'true' if stream else 'false'}"
        if lane:
            text += f" lane={self._shown(lane)}"
        end = "" if finish is None else f" finish={self._shown(finish)}"
        return text, end if left_lane is None else f"{end} left_lane={self._shown(left_lane)}"

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


def _repaired(record: ExchangeRecord) -> str:
    return "".join(f" {name}={count}" for name, count in _repairs(record).items())


def _repairs(record: ExchangeRecord) -> dict[str, int]:
    """Return how often something was done about what the model wrote, by what."""
    found = [field for _, field in record.notes if field in REPAIRS]
    return {name: found.count(name) for name in REPAIRS if name in found}


def fields_of(record: ExchangeRecord) -> Mapping[str, object]:
    """Return what is known of an exchange; what is not, is left out."""
    fields: dict[str, object] = {
        "id": record.id,
        "surface": record.surface,
        "model": record.model or None,
        "principal": record.principal or None,
        "outcome": record.outcome,
        "status": record.status,
        "stream": "true" if record.stream else "false",
        "lane": record.lane or None,
        "duration": f"{record.duration:.4f}",
        "queued": f"{record.queued:.4f}",
        "first_token": None if record.first_token is None else f"{record.first_token:.4f}",
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "cached_tokens": record.cached_tokens,
        "finish": record.finish,
        "left_lane": record.left_lane,
        "notes": len(record.notes),
        **_repairs(record),
        "replica": record.replica or None,
        "retries": record.retries or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _moment(seconds: float) -> str:
    whole = int(seconds)
    return f"{_second(whole)}.{int((seconds - whole) * 1000):03d}Z"


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _kept(found: re.Match[str]) -> str:
    return next((part for part in found.groups() if part), "") + _REMOVED
