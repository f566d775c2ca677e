"""The sampling fields that every surface shares, under llama-server's names and with its ranges.

Ranges: the OpenAI wire's where it has the field, else llama-server's `server-schema` and the sampler's domain.
"""

from __future__ import annotations

from deck.normalize.fields import Field
from deck.normalize.types import (
    INT32_MAX,
    UINT32_MAX,
    anything,
    boolean,
    budget,
    integer,
    logit_bias,
    number,
    off_or_integer,
    string,
    strings,
)

SAMPLERS = frozenset(
    {
        "dry",
        "top_k",
        "typ_p",
        "typical_p",
        "top_p",
        "top_n_sigma",
        "min_p",
        "temperature",
        "xtc",
        "infill",
        "penalties",
        "adaptive_p",
    }
)

_EXT = True

OPENAI_SAMPLING = (
    Field.mapped("max_tokens", budget(), "max_completion_tokens", "n_predict"),
    Field.mapped("temperature", number(0, 2)),
    Field.mapped("top_p", number(0, 1)),
    Field.mapped("frequency_penalty", number(-2, 2)),
    Field.mapped("presence_penalty", number(-2, 2)),
    Field.mapped("seed", integer(-1, UINT32_MAX - 1)),
    Field.mapped("stop", strings(most=4, or_one=True)),
    Field.mapped("logit_bias", logit_bias()),
)

LLAMA_SAMPLING = (
    Field.mapped("top_k", off_or_integer(-1, 0), extension=_EXT),
    Field.mapped("min_p", number(0, 1), extension=_EXT),
    Field.mapped("typical_p", number(0, 1), extension=_EXT),
    Field.mapped("top_n_sigma", number(-1, 100), extension=_EXT),
    Field.mapped("repeat_penalty", number(0, 10), "repetition_penalty", extension=_EXT),
    Field.mapped("repeat_last_n", integer(-1), extension=_EXT, reason="-1 is the whole context"),
    Field.mapped("mirostat", integer(0, 2), extension=_EXT),
    Field.mapped("mirostat_tau", number(0, 100), extension=_EXT),
    Field.mapped("mirostat_eta", number(0, 1), extension=_EXT),
    Field.mapped("dynatemp_range", number(0, 10), extension=_EXT),
    Field.mapped("dynatemp_exponent", number(0, 10), extension=_EXT),
    Field.mapped("xtc_probability", number(0, 1), extension=_EXT),
    Field.mapped("xtc_threshold", number(0, 1), extension=_EXT),
    Field.mapped("dry_multiplier", number(0, 100), extension=_EXT),
    Field.mapped("dry_base", number(1, 100), extension=_EXT),
    Field.mapped("dry_allowed_length", integer(0), extension=_EXT),
    Field.mapped("dry_penalty_last_n", integer(-1), extension=_EXT, reason="-1 is the whole context"),
    Field.mapped("dry_sequence_breakers", strings(most=64), extension=_EXT),
    Field.mapped("adaptive_target", number(-1, 1), extension=_EXT),
    Field.mapped("adaptive_decay", number(0, 0.99), extension=_EXT),
    Field.mapped("samplers", strings(most=16, known=SAMPLERS), extension=_EXT),
    Field.mapped("min_keep", integer(0), extension=_EXT),
    Field.mapped("ignore_eos", boolean(), extension=_EXT),
    Field.mapped("cache_prompt", boolean(), extension=_EXT),
    Field.mapped("n_keep", integer(-1), extension=_EXT),
    Field.mapped("n_indent", integer(0), extension=_EXT),
    Field.mapped("t_max_predict_ms", integer(0, INT32_MAX), extension=_EXT, reason="checked at line ends only"),
)

SAMPLING = OPENAI_SAMPLING + LLAMA_SAMPLING

EXTENSIONS = (
    Field.mapped("grammar", string(empty=False), extension=_EXT, reason="GBNF; not together with tools"),
    Field.mapped("json_schema", anything("a JSON Schema"), extension=_EXT),
    Field.mapped("timings_per_token", boolean(), extension=_EXT),
    Field.mapped("return_progress", boolean(), extension=_EXT),
    Field.mapped(
        "return_token_ids",
        boolean(),
        "return_tokens",
        extension=_EXT,
        reason="of the tokens that make one character together, llama-server names the last",
    ),
)

_OUTSIDE = "it would reach outside this request; Deck decides it"
_INTERNAL = "it is internal to llama-server's parsing; Deck decides it"

OUT_OF_REACH = (
    *(Field.refused(name, _OUTSIDE) for name in ("id_slot", "slot_id", "lora", "n_discard", "n_cache_reuse")),
    Field.refused("speculative.*", "drafting is set per server, in the profile's [server] args"),
    Field.refused("chat_template", "templates are set per server, in the profile"),
    *(
        Field.refused(name, _INTERNAL)
        for name in (
            "grammar_lazy",
            "grammar_triggers",
            "grammar_type",
            "preserved_tokens",
            "chat_format",
            "chat_parser",
            "generation_prompt",
            "message_delimiters",
            "response_fields",
            "verbose",
            "sse_ping_interval",
            "reasoning_control",
            "reasoning_budget_start_tag",
            "reasoning_budget_end_tag",
            "reasoning_budget_end_tags",
            "backend_sampling",
            "echo",
        )
    ),
    Field.refused("n_cmpl", "one completion per request"),
    Field.refused("n_probs", "use logprobs and top_logprobs"),
    Field.refused("post_sampling_probs", "it renames members of logprobs that clients rely on"),
    Field.refused("t_max_prompt_ms", "llama-server does not implement it"),
)

SAMPLING_NAMES = frozenset(field.name for field in SAMPLING)
