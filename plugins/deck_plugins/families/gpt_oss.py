"""gpt-oss: the harmony format, with thoughts and calls in channels of their own.

Facts: the chat template of gpt-oss-120b and the makers' description of harmony
(https://cookbook.openai.com/articles/openai-harmony). The template shows the first call of a turn only, and raises on
text and thoughts beside a call.
"""

from __future__ import annotations

from collections.abc import Iterable

from deck.api import Facts, Family, hookimpl, kit

FAMILY = kit.StandardFamily(
    name="gpt_oss",
    title="gpt-oss",
    source="https://cookbook.openai.com/articles/openai-harmony and the chat template of gpt-oss-120b",
    marks=(("<|start|>", "<|channel|>", "<|message|>"),),
    architectures=frozenset({"gpt-oss"}),
    sampling=(kit.Sampling(values={"temperature": 1.0, "top_p": 1.0}, source="https://github.com/openai/gpt-oss"),),
    syntaxes=(kit.HarmonyCalls(),),
    syntaxes_first=True,
    thinking=kit.HarmonyChannels,
    switches=(kit.Switch(how="effort"),),
    efforts=("low", "medium", "high"),
    one_call=("<|channel|>",),
    text_or_thoughts=("<|channel|>",),
    silent_beside_calls=("LLM-jp",),
    calls_as=("<|channel|>commentary to=functions.name …<|message|>{…}<|call|>",),
    thoughts_as=("<|channel|>analysis<|message|>…<|end|>",),
    quirks=(
        "each call has a turn of its own: the template shows the first of several only",
        "text beside a call stands behind the thoughts: the template raises on both",
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
