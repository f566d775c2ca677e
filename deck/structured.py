"""Whether a finished answer holds to the JSON Schema that it was asked to hold to.

Knows schemas, and bounds what a client can make it compute. Does not know any wire: where a client asked for what
stands in the request. It never changes an answer, and says nothing of its contents.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deck import json
from deck.canon.answer import Answer, is_json_object
from deck.canon.events import FinishReason
from deck.canon.request import ChatRequest, Output, Request, Text, Tool, ToolCall
from deck.normalize.report import Report
from deck.normalize.schema_work import bound_steps

_WHOLE = (FinishReason.STOP, FinishReason.TOOL_CALLS)
_LARGEST_ANSWER = 128 * 1024
_LARGEST_SCHEMA = 256 * 1024
# Of a compiled pattern; one that needs more is not checked.
_LARGEST_PATTERN = 64 * 1024
_DEEPEST = 64
# Schemas that are applied on the way to one value, and to all of them.
_MOST_STEPS = 4096
_MOST_STEPS_IN_ALL = 1 << 20


class Unchecked(Exception):
    """No verdict can be had; the message says why."""


def check_answer(answer: Answer, request: Request, report: Report) -> None:
    """Hold an answer against what `request`, as it was sent, asked for; settle or add notes.

    Only an answer that ended by itself is judged. Notes say where the schema is not held, never what the answer says.
    """
    has_tools = isinstance(request, ChatRequest) and bool(request.tools)
    if (request.output is None and not has_tools) or answer.finish.reason not in _WHOLE:
        return
    text = "".join(part.text for part in answer.parts if isinstance(part, Text))
    if text:
        text = _begun(request) + text
    if request.output is not None and text and answer.finish.reason is FinishReason.STOP:
        _check_output(text, request.output, report)
    calls = [part for part in answer.parts if isinstance(part, ToolCall)]
    if calls and isinstance(request, ChatRequest):
        _check_calls(calls, {tool.name: tool for tool in request.tools}, report)


def _begun(request: Request) -> str:
    """Return what the client itself began the answer with."""
    last = request.messages[-1] if isinstance(request, ChatRequest) and request.messages else None
    if last is None or last.role != "assistant":
        return ""
    return "".join(part.text for part in last.parts if isinstance(part, Text))


def _check_output(text: str, output: Output, report: Report) -> None:
    if output.kind == "grammar":
        return
    if output.kind == "json_object":
        if not is_json_object(text):
            report.ignored(output.path, "the answer is not a JSON object")
        return
    if _is_held(text, output.schema or {}, output.path, report) and output.strict_path is not None:
        report.settled(output.strict_path)


def _check_calls(calls: list[ToolCall], tools: Mapping[str, Tool], report: Report) -> None:
    are_held = True
    for call in calls:
        tool = tools.get(call.name)
        if tool is None:
            are_held = False
        elif tool.parameters is not None:
            are_held &= _is_held(call.arguments, tool.parameters, tool.path, report, field="tools")
    if are_held:
        for tool in tools.values():
            if tool.strict_path is not None:
                report.settled(tool.strict_path)


def _is_held(text: str, schema: Mapping[str, Any], path: str, report: Report, *, field: str | None = None) -> bool:
    try:
        broken = fault(text, schema)
    except Unchecked as exc:
        report.ignored(path, f"the answer was not checked: {exc}", field=field)
        return False
    if broken is not None:
        report.ignored(path, f"the answer does not hold to the schema: {broken}", field=field)
    return broken is None


def fault(text: str, schema: Mapping[str, Any]) -> str | None:
    """Return where in `schema` the JSON `text` fails and by which keyword, as `/properties/age: type`; None = it holds.

    Raises:
        Unchecked: the schema cannot be compiled, refers to another document, or would take too much work.
    """
    if len(text) > _LARGEST_ANSWER:
        raise Unchecked(f"it is longer than {_LARGEST_ANSWER // 1024} KiB")
    try:
        value = json.loads(text)
    except ValueError:
        return "not JSON"
    written = json.dumps(schema)
    if len(written) > _LARGEST_SCHEMA:
        raise Unchecked(f"the schema is larger than {_LARGEST_SCHEMA // 1024} KiB")
    count, depth = _measure(value)
    if depth > _DEEPEST:
        raise Unchecked(f"it is deeper than {_DEEPEST} levels")
    schema = json.loads(written)  # plain types throughout, whoever made the mappings
    most = min(_MOST_STEPS, _MOST_STEPS_IN_ALL // count)
    try:
        bound_steps(schema, depth, most, pattern=1 + len(text) // 1024)
    except ValueError as exc:
        raise Unchecked(str(exc)) from exc
    return _validate(value, schema)


def _measure(value: Any) -> tuple[int, int]:
    """Return how many values there are in one, itself counted, and how deep they lie."""
    level, count, depth = [value], 1, 0
    while level:
        level = [item for one in level if isinstance(one, dict | list) for item in _items(one)]
        count += len(level)
        depth += bool(level)
    return count, depth


def _items(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def _validate(value: Any, schema: Mapping[str, Any]) -> str | None:
    import jsonschema_rs  # here, since it takes memory that few need

    patterns = jsonschema_rs.RegexOptions(size_limit=_LARGEST_PATTERN, dfa_size_limit=_LARGEST_PATTERN)
    try:
        validator = jsonschema_rs.validator_for(
            dict(schema), pattern_options=patterns, validate_formats=True, retriever=_fetch_nothing
        )
    except (ValueError, jsonschema_rs.ReferencingError) as exc:
        raise Unchecked("the schema cannot be compiled") from exc
    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as exc:
        place = "".join(f"/{step}" for step in exc.schema_path[:-1])
        return f"{place[:200] or '/'}: {exc.kind.name}"
    return None


def _fetch_nothing(uri: str) -> Any:
    raise LookupError("Deck fetches no schema")
