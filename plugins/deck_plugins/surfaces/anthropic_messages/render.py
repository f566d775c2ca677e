"""Answers of Messages as JSON: the buffered object, the pieces that the stream shares with it, and errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deck.api import (
    Answer,
    DeckError,
    ErrorKind,
    Finish,
    FinishReason,
    Parsed,
    Reasoning,
    ReplyHead,
    Text,
    ToolCall,
    json,
)

from .parse import Reply
from .signature import seal, signature

_STOPS = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
    FinishReason.CONTEXT: "model_context_window_exceeded",
}
# The Anthropic API's error reference; 503 has no type of its own there and takes that of 529.
_ERRORS: Mapping[ErrorKind, str] = {
    ErrorKind.INVALID_REQUEST: "invalid_request_error",
    ErrorKind.CONTEXT_LENGTH: "invalid_request_error",
    ErrorKind.AUTHENTICATION: "authentication_error",
    ErrorKind.PERMISSION: "permission_error",
    ErrorKind.NOT_FOUND: "not_found_error",
    ErrorKind.MODEL_NOT_FOUND: "not_found_error",
    ErrorKind.METHOD_NOT_ALLOWED: "invalid_request_error",
    ErrorKind.REQUEST_TIMEOUT: "timeout_error",
    ErrorKind.TOO_LARGE: "request_too_large",
    ErrorKind.UNSUPPORTED_MEDIA: "invalid_request_error",
    ErrorKind.UPGRADE_REQUIRED: "invalid_request_error",
    ErrorKind.RATE_LIMIT: "rate_limit_error",
    ErrorKind.HEADERS_TOO_LARGE: "invalid_request_error",
    ErrorKind.INTERNAL: "api_error",
    ErrorKind.UPSTREAM: "api_error",
    ErrorKind.UNAVAILABLE: "overloaded_error",
    ErrorKind.UPSTREAM_TIMEOUT: "timeout_error",
}


def render(answer: Answer, parsed: Parsed, head: ReplyHead) -> dict[str, Any]:
    """Return the buffered `message` object.

    Raises:
        DeckError: a call's input is no JSON object, which this wire has no form for.
    """
    reply: Reply = parsed.reply
    usage = answer.finish.usage
    body = empty_message(head, usage.prompt, usage.cached or 0)
    body["content"] = [_block(part, index, reply, head) for index, part in enumerate(answer.parts)]
    body["stop_reason"], body["stop_sequence"] = stop_of(answer.finish, reply)
    body["usage"]["output_tokens"] = usage.completion
    return body


def empty_message(head: ReplyHead, prompt: int, cached: int) -> dict[str, Any]:
    """Return the message as it begins: no content, no reason to stop."""
    return {
        "id": f"msg_01{head.seed[:22]}",
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage_of(prompt, cached, 0),
    }


def usage_of(prompt: int, cached: int, output: int) -> dict[str, Any]:
    """Return the usage object; `prompt` includes `cached`, on the wire they stand apart."""
    return {
        "input_tokens": max(prompt - cached, 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }


def stop_of(finish: Finish, reply: Reply) -> tuple[str, str | None]:
    """Return the reason to stop, and the client's own stop sequence if that was it."""
    if finish.reason is FinishReason.STOP and finish.stop_sequence in reply.stops:
        return "stop_sequence", finish.stop_sequence
    return _STOPS[finish.reason], None


def _block(part: Text | Reasoning | ToolCall, index: int, reply: Reply, head: ReplyHead) -> dict[str, Any]:
    match part:
        case Text(text=text):
            return {"type": "text", "text": text, "citations": None}
        case Reasoning(text=text):
            if reply.hides_thinking:
                return {"type": "thinking", "thinking": "", "signature": seal(text)}
            return {"type": "thinking", "thinking": text, "signature": signature(head, index)}
        case ToolCall():
            return {"type": "tool_use", "id": f"toolu_{part.id}", "name": part.name, "input": _input(part)}


def _input(call: ToolCall) -> Any:
    try:
        value = json.loads(call.arguments)
    except ValueError:
        value = None
    if type(value) is not dict:
        message = f"the model called {call.name!r} with an input that is no JSON object"
        raise DeckError(ErrorKind.UPSTREAM, message, code="upstream_error", should_retry=False)
    return json.embedded(call.arguments, value)


def render_error(error: DeckError, request_id: str | None = None) -> dict[str, Any]:
    """Return the envelope; without the request's id where nobody knows it."""
    is_broken = error.kind is ErrorKind.UNAVAILABLE and error.should_retry is False  # no load that passes
    kind = "api_error" if is_broken else _ERRORS[error.kind]
    body: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": _message(error)}}
    if request_id is not None:
        body["request_id"] = request_id
    return body


def _message(error: DeckError) -> str:
    if error.kind is not ErrorKind.CONTEXT_LENGTH:
        return error.message
    # Claude Code reads these sentences, numbers included: it shortens the conversation, or asks for a shorter answer.
    overrun = error.limits
    if overrun is None:
        return f"prompt is too long: {error.message}"
    prompt, context, budget = overrun.prompt, overrun.context, overrun.budget
    estimated = " (at least, since the model is not loaded)" if overrun.is_estimate else ""
    if budget is None:
        return f"prompt is too long: {prompt} tokens > {min(context, prompt - 1)} maximum{estimated}"
    sum_ = f"{prompt} + {budget} > {context}"
    remedy = "decrease input length or `max_tokens` and try again"
    return f"input length and `max_tokens` exceed context limit: {sum_}, {remedy}{estimated}"
