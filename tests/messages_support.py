"""What tests of the Messages surface share: a body through parse, family and encode, without a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from deck.api import ChatRequest, DeckError, Event, Facts, Fold, Parsed, ParseOptions, ReplyHead, Report
from deck.normalize.history import repair_history
from deck.normalize.tools import note_schemas
from deck.upstream.encode import encode
from deck_plugins.families.generic import FAMILY
from deck_plugins.surfaces.anthropic_messages import AnthropicMessages

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOL: dict[str, Any] = {"name": "read_note", "description": "Read a note", "input_schema": SCHEMA}
OTHER: dict[str, Any] = {"name": "now", "input_schema": {"type": "object", "properties": {}}}
UPSTREAM_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "read_note", "description": "Read a note", "parameters": SCHEMA},
}
CALL: dict[str, Any] = {"type": "tool_use", "id": "toolu_abc123def", "name": "read_note", "input": {"path": "a"}}
PIXEL = "iVBORw0KGgo="
HEAD = ReplyHead(seed="A" * 40, created=1767225600, model="m1")


def user(content: Any = "hi") -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(value: str, **members: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **members}


def image(**members: Any) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}, **members}


def result(content: Any = "r", **members: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_abc123def", "content": content, **members}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m1", "max_tokens": 64, "messages": [user()], **fields}


def parse(
    request: dict[str, Any],
    *,
    lenient: bool = False,
    operation: Literal["generate", "count"] = "generate",
    headers: Mapping[str, str] | None = None,
    **options: Any,
) -> tuple[Parsed, Report]:
    report = Report()
    choices = ParseOptions(lenient=lenient, operation=operation, headers=headers or {}, **options)
    return AnthropicMessages().parse(request, report, choices), report


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


def streamed(events: Sequence[Event], **fields: Any) -> bytes:
    """Return the client's bytes of a streamed answer."""
    parsed, _ = parse(body(stream=True, **fields))
    projector = AnthropicMessages().projector(parsed, HEAD)
    return b"".join(projector.feed(event) for event in events)


def buffered(events: Sequence[Event], **fields: Any) -> dict[str, Any]:
    """Return the buffered answer."""
    parsed, _ = parse(body(**fields))
    fold = Fold()
    for event in events:
        fold.feed(event)
    return AnthropicMessages().render(fold.answer(), parsed, HEAD)


def ignored(report: Report) -> list[str]:
    shown = dict(report.headers()).get("X-Athena-Compatibility-Ignored", "")
    return shown.split(", ") if shown else []


def changed(report: Report) -> list[str]:
    shown = dict(report.headers()).get("X-Athena-Compatibility-Changed", "")
    return shown.split(", ") if shown else []
