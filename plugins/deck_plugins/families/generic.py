"""The family of models that nothing else is known of: what every chat template accepts.

It repairs the order of roles, which templates of many models raise on, fits a reasoning effort to what the template
knows, and finds calls whose tags stand for nothing else. It never looks at a model's name.
"""

from __future__ import annotations

from collections.abc import Iterable

from deck.api import Family, hookimpl, kit

FAMILY = kit.StandardFamily(
    name="generic",
    title="Any other model",
    source="what chat templates have in common",
    syntaxes=(
        kit.TaggedJson("<tool_call>", "</tool_call>"),
        kit.TaggedFunction(),
        kit.ArgumentPairs(),
        kit.TaggedJson("<TOOLCALL>", "</TOOLCALL>"),
        kit.PythonCalls("<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    thinking=kit.ThinkTags,
    calls_as=(kit.TAGGED_JSON, kit.TAGGED_FUNCTION, kit.ARGUMENT_PAIRS, "<TOOLCALL>[…]</TOOLCALL>", kit.PYTHON_CALLS),
    thoughts_as=("<think>…</think>",),
    strict_turns=("roles must alternate user/assistant",),
    one_call=("only supports single tool-calls at once",),
    silent_beside_calls=(
        "You are a function calling AI model",
        "<|START_ACTION|>",
        "Muse Glimmer ATEM",
        "<|tool_call:begin|>",
    ),
    quirks=(
        "turns are in an order that every template takes",
        "tools that the template does not show are told in the system turn",
    ),
)


@hookimpl
def deck_register_families(config: object) -> Iterable[Family]:
    """Register the family that everything falls back to."""
    return (FAMILY,)
