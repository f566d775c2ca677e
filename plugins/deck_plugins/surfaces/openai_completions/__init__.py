"""The surface of OpenAI's older Completions: a raw prompt and its continuation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deck.api import (
    Answer,
    DeckError,
    Parsed,
    ParseOptions,
    Projector,
    ReplyHead,
    Report,
    Route,
    Surface,
    Table,
    hookimpl,
)
from deck_plugins.openai_wire import render_error

from .fields import TABLES
from .parse import parse
from .project import TextProjector
from .render import render


class OpenAICompletions:
    """`POST /v1/completions`."""

    name = "completions"
    title = "OpenAI Completions"
    routes: Sequence[Route] = (Route(path="/completions"),)
    header_names: Sequence[str] = ()
    id_headers: Sequence[str] = ("x-request-id",)

    @property
    def tables(self) -> Mapping[str, Table]:
        """The field tables by the path they apply to."""
        return TABLES

    def parse(self, body: Mapping[str, Any], report: Report, options: ParseOptions) -> Parsed:
        """Turn a client's body into the canonical request."""
        return parse(body, report, options)

    def projector(self, parsed: Parsed, head: ReplyHead) -> Projector:
        """Make the state machine for one streamed answer."""
        return TextProjector(parsed, head)

    def render(self, answer: Answer, parsed: Parsed, head: ReplyHead) -> dict[str, Any]:
        """Make the buffered answer."""
        return render(answer, parsed, head)

    def error(self, error: DeckError, request_id: str) -> dict[str, Any]:
        """Make the error envelope; the request's id travels in a header on this wire."""
        return render_error(error)


@hookimpl
def deck_register_surfaces(config: object) -> Iterable[Surface]:
    """Register Completions."""
    return (OpenAICompletions(),)
