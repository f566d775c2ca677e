"""The family `echo`: a default of its own, one limit, a syntax of calls, and how to recognise its models.

It stands for a kind of model whose makers recommend a low temperature, whose answers fall apart above 1, and that
writes its calls as `<<call>>{"name": …, "arguments": {…}}<</call>>`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from deck.api import ChatRequest, Facts, Family, Features, Filter, Report, hookimpl, kit

_HOTTEST = 1
_SYNTAXES = (kit.TaggedJson("<<call>>", "<</call>>"),)


class Echo:
    """What models of the `echo` architecture need."""

    name = "echo"
    features = Features(title="Echo", calls=('<<call>>{"name": …}<</call>>',), quirks=("no temperature above 1",))

    def defaults(self, facts: Facts) -> Mapping[str, Any]:
        """Return what the makers recommend; a profile's `[defaults]` and the client both override it."""
        return {"temperature": 0.2}

    def adapt(self, request: ChatRequest, facts: Facts, report: Report) -> ChatRequest:
        """Return the request with a temperature that these models bear; the values given are never changed."""
        temperature = request.sampling.get("temperature", 0)
        if temperature <= _HOTTEST:
            return request
        report.changed(
            "temperature",
            "echo models answer nonsense above 1",
            shown=f"temperature={temperature}>{_HOTTEST}",
        )
        return replace(request, sampling={**request.sampling, "temperature": _HOTTEST})

    def arguments(self) -> Sequence[str]:
        """Return nothing: llama-server needs no flags of its own for these models."""
        return ()

    def stops(self) -> Sequence[str]:
        """Return nothing: the answers end by themselves."""
        return ()

    def filter(self, request: ChatRequest, report: Report, seed: str) -> Filter | None:
        """Return what finds calls that are left in the text; None where the request offers no tools."""
        return kit.rescue_of(_SYNTAXES, request, report, seed)


@hookimpl
def deck_register_families(config: object) -> Iterable[Family]:
    """Register the family; Deck calls this once, at start-up."""
    return (Echo(),)


@hookimpl
def deck_choose_family(profile: object, facts: Facts) -> str | None:
    """Recognise the models by what they say of themselves, never by their name."""
    return "echo" if facts.metadata.get("general.architecture") == "echo" else None
