"""The canonical request as the body of llama-server's `/v1/chat/completions`, a raw prompt as `/v1/completions`'.

The one place that knows llama-server's field names for what Deck has under its own; it always streams and always
asks for usage. Facts: llama.cpp `tools/server` (`server-common.cpp` for chat fields, `server-schema.cpp` for samplers).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deck.canon.request import (
    UNSET_REASONING,
    Audio,
    ChatRequest,
    Image,
    Message,
    Output,
    Part,
    Reasoning,
    Text,
    TextRequest,
    Tool,
    ToolCall,
    ToolResult,
)
from deck.normalize.schema import fit_schema

# llama-server refuses -1 here although other engines write the whole context so (llama.cpp issue 27079).
_WHOLE_CONTEXT = frozenset({"repeat_last_n", "dry_penalty_last_n"})


def encode(request: ChatRequest, *, context: int | None) -> dict[str, Any]:
    """Return the upstream body; `context` is the slot's size in tokens, where known."""
    body: dict[str, Any] = {
        "messages": _messages(request.messages),
        "stream": True,
        "stream_options": {"include_usage": True},
        **_settings(request, context),
    }
    tools = offered_tools(request) if request.tools else ()
    if tools:
        body["tools"] = [_tool(tool) for tool in tools]
        if request.tool_choice is not None:
            body["tool_choice"] = request.tool_choice.mode
        if request.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = request.parallel_tool_calls
    if request.output is not None:
        body |= _output(request.output)
    if request.logprobs is not None:
        # 0 would switch logprobs off altogether; the surface cuts to what was asked.
        body |= {"logprobs": True, "top_logprobs": max(1, request.logprobs)}
    if request.reasoning is not UNSET_REASONING or request.template_kwargs:
        body |= _reasoning(request)
    return body


def _messages(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for message in messages:
        parts = message.parts
        if len(parts) == 1 and type(parts[0]) is Text and message.role != "tool":
            found.append({"role": message.role, "content": parts[0].text})
        else:
            found += encode_message(message)
    return found


def encode_text(request: TextRequest, *, context: int | None) -> dict[str, Any]:
    """Return the upstream body of a raw prompt; `context` is the slot's size in tokens, where known."""
    body: dict[str, Any] = {
        "prompt": request.prompt if isinstance(request.prompt, str) else list(request.prompt),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body |= _settings(request, context)
    if request.output is not None:
        body |= _raw_output(request.output)
    if request.logprobs is not None:
        # As for chat, 0 would switch them off. The old route counts alternatives in `logprobs` itself.
        body["logprobs"] = max(1, request.logprobs)
    return body


def _settings(request: ChatRequest | TextRequest, context: int | None) -> dict[str, Any]:
    body = {**request.sampling, **request.extra}
    if not _WHOLE_CONTEXT.isdisjoint(body):
        for name in _WHOLE_CONTEXT:
            if body.get(name) == -1:
                body[name] = context or 1 << 20
    return body


def _raw_output(output: Output) -> dict[str, Any]:
    if output.kind == "grammar":
        return {"grammar": output.grammar}
    return {"json_schema": {"type": "object"} if output.kind == "json_object" else _fitted(output.schema)}


def offered_tools(request: ChatRequest) -> tuple[Tool, ...]:
    """Return the tools that the model may see; llama-server itself neither hides nor narrows them."""
    choice = request.tool_choice
    if choice is None:
        return request.tools
    if choice.mode == "none":
        return ()
    if choice.names is None:
        return request.tools
    return tuple(tool for tool in request.tools if tool.name in choice.names)


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = _fitted(tool.parameters) or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _fitted(schema: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return fit_schema(schema).schema if schema else schema


def _output(output: Output) -> dict[str, Any]:
    match output.kind:
        case "grammar":
            return {"grammar": output.grammar}
        case "json_object":
            return {"response_format": {"type": "json_object"}}
        case _:
            # The schema must be nested: beside `type` llama-server reads it as "any object".
            inner = {"name": output.name or "answer", "schema": _fitted(output.schema)}
            return {"response_format": {"type": "json_schema", "json_schema": inner}}


def _reasoning(request: ChatRequest) -> dict[str, Any]:
    setting = request.reasoning
    kwargs = dict(request.template_kwargs)
    body: dict[str, Any] = {}
    if setting.enabled is not None:
        kwargs["enable_thinking"] = setting.enabled
    if setting.preserve is not None:
        kwargs["preserve_thinking"] = setting.preserve
    if setting.effort is not None:
        body["reasoning_effort"] = setting.effort
    if setting.budget is not None:
        body["reasoning_budget_tokens"] = setting.budget
    if kwargs:
        body["chat_template_kwargs"] = kwargs
    return body


def encode_message(message: Message) -> list[dict[str, Any]]:
    """Return a turn as one upstream message, or several where results or their images need their own."""
    if message.role == "tool":
        return [item for part in message.parts if isinstance(part, ToolResult) for item in _result(part)]
    encoded: dict[str, Any] = {"role": message.role, "content": _content(message.parts)}
    if message.role == "assistant":
        thought = "\n".join(part.text for part in message.parts if isinstance(part, Reasoning))
        if thought:
            encoded["reasoning_content"] = thought
        calls = [_call(part) for part in message.parts if isinstance(part, ToolCall)]
        if calls:
            encoded["tool_calls"] = calls
    return [encoded]


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _result(result: ToolResult) -> list[dict[str, Any]]:
    text = _content(tuple(part for part in result.parts if isinstance(part, Text)))
    messages = [{"role": "tool", "tool_call_id": result.id, "content": text}]
    images = tuple(part for part in result.parts if isinstance(part, Image))
    if images:
        messages.append({"role": "user", "content": _content(images)})
    return messages


def _content(parts: tuple[Part, ...]) -> str | list[dict[str, Any]]:
    """Return plain text where there is nothing else: every template takes a string, not every one an array."""
    if len(parts) == 1 and type(parts[0]) is Text:
        return parts[0].text
    if not any(isinstance(part, (Image, Audio)) for part in parts):
        return "\n".join([part.text for part in parts if type(part) is Text])
    return [encoded for part in parts if (encoded := _part(part)) is not None]


def _part(part: Part) -> dict[str, Any] | None:
    match part:
        case Text(text=text):
            return {"type": "text", "text": text}
        case Image(url=url):
            return {"type": "image_url", "image_url": {"url": url}}
        case Audio(data=data, format=kind):
            return {"type": "input_audio", "input_audio": {"data": data, "format": kind}}
        case _:
            return None
