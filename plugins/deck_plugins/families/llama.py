"""Llama 3.1 to 4: calls as bare JSON, behind `<|python_tag|>`, or as Python.

Facts: the chat templates of Llama-3.1-8B-Instruct, Llama-3.2-3B-Instruct and Llama-3.3-70B-Instruct, the prompt formats
at https://www.llama.com/docs/model-cards-and-prompt-formats, and the generation_config.json of Llama-3.1-8B-Instruct.
The templates raise on two calls in a turn, and show no text beside a call.
"""

from __future__ import annotations

from collections.abc import Iterable

from deck.api import Facts, Family, hookimpl, kit

FAMILY = kit.StandardFamily(
    name="llama",
    title="Llama 3.1 to 4",
    source="https://www.llama.com/docs/model-cards-and-prompt-formats and the chat templates of Llama 3.1 to 3.3",
    marks=(("<|start_header_id|>", "ipython"), ("<|header_start|>", "<|header_end|>")),
    architectures=frozenset({"llama4"}),
    sampling=(
        kit.Sampling(
            values={"temperature": 0.6, "top_p": 0.9},
            source="https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct (generation_config.json)",
        ),
    ),
    syntaxes=(
        kit.TaggedJson("<|python_tag|>", ""),
        kit.PythonCalls("<|python_tag|>", ""),
        kit.TaggedFunction(),
        kit.BareJson(),
        kit.PythonCalls("<|python_start|>", "<|python_end|>"),
        kit.PythonCalls("[", ""),
        kit.Stray("<|eom_id|>", "<|eot_id|>"),
    ),
    switches=(kit.Switch(how="never"),),
    one_call=("This model only supports single tool-calls at once",),
    silent_beside_calls=("This model only supports single tool-calls at once",),
    calls_as=(kit.BARE_JSON, "<|python_tag|>…", "[name(key=value)]", kit.TAGGED_FUNCTION),
    quirks=(
        "each call has a turn of its own, where the template raises on two",
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
