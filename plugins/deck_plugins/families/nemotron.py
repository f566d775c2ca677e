"""Nemotron Nano 2 and 3: calls as `<TOOLCALL>` or tagged functions, thoughts in `<think>`.

Facts: the chat templates of NVIDIA-Nemotron-Nano-v2 and NVIDIA-Nemotron-3-Nano, and the model cards named beside the
sampling values. Nano 2 reads from its system turn whether to think.
"""

from __future__ import annotations

from collections.abc import Iterable

from deck.api import Facts, Family, hookimpl, kit

_CARD = "https://huggingface.co/nvidia"

FAMILY = kit.StandardFamily(
    name="nemotron",
    title="Nemotron Nano 2, 3",
    source="chat templates of NVIDIA-Nemotron-Nano-v2 and NVIDIA-Nemotron-3-Nano",
    marks=(("<TOOLCALL>",), ("truncate_history_thinking", "<function=")),
    architectures=frozenset({"nemotron", "nemotron_h", "nemotron_h_moe"}),
    sampling=(
        kit.Sampling(
            mark="<TOOLCALL>",
            values={"temperature": 0.6, "top_p": 0.95},
            source=f"{_CARD}/NVIDIA-Nemotron-Nano-9B-v2 (thinking)",
        ),
        kit.Sampling(
            mark="truncate_history_thinking",
            values={"temperature": 0.6, "top_p": 0.95},
            source=f"{_CARD}/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 (with tools)",
        ),
    ),
    syntaxes=(
        kit.TaggedJson("<TOOLCALL>", "</TOOLCALL>"),
        kit.TaggedJson("<tool_call>", "</tool_call>"),
        kit.TaggedFunction(),
    ),
    thinking=kit.ThinkTags,
    switches=(
        kit.Switch(mark="'/no_think'", how="line", on="/think", off="/no_think"),
        kit.Switch(mark="enable_thinking"),
        kit.Switch(how="never"),
    ),
    calls_as=("<TOOLCALL>[…]</TOOLCALL>", kit.TAGGED_JSON, kit.TAGGED_FUNCTION),
    thoughts_as=("<think>…</think>",),
    quirks=("thinking is switched in the system turn, where the template reads it there",),
)


@hookimpl
def deck_register_families(config: object) -> Iterable[Family]:
    """Register the family."""
    return (FAMILY,)


@hookimpl
def deck_choose_family(profile: object, facts: Facts) -> str | None:
    """Choose it for models that say of themselves what its templates say."""
    return FAMILY.name if FAMILY.accepts(facts) else None
