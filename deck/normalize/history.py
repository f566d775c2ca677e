"""Calls and their results in a conversation, where clients garble them: repaired where the meaning is plain, else 400.

Templates raise on a result without a call, lose what stands in another order than the calls, and read arguments as
JSON. Knows no template.
"""

from __future__ import annotations

from dataclasses import replace

from deck import json
from deck.canon.answer import is_json_object
from deck.canon.request import ChatRequest, Image, Message, Text, ToolCall, ToolResult
from deck.errors import invalid
from deck.normalize.ids import digest9
from deck.normalize.report import Report

_NO_RESULT = "[no result: the call was not carried out]"


def repair_history(request: ChatRequest, report: Report, *, continues: bool = True) -> ChatRequest:
    """Return the request with each result behind its call, in the order of the calls.

    Args:
        request: as it was read.
        report: gets the notes.
        continues: the server goes on from a last turn of the assistant, as llama-server does unless it is told not to.

    Raises:
        DeckError: what a call or a result means is not plain.
    """
    if request.extra:
        request = _continued(request, report, continues=continues)
    messages = request.messages
    if not _holds_calls(messages):
        return request
    messages = _plain_arguments(messages, report)
    messages = _own_ids(messages, report)
    messages = _pictures_behind(_Paired(messages, report).turns(), report)
    return request if messages == request.messages else replace(request, messages=messages)


def _holds_calls(messages: tuple[Message, ...]) -> bool:
    for message in messages:
        for part in message.parts:
            kind = type(part)
            if kind is ToolCall or kind is ToolResult:
                return True
    return False


def _continued(request: ChatRequest, report: Report, *, continues: bool) -> ChatRequest:
    """Return a request that wants its last message continued as llama-server takes it: with no turn begun behind it.

    Who wants none continued is told: a last turn of the assistant always is (llama.cpp, `prefill_assistant`).
    """
    last = request.messages[-1].role if request.messages else "assistant"
    if not request.extra.get("continue_final_message"):
        for name, unwanted in (("continue_final_message", False), ("add_generation_prompt", True)):
            if continues and last == "assistant" and request.extra.get(name) is unwanted:
                report.ignored(name, "llama-server continues a last turn of the assistant")
        return request
    if last != "assistant":
        where = "continue_final_message"
        message = f"{where}: the last message must be the assistant's, which the answer continues; it is a {last}'s"
        raise invalid(message, where, "unsupported_value")
    if request.messages and any(isinstance(part, ToolCall) for part in request.messages[-1].parts):
        where = "continue_final_message"
        raise invalid(
            f"{where}: a message that calls tools is complete; send their results", where, "unsupported_value"
        )
    if request.extra.get("add_generation_prompt"):
        where = "add_generation_prompt"
        message = f"{where}: continue_final_message begins no new turn; leave it out, or send false"
        raise invalid(message, where, "unsupported_value")
    return replace(request, extra={**request.extra, "add_generation_prompt": False})


def _pictures_behind(messages: tuple[Message, ...], report: Report) -> tuple[Message, ...]:
    """Put the pictures of results into the user's turn behind the last of them: llama-server takes none in a result."""
    if not any(isinstance(part, ToolResult) and _pictures(part) for message in messages for part in message.parts):
        return messages
    found: list[Message] = []
    waiting: list[Image] = []
    origin = ""
    for message in messages:
        if message.role == "tool":
            pictures = [item for part in message.parts if isinstance(part, ToolResult) for item in _pictures(part)]
            if pictures:
                report.changed(
                    f"{message.origin}.content",
                    "llama-server takes no pictures in a result; they stand behind the results",
                    shown=f"{message.origin}:image>user",
                )
                parts = tuple(_texts(part) if isinstance(part, ToolResult) else part for part in message.parts)
                waiting, origin, message = [*waiting, *pictures], message.origin, replace(message, parts=parts)
        elif waiting and message.role == "user":
            message, waiting = replace(message, parts=(*waiting, *message.parts)), []
        elif waiting:
            found.append(Message("user", tuple(waiting), origin))
            waiting = []
        found.append(message)
    return (*found, Message("user", tuple(waiting), origin)) if waiting else tuple(found)


def _pictures(result: ToolResult) -> list[Image]:
    return [part for part in result.parts if isinstance(part, Image)]


def _texts(result: ToolResult) -> ToolResult:
    return replace(result, parts=tuple(part for part in result.parts if isinstance(part, Text)))


def _plain_arguments(messages: tuple[Message, ...], report: Report) -> tuple[Message, ...]:
    """Write arguments that are missing as an empty object; others must be one."""

    def plain(part: ToolCall, origin: str) -> ToolCall:
        text = part.arguments.strip()
        if text.startswith("{") and is_json_object(text):
            return part
        if text not in ("", "null", '""', "[]"):
            inner = _unquoted(text)
            if inner is None:
                where = f"{origin}.tool_calls"
                message = f"{where}: the arguments of {part.name!r} are no JSON object; templates fail on them"
                raise invalid(message, where, "unsupported_value")
            text = inner
        else:
            text = "{}"
        report.changed(f"{origin}.tool_calls", "arguments are a JSON object", shown=f"{origin}.arguments>object")
        return replace(part, arguments=text)

    if all(
        part.arguments.startswith("{") and is_json_object(part.arguments)
        for message in messages
        for part in message.parts
        if isinstance(part, ToolCall)
    ):
        return messages
    return tuple(
        replace(
            message,
            parts=tuple(plain(part, message.origin) if isinstance(part, ToolCall) else part for part in message.parts),
        )
        for message in messages
    )


def _unquoted(text: str) -> str | None:
    """Return the JSON object that a JSON string holds, as clients send that encode twice."""
    try:
        inner = json.loads(text)
    except ValueError:
        return None
    return inner if isinstance(inner, str) and is_json_object(inner) else None


def _own_ids(messages: tuple[Message, ...], report: Report) -> tuple[Message, ...]:
    """Give a call whose id stood before another id, and the next result under it."""
    ids = [part.id for message in messages for part in message.parts if isinstance(part, ToolCall)]
    if len(set(ids)) == len(ids):
        return messages
    seen: dict[str, int] = {}
    answered: dict[str, int] = {}
    passed: dict[str, int] = {}
    found: list[Message] = []
    for message in messages:
        if message.role == "user":
            passed = dict(seen)
        parts = []
        for part in message.parts:
            if isinstance(part, ToolCall):
                times = seen[part.id] = seen.get(part.id, 0) + 1
                if times > 1:
                    # A call that a user's turn went past without a result gets none from behind the next one.
                    answered[part.id] = max(answered.get(part.id, 0), passed.get(part.id, 0))
                    report.changed(
                        f"{message.origin}.tool_calls", "two calls have one id", shown=f"{message.origin}.id>other"
                    )
                    part = replace(part, id=digest9(f"{part.id}:{times}"))
            elif isinstance(part, ToolResult) and seen.get(part.id, 0) > 1:
                times = answered[part.id] = min(answered.get(part.id, 0) + 1, seen[part.id])
                part = replace(part, id=part.id if times == 1 else digest9(f"{part.id}:{times}"))
            elif isinstance(part, ToolResult) and part.id in seen:
                answered[part.id] = answered.get(part.id, 0) + 1
            parts.append(part)
        found.append(replace(message, parts=tuple(parts)))
    return tuple(found)


class _Paired:
    """Turns with each result behind its call."""

    def __init__(self, messages: tuple[Message, ...], report: Report) -> None:
        self._messages = messages
        self._report = report
        self._calls = {part.id for message in messages for part in message.parts if isinstance(part, ToolCall)}
        self._results: dict[str, tuple[Message, ToolResult]] = {}

    def turns(self) -> tuple[Message, ...]:
        messages = tuple(kept for message in self._messages if (kept := self._known(message)) is not None)
        if self._are_paired(messages):
            return messages
        found: list[Message] = []
        for place, message in enumerate(messages):
            if message.role == "tool":
                continue
            found.append(message)
            calls = [part for part in message.parts if isinstance(part, ToolCall)]
            if calls:
                is_last = place == len(messages) - 1
                found += self._behind(message, calls, is_last=is_last)
        self._note_moved(messages, found)
        return tuple(found)

    def _known(self, message: Message) -> Message | None:
        """Collect the results of a turn; one of a call that is not there becomes a user's text."""
        if message.role != "tool":
            return message
        orphans = []
        for part in message.parts:
            if not isinstance(part, ToolResult):
                continue
            if part.id not in self._calls:
                orphans.append(part)
            elif part.id in self._results:
                where = message.origin
                raise invalid(f"{where}: the call that this is the result of has one already", where)
            else:
                self._results[part.id] = (message, part)
        if not orphans:
            return message
        if len(orphans) != len(message.parts):
            raise invalid(f"{message.origin}: a result whose call is not in the conversation", message.origin)
        self._report.changed(
            f"{message.origin}.role",
            "a result whose call is not in the conversation is a user's text",
            shown=f"{message.origin}.role=tool>user",
        )
        inner = tuple(item for part in orphans for item in part.parts)
        opened, closed = Text("[result of a tool]"), Text("[end of result]")
        return Message("user", (opened, *inner, closed), message.origin)

    def _are_paired(self, messages: tuple[Message, ...]) -> bool:
        """Tell whether all results stand where they belong."""
        waiting: list[str] = []
        for message in messages:
            if message.role == "tool":
                for part in message.parts:
                    if not isinstance(part, ToolResult) or not waiting or waiting.pop(0) != part.id:
                        return False
            elif waiting:
                return False
            else:
                waiting = [part.id for part in message.parts if isinstance(part, ToolCall)]
        return not waiting or messages[-1].role != "tool"

    def _behind(self, message: Message, calls: list[ToolCall], *, is_last: bool) -> list[Message]:
        found: list[Message] = []
        for call in calls:
            turn, result = self._results.get(call.id, (None, None))
            if turn is not None and result is not None:
                found.append(Message("tool", (result,), turn.origin))
            elif not is_last:
                self._report.changed(
                    f"{message.origin}.tool_calls",
                    f"the call of {call.name} has no result; it is marked as not carried out",
                    shown=f"{message.origin}.tool_calls>no-result",
                )
                found.append(Message("tool", (ToolResult(call.id, (Text(_NO_RESULT),)),), message.origin))
        return found

    def _note_moved(self, before: tuple[Message, ...], after: list[Message]) -> None:
        places = _places(before)
        for id, place in _places(tuple(after)).items():
            if id in places and places[id] != place:
                origin = self._results[id][0].origin
                reason = "results are put behind their calls, in the order of these"
                self._report.changed(origin, reason, shown=f"{origin}:reordered")


def _places(messages: tuple[Message, ...]) -> dict[str, tuple[str, int]]:
    """Return where each result stands: behind which turn, and as the how manieth."""
    found: dict[str, tuple[str, int]] = {}
    owner, rank = "", 0
    for message in messages:
        if message.role != "tool":
            owner, rank = message.origin, 0
        for part in message.parts:
            if isinstance(part, ToolResult):
                found[part.id] = (owner, rank)
                rank += 1
    return found
