"""Read a body of Messages, or of its token counter, into the canonical request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deck.api import (
    SAMPLING_NAMES,
    ChatRequest,
    Message,
    Needs,
    Parsed,
    ParseOptions,
    Reader,
    Report,
    Values,
    invalid,
    out_of_range,
    reasoning,
    wrong_type,
)

from .fields import CONTEXT_MANAGEMENT, COUNT, FIELDS
from .messages import read_messages, read_system
from .thinking import read_config, read_output, read_thinking
from .tools import read_tools

_PROTECTED = frozenset({"model", "messages", "system", "tools", "stream"})
_FORWARDED = ("reasoning_budget_message", "reasoning_format", "add_generation_prompt", "continue_final_message")
# The versions of the SDKs in use; they differ in what the vendor refuses, not in how it answers.
_VERSIONS = frozenset({"2023-06-01", "2026-10-21"})
# The one edit that leaves the conversation as it is.
_KEEPS_ALL = ("all", {"type": "all"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the answer depends on beside the canonical request."""

    stops: frozenset[str] = frozenset()
    hides_thinking: bool = False


def parse(body: Mapping[str, Any], report: Report, options: ParseOptions) -> Parsed:
    """Turn a client's body into the canonical request.

    Raises:
        DeckError: with the client's own path of what cannot be honoured.
    """
    _note_headers(report, options.headers)
    reader = Reader(report, lenient=options.lenient)
    table = COUNT if options.operation == "count" else FIELDS
    fields = reader.read_with_extra(table, body, protected=_PROTECTED)
    for name in ("model", "messages"):
        if name not in fields:
            raise invalid(f"{name} is required", name, "missing_required_parameter")
    if "context_management" in fields:
        _check_edits(reader, fields.get("context_management"), fields.path("context_management"))
    config = read_config(reader, fields)
    messages, changes = read_messages(reader, fields.get("messages"), remote_images=options.remote_images)
    tools, choice, parallel = read_tools(reader, fields, changes)
    thinking = read_thinking(reader, fields, config, options)
    reasoning.check_format(fields, reader.report, is_hidden=thinking.is_hidden)
    stops = _stops(fields)
    stream = fields.get("stream", False)
    request = ChatRequest(
        model=fields.get("model"),
        messages=(*_system(reader, fields, options), *messages),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        sampling=_sampling(fields, stops),
        output=read_output(reader, fields, config, has_tools=bool(tools)),
        reasoning=thinking.setting,
        stream=stream,
        extra={name: fields.get(name) for name in _FORWARDED if name in fields},
        template_kwargs=thinking.template_kwargs,
    )
    reply = Reply(stops=frozenset(stops), hides_thinking=thinking.is_hidden)
    paths = {**fields.paths, "stop": fields.path("stop_sequences")}
    return Parsed(request, reply, paths, Needs(stop_sequence=bool(stops), prompt_progress=stream))


def _note_headers(report: Report, headers: Mapping[str, str]) -> None:
    version = headers.get("anthropic-version")
    if version is not None and version not in _VERSIONS:
        known = ", ".join(sorted(_VERSIONS))
        report.ignored("anthropic-version", f"not a version that Deck knows: {known}", field="other")
    if headers.get("anthropic-beta"):
        report.ignored("anthropic-beta", "Deck's features need no switch", field="other")


def _system(reader: Reader, fields: Values, options: ParseOptions) -> tuple[Message, ...]:
    if "system" not in fields:
        return ()
    return read_system(
        reader, fields.get("system"), fields.path("system"), remove_attribution=options.remove_attribution
    )


def _stops(fields: Values) -> list[str]:
    stops: list[str] = fields.get("stop_sequences", [])
    for place, stop in enumerate(stops):
        if not stop.strip():
            raise out_of_range(f"{fields.path('stop_sequences')}[{place}]", "more than blanks", stop)
    return stops


def _sampling(fields: Values, stops: list[str]) -> dict[str, Any]:
    sampling = {name: value for name, value in fields.values.items() if name in SAMPLING_NAMES}
    return sampling | ({"stop": stops} if stops else {})


def _check_edits(reader: Reader, value: Mapping[str, Any], path: str) -> None:
    inner = reader.read(CONTEXT_MANAGEMENT, value, path)
    reader.report.ignored(path, "Deck leaves the conversation as it is")
    for place, edit in enumerate(inner.get("edits", [])):
        where = f"{path}.edits[{place}]"
        if not isinstance(edit, dict):
            raise wrong_type(where, "an object with a type", edit)
        kind, keep = edit.get("type"), edit.get("keep")
        keeps_all = kind == "clear_thinking_20251015" and keep in _KEEPS_ALL and set(edit) <= {"type", "keep"}
        if not keeps_all and not reader.lenient:
            raise invalid(
                f"{where}: {str(kind)[:100]!r} would change the conversation, which Deck leaves as it is; "
                "only clear_thinking_20251015 with keep 'all' is accepted",
                where,
                "unsupported_value",
            )
