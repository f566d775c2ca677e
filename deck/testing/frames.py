"""Frames of llama-server's streams, as it sends them; they know no reply and no connection."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_HEAD = {
    "created": 1767225600,
    "id": "chatcmpl-fake",
    "model": "fake",
    "system_fingerprint": "b11434-fake",
    "object": "chat.completion.chunk",
}


def frame(value: object) -> bytes:
    """Build one `data:` frame."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def chunk(delta: Mapping[str, Any], reason: str | None = None, **extra: Any) -> bytes:
    """Build a frame with one choice; `extra` are further members of the chunk."""
    choices = [{"finish_reason": reason, "index": 0, "delta": delta}]
    return frame({"choices": choices, **_HEAD, **extra})


def role() -> bytes:
    """Build the first frame, which has no text."""
    return chunk({"role": "assistant", "content": None})


def content(text: str, **extra: Any) -> bytes:
    """Build a frame of text."""
    return chunk({"content": text}, **extra)


def reasoning(text: str, **extra: Any) -> bytes:
    """Build a frame of thinking."""
    return chunk({"reasoning_content": text}, **extra)


def tool(index: int | None, identity: str | None = None, name: str | None = None, arguments: Any = None) -> bytes:
    """Build a frame with a fragment of a call; None leaves a member out."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    call: dict[str, Any] = {"index": index, "id": identity, "type": "function" if name else None, "function": function}
    return chunk({"tool_calls": [{key: value for key, value in call.items() if value is not None}]})


def finish(reason: str = "stop", **extra: Any) -> bytes:
    """Build the frame that gives the reason."""
    return chunk({}, reason, **extra)


def usage(prompt: int, completion: int, cached: int = 0, **extra: Any) -> bytes:
    """Build the frame that counts tokens."""
    return frame({"choices": [], **_HEAD, **_counts(prompt, completion, cached), **extra})


def _counts(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    counts = {
        "completion_tokens": completion,
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    timings = {"cache_n": cached, "prompt_n": prompt - cached, "prompt_ms": 1.0, "predicted_n": completion}
    return {"usage": counts, "timings": timings}


def text(text: str, reason: str | None = None, entries: Sequence[Mapping[str, Any]] = (), **extra: Any) -> bytes:
    """Build a frame of the continuation of a raw prompt; `entries` are its logprobs."""
    logprobs = {"content": list(entries)} if entries else None
    choices = [{"text": text, "index": 0, "logprobs": logprobs, "finish_reason": reason}]
    return frame({"choices": choices, **_HEAD, "object": "text_completion", **extra})


def text_end(prompt: int, completion: int, reason: str = "stop", cached: int = 0, **extra: Any) -> bytes:
    """Build the frame that ends the continuation of a raw prompt: reason and counts in one."""
    return text("", reason, **_counts(prompt, completion, cached), **extra)


def done() -> bytes:
    """Build the last frame."""
    return b"data: [DONE]\n\n"


def comment() -> bytes:
    """Build llama-server's sign of life."""
    return b":\n\n"


def error_frame(code: int, message: str, label: str = "server_error", **extra: Any) -> bytes:
    """Build an error that stands in a stream."""
    return frame({"error": {"code": code, "message": message, "type": label, **extra}})
