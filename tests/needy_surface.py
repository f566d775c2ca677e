"""A plugin for tests: the Chat wire on routes of its own, with a count, and with every need a request header names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Any

from deck.api import Answer, Needs, Parsed, ParseOptions, ReplyHead, Report, Route, Surface, hookimpl
from deck_plugins.surfaces.openai_chat import OpenAIChat

POINTS = (
    EntryPoint("openai_chat", "deck_plugins.surfaces.openai_chat", "deck"),
    EntryPoint("openai_completions", "deck_plugins.surfaces.openai_completions", "deck"),
    EntryPoint("generic", "deck_plugins.families.generic", "deck"),
    EntryPoint("needy", "needy_surface", "deck"),
)


class Needy(OpenAIChat):
    """`POST /v1/needy` and `/v1/needy/count`; the header `x-needs` lists members of `Needs`."""

    name = "needy"
    title = "Chat for tests"
    routes: Sequence[Route] = (Route(path="/needy"), Route(path="/needy/count", operation="count"))
    header_names: Sequence[str] = ("x-needs",)
    id_headers: Sequence[str] = ("x-request-id", "request-id")

    def parse(self, body: Mapping[str, Any], report: Report, options: ParseOptions) -> Parsed:
        asked = options.headers.get("x-needs", "").split()
        parsed = super().parse(body, report, options)
        self.seen = options
        return replace(parsed, needs=Needs(**dict.fromkeys(asked, True)))

    def render(self, answer: Answer, parsed: Parsed, head: ReplyHead) -> dict[str, Any]:
        whole = super().render(answer, parsed, head)
        return {**whole, "stop_sequence": answer.finish.stop_sequence, "reason": answer.finish.reason.value}

    def render_count(self, tokens: int) -> dict[str, Any]:
        return {"tokens": tokens}


@hookimpl
def deck_register_surfaces(config: object) -> Iterable[Surface]:
    return (Needy(),)
