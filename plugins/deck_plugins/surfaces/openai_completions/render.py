"""Answers of Completions as JSON: the buffered object, and the pieces that the stream shares with it."""

from __future__ import annotations

from typing import Any

from deck.api import Answer, FinishReason, Parsed, ReplyHead, Text
from deck_plugins.openai_wire import render_usage

from .logprobs import Logprobs
from .parse import Reply

_FINISH = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CONTEXT: "length",
    # A raw answer has no calls; the word is there so that no reason is without one.
    FinishReason.TOOL_CALLS: "stop",
}


def completion_id(head: ReplyHead) -> str:
    """Return the id of the answer: `cmpl-` and 29 alphanumerics."""
    return f"cmpl-{head.seed[:29]}"


def render(answer: Answer, parsed: Parsed, head: ReplyHead) -> dict[str, Any]:
    """Return the buffered `text_completion` object."""
    reply: Reply = parsed.reply
    choice: dict[str, Any] = {
        "text": "".join(part.text for part in answer.parts if isinstance(part, Text)),
        "index": 0,
        "logprobs": None if reply.logprobs is None else Logprobs(reply.logprobs).convert(answer.logprobs),
        "finish_reason": finish_reason(answer.finish.reason),
    }
    if reply.token_ids:
        choice["token_ids"] = [item["id"] for item in answer.logprobs if "id" in item]
    body: dict[str, Any] = {
        "id": completion_id(head),
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
        "choices": [choice],
        "usage": render_usage(answer.finish.usage),
    }
    if answer.fingerprint:
        body["system_fingerprint"] = answer.fingerprint
    if reply.service_tier:
        body["service_tier"] = "default"
    if reply.timings and answer.finish.timings:
        body["timings"] = answer.finish.timings
    return body


def finish_reason(reason: FinishReason) -> str:
    """Return the wire's word."""
    return _FINISH[reason]
