"""The surface of OpenAI Responses, stateless: nothing is stored, every request carries its whole input."""

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

from .parse import parse
from .project import ResponsesProjector
from .render import render
from .tables import TABLES


class OpenAIResponses:
    """`POST /v1/responses` and `/v1/responses/input_tokens`."""

    name = "responses"
    title = "OpenAI Responses"
    routes: Sequence[Route] = (
        Route(path="/responses"),
        Route(path="/responses/input_tokens", operation="count"),
    )
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
        return ResponsesProjector(parsed, head)

    def render(self, answer: Answer, parsed: Parsed, head: ReplyHead) -> dict[str, Any]:
        """Make the buffered answer."""
        return render(answer, parsed, head)

    def render_count(self, tokens: int) -> dict[str, Any]:
        """Make the answer that says how many tokens the input takes."""
        return {"object": "response.input_tokens", "input_tokens": tokens}

    def error(self, error: DeckError, request_id: str) -> dict[str, Any]:
        """Make the error envelope; the request's id travels in a header on this wire."""
        return render_error(error)


@hookimpl
def deck_register_surfaces(config: object) -> Iterable[Surface]:
    """Register Responses."""
    return (OpenAIResponses(),)
