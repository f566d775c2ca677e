"""Every field of the official SDK's request types and of llama-server's schema has a row in a table."""

from __future__ import annotations

import typing

import pytest
from llama_fields import ON_EVERY_ROUTE
from openai.types.chat import completion_create_params as sdk
from openai.types.chat.chat_completion_assistant_message_param import ChatCompletionAssistantMessageParam
from openai.types.chat.chat_completion_developer_message_param import ChatCompletionDeveloperMessageParam
from openai.types.chat.chat_completion_function_message_param import ChatCompletionFunctionMessageParam
from openai.types.chat.chat_completion_stream_options_param import ChatCompletionStreamOptionsParam
from openai.types.chat.chat_completion_system_message_param import ChatCompletionSystemMessageParam
from openai.types.chat.chat_completion_tool_message_param import ChatCompletionToolMessageParam
from openai.types.chat.chat_completion_user_message_param import ChatCompletionUserMessageParam
from openai.types.shared_params.function_definition import FunctionDefinition

from deck_plugins.surfaces.openai_chat.fields import FIELDS, FUNCTION, MESSAGE, STREAM_OPTIONS

# llama.cpp tools/server/server-schema.cpp and server-common.cpp, build 11434.
LLAMA_SERVER = [
    *ON_EVERY_ROUTE,
    "stream",
    "max_completion_tokens",
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "thinking_budget_tokens",
    "reasoning_budget_start_tag",
    "reasoning_budget_end_tag",
    "reasoning_budget_end_tags",
    "parse_tool_calls",
    "continue_final_message",
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "top_logprobs",
    "chat_template_kwargs",
    "reasoning_effort",
    "add_generation_prompt",
]

# Recorded and read from real clients: editors, agents, SDKs.
CLIENTS = [
    "model",
    "messages",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "max_tokens",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "n",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "grammar",
    "json_schema",
    "chat_template_kwargs",
    "reasoning_format",
    "reasoning_budget",
    "thinking_budget_tokens",
    "cache_prompt",
    "id_slot",
    "n_predict",
    "samplers",
    "timings_per_token",
    "return_progress",
    "add_generation_prompt",
    "continue_final_message",
    "max_completion_tokens",
    "functions",
    "function_call",
    "repetition_penalty",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "enable_thinking",
    "chat_template_args",
    "think",
    "guided_json",
    "verbosity",
    "text",
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "promptCacheKey",
    "prompt_cache_retention",
    "prompt_cache_options",
    "store",
    "service_tier",
    "prediction",
    "usage",
    "moderation",
    "include",
    "provider",
    "transforms",
    "route",
    "vl_high_resolution_images",
    "cache_control",
    "modalities",
    "audio",
    "web_search_options",
    "background",
    "reasoningSummary",
    "textVerbosity",
]

MESSAGE_KEYS = [
    "role",
    "content",
    "name",
    "tool_call_id",
    "tool_calls",
    "function_call",
    "refusal",
    "audio",
    "annotations",
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "prefix",
    "partial",
    "thinking",
    "cache_control",
    "copilot_references",
    "copilot_confirmations",
    "copilot_cache_control",
    "cot_id",
    "cot_summary",
    "id",
]


def keys(*types: typing.Any) -> set[str]:
    return {key for item in types for key in (item.__required_keys__ | item.__optional_keys__)}


@pytest.mark.parametrize(
    "name",
    sorted(
        keys(sdk.CompletionCreateParamsStreaming, sdk.CompletionCreateParamsNonStreaming) | {*LLAMA_SERVER, *CLIENTS}
    ),
)
def test_every_top_level_field_has_a_row(name: str) -> None:
    assert FIELDS.find(name) is not None


@pytest.mark.parametrize(
    "name",
    sorted(
        keys(
            ChatCompletionAssistantMessageParam,
            ChatCompletionDeveloperMessageParam,
            ChatCompletionFunctionMessageParam,
            ChatCompletionSystemMessageParam,
            ChatCompletionToolMessageParam,
            ChatCompletionUserMessageParam,
        )
        | set(MESSAGE_KEYS)
    ),
)
def test_every_message_field_has_a_row(name: str) -> None:
    assert MESSAGE.find(name) is not None


def test_stream_options_and_functions_have_their_rows() -> None:
    assert all(STREAM_OPTIONS.find(name) for name in keys(ChatCompletionStreamOptionsParam))
    assert all(FUNCTION.find(name) for name in keys(FunctionDefinition))
