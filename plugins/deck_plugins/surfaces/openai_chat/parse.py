"""Read a body of Chat Completions into the canonical request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from deck.api import (
    SAMPLING_NAMES,
    ChatRequest,
    Memory,
    Note,
    Parsed,
    ParseOptions,
    Reader,
    ReasoningSetting,
    Report,
    Values,
    invalid,
    json,
    out_of_range,
    reasoning,
    wrong_type,
)

from .fields import FIELDS, STREAM_OPTIONS
from .messages import read_messages
from .output import read_output
from .tools import read_tools

_PROTECTED = frozenset({"model", "messages", "tools", "stream", "functions"})
# What a prompt is made of; everything else has no effect where nothing is generated.
_OF_PROMPT = frozenset(
    {
        "model",
        "messages",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "functions",
        "function_call",
        "response_format",
        "guided_json",
        "json_schema",
        "grammar",
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        *(row.name for row in reasoning.REASONING_FIELDS),
    }
)
_FORWARDED = (
    "timings_per_token",
    "return_progress",
    "reasoning_budget_message",
    "reasoning_format",
    "add_generation_prompt",
    "continue_final_message",
)


@dataclass(slots=True, kw_only=True)
class Reply:
    """What the answer depends on beside the canonical request."""

    include_usage: bool = False
    legacy_functions: bool = False
    hide_reasoning: bool = False
    top_logprobs: int | None = None
    timings: bool = False
    progress: bool = False
    token_ids: bool = False
    service_tier: bool = False


@dataclass(slots=True)
class _Settings:
    """All of a body but its turns: `request` has none."""

    request: ChatRequest
    reply: Reply
    paths: Mapping[str, str]
    notes: tuple[Note, ...]


_memory: Memory[_Settings] = Memory()


def parse(body: Mapping[str, Any], report: Report, options: ParseOptions) -> Parsed:
    """Turn a client's body into the canonical request.

    Raises:
        DeckError: with the client's own path of what cannot be honoured.
    """
    beside = dict(body)
    turns = beside.pop("messages", None)
    written = json.dumps(beside)
    key = written, options.lenient, options.operation, options.template_kwargs
    settings = _memory.get(key)
    if settings is None:
        settings = _read_settings(beside, report, options)
        _memory.keep(key, settings, written, len(settings.notes))
    elif settings.notes:
        report.add(settings.notes)
    if turns is None:
        raise invalid("messages is required", "messages", "missing_required_parameter")
    reader = Reader(report, lenient=options.lenient)
    if type(turns) is not list:
        reader.read(FIELDS, {"messages": turns})
    messages = read_messages(reader, turns, remote_images=options.remote_images)
    return Parsed(settings.request.with_messages(messages), settings.reply, settings.paths)


def _read_settings(body: Mapping[str, Any], report: Report, options: ParseOptions) -> _Settings:
    before = report.size
    reader = Reader(report, lenient=options.lenient)
    fields = reader.read_with_extra(FIELDS, body, protected=_PROTECTED)
    if "model" not in fields.values:
        raise invalid("model is required", "model", "missing_required_parameter")
    if options.operation == "count":
        _report_ungenerated(report, fields)
    stream = fields.get("stream", False)
    tools, choice = read_tools(reader, fields)
    logprobs = _logprobs(fields, bool(tools))
    setting, exclude, kwargs = _reasoning(reader, fields, options)
    request = ChatRequest(
        model=fields.get("model"),
        messages=(),
        tools=tools,
        tool_choice=choice,
        # An answer in the old form has room for one call.
        parallel_tool_calls=(False if fields.get("functions") else fields.get("parallel_tool_calls"))
        if tools
        else None,
        sampling=_sampling(fields),
        output=read_output(reader, fields, has_tools=bool(tools)),
        reasoning=setting,
        logprobs=logprobs,
        stream=stream,
        extra={name: fields.get(name) for name in _FORWARDED if name in fields},
        template_kwargs=kwargs,
    )
    if fields.get("functions") and fields.get("parallel_tool_calls"):
        report.ignored(fields.path("parallel_tool_calls"), "an answer in the old form has room for one call")
    if "parallel_tool_calls" in fields and not tools:
        report.ignored(fields.path("parallel_tool_calls"), "no tools are offered")
    if fields.get("return_progress") and not stream:
        report.ignored(fields.path("return_progress"), "only a stream shows progress")
    if fields.get("parse_tool_calls") is False:
        where = fields.path("parse_tool_calls")
        raise invalid(f"{where}: llama-server always parses calls when tools are offered; leave tools out", where)
    reply = _reply(reader, fields, body, stream, exclude, logprobs)
    if reply.token_ids and logprobs is None:
        # llama-server gives the ids of streamed tokens only beside their logprobs.
        request = replace(request, logprobs=0)
    return _Settings(request, reply, fields.paths, report.notes[before:])


def _report_ungenerated(report: Report, fields: Values) -> None:
    for name in fields.values:
        if name not in _OF_PROMPT:
            report.ignored(fields.path(name), "nothing is generated", field=name)


def _sampling(fields: Values) -> dict[str, Any]:
    names = SAMPLING_NAMES
    sampling = {name: value for name, value in fields.values.items() if name in names}
    if sampling.get("stop") == []:
        del sampling["stop"]
    return sampling


def _logprobs(fields: Values, has_tools: bool) -> int | None:
    wanted, top = fields.get("logprobs"), fields.get("top_logprobs")
    where = fields.path("logprobs")
    if wanted is not None and not isinstance(wanted, bool):
        if not isinstance(wanted, int):
            raise wrong_type(where, "a boolean", wanted)
        if not 0 <= wanted <= 20:
            raise out_of_range(where, "a boolean, or an integer 0…20", wanted)
        if top is not None and top != wanted:
            raise invalid(f"{where!r} and {fields.path('top_logprobs')!r} say different things", where)
        wanted, top = True, wanted
    token_ids = fields.path("return_token_ids") if fields.get("return_token_ids") else None
    if not wanted:
        if top:
            at = fields.path("top_logprobs")
            raise invalid(f"{at} needs logprobs: true", at, "unsupported_value")
        if token_ids and has_tools:
            raise invalid(
                f"{token_ids}: llama-server gives no token ids together with tools", token_ids, "unsupported_parameter"
            )
        return None
    if has_tools:
        raise invalid(f"{where}: llama-server gives no logprobs together with tools", where, "unsupported_parameter")
    return top or 0


def _reasoning(reader: Reader, fields: Values, options: ParseOptions) -> tuple[ReasoningSetting, bool, dict[str, Any]]:
    merge, kwargs = reasoning.read_fields(reader, fields, options.template_kwargs)
    return merge.setting(), bool(merge.value("exclude")), kwargs


def _reply(
    reader: Reader, fields: Values, body: Mapping[str, Any], stream: bool, exclude: bool, logprobs: int | None
) -> Reply:
    return Reply(
        include_usage="stream_options" in fields and _includes_usage(reader, fields, stream),
        legacy_functions="functions" in fields or "function_call" in fields,
        hide_reasoning=exclude,
        top_logprobs=logprobs,
        timings=fields.get("timings_per_token", False),
        progress=fields.get("return_progress", False),
        token_ids=fields.get("return_token_ids", False),
        service_tier=body.get("service_tier") is not None,
    )


def _includes_usage(reader: Reader, fields: Values, stream: bool) -> bool:
    where = fields.path("stream_options")
    if not stream:
        raise invalid(f"{where} needs stream: true", where, "unsupported_parameter")
    found: bool = reader.read(STREAM_OPTIONS, fields.get("stream_options"), where).get("include_usage", False)
    return found
