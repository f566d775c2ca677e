"""Answers of Chat Completions as JSON: the buffered object, and the pieces that the stream shares with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from deck.api import Answer, FinishReason, Parsed, Reasoning, ReplyHead, Text, ToolCall
from deck_plugins.openai_wire import entry, render_usage

from .parse import Reply

_FINISH = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CONTEXT: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
}


def completion_id(head: ReplyHead) -> str:
    """Return the id of the answer: `chatcmpl-` and 29 alphanumerics."""
    return f"chatcmpl-{head.seed[:29]}"


def render(answer: Answer, parsed: Parsed, head: ReplyHead) -> dict[str, Any]:
    """Return the buffered `chat.completion` object."""
    reply: Reply = parsed.reply
    choice: dict[str, Any] = {
        "index": 0,
        "message": _message(answer, reply),
        "logprobs": None,
        "finish_reason": finish_reason(answer.finish.reason, reply),
    }
    if reply.top_logprobs is not None:
        choice["logprobs"] = {
            "content": [entry(item, reply.top_logprobs) for item in _logprobs(answer, reply)],
            "refusal": None,
        }
    if reply.token_ids:
        choice["token_ids"] = [item["id"] for item in _logprobs(answer, reply) if "id" in item]
    body: dict[str, Any] = {
        "id": completion_id(head),
        "object": "chat.completion",
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


def _logprobs(answer: Answer, reply: Reply) -> Sequence[Mapping[str, Any]]:
    """Return the entries of what the client sees: not of thoughts that it wants left out."""
    if not reply.hide_reasoning:
        return answer.logprobs
    shown = [
        of for part, of in zip(answer.parts, answer.part_logprobs, strict=False) if not isinstance(part, Reasoning)
    ]
    return list(chain.from_iterable(shown))


def _message(answer: Answer, reply: Reply) -> dict[str, Any]:
    if len(answer.parts) == 1 and isinstance(answer.parts[0], Text):
        return {"role": "assistant", "content": answer.parts[0].text, "refusal": None}
    text = "".join(part.text for part in answer.parts if isinstance(part, Text))
    thought = "".join(part.text for part in answer.parts if isinstance(part, Reasoning))
    calls = [part for part in answer.parts if isinstance(part, ToolCall)]
    message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
    if thought and not reply.hide_reasoning:
        message["reasoning_content"] = thought
    if calls and reply.legacy_functions:
        message["function_call"] = {"name": calls[0].name, "arguments": calls[0].arguments}
    elif calls:
        message["tool_calls"] = [
            {
                "id": f"call_{call.id}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ]
    return message


def finish_reason(reason: FinishReason, reply: Reply) -> str:
    """Return the wire's word; a client that used `functions` gets `function_call` back."""
    if reason is FinishReason.STOP:
        return "stop"
    if reason is FinishReason.TOOL_CALLS and reply.legacy_functions:
        return "function_call"
    return _FINISH[reason]
