"""The family of models that need nothing of their own: what every chat template accepts.

It repairs the order of roles, which templates of many models raise on, and fits a reasoning effort to what the
template knows. It never looks at a model's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from deck.api import ChatRequest, Facts, Family, Filter, Message, Report, Text, ToolCall, ToolResult, hookimpl

_OPEN, _CLOSE = "[system note]", "[end of system note]"
# Where a template spells only low, medium and high, the others mean the nearest of these.
_NEAREST = {"minimal": "low", "xhigh": "high", "max": "high"}


class Generic:
    """Roles in an order that templates take, efforts that they know."""

    name = "generic"

    def defaults(self) -> Mapping[str, Any]:
        """Return nothing: the model's own defaults apply."""
        return {}

    def filter(self, request: ChatRequest) -> Filter | None:
        """Return None: events pass as they are."""
        return None

    def adapt(self, request: ChatRequest, facts: Facts, report: Report) -> ChatRequest:
        """Return the request with its roles in order and its effort known."""
        if not _is_orderly(request.messages):
            messages = merge_turns(place_systems(order_results(request.messages, report), report), report)
            if messages is not request.messages:
                request = replace(request, messages=messages)
        if request.reasoning.effort is not None:
            request = fit_effort(request, facts, report)
        return allow_prefill(request, report)


def _is_orderly(messages: tuple[Message, ...]) -> bool:
    """Tell whether all turns certainly stay as they are; False = they must be looked at."""
    before = ""
    for message in messages:
        role = message.role
        if role == before or role == "developer" or (role == "system" and (before or not _is_plain(message))):
            return False
        before = role
    return True


def order_results(messages: tuple[Message, ...], report: Report) -> tuple[Message, ...]:
    """Put the results of one turn's calls in the order of the calls.

    Clients send them as they come (Claude Code: the fastest tool first), and templates that show no ids, as many do
    not, leave the model nothing but the order to tell them apart.
    """
    ordered: list[Message] | None = None
    for place, message in enumerate(messages):
        ranks = {part.id: rank for rank, part in enumerate(message.parts) if isinstance(part, ToolCall)}
        if len(ranks) < 2:
            continue
        end = place + 1
        while end < len(messages) and _result_of(messages[end]) in ranks:
            end += 1
        results = messages[place + 1 : end]
        wanted = sorted(results, key=lambda result: ranks[_result_of(result)])
        moved = [result for result, other in zip(results, wanted, strict=True) if result is not other]
        for result in moved:
            reason = "results are put in the order of their calls"
            report.changed(result.origin, reason, shown=f"{result.origin}:reordered")
        if moved:
            ordered = ordered or list(messages)
            ordered[place + 1 : end] = wanted
    return messages if ordered is None else tuple(ordered)


def _result_of(message: Message) -> str:
    """Return the id that a turn is the one result of, else an empty one."""
    match message.parts:
        case (ToolResult(id=id),):
            return id
        case _:
            return ""


def place_systems(messages: tuple[Message, ...], report: Report) -> tuple[Message, ...]:
    """Merge the leading system turns into one; fold later ones into a user turn at their place.

    A later one is never hoisted: that would change the beginning of the prompt and lose the server's cache.
    """
    if not any(message.role in ("system", "developer") for message in messages[1:]) and _is_plain(messages[0]):
        return messages
    leading = 0
    while leading < len(messages) and messages[leading].role in ("system", "developer"):
        leading += 1
    placed = [_system(messages[:leading], report)] if leading else []
    for message in messages[leading:]:
        if message.role in ("system", "developer"):
            text = f"{_OPEN}\n{_text(message)}\n{_CLOSE}"
            report.changed(
                f"{message.origin}.role",
                "templates take system turns at the beginning only; folded in place into a user turn",
                shown=f"{message.origin}.role={message.role}>user",
            )
            placed.append(Message("user", (Text(text),), message.origin))
        else:
            placed.append(message)
    return tuple(placed)


def _system(messages: tuple[Message, ...], report: Report) -> Message:
    for message in messages:
        if message.role == "developer":
            report.changed(
                f"{message.origin}.role", "is read as system", shown=f"{message.origin}.role=developer>system"
            )
    for message in messages[1:]:
        shown = f"{message.origin}:system+system"
        report.changed(message.origin, "merged into the first system turn", shown=shown)
    text = "\n\n".join(text for message in messages if (text := _text(message)))
    return Message("system", (Text(text),), messages[0].origin)


def _is_plain(message: Message) -> bool:
    """Tell whether a turn stays as it is in the first place: no system turn, or one of plain text."""
    if message.role == "developer":
        return False
    return message.role != "system" or (len(message.parts) == 1 and isinstance(message.parts[0], Text))


def _text(message: Message) -> str:
    return "\n".join(part.text for part in message.parts if isinstance(part, Text))


def merge_turns(messages: tuple[Message, ...], report: Report) -> tuple[Message, ...]:
    """Merge neighbours of one role, which templates that want alternation raise on."""
    if not any(one.role == other.role and _mergeable(one) for one, other in pairwise(messages)):
        return messages
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last is None or last.role != message.role or not _mergeable(last):
            merged.append(message)
            continue
        report.changed(
            message.origin,
            f"merged into the {message.role} turn before it",
            shown=f"{message.origin}:{last.role}+{last.role}",
        )
        merged[-1] = replace(last, parts=last.parts + message.parts)
    return tuple(merged)


def _mergeable(message: Message) -> bool:
    match message.role:
        case "user":
            return True
        case "assistant":
            return not any(isinstance(part, ToolCall) for part in message.parts)
        case _:
            return False


def fit_effort(request: ChatRequest, facts: Facts, report: Report) -> ChatRequest:
    """Keep an effort the template can use, else the nearest, else report it."""
    setting = request.reasoning
    if setting.effort is None:
        return request
    if facts.template_caps.get("supports_reasoning_effort") is False:
        report.ignored(setting.path, "the model's template knows no efforts", field="reasoning_effort")
        return replace(request, reasoning=replace(setting, effort=None))
    nearest = _NEAREST.get(setting.effort)
    if nearest is None or (facts.template is not None and setting.effort in facts.template):
        return request
    shown = f"{setting.path}={setting.effort}>{nearest}"
    report.changed(setting.path, "the nearest effort that the template knows", shown=shown, field="reasoning_effort")
    return replace(request, reasoning=replace(setting, effort=nearest))


def allow_prefill(request: ChatRequest, report: Report) -> ChatRequest:
    """Switch thinking off where the last turn is an assistant's, which llama-server continues and cannot think for."""
    last = request.messages[-1] if request.messages else None
    if last is None or last.role != "assistant" or request.reasoning.enabled is False:
        return request
    report.changed(
        last.origin, "the answer continues this turn, so thinking is off", shown=f"{last.origin}>enable_thinking=false"
    )
    setting = replace(request.reasoning, enabled=False, effort=None, budget=None)
    return replace(request, reasoning=setting)


@hookimpl
def deck_register_families(config: object) -> Iterable[Family]:
    """Register the family that everything falls back to."""
    return (Generic(),)
