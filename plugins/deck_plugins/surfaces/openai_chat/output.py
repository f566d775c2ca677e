"""Read what the answer must look like: `response_format`, and llama.cpp's `json_schema` and `grammar`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from deck.api import Output, Reader, Values, invalid, wrong_type

from .fields import FORMAT, FORMAT_SCHEMA

_WAYS = ("response_format", "json_schema", "grammar", "guided_json")


def read_output(reader: Reader, fields: Values, *, has_tools: bool) -> Output | None:
    """Return the constraint, None = free text.

    Raises:
        DeckError: two constraints are given, or one that llama-server cannot hold.
    """
    found = {way: output for way in _WAYS if (output := _read(reader, fields, way)) is not None}
    if len(found) > 1:
        first, second = list(found)[:2]
        raise invalid(
            f"{fields.path(first)!r} and {fields.path(second)!r} both constrain the answer; send one of them",
            fields.path(second),
        )
    if "grammar" in found and has_tools:
        where = fields.path("grammar")
        raise invalid(f"{where}: a grammar of your own cannot be used together with tools", where)
    if not found:
        return None
    [(way, output)] = found.items()
    return replace(output, path=fields.path(way))


def _read(reader: Reader, fields: Values, way: str) -> Output | None:
    if way not in fields:
        return None
    value, where = fields.get(way), fields.path(way)
    match way:
        case "grammar":
            return Output("grammar", grammar=value)
        case "json_schema":
            if not isinstance(value, dict):
                raise wrong_type(where, "a JSON Schema object", value)
            return Output("json_schema", schema=value)
        case "guided_json":
            reader.report.changed(where, "is read as response_format", shown=f"{where}>response_format")
            return Output("json_schema", schema=value)
        case _:
            return _response_format(reader, value, where)


def _response_format(reader: Reader, value: Any, where: str) -> Output | None:
    if isinstance(value, str):
        raise invalid(
            f'{where}: expected an object as {{"type": {value!r}}}, got the string {value!r}', where, "invalid_type"
        )
    if not isinstance(value, dict):
        raise wrong_type(where, "an object", value)
    outer = reader.read(FORMAT, value, where)
    kind = outer.get("type")
    if kind is None or kind == "text":
        for name in ("json_schema", "schema"):
            if name in outer:
                raise invalid(f"{where}.{name} needs type 'json_schema'", f"{where}.{name}")
        return None
    if kind == "json_object":
        if "json_schema" in outer:
            raise invalid(f"{where}.json_schema needs type 'json_schema'", f"{where}.json_schema")
        if "schema" not in outer:
            return Output("json_object")
        return Output("json_schema", schema=outer.get("schema"), schema_path=f"{where}.schema")
    return _json_schema(reader, outer, where)


def _json_schema(reader: Reader, outer: Values, where: str) -> Output:
    if "json_schema" in outer:
        if "schema" in outer and outer.get("schema") != outer.get("json_schema").get("schema"):
            at = f"{where}.schema"
            raise invalid(f"{at!r} and '{where}.json_schema.schema' say different things; send one of them", at)
        inner = reader.read(FORMAT_SCHEMA, outer.get("json_schema"), f"{where}.json_schema")
        strict_path = f"{where}.json_schema.strict" if inner.get("strict") else None
        if strict_path is not None:
            reader.report.ignored(
                strict_path, "a grammar constrains the answer; a whole answer that Deck finds to hold is not listed"
            )
        # Without a schema the wire asks for any object under a name.
        schema = inner.get("schema", {"type": "object"})
        return Output(
            "json_schema",
            schema=schema,
            name=inner.get("name"),
            strict_path=strict_path,
            schema_path=f"{where}.json_schema.schema",
        )
    if "schema" not in outer:
        raise invalid(f"{where}.json_schema is required", f"{where}.json_schema", "missing_required_parameter")
    reader.report.changed(
        f"{where}.schema", "is read as json_schema.schema", shown=f"{where}.schema>{where}.json_schema.schema"
    )
    return Output("json_schema", schema=outer.get("schema"), schema_path=f"{where}.schema")
