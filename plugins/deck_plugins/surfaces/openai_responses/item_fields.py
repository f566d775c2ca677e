"""The field tables of what stands in `input`: the kinds of items, their members, and the parts of contents.

Sources: the OpenAI SDK's parameter types and what agents send back of earlier answers.
"""

from __future__ import annotations

from deck.api import Field, Table, anything, array, mapping, one_of, string

from .fields import CACHE, REPLAY

_BOOKKEEPING = "the client's own bookkeeping"
_HOSTED = "it is the trace of a tool that ran at a vendor, which no model here can read; leave it out of the input"
_SHELL = "offer the tool as a function, and send function_call and function_call_output"
_COMPACT = "what it stands for is not in the request; " + REPLAY.partition("; ")[2]

# What kinds of items there are: the rows' names are values of `type`.
ITEMS = Table(
    "responses.input[].type",
    (
        Field.mapped("message", anything("an item"), reason="an item without a type is a message"),
        Field.mapped("reasoning", anything("an item")),
        Field.mapped("function_call", anything("an item")),
        Field.mapped("function_call_output", anything("an item")),
        Field.mapped("custom_tool_call", anything("an item")),
        Field.mapped("custom_tool_call_output", anything("an item")),
        Field.mapped("additional_tools", anything("an item"), reason="its tools are offered from the beginning"),
        Field.mapped("agent_message", anything("an item"), reason="read as a message of the user"),
        Field.annotation("ghost_snapshot", _BOOKKEEPING),
        Field.annotation("mcp_list_tools", "Deck talks to no MCP server; offer its tools as functions"),
        Field.refused("item_reference", REPLAY + ", which SDKs do with store: false"),
        *(
            Field.refused(name, _HOSTED)
            for name in (
                "web_search_call",
                "file_search_call",
                "image_generation_call",
                "code_interpreter_call",
                "computer_call",
                "computer_call_output",
                "tool_search_call",
                "tool_search_output",
                "mcp_call",
                "mcp_approval_request",
                "mcp_approval_response",
                "program",
                "program_output",
            )
        ),
        *(
            Field.refused(name, _SHELL)
            for name in (
                "local_shell_call",
                "local_shell_call_output",
                "shell_call",
                "shell_call_output",
                "apply_patch_call",
                "apply_patch_call_output",
            )
        ),
        *(Field.refused(name, _COMPACT) for name in ("compaction", "compaction_summary", "context_compaction")),
        Field.refused("compaction_trigger", "Deck compacts nothing; ask the model for a summary instead"),
        Field.refused("configuration_update", "send the settings at the top level instead"),
    ),
)

_TYPE = Field.mapped("type", string())
_ID = Field.annotation("id", _BOOKKEEPING)
_STATUS = Field.annotation("status", _BOOKKEEPING)
_CALLER = Field.tolerated("caller", ({"type": "direct"},), "Deck runs no programs")
_ASYNC = Field.tolerated("async", (False,), "every result stands in the input")
_METADATA = Field.annotation("internal_chat_message_metadata_passthrough", _BOOKKEEPING)

MESSAGE = Table(
    "responses.input[message]",
    (
        _TYPE,
        Field.mapped("role", one_of("user", "assistant", "system", "developer")),
        Field.mapped("content", anything("a string, null, or an array of parts")),
        Field.annotation("phase", "templates know no phases"),
        _ID,
        _STATUS,
        _METADATA,
        Field.annotation("name", "llama-server's templates take no names"),
        Field.annotation("end_turn", _BOOKKEEPING),
    ),
)
AGENT_MESSAGE = Table(
    "responses.input[agent_message]",
    (
        _TYPE,
        Field.mapped("content", anything("a string, null, or an array of parts")),
        Field.annotation("author", "templates know no agents"),
        Field.annotation("recipient", "templates know no agents"),
        _ID,
        _METADATA,
    ),
)
ADDITIONAL_TOOLS = Table(
    "responses.input[additional_tools]",
    (
        _TYPE,
        Field.mapped("tools", array()),
        Field.annotation("role", "whoever brings a tool, the model may call it"),
        _ID,
        _METADATA,
    ),
)
REASONING_ITEM = Table(
    "responses.input[reasoning]",
    (
        _TYPE,
        Field.mapped("content", array()),
        Field.mapped("summary", array(), reason="read where there is no content"),
        Field.annotation("encrypted_content", "no model here can read it"),
        _ID,
        _STATUS,
        _METADATA,
    ),
)
CALL = Table(
    "responses.input[function_call]",
    (
        _TYPE,
        Field.mapped("call_id", string(empty=False)),
        Field.mapped("name", string(empty=False)),
        Field.mapped("namespace", string()),
        Field.mapped("arguments", anything("a string of JSON")),
        _ID,
        _STATUS,
        _CALLER,
        _ASYNC,
        _METADATA,
    ),
)
RESULT = Table(
    "responses.input[function_call_output]",
    (
        _TYPE,
        Field.mapped("call_id", string(empty=False)),
        Field.mapped("output", anything("a string, or an array of input_text and input_image parts")),
        _ID,
        _STATUS,
        Field.annotation("name", "the call names it"),
        Field.annotation("namespace", "the call names it"),
        _CALLER,
        _METADATA,
    ),
)
CUSTOM_CALL = Table(
    "responses.input[custom_tool_call]",
    (
        _TYPE,
        Field.mapped("call_id", string(empty=False)),
        Field.mapped("name", string(empty=False)),
        Field.mapped("namespace", string()),
        Field.mapped("input", string()),
        _ID,
        _STATUS,
        _CALLER,
        _ASYNC,
        _METADATA,
    ),
)
CUSTOM_RESULT = Table("responses.input[custom_tool_call_output]", RESULT.fields)

_MARK = Field.annotation("prompt_cache_breakpoint", CACHE)
_EXTRAS = (
    Field.annotation("annotations", "only the text is read"),
    Field.annotation("logprobs", "only the text is read"),
)
PARTS = {
    "input_text": Table("responses.input[].content[input_text]", (_TYPE, Field.mapped("text", string()), _MARK)),
    "output_text": Table(
        "responses.input[].content[output_text]", (_TYPE, Field.mapped("text", string()), *_EXTRAS, _MARK)
    ),
    "text": Table("responses.input[].content[text]", (_TYPE, Field.mapped("text", string(), extension=True), *_EXTRAS)),
    "refusal": Table(
        "responses.input[].content[refusal]",
        (_TYPE, Field.mapped("refusal", string(), reason="read as the assistant's text")),
    ),
    "input_image": Table(
        "responses.input[].content[input_image]",
        (
            _TYPE,
            Field.mapped("image_url", anything("a data: URL")),
            Field.annotation("detail", "llama-server decides the resolution"),
            Field.refused("file_id", "files are not stored; send a data: URL in image_url"),
            _MARK,
        ),
    ),
    "input_audio": Table(
        "responses.input[].content[input_audio]", (_TYPE, Field.mapped("input_audio", mapping()), _MARK)
    ),
}
# What one agent writes to another. At a vendor the model's own words are encrypted in between; here nothing is.
AGENT_PARTS = {
    "input_text": PARTS["input_text"],
    "encrypted_content": Table(
        "responses.input[agent_message].content[encrypted_content]",
        (_TYPE, Field.mapped("encrypted_content", string(), reason="read as the text that a model here wrote")),
    ),
}
# In the parts of a reasoning item, and nowhere else.
THOUGHTS = {
    "reasoning_text": Table("responses.input[reasoning].content[]", (_TYPE, Field.mapped("text", string()))),
    "text": Table("responses.input[reasoning].content[text]", (_TYPE, Field.mapped("text", string(), extension=True))),
    "summary_text": Table("responses.input[reasoning].summary[]", (_TYPE, Field.mapped("text", string()))),
}
AUDIO = Table(
    "responses.input[].content[].input_audio",
    (Field.mapped("data", string(empty=False)), Field.mapped("format", one_of("wav", "mp3"))),
)
IMAGE = Table(
    "responses.input[].content[].image_url",
    (Field.mapped("url", string()), Field.annotation("detail", "llama-server decides the resolution")),
)
