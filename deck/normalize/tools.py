"""What of a request's schemas llama-server's grammar lets go, and stop strings that a family adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from deck.canon.request import ChatRequest, Request
from deck.normalize.report import Report
from deck.normalize.schema import fit_schema, note_loosenings


def note_schemas(request: Request, report: Report) -> None:
    """Report, under the client's own paths, what calls and answer will not be held to."""
    if isinstance(request, ChatRequest):
        for tool in request.tools:
            if tool.parameters:
                note_loosenings(report, fit_schema(tool.parameters), tool.path)
    output = request.output
    if output is not None and output.schema:
        note_loosenings(report, fit_schema(output.schema), output.schema_path or output.path)


def add_stops(request: ChatRequest, stops: Sequence[str]) -> ChatRequest:
    """Return the request with a family's stop strings behind the client's own."""
    if not stops:
        return request
    own = request.sampling.get("stop") or ()
    given = [own] if isinstance(own, str) else list(own)
    more = [stop for stop in stops if stop not in given]
    return replace(request, sampling={**request.sampling, "stop": [*given, *more]}) if more else request
