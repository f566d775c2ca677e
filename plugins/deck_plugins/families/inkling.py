"""Inkling: typed blocks, each with a mark that says what is in it.

Facts: the description of the output in vLLM's documentation of its parser
(https://docs.vllm.ai/en/latest/api/vllm/parser/inkling). llama.cpp ships no template of it; a GGUF file that brings one
is known by its marks.
"""

from __future__ import annotations

from collections.abc import Iterable

from deck.api import Facts, Family, hookimpl, kit

FAMILY = kit.StandardFamily(
    name="inkling",
    title="Inkling",
    source="https://docs.vllm.ai/en/latest/api/vllm/parser/inkling",
    marks=(("<|message_model|>", "<|content_text|>"),),
    syntaxes=(
        kit.HeadedJson(
            ("<|message_model|>",),
            "<|content_invoke_tool_json|>",
            ("<|end_message|>", "<|content_model_end_sampling|>"),
        ),
    ),
    syntaxes_first=True,
    thinking=kit.block_marks(
        {
            "<|message_model|><|content_thinking|>": "reasoning",
            "<|content_thinking|>": "reasoning",
            "<|message_model|><|content_text|>": "text",
            "<|content_text|>": "text",
        },
        ("<|end_message|>", "<|content_model_end_sampling|>"),
    ),
    calls_as=('<|message_model|><|content_invoke_tool_json|>{"name": …}<|end_message|>',),
    thoughts_as=("<|content_thinking|>…<|end_message|>",),
)


@hookimpl
def deck_register_families(config: object) -> Iterable[Family]:
    """Register the family."""
    return (FAMILY,)


@hookimpl
def deck_choose_family(profile: object, facts: Facts) -> str | None:
    """Choose it for models that say of themselves what its templates say."""
    return FAMILY.name if FAMILY.accepts(facts) else None
