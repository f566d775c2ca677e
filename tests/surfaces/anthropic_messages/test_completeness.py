"""Every member of the official SDK's request types, beta ones included, and of llama-server's schema has a row."""

from __future__ import annotations

import inspect
import typing
from typing import Any

import anthropic.types as sdk
import anthropic.types.beta as beta
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count
from anthropic.types.beta import message_create_params as beta_create
from llama_fields import ON_EVERY_ROUTE

from deck.api import Treatment
from deck_plugins.surfaces.anthropic_messages.fields import (
    BLOCKS,
    CHANGED_TOOL,
    CONTEXT_MANAGEMENT,
    COUNT,
    FIELDS,
    FORMAT,
    HOSTED,
    KINDS,
    MESSAGE,
    OUTPUT_CONFIG,
    SOURCE,
    THINKING,
    TOOL,
    TOOL_CHOICE,
)

# llama.cpp tools/server/server-schema.cpp and server-common.cpp: what is not named by the vendor.
LLAMA_SERVER = [
    *ON_EVERY_ROUTE,
    "top_logprobs",
    "response_format",
    "parallel_tool_calls",
    "reasoning_effort",
    "thinking_budget_tokens",
    "chat_template_kwargs",
    "add_generation_prompt",
    "parse_tool_calls",
    "continue_final_message",
]
# Recorded and read from agents and SDKs.
CLIENTS = [
    "output_format",
    "anthropic_beta",
    "anthropic_version",
    "context_hint",
    "safeguards",
    "fallbacks",
    "betas",
]


def keys(*types: Any) -> set[str]:
    return {key for item in types for key in (item.__required_keys__ | item.__optional_keys__)}


def members(union: Any) -> list[Any]:
    """Return the typed dictionaries of a union."""
    return [item for item in typing.get_args(union) if hasattr(item, "__required_keys__")]


def kinds(union: Any) -> set[str]:
    """Return what `type` may be in a union's members, an absent or null one left out."""
    found: set[str] = set()
    for item in members(union):
        todo = [typing.get_type_hints(item)["type"]]
        while todo:
            hint = todo.pop()
            if isinstance(hint, str):
                found.add(hint)
            elif hint is not type(None):
                todo += typing.get_args(hint)
    return found


@pytest.mark.parametrize(
    "name",
    sorted(
        keys(
            message_create_params.MessageCreateParamsStreaming,
            message_create_params.MessageCreateParamsNonStreaming,
            beta_create.MessageCreateParamsStreaming,
        )
        | {*LLAMA_SERVER, *CLIENTS}
    ),
)
def test_every_top_level_field_has_a_row(name: str) -> None:
    assert FIELDS.find(name) is not None


@pytest.mark.parametrize(
    "name",
    sorted(keys(message_count_tokens_params.MessageCountTokensParams, beta_count.MessageCountTokensParams)),
)
def test_every_field_of_the_counter_has_a_row(name: str) -> None:
    assert COUNT.find(name) is not None


@pytest.mark.parametrize("name", ["max_tokens", "stream", "stop_sequences", "metadata", "temperature", "min_p"])
def test_the_counter_has_no_field_that_is_not_part_of_the_prompt(name: str) -> None:
    assert COUNT.find(name) is None


@pytest.mark.parametrize("kind", sorted(kinds(sdk.ContentBlockParam) | kinds(beta.BetaContentBlockParam)))
def test_every_kind_of_block_has_a_row(kind: str) -> None:
    row = KINDS.find(kind)
    assert row is not None
    assert (row.treatment is Treatment.MAPPED) == (kind in BLOCKS)


@pytest.mark.parametrize("kind", ["tool_reference", "browser_state"])
def test_every_kind_of_block_in_results_has_a_row(kind: str) -> None:
    assert KINDS.find(kind) is not None


@pytest.mark.parametrize("kind", sorted(kinds(sdk.ToolUnionParam) | kinds(beta.BetaToolUnionParam)))
def test_every_kind_of_tool_has_a_row(kind: str) -> None:
    row = HOSTED.find(kind)
    assert row is not None
    assert (row.treatment is Treatment.MAPPED) == (kind == "custom")


@pytest.mark.parametrize(
    ("table", "types"),
    [
        (MESSAGE, [beta.BetaMessageParam, *members(sdk.MessageParam), beta.BetaSystemMessageParam]),
        (BLOCKS["text"], [sdk.TextBlockParam, beta.BetaTextBlockParam]),
        (BLOCKS["image"], [sdk.ImageBlockParam, beta.BetaImageBlockParam]),
        (BLOCKS["thinking"], [sdk.ThinkingBlockParam, beta.BetaThinkingBlockParam]),
        (BLOCKS["tool_use"], [sdk.ToolUseBlockParam, beta.BetaToolUseBlockParam]),
        (BLOCKS["tool_result"], [sdk.ToolResultBlockParam, beta.BetaToolResultBlockParam]),
        (BLOCKS["tool_reference"], [sdk.ToolReferenceBlockParam, beta.BetaToolReferenceBlockParam]),
        (BLOCKS["tool_addition"], [beta.BetaRequestToolAdditionBlockParam]),
        (BLOCKS["tool_removal"], [beta.BetaRequestToolRemovalBlockParam]),
        (CHANGED_TOOL, [beta.BetaToolChangeToolReferenceParam]),
        (SOURCE, [sdk.Base64ImageSourceParam, sdk.URLImageSourceParam]),
        (TOOL, [sdk.ToolParam, beta.BetaToolParam]),
        (TOOL_CHOICE, members(sdk.ToolChoiceParam)),
        (THINKING, [*members(sdk.ThinkingConfigParam), *members(beta.BetaThinkingConfigParam)]),
        (OUTPUT_CONFIG, [sdk.OutputConfigParam, beta.BetaOutputConfigParam]),
        (FORMAT, [sdk.JSONOutputFormatParam]),
        (CONTEXT_MANAGEMENT, [beta.BetaContextManagementConfigParam]),
    ],
    ids=lambda value: getattr(value, "where", None),
)
def test_every_member_of_an_object_has_a_row(table: Any, types: list[Any]) -> None:
    missing = {key for key in keys(*(item for item in types if inspect.isclass(item))) if table.find(key) is None}
    assert missing == set()
