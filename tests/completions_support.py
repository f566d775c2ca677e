"""What tests of the Completions surface share: a body through parse and encode, without a server."""

from __future__ import annotations

from typing import Any

from deck.api import DeckError, Parsed, ParseOptions, Report
from deck.normalize.tools import note_schemas
from deck.upstream.encode import encode_text
from deck_plugins.surfaces.openai_completions import OpenAICompletions


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m1", "prompt": "Once", **fields}


def parse(request: dict[str, Any], *, lenient: bool = False) -> tuple[Parsed, Report]:
    report = Report()
    return OpenAICompletions().parse(request, report, ParseOptions(lenient=lenient)), report


def upstream(request: dict[str, Any], **options: Any) -> tuple[dict[str, Any], Report]:
    """Return what llama-server would get, and the report."""
    parsed, report = parse(request, **options)
    note_schemas(parsed.request, report)
    return encode_text(parsed.request, context=4096), report


def refusal(request: dict[str, Any], **options: Any) -> DeckError:
    """Return the error the request ends in."""
    try:
        upstream(request, **options)
    except DeckError as error:
        return error
    raise AssertionError("the request was accepted")
