"""Turns in an order that chat templates take; each change leaves a note. Knows roles, and no template by name."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from deck.canon.request import ChatRequest, Message, Reasoning, Text, ToolCall, ToolResult
from deck.normalize.reasoning import with_setting
from deck.normalize.report import Report

_OPEN, _CLOSE = "[system note]", "[end of system note]"
_SAID, _SAID_END = "[user message]", "[end of user message]"
_SYSTEM = ("system", "developer")


def order_turns(messages: tuple[Message, ...], report: Report) -> tuple[Message, ...]:
    """Return the turns with systems in their place and neighbours of one role merged."""
    if _is_orderly(messages):
        return messages
    return merge_turns(place_systems(messages, report), report)


def _is_orderly(messages: tuple[Message, ...]) -> bool:
    """Tell whether all turns certainly stay as they are; False = they must be looked at."""
    before = ""
    for message in messages:
        role = message.role
        if role == "developer" or (role == "system" and (before or not _is_plain(message))):
            return False
        if role == before and role != "tool":
            return False
        before = role
    return True


def place_systems(messages: tuple[Message, ...], report: Report) -> tuple[Message, ...]:
    """Merge the leading system turns into one; fold later ones into a user turn at their place.

    A later one is never hoisted: that would change the beginning of the prompt and lose the server's cache.
    """
    if not any(message.role in _SYSTEM for message in messages[1:]) and _is_plain(messages[0]):
        return messages
    leading = 0
    while leading < len(messages) and messages[leading].role in _SYSTEM:
        leading += 1
    placed = [_system(messages[:leading], report)] if leading else []
    for message in messages[leading:]:
        if message.role in _SYSTEM:
            text = f"{_OPEN}\n{_text(message)}\n{_CLOSE}"
            report.changed(
                f"{message.origin}.role",
                "templates take system turns at the beginning only; folded in place into a user turn",
                shown=f"{message.origin}.role={message.role}>user",
            )
            placed.append(Message("user", (Text(text),), message.origin))
        else:
            placed.append(message)
    return tuple(placed)


def _system(messages: tuple[Message, ...], report: Report) -> Message:
    for message in messages:
        if message.role == "developer":
            report.changed(
                f"{message.origin}.role", "is read as system", shown=f"{message.origin}.role=developer>system"
            )
    for message in messages[1:]:
        shown = f"{message.origin}:system+system"
        report.changed(message.origin, "merged into the first system turn", shown=shown)
    text = "\n\n".join(text for message in messages if (text := _text(message)))
    return Message("system", (Text(text),), messages[0].origin)


def _is_plain(message: Message) -> bool:
    """Tell whether a turn stays as it is in the first place: no system turn, or one of plain text."""
    if message.role == "developer":
        return False
    return message.role != "system" or (len(message.parts) == 1 and isinstance(message.parts[0], Text))


def _text(message: Message) -> str:
    return "\n".join(part.text for part in message.parts if isinstance(part, Text))


def merge_turns(messages: tuple[Message, ...], report: Report) -> tuple[Message, ...]:
    """Merge neighbours of one role, which templates that want alternation raise on."""
    if not any(one.role == other.role and _mergeable(one) for one, other in pairwise(messages)):
        return messages
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last is None or last.role != message.role or not _mergeable(last):
            merged.append(message)
            continue
        report.changed(
            message.origin,
            f"merged into the {message.role} turn before it",
            shown=f"{message.origin}:{last.role}+{last.role}",
        )
        merged[-1] = replace(last, parts=last.parts + message.parts)
    return tuple(merged)


def _mergeable(message: Message) -> bool:
    match message.role:
        case "user":
            return True
        case "assistant":
            return not has_calls(message)
        case _:
            return False


def has_calls(message: Message) -> bool:
    """Tell whether a turn calls tools."""
    return any(isinstance(part, ToolCall) for part in message.parts)


def one_call_a_turn(messages: tuple[Message, ...], report: Report) -> tuple[Message, ...]:
    """Give each call of a turn a turn of its own, with its result behind it: for templates that know no others."""
    if not any(sum(isinstance(part, ToolCall) for part in message.parts) > 1 for message in messages):
        return messages
    found: list[Message] = []
    results = {part.id: message for message in messages for part in message.parts if isinstance(part, ToolResult)}
    moved: set[int] = set()
    for message in messages:
        calls = [part for part in message.parts if isinstance(part, ToolCall)]
        if id(message) in moved:
            continue
        if len(calls) < 2:
            found.append(message)
            continue
        report.changed(
            message.origin,
            "the template takes one call in a turn; each has a turn of its own, with its result",
            shown=f"{message.origin}.tool_calls>turns",
        )
        rest = tuple(part for part in message.parts if not isinstance(part, ToolCall))
        for place, call in enumerate(calls):
            found.append(Message("assistant", (*(rest if not place else ()), call), message.origin))
            if (result := results.get(call.id)) is not None and len(result.parts) == 1:
                found.append(result)
                moved.add(id(result))
    return tuple(found)


def thoughts_beside_calls(messages: tuple[Message, ...], report: Report) -> tuple[Message, ...]:
    """Put the text of a turn that thinks and calls behind its thoughts: for templates that take only one of both."""

    def fitted(message: Message) -> Message:
        texts = [part.text for part in message.parts if isinstance(part, Text)]
        thoughts = [part.text for part in message.parts if isinstance(part, Reasoning)]
        if not (has_calls(message) and any(texts) and any(thoughts)):
            return message
        report.changed(
            f"{message.origin}.content",
            "the template takes thoughts or text beside a call, not both; the text stands behind the thoughts",
            shown=f"{message.origin}.content>reasoning_content",
        )
        thought = Reasoning("\n\n".join([*thoughts, *filter(None, texts)]))
        return replace(message, parts=(thought, *(part for part in message.parts if isinstance(part, ToolCall))))

    fit = tuple(fitted(message) for message in messages)
    return messages if fit == messages else fit


def note_text_beside_calls(messages: tuple[Message, ...], report: Report) -> None:
    """Report text beside a call, where the template shows the model the call only."""
    for message in messages:
        if has_calls(message) and any(isinstance(part, Text) and part.text.strip() for part in message.parts):
            report.ignored(f"{message.origin}.content", "the model's template shows no text beside calls")


def answer_before_user(messages: tuple[Message, ...], report: Report) -> tuple[Message, ...]:
    """Put a user turn that follows a result at once into that result: for templates that count turns without tools."""
    found: list[Message] = []
    for message in messages:
        last = found[-1] if found else None
        if (
            message.role != "user"
            or last is None
            or last.role != "tool"
            or not isinstance(last.parts[-1], ToolResult)
            or not all(isinstance(part, Text) for part in message.parts)
        ):
            found.append(message)
            continue
        report.changed(
            message.origin,
            "the template takes no user turn behind a result; folded in place into the result",
            shown=f"{message.origin}.role=user>tool",
        )
        result = last.parts[-1]
        text = Text(f"{_SAID}\n{_text(message)}\n{_SAID_END}")
        found[-1] = replace(last, parts=(*last.parts[:-1], replace(result, parts=(*result.parts, text))))
    return messages if len(found) == len(messages) else tuple(found)


def add_system_line(messages: tuple[Message, ...], line: str) -> tuple[Message, ...]:
    """Put a line at the end of the system turn, or into one of its own."""
    if messages and messages[0].role == "system":
        first = messages[0]
        return (replace(first, parts=(Text(f"{_text(first)}\n\n{line}".strip()),)), *messages[1:])
    return (Message("system", (Text(line),), ""), *messages)


def allow_prefill(request: ChatRequest, report: Report) -> ChatRequest:
    """Switch thinking off where the last turn is an assistant's, which llama-server continues and cannot think for."""
    last = request.messages[-1] if request.messages else None
    if last is None or last.role != "assistant" or request.reasoning.enabled is False:
        return request
    report.changed(
        last.origin, "the answer continues this turn, so thinking is off", shown=f"{last.origin}>enable_thinking=false"
    )
    for path in request.reasoning.asked:
        report.ignored(path, "the answer continues the last turn, so thinking is off", field="reasoning_effort")
    setting = replace(request.reasoning, enabled=False, effort=None, budget=None)
    return with_setting(request, setting, report)
