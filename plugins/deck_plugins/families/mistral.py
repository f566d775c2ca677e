"""Mistral: calls behind `[TOOL_CALLS]`, ids of nine characters, thoughts in `[THINK]`.

Facts: the chat templates of Mistral-Nemo, Mistral-Small-3.2, Devstral-Small and Ministral-3, and the model cards named
beside the sampling values. The templates raise on ids of another length, and on turns that do not alternate, where
calls and results are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable

from deck.api import Facts, Family, hookimpl, kit

_CARD = "https://huggingface.co/mistralai"
_ALTERNATE = "conversation roles must alternate user"

FAMILY = kit.StandardFamily(
    name="mistral",
    title="Mistral Nemo, Small 3, Devstral, Ministral 3, Magistral",
    source="chat templates of Mistral-Nemo, Mistral-Small-3.2, Devstral-Small, Ministral-3",
    marks=(("[INST]", "[TOOL_CALLS]"), ("[INST]", "[SYSTEM_PROMPT]"), ("[INST]", "[AVAILABLE_TOOLS]")),
    architectures=frozenset({"mistral3", "mistral4"}),
    sampling=(
        kit.Sampling(
            mark="[THINK]", values={"temperature": 0.7, "top_p": 0.95}, source=f"{_CARD}/Magistral-Small-2509"
        ),
        kit.Sampling(
            mark="[SYSTEM_PROMPT]", values={"temperature": 0.15}, source=f"{_CARD}/Mistral-Small-3.2-24B-Instruct-2506"
        ),
    ),
    syntaxes=(kit.BracketedCalls(), kit.Stray("[TOOL_CALLS]")),
    thinking=kit.think_tags(("[THINK]", "[/THINK]"), ("<think>", "</think>")),
    switches=(kit.Switch(mark="[THINK]", how="always"), kit.Switch(how="never")),
    silent_beside_calls=("Tool call IDs should be alphanumeric strings with length 9",),
    strict_turns=(_ALTERNATE,),
    calls_as=("[TOOL_CALLS]name[ARGS]{…}", '[TOOL_CALLS][{"name": …}]'),
    thoughts_as=("[THINK]…[/THINK]",),
    quirks=(
        "ids of calls are nine letters and digits",
        "a user turn behind a result is folded into it, where the template wants alternation",
        "text beside a call is reported where the template does not show it",
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
