"""A model family as a value: what its makers and its chat templates say, and the code that acts on it.

A family plugin declares one `StandardFamily`; what it needs beyond that it adds in a subclass. Knows templates by
texts in them, never by the name of a model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from deck.canon.request import ChatRequest, Message, Tool
from deck.contracts import Facts, Features, Filter
from deck.kit.chain import Feeds, chain
from deck.kit.rescue import rescue_of
from deck.kit.switches import KWARG, Switch, fit_effort, switch_of, switch_thinking
from deck.kit.syntax import Syntax
from deck.kit.turns import (
    allow_prefill,
    answer_before_user,
    note_text_beside_calls,
    one_call_a_turn,
    order_turns,
    thoughts_beside_calls,
)
from deck.kit.unshown import TAGGED, Telling, tell_tools
from deck.normalize.report import Report

_REQUIRED = re.compile(r"\bin [\w.]*parameters\.required\b(?! or)")
Thinking = Callable[[Report], Feeds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What the makers recommend for models whose template contains `mark`; `source` is where they say so."""

    values: Mapping[str, Any]
    source: str
    mark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandardFamily:
    """A family that is described by data.

    Args:
        name: as in a profile.
        title: for people.
        source: where the facts are from.
        marks: groups of texts; a chat template that contains all of one group is this family's.
        architectures: `general.architecture` of GGUF files that hold its models.
        signs: texts that a template has as well where the architecture is to count beside it; none = it never does.
        sampling: defaults; the first whose mark is in the template counts.
        syntaxes: how the models write calls; of two that begin alike, the first is tried first.
        syntaxes_first: true = calls are looked for before thoughts, whose marks they share.
        thinking: makes the filter that finds thoughts in the text.
        switches: how thinking is switched; the first that the template has counts.
        efforts: that the models know; none = what the template says.
        effort_variable: the template's own variable for an effort, where its text contains it.
        one_call: texts of templates that take one call in a turn.
        text_or_thoughts: texts of templates that take only one of both beside a call.
        silent_beside_calls: texts of templates that show no text beside calls.
        strict_turns: texts of templates that count turns without tools.
        telling: how models are told of tools where the template shows none.
        flags: launch flags of llama-server.
        own_stops: stop strings.
        calls_as: the syntaxes in words, for documents.
        thoughts_as: how thoughts are marked, for documents.
        quirks: what is repaired, in words, for documents.
    """

    name: str
    title: str
    source: str
    marks: tuple[tuple[str, ...], ...] = ()
    architectures: frozenset[str] = frozenset()
    signs: tuple[str, ...] = ()
    sampling: tuple[Sampling, ...] = ()
    syntaxes: tuple[Syntax, ...] = ()
    syntaxes_first: bool = False
    thinking: Thinking | None = None
    switches: tuple[Switch, ...] = (KWARG,)
    efforts: tuple[str, ...] = ()
    effort_variable: str | None = None
    one_call: tuple[str, ...] = ()
    text_or_thoughts: tuple[str, ...] = ()
    silent_beside_calls: tuple[str, ...] = ()
    strict_turns: tuple[str, ...] = ()
    telling: Telling = TAGGED
    flags: tuple[str, ...] = ()
    own_stops: tuple[str, ...] = ()
    calls_as: tuple[str, ...] = ()
    thoughts_as: tuple[str, ...] = ()
    quirks: tuple[str, ...] = field(default=())

    def accepts(self, facts: Facts) -> bool:
        """Tell whether a model is of this family by what it says of itself; its template counts before all else."""
        template = facts.template
        is_own = facts.metadata.get("general.architecture") in self.architectures
        if not template:
            return is_own
        if any(all(mark in template for mark in group) for group in self.marks):
            return True
        return is_own and bool(self.signs) and all(sign in template for sign in self.signs)

    def defaults(self, facts: Facts) -> Mapping[str, Any]:
        """Return what the makers recommend for the template; nothing where they recommend nothing."""
        template = facts.template or ""
        return next((item.values for item in self.sampling if item.mark in template), {})

    def arguments(self) -> Sequence[str]:
        """Return the launch flags."""
        return self.flags

    def stops(self) -> Sequence[str]:
        """Return the stop strings."""
        return self.own_stops

    @property
    def features(self) -> Features:
        """What it does, for documents."""
        return Features(
            title=self.title,
            source=self.source,
            calls=self.calls_as,
            thoughts=self.thoughts_as,
            switches=tuple(dict.fromkeys(switch.how for switch in self.switches)),
            efforts=self.efforts,
            sampling=tuple((dict(item.values), item.source) for item in self.sampling),
            quirks=self.quirks,
        )

    def filter(self, request: ChatRequest, report: Report, seed: str) -> Filter | None:
        """Return the filters of thoughts and of calls, one behind the other; raw text keeps its thoughts."""
        wants_raw = request.extra.get("reasoning_format") == "none"
        thoughts = self.thinking(report) if self.thinking is not None and not wants_raw else None
        calls = rescue_of(self.syntaxes, request, report, seed) if request.tools else None
        if calls is None:
            return thoughts
        return chain((calls, thoughts) if self.syntaxes_first else (thoughts, calls))

    def adapt(self, request: ChatRequest, facts: Facts, report: Report) -> ChatRequest:
        """Return the request with its turns in order, and thinking said as the template reads it."""
        messages = self.turns(order_turns(request.messages, report), facts, report)
        if messages is not request.messages:
            request = replace(request, messages=messages)
        if facts.template_caps.get("supports_tools") is False:
            request = tell_tools(request, facts, report, self.telling)
        if _wants_required(facts.template or ""):
            request = replace(request, tools=tuple(map(_with_required, request.tools)))
        if request.reasoning.effort is not None:
            request = self._effort(request, facts, report)
        if request.messages and request.messages[-1].role == "assistant":
            request = allow_prefill(request, report)
        if request.reasoning.enabled is None:
            return request
        switch = switch_of(self.switches, facts)
        if request.messages and request.messages[-1].role == "assistant" and switch.how != "line":
            return request  # llama-server itself must know that it is off
        return switch_thinking(request, switch, report, least=self.efforts[0] if self.efforts else None)

    def _effort(self, request: ChatRequest, facts: Facts, report: Report) -> ChatRequest:
        variable = self.effort_variable
        has_own = variable is not None and variable in (facts.template or "")
        return fit_effort(
            request,
            facts,
            report,
            efforts=self.efforts if has_own or variable is None else (),
            variable=variable if has_own else None,
        )

    def turns(self, messages: tuple[Message, ...], facts: Facts, report: Report) -> tuple[Message, ...]:
        """Return the turns as the template takes them."""
        template = facts.template or ""
        if self.one_call and _has_any(self.one_call, template):
            messages = one_call_a_turn(messages, report)
        if self.text_or_thoughts and _has_any(self.text_or_thoughts, template):
            messages = thoughts_beside_calls(messages, report)
        if self.silent_beside_calls and _has_any(self.silent_beside_calls, template):
            note_text_beside_calls(messages, report)
        if self.strict_turns and _has_any(self.strict_turns, template):
            messages = answer_before_user(messages, report)
        return messages


@lru_cache(maxsize=128)
def _has_any(marks: tuple[str, ...], template: str) -> bool:
    return any(mark in template for mark in marks)


@lru_cache(maxsize=32)
def _wants_required(template: str) -> bool:
    """Tell whether a template looks into `required` of a tool that may have none, and raises in llama-server."""
    return _REQUIRED.search(template) is not None


def _with_required(tool: Tool) -> Tool:
    parameters = tool.parameters or {"type": "object", "properties": {}}
    return tool if "required" in parameters else replace(tool, parameters={**parameters, "required": []})
