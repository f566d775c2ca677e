"""Qwen 2.5, 3, 3-Coder, 3.5 and QwQ: calls as tagged JSON or tagged functions, thoughts in `<think>`.

Facts: the chat templates of Qwen2.5-7B-Instruct, QwQ-32B, Qwen3-0.6B, Qwen3-Coder and Qwen3.5-4B, and the model cards
named beside the sampling values. Qwen3.5's template raises on a system turn that is not the first.
"""

from __future__ import annotations

from collections.abc import Iterable

from deck.api import Facts, Family, hookimpl, kit

_CARD = "https://huggingface.co/Qwen"

FAMILY = kit.StandardFamily(
    name="qwen",
    title="Qwen 2.5, 3, 3-Coder, 3.5, QwQ",
    source="chat templates of Qwen2.5, QwQ, Qwen3, Qwen3-Coder, Qwen3.5",
    marks=(
        ("<|im_start|>", "You are Qwen, "),
        ("<|im_start|>", "<tool_call>", "multi_step_tool", "enable_thinking"),
    ),
    architectures=frozenset(
        {
            *("qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3next", "qwen3vl", "qwen3vlmoe"),
            *("qwen35", "qwen35moe"),
        }
    ),
    signs=("<|im_start|>", "<tool_call>"),
    sampling=(
        kit.Sampling(
            mark="render_extra_keys",
            values={"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repeat_penalty": 1.05},
            source=f"{_CARD}/Qwen3-Coder-30B-A3B-Instruct",
        ),
        kit.Sampling(
            mark="enable_thinking",
            values={"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0},
            source=f"{_CARD}/Qwen3-8B (thinking) and Qwen3.5-35B-A3B (thinking, precise coding)",
        ),
        kit.Sampling(
            mark="You are Qwen, created by Alibaba Cloud",
            values={"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repeat_penalty": 1.05},
            source=f"{_CARD}/Qwen2.5-7B-Instruct (generation_config.json)",
        ),
    ),
    syntaxes=(kit.TaggedJson("<tool_call>", "</tool_call>"), kit.TaggedFunction(), kit.BareJson()),
    thinking=kit.ThinkTags,
    switches=(kit.Switch(mark="enable_thinking"), kit.Switch(mark="<think>", how="always"), kit.Switch(how="never")),
    calls_as=(kit.TAGGED_JSON, kit.TAGGED_FUNCTION, kit.BARE_JSON),
    thoughts_as=("<think>…</think>",),
    quirks=("a later system turn is folded in place, where the template of 3.5 raises",),
)


@hookimpl
def deck_register_families(config: object) -> Iterable[Family]:
    """Register the family."""
    return (FAMILY,)


@hookimpl
def deck_choose_family(profile: object, facts: Facts) -> str | None:
    """Choose it for models that say of themselves what its templates say."""
    return FAMILY.name if FAMILY.accepts(facts) else None
