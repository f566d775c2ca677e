"""Read a body of Responses into the canonical request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    Text,
    Treatment,
    Values,
    invalid,
    reasoning,
    wrong_type,
)

from .fields import CACHE_OPTIONS, FIELDS, INCLUDE, REASONING, REPLAY, STREAM_OPTIONS
from .items import read_input
from .names import Named
from .output import read_output
from .tools import Offered, read_tools

_PROTECTED = frozenset({"model", "input", "instructions", "tools", "stream"})
_FORWARDED = (
    "timings_per_token",
    "return_progress",
    "reasoning_budget_message",
    "reasoning_format",
    "add_generation_prompt",
    "continue_final_message",
)
# What a count depends on; everything else has no effect on the route that counts.
_COUNTED = frozenset({"model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text"}) | {
    "reasoning",
    "chat_template_kwargs",
    "truncation",
    "prompt_cache_options",
    *(row.name for row in reasoning.REASONING_FIELDS),
}
_LOGPROBS = "message.output_text.logprobs"
_PREVIOUS = "previous_response_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the answer depends on beside the canonical request.

    Args:
        settings: members of the `response` object that repeat the request.
        named: how the client knows each tool, by its name at llama-server.
        top_logprobs: alternatives to show for each token, None = no logprobs.
        hide_reasoning: thoughts stay out of the answer.
        timings: llama-server's timings are shown.
        progress: the processing of the prompt is shown.
    """

    settings: Mapping[str, Any]
    named: Mapping[str, Named] = field(default_factory=dict)
    top_logprobs: int | None = None
    hide_reasoning: bool = False
    timings: bool = False
    progress: bool = False


def parse(body: Mapping[str, Any], report: Report, options: ParseOptions) -> Parsed:
    """Turn a client's body into the canonical request.

    Raises:
        DeckError: with the client's own path of what cannot be honoured.
    """
    reader = Reader(report, lenient=options.lenient)
    _refuse_reference(body)
    fields = reader.read_with_extra(FIELDS, body, protected=_PROTECTED)
    for name in ("model", "input"):
        if name not in fields:
            raise invalid(f"{name} is required", name, "missing_required_parameter")
    _read_settings(reader, fields)
    offered = read_tools(reader, fields)
    if "parallel_tool_calls" in fields and not offered.tools:
        report.ignored(fields.path("parallel_tool_calls"), "no tools are offered")
    logprobs = _logprobs(reader, fields, bool(offered.tools))
    merge, kwargs = reasoning.read_fields(reader, fields, options.template_kwargs, table=REASONING)
    output, text = read_output(reader, fields, has_tools=bool(offered.tools))
    request = ChatRequest(
        model=fields.get("model"),
        messages=_messages(reader, fields, options),
        tools=tuple(offered.tools),
        tool_choice=offered.choice,
        parallel_tool_calls=fields.get("parallel_tool_calls") if offered.tools else None,
        sampling=_sampling(fields),
        output=output,
        reasoning=merge.setting(),
        logprobs=logprobs,
        stream=fields.get("stream", False),
        extra={name: fields.get(name) for name in _FORWARDED if name in fields},
        template_kwargs=kwargs,
    )
    if options.operation == "count":
        _report_uncounted(report, fields)
    reply = Reply(
        settings=_settings(body, fields, offered, text),
        named=offered.named,
        top_logprobs=logprobs,
        hide_reasoning=bool(merge.value("exclude")),
        timings=fields.get("timings_per_token", False),
        progress=fields.get("return_progress", False),
    )
    paths = {**fields.paths, "max_tokens": fields.path("max_output_tokens")}
    return Parsed(request, reply, paths, Needs(reasoning_tokens=True))


def _refuse_reference(body: Mapping[str, Any]) -> None:
    """Refuse a response by its id, in the words that clients know: some then send the whole input by themselves."""
    extra = body.get("extra_body")
    for where, found in (("", body), ("extra_body.", extra if isinstance(extra, dict) else {})):
        if found.get(_PREVIOUS) is not None:
            path = f"{where}{_PREVIOUS}"
            raise invalid(f"{path}: {REPLAY}", path, "previous_response_not_found")


def _messages(reader: Reader, fields: Values, options: ParseOptions) -> tuple[Message, ...]:
    where = fields.path("input")
    messages = read_input(reader, fields.get("input"), where, remote_images=options.remote_images)
    if not messages:
        raise invalid(f"{where}: expected at least one message or output", where, "unsupported_value")
    if instructions := fields.get("instructions"):
        return (Message("system", (Text(instructions),), fields.path("instructions")), *messages)
    return messages


def _sampling(fields: Values) -> dict[str, Any]:
    sampling = {name: value for name, value in fields.values.items() if name in SAMPLING_NAMES}
    if sampling.get("stop") == []:
        del sampling["stop"]
    if "max_output_tokens" in fields:
        sampling["max_tokens"] = fields.get("max_output_tokens")
    return sampling


def _read_settings(reader: Reader, fields: Values) -> None:
    """Read the settings that have no effect on llama-server, for their notes and refusals."""
    stream = fields.get("stream", False)
    if "stream_options" in fields:
        where = fields.path("stream_options")
        if not stream:
            raise invalid(f"{where} needs stream: true", where, "unsupported_parameter")
        reader.read(STREAM_OPTIONS, fields.get("stream_options"), where)
    if "prompt_cache_options" in fields:
        where = fields.path("prompt_cache_options")
        reader.read(CACHE_OPTIONS, fields.get("prompt_cache_options"), where)
    if fields.get("truncation") == "auto":
        reader.report.ignored(fields.path("truncation"), "an input that does not fit is refused, never shortened")
    if fields.get("return_progress") and not stream:
        reader.report.ignored(fields.path("return_progress"), "only a stream shows progress")


def _logprobs(reader: Reader, fields: Values, has_tools: bool) -> int | None:
    where = fields.path("include")
    wanted = None
    for place, item in enumerate(fields.get("include") or []):
        path = f"{where}[{place}]"
        if not isinstance(item, str):
            raise wrong_type(path, "a string", item)
        row = INCLUDE.find(item)
        if row is None and not reader.lenient:
            known = ", ".join(row.name for row in INCLUDE)
            raise invalid(f"{path}: unknown value {item!r}; known: {known}", path, "unsupported_value")
        if row is None or row.treatment is not Treatment.MAPPED:
            reader.report.ignored(f"{path}({item})", row.reason if row else "unknown value", field="include[]")
        else:
            wanted = path
    top = fields.get("top_logprobs")
    if wanted is None:
        if top:
            reader.report.ignored(fields.path("top_logprobs"), f"it needs include: {_LOGPROBS}")
        return None
    if has_tools:
        raise invalid(f"{wanted}: llama-server gives no logprobs together with tools", wanted, "unsupported_parameter")
    return top or 0


def _report_uncounted(report: Report, fields: Values) -> None:
    for name in fields.values:
        if name not in _COUNTED:
            report.ignored(fields.path(name), "only the tokens of the input are counted", field=name)


def _settings(body: Mapping[str, Any], fields: Values, offered: Offered, text: dict[str, Any]) -> dict[str, Any]:
    """Return the members of the answer that repeat the request."""
    extra = body.get("extra_body")
    sent = {**extra, **body} if isinstance(extra, dict) else body
    return {
        "instructions": fields.get("instructions"),
        "max_tool_calls": _typed(sent, "max_tool_calls", int),
        "metadata": _metadata(sent),
        "parallel_tool_calls": fields.get("parallel_tool_calls", True),
        "prompt_cache_key": _typed(sent, "prompt_cache_key", str) or _typed(sent, "promptCacheKey", str),
        "reasoning": {"effort": _effort(fields), "summary": None},
        "safety_identifier": _typed(sent, "safety_identifier", str),
        "text": text,
        "tool_choice": offered.shown_choice,
        "tools": offered.shown,
        "top_logprobs": fields.get("top_logprobs", 0),
        "user": _typed(sent, "user", str),
    }


def _effort(fields: Values) -> str | None:
    inner = fields.get("reasoning")
    effort: str | None = inner.get("effort") if inner else None
    return effort or fields.get("reasoning_effort")


def _metadata(sent: Mapping[str, Any]) -> dict[str, str]:
    found = sent.get("metadata")
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(item, str) for item in found.values()):
        raise invalid("metadata: expected an object of strings", "metadata", "invalid_type")
    return found


def _typed(sent: Mapping[str, Any], name: str, kind: type) -> Any:
    value = sent.get(name)
    if value is None:
        return None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise wrong_type(name, "an integer" if kind is int else "a string", value)
    return value
