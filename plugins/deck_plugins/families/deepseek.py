"""DeepSeek R1, V3, V3.1, V3.2 and V4: calls between fullwidth marks or in DSML, thoughts in `<think>`.

Facts: the chat templates of R1 and its distillations, V3.1, V3.2 and V4; the model cards named beside the sampling
values. V3.2's template tells results apart by their place only; its marks come in several spellings in what the model
writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from deck.api import Facts, Family, Tool, ToolCall, hookimpl, json, kit

_CARD = "https://huggingface.co/deepseek-ai"
_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEP, _DONE = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_DSML = ("｜DSML｜", "‖DSML‖", "｜｜DSML｜｜", "|DSML|")


def _described(tools: Sequence[Tool]) -> str:
    """Return the words of DeepSeek-V3.1's model card, whose template shows no tools."""
    listed = "\n\n".join(
        f"### {tool.name}\nDescription: {tool.description or ''}\n\n"
        f"Parameters: {json.dumps(tool.parameters or {'type': 'object', 'properties': {}}).decode()}"
        for tool in tools
    )
    return (
        f"## Tools\nYou have access to the following tools:\n\n{listed}\n\n"
        "IMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
        f"{_BEGIN}{_CALL}tool_call_name{_SEP}tool_call_arguments{_DONE}{{additional_tool_calls}}{_END}\n\nWhere:\n"
        "- `tool_call_name` must be an exact match to one of the available tools\n"
        "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters JSON Schema\n"
        "- For multiple tool calls, chain them directly without separators or spaces"
    )


def _written(call: ToolCall) -> str:
    return f"{_BEGIN}{_CALL}{call.name}{_SEP}{call.arguments}{_DONE}{_END}"


FAMILY = kit.StandardFamily(
    name="deepseek",
    title="DeepSeek R1, V3, V3.1, V3.2, V4",
    source="chat templates of R1, V3.1, V3.2 and V4",
    marks=(("<｜Assistant｜>",),),
    architectures=frozenset({"deepseek32", "deepseek4"}),
    sampling=(
        kit.Sampling(
            mark="tool_calls>", values={"temperature": 1.0, "top_p": 1.0}, source=f"{_CARD}/DeepSeek-V4-Flash"
        ),
        kit.Sampling(mark="DSML", values={"temperature": 1.0, "top_p": 0.95}, source=f"{_CARD}/DeepSeek-V3.2"),
        kit.Sampling(mark="<think>\\n", values={"temperature": 0.6, "top_p": 0.95}, source=f"{_CARD}/DeepSeek-R1"),
    ),
    syntaxes=(
        kit.PrefixedJson(
            begin=_BEGIN,
            call=(f"{_CALL}function{_SEP}", _CALL),
            between=(_SEP, "\n"),
            done=(_DONE,),
            end=_END,
        ),
        kit.Invokes(("function_calls", "tool_calls"), marks=_DSML, bare=True),
        kit.Invokes(("function_calls",)),
        kit.Stray(_BEGIN, _END, _DONE, "<｜end▁of▁sentence｜>"),
    ),
    telling=kit.Telling(_described, _written),
    thinking=kit.ThinkTags,
    switches=(
        kit.Switch(mark="enable_thinking"),
        kit.Switch(mark="<think>", how="always"),
        kit.Switch(how="never"),
    ),
    calls_as=("<｜tool▁calls▁begin｜>…", "<｜DSML｜function_calls><｜DSML｜invoke name=…>…"),
    thoughts_as=("<think>…</think>",),
    quirks=(
        "where the template shows no tools, they are told as the model card of V3.1 says",
        "results come in the order of their calls, which is all that V3.2's template tells them apart by",
    ),
)


@hookimpl
def deck_register_families(config: object) -> Iterable[Family]:
    """Register the family."""
    return (FAMILY,)


@hookimpl
def deck_choose_family(profile: object, facts: Facts) -> str | None:
    """Choose it for models that say of themselves what its templates say."""
    return FAMILY.name if FAMILY.accepts(facts) else None
