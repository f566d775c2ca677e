"""Every field of the official SDK's request type, of llama-server's schema and of known clients has a row."""

from __future__ import annotations

import typing

import pytest
from llama_fields import ON_EVERY_ROUTE
from openai.types import completion_create_params as sdk
from openai.types.chat.chat_completion_stream_options_param import ChatCompletionStreamOptionsParam

from deck_plugins.surfaces.openai_completions.fields import FIELDS, STREAM_OPTIONS

# llama.cpp tools/server/server-schema.cpp, build 11434, and its text-completion route.
LLAMA_SERVER = [
    *ON_EVERY_ROUTE,
    "prompt",
    "stream",
    "max_completion_tokens",
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "reasoning_budget_start_tag",
    "reasoning_budget_end_tag",
    "reasoning_budget_end_tags",
    "input_prefix",
    "input_suffix",
    "input_extra",
]

# SillyTavern's text completion (textgen-settings.js, all of its types), Continue, LangChain, vLLM's own users.
CLIENTS = [
    "prompt",
    "model",
    "max_new_tokens",
    "max_tokens",
    "logprobs",
    "temperature",
    "top_p",
    "typical_p",
    "typical",
    "sampler_seed",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "top_k",
    "skew",
    "min_length",
    "min_tokens",
    "num_beams",
    "length_penalty",
    "early_stopping",
    "add_bos_token",
    "dynamic_temperature",
    "dynatemp_low",
    "dynatemp_high",
    "dynatemp_min",
    "dynatemp_max",
    "dynatemp_range",
    "dynatemp_exponent",
    "smoothing_factor",
    "smoothing_curve",
    "dry_allowed_length",
    "dry_multiplier",
    "dry_base",
    "dry_sequence_breakers",
    "dry_penalty_last_n",
    "max_tokens_second",
    "sampler_priority",
    "samplers",
    "stopping_strings",
    "stop",
    "truncation_length",
    "ban_eos_token",
    "skip_special_tokens",
    "include_reasoning",
    "top_a",
    "tfs",
    "tfs_z",
    "epsilon_cutoff",
    "eta_cutoff",
    "mirostat_mode",
    "mirostat_tau",
    "mirostat_eta",
    "custom_token_bans",
    "banned_strings",
    "api_type",
    "api_server",
    "sampler_order",
    "xtc_threshold",
    "xtc_probability",
    "nsigma",
    "top_n_sigma",
    "min_keep",
    "adaptive_target",
    "adaptive_decay",
    "rep_pen",
    "rep_pen_range",
    "repetition_decay",
    "repetition_penalty_range",
    "encoder_repetition_penalty",
    "no_repeat_ngram_size",
    "penalty_alpha",
    "temperature_last",
    "speculative_ngram",
    "do_sample",
    "seed",
    "guidance_scale",
    "negative_prompt",
    "grammar_string",
    "json_schema",
    "repeat_penalty",
    "repeat_last_n",
    "n_predict",
    "num_predict",
    "num_ctx",
    "mirostat",
    "ignore_eos",
    "n_probs",
    "rep_pen_slope",
    "n",
    "spaces_between_special_tokens",
    "guided_grammar",
    "guided_json",
    "include_stop_str_in_output",
    "grammar",
    "grammar_retain_state",
    "trim_stop",
    "logit_bias",
    "cache_prompt",
    "legacy_api",
    "best_of",
    "suffix",
    "max_completion_tokens",
    "use_beam_search",
    "stream",
    "stream_options",
    "user",
    "metadata",
    "provider",
]


def keys(*types: typing.Any) -> set[str]:
    return {key for item in types for key in (item.__required_keys__ | item.__optional_keys__)}


VENDOR = keys(sdk.CompletionCreateParamsStreaming, sdk.CompletionCreateParamsNonStreaming)


def test_the_sdk_has_the_eighteen_keys_that_were_read() -> None:
    assert len(VENDOR) == 18


@pytest.mark.parametrize("name", sorted(VENDOR | {*LLAMA_SERVER, *CLIENTS}))
def test_every_field_has_a_row(name: str) -> None:
    assert FIELDS.find(name) is not None


def test_rows_that_do_not_have_their_effect_say_why() -> None:
    assert [row.name for row in FIELDS if row.treatment.value != "mapped" and not row.reason] == []


def test_stream_options_have_their_rows() -> None:
    assert all(STREAM_OPTIONS.find(name) for name in keys(ChatCompletionStreamOptionsParam))
