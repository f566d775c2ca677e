"""Read the `messages` of Chat Completions, in all the shapes that clients send, into canonical turns."""

from __future__ import annotations

from typing import Any

from deck.api import (
    Audio,
    Image,
    Message,
    Part,
    Reader,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Values,
    audio_of,
    digest9,
    image_of_url,
    invalid,
    json,
    tool_id_of_client,
    wrong_type,
)
from deck_plugins.openai_wire import read_arguments

from .fields import AUDIO, CALL, CALL_FUNCTION, IMAGE, MESSAGE, PARTS

_SPEAKERS = frozenset({"system", "developer", "user", "assistant"})


def read_messages(reader: Reader, items: list[Any], *, remote_images: bool) -> tuple[Message, ...]:
    """Return the turns in the client's order.

    Raises:
        DeckError: a turn has a shape that cannot be honoured.
    """
    if not items:
        raise invalid("messages: expected at least one message", "messages", "unsupported_value")
    messages: list[Message] = []
    for position, item in enumerate(items):
        message = _plain(item, position)
        if message is None:
            return _read_turns(reader, items, remote_images)
        messages.append(message)
    return tuple(messages)


def _read_turns(reader: Reader, items: list[Any], remote_images: bool) -> tuple[Message, ...]:
    turns = [
        _plain(item, position) or _turn(reader, item, position, remote_images) for position, item in enumerate(items)
    ]
    for turn in turns:
        if isinstance(turn, _Turn) and "prefix" in turn.values and turn.values.get("prefix") is not (turn is turns[-1]):
            reader.report.ignored(turn.values.path("prefix"), "the last assistant turn, and no other, is continued")
    return tuple([turn.read() if isinstance(turn, _Turn) else turn for turn in turns])


def _plain(item: Any, place: int) -> Message | None:
    """Return a turn that is nothing but a role and a text, None = there is more to be read."""
    if type(item) is not dict or len(item) != 2:
        return None
    role, text = item.get("role"), item.get("content")
    if type(text) is not str or not text or type(role) is not str or role not in _SPEAKERS:
        return None
    return Message(role, (Text(text),), f"messages[{place}]")  # type: ignore[arg-type]  # the speakers are roles


def _turn(reader: Reader, item: Any, place: int, remote_images: bool) -> _Turn:
    return _Turn(reader, item, f"messages[{place}]", remote_images)


class _Turn:
    """One message while it is read; `path` is the client's own."""

    def __init__(self, reader: Reader, item: Any, path: str, remote: bool) -> None:
        self.remote = remote
        if not isinstance(item, dict):
            raise wrong_type(path, "an object", item)
        self.reader = reader
        self.path = path
        self.values = reader.read(MESSAGE, item, path)
        if "role" not in self.values:
            raise invalid(f"{path}.role is required", f"{path}.role", "missing_required_parameter")

    def read(self) -> Message:
        role = self.values.get("role")
        if "name" in self.values and role != "function":
            self.reader.report.ignored(f"{self.path}.name", "llama-server's templates take no names")
        match role:
            case "assistant":
                return Message("assistant", self._assistant(), self.path)
            case "tool":
                self._only_result_members(role)
                return Message("tool", (self._result(self._call_id()),), self.path)
            case "function":
                self._only_result_members(role)
                return Message("tool", (self._result(digest9(self._function_name())),), self.path)
            case _:
                self._only_text_members(role)
                parts = self._content()
                if role != "user" and any(not isinstance(part, Text) for part in parts):
                    raise invalid(f"{self.path}.content: a {role} message takes text only", f"{self.path}.content")
                if any(isinstance(part, Reasoning) for part in parts):
                    raise invalid(f"{self.path}.content: only assistant turns carry thoughts", f"{self.path}.content")
                return Message(role, parts, self.path)

    def _only_text_members(self, role: str) -> None:
        for name in ("tool_calls", "function_call", "tool_call_id", "prefix"):
            if self.values.get(name):
                where = self.values.path(name)
                raise invalid(f"{where}: a {role} message has no {name}", where, "unsupported_parameter")
        if self.values.get("reasoning_content"):
            self.reader.report.ignored(self.values.path("reasoning_content"), "only assistant turns carry thoughts")
        if "content" not in self.values:
            self.reader.report.changed(f"{self.path}.content", "an absent content is empty text")

    def _only_result_members(self, role: str) -> None:
        for name in ("tool_calls", "function_call", "prefix"):
            if self.values.get(name):
                where = self.values.path(name)
                raise invalid(f"{where}: a {role} message has no {name}", where, "unsupported_parameter")
        if self.values.get("reasoning_content"):
            self.reader.report.ignored(self.values.path("reasoning_content"), "only assistant turns carry thoughts")
        if role == "function" and self.values.get("tool_call_id"):
            self.reader.report.ignored(self.values.path("tool_call_id"), "a function's result is found by its name")

    def _assistant(self) -> tuple[Part, ...]:
        if self.values.get("tool_call_id"):
            self.reader.report.ignored(self.values.path("tool_call_id"), "only results name a call")
        parts: list[Part] = []
        if thought := self.values.get("reasoning_content"):
            parts.append(Reasoning(thought))
        content = self._content()
        if any(isinstance(part, Image | Audio) for part in content):
            raise invalid(f"{self.path}.content: an assistant message takes text only", f"{self.path}.content")
        # Thinking comes first in every template, wherever the client put the part.
        parts += [part for part in content if isinstance(part, Reasoning)]
        parts += [part for part in content if isinstance(part, Text)]
        parts += self._calls()
        return tuple(parts)

    def _calls(self) -> list[Part]:
        calls: list[Part] = []
        for position, item in enumerate(self.values.get("tool_calls") or []):
            calls.append(self._call(item, f"{self.path}.tool_calls[{position}]"))
        if old := self.values.get("function_call"):
            where = f"{self.path}.function_call"
            name, arguments = self._function(old, where)
            self.reader.report.changed(where, "is read as tool_calls", shown=f"{where}>tool_calls")
            calls.append(ToolCall(digest9(name), name, arguments))
        return calls

    def _call(self, item: Any, path: str) -> ToolCall:
        if not isinstance(item, dict):
            raise wrong_type(path, "an object", item)
        call = self.reader.read(CALL, item, path)
        if call.get("type", "function") not in ("function", ""):
            raise invalid(f"{path}.type: only 'function' calls are supported", f"{path}.type", "unsupported_value")
        if "function" not in call:
            raise invalid(f"{path}.function is required", f"{path}.function", "missing_required_parameter")
        name, arguments = self._function(call.get("function"), f"{path}.function")
        sent = call.get("id") or f"{path}"
        return ToolCall(tool_id_of_client(sent), name, arguments)

    def _function(self, item: Any, path: str) -> tuple[str, str]:
        function = self.reader.read(CALL_FUNCTION, item, path)
        if "name" not in function:
            raise invalid(f"{path}.name is required", f"{path}.name", "missing_required_parameter")
        arguments = function.get("arguments", "")
        where = f"{path}.arguments"
        return function.get("name"), read_arguments(arguments, where, self.reader.report)

    def _function_name(self) -> str:
        if "name" not in self.values:
            where = f"{self.path}.name"
            raise invalid(f"{where} is required in a function message", where, "missing_required_parameter")
        self.reader.report.changed(f"{self.path}.role", "is read as tool", shown=f"{self.path}.role=function>tool")
        return str(self.values.get("name"))

    def _call_id(self) -> str:
        sent = self.values.get("tool_call_id")
        if not sent:
            where = f"{self.path}.tool_call_id"
            raise invalid(f"{where} is required in a tool message", where, "missing_required_parameter")
        return tool_id_of_client(sent)

    def _result(self, call_id: str) -> ToolResult:
        content = self.values.get("content")
        if isinstance(content, dict):
            where = f"{self.path}.content"
            self.reader.report.changed(where, "an object is written as text", shown=f"{where}:object>string")
            return ToolResult(call_id, (Text(json.dumps(content).decode()),))
        parts = self._content()
        kept = tuple(part for part in parts if isinstance(part, Text | Image))
        if len(kept) != len(parts):
            raise invalid(f"{self.path}.content: a tool result takes text and images", f"{self.path}.content")
        return ToolResult(call_id, kept)

    def _content(self) -> tuple[Part, ...]:
        content = self.values.get("content")
        if content is None or content == "":
            return ()
        if isinstance(content, str):
            return (Text(content),)
        where = f"{self.path}.content"
        if not isinstance(content, list):
            raise wrong_type(where, "a string, null or an array of parts", content)
        return tuple(
            part
            for position, item in enumerate(content)
            if (part := _read_part(self.reader, item, f"{where}[{position}]", self.remote)) is not None
        )


def _read_part(reader: Reader, item: Any, path: str, remote: bool) -> Part | None:
    if isinstance(item, str):
        reader.report.changed(path, "a bare string is a text part", shown=f"{path}:string>text")
        return Text(item)
    if not isinstance(item, dict):
        raise wrong_type(path, "an object with a type", item)
    kind = item.get("type")
    table = PARTS.get(kind) if isinstance(kind, str) else None
    if table is None:
        raise invalid(
            f"{path}.type: {kind!r} is not supported here; known: {', '.join(PARTS)}",
            f"{path}.type",
            "unsupported_value",
        )
    part = reader.read(table, item, path)
    match kind:
        case "text":
            return Text(part.get("text")) if part.get("text") else None
        case "image_url":
            return _image(reader, part, path, remote)
        case "input_audio":
            return _audio(reader, part, path)
        case "thinking":
            return Reasoning(part.get("thinking", ""))
        case _:
            return Reasoning(part.get("text", ""))


def _image(reader: Reader, part: Values, path: str, remote: bool) -> Image:
    sent = part.get("image_url")
    where = f"{path}.image_url"
    if isinstance(sent, str):
        reader.report.changed(where, "a bare string is its url", shown=f"{where}:string>object")
        url = sent
    elif isinstance(sent, dict):
        url, where = reader.read(IMAGE, sent, where).get("url"), f"{where}.url"
    else:
        raise wrong_type(where, "an object with a url", sent)
    if not isinstance(url, str):
        raise invalid(f"{where} is required", where, "missing_required_parameter")
    return image_of_url(url, where, remote=remote)


def _audio(reader: Reader, part: Values, path: str) -> Audio:
    sent = part.get("input_audio")
    where = f"{path}.input_audio"
    if sent is None:
        raise invalid(f"{where} is required", where, "missing_required_parameter")
    audio = reader.read(AUDIO, sent, where)
    for name in ("data", "format"):
        if name not in audio:
            raise invalid(f"{where}.{name} is required", f"{where}.{name}", "missing_required_parameter")
    return audio_of(audio.get("data"), audio.get("format"), f"{where}.data", reader.report)
