"""A second chance for a model whose tool call cannot be used: what was wrong, and the request that says so to it.

Pure. Only answers that are not streamed get one, and only one; whoever runs the exchange decides that.
"""

from __future__ import annotations

from dataclasses import replace

from deck.canon.answer import Answer, AnswerPart, is_json_object
from deck.canon.events import Finish, FinishReason, Usage
from deck.canon.request import ChatRequest, Message, Text, ToolCall, ToolChoice
from deck.errors import DeckError, ErrorKind
from deck.structured import Unchecked, fault

_NO_CALL = "Your answer was not in the form of a call of a tool"
_MOST_NAMES = 40
_LONGEST_SHOWN = 2000


def fault_of(answer: Answer, request: ChatRequest) -> str | None:
    """Return, in words for the model, why its calls cannot be used; None = they can, or there are none."""
    if answer.finish.reason is not FinishReason.TOOL_CALLS:
        return None
    faults = [said for part in answer.parts if isinstance(part, ToolCall) and (said := _call_fault(part, request))]
    return "; ".join(faults) or None


def is_usable(call: ToolCall, request: ChatRequest) -> bool:
    """Tell whether a client can act on a call: the tool was offered, and the arguments are an object."""
    return call.name in _offered(request) and is_json_object(call.arguments)


def format_fault(error: DeckError) -> str | None:
    """Return, in words for the model, what it did where llama-server could not read its call; None = nothing such."""
    # llama-server gives up on such an answer; its words were judged where the failure was read.
    is_unreadable = error.kind is ErrorKind.UPSTREAM and error.should_retry is False
    return _NO_CALL if is_unreadable else None


def corrected(request: ChatRequest, answer: Answer | None, said: str) -> ChatRequest:
    """Return the request with what the model wrote and what was wrong with it; `answer` None = it cannot be shown."""
    turns: list[Message] = []
    written = written_out(answer) if answer is not None else ""
    if written:
        turns.append(Message("assistant", (Text(written[:_LONGEST_SHOWN]),), "the first answer"))
    names = ", ".join(sorted(_offered(request))[:_MOST_NAMES])
    told = f"{said}. Try again: call one of the tools {names} with arguments that fit its schema, or answer in text."
    turns.append(Message("user", (Text(told),), "the correction"))
    return replace(request, messages=(*request.messages, *turns))


def written_out(answer: Answer) -> str:
    """Return the text of an answer, its calls written as text."""
    return "\n".join(_written(part) for part in answer.parts if isinstance(part, Text | ToolCall))


def honest(answer: Answer, request: ChatRequest) -> Answer:
    """Return the answer with the calls that no client can act on as text."""
    parts: list[AnswerPart] = [
        Text(_written(part)) if isinstance(part, ToolCall) and not is_usable(part, request) else part
        for part in answer.parts
    ]
    has_calls = any(isinstance(part, ToolCall) for part in parts)
    reason = answer.finish.reason
    if reason in (FinishReason.STOP, FinishReason.TOOL_CALLS):
        reason = FinishReason.TOOL_CALLS if has_calls else FinishReason.STOP
    return replace(answer, parts=tuple(parts), finish=_finish(answer.finish, reason, answer.finish.usage))


def with_both_usages(answer: Answer, first: Usage | None) -> Answer:
    """Return the second answer with the tokens of both: both were processed."""
    if first is None:
        return answer
    finish, second = answer.finish, answer.finish.usage
    usage = Usage(
        prompt=first.prompt + second.prompt,
        completion=first.completion + second.completion,
        cached=_sum(first.cached, second.cached),
        reasoning=_sum(first.reasoning, second.reasoning),
    )
    return replace(answer, finish=_finish(finish, finish.reason, usage))


def _finish(finish: Finish, reason: FinishReason, usage: Usage) -> Finish:
    return Finish(reason, usage, finish.stop_sequence, finish.timings)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None and other is None else (one or 0) + (other or 0)


def _written(part: AnswerPart) -> str:
    return f"{part.name}({part.arguments})" if isinstance(part, ToolCall) else part.text


def _offered(request: ChatRequest) -> frozenset[str]:
    choice = request.tool_choice or ToolChoice("auto")
    return frozenset(tool.name for tool in request.tools if choice.names is None or tool.name in choice.names)


def _call_fault(call: ToolCall, request: ChatRequest) -> str | None:
    if call.name not in _offered(request):
        return f"There is no tool named {call.name!r}"
    if not is_json_object(call.arguments):
        return f"The arguments of {call.name} are not a JSON object"
    tool = next(tool for tool in request.tools if tool.name == call.name)
    if tool.parameters is None:
        return None
    try:
        broken = fault(call.arguments, tool.parameters)
    except Unchecked:
        return None
    return f"The arguments of {call.name} do not fit its schema at {broken}" if broken is not None else None
