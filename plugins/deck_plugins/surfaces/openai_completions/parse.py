"""Read a body of Completions into the canonical request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from deck.api import (
    SAMPLING_NAMES,
    Output,
    Parsed,
    ParseOptions,
    Reader,
    Report,
    TextRequest,
    Values,
    invalid,
    wrong_type,
)

from .fields import FIELDS, STREAM_OPTIONS
from .values import read_logprobs, read_prompt

_PROTECTED = frozenset({"model", "prompt", "stream"})
_FORWARDED = ("timings_per_token", "return_progress")
_WAYS = ("json_schema", "grammar", "guided_json")
_DYNATEMP = ("dynamic_temperature", "dynatemp_low", "dynatemp_high")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the answer depends on beside the canonical request; `logprobs` counts alternatives, None = none shown."""

    include_usage: bool = False
    logprobs: int | None = None
    timings: bool = False
    progress: bool = False
    token_ids: bool = False
    service_tier: bool = False


def parse(body: Mapping[str, Any], report: Report, options: ParseOptions) -> Parsed:
    """Turn a client's body into the canonical request.

    Raises:
        DeckError: with the client's own path of what cannot be honoured.
    """
    reader = Reader(report, lenient=options.lenient)
    fields = reader.read_with_extra(FIELDS, body, protected=_PROTECTED)
    for name in ("model", "prompt"):
        if name not in fields:
            raise invalid(f"{name} is required", name, "missing_required_parameter")
    stream = fields.get("stream", False)
    logprobs = read_logprobs(fields.get("logprobs"), fields.path("logprobs"))
    reply = _reply(reader, fields, body, stream, logprobs)
    _check_dynatemp(fields, report)
    request = TextRequest(
        model=fields.get("model"),
        prompt=read_prompt(fields.get("prompt"), fields.path("prompt"), report),
        sampling=_sampling(fields),
        output=_output(fields, report),
        # llama-server gives the ids of streamed tokens only beside their logprobs.
        logprobs=0 if reply.token_ids and logprobs is None else logprobs,
        stream=stream,
        extra={name: fields.get(name) for name in _FORWARDED if name in fields},
    )
    if reply.progress and not stream:
        report.ignored(fields.path("return_progress"), "only a stream shows progress")
    return Parsed(request, reply, fields.paths)


def _sampling(fields: Values) -> dict[str, Any]:
    sampling = {name: value for name, value in fields.values.items() if name in SAMPLING_NAMES}
    for name in ("stop", "logit_bias"):
        if sampling.get(name) == []:
            del sampling[name]
    return sampling


def _check_dynatemp(fields: Values, report: Report) -> None:
    """Let the other ways to say a dynamic temperature stand beside llama.cpp's own, never alone."""
    for name in _DYNATEMP:
        if not fields.get(name):
            continue
        where = fields.path(name)
        if "dynatemp_range" not in fields:
            raise invalid(
                f"{where}: send temperature, the middle, and dynatemp_range, half the width", where, "unsupported_value"
            )
        report.ignored(where, "temperature and dynatemp_range say it", field=name)


def _output(fields: Values, report: Report) -> Output | None:
    found = [way for way in _WAYS if way in fields]
    if "grammar" in found and not fields.get("grammar"):
        found.remove("grammar")
        report.ignored(fields.path("grammar"), "an empty grammar constrains nothing", field="grammar")
    if len(found) > 1:
        first, second = (fields.path(way) for way in found[:2])
        raise invalid(f"{first!r} and {second!r} both constrain the answer; send one of them", second)
    if not found:
        return None
    way = found[0]
    value, where = fields.get(way), fields.path(way)
    if way == "grammar":
        return Output("grammar", grammar=value, path=where)
    if not isinstance(value, dict):
        raise wrong_type(where, "a JSON Schema object", value)
    if way == "guided_json":
        report.changed(where, "is read as json_schema", shown=f"{where}>json_schema")
    return Output("json_schema", schema=value, path=where)


def _reply(reader: Reader, fields: Values, body: Mapping[str, Any], stream: bool, logprobs: int | None) -> Reply:
    reply = Reply(
        logprobs=logprobs,
        timings=fields.get("timings_per_token", False),
        progress=fields.get("return_progress", False),
        token_ids=fields.get("return_token_ids", False),
        service_tier=body.get("service_tier") is not None,
    )
    if "stream_options" not in fields:
        return reply
    where = fields.path("stream_options")
    if not stream:
        raise invalid(f"{where} needs stream: true", where, "unsupported_parameter")
    wanted = reader.read(STREAM_OPTIONS, fields.get("stream_options"), where)
    return replace(reply, include_usage=wanted.get("include_usage", False))
