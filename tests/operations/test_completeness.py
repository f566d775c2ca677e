"""Every field of the official SDK's request types, and of llama-server's own routes, has a row in a table."""

from __future__ import annotations

import typing

import pytest
from llama_fields import ON_EVERY_ROUTE
from openai.types import embedding_create_params, image_edit_params, image_generate_params
from openai.types.audio import speech_create_params, transcription_create_params

from deck.api import Operation
from deck_plugins.operations import OPERATIONS

BY_NAME = {item.name: item for item in OPERATIONS}


def keys(*types: typing.Any) -> set[str]:
    return {key for item in types for key in (item.__required_keys__ | item.__optional_keys__)}


SDK = {
    "embeddings": keys(embedding_create_params.EmbeddingCreateParams),
    "speech": keys(speech_create_params.SpeechCreateParams),
    "transcriptions": keys(
        transcription_create_params.TranscriptionCreateParamsNonStreaming,
        transcription_create_params.TranscriptionCreateParamsStreaming,
    ),
    "images": keys(
        image_generate_params.ImageGenerateParamsNonStreaming, image_generate_params.ImageGenerateParamsStreaming
    ),
    "image-edits": keys(image_edit_params.ImageEditParamsNonStreaming, image_edit_params.ImageEditParamsStreaming),
}

# llama.cpp tools/server/server-context.cpp and README.md, build 11434; llama.vim and llama.vscode for /infill.
LLAMA_SERVER = {
    "embeddings": {"input", "content", "encoding_format", "embd_normalize"},
    "rerank": {"query", "documents", "texts", "top_n", "return_text", "model"},
    "infill": {
        "input_prefix",
        "input_suffix",
        "input_extra",
        "prompt",
        "stream",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_k",
        "top_p",
        *ON_EVERY_ROUTE,
    },
    "tokenize": {"content", "add_special", "parse_special", "with_pieces"},
    "detokenize": {"tokens"},
}
# What they mean is of other routes: they shape text that a template or a parser makes.
NOT_OF_INFILL = {
    "stream_options",
    "logprobs",
    "reasoning_format",
    "reasoning_budget_tokens",
    "reasoning_budget_message",
}
# Jina, Cohere, TEI.
CLIENTS = {"rerank": {"return_documents", "max_tokens_per_doc", "raw_scores", "truncate", "rank_fields"}}

PAIRS = sorted(
    {
        (name, key)
        for source in (SDK, LLAMA_SERVER, CLIENTS)
        for name, found in source.items()
        for key in found
        if not (name == "infill" and key in NOT_OF_INFILL)
    }
)


@pytest.mark.parametrize(("name", "key"), PAIRS, ids=lambda value: value)
def test_every_field_has_a_row(name: str, key: str) -> None:
    assert BY_NAME[name].tables[""].find(key) is not None


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda item: item.name)
def test_every_row_that_does_nothing_says_why(operation: Operation) -> None:
    for table in operation.tables.values():
        for row in table:
            assert row.treatment.value == "mapped" or row.reason


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda item: item.name)
def test_what_is_required_and_unread_is_in_the_table(operation: Operation) -> None:
    if operation.surface is None:
        assert all(operation.tables[""].find(name) for name in ("model", *operation.required, *operation.unread))
