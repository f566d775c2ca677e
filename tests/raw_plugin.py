"""Plugins for tests of raw prompts: steps that know them, that do not, and that turn them into something else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from typing import Any

from deck.api import ChatRequest, Event, Facts, Family, Features, Filter, Profile, Report, Request, Step, hookimpl

POINTS = (
    EntryPoint("openai_chat", "deck_plugins.surfaces.openai_chat", "deck"),
    EntryPoint("openai_completions", "deck_plugins.surfaces.openai_completions", "deck"),
    EntryPoint("raw", "raw_plugin", "deck"),
)


@dataclass(frozen=True)
class Cooler:
    """Knows both kinds of request."""

    name: str = "cooler"
    phase: int = 1

    def apply(self, request: Request, profile: Profile, report: Report) -> Request:
        if request.sampling.get("temperature", 0) <= 1:
            return request
        report.changed("temperature", "too warm", shown="temperature>1")
        return replace(request, sampling={**request.sampling, "temperature": 1})


@dataclass(frozen=True)
class Careless:
    """Takes every request for a conversation, where the seed says so."""

    name: str = "careless"
    phase: int = 2

    def apply(self, request: Request, profile: Profile, report: Report) -> Request:
        if request.sampling.get("seed") == 1:
            assert len(request.messages) >= 0  # type: ignore[union-attr]  # the mistake that is meant
        return request


@dataclass(frozen=True)
class Changeling:
    """Makes a conversation of a raw prompt, where the seed says so."""

    name: str = "changeling"
    phase: int = 3

    def apply(self, request: Request, profile: Profile, report: Report) -> Request:
        return ChatRequest(model=request.model, messages=()) if request.sampling.get("seed") == 2 else request


class Loud:
    """A family that leaves marks wherever it is asked."""

    name = "loud"

    @property
    def features(self) -> Features:
        return Features(title="Loud", source="a test")

    def arguments(self) -> Sequence[str]:
        return ()

    def stops(self) -> Sequence[str]:
        return ("LOUD",)

    def defaults(self, facts: Facts) -> Mapping[str, Any]:
        return {"top_k": 99}

    def adapt(self, request: ChatRequest, facts: Facts, report: Report) -> ChatRequest:
        return replace(request, sampling={**request.sampling, "min_p": 0.99})

    def filter(self, request: ChatRequest, report: Report, seed: str) -> Filter | None:
        return Louder()


class Louder:
    """Makes itself heard."""

    def feed(self, event: Event) -> Iterator[Event]:
        raise RuntimeError("a raw answer goes through no family")
        yield event


@hookimpl
def deck_register_steps(config: object) -> Iterable[Step]:
    return (Cooler(), Careless(), Changeling())


@hookimpl
def deck_register_families(config: object) -> Iterable[Family]:
    return (Loud(),)


@hookimpl
def deck_choose_family(profile: object, facts: object) -> str | None:
    return "loud"
