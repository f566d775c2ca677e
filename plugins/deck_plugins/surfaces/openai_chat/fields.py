"""The field tables of Chat Completions.

Sources: the OpenAI API reference and SDK types for the vendor's rows, llama.cpp's server for the extensions,
recorded requests of editors and agents for the rest.
"""

from __future__ import annotations

from deck.api import (
    EXTENSIONS,
    OUT_OF_REACH,
    SAMPLING,
    Field,
    Table,
    anything,
    array,
    boolean,
    integer,
    mapping,
    one_of,
    reasoning,
    string,
)

_STORES_NOTHING = "Deck keeps nothing"
_CACHE = "llama-server caches prompts by itself"
_LOOKS = "it shapes another vendor's answer"

FIELDS = Table(
    "chat",
    (
        Field.mapped("model", string(empty=False)),
        Field.mapped("messages", array()),
        Field.mapped("stream", boolean()),
        Field.mapped("stream_options", mapping()),
        *SAMPLING,
        Field.mapped("logprobs", anything("a boolean, or the number of alternatives")),
        Field.mapped("top_logprobs", integer(0, 20)),
        Field.mapped("tools", array()),
        Field.mapped("tool_choice", anything("none, auto, required, a function, or allowed_tools")),
        Field.mapped("parallel_tool_calls", boolean()),
        Field.mapped("functions", array(), reason="deprecated: read as tools"),
        Field.mapped("function_call", anything("none, auto or {name}"), reason="deprecated: read as tool_choice"),
        Field.mapped("response_format", anything("text, json_object or json_schema")),
        Field.mapped("guided_json", mapping(), extension=True, reason="read as response_format"),
        *reasoning.REASONING_FIELDS,
        Field.mapped("chat_template_kwargs", mapping(), extension=True),
        *EXTENSIONS,
        Field.mapped("parse_tool_calls", boolean(), extension=True, reason="true is what Deck does anyway"),
        Field.mapped("add_generation_prompt", boolean(), extension=True),
        Field.mapped("continue_final_message", boolean(), extension=True),
        Field.annotation("metadata", _STORES_NOTHING),
        Field.annotation("user", _STORES_NOTHING),
        Field.annotation("safety_identifier", _STORES_NOTHING),
        Field.annotation("prompt_cache_key", _CACHE, "promptCacheKey"),
        Field.annotation("prompt_cache_retention", _CACHE),
        Field.annotation("prompt_cache_options", _CACHE),
        Field.annotation("cache_control", _CACHE),
        Field.annotation("verbosity", _LOOKS, "textVerbosity"),
        Field.annotation("text", _LOOKS),
        Field.annotation("reasoningSummary", "Deck writes no summaries"),
        Field.annotation("prediction", "it is a speed hint; drafting is set per server"),
        Field.annotation("usage", "usage is always counted; stream_options.include_usage sends it"),
        Field.annotation("moderation", "Deck moderates nothing"),
        Field.annotation("include", _LOOKS),
        Field.annotation("provider", "Deck routes by model and profile"),
        Field.annotation("transforms", "Deck changes no prompts"),
        Field.annotation("route", "Deck routes by model and profile"),
        Field.annotation("vl_high_resolution_images", "llama-server decides the resolution"),
        Field.tolerated("n", (1,), "one completion per request"),
        Field.tolerated("store", (False,), "stored completions are not simulated", hint=True),
        Field.tolerated("service_tier", ("auto", "default"), "there is one tier here", hint=True),
        Field.tolerated("modalities", (["text"],), "llama-server answers in text"),
        Field.tolerated("audio", (), "llama-server answers in text"),
        Field.tolerated("web_search_options", ({},), "Deck runs no tools"),
        Field.refused("background", "not supported; keep the connection open instead"),
        Field.refused("input", "input belongs to /v1/responses; /v1/chat/completions takes messages"),
        Field.refused("prompt", "prompt belongs to /v1/completions; /v1/chat/completions takes messages"),
        Field.refused("previous_response_id", "not supported; replay the full input instead"),
        Field.refused("conversation", "not supported; replay the full input instead"),
        *OUT_OF_REACH,
    ),
)

STREAM_OPTIONS = Table(
    "chat.stream_options",
    (
        Field.mapped("include_usage", boolean()),
        Field.annotation("include_obfuscation", "no padding is produced"),
        Field.annotation("reasoning_summary_delivery", "Deck writes no summaries"),
    ),
)

_BOOKKEEPING = "the client's own bookkeeping"

MESSAGE = Table(
    "chat.messages[]",
    (
        Field.mapped("role", one_of("system", "developer", "user", "assistant", "tool", "function")),
        Field.mapped("content", anything("a string, null, or an array of parts")),
        Field.mapped("tool_calls", array()),
        Field.mapped("tool_call_id", string()),
        Field.mapped("function_call", mapping()),
        Field.mapped("reasoning_content", string(), "reasoning", extension=True),
        Field.mapped("name", string()),
        Field.mapped("prefix", boolean(), "partial", extension=True),
        Field.tolerated("refusal", ("",), "llama-server refuses nothing"),
        Field.tolerated("audio", (), "llama-server answers in text"),
        Field.annotation("annotations", _BOOKKEEPING),
        Field.annotation("reasoning_details", "reasoning_content carries the text"),
        Field.annotation("thinking", "reasoning_content carries the text"),
        Field.annotation("cache_control", _CACHE),
        Field.annotation("copilot_references", _BOOKKEEPING),
        Field.annotation("copilot_confirmations", _BOOKKEEPING),
        Field.annotation("copilot_cache_control", _BOOKKEEPING),
        Field.annotation("cot_id", _BOOKKEEPING),
        Field.annotation("cot_summary", _BOOKKEEPING),
        Field.annotation("id", _BOOKKEEPING),
        Field.annotation("parsed", "content has the same"),
    ),
)

_HELD = "reported, unless an answer that is not streamed was checked and holds to the schema"
_URL = "data:image/…;base64,…; http(s) only from hosts that the operator lists in [media]"

_MARKS = (Field.annotation("cache_control", _CACHE), Field.annotation("prompt_cache_breakpoint", _CACHE))
_TYPE = Field.mapped("type", string())

PARTS = {
    "text": Table("chat.messages[].content[text]", (_TYPE, Field.mapped("text", string()), *_MARKS)),
    "image_url": Table(
        "chat.messages[].content[image_url]",
        (_TYPE, Field.mapped("image_url", anything("{url, detail}, or a data: URL")), *_MARKS),
    ),
    "input_audio": Table(
        "chat.messages[].content[input_audio]", (_TYPE, Field.mapped("input_audio", mapping()), *_MARKS)
    ),
    "thinking": Table(
        "chat.messages[].content[thinking]",
        (_TYPE, Field.mapped("thinking", string()), Field.annotation("signature", "it carries no meaning"), *_MARKS),
    ),
    "reasoning": Table("chat.messages[].content[reasoning]", (_TYPE, Field.mapped("text", string()), *_MARKS)),
}
IMAGE = Table(
    "chat.messages[].content[].image_url",
    (Field.mapped("url", string(), reason=_URL), Field.annotation("detail", "llama-server decides the resolution")),
)
AUDIO = Table(
    "chat.messages[].content[].input_audio",
    (
        Field.mapped("data", string(empty=False), reason="base64, or a data: URL of it"),
        Field.mapped("format", one_of("wav", "mp3")),
    ),
)
CALL = Table(
    "chat.messages[].tool_calls[]",
    (
        Field.mapped("id", string()),
        Field.mapped("type", string()),
        Field.mapped("function", mapping()),
        Field.mapped("index", integer(0)),
        Field.annotation("extra_content", _BOOKKEEPING),
        Field.refused("custom", "custom tools belong to /v1/responses"),
    ),
)
CALL_FUNCTION = Table(
    "chat.messages[].tool_calls[].function",
    (Field.mapped("name", string(empty=False)), Field.mapped("arguments", anything("a string of JSON"))),
)
TOOL = Table(
    "chat.tools[]",
    (
        Field.mapped("type", string()),
        Field.mapped("function", mapping()),
        Field.mapped("name", string()),
        Field.mapped("description", string()),
        Field.mapped("parameters", mapping()),
        Field.mapped("strict", boolean(), reason=_HELD),
        Field.annotation("cache_control", _CACHE),
        Field.annotation("defer_loading", "all tools are offered at once"),
    ),
)
FUNCTION = Table(
    "chat.tools[].function",
    (
        Field.mapped("name", string(pattern=r"[A-Za-z0-9_-]{1,64}")),
        Field.mapped("description", string()),
        Field.mapped("parameters", mapping()),
        Field.mapped("strict", boolean(), reason=_HELD),
        Field.annotation("cache_control", _CACHE),
    ),
)
CHOICE = Table(
    "chat.tool_choice",
    (
        Field.mapped("type", string()),
        Field.mapped("function", mapping()),
        Field.mapped("name", string()),
        Field.mapped("allowed_tools", mapping()),
        Field.mapped("mode", one_of("auto", "required")),
        Field.mapped("tools", array()),
    ),
)
CHOSEN = Table("chat.tool_choice.function", (Field.mapped("name", string()),))
ALLOWED = Table(
    "chat.tool_choice.allowed_tools",
    (Field.mapped("mode", one_of("auto", "required")), Field.mapped("tools", array())),
)
FORMAT = Table(
    "chat.response_format",
    (
        Field.mapped("type", one_of("text", "json_object", "json_schema")),
        Field.mapped("json_schema", mapping()),
        Field.mapped("schema", mapping()),
    ),
)
FORMAT_SCHEMA = Table(
    "chat.response_format.json_schema",
    (
        Field.mapped("schema", mapping()),
        Field.mapped("name", string(pattern=r"[A-Za-z0-9_-]{1,64}")),
        Field.mapped("strict", boolean(), reason=_HELD),
        Field.annotation("description", "only the schema constrains the answer"),
    ),
)

TABLES = {
    "": FIELDS,
    "stream_options": STREAM_OPTIONS,
    "reasoning": reasoning.REASONING,
    "thinking": reasoning.THINKING,
    "chat_template_args": reasoning.TEMPLATE_ARGS,
    "messages[]": MESSAGE,
    **{f"messages[].content[{name}]": table for name, table in PARTS.items()},
    "messages[].content[].image_url": IMAGE,
    "messages[].content[].input_audio": AUDIO,
    "messages[].tool_calls[]": CALL,
    "messages[].tool_calls[].function": CALL_FUNCTION,
    "tools[]": TOOL,
    "tools[].function": FUNCTION,
    "tool_choice": CHOICE,
    "tool_choice.function": CHOSEN,
    "tool_choice.allowed_tools": ALLOWED,
    "response_format": FORMAT,
    "response_format.json_schema": FORMAT_SCHEMA,
}
