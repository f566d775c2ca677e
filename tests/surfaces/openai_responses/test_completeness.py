"""Every field of the official SDK's request types, of llama-server's schema and of real clients has a row."""

from __future__ import annotations

import typing

import pytest
from llama_fields import ON_EVERY_ROUTE
from openai.types.responses import (
    custom_tool_param,
    function_tool_param,
    input_token_count_params,
    namespace_tool_param,
    response_create_params,
    response_input_item_param,
    response_text_config_param,
    tool_param,
)
from openai.types.responses.response_custom_tool_call_output_param import ResponseCustomToolCallOutputParam
from openai.types.responses.response_custom_tool_call_param import ResponseCustomToolCallParam
from openai.types.responses.response_format_text_json_schema_config_param import ResponseFormatTextJSONSchemaConfigParam
from openai.types.responses.response_function_tool_call_param import ResponseFunctionToolCallParam
from openai.types.responses.response_includable import ResponseIncludable
from openai.types.responses.response_input_audio_param import ResponseInputAudioParam
from openai.types.responses.response_input_image_param import ResponseInputImageParam
from openai.types.responses.response_input_text_param import ResponseInputTextParam
from openai.types.responses.response_output_message_param import ResponseOutputMessageParam
from openai.types.responses.response_output_refusal_param import ResponseOutputRefusalParam
from openai.types.responses.response_output_text_param import ResponseOutputTextParam
from openai.types.responses.response_reasoning_item_param import ResponseReasoningItemParam
from openai.types.responses.tool_choice_allowed_param import ToolChoiceAllowedParam
from openai.types.responses.tool_choice_function_param import ToolChoiceFunctionParam
from openai.types.shared_params.custom_tool_input_format import Grammar
from openai.types.shared_params.reasoning import Reasoning

from deck.api import EXTENSIONS, OUT_OF_REACH, SAMPLING, Table, Treatment
from deck_plugins.surfaces.openai_responses import item_fields, tool_fields
from deck_plugins.surfaces.openai_responses.fields import (
    CACHE_OPTIONS,
    FIELDS,
    FORMAT,
    INCLUDE,
    REASONING,
    STREAM_OPTIONS,
    TEXT,
)
from deck_plugins.surfaces.openai_responses.tables import TABLES

# Recorded and read from real clients: agents, editors, SDKs.
CLIENTS = [
    "client_metadata",
    "access_programs",
    "request_country",
    "stop",
    "max_tool_calls",
    "messages",
    "response_format",
    "personality",
    "presence_penalty",
    "frequency_penalty",
]
ITEM_TYPES = ["ghost_snapshot", "context_compaction", "agent_message", "additional_tools", "compaction_trigger"]


def keys(*types: typing.Any) -> set[str]:
    return {key for item in types for key in (item.__required_keys__ | item.__optional_keys__)}


def spellings(fields: typing.Iterable[typing.Any]) -> set[str]:
    return {name for field in fields for name in (field.name, *field.aliases)}


TOP = (
    keys(
        response_create_params.ResponseCreateParamsStreaming,
        response_create_params.ResponseCreateParamsNonStreaming,
        input_token_count_params.InputTokenCountParams,
    )
    | spellings(SAMPLING)
    | spellings(EXTENSIONS)
    | spellings(OUT_OF_REACH)
    | set(ON_EVERY_ROUTE)
    | set(CLIENTS)
)


@pytest.mark.parametrize("name", sorted(TOP))
def test_every_top_level_field_has_a_row(name: str) -> None:
    assert FIELDS.find(name) is not None


def test_a_name_of_nobody_has_none() -> None:
    assert FIELDS.find("nobody") is None


MEMBERS: list[tuple[Table, set[str]]] = [
    (STREAM_OPTIONS, keys(response_create_params.StreamOptions) | {"reasoning_summary_delivery"}),
    (REASONING, keys(Reasoning)),
    (TEXT, keys(response_text_config_param.ResponseTextConfigParam)),
    (FORMAT, keys(ResponseFormatTextJSONSchemaConfigParam)),
    (CACHE_OPTIONS, keys(response_create_params.PromptCacheOptions)),
    (
        item_fields.MESSAGE,
        keys(
            response_input_item_param.Message,
            response_input_item_param.EasyInputMessageParam,
            ResponseOutputMessageParam,
        ),
    ),
    (item_fields.ADDITIONAL_TOOLS, keys(response_input_item_param.AdditionalTools)),
    (item_fields.REASONING_ITEM, keys(ResponseReasoningItemParam)),
    (item_fields.CALL, keys(ResponseFunctionToolCallParam)),
    (item_fields.RESULT, keys(response_input_item_param.FunctionCallOutput)),
    (item_fields.CUSTOM_CALL, keys(ResponseCustomToolCallParam)),
    (item_fields.CUSTOM_RESULT, keys(ResponseCustomToolCallOutputParam)),
    (item_fields.PARTS["input_text"], keys(ResponseInputTextParam)),
    (item_fields.PARTS["output_text"], keys(ResponseOutputTextParam)),
    (item_fields.PARTS["refusal"], keys(ResponseOutputRefusalParam)),
    (item_fields.PARTS["input_image"], keys(ResponseInputImageParam)),
    (item_fields.PARTS["input_audio"], keys(ResponseInputAudioParam)),
    (tool_fields.FUNCTION, keys(function_tool_param.FunctionToolParam, namespace_tool_param.ToolFunction)),
    (tool_fields.CUSTOM, keys(custom_tool_param.CustomToolParam)),
    (tool_fields.CUSTOM_FORMAT, keys(Grammar)),
    (tool_fields.NAMESPACE, keys(namespace_tool_param.NamespaceToolParam)),
    (tool_fields.CHOICE, keys(ToolChoiceAllowedParam, ToolChoiceFunctionParam)),
]


@pytest.mark.parametrize(("table", "names"), MEMBERS, ids=[table.where for table, _ in MEMBERS])
def test_every_member_has_a_row(table: Table, names: set[str]) -> None:
    assert sorted(name for name in names if table.find(name) is None) == []


def literals(union: typing.Any, member: str = "type") -> set[str]:
    """Return the tags of a union of TypedDicts."""
    found: set[str] = set()
    for item in typing.get_args(union):
        hint = typing.get_type_hints(item).get(member)
        for argument in (hint, *typing.get_args(hint)):
            found |= {value for value in typing.get_args(argument) if isinstance(value, str)}
    return found


def test_every_kind_of_item_has_a_row() -> None:
    found = literals(response_input_item_param.ResponseInputItemParam) | set(ITEM_TYPES)
    assert len(found) > 25
    assert sorted(name for name in found if item_fields.ITEMS.find(name) is None) == []


def test_every_kind_of_tool_has_a_row() -> None:
    found = literals(tool_param.ToolParam)
    assert len(found) > 10
    assert sorted(name for name in found if tool_fields.TOOLS.find(name) is None) == []


def test_every_value_of_include_has_a_row() -> None:
    assert sorted(name for name in typing.get_args(ResponseIncludable) if INCLUDE.find(name) is None) == []


def test_every_row_that_is_not_mapped_gives_its_reason() -> None:
    for table in TABLES.values():
        for field in table:
            assert field.treatment is Treatment.MAPPED or field.reason, (table.where, field.name)
