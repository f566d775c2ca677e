"""How a chat template is told to think, and how much; facts by which it is known stand in its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from deck.canon.request import ChatRequest
from deck.contracts import Facts
from deck.kit.turns import add_system_line
from deck.normalize.report import Report

_SCALE = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# Where a template spells only low, medium and high, the others mean the nearest of these.
_NEAREST = {"minimal": "low", "xhigh": "high", "max": "high"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """How thinking is switched in a template that contains `mark`; an empty mark is in every one.

    Args:
        mark: a text of the template.
        how: `kwarg` = `enable_thinking`, which llama-server passes on, and `on` or `off` beside it; `line` = a line at
            the end of the system turn; `effort` = not at all, the least effort stands for off; `always` = the model
            thinks whatever it is told; `never` = it does not think.
        on: template variables, or the line, that mean thinking.
        off: those that mean none.
    """

    mark: str = ""
    how: Literal["kwarg", "line", "effort", "always", "never"] = "kwarg"
    on: Mapping[str, Any] | str = field(default_factory=dict)
    off: Mapping[str, Any] | str = field(default_factory=dict)


KWARG = Switch()


def switch_of(switches: Sequence[Switch], facts: Facts) -> Switch:
    """Return the first switch that the template has."""
    template = facts.template or ""
    return next((item for item in switches if item.mark in template), KWARG)


def switch_thinking(request: ChatRequest, switch: Switch, report: Report, *, least: str | None) -> ChatRequest:
    """Return the request with thinking on or off in the way that its template knows; `least` is the least effort."""
    setting = request.reasoning
    if setting.enabled is None:
        return request
    chosen = switch.on if setting.enabled else switch.off
    match switch.how:
        case "kwarg":
            if isinstance(chosen, str) or not chosen:
                return request
            return replace(request, template_kwargs={**chosen, **request.template_kwargs})
        case "line":
            assert isinstance(chosen, str)
            report.changed(setting.path, "the model reads it in its system turn", shown=f"{setting.path}>system")
            return replace(request, messages=add_system_line(request.messages, chosen))
        case "effort":
            return request if setting.enabled else _least_effort(request, report, least)
        case "always" if not setting.enabled:
            report.ignored(setting.path, "the model always thinks", field="reasoning_effort")
        case "never" if setting.enabled:
            report.ignored(setting.path, "the model does not think", field="reasoning_effort")
        case _:
            pass
    return replace(request, reasoning=replace(setting, enabled=None))


def _least_effort(request: ChatRequest, report: Report, least: str | None) -> ChatRequest:
    setting = request.reasoning
    if least is None:
        report.ignored(setting.path, "the model always thinks", field="reasoning_effort")
        return replace(request, reasoning=replace(setting, enabled=None))
    off = "none" if setting.path.endswith("effort") else "off"
    shown = f"{setting.path}={off}>{least}"
    report.changed(setting.path, "the model always thinks; this is the least", shown=shown, field="reasoning_effort")
    return replace(request, reasoning=replace(setting, enabled=None, effort=least))


def fit_effort(
    request: ChatRequest, facts: Facts, report: Report, *, efforts: Sequence[str] = (), variable: str | None = None
) -> ChatRequest:
    """Keep an effort that the template can use, else the nearest, else report it.

    Args:
        request: as the client sent it.
        facts: of the running server.
        report: gets a note.
        efforts: those that the model knows; none = what its template says.
        variable: the template's own name for it, None = `reasoning_effort`.
    """
    setting = request.reasoning
    effort = setting.effort
    if effort is None:
        return request
    if variable is None and facts.template_caps.get("supports_reasoning_effort") is False:
        report.ignored(setting.path, "the model's template knows no efforts", field="reasoning_effort")
        return replace(request, reasoning=replace(setting, effort=None))
    if efforts:
        nearest = effort if effort in efforts else _nearest(effort, efforts)
    elif facts.template is not None and effort in facts.template:
        nearest = effort
    else:
        nearest = _NEAREST.get(effort, effort)
    if nearest != effort:
        shown = f"{setting.path}={effort}>{nearest}"
        reason = "the nearest effort that the template knows"
        report.changed(setting.path, reason, shown=shown, field="reasoning_effort")
    if variable is not None:
        kwargs = {variable: nearest, **request.template_kwargs}
        return replace(request, reasoning=replace(setting, effort=None), template_kwargs=kwargs)
    return request if nearest == effort else replace(request, reasoning=replace(setting, effort=nearest))


def _nearest(effort: str, efforts: Sequence[str]) -> str:
    """Return the known effort that is nearest on the scale, of two the greater."""
    if effort not in _SCALE:
        return efforts[-1]
    rank = _SCALE.index(effort)
    return min(efforts, key=lambda item: (abs(_SCALE.index(item) - rank), -_SCALE.index(item)))
