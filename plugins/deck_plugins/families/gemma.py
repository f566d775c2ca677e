"""Gemma 2 to 4 and FunctionGemma: calls between marks of their own, or as JSON or Python in a code fence.

Facts: the chat templates of gemma-2-2b-it and gemma-4-31B-it, https://ai.google.dev/gemma/docs/functiongemma, and
https://ai.google.dev/gemma/docs/core/model_card_3. Templates before 4 raise on a system turn, which llama-server merges
into the first user turn, and on turns that do not alternate.
"""

from __future__ import annotations

from collections.abc import Iterable

from deck.api import Facts, Family, hookimpl, kit

FAMILY = kit.StandardFamily(
    name="gemma",
    title="Gemma 2 to 4, FunctionGemma",
    source="https://ai.google.dev/gemma/docs and the chat templates of Gemma 2 and 4",
    marks=(("<start_of_turn>",), ("<|turn>",)),
    architectures=frozenset({"gemma", "gemma2", "gemma3", "gemma3n", "gemma4"}),
    sampling=(
        kit.Sampling(
            values={"temperature": 1.0, "top_k": 64, "top_p": 0.95},
            source="https://huggingface.co/google/gemma-4-31B-it, for Gemma 3 the guide of Unsloth",
        ),
    ),
    syntaxes=(
        kit.CallMarks("<|tool_call>", "<tool_call|>", '<|"|>'),
        kit.CallMarks("<start_function_call>", "<end_function_call>", "<escape>"),
        kit.PythonCalls("```tool_code", "```"),
        kit.TaggedJson("<tool_call>", "</tool_call>"),
        kit.BareJson(),
        kit.PythonCalls("[", ""),
    ),
    thinking=kit.think_tags(("<|channel>thought", "<channel|>"), ("<think>", "</think>")),
    switches=(kit.Switch(mark="enable_thinking"), kit.Switch(how="never")),
    strict_turns=("roles must alternate user/assistant",),
    calls_as=("<|tool_call>call:name{…}<tool_call|>", "<start_function_call>…", "a tool_code fence", kit.BARE_JSON),
    thoughts_as=("<|channel>thought…<channel|>",),
    quirks=("turns alternate, where the template raises",),
)


@hookimpl
def deck_register_families(config: object) -> Iterable[Family]:
    """Register the family."""
    return (FAMILY,)


@hookimpl
def deck_choose_family(profile: object, facts: Facts) -> str | None:
    """Choose it for models that say of themselves what its templates say."""
    return FAMILY.name if FAMILY.accepts(facts) else None
