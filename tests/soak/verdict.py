"""What an answer was, by the grammar of its wire: an answer, an error with a reason, or a fault of Deck."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from soak.talk import Got
from wires import WIRES

_CONNECTION_HEADERS = ("content-type", "x-request-id")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`outcome` is `answer`, `error`, `broken` (an error in a stream), `left` or `fault`; `why` its reason."""

    outcome: str
    why: str = ""
    status: int | None = None


def judge(wire: str, streamed: bool, got: Got) -> Verdict:
    """Judge one exchange; a client that left is owed nothing."""
    if got.left:
        return Verdict("left", status=got.status)
    if got.fault or got.status is None or not got.is_whole:
        return Verdict("fault", f"cut: {got.fault or 'the answer has no end'}", got.status)
    try:
        if got.status != 200:
            return Verdict("error", _reason(wire, got), got.status)
        return _stream(wire, got) if streamed else _whole(wire, got)
    except (AssertionError, ValueError, KeyError, TypeError) as exc:
        return Verdict("fault", f"{type(exc).__name__}: {exc}"[:300], got.status)
    except Exception as exc:  # the readers of the wires have a class each for what they find
        if type(exc).__name__ != "StreamFault":
            raise
        return Verdict("fault", f"stream: {exc}; it ends in {got.body[-120:]!r}"[:400], got.status)


def _stream(wire: str, got: Got) -> Verdict:
    assert got.headers["content-type"].startswith("text/event-stream"), got.headers
    said = WIRES[wire].stream(got.body)
    if said.error is None:
        assert said.finish, "no finish"
        return Verdict("answer", status=200)
    assert said.error, "an error without a reason"
    return Verdict("broken", said.error, 200)


def _whole(wire: str, got: Got) -> Verdict:
    said = WIRES[wire].whole(json.loads(got.body))
    assert said.finish, "no finish"
    return Verdict("answer", status=200)


def _reason(wire: str, got: Got) -> str:
    """Return the message of an error, after checking its envelope."""
    for name in _CONNECTION_HEADERS:
        assert got.headers.get(name), f"no {name}"
    body: Mapping[str, Any] = json.loads(got.body)
    if wire == "messages":
        assert set(body) == {"type", "error", "request_id"}, body
        members = {"type", "message"}
    else:
        assert set(body) == {"error"}, body
        members = {"message", "type", "param", "code"}
    assert set(body["error"]) == members, body
    message = body["error"]["message"]
    assert isinstance(message, str), body
    assert message, "an error without a reason"
    assert got.status != 429 or "retry-after" in got.headers, f"429 without retry-after: {message}"
    return message
