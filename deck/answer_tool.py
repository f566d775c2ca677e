"""Tools and a form for the answer in one request: the form is offered as one more tool, whose call is the answer.

llama-server holds an answer to a schema by a grammar that has no room for calls: beside it no tool would ever be
called, without a word. As a tool's arguments the same schema is held, and the model may still call the others. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from deck.canon.events import Event, Finish, FinishReason, PartDelta, PartEnd, PartStart
from deck.canon.request import ChatRequest, Tool, ToolChoice
from deck.normalize.report import Report

_NAME = "answer"
_TOLD = "Give the final answer to the user, once no other tool is needed."


def with_answer_tool(request: ChatRequest, report: Report) -> tuple[ChatRequest, str]:
    """Return the request as llama-server can hold to all of it, and the name of the tool that was added, "" = none.

    Where the client demands a call, the form has no text to shape and is left out. A schema that no tool can have, as
    it is not of an object, keeps its grammar, and the tools are reported.
    """
    output, choice = request.output, request.tool_choice
    if output is None or output.kind == "grammar" or not request.tools or (choice and choice.mode == "none"):
        return request, ""
    if choice is not None and choice.mode == "required":
        why = "a call is demanded, so there is no text for the form to shape"
        report.changed(output.path, why, shown=f"{output.path}>tool_choice")
        return replace(request, output=None), ""
    schema: Mapping[str, Any] = {"type": "object"} if output.kind == "json_object" else output.schema or {}
    if schema.get("type") != "object":
        why = "the grammar of the answer's form has no room for calls; a schema of type object has"
        report.ignored("tools", f"{output.path}: {why}", field="tools")
        return request, ""
    taken = {tool.name for tool in request.tools}
    name = next(
        name for name in (_NAME, *(f"{_NAME}_{number}" for number in range(2, 2 + len(taken)))) if name not in taken
    )
    why = "beside tools, the form is one more tool for the model, and its call is sent as the answer's text"
    report.changed(output.path, why, shown=f"{output.path}>tools")
    names = None if choice is None or choice.names is None else (*choice.names, name)
    return (
        replace(
            request,
            tools=(*request.tools, Tool(name, _TOLD, schema, path=output.schema_path or output.path)),
            tool_choice=ToolChoice("required", names),
            output=None,
        ),
        name,
    )


class AnswerText:
    """A filter that turns the call of the added tool into the text that the client asked for.

    Args:
        name: of the tool.
        report: gets a note where the model answers more than once; the first answer counts.
    """

    def __init__(self, name: str, report: Report) -> None:
        self._name = name
        self._report = report
        self._is_answered = self._is_called = self._is_out = False
        self._index = -1

    def feed(self, event: Event) -> Iterator[Event]:
        """Return what becomes of `event`."""
        match event:
            case PartStart():
                is_answer = event.kind == "tool_call" and event.tool_name == self._name
                self._is_out = is_answer and self._is_answered
                if self._is_out:
                    self._report.changed("tools", "the model answered again; the first answer counts", shown="text>out")
                    return
                self._index += 1
                if is_answer:
                    self._is_answered = True
                    yield PartStart(self._index, "text")
                    return
                self._is_called = self._is_called or event.kind == "tool_call"
                yield replace(event, index=self._index)
            case PartDelta() | PartEnd():
                if not self._is_out:
                    yield event if event.index == self._index else replace(event, index=self._index)
            case Finish(reason=FinishReason.TOOL_CALLS) if not self._is_called:
                yield replace(event, reason=FinishReason.STOP)
            case _:
                yield event
