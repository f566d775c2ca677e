"""DeepSeek R1, V3, V3.1, V3.2 and V4: calls between fullwidth marks or in DSML, thoughts in `<think>`.

Facts: the chat templates of R1 and its distillations, V3.1, V3.2 and V4; the model cards named beside the sampling
values. V3.2's template tells results apart by their place only; its marks come in several spellings in what the model
writes.
"""

from __future__ import annotations

from collections.abc import Iterable

from deck.api import Facts, Family, hookimpl, kit

_CARD = "https://huggingface.co/deepseek-ai"
_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEP, _DONE = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_DSML = ("｜DSML｜", "‖DSML‖", "｜｜DSML｜｜", "|DSML|")

FAMILY = kit.StandardFamily(
    name="deepseek",
    title="DeepSeek R1, V3, V3.1, V3.2, V4",
    source="chat templates of R1, V3.1, V3.2 and V4",
    marks=(("<｜Assistant｜>",),),
    architectures=frozenset({"deepseek32", "deepseek4"}),
    sampling=(
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
    thinking=kit.ThinkTags,
    switches=(
        kit.Switch(mark="enable_thinking"),
        kit.Switch(mark="<think>", how="always"),
        kit.Switch(how="never"),
    ),
    calls_as=("<｜tool▁calls▁begin｜>…", "<｜DSML｜function_calls><｜DSML｜invoke name=…>…"),
    thoughts_as=("<think>…</think>",),
    quirks=("results come in the order of their calls, which is all that V3.2's template tells them apart by",),
)


@hookimpl
def deck_register_families(config: object) -> Iterable[Family]:
    """Register the family."""
    return (FAMILY,)


@hookimpl
def deck_choose_family(profile: object, facts: Facts) -> str | None:
    """Choose it for models that say of themselves what its templates say."""
    return FAMILY.name if FAMILY.accepts(facts) else None
