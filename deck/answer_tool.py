"""Tools and a form for the answer in one request: the form is offered as one more tool, whose call is the answer.

llama-server holds an answer to a schema by a grammar that has no room for calls: beside it no tool would ever be
called, without a word. As a tool's arguments the same schema is held, and the model may still call the others. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from deck.canon.events import Event, Failed, Finish, FinishReason, PartDelta, PartEnd, PartStart
from deck.canon.request import ChatRequest, Tool, ToolChoice
from deck.contracts import Facts
from deck.normalize.report import Report

_NAME = "answer"
_ANY: Mapping[str, Any] = {"type": "object"}
_DEEPEST = 8
_TOLD = "Give the final answer to the user, once no other tool is needed."


def with_answer_tool(request: ChatRequest, facts: Facts, report: Report) -> tuple[ChatRequest, str]:
    """Return the request as llama-server can hold to all of it, and the name of the tool that was added, "" = none.

    Where the client demands a call, the form has no text to shape and is left out. A schema that no tool can have, as
    it is not of an object, keeps its grammar, and the tools are reported; so does the form of an answer that the client
    has begun. Where the template shows no tools, llama-server holds no call to a schema, so that the form is reported.
    """
    output, choice = request.output, request.tool_choice
    if output is None or output.kind == "grammar" or not request.tools or (choice and choice.mode == "none"):
        return request, ""
    if choice is not None and choice.mode == "required":
        why = "a call is demanded, so there is no text for the form to shape"
        report.changed(output.path, why, shown=f"{output.path}>tool_choice")
        return replace(request, output=None), ""
    schema = _ANY if output.kind == "json_object" else _object(output.schema or {})
    is_begun = bool(request.messages) and request.messages[-1].role == "assistant"
    if schema is None or is_begun:
        why = "the grammar of the answer's form has no room for calls; " + (
            "an answer that the last message begins can be no call"
            if is_begun
            else "a schema of type object would have"
        )
        report.ignored("tools", f"{output.path}: {why}", field="tools")
        return request, ""
    taken = {tool.name for tool in request.tools}
    name = next(
        name for name in (_NAME, *(f"{_NAME}_{number}" for number in range(2, 2 + len(taken)))) if name not in taken
    )
    why = "beside tools, the form is one more tool for the model, and its call is sent as the answer's text"
    report.changed(output.path, why, shown=f"{output.path}>tools")
    names = None if choice is None or choice.names is None else (*choice.names, name)
    is_shown = facts.template_caps.get("supports_tools") is not False
    if not is_shown:
        report.ignored(output.path, "llama-server holds calls to no schema where the template shows no tools")
    tool = Tool(name, _TOLD, schema, path=output.schema_path or output.path)
    choice = ToolChoice("required" if is_shown else "auto", names)
    return replace(request, tools=(*request.tools, tool), tool_choice=choice, output=None), name


def _object(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a schema that can only hold for objects with `type` said at its root, None = it may hold for others."""
    root, seen = schema, 0
    while isinstance(reference := root.get("$ref"), str) and seen < _DEEPEST:
        kind, _, name = reference.removeprefix("#/").partition("/")
        defined = schema.get(kind) if kind in ("$defs", "definitions") else None
        found = defined.get(name) if isinstance(defined, dict) else None
        if not isinstance(found, dict):
            return None
        root, seen = found, seen + 1
    if root is not schema:
        root = {**root, **{name: schema[name] for name in ("$defs", "definitions") if name in schema}}
    if root.get("type") == "object":
        return root
    if root.get("type") == ["object"] or ("type" not in root and isinstance(root.get("properties"), dict)):
        return {**root, "type": "object"}
    return None


class AnswerText:
    """A filter that turns the call of the added tool into the text that the client asked for.

    What a model says beside its answer would break the form, so text is held back until its place is known: thoughts
    where the answer follows or came before, else the text that it is.

    Args:
        name: of the tool.
        report: gets a note of such thoughts, and where the model answers more than once; the first answer counts.
    """

    def __init__(self, name: str, report: Report) -> None:
        self._name = name
        self._report = report
        self._is_answered = self._is_called = self._is_out = self._is_holding = False
        self._index = -1
        self._held: list[tuple[PartStart, list[PartDelta | PartEnd]]] = []

    def feed(self, event: Event) -> Iterator[Event]:
        """Return what becomes of `event`."""
        match event:
            case PartStart():
                yield from self._start(event)
            case PartDelta() | PartEnd():
                if self._is_holding:
                    self._held[-1][1].append(event)
                elif not self._is_out:
                    yield event if event.index == self._index else replace(event, index=self._index)
            case Finish():
                yield from self._let_go()
                if event.reason is FinishReason.TOOL_CALLS and not self._is_called:
                    event = replace(event, reason=FinishReason.STOP)
                yield event
            case Failed():
                yield from self._let_go()
                yield event
            case _:
                yield event

    def _start(self, event: PartStart) -> Iterator[Event]:
        self._is_out = False
        # A thought behind text that is held must not overtake it.
        self._is_holding = event.kind == "text" or (event.kind == "reasoning" and bool(self._held))
        if self._is_holding:
            self._held.append((event, []))
            return
        is_answer = event.kind == "tool_call" and event.tool_name == self._name
        self._is_out = is_answer and self._is_answered
        self._is_answered = self._is_answered or is_answer
        yield from self._let_go()
        if self._is_out:
            self._report.changed("tools", "the model answered again; the first answer counts", shown="text>out")
        elif is_answer:
            yield self._next(PartStart(0, "text"))
        else:
            self._is_called = self._is_called or event.kind == "tool_call"
            yield self._next(event)

    def _next(self, start: PartStart) -> PartStart:
        self._index += 1
        return replace(start, index=self._index)

    def _let_go(self) -> Iterator[Event]:
        """Let go what is held back; blanks beside an answer belong to how it is written."""
        held, self._held, self._is_holding = self._held, [], False
        for start, rest in held:
            if self._is_answered and start.kind == "text":
                if not any(item.text.strip() for item in rest if isinstance(item, PartDelta)):
                    continue
                start = replace(start, kind="reasoning")
                why = "what the model said beside its answer is a thought"
                self._report.changed("tools", why, shown="text>reasoning")
            yield self._next(start)
            for item in rest:
                yield replace(item, index=self._index)
