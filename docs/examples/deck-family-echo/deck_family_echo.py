"""The family `echo`: a default of its own, one limit, and how to recognise its models.

It stands for a kind of model whose makers recommend a low temperature and whose answers fall apart above 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from deck.api import ChatRequest, Facts, Family, Filter, Report, hookimpl

_HOTTEST = 1


class Echo:
    """What models of the `echo` architecture need."""

    name = "echo"

    def defaults(self) -> Mapping[str, Any]:
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

    def filter(self, request: ChatRequest) -> Filter | None:
        """Return None: the answers need no repair."""
        return None


@hookimpl
def deck_register_families(config: object) -> Iterable[Family]:
    """Register the family; Deck calls this once, at start-up."""
    return (Echo(),)


@hookimpl
def deck_choose_family(profile: object, facts: Facts) -> str | None:
    """Recognise the models by what they say of themselves, never by their name."""
    return "echo" if facts.metadata.get("general.architecture") == "echo" else None
