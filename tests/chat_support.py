"""What tests of the Chat surface share: a body through parse, family and encode, without a server."""

from __future__ import annotations

from typing import Any

from deck.api import ChatRequest, DeckError, Facts, Parsed, ParseOptions, Report
from deck.normalize.history import repair_history
from deck.normalize.tools import note_schemas
from deck.upstream.encode import encode
from deck_plugins.families.generic import FAMILY
from deck_plugins.surfaces.openai_chat import OpenAIChat

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "read_note",
        "description": "Read a note",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}
OTHER: dict[str, Any] = {"type": "function", "function": {"name": "now"}}


def user(text: Any = "hi") -> dict[str, Any]:
    return {"role": "user", "content": text}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m1", "messages": [user()], **fields}


def parse(
    request: dict[str, Any], *, lenient: bool = False, kwargs: frozenset[str] = frozenset()
) -> tuple[Parsed, Report]:
    report = Report()
    return OpenAIChat().parse(request, report, ParseOptions(lenient=lenient, template_kwargs=kwargs)), report


def upstream(request: dict[str, Any], facts: Facts | None = None, **options: Any) -> tuple[dict[str, Any], Report]:
    """Return what llama-server would get, and the report."""
    parsed, report = parse(request, **options)
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
