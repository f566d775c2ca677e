"""What the wires of OpenAI have in common: the error envelope, and of Chat and Completions usage and token entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deck.api import DeckError, ErrorKind, Report, Usage, invalid, is_json_object, json, wrong_type

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
_BROKEN = ("server_error", "server_error")


_NO_ARGUMENTS = ("", "null")


def read_arguments(value: Any, where: str, report: Report) -> str:
    """Return the arguments of a call in a client's history as the JSON object that templates read.

    Text that is no JSON is what a token limit, or a model's mistake, left of a call that Deck itself handed out: it is
    kept, as an object's one member `unparsed`.

    Raises:
        DeckError: they are of another type, or JSON that is no object.
    """
    if isinstance(value, dict):
        report.changed(where, "an object is written as a string of JSON", shown=f"{where}:object>string")
        return json.dumps(value).decode()
    if not isinstance(value, str):
        raise wrong_type(where, "a string of JSON", value)
    if value.strip() in _NO_ARGUMENTS:
        return "{}"
    if is_json_object(value):
        return value
    try:
        json.loads(value.encode("utf-8", "surrogatepass"))
    except ValueError:
        report.changed(where, "is no JSON, which templates need", shown=f"{where}>{where}.unparsed")
        return json.dumps({"unparsed": value.encode("utf-8", "replace").decode()}).decode()
    message = f"{where}: not a JSON object; templates that read arguments would fail on it"
    raise invalid(message, where, "unsupported_value")


def render_error(error: DeckError) -> dict[str, Any]:
    """Return the envelope; its four members always stand."""
    kind, code = _ERRORS[error.kind]
    if error.kind is ErrorKind.UNAVAILABLE and error.should_retry is False:
        kind, code = _BROKEN  # no load that passes
    return {
        "error": {"message": error.message, "type": kind, "param": error.param, "code": error.code or code},
    }


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
