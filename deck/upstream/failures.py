"""What llama-server says when it refuses, as a `DeckError`.

Decides whose fault it is from the status and, where llama-server blames the wrong side, from its words. Knows no
stream and no surface.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deck import json
from deck.errors import DeckError, ErrorKind, Overrun, overflow

LONGEST_MESSAGE = 2000
RETRY_AFTER = 5.0


class Refusal(Exception):
    """What stands behind the error of an answer whose status was not 200: the cause of a `DeckError`."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class MidAnswer(Exception):
    """What stands behind the error of an answer that broke off after its first byte: the cause of a `DeckError`."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    kind: ErrorKind
    code: str | None = None
    retry_after: float | None = None
    should_retry: bool | None = None


_CLIENT = _Verdict(ErrorKind.INVALID_REQUEST)
_OVERFLOW = _Verdict(ErrorKind.CONTEXT_LENGTH, "context_length_exceeded")
_UPSTREAM = _Verdict(ErrorKind.UPSTREAM, "upstream_error")
_MODEL = _Verdict(ErrorKind.UPSTREAM, "upstream_error", should_retry=False)
_BUSY = _Verdict(ErrorKind.UNAVAILABLE, retry_after=RETRY_AFTER)

# Running out of the shared KV cache in mid-answer is a 500 without numbers.
_TOO_LONG = re.compile(r"context size has been exceeded|exceeds? the available context size", re.IGNORECASE)
# llama-server answers 500 to many a client's mistake, and 400 or 500 to a template's; its words are the only evidence.
# The first row that matches decides.
_WORDS: tuple[tuple[re.Pattern[str], _Verdict], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), verdict)
    for pattern, verdict in (
        (r"does not match the expected|failed to parse input at pos|invalid diff:", _MODEL),
        (r"jinja|template", _CLIENT),
        (r"failed to parse (?:messages|tools|grammar)", _CLIENT),
        (r"unsupported|(?:image|audio|video) input is not supported", _CLIENT),
        (r"cannot pass both|roles must alternate|prefill is incompatible", _CLIENT),
        (r"json[_ ]schema|json\.exception\.(?:type_error|out_of_range)", _CLIENT),
        (r"is too large to process", _OVERFLOW),
        # An answer that may not end cannot keep to a form.
        (r"empty grammar stack", _MODEL),
    )
)
_TYPES: Mapping[str, _Verdict] = {
    "exceed_context_size_error": _OVERFLOW,
    "unavailable_error": _BUSY,
}
_STATUSES: Mapping[int, _Verdict] = {
    404: _UPSTREAM,
    408: _UPSTREAM,
    413: _Verdict(ErrorKind.TOO_LARGE),
    429: _BUSY,
    501: _CLIENT,
    503: _BUSY,
}
_REFUSED = frozenset({401, 403})
_BATCH = re.compile(r"input \((\d+) tokens\) is too large to process.*batch size: (\d+)", re.DOTALL)
_LIMITS = re.compile(r"\((\d+) tokens\) exceeds the available context size \((\d+) tokens")
_PATH = re.compile(
    r"""(?<![\w.:/\\])(?:/|[A-Za-z]:[\\/])(?:[^'"\n]*[/\\])?"""
    r"""([^'"/\\\s]+\.(?:gguf|bin|safetensors|jinja|json|sock|cpp|hpp|h|cu))\b"""
)


def upstream_error(status: int, body: bytes | Mapping[str, Any], *, who: str = "llama-server") -> DeckError:
    """Convert a refusal of llama-server, or of another backend that answers in OpenAI's envelope.

    Args:
        status: of its reply; 200 for an error that stood in a stream, where `error.code` says more.
        body: the bytes of the reply, or the decoded object of a frame.
        who: what a message calls the backend.
    """
    error = _members(body)
    code = error.get("code")
    if status < 400:
        status = code if type(code) is int and 400 <= code <= 599 else 500
    if status in _REFUSED:
        return DeckError(ErrorKind.UPSTREAM, f"{who} refused Deck's key ({status})", code="upstream_error")
    message = _message(status, error, who)
    verdict = _judge(status, error.get("type"), message)
    if found := _BATCH.search(message):
        what = f"an input of {found[1]} tokens is longer than the {found[2]} that the model takes at a time"
        message = f"{what}; send shorter ones, or have [server] ctx_size raised ({message})"
    overrun = _overrun(error, message) if verdict is _OVERFLOW else None
    if overrun is not None:
        return overflow(overrun, said=message)
    return DeckError(
        verdict.kind,
        message,
        code=verdict.code,
        retry_after=verdict.retry_after,
        should_retry=verdict.should_retry,
    )


def _members(body: bytes | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `message`, `type` and `code` wherever they stand; text that is not JSON is the message."""
    value: Any = body
    if isinstance(body, bytes):
        try:
            value = json.loads(body)
        except ValueError:
            return {"message": body.decode(errors="replace")}
    if isinstance(value, Mapping) and "error" in value:
        value = value["error"]
    return value if isinstance(value, Mapping) else {"message": value}


def _message(status: int, error: Mapping[str, Any], who: str) -> str:
    message = error.get("message")
    text = message.strip() if isinstance(message, str) else ""
    if not text:
        return f"{who} answered {status} without a message"
    if text.startswith("<"):
        return f"{who} answered {status} with a page of HTML"
    return _PATH.sub(r"\1", text[:LONGEST_MESSAGE])


def _judge(status: int, label: object, message: str) -> _Verdict:
    if isinstance(label, str) and label in _TYPES:
        return _TYPES[label]
    if _TOO_LONG.search(message):
        return _OVERFLOW
    if status in _STATUSES:
        return _STATUSES[status]
    for pattern, verdict in _WORDS:
        if pattern.search(message):
            return verdict
    return _CLIENT if status < 500 else _UPSTREAM


def _overrun(error: Mapping[str, Any], message: str) -> Overrun | None:
    prompt, context = error.get("n_prompt_tokens"), error.get("n_ctx")
    if type(prompt) is int and type(context) is int:
        return Overrun(prompt, context)
    found = _LIMITS.search(message)
    return Overrun(int(found[1]), int(found[2])) if found else None
