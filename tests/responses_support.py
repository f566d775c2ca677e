"""What tests of the Responses surface share: a body through parse, family and encode; events through its answers."""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from responses_automaton import ResponsesStream, check

from deck.api import ChatRequest, DeckError, Event, Facts, Fold, Parsed, ParseOptions, ReplyHead, Report
from deck.normalize.history import repair_history
from deck.normalize.tools import note_schemas
from deck.upstream.encode import encode
from deck_plugins.families.generic import FAMILY
from deck_plugins.surfaces.openai_responses import OpenAIResponses

ROUTE = "/v1/responses"
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOL: dict[str, Any] = {"type": "function", "name": "read_note", "description": "Read a note", "parameters": SCHEMA}
OTHER: dict[str, Any] = {"type": "function", "name": "now"}
CUSTOM: dict[str, Any] = {"type": "custom", "name": "apply_patch", "description": "Edit files"}
GRAMMAR: dict[str, Any] = {**CUSTOM, "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/s"}}
NOTES: dict[str, Any] = {"type": "namespace", "name": "notes", "description": "Notes", "tools": [TOOL]}
ONE_STRING: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input of the tool, as it is."}},
    "required": ["input"],
    "additionalProperties": False,
}
SAMPLING = {"temperature": 0.6, "top_p": 0.9}
HEAD = ReplyHead(seed="A" * 40, created=1767225600, model="m1", sampling=lambda: SAMPLING, clock=lambda: 1767225607.5)


def user(text: Any = "hi") -> dict[str, Any]:
    return {"role": "user", "content": text}


def function(tool: Mapping[str, Any] = TOOL, name: str | None = None, **members: Any) -> dict[str, Any]:
    """Return the tool as llama-server gets it."""
    found = {key: value for key, value in tool.items() if key in ("name", "description", "parameters")}
    found.setdefault("parameters", {"type": "object", "properties": {}})
    return {"type": "function", "function": {**found, **({"name": name} if name else {}), **members}}


def call(arguments: Any = "{}", call_id: str = "call_abc123def", **members: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "read_note", "arguments": arguments, **members}


def output(text: Any = "x", call_id: str = "call_abc123def", **members: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text, **members}


def thought(text: str | None = None, summary: str | None = None, **members: Any) -> dict[str, Any]:
    content = None if text is None else [{"type": "reasoning_text", "text": text}]
    told = [] if summary is None else [{"type": "summary_text", "text": summary}]
    return {"type": "reasoning", "id": "rs_1", "summary": told, "content": content, **members}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m1", "input": "hi", **fields}


def items(*found: Any, **fields: Any) -> dict[str, Any]:
    return body(input=list(found), **fields)


def parse(request: dict[str, Any], *, kwargs: frozenset[str] = frozenset(), **options: Any) -> tuple[Parsed, Report]:
    report = Report()
    return OpenAIResponses().parse(request, report, ParseOptions(template_kwargs=kwargs, **options)), report


def upstream(request: dict[str, Any], facts: Facts | None = None, **options: Any) -> tuple[dict[str, Any], Report]:
    """Return what llama-server would get, and the report."""
    parsed, report = parse(request, **options)
    assert isinstance(parsed.request, ChatRequest)
    repaired = repair_history(parsed.request, report)
    note_schemas(repaired, report)
    adapted: ChatRequest = FAMILY.adapt(repaired, facts or Facts(), report)
    return encode(adapted, context=4096), report


def refusal(request: dict[str, Any], **options: Any) -> DeckError:
    """Return the error the request ends in."""
    try:
        upstream(request, **options)
    except DeckError as error:
        return error
    raise AssertionError("the request was accepted")


def ignored(report: Report) -> list[str]:
    shown = dict(report.headers()).get("X-Athena-Compatibility-Ignored", "")
    return shown.split(", ") if shown else []


def changed(report: Report) -> list[str]:
    shown = dict(report.headers()).get("X-Athena-Compatibility-Changed", "")
    return shown.split(", ") if shown else []


def raw_stream(events: Iterable[Event], **fields: Any) -> bytes:
    parsed, _ = parse(body(**{"stream": True, **fields}))
    projector = OpenAIResponses().projector(parsed, HEAD)
    return b"".join(projector.feed(event) for event in events)


def stream(events: Iterable[Event], **fields: Any) -> ResponsesStream:
    """Return what the events' stream says, checked by the automaton and the SDK's types."""
    found = check(raw_stream(events, **fields))
    for event in found.events:
        validate_event(event)
    return found


def buffered(events: Iterable[Event], **fields: Any) -> dict[str, Any]:
    """Return the buffered answer, checked by the SDK's types."""
    parsed, _ = parse(body(**fields))
    fold = Fold()
    for event in events:
        fold.feed(event)
    found = OpenAIResponses().render(fold.answer(), parsed, HEAD)
    validate_response(found)
    return found


@functools.cache
def _event_types() -> dict[str, TypeAdapter[Any]]:
    """Return the SDK's type of each event by its tag; a union's own errors would list them all."""
    members = typing.get_args(typing.get_args(ResponseStreamEvent)[0])
    return {typing.get_args(item.model_fields["type"].annotation)[0]: TypeAdapter(item) for item in members}


def validate_event(event: dict[str, Any]) -> None:
    """Check an event strictly; a failure's code may be one more than the SDK lists, which agents know."""
    if event["type"] == "response.failed":
        assert event["response"]["error"]["code"] in CODES | {"context_length_exceeded"}
        response = {**event["response"], "error": {**event["response"]["error"], "code": "server_error"}}
        event = {**event, "response": response}
    _event_types()[event["type"]].validate_python(event, strict=True)


def validate_response(found: dict[str, Any]) -> None:
    _RESPONSE.validate_python(found, strict=True)
    assert all(type(found[name]) is int for name in ("created_at", "top_logprobs"))
    assert set(found) >= REQUIRED
    assert not [name for name in NEVER_NULL if found[name] is None]


_RESPONSE = TypeAdapter(Response)
CODES = {"server_error", "rate_limit_exceeded", "invalid_prompt"}
# Open Responses specification, ResponseResource: what must stand, and what of it may not be null.
REQUIRED = {
    "id",
    "object",
    "created_at",
    "completed_at",
    "status",
    "error",
    "incomplete_details",
    "instructions",
    "model",
    "output",
    "parallel_tool_calls",
    "previous_response_id",
    "tools",
    "tool_choice",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "truncation",
    "text",
    "reasoning",
    "usage",
    "max_output_tokens",
    "max_tool_calls",
    "store",
    "background",
    "service_tier",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
}
NEVER_NULL = REQUIRED - {
    "completed_at",
    "error",
    "incomplete_details",
    "instructions",
    "previous_response_id",
    "reasoning",
    "usage",
    "max_output_tokens",
    "max_tool_calls",
    "safety_identifier",
    "prompt_cache_key",
}
