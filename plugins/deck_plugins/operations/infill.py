"""Filling in the middle: llama-server's own `/infill`, for editors.

Source: llama.cpp, tools/server/README.md and server-context.cpp; what llama.vim and llama.vscode send.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from deck.api import (
    EXTENSIONS,
    OUT_OF_REACH,
    SAMPLING,
    SAMPLING_NAMES,
    Asked,
    Field,
    FieldType,
    Operation,
    Output,
    Report,
    Table,
    TextRequest,
    Values,
    boolean,
    integer,
    invalid,
    string,
    strings,
    wrong_type,
)
from deck_plugins.openai_wire import render_error

_MOST_EXTRA = 1024
_EXTRA = f"an array of up to {_MOST_EXTRA} objects with text, and filename if it has one"
_HERE = frozenset({"id_slot", "response_fields", "n_probs", "t_max_prompt_ms"})
_FORWARDED = {
    "timings_per_token": "timings_per_token",
    "return_progress": "return_progress",
    "return_token_ids": "return_tokens",
}
_OWN = ("input_prefix", "input_suffix", "input_extra", "response_fields", "n_probs")


def _extra() -> FieldType:
    def check(item: Any, path: str, report: Report) -> Any:
        if not isinstance(item, list) or len(item) > _MOST_EXTRA:
            raise wrong_type(path, _EXTRA, item)
        for position, each in enumerate(item):
            _check_chunk(each, f"{path}[{position}]")
        return item

    return FieldType("array", _EXTRA[3:], check)


def _check_chunk(item: Any, path: str) -> None:
    if not isinstance(item, dict) or not isinstance(item.get("text"), str):
        raise wrong_type(path, "an object with a text", item)
    if not isinstance(item.get("filename", ""), str):
        raise wrong_type(f"{path}.filename", "a string", item["filename"])
    for name in item:
        # Editors say when a piece was seen; llama-server leaves that out, and so does Deck, which would change nothing.
        if name not in ("text", "filename", "time"):
            raise invalid(f"unknown field '{path}.{name[:60]}'", f"{path}.{name[:60]}", "unknown_parameter")


def _here(rows: Iterable[Field]) -> Iterator[Field]:
    for row in rows:
        if row.name == "stop":
            yield replace(row, type=strings(most=64, or_one=True))
        elif row.name == "json_schema":
            yield Field.refused("json_schema", "what stands in the middle of a file has no schema; send a grammar")
        elif row.name not in _HERE:
            yield row


def _read(values: Values, report: Report) -> Asked:
    own = {name: values.get(name) for name in _OWN if name in values}
    if "input_extra" in own:
        own["input_extra"] = [
            {name: item for name, item in each.items() if name != "time"} for each in own["input_extra"]
        ]
    if "prompt" in values:
        own["prompt"] = values.get("prompt")
    grammar = values.get("grammar")
    request = TextRequest(
        model=values.get("model"),
        prompt=values.get("prompt", ""),
        sampling={name: item for name, item in values.values.items() if name in SAMPLING_NAMES},
        output=Output(kind="grammar", grammar=grammar, path="grammar") if grammar is not None else None,
        extra={sent: values.get(name) for name, sent in _FORWARDED.items() if name in values},
    )
    return Asked(fields=own, stream=values.get("stream", False), text=request, reply=dict(values.paths))


def _is_last(event: Mapping[str, Any]) -> bool:
    return event.get("stop") is True


INFILL = Operation(
    name="infill",
    title="Infill",
    paths=("/infill",),
    kinds={"chat": frozenset()},
    route="/infill",
    tables={
        "": Table(
            "infill",
            (
                Field.mapped("model", string(empty=False)),
                Field.mapped("input_prefix", string()),
                Field.mapped("input_suffix", string()),
                Field.mapped("input_extra", _extra(), reason="other files, put before the prefix"),
                Field.mapped("prompt", string(), reason="put behind the prefix"),
                Field.mapped("stream", boolean()),
                *_here(SAMPLING),
                *_here(EXTENSIONS),
                Field.mapped("response_fields", strings(most=64), reason="members of the answer, a/b for one within"),
                Field.mapped("n_probs", integer(0, 100), reason="alternatives of each token"),
                Field.tolerated("n", (1,), "one completion per request"),
                Field.annotation("t_max_prompt_ms", "llama-server does not implement it"),
                Field.annotation("id_slot", "Deck chooses the slot"),
                *_here(OUT_OF_REACH),
            ),
        )
    },
    render_error=render_error,
    is_llamas=True,
    required=("input_prefix", "input_suffix"),
    answers=frozenset({"json", "events"}),
    read=_read,
    is_last=_is_last,
)
