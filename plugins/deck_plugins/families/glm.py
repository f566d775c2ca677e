"""GLM 4.5 to 5: calls as pairs of keys and values, thoughts in `<think>`.

Facts: the chat templates of GLM-4.6 and GLM-4.7-Flash, and the model cards named beside the sampling values.
"""

from __future__ import annotations

from collections.abc import Iterable

from deck.api import Facts, Family, hookimpl, kit

FAMILY = kit.StandardFamily(
    name="glm",
    title="GLM 4.5 to 5",
    source="chat templates of GLM-4.6 and GLM-4.7-Flash",
    marks=(("[gMASK]", "<|observation|>", "<arg_key>"),),
    architectures=frozenset({"glm4moe", "glm-dsa", "glm5-next"}),
    sampling=(
        kit.Sampling(values={"temperature": 1.0, "top_p": 0.95}, source="https://huggingface.co/zai-org/GLM-4.7"),
    ),
    syntaxes=(
        kit.ArgumentPairs(),
        kit.TaggedJson("<tool_call>", "</tool_call>"),
        kit.TaggedFunction(),
        kit.Stray("<|observation|>", "<|user|>"),
    ),
    thinking=kit.ThinkTags,
    calls_as=(kit.ARGUMENT_PAIRS, kit.TAGGED_JSON, kit.TAGGED_FUNCTION),
    thoughts_as=("<think>…</think>",),
    quirks=("arguments of earlier calls are always an object, where the template raises",),
)


@hookimpl
def deck_register_families(config: object) -> Iterable[Family]:
    """Register the family."""
    return (FAMILY,)


@hookimpl
def deck_choose_family(profile: object, facts: Facts) -> str | None:
    """Choose it for models that say of themselves what its templates say."""
    return FAMILY.name if FAMILY.accepts(facts) else None
