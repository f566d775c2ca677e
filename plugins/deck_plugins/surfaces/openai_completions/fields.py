"""The field tables of Completions.

Sources: the OpenAI API reference and SDK types for the vendor's rows, llama.cpp's server for the extensions, and what
text-completion clients for several engines send at once, among them SillyTavern (`textgen-settings.js`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from deck.api import (
    EXTENSIONS,
    OUT_OF_REACH,
    SAMPLING,
    Field,
    Table,
    anything,
    boolean,
    mapping,
    number,
    string,
    strings,
)

from .values import breakers

_STORES_NOTHING = "Deck keeps nothing"
_CACHE = "llama-server caches prompts by itself"
_SET_PER_SERVER = "the context is set per server, in the profile"
_MODELS = "Deck routes by model and profile"
_NO_SAMPLER = "llama-server has no such sampler"
_NO_TEMPLATE = "a raw prompt has no template; write it into the prompt, or use /v1/chat/completions"
_CHAT = "it belongs to /v1/chat/completions; this route takes a raw prompt"
_FILL_IN = "filling in the middle is /infill's; or put the model's fill-in tokens into the prompt"

# The same meaning under the names of other engines.
_SPELLINGS = {
    "max_tokens": ("max_new_tokens", "num_predict"),
    "repeat_penalty": ("rep_pen",),
    "repeat_last_n": ("rep_pen_range", "repetition_penalty_range"),
    "typical_p": ("typical",),
    "top_n_sigma": ("nsigma",),
    "mirostat": ("mirostat_mode",),
    "seed": ("sampler_seed",),
    "stop": ("stopping_strings",),
    "samplers": ("sampler_priority",),
    "ignore_eos": ("ban_eos_token",),
    "grammar": ("grammar_string",),
}
_TYPES = {
    # Clients that build prompts themselves stop at every speaker's name; llama-server knows no bound.
    "stop": strings(most=64, or_one=True),
    "dry_sequence_breakers": breakers(),
    "grammar": string(),
}
_REASONS = {
    "repeat_last_n": "-1 is the whole context, 0 is off",
    "grammar": "GBNF; an empty one is off",
    "samplers": "llama.cpp's names, in order",
    "dry_sequence_breakers": "an array of strings, or the text of one",
}


def _here(rows: Iterable[Field]) -> Iterator[Field]:
    """Return shared rows with this route's further spellings."""
    for row in rows:
        yield replace(
            row,
            aliases=(*row.aliases, *_SPELLINGS.get(row.name, ())),
            type=_TYPES.get(row.name, row.type),
            reason=_REASONS.get(row.name, row.reason),
        )


_TOLERATED_HERE = frozenset({"echo", "n_probs"})

# What turns a sampler of another engine off.
_OFF: dict[str, tuple[object, ...]] = {
    "tfs": (1,),
    "tfs_z": (1,),
    "top_a": (0,),
    "smoothing_factor": (0,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "encoder_repetition_penalty": (1,),
    "no_repeat_ngram_size": (0,),
    "penalty_alpha": (0,),
    "repetition_decay": (0,),
    "rep_pen_slope": (0, 1),
    "skew": (0,),
    "num_beams": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "early_stopping": (False,),
    "guidance_scale": (1,),
    "min_length": (0,),
    "min_tokens": (0,),
    "max_tokens_second": (0,),
}

FIELDS = Table(
    "completions",
    (
        Field.mapped("model", string(empty=False)),
        Field.mapped("prompt", anything("a string, or an array of token ids; either as the one element of an array")),
        Field.mapped("stream", boolean()),
        Field.mapped("stream_options", mapping()),
        *_here(SAMPLING),
        Field.mapped("logprobs", anything("integer 0…5, the number of alternatives, or false")),
        *_here(EXTENSIONS),
        Field.mapped("guided_json", mapping(), extension=True, reason="read as json_schema"),
        Field.mapped("dynamic_temperature", boolean(), extension=True, reason="dynatemp_range says it"),
        Field.mapped("dynatemp_low", number(0, 100), "dynatemp_min", extension=True, reason="only with dynatemp_range"),
        Field.mapped(
            "dynatemp_high", number(0, 100), "dynatemp_max", extension=True, reason="only with dynatemp_range"
        ),
        Field.annotation("user", _STORES_NOTHING),
        Field.annotation("metadata", _STORES_NOTHING),
        Field.annotation("safety_identifier", _STORES_NOTHING),
        Field.annotation("prompt_cache_key", _CACHE),
        Field.annotation("prompt_cache_retention", _CACHE),
        Field.annotation("truncation_length", _SET_PER_SERVER),
        Field.annotation("num_ctx", _SET_PER_SERVER),
        Field.annotation("max_context_length", _SET_PER_SERVER),
        Field.annotation("api_type", _MODELS),
        Field.annotation("api_server", _MODELS),
        Field.annotation("legacy_api", _MODELS),
        Field.annotation("provider", _MODELS),
        Field.annotation("include_reasoning", "the text is the model's own, its thoughts included"),
        Field.annotation("spaces_between_special_tokens", "llama-server adds no spaces"),
        Field.annotation("smoothing_curve", "it shapes what smoothing_factor would do"),
        Field.annotation("negative_prompt", "it means something only with guidance_scale"),
        Field.annotation("usage", "usage is always counted; stream_options.include_usage sends it in a stream"),
        Field.tolerated("n", (1,), "one completion per request"),
        Field.tolerated("best_of", (1,), "one completion per request"),
        Field.tolerated("echo", (False,), "llama-server gives no logprobs of a prompt; the client has its text"),
        Field.tolerated("suffix", ("",), _FILL_IN),
        Field.tolerated("store", (False,), "stored completions are not simulated", hint=True),
        Field.tolerated("service_tier", ("auto", "default"), "there is one tier here", hint=True),
        Field.tolerated("response_format", ({"type": "text"},), "send json_schema or grammar on this route"),
        Field.tolerated("n_probs", (0,), "use logprobs"),
        Field.tolerated("prompt_logprobs", (0, False), "llama-server gives no logprobs of a prompt"),
        *(Field.tolerated(name, values, f"{_NO_SAMPLER}; the value shown is its off") for name, values in _OFF.items()),
        Field.tolerated("do_sample", (True,), "send temperature: 0 for the likeliest token"),
        Field.tolerated("temperature_last", (True,), "send samplers for another order"),
        Field.tolerated("add_bos_token", (True,), "the model's file says whether a prompt begins with it"),
        Field.tolerated("add_special_tokens", (True,), "the model's file says whether a prompt begins with them"),
        Field.tolerated("skip_special_tokens", (True,), "llama-server shows none that end an answer"),
        Field.tolerated("include_stop_str_in_output", (False,), "llama-server cuts the stop string off"),
        Field.tolerated("trim_stop", (True,), "llama-server cuts the stop string off"),
        Field.tolerated("truncate_prompt_tokens", (), "llama-server cuts no prompts; send a shorter one"),
        Field.tolerated("stop_token_ids", ([],), "send stop strings"),
        Field.tolerated("custom_token_bans", ("", []), "send logit_bias with false for each token"),
        Field.tolerated("banned_tokens", ("", []), "send logit_bias with false for each token"),
        Field.tolerated("banned_strings", ("", []), "llama-server bans single tokens only, by logit_bias"),
        Field.tolerated("speculative_ngram", (False,), "drafting is set per server, in the profile"),
        Field.tolerated("token_healing", (False,), "llama-server does not take prompts back"),
        Field.tolerated("grammar_retain_state", (False,), "a grammar begins anew with every request"),
        Field.tolerated("reasoning_format", ("none",), "the text is the model's own, its thoughts included"),
        Field.refused("top_logprobs", "this route counts alternatives in logprobs"),
        Field.refused("sampler_order", "its numbers mean another engine's samplers; send samplers"),
        Field.refused("guided_grammar", "send grammar, as GBNF"),
        Field.refused("guided_regex", "send grammar, as GBNF"),
        Field.refused("guided_choice", "send grammar, as GBNF"),
        Field.refused("structured_outputs", "send json_schema or grammar"),
        *(Field.refused(name, _FILL_IN) for name in ("input_prefix", "input_suffix", "input_extra")),
        *(
            Field.refused(name, _CHAT)
            for name in (
                "messages",
                "tools",
                "tool_choice",
                "parallel_tool_calls",
                "functions",
                "function_call",
                "modalities",
                "audio",
            )
        ),
        Field.refused("input", "input belongs to /v1/responses; this route takes prompt"),
        *(
            Field.refused(name, _NO_TEMPLATE)
            for name in (
                "reasoning_effort",
                "reasoning",
                "thinking",
                "enable_thinking",
                "think",
                "thinking_budget_tokens",
                "reasoning_budget",
                "reasoning_budget_tokens",
                "reasoning_budget_message",
                "chat_template_args",
                "chat_template_kwargs",
                "add_generation_prompt",
                "continue_final_message",
                "parse_tool_calls",
            )
        ),
        *(row for row in OUT_OF_REACH if row.name not in _TOLERATED_HERE),
    ),
)

STREAM_OPTIONS = Table(
    "completions.stream_options",
    (
        Field.mapped("include_usage", boolean()),
        Field.annotation("include_obfuscation", "no padding is produced"),
    ),
)

TABLES = {"": FIELDS, "stream_options": STREAM_OPTIONS}
