"""Read how to think, and what the answer must look like: `thinking`, `output_config` and llama.cpp's own fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from deck.api import (
    Output,
    ParseOptions,
    Reader,
    ReasoningSetting,
    Values,
    invalid,
    reasoning,
    wrong_type,
)

from .fields import FORMAT, OUTPUT_CONFIG, THINKING


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """How to think, whether the client wants to read it, and what else its template is told."""

    setting: ReasoningSetting
    is_hidden: bool
    template_kwargs: Mapping[str, Any]


def read_thinking(reader: Reader, fields: Values, config: Values | None, options: ParseOptions) -> Thinking:
    """Return the one setting that all spellings agree on.

    Raises:
        DeckError: they disagree, or one of them cannot be honoured.
    """
    merge = reasoning.ReasoningMerge(reader.report)
    is_hidden = False
    if "thinking" in fields:
        is_hidden = _thinking(reader, merge, fields)
    if "reasoning_budget_tokens" in fields:
        merge.say("budget", fields.get("reasoning_budget_tokens"), fields.path("reasoning_budget_tokens"))
    kwargs: dict[str, Any] = {}
    if "chat_template_kwargs" in fields:
        where = fields.path("chat_template_kwargs")
        kwargs = reasoning.read_template_kwargs(
            merge, fields.get("chat_template_kwargs"), where, options.template_kwargs
        )
    effort, path = _effort(merge, fields, config)
    setting = merge.setting()
    if "reasoning_budget_message" in fields and setting.budget is None:
        reader.report.ignored(fields.path("reasoning_budget_message"), "it needs a budget for thinking")
    if effort is not None and setting.enabled is False:
        # On this wire an effort goes beyond thinking, so that both together are no contradiction.
        reader.report.ignored(path, "thinking is off, and an effort governs nothing else here")
        effort = None
    asked = [fields.path(name) for name in ("thinking", "reasoning_budget_tokens") if name in fields]
    asked += [path] if effort is not None else []
    return Thinking(
        setting=replace(setting, effort=effort, path=path or setting.path, asked=tuple(asked)),
        is_hidden=is_hidden,
        template_kwargs=kwargs,
    )


def _thinking(reader: Reader, merge: reasoning.ReasoningMerge, fields: Values) -> bool:
    path = fields.path("thinking")
    inner = reader.read(THINKING, fields.get("thinking"), path)
    if "type" not in inner:
        raise invalid(f"{path}.type is required", f"{path}.type", "missing_required_parameter")
    enabled = inner.get("type") != "disabled"
    budget = inner.get("budget_tokens")
    if enabled and budget is not None:
        if budget == 0:
            reason = "without a budget there is no thinking"
            reader.report.changed(f"{path}.type", reason, shown=f"{path}.type={inner.get('type')}>disabled")
        budget = _within(reader, budget, f"{path}.budget_tokens", fields.get("max_tokens"))
        enabled = budget > 0
    merge.say("enabled", enabled, f"{path}.type")
    if budget:
        merge.say("budget", budget, f"{path}.budget_tokens")
    display = inner.get("display")
    if display not in (None, "omitted"):
        reader.report.ignored(f"{path}.display", "Deck writes no summaries; thoughts are shown as the model wrote them")
    return bool(display == "omitted")


def _within(reader: Reader, budget: int, path: str, limit: int | None) -> int:
    """Return a budget that leaves room for an answer; without any there is no thinking."""
    if not limit or budget < limit:
        return budget
    reader.report.changed(
        path, "max_tokens limits thoughts and answer together", shown=f"{path}={budget}>{limit - 1}", field="thinking"
    )
    return limit - 1


def _effort(merge: reasoning.ReasoningMerge, fields: Values, config: Values | None) -> tuple[str | None, str]:
    effort, path = (
        (config.get("effort"), config.path("effort")) if config is not None and "effort" in config else (None, "")
    )
    if "reasoning_effort" not in fields:
        return effort, path
    other, where = fields.get("reasoning_effort"), fields.path("reasoning_effort")
    if effort is not None and effort != other:
        raise invalid(f"{path!r} and {where!r} say different things; send one of them", where)
    if other == "none":
        merge.say("enabled", False, where)
        return None, where
    return other, where


def read_config(reader: Reader, fields: Values) -> Values | None:
    """Return the members of `output_config`."""
    if "output_config" not in fields:
        return None
    return reader.read(OUTPUT_CONFIG, fields.get("output_config"), fields.path("output_config"))


def read_output(reader: Reader, fields: Values, config: Values | None, *, has_tools: bool) -> Output | None:
    """Return the constraint, None = free text.

    Raises:
        DeckError: two constraints are given, or one that llama-server cannot hold.
    """
    found = list(_outputs(reader, fields, config))
    if len(found) > 1:
        first, second = found[0].path, found[1].path
        raise invalid(f"{first!r} and {second!r} both constrain the answer; send one of them", second)
    if not found:
        return None
    [output] = found
    if output.kind == "grammar" and has_tools:
        message = f"{output.path}: a grammar of your own cannot be used together with tools"
        raise invalid(message, output.path)
    return output


def _outputs(reader: Reader, fields: Values, config: Values | None) -> list[Output]:
    found = []
    if config is not None and "format" in config:
        found.append(_format(reader, config.get("format"), config.path("format")))
    if "output_format" in fields:
        where = fields.path("output_format")
        reader.report.changed(where, "is read as output_config.format", shown=f"{where}>output_config.format")
        if config is None or config.get("format") != fields.get("output_format"):
            found.append(_format(reader, fields.get("output_format"), where))
    if "json_schema" in fields:
        schema, where = fields.get("json_schema"), fields.path("json_schema")
        if not isinstance(schema, dict):
            raise wrong_type(where, "a JSON Schema object", schema)
        found.append(Output("json_schema", schema=schema, path=where))
    if "grammar" in fields:
        found.append(Output("grammar", grammar=fields.get("grammar"), path=fields.path("grammar")))
    return found


def _format(reader: Reader, value: Any, path: str) -> Output:
    inner = reader.read(FORMAT, value, path)
    for name in ("type", "schema"):
        if name not in inner:
            raise invalid(f"{path}.{name} is required", f"{path}.{name}", "missing_required_parameter")
    return Output("json_schema", schema=inner.get("schema"), path=path, schema_path=f"{path}.schema")
