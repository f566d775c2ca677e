"""Read `input` of Responses, a string or items, into canonical turns: one turn of the assistant is several items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deck.api import (
    Image,
    Message,
    Part,
    Reader,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Treatment,
    Values,
    invalid,
    json,
    tool_id_of_client,
    wrong_type,
)
from deck_plugins.openai_wire import read_arguments

from .contents import Contents, read_thoughts
from .item_fields import (
    AGENT_MESSAGE,
    AGENT_PARTS,
    CALL,
    CUSTOM_CALL,
    CUSTOM_RESULT,
    ITEMS,
    MESSAGE,
    REASONING_ITEM,
    RESULT,
)
from .names import upstream_name
from .tools import ARGUMENT

# Templates put the parts of a turn in this order, whatever the order of its items.
_ORDER: tuple[type[Part], ...] = (Reasoning, Text, ToolCall)


def read_input(reader: Reader, value: Any, path: str, *, remote_images: bool) -> tuple[Message, ...]:
    """Return the turns in the client's order.

    Raises:
        DeckError: an item has a shape that cannot be honoured.
    """
    if isinstance(value, str):
        return (Message("user", (Text(value),) if value else (), path),)
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array of items", value)
    items = _Items(reader, remote_images)
    for place, item in enumerate(value):
        items.read(item, f"{path}[{place}]")
    return items.end()


class _Items:
    """Collects turns; what the assistant said without a word of another in between becomes one turn."""

    def __init__(self, reader: Reader, remote: bool) -> None:
        self._reader = reader
        self._contents = Contents(reader, remote)
        self._messages: list[Message] = []
        self._parts: list[Part] = []
        self._origin = ""
        self._thoughts: list[tuple[str, Reasoning]] = []
        self._readers: dict[str, Callable[[dict[str, Any], str], None]] = {
            "message": self._message,
            "agent_message": self._agent_message,
            # Read before, with the tools of the top level.
            "additional_tools": lambda item, path: None,
            "reasoning": self._reasoning,
            "function_call": self._call,
            "custom_tool_call": self._custom_call,
            "function_call_output": lambda item, path: self._result(self._reader.read(RESULT, item, path), path),
            "custom_tool_call_output": lambda item, path: self._result(
                self._reader.read(CUSTOM_RESULT, item, path), path
            ),
        }

    def read(self, item: Any, path: str) -> None:
        if not isinstance(item, dict):
            raise wrong_type(path, "an object", item)
        kind = item.get("type")
        if kind is None:
            # The SDKs' short form of a message has no type, that of a reference has nothing but an id.
            kind = "item_reference" if "role" not in item and "id" in item else "message"
        row = ITEMS.find(kind) if isinstance(kind, str) else None
        if row is None:
            self._unknown(kind, path)
        elif row.treatment is Treatment.MAPPED:
            self._readers[row.name](item, path)
        elif row.treatment is Treatment.REFUSED:
            raise invalid(f"{path}: {kind}: {row.reason}", path, "unsupported_value")
        else:
            self._reader.report.ignored(f"{path}({kind})", row.reason, field="input[]")

    def _unknown(self, kind: Any, path: str) -> None:
        known = ", ".join(row.name for row in ITEMS if row.treatment is Treatment.MAPPED)
        message = f"{path}.type: unknown kind of item {kind!r}; items that are read: {known}"
        raise invalid(message, f"{path}.type", "unsupported_value")

    def end(self) -> tuple[Message, ...]:
        self._flush()
        return tuple(self._messages)

    def _flush(self) -> None:
        """End the assistant's turn; a thought that nothing followed says nothing to anybody."""
        for path, _ in self._thoughts:
            self._reader.report.ignored(path, "no output of the assistant follows this thought")
        self._thoughts = []
        if self._parts or self._origin:
            order = [_ORDER.index(type(part)) for part in self._parts]
            if order != sorted(order):
                shown = f"{self._origin}:order"
                reason = "templates put the thoughts of a turn first, then its text, then its calls"
                self._reader.report.changed(self._origin, reason, shown=shown)
            self._messages.append(Message("assistant", tuple(self._parts), self._origin))
        self._parts, self._origin = [], ""

    def _say(self, parts: tuple[Part, ...], path: str) -> None:
        """Add to the assistant's turn, after what was thought before it."""
        if not self._origin:
            self._origin = self._thoughts[0][0] if self._thoughts else path
        elif any(isinstance(part, Text) for part in parts) and any(isinstance(part, Text) for part in self._parts):
            shown = f"{path}:assistant+assistant"
            self._reader.report.changed(path, "merged into the assistant turn before it", shown=shown)
        self._parts += [*(thought for _, thought in self._thoughts), *parts]
        self._thoughts = []

    def _message(self, item: dict[str, Any], path: str) -> None:
        values = self._reader.read(MESSAGE, item, path)
        if "role" not in values:
            raise invalid(f"{path}.role is required", f"{path}.role", "missing_required_parameter")
        role = values.get("role")
        if "content" not in values:
            self._reader.report.changed(f"{path}.content", "an absent content is empty text")
        parts = self._contents.read(values.get("content"), f"{path}.content")
        if role != "user" and any(not isinstance(part, Text) for part in parts):
            raise invalid(f"{path}.content: a {role} message takes text only", f"{path}.content")
        if role == "assistant":
            self._say(parts, path)
        else:
            self._flush()
            self._messages.append(Message(role, parts, path))

    def _agent_message(self, item: dict[str, Any], path: str) -> None:
        values = self._reader.read(AGENT_MESSAGE, item, path)
        parts = self._contents.read(values.get("content"), f"{path}.content", AGENT_PARTS)
        shown = f"{path}:agent_message>message"
        self._reader.report.changed(path, "is read as a message of the user", shown=shown)
        self._flush()
        self._messages.append(Message("user", parts, path))

    def _reasoning(self, item: dict[str, Any], path: str) -> None:
        values = self._reader.read(REASONING_ITEM, item, path)
        content = read_thoughts(self._reader, values.get("content") or [], f"{path}.content")
        summary = read_thoughts(self._reader, values.get("summary") or [], f"{path}.summary")
        if content and summary:
            self._reader.report.ignored(f"{path}.summary", "content has the whole thought")
        elif summary:
            self._reader.report.changed(
                f"{path}.summary", "is all that is left of the thought", shown=f"{path}.summary>{path}.content"
            )
        if thought := content or summary:
            self._thoughts.append((path, Reasoning(thought)))

    def _call(self, item: dict[str, Any], path: str) -> None:
        values = self._reader.read(CALL, item, path)
        arguments = read_arguments(values.get("arguments", ""), f"{path}.arguments", self._reader.report)
        self._say((self._tool_call(values, path, arguments),), path)

    def _custom_call(self, item: dict[str, Any], path: str) -> None:
        values = self._reader.read(CUSTOM_CALL, item, path)
        if "input" not in values:
            raise invalid(f"{path}.input is required", f"{path}.input", "missing_required_parameter")
        arguments = json.dumps({ARGUMENT: values.get("input")}).decode()
        shown = f"{path}:custom_tool_call>function_call"
        reason = "is carried as a function call with one string argument"
        self._reader.report.changed(path, reason, shown=shown)
        self._say((self._tool_call(values, path, arguments),), path)

    def _tool_call(self, values: Values, path: str, arguments: str) -> ToolCall:
        for member in ("call_id", "name"):
            if member not in values:
                raise invalid(f"{path}.{member} is required", f"{path}.{member}", "missing_required_parameter")
        name = upstream_name(values.get("name"), values.get("namespace"))
        return ToolCall(tool_id_of_client(values.get("call_id")), name, arguments)

    def _result(self, values: Values, path: str) -> None:
        if "call_id" not in values:
            raise invalid(f"{path}.call_id is required", f"{path}.call_id", "missing_required_parameter")
        where = f"{path}.output"
        if "output" not in values:
            self._reader.report.changed(where, "an absent output is empty text")
        parts = self._contents.read(values.get("output"), where)
        kept = tuple(part for part in parts if isinstance(part, Text | Image))
        if len(kept) != len(parts):
            raise invalid(f"{where}: an output takes text and images", where)
        self._flush()
        result = ToolResult(tool_id_of_client(values.get("call_id")), kept)
        self._messages.append(Message("tool", (result,), path))
