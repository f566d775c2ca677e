"""Kimi K2 and K3: calls in sections of their own.

Facts: the chat templates of Kimi-K2-Instruct, Kimi-K2-Thinking and Kimi-K3, and the model cards named beside the
sampling values. K3's template raises on an effort that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable

from deck.api import Facts, Family, hookimpl, kit

_CARD = "https://huggingface.co/moonshotai"

FAMILY = kit.StandardFamily(
    name="kimi",
    title="Kimi K2, K3",
    source="chat templates of Kimi-K2-Instruct, Kimi-K2-Thinking, Kimi-K3",
    marks=(("<|im_middle|>",), ("<|end_of_msg|>", "tool-declare")),
    architectures=frozenset({"kimi-k3"}),
    sampling=(
        kit.Sampling(mark="<think>", values={"temperature": 1.0}, source=f"{_CARD}/Kimi-K2-Thinking"),
        kit.Sampling(mark="<|im_middle|>", values={"temperature": 0.6}, source=f"{_CARD}/Kimi-K2-Instruct"),
    ),
    syntaxes=(
        kit.PrefixedJson(
            begin="<|tool_calls_section_begin|>",
            call=("<|tool_call_begin|>",),
            between=("<|tool_call_argument_begin|>",),
            done=("<|tool_call_end|>",),
            end="<|tool_calls_section_end|>",
        ),
        kit.SectionedCalls(),
        kit.Stray(
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
            "<|tool_call_end|>",
            "<|close|>tools<|sep|>",
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|close|>message<|sep|>",
            "<|end_of_msg|>",
        ),
    ),
    thinking=kit.think_tags(("<think>", "</think>"), ("<|open|>think<|sep|>", "<|close|>think<|sep|>")),
    switches=(
        kit.Switch(mark="thinking_effort", on={"thinking": True}, off={"thinking": False}),
        kit.Switch(mark="<think>", how="always"),
        kit.Switch(how="never"),
    ),
    efforts=("low", "high", "max"),
    effort_variable="thinking_effort",
    calls_as=("<|tool_calls_section_begin|>…", '<|open|>call tool="name"<|sep|>…'),
    thoughts_as=("<think>…</think>", "<|open|>think<|sep|>…"),
    quirks=(
        "a mark that ends a section which never began is left out",
        "an effort is the nearest of low, high and max, where the template of K3 raises",
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
