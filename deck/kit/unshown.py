"""Tools for models whose template shows none: told in the system turn, calls and results written as text.

llama-server says of a template whether it shows tools (`chat_template_caps`). Where it does not, the model would never
learn of them, and results would vanish from its prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from deck import json
from deck.canon.request import ChatRequest, Image, Message, Part, Text, Tool, ToolCall, ToolResult
from deck.contracts import Facts
from deck.kit.rescue import offered
from deck.kit.turns import add_system_line, merge_turns
from deck.normalize.report import Report


@dataclass(frozen=True, slots=True)
class Telling:
    """How a model is told of tools: what stands in the system turn, and how a call is written in an earlier turn."""

    describe: Callable[[Sequence[Tool]], str]
    write: Callable[[ToolCall], str]


def _tagged(tools: Sequence[Tool]) -> str:
    """Return the words in which models of several makers were trained to be told (Hermes, Qwen)."""
    listed = "\n".join(json.dumps({"type": "function", "function": _function(tool)}).decode() for tool in tools)
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n"
        f"<tools>\n{listed}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within "
        "<tool_call></tool_call> XML tags:\n"
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )


def _function(tool: Tool) -> dict[str, object]:
    parameters = tool.parameters or {"type": "object", "properties": {}}
    return {"name": tool.name, "description": tool.description or "", "parameters": parameters}


TAGGED = Telling(
    _tagged, lambda call: f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n</tool_call>'
)


def tell_tools(request: ChatRequest, facts: Facts, report: Report, telling: Telling) -> ChatRequest:
    """Return the request with its tools in the system turn, where the template shows none."""
    caps = facts.template_caps
    if caps.get("supports_tools") is not False:
        return request
    messages = request.messages
    names = offered(request)
    tools = [tool for tool in request.tools if tool.name in names]
    if tools:
        messages = add_system_line(messages, telling.describe(tools))
        report.changed(
            "tools", "the model's template shows no tools; they are told in the system turn", shown="tools>system"
        )
        if request.tool_choice is not None and request.tool_choice.mode == "required":
            report.ignored("tool_choice", "llama-server cannot require a call where the template shows no tools")
    if caps.get("supports_tool_calls") is False:
        messages = merge_turns(_written(messages, report, telling), report)
    return request if messages is request.messages else replace(request, messages=messages)


def _written(messages: tuple[Message, ...], report: Report, telling: Telling) -> tuple[Message, ...]:
    """Write calls and results as text."""
    if not any(isinstance(part, ToolCall | ToolResult) for message in messages for part in message.parts):
        return messages
    names = {part.id: part.name for message in messages for part in message.parts if isinstance(part, ToolCall)}
    found = []
    for message in messages:
        if message.role == "tool":
            parts = tuple(item for part in message.parts for item in _result(part, names))
            _note(report, message, "role", "user")
            found.append(Message("user", parts, message.origin))
        elif any(isinstance(part, ToolCall) for part in message.parts):
            _note(report, message, "tool_calls", "content")
            found.append(replace(message, parts=tuple(_call(part, telling) for part in message.parts)))
        else:
            found.append(message)
    return tuple(found)


def _call(part: Part, telling: Telling) -> Part:
    return Text(telling.write(part)) if isinstance(part, ToolCall) else part


def _note(report: Report, message: Message, name: str, become: str) -> None:
    reason = "the model's template shows no calls and no results; they are written as text"
    report.changed(f"{message.origin}.{name}", reason, shown=f"{message.origin}.{name}>{become}")


def _result(part: Part, names: dict[str, str]) -> list[Text | Image]:
    if not isinstance(part, ToolResult):
        return []
    text = "\n".join(item.text for item in part.parts if isinstance(item, Text))
    images = [item for item in part.parts if isinstance(item, Image)]
    return [Text(f"<tool_response>\n{names.get(part.id, '')}: {text}\n</tool_response>"), *images]
