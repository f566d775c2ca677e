"""Read what the answer must look like: `text.format`, and llama.cpp's `json_schema` and `grammar`."""

from __future__ import annotations

from typing import Any

from deck.api import Output, Reader, Values, invalid, wrong_type

from .fields import FORMAT, TEXT

_VERBOSITIES = ("low", "medium", "high")


def read_output(reader: Reader, fields: Values, *, has_tools: bool) -> tuple[Output | None, dict[str, Any]]:
    """Return the constraint, None = free text, and the `text` of the answer.

    Raises:
        DeckError: two constraints are given, or one that llama-server cannot hold.
    """
    output, shown = _text(reader, fields)
    found = {fields.path("text"): output} if output is not None else {}
    if "json_schema" in fields:
        schema, where = fields.get("json_schema"), fields.path("json_schema")
        if not isinstance(schema, dict):
            raise wrong_type(where, "a JSON Schema object", schema)
        found[where] = Output("json_schema", schema=schema, path=where)
    if "grammar" in fields:
        where = fields.path("grammar")
        if has_tools:
            raise invalid(f"{where}: a grammar of your own cannot be used together with tools", where)
        found[where] = Output("grammar", grammar=fields.get("grammar"), path=where)
    if len(found) > 1:
        first, second = list(found)[:2]
        raise invalid(f"{first!r} and {second!r} both constrain the answer; send one of them", second)
    return next(iter(found.values()), None), shown


def _text(reader: Reader, fields: Values) -> tuple[Output | None, dict[str, Any]]:
    if "text" not in fields:
        return None, {"format": {"type": "text"}}
    sent, where = fields.get("text"), fields.path("text")
    text = reader.read(TEXT, sent, where)
    output, shown = _format(reader, text, f"{where}.format")
    more = {"verbosity": sent["verbosity"]} if sent.get("verbosity") in _VERBOSITIES else {}
    return output, {"format": shown} | more


def _format(reader: Reader, text: Values, path: str) -> tuple[Output | None, dict[str, Any]]:
    form = reader.read(FORMAT, text.get("format") or {}, path)
    kind = form.get("type", "text")
    if kind != "json_schema":
        for name in ("schema", "name", "strict"):
            if name in form:
                raise invalid(f"{path}.{name} needs type 'json_schema'", f"{path}.{name}")
        return (None if kind == "text" else Output("json_object", path=path)), {"type": kind}
    strict_path = f"{path}.strict" if form.get("strict") else None
    if strict_path is not None:
        why = "a grammar constrains the answer; a whole answer that Deck finds to hold is not listed"
        reader.report.ignored(strict_path, why)
    if "schema" not in form:
        raise invalid(f"{path}.schema is required", f"{path}.schema", "missing_required_parameter")
    schema, name = form.get("schema"), form.get("name")
    shown = {"type": "json_schema", "name": name or "answer", "schema": schema, "strict": form.get("strict")}
    return Output(
        "json_schema", schema=schema, name=name, path=path, strict_path=strict_path, schema_path=f"{path}.schema"
    ), shown
