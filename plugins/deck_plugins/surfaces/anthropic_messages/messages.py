"""Read the turns and the system prompt of Messages into canonical turns, in an order that templates take."""

from __future__ import annotations

from typing import Any

from deck.api import Message, Part, Reader, Reasoning, Text, ToolCall, invalid, wrong_type

from .blocks import (
    Change,
    kind_of,
    read_call,
    read_change,
    read_image,
    read_result,
    read_text,
    read_texts,
    read_thinking,
)
from .fields import KINDS, MESSAGE

_SEPARATOR = "\n\n"
# Claude Code's first line of system text; it differs in every request, which would lose the server's prompt cache.
_ATTRIBUTION = "x-anthropic-billing-header:"
_USER = ("text", "image", "tool_result")
_SYSTEM = ("text", "tool_addition", "tool_removal")
_ASSISTANT = ("text", "thinking", "redacted_thinking", "tool_use", "fallback")
_RANK: dict[type[Part], int] = {Reasoning: 0, Text: 1, ToolCall: 2}


def read_system(reader: Reader, value: Any, path: str, *, remove_attribution: bool) -> tuple[Message, ...]:
    """Return the system prompt as one turn, nothing where there is none.

    Raises:
        DeckError: it holds something other than text.
    """
    texts = _system_texts(reader, value, path, remove_attribution)
    return (Message("system", (Text(_SEPARATOR.join(texts)),), path),) if texts else ()


def _system_texts(reader: Reader, value: Any, path: str, remove: bool) -> list[str]:
    found = read_texts(reader, value, path, "the system prompt")
    return [kept for where, text in found if (kept := _without_attribution(reader, text, where) if remove else text)]


def _without_attribution(reader: Reader, text: str, path: str) -> str:
    if not text.startswith(_ATTRIBUTION):
        return text
    rest = text.partition("\n")[2].lstrip("\n")
    reason = "it says who sent the request, differs every time, and would lose the server's cache of the prompt"
    if rest:
        reader.report.changed(path, f"its first line is left out: {reason}")
    else:
        reader.report.ignored(path, reason)
    return rest


def read_messages(
    reader: Reader, items: list[Any], *, remote_images: bool
) -> tuple[tuple[Message, ...], tuple[Change, ...]]:
    """Return the turns in the client's order, results of tools before the rest of their turn; and changes of tools.

    Raises:
        DeckError: a turn has a shape that cannot be honoured.
    """
    if not items:
        raise invalid("messages: expected at least one message", "messages", "unsupported_value")
    turns = [_Turn(reader, item, f"messages[{place}]", remote_images) for place, item in enumerate(items)]
    last_user = max((place for place, turn in enumerate(turns) if turn.role == "user"), default=-1)
    messages = [message for place, turn in enumerate(turns) for message in turn.read(is_over=place < last_user)]
    if not messages:
        raise invalid("messages: expected at least one turn with something in it", "messages", "unsupported_value")
    return tuple(messages), tuple(change for turn in turns for change in turn.changes)


class _Turn:
    """One message while it is read; `path` is the client's own."""

    def __init__(self, reader: Reader, item: Any, path: str, remote: bool) -> None:
        if not isinstance(item, dict):
            raise wrong_type(path, "an object", item)
        self.reader = reader
        self.path = path
        self.remote = remote
        self.values = reader.read(MESSAGE, item, path)
        for name in ("role", "content"):
            if name not in self.values:
                raise invalid(f"{path}.{name} is required", f"{path}.{name}", "missing_required_parameter")
        self.role = self.values.get("role")
        self.changes: list[Change] = []
        if self.role != "system" and "clear_at" in self.values:
            raise invalid(f"{path}.clear_at: only a system turn has it", f"{path}.clear_at", "unsupported_parameter")

    def read(self, *, is_over: bool) -> list[Message]:
        """Return the turn as one message or several; `is_over` says that a user turn follows."""
        match self.role:
            case "user":
                return self._user()
            case "assistant":
                return [Message("assistant", self._assistant(), self.path)]
            case _:
                return self._system(is_over)

    def _system(self, is_over: bool) -> list[Message]:
        texts = []
        for where, item in self._blocks():
            if kind_of(item, where, _SYSTEM, "a system turn") != "text":
                self.changes.append(read_change(self.reader, item, where))
            elif (part := read_text(self.reader, item, where)) is not None:
                texts.append(part.text)
        if self.values.get("clear_at") == "next_user_message" and is_over:
            where = f"{self.path}.clear_at"
            self.reader.report.changed(where, "a user turn follows, so the turn is left out")
            return []
        return [Message("system", (Text(_SEPARATOR.join(texts)),), self.path)] if texts else []

    def _blocks(self) -> list[tuple[str, Any]]:
        content, where = self.values.get("content"), f"{self.path}.content"
        if isinstance(content, str):
            return [(where, {"type": "text", "text": content})]
        if not isinstance(content, list):
            raise wrong_type(where, "a string or an array of blocks", content)
        return [(f"{where}[{place}]", item) for place, item in enumerate(content)]

    def _user(self) -> list[Message]:
        results: list[Message] = []
        rest: list[Part] = []
        for where, item in self._blocks():
            match kind_of(item, where, _USER, "a user turn"):
                case "tool_result":
                    if rest:
                        reason = "results of tools come before the rest of their turn, where templates take them"
                        self.reader.report.changed(where, reason, shown=f"{self.path}.content:reordered")
                    result = read_result(self.reader, item, where, remote=self.remote)
                    results.append(Message("tool", (result,), where))
                case "image":
                    rest.append(read_image(self.reader, item, where, remote=self.remote))
                case _:
                    if (text := read_text(self.reader, item, where)) is not None:
                        rest.append(text)
        if results and not rest:
            return results
        return [*results, Message("user", tuple(rest), self.path)]

    def _assistant(self) -> tuple[Part, ...]:
        parts: list[Part] = []
        for where, item in self._blocks():
            part = self._assistant_part(item, where)
            if part is None:
                continue
            if parts and _RANK[type(part)] < _RANK[type(parts[-1])]:
                reason = "templates take thoughts first, then text, then calls"
                self.reader.report.changed(where, reason, shown=f"{self.path}.content:reordered")
            parts.append(part)
        return tuple(sorted(parts, key=lambda part: _RANK[type(part)]))

    def _assistant_part(self, item: Any, where: str) -> Part | None:
        match kind_of(item, where, _ASSISTANT, "an assistant turn"):
            case "text":
                return read_text(self.reader, item, where)
            case "thinking":
                return read_thinking(self.reader, item, where)
            case "tool_use":
                return read_call(self.reader, item, where)
            case kind:
                row = KINDS.find(kind)
                assert row is not None
                self.reader.report.ignored(where, row.reason)
                return None
