"""One reasoning setting out of the many ways that clients spell it; disagreement is an error naming both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from deck.canon.request import UNSET_REASONING, ChatRequest, ReasoningSetting
from deck.errors import invalid
from deck.normalize.fields import Field, Reader, Table, Values
from deck.normalize.report import Report
from deck.normalize.types import anything, boolean, integer, one_of, string

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

REASONING = Table(
    "reasoning",
    (
        Field.mapped("effort", one_of(*EFFORTS)),
        Field.mapped("max_tokens", integer(0)),
        Field.mapped("enabled", boolean()),
        Field.mapped("exclude", boolean()),
        Field.annotation("summary", "Deck writes no summaries", "generate_summary"),
    ),
)
THINKING = Table(
    "thinking",
    (
        Field.mapped("type", one_of("enabled", "disabled", "adaptive")),
        Field.mapped("budget_tokens", integer(0)),
        Field.annotation("clear_thinking", "the template decides which earlier thoughts it keeps"),
        Field.annotation("display", "thoughts are shown as the model wrote them"),
    ),
)
TEMPLATE_ARGS = Table("chat_template_args", (Field.mapped("enable_thinking", boolean()),))

REASONING_FIELDS = (
    Field.mapped("reasoning_effort", one_of(*EFFORTS)),
    Field.mapped("reasoning", anything("{effort, max_tokens, enabled, exclude}"), extension=True),
    Field.mapped("thinking", anything("{type, budget_tokens}"), extension=True),
    Field.mapped("enable_thinking", boolean(), extension=True),
    Field.mapped("think", anything("a boolean or an effort"), extension=True),
    Field.mapped("include_reasoning", boolean(), extension=True),
    Field.mapped("chat_template_args", anything("{enable_thinking}"), extension=True),
    Field.mapped("reasoning_budget_tokens", integer(-1), "thinking_budget_tokens", "reasoning_budget", extension=True),
    Field.mapped("reasoning_budget_message", string(longest=2000), extension=True),
    Field.mapped("reasoning_format", one_of("none", "auto", "deepseek", "deepseek-legacy"), extension=True),
)

_PLAIN = {
    "reasoning_effort": "effort",
    "enable_thinking": "enabled",
    "reasoning_budget_tokens": "budget",
    "include_reasoning": "exclude",
}


# The first of them that was said is where the client asked, above all.
_OF_THINKING = ("effort", "enabled", "budget", "preserve")
_MESSAGE, _NO_BUDGET = "reasoning_budget_message", "it needs a reasoning budget"


class ReasoningMerge:
    """Collect what each spelling says; the first word for a member stands, a different later one is refused."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._said: dict[str, tuple[str, Any]] = {}

    def say(self, member: str, value: Any, path: str) -> None:
        """Take one statement: `enabled`, `effort`, `budget`, `preserve` or `exclude` from `path`."""
        if member == "effort":
            self._agree("enabled", value != "none", path)
            if value == "none":
                return
        self._agree(member, value, path)

    def _agree(self, member: str, value: Any, path: str) -> None:
        if member in self._said and self._said[member][1] != value:
            first = self._said[member][0]
            raise invalid(f"{first!r} and {path!r} say different things about reasoning; send one of them", path)
        self._said.setdefault(member, (path, value))

    def value(self, member: str) -> Any:
        """Return what was said of `member`, None = nothing."""
        return self._said.get(member, ("", None))[1]

    def setting(self) -> ReasoningSetting:
        """Return the outcome.

        Raises:
            DeckError: thinking is switched off and given a budget at once.
        """
        if not self._said:
            return UNSET_REASONING
        if self.value("enabled") is False and self.value("budget"):
            off, budget = self._said["enabled"][0], self._said["budget"][0]
            raise invalid(f"{off!r} switches thinking off and {budget!r} gives it a budget; send one of them", budget)
        said = [self._said[member][0] for member in _OF_THINKING if member in self._said]
        return ReasoningSetting(
            enabled=self.value("enabled"),
            effort=self.value("effort"),
            budget=self.value("budget"),
            preserve=self.value("preserve"),
            path=said[0] if said else "reasoning_effort",
            asked=tuple(dict.fromkeys(said[:-1] if "preserve" in self._said else said)),
        )


def read_reasoning_object(
    merge: ReasoningMerge, reader: Reader, value: Any, path: str, table: Table = REASONING
) -> None:
    """Read OpenRouter's and the Responses wire's `reasoning` object, whose members stand in `table`."""
    if not isinstance(value, dict):
        raise invalid(f"{path}: expected an object", path, "invalid_type")
    inner = reader.read(table, value, path)
    for name, member in (
        ("effort", "effort"),
        ("enabled", "enabled"),
        ("max_tokens", "budget"),
        ("exclude", "exclude"),
    ):
        if name in inner:
            merge.say(member, inner.get(name), inner.path(name))


def read_thinking_object(merge: ReasoningMerge, reader: Reader, value: Any, path: str) -> None:
    """Read the Messages wire's `thinking`, which several clients send on Chat too; a boolean is taken as on or off."""
    if isinstance(value, bool):
        merge.say("enabled", value, path)
        return
    if not isinstance(value, dict):
        raise invalid(f"{path}: expected an object with a type", path, "invalid_type")
    inner = reader.read(THINKING, value, path)
    if "type" not in inner:
        raise invalid(f"{path}.type is required", f"{path}.type", "missing_required_parameter")
    merge.say("enabled", inner.get("type") != "disabled", inner.path("type"))
    if "budget_tokens" in inner:
        merge.say("budget", inner.get("budget_tokens"), inner.path("budget_tokens"))


def read_think(merge: ReasoningMerge, value: Any, path: str) -> None:
    """Read Ollama's `think`: a boolean or an effort."""
    if isinstance(value, bool):
        merge.say("enabled", value, path)
    elif isinstance(value, str) and value in EFFORTS:
        merge.say("effort", value, path)
    else:
        raise invalid(f"{path}: expected a boolean or one of {', '.join(EFFORTS)}", path, "invalid_type")


def read_template_args(merge: ReasoningMerge, reader: Reader, value: Any, path: str) -> None:
    """Read `chat_template_args`, whose only member is `enable_thinking`."""
    if not isinstance(value, dict):
        raise invalid(f"{path}: expected an object", path, "invalid_type")
    inner = reader.read(TEMPLATE_ARGS, value, path)
    if "enable_thinking" in inner:
        merge.say("enabled", inner.get("enable_thinking"), inner.path("enable_thinking"))


def read_template_kwargs(
    merge: ReasoningMerge, value: Mapping[str, Any], path: str, allowed: frozenset[str]
) -> dict[str, Any]:
    """Read `chat_template_kwargs`: the two thinking switches, and names the profile allows, which are returned."""
    rest = {}
    for key, item in value.items():
        where = f"{path}.{key}"
        if key in ("enable_thinking", "preserve_thinking"):
            if not isinstance(item, bool):
                raise invalid(f"{where}: expected a boolean", where, "invalid_type")
            merge.say("enabled" if key == "enable_thinking" else "preserve", item, where)
        elif key in allowed:
            rest[key] = item
        else:
            raise invalid(
                f"{where}: only enable_thinking, preserve_thinking and names that the profile lists in "
                f"template_kwargs may be set; other template overrides are refused",
                where,
                "unsupported_parameter",
            )
    return rest


def read_fields(
    reader: Reader, fields: Values, allowed: frozenset[str], *, table: Table = REASONING
) -> tuple[ReasoningMerge, dict[str, Any]]:
    """Read all rows of `REASONING_FIELDS` and `chat_template_kwargs` that a body has.

    Args:
        reader: of the whole body.
        fields: what it found at the top level.
        allowed: template variables a client may set, which are returned.
        table: the members of this wire's `reasoning`.

    Raises:
        DeckError: two spellings disagree, or one cannot be honoured.
    """
    merge = ReasoningMerge(reader.report)
    kwargs: dict[str, Any] = {}
    for name, member in _PLAIN.items():
        if name in fields:
            value = fields.get(name)
            merge.say(member, not value if member == "exclude" else value, fields.path(name))
    if "reasoning" in fields:
        read_reasoning_object(merge, reader, fields.get("reasoning"), fields.path("reasoning"), table)
    if "thinking" in fields:
        read_thinking_object(merge, reader, fields.get("thinking"), fields.path("thinking"))
    if "think" in fields:
        read_think(merge, fields.get("think"), fields.path("think"))
    if "chat_template_args" in fields:
        read_template_args(merge, reader, fields.get("chat_template_args"), fields.path("chat_template_args"))
    if "chat_template_kwargs" in fields:
        where = fields.path("chat_template_kwargs")
        kwargs = read_template_kwargs(merge, fields.get("chat_template_kwargs"), where, allowed)
    check_format(fields, reader.report, is_hidden=bool(merge.value("exclude")))
    if _MESSAGE in fields and merge.value("budget") is None:
        reader.report.ignored(fields.path(_MESSAGE), _NO_BUDGET)
    return merge, kwargs


def with_setting(request: ChatRequest, setting: ReasoningSetting, report: Report) -> ChatRequest:
    """Return a request with another setting; where that has no budget, the message for the budget's end goes too."""
    extra = request.extra
    if _MESSAGE in extra and setting.budget is None:
        if request.reasoning.budget is not None:  # else it was said when the request was read
            report.ignored(_MESSAGE, _NO_BUDGET)
        extra = {name: value for name, value in extra.items() if name != _MESSAGE}
    return replace(request, reasoning=setting, extra=extra)


def check_format(fields: Values, report: Report, *, is_hidden: bool) -> None:
    """Check `reasoning_format`; `is_hidden` = the client wants no thoughts.

    Raises:
        DeckError: thoughts cannot be both in the text and hidden.
    """
    chosen = fields.get("reasoning_format")
    if chosen is None:
        return
    where = fields.path("reasoning_format")
    if is_hidden and chosen == "none":
        raise invalid(f"{where}: 'none' leaves thoughts in the text, where they cannot be excluded", where)
    if chosen == "deepseek-legacy":
        why = "thoughts stay in the text only where llama-server does not stream, and Deck always has it stream"
        report.changed(where, why, shown=f"{where}=deepseek-legacy>deepseek")
