"""The field tables of `tools`: the kinds of tools, and the members of those that a model here can call."""

from __future__ import annotations

from deck.api import Field, Table, anything, array, boolean, mapping, one_of, string

_HOSTED = "it runs at a vendor; Deck runs no tools"
_SHELL = "its calls are a vendor's own; offer the tool as a function"
NAME = string(pattern=r"[A-Za-z0-9_-]{1,64}")

# What kinds of tools there are: the rows' names are values of `type`. Those that are not mapped are taken out and
# reported where they are merely listed, and refused where tool_choice forces them.
TOOLS = Table(
    "responses.tools[].type",
    (
        Field.mapped("function", anything("a tool")),
        Field.mapped("custom", anything("a tool"), reason="carried as a function with one string argument"),
        Field.mapped("namespace", anything("a group of tools"), reason="its tools are offered under joined names"),
        *(
            Field.annotation(name, _HOSTED)
            for name in (
                "web_search*",
                "file_search",
                "image_generation",
                "code_interpreter",
                "computer*",
                "mcp",
                "tool_search*",
                "programmatic*",
            )
        ),
        *(Field.annotation(name, _SHELL) for name in ("local_shell", "shell", "apply_patch")),
    ),
)

_BOTH = (
    Field.annotation("defer_loading", "all tools are offered at once"),
    Field.annotation("async", "results are awaited"),
    Field.tolerated(
        "allowed_callers",
        (["direct"], ["direct", "programmatic"], ["programmatic", "direct"]),
        "only the model itself calls tools here",
    ),
    Field.annotation("cache_control", "llama-server caches prompts by itself"),
)
FUNCTION = Table(
    "responses.tools[function]",
    (
        Field.mapped("type", string()),
        Field.mapped("name", NAME),
        Field.mapped("description", string()),
        Field.mapped("parameters", mapping()),
        Field.mapped("strict", boolean()),
        Field.annotation("output_schema", "results are read as the client writes them"),
        *_BOTH,
    ),
)
CUSTOM = Table(
    "responses.tools[custom]",
    (
        Field.mapped("type", string()),
        Field.mapped("name", NAME),
        Field.mapped("description", string()),
        Field.mapped("format", mapping()),
        *_BOTH,
    ),
)
CUSTOM_FORMAT = Table(
    "responses.tools[custom].format",
    (
        Field.mapped("type", one_of("text", "grammar")),
        Field.mapped("syntax", one_of("lark", "regex")),
        Field.mapped("definition", string()),
    ),
)
NAMESPACE = Table(
    "responses.tools[namespace]",
    (
        Field.mapped("type", string()),
        Field.mapped("name", string(empty=False, longest=256)),
        Field.mapped("description", string()),
        Field.mapped("tools", array()),
        Field.annotation("defer_loading", "all tools are offered at once"),
    ),
)
CHOICE = Table(
    "responses.tool_choice",
    (
        Field.mapped("type", string()),
        Field.mapped("name", string()),
        Field.mapped("namespace", string()),
        Field.mapped("mode", one_of("auto", "required")),
        Field.mapped("tools", array()),
        Field.mapped("function", mapping(), extension=True),
        Field.annotation("server_label", "Deck talks to no MCP server"),
    ),
)
