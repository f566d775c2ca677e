"""The surface of Anthropic Messages."""

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

from .fields import TABLES
from .parse import parse
from .project import MessagesProjector
from .render import render, render_error


class AnthropicMessages:
    """`POST /v1/messages` and `POST /v1/messages/count_tokens`."""

    name = "messages"
    title = "Anthropic Messages"
    routes: Sequence[Route] = (
        Route(path="/messages"),
        Route(path="/messages/count_tokens", operation="count"),
    )
    header_names: Sequence[str] = ("anthropic-version", "anthropic-beta")
    id_headers: Sequence[str] = ("x-request-id", "request-id")

    @property
    def tables(self) -> Mapping[str, Table]:
        """The field tables by the path they apply to."""
        return TABLES

    def parse(self, body: Mapping[str, Any], report: Report, options: ParseOptions) -> Parsed:
        """Turn a client's body into the canonical request."""
        return parse(body, report, options)

    def projector(self, parsed: Parsed, head: ReplyHead) -> Projector:
        """Make the state machine for one streamed answer."""
        return MessagesProjector(parsed, head)

    def render(self, answer: Answer, parsed: Parsed, head: ReplyHead) -> dict[str, Any]:
        """Make the buffered answer."""
        return render(answer, parsed, head)

    def render_count(self, tokens: int) -> dict[str, Any]:
        """Make the answer of the token counter."""
        return {"input_tokens": tokens}

    def error(self, error: DeckError, request_id: str) -> dict[str, Any]:
        """Make the error envelope."""
        return render_error(error, request_id)


@hookimpl
def deck_register_surfaces(config: object) -> Iterable[Surface]:
    """Register Messages."""
    return (AnthropicMessages(),)
