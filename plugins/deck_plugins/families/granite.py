"""Granite 3 and 4: calls as tagged JSON.

Facts: the chat templates of granite-3.3-2b-instruct, granite-4.0 and granite-4.1
(https://www.ibm.com/granite/docs/models/granite). The makers recommend no sampling values.
"""

from __future__ import annotations

from collections.abc import Iterable

from deck.api import Facts, Family, hookimpl, kit

FAMILY = kit.StandardFamily(
    name="granite",
    title="Granite 3, 4",
    source="https://www.ibm.com/granite/docs/models/granite and the chat templates of Granite 3.3 to 4.1",
    marks=(("<|start_of_role|>",),),
    architectures=frozenset({"granite", "granitemoe", "granitehybrid", "graniteswitch", "granite_swa"}),
    syntaxes=(
        kit.TaggedJson("<|tool_call|>", ""),
        kit.TaggedJson("<tool_call>", "</tool_call>"),
        kit.TaggedFunction(),
        kit.BareJson(),
        kit.Stray("<|tool_call|>", "<|end_of_text|>"),
    ),
    thinking=kit.ThinkTags,
    switches=(kit.Switch(mark="thinking", on={"thinking": True}, off={"thinking": False}), kit.Switch(how="never")),
    calls_as=("<|tool_call|>[…]", kit.TAGGED_JSON, kit.BARE_JSON),
    thoughts_as=("<think>…</think>",),
)


@hookimpl
def deck_register_families(config: object) -> Iterable[Family]:
    """Register the family."""
    return (FAMILY,)


@hookimpl
def deck_choose_family(profile: object, facts: Facts) -> str | None:
    """Choose it for models that say of themselves what its templates say."""
    return FAMILY.name if FAMILY.accepts(facts) else None
