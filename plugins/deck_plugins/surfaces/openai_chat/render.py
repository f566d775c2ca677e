"""Answers of Chat Completions as JSON: the buffered object, and the pieces that the stream shares with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deck.api import Answer, DeckError, ErrorKind, FinishReason, Parsed, Reasoning, ReplyHead, Text, ToolCall, Usage

from .parse import Reply

_FINISH = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.TOOL_CALLS: "tool_calls"}

# Types and codes by kind: the OpenAI API's error reference.
_ERRORS: dict[ErrorKind, tuple[str, str | None]] = {
    ErrorKind.INVALID_REQUEST: ("invalid_request_error", None),
    ErrorKind.CONTEXT_LENGTH: ("invalid_request_error", "context_length_exceeded"),
    ErrorKind.AUTHENTICATION: ("invalid_request_error", "invalid_api_key"),
    ErrorKind.PERMISSION: ("permission_error", None),
    ErrorKind.NOT_FOUND: ("invalid_request_error", "unknown_url"),
    ErrorKind.MODEL_NOT_FOUND: ("invalid_request_error", "model_not_found"),
    ErrorKind.METHOD_NOT_ALLOWED: ("invalid_request_error", "method_not_allowed"),
    ErrorKind.REQUEST_TIMEOUT: ("timeout_error", "request_timeout"),
    ErrorKind.TOO_LARGE: ("invalid_request_error", "request_too_large"),
    ErrorKind.UNSUPPORTED_MEDIA: ("invalid_request_error", "unsupported_media_type"),
    ErrorKind.UPGRADE_REQUIRED: ("invalid_request_error", "upgrade_required"),
    ErrorKind.RATE_LIMIT: ("rate_limit_error", "rate_limit_exceeded"),
    ErrorKind.HEADERS_TOO_LARGE: ("invalid_request_error", "headers_too_large"),
    ErrorKind.INTERNAL: ("server_error", None),
    ErrorKind.UPSTREAM: ("server_error", "upstream_error"),
    ErrorKind.UNAVAILABLE: ("service_unavailable_error", "server_is_overloaded"),
    ErrorKind.UPSTREAM_TIMEOUT: ("server_error", "timeout"),
}


def completion_id(head: ReplyHead) -> str:
    """Return the id of the answer: `chatcmpl-` and 29 alphanumerics."""
    return f"chatcmpl-{head.seed[:29]}"


def render_error(error: DeckError) -> dict[str, Any]:
    """Return the envelope; its four members always stand."""
    kind, code = _ERRORS[error.kind]
    return {
        "error": {"message": error.message, "type": kind, "param": error.param, "code": error.code or code},
    }


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
        choice["logprobs"] = {"content": [entry(item, reply.top_logprobs) for item in answer.logprobs], "refusal": None}
    if reply.token_ids:
        choice["token_ids"] = [item["id"] for item in answer.logprobs if "id" in item]
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


def _message(answer: Answer, reply: Reply) -> dict[str, Any]:
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
    if reason is FinishReason.TOOL_CALLS and reply.legacy_functions:
        return "function_call"
    return _FINISH[reason]


def render_usage(usage: Usage) -> dict[str, Any]:
    """Return the usage object; what is not known is left out."""
    body: dict[str, Any] = {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
    }
    if usage.cached is not None:
        body["prompt_tokens_details"] = {"cached_tokens": usage.cached}
    if usage.reasoning is not None:
        body["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
    return body


def entry(item: Mapping[str, Any], top: int) -> dict[str, Any]:
    """Return one logprobs entry in the wire's shape: llama-server's token ids out, alternatives as many as asked."""
    alternatives: Sequence[Mapping[str, Any]] = item.get("top_logprobs") or ()
    return {
        "token": item.get("token", ""),
        "logprob": item.get("logprob", 0.0),
        "bytes": item.get("bytes"),
        "top_logprobs": [
            {"token": other.get("token", ""), "logprob": other.get("logprob", 0.0), "bytes": other.get("bytes")}
            for other in alternatives[:top]
        ],
    }
