"""The field tables of Anthropic Messages.

Sources: the Anthropic API reference and the types of its SDK, beta ones included, for the vendor's rows, llama.cpp's
server for the extensions, recorded requests of agents for the rest.
"""

from __future__ import annotations

from dataclasses import replace

from deck.api import (
    EXTENSIONS,
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
    strings,
)

_STORES_NOTHING = "Deck keeps nothing"
_CACHE = "llama-server caches prompts by itself"
_BILLING = "Deck bills nothing"
_NO_PLACE = "an answer of this wire has no place for it; use /v1/chat/completions"
_OWN_NAME = "it belongs to another wire"
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
MOST_STOPS = 64

# Of the shared samplers, those that this wire has itself, with its own names and ranges.
_OWN = frozenset({"max_tokens", "temperature", "top_p", "top_k", "stop"})
_ROOMLESS = frozenset({"timings_per_token", "return_progress", "return_token_ids"})
_TOP_K = next(field for field in SAMPLING if field.name == "top_k")
_SAMPLERS = tuple(replace(field, extension=True) for field in SAMPLING if field.name not in _OWN)

_PROMPT = (
    Field.mapped("model", string(empty=False)),
    Field.mapped("messages", array()),
    Field.mapped("system", anything("a string, or an array of text blocks")),
    Field.mapped("tools", array()),
    Field.mapped("tool_choice", mapping()),
    Field.mapped("thinking", mapping()),
    Field.mapped("output_config", mapping()),
    Field.mapped("output_format", mapping(), reason="deprecated: read as output_config.format"),
    Field.mapped("context_management", mapping(), reason="only clear_thinking_20251015 with keep all, which is listed"),
    Field.mapped("chat_template_kwargs", mapping(), extension=True),
    Field.mapped("reasoning_effort", one_of("none", "minimal", *_EFFORTS), extension=True),
    Field.annotation("cache_control", _CACHE),
    Field.annotation("betas", "Deck's features need no switch"),
    Field.annotation("user_profile_id", _STORES_NOTHING),
    Field.annotation("workspace_id", _STORES_NOTHING),
    Field.annotation("billing_policy", _BILLING),
    Field.tolerated("speed", ("standard", "fast"), "there is one speed here"),
    Field.tolerated("mcp_servers", ([],), "Deck runs no tools; connect the client to the server instead"),
    Field.refused("compaction", "not supported; shorten the conversation in the client instead"),
)

FIELDS = Table(
    "messages",
    (
        *_PROMPT,
        Field.mapped("stream", boolean()),
        Field.mapped("max_tokens", budget(), "n_predict"),
        Field.mapped("stop_sequences", strings(most=MOST_STOPS), "stop"),
        Field.mapped("temperature", number(0, 1)),
        Field.mapped("top_p", number(0, 1)),
        replace(_TOP_K, extension=False),
        *_SAMPLERS,
        *(field for field in EXTENSIONS if field.name not in _ROOMLESS),
        *(
            field
            for field in reasoning.REASONING_FIELDS
            if field.name in ("reasoning_budget_tokens", "reasoning_budget_message", "reasoning_format")
        ),
        Field.mapped("add_generation_prompt", boolean(), extension=True),
        Field.mapped("continue_final_message", boolean(), extension=True),
        Field.annotation("metadata", _STORES_NOTHING),
        Field.annotation("diagnostics", _STORES_NOTHING),
        Field.annotation("inference_geo", "Deck answers where its operator runs it"),
        Field.annotation("fallbacks", "Deck routes by model and profile"),
        Field.annotation("fallback_credit_token", _BILLING),
        Field.annotation("context_hint", "it is a hint to the vendor's own scheduler"),
        Field.annotation("safeguards", "Deck moderates nothing"),
        Field.annotation("anthropic_beta", "Deck's features need no switch"),
        Field.annotation("anthropic_version", "Deck has one version of this wire"),
        Field.tolerated("service_tier", ("auto", "standard_only"), "there is one tier here", hint=True),
        Field.tolerated("parse_tool_calls", (True,), "calls are always parsed when tools are offered"),
        Field.tolerated("n", (1,), "one answer per request"),
        *(Field.tolerated(name, (False,), _NO_PLACE, hint=True) for name in sorted(_ROOMLESS)),
        Field.refused("container", "Deck runs no containers"),
        Field.refused(
            "thread", "Deck keeps nothing; send the full conversation, with the SDK's runner by thread=False"
        ),
        Field.refused("logprobs", _NO_PLACE),
        Field.refused("top_logprobs", _NO_PLACE),
        Field.refused("n_probs", _NO_PLACE),
        Field.refused("return_tokens", _NO_PLACE),
        Field.refused("stream_options", f"{_OWN_NAME}; a stream of this one always tells its usage"),
        Field.refused("response_format", f"{_OWN_NAME}; use output_config.format"),
        Field.refused("parallel_tool_calls", f"{_OWN_NAME}; use tool_choice.disable_parallel_tool_use"),
        Field.refused("max_completion_tokens", f"{_OWN_NAME}; use max_tokens"),
        *(field for field in OUT_OF_REACH if field.name != "n_probs"),
    ),
)

COUNT = Table("messages.count_tokens", _PROMPT)

_CONTROL = Field.annotation("cache_control", _CACHE)
_TYPE = Field.mapped("type", string())

MESSAGE = Table(
    "messages.messages[]",
    (
        Field.mapped("role", one_of("user", "assistant", "system")),
        Field.mapped("content", anything("a string, or an array of blocks")),
        Field.mapped("clear_at", one_of("next_user_message", "never"), reason="system turns only"),
        Field.annotation("output_config", "an effort is set for the whole request, in output_config.effort"),
        _CONTROL,
    ),
)

_ELSEWHERE = "it ran at the vendor and Deck cannot show it to the model; take the block out of the conversation"
_AS_TEXT = "not supported; send its text as a text block instead"

KINDS = Table(
    "messages.messages[].content[].type",
    (
        Field.mapped("text", anything("in every turn, in tool results and in the system prompt")),
        Field.mapped("image", anything("in user turns and in tool results")),
        Field.mapped("thinking", anything("in assistant turns")),
        Field.mapped("tool_use", anything("in assistant turns")),
        Field.mapped("tool_result", anything("in user turns")),
        Field.mapped("tool_reference", anything("in tool results, as a line of text")),
        Field.mapped("tool_addition", anything("in system turns; the tools are those of tools, offered at once")),
        Field.mapped("tool_removal", anything("in system turns; the tool is not offered")),
        Field.annotation("redacted_thinking", "only its maker can read it"),
        Field.annotation("fallback", "it marks a change of the vendor's model and says nothing"),
        # At "could not process pdf" Claude Code takes the document out, tells the model so, and goes on.
        Field.refused("document", "could not process PDF or any other document; send its text as a text block instead"),
        Field.refused("search_result", _AS_TEXT),
        Field.refused("browser_state", _AS_TEXT),
        Field.refused("container_upload", "Deck keeps no files; send the content as a text block instead"),
        Field.refused("compaction", "not supported; replay the conversation that it stands for"),
        *(
            Field.refused(name, _ELSEWHERE)
            for name in (
                "server_tool_use",
                "web_search_tool_result",
                "web_fetch_tool_result",
                "code_execution_tool_result",
                "bash_code_execution_tool_result",
                "text_editor_code_execution_tool_result",
                "tool_search_tool_result",
                "advisor_tool_result",
                "mcp_tool_use",
                "mcp_tool_result",
            )
        ),
        Field.refused("mcp_tool_listing", _ELSEWHERE),
    ),
)

BLOCKS = {
    "text": Table(
        "messages.messages[].content[text]",
        (
            _TYPE,
            Field.mapped("text", string()),
            Field.annotation("citations", "templates take no citations; the text carries what was cited"),
            _CONTROL,
        ),
    ),
    "image": Table(
        "messages.messages[].content[image]",
        (
            _TYPE,
            Field.mapped("source", mapping()),
            Field.refused("transformations", "llama-server decides the resolution"),
            _CONTROL,
        ),
    ),
    "thinking": Table(
        "messages.messages[].content[thinking]",
        (
            _TYPE,
            Field.mapped("thinking", string()),
            Field.mapped(
                "signature", string(), reason="of a thought that was not shown it holds the thought; else ignored"
            ),
            _CONTROL,
        ),
    ),
    "tool_use": Table(
        "messages.messages[].content[tool_use]",
        (
            _TYPE,
            Field.mapped("id", string(empty=False)),
            Field.mapped("name", string(empty=False)),
            Field.mapped("input", mapping()),
            Field.tolerated("caller", ({"type": "direct"},), "the model itself makes every call here"),
            Field.refused("toolset_name", "toolsets run at the vendor"),
            _CONTROL,
        ),
    ),
    "tool_result": Table(
        "messages.messages[].content[tool_result]",
        (
            _TYPE,
            Field.mapped("tool_use_id", string(empty=False)),
            Field.mapped("content", anything("a string, or an array of text, image and tool_reference blocks")),
            Field.mapped("is_error", boolean(), reason="written as a first line of the result"),
            Field.refused("toolset_name", "toolsets run at the vendor"),
            _CONTROL,
        ),
    ),
    "tool_addition": Table(
        "messages.messages[].content[tool_addition]", (_TYPE, Field.mapped("tool", mapping()), _CONTROL)
    ),
    "tool_removal": Table(
        "messages.messages[].content[tool_removal]", (_TYPE, Field.mapped("tool", mapping()), _CONTROL)
    ),
    "tool_reference": Table(
        "messages.messages[].content[].content[tool_reference]",
        (_TYPE, Field.mapped("tool_name", string(empty=False)), _CONTROL),
    ),
}
CHANGED_TOOL = Table(
    "messages.messages[].content[].tool",
    (
        Field.mapped("type", one_of("tool_reference"), reason="tools are defined in tools, and nowhere else"),
        Field.mapped("name", string(empty=False)),
    ),
)
SOURCE = Table(
    "messages.messages[].content[image].source",
    (
        Field.mapped("type", one_of("base64", "url"), reason="Deck keeps no files"),
        Field.mapped("media_type", one_of("image/jpeg", "image/png", "image/gif", "image/webp")),
        Field.mapped("data", string(empty=False)),
        Field.mapped("url", string(empty=False)),
    ),
)

_AT_VENDOR = "it runs at the vendor, or its form is known to the vendor's models only; Deck runs no tools"

HOSTED = Table(
    "messages.tools[].type",
    (
        Field.mapped("custom", anything("a tool of the client's own; an absent type is the same")),
        *(
            Field.annotation(name, _AT_VENDOR)
            for name in (
                "web_search_*",
                "web_fetch_*",
                "bash_*",
                "text_editor_*",
                "computer_*",
                "browser_toolset_*",
                "code_execution_*",
                "memory_*",
                "tool_search_tool_*",
                "advisor_*",
                "mcp_toolset",
            )
        ),
    ),
)
TOOL = Table(
    "messages.tools[]",
    (
        Field.mapped("type", string()),
        Field.mapped("name", string(pattern=r"[A-Za-z0-9_-]{1,128}")),
        Field.mapped("description", string()),
        Field.mapped("input_schema", mapping()),
        Field.mapped("strict", boolean()),
        Field.mapped("allowed_callers", array(), reason="must name direct"),
        Field.annotation("eager_input_streaming", "a call's input is always streamed as it comes"),
        Field.annotation("defer_loading", "all tools are offered at once"),
        Field.annotation("input_examples", "templates take no examples"),
        _CONTROL,
    ),
)
TOOL_CHOICE = Table(
    "messages.tool_choice",
    (
        Field.mapped("type", one_of("auto", "any", "tool", "none")),
        Field.mapped("name", string(empty=False)),
        Field.mapped("disable_parallel_tool_use", boolean()),
    ),
)
THINKING = Table(
    "messages.thinking",
    (
        Field.mapped("type", one_of("enabled", "adaptive", "disabled")),
        Field.mapped("budget_tokens", integer(0)),
        # Claude Code asks for "updates" on a terminal, and knows "highlights".
        Field.mapped(
            "display",
            one_of("summarized", "updates", "highlights", "omitted"),
            reason="thoughts are shown as written, or omitted",
        ),
        Field.annotation("block_binding", "a signature carries no meaning here"),
    ),
)
OUTPUT_CONFIG = Table(
    "messages.output_config",
    (
        Field.mapped("effort", one_of(*_EFFORTS)),
        Field.mapped("format", mapping()),
        Field.annotation("task_budget", "Deck keeps no account over several requests"),
    ),
)
FORMAT = Table(
    "messages.output_config.format",
    (Field.mapped("type", one_of("json_schema")), Field.mapped("schema", mapping())),
)
CONTEXT_MANAGEMENT = Table("messages.context_management", (Field.mapped("edits", array()),))

TABLES = {
    "": FIELDS,
    "count_tokens": COUNT,
    "messages[]": MESSAGE,
    "messages[].content[].type": KINDS,
    **{f"messages[].content[{name}]": table for name, table in BLOCKS.items()},
    "messages[].content[].tool": CHANGED_TOOL,
    "messages[].content[image].source": SOURCE,
    "tools[].type": HOSTED,
    "tools[]": TOOL,
    "tool_choice": TOOL_CHOICE,
    "thinking": THINKING,
    "output_config": OUTPUT_CONFIG,
    "output_config.format": FORMAT,
    "context_management": CONTEXT_MANAGEMENT,
}
