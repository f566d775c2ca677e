"""The field tables of the top level of Responses and of its settings.

Sources: the OpenAI API reference and SDK types for the vendor's rows, the Open Responses specification for the two
penalties, llama.cpp's server for the extensions, recorded requests of agents for the rest.
"""

from __future__ import annotations

from dataclasses import replace

from deck.api import (
    OUT_OF_REACH,
    SAMPLING,
    Field,
    Table,
    anything,
    array,
    boolean,
    budget,
    integer,
    mapping,
    number,
    one_of,
    reasoning,
    string,
)

REPLAY = "not supported; replay the full input instead"
STORES_NOTHING = "Deck keeps nothing"
CACHE = "llama-server caches prompts by itself"
_NO_SUMMARY = "Deck writes no summaries"
_CHAT = "it belongs to /v1/chat/completions; /v1/responses takes "
_MOVED = frozenset({"max_tokens", "temperature", "top_p", "frequency_penalty", "presence_penalty"})

_SAMPLERS = tuple(replace(field, extension=True) for field in SAMPLING if field.name not in _MOVED)
_REASONING = tuple(replace(field, extension=True) for field in reasoning.REASONING_FIELDS if field.name != "reasoning")

FIELDS = Table(
    "responses",
    (
        Field.mapped("model", string(empty=False)),
        Field.mapped("input", anything("a string, or an array of items")),
        Field.mapped("instructions", string()),
        Field.mapped("stream", boolean()),
        Field.mapped("stream_options", mapping()),
        Field.mapped("max_output_tokens", budget(), "max_tokens", "max_completion_tokens", "n_predict"),
        Field.mapped("temperature", number(0, 2)),
        Field.mapped("top_p", number(0, 1)),
        Field.mapped("frequency_penalty", number(-2, 2), extension=True),
        Field.mapped("presence_penalty", number(-2, 2), extension=True),
        *_SAMPLERS,
        Field.mapped("top_logprobs", integer(0, 20), reason="shown by include: message.output_text.logprobs"),
        Field.mapped("include", array()),
        Field.mapped("tools", array()),
        Field.mapped("tool_choice", anything("none, auto, required, a function, a custom tool, or allowed_tools")),
        Field.mapped("parallel_tool_calls", boolean()),
        Field.mapped("text", mapping()),
        Field.mapped("reasoning", mapping()),
        *_REASONING,
        Field.mapped("chat_template_kwargs", mapping(), extension=True),
        Field.mapped("grammar", string(empty=False), extension=True, reason="GBNF; not together with tools"),
        Field.mapped("json_schema", anything("a JSON Schema"), extension=True),
        Field.mapped("timings_per_token", boolean(), extension=True),
        Field.mapped("return_progress", boolean(), extension=True),
        Field.mapped("add_generation_prompt", boolean(), extension=True),
        Field.mapped("continue_final_message", boolean(), extension=True),
        Field.mapped("truncation", one_of("auto", "disabled"), reason="auto is reported: a long input is refused"),
        Field.mapped("prompt_cache_options", mapping()),
        Field.annotation("store", "Deck keeps nothing; the answer says store: false"),
        Field.annotation("metadata", STORES_NOTHING + "; the answer repeats it"),
        Field.annotation("client_metadata", STORES_NOTHING),
        Field.annotation("user", STORES_NOTHING),
        Field.annotation("safety_identifier", STORES_NOTHING),
        Field.annotation("prompt_cache_key", CACHE, "promptCacheKey"),
        Field.annotation("prompt_cache_retention", CACHE),
        Field.annotation("max_tool_calls", "it counts tools that run at a vendor, and none does here"),
        Field.annotation("moderation", "Deck moderates nothing"),
        Field.annotation("access_programs", "they are a vendor's"),
        Field.annotation("request_country", "Deck treats all countries alike"),
        Field.annotation("personality", "Deck gives models no personalities"),
        Field.annotation("provider", "Deck routes by model and profile"),
        Field.tolerated("service_tier", ("auto", "default"), "there is one tier here", hint=True),
        Field.tolerated("background", (False,), REPLAY + ", and keep the connection open"),
        Field.tolerated("context_management", ([],), "Deck compacts nothing; " + REPLAY.partition("; ")[2]),
        Field.tolerated(
            "image",
            ({}, {"context_compression": "auto"}, {"context_compression": "disabled"}),
            "Deck compresses no images",
        ),
        Field.tolerated("n", (1,), "one completion per request"),
        Field.refused("previous_response_id", REPLAY),
        Field.refused("conversation", REPLAY),
        Field.refused("prompt", REPLAY),
        Field.refused("background_options", "background responses are not supported"),
        Field.refused("messages", _CHAT + "input"),
        Field.refused("response_format", _CHAT + "text.format"),
        Field.refused("functions", _CHAT + "tools"),
        Field.refused("function_call", _CHAT + "tool_choice"),
        Field.refused("logprobs", _CHAT + "include: message.output_text.logprobs and top_logprobs"),
        Field.refused("guided_json", "use text.format"),
        Field.refused("return_token_ids", "token ids are given on Chat Completions and Completions only"),
        Field.refused("return_tokens", "token ids are given on Chat Completions and Completions only"),
        Field.refused("parse_tool_calls", "llama-server always parses calls when tools are offered"),
        *OUT_OF_REACH,
    ),
)

STREAM_OPTIONS = Table(
    "responses.stream_options",
    (
        Field.annotation("include_obfuscation", "no padding is produced"),
        Field.annotation("include_usage", "usage always stands in the last event"),
        Field.annotation("reasoning_summary_delivery", _NO_SUMMARY),
    ),
)
REASONING = Table(
    "responses.reasoning",
    (
        Field.mapped("effort", one_of(*reasoning.EFFORTS)),
        Field.mapped("max_tokens", integer(0), extension=True),
        Field.mapped("enabled", boolean(), extension=True),
        Field.mapped("exclude", boolean(), extension=True),
        Field.annotation("summary", _NO_SUMMARY, "generate_summary"),
        Field.annotation("context", "the template decides which earlier thoughts it keeps"),
        Field.annotation("mode", "there is one mode here"),
    ),
)
TEXT = Table(
    "responses.text",
    (
        Field.mapped("format", mapping()),
        Field.annotation("verbosity", "llama-server has no such setting"),
    ),
)
FORMAT = Table(
    "responses.text.format",
    (
        Field.mapped("type", one_of("text", "json_object", "json_schema")),
        Field.mapped("name", string(pattern=r"[A-Za-z0-9_-]{1,64}")),
        Field.mapped("schema", mapping()),
        Field.mapped("strict", boolean()),
        Field.annotation("description", "only the schema constrains the answer"),
    ),
)
CACHE_OPTIONS = Table(
    "responses.prompt_cache_options",
    (
        Field.annotation("mode", CACHE),
        Field.annotation("ttl", CACHE),
        Field.annotation("comparison_response_id", STORES_NOTHING),
        Field.tolerated("prewarm", (False,), "to process a prompt only, send max_output_tokens: 0"),
    ),
)
INCLUDE = Table(
    "responses.include[]",
    (
        Field.mapped("message.output_text.logprobs", anything("a value of include")),
        Field.annotation("reasoning.encrypted_content", "thoughts are not encrypted; they stand in content"),
        *(
            Field.annotation(name, "no such item is ever made here")
            for name in (
                "file_search_call.results",
                "web_search_call.results",
                "web_search_call.action.sources",
                "computer_call_output.output.image_url",
                "code_interpreter_call.outputs",
            )
        ),
        Field.annotation("message.input_image.image_url", "the input is not repeated"),
    ),
)
