"""MiniMax M1, M2 and M3: calls as invocations between tags.

Facts: the chat templates of MiniMax-M1, MiniMax-M2 and MiniMax-M3, and the model card named beside the sampling values.
M2's template begins every answer with a thought; M3's switches thinking by a variable of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from deck.api import Facts, Family, hookimpl, kit

FAMILY = kit.StandardFamily(
    name="minimax",
    title="MiniMax M1, M2, M3",
    source="chat templates of MiniMax-M1, M2 and M3",
    marks=(("]~b]",), ("<beginning_of_sentence>",)),
    architectures=frozenset({"minimax-m2", "minimax-m3"}),
    sampling=(
        kit.Sampling(
            mark="]<]minimax[>[",
            values={"temperature": 1.0, "top_p": 0.95},
            source="https://huggingface.co/MiniMaxAI/MiniMax-M3",
        ),
        kit.Sampling(
            mark="minimax:tool_call",
            values={"temperature": 1.0, "top_p": 0.95, "top_k": 40},
            source="https://huggingface.co/MiniMaxAI/MiniMax-M2",
        ),
    ),
    syntaxes=(
        kit.Invokes(("minimax:tool_call",)),
        kit.Invokes(("tool_call",), prefix="]<]minimax[>["),
        kit.TaggedJson("<tool_calls>", "</tool_calls>"),
        kit.Stray("<minimax:tool_call>", "</minimax:tool_call>", "]<]minimax[>[", "[e~["),
    ),
    thinking=kit.think_tags(("<think>", "</think>"), ("<mm:think>", "</mm:think>")),
    switches=(
        kit.Switch(mark="thinking_mode", on={"thinking_mode": "enabled"}, off={"thinking_mode": "disabled"}),
        kit.Switch(mark="<think>", how="always"),
        kit.Switch(how="never"),
    ),
    silent_beside_calls=("<beginning_of_sentence>",),
    calls_as=("<minimax:tool_call><invoke name=…>…", "]<]minimax[>[<tool_call>…", "<tool_calls>{…}</tool_calls>"),
    thoughts_as=("<think>…</think>", "<mm:think>…</mm:think>"),
    quirks=("a result without a call is a user's text, where the template raises",),
)


@hookimpl
def deck_register_families(config: object) -> Iterable[Family]:
    """Register the family."""
    return (FAMILY,)


@hookimpl
def deck_choose_family(profile: object, facts: Facts) -> str | None:
    """Choose it for models that say of themselves what its templates say."""
    return FAMILY.name if FAMILY.accepts(facts) else None
