"""What llama-server refuses, hangs on or passes over in a JSON Schema; and that it takes whatever was fitted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engine_support import needs_engine, running

from deck.normalize.report import Report
from deck.normalize.schema import fit_schema, note_loosenings

CORPUS: dict[str, Any] = json.loads((Path(__file__).parent / "schemas.json").read_text(encoding="utf-8"))


def with_a(schema: Any, **root: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, **root}


def fitted(schema: Any, **root: Any) -> tuple[Any, list[str]]:
    """Return what became of the property `a`, and where the answer is no longer held to it."""
    found = fit_schema(with_a(schema, **root))
    return found.schema["properties"]["a"], [item.path.removeprefix("properties.") for item in found.loosenings]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^[a-z]+$"},
        {"type": "string", "pattern": "^(?:a|b)$"},
        {"type": "string", "format": "date-time"},
        {"type": ["string", "null"]},
        {"type": "integer", "minimum": 0, "maximum": 10},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"enum": [1, "a", None]},
        {"const": {"x": 1}},
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 1000},
        {"type": "string", "minLength": 1000, "maxLength": 100000},
        {"type": "object", "additionalProperties": False},
        {"type": "string", "description": "any", "default": "x", "title": "t"},
        {},
    ],
    ids=str,
)
def test_what_the_grammar_holds_is_left_as_it_is(schema: dict[str, Any]) -> None:
    assert fitted(schema) == (schema, [])


@pytest.mark.parametrize(
    ("schema", "becomes", "lost"),
    [
        (True, {}, []),
        (False, {}, ["a"]),
        ("string", {}, ["a"]),
        (None, {}, ["a"]),
        ({"type": "any"}, {}, ["a.type"]),
        ({"type": []}, {}, ["a.type"]),
        ({"type": None}, {}, ["a.type"]),
        ({"type": ["string", "any"]}, {}, ["a.type"]),
        ({"type": "STRING"}, {"type": "string"}, []),
        ({"type": "float"}, {"type": "number"}, []),
        ({"enum": []}, {}, ["a.enum"]),
        ({"enum": "x"}, {}, ["a.enum"]),
        ({"anyOf": []}, {}, ["a.anyOf"]),
        ({"anyOf": [True, {"type": "any"}]}, {"anyOf": [{}, {}]}, ["a.anyOf[1].type"]),
        ({"oneOf": [False, True]}, {"oneOf": [{}]}, []),
        ({"$ref": "https://example.org/x.json"}, {}, ["a.$ref"]),
        ({"$ref": "#/$defs/none", "type": "string"}, {"type": "string"}, ["a.$ref"]),
        ({"$ref": "#"}, {}, ["a.$ref"]),
        ({"$ref": "#anchor"}, {}, ["a.$ref"]),
        ({"$ref": 5}, {}, ["a.$ref"]),
        ({"type": "array", "items": True}, {"type": "array", "items": {}}, []),
        ({"type": "array", "items": "x"}, {"type": "array", "items": {}}, ["a.items"]),
        ({"minItems": 5, "maxItems": 2}, {}, ["a.minItems", "a.maxItems"]),
        ({"minLength": 9, "maxLength": 2}, {}, ["a.minLength", "a.maxLength"]),
        ({"type": "integer", "minimum": 9, "maximum": 2}, {"type": "integer"}, ["a.minimum", "a.maximum"]),
        ({"minLength": 100000}, {"minLength": 1000}, ["a.minLength"]),
        ({"maxItems": 100000}, {}, ["a.maxItems"]),
        ({"maxLength": 1e20}, {}, ["a.maxLength"]),
        ({"maxLength": float(1 << 62)}, {"maxLength": 1 << 62}, []),
        ({"minItems": "3"}, {}, ["a.minItems"]),
        ({"minItems": 2.0}, {"minItems": 2}, []),
        ({"minLength": -2}, {}, ["a.minLength"]),
        ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, {"type": "integer", "exclusiveMinimum": 0}, []),
        ({"type": "integer", "maximum": 1e20}, {"type": "integer"}, ["a.maximum"]),
        ({"type": "integer", "minimum": "0"}, {"type": "integer"}, ["a.minimum"]),
        ({"type": "number", "minimum": 0.5}, {"type": "number", "minimum": 0.5}, ["a.minimum"]),
        ({"type": "string", "pattern": 5}, {"type": "string"}, ["a.pattern"]),
        ({"type": "string", "pattern": "("}, {"type": "string"}, ["a.pattern"]),
        ({"type": "string", "pattern": r"^\$"}, {"type": "string"}, ["a.pattern"]),
        ({"type": "string", "pattern": "^é+$"}, {"type": "string"}, ["a.pattern"]),
        ({"type": "string", "pattern": "^a{5000}$"}, {"type": "string"}, ["a.pattern"]),
        ({"type": "string", "pattern": "[a-z]"}, {"type": "string", "pattern": "[a-z]"}, ["a.pattern"]),
        ({"type": "string", "pattern": "^(?!x)y$"}, {"type": "string", "pattern": "^(?!x)y$"}, ["a.pattern"]),
        ({"type": "string", "format": "uri"}, {"type": "string", "format": "uri"}, ["a.format"]),
        ({"type": "string", "format": 5}, {"type": "string"}, ["a.format"]),
        ({"properties": []}, {"properties": {}}, ["a.properties"]),
        ({"required": True}, {}, ["a.required"]),
        ({"required": ["x", 1]}, {"required": ["x"]}, ["a.required"]),
        ({"additionalProperties": None}, {}, ["a.additionalProperties"]),
        ({"not": {}}, {"not": {}}, ["a.not"]),
        ({"propertyNames": {}}, {"propertyNames": {}}, ["a.propertyNames"]),
    ],
    ids=str,
)
def test_what_llama_server_refuses_is_loosened_and_named(schema: Any, becomes: Any, lost: list[str]) -> None:
    assert fitted(schema) == (becomes, lost)


def test_a_reference_with_escapes_gets_a_name_that_llama_server_finds() -> None:
    found = fit_schema(with_a({"$ref": "#/$defs/a~1b"}, **{"$defs": {"a/b": {"type": "STRING"}}}))
    assert found.loosenings == ()
    assert found.schema["properties"]["a"] == {"$ref": "#/$defs/deck0"}
    assert found.schema["$defs"]["deck0"] == {"type": "string"}


def test_references_that_only_lead_to_each_other_are_dropped() -> None:
    circle = {"n": {"$ref": "#/$defs/m"}, "m": {"$ref": "#/$defs/n"}}
    found = fit_schema(with_a({"$ref": "#/$defs/n"}, **{"$defs": circle}))
    assert [item.path for item in found.loosenings] == ["properties.a.$ref", "$defs.n.$ref"]


def test_a_schema_that_contains_itself_is_left_as_it_is() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}
    schema = with_a({"$ref": "#/$defs/n"}, **{"$defs": {"n": node}})
    found = fit_schema(schema)
    assert (found.schema, found.loosenings) == (schema, ())


def test_the_client_s_own_schema_is_never_changed() -> None:
    schema = with_a({"type": "any", "minItems": 9, "maxItems": 1})
    before = json.dumps(schema)
    fit_schema(schema)
    assert json.dumps(schema) == before


def test_what_is_lost_is_reported_under_the_client_s_path() -> None:
    report = Report()
    note_loosenings(report, fit_schema(with_a({"type": "any"})), "tools[0].function.parameters")
    assert [note.path for note in report.notes] == ["tools[0].function.parameters.properties.a.type"]


def test_the_corpus_is_no_smaller_than_it_was() -> None:
    assert len(CORPUS) >= 200


@pytest.mark.engine
@needs_engine
def test_llama_server_takes_every_schema_of_the_corpus_once_it_is_fitted() -> None:
    refused = {}
    with running("-np", "1", "-c", "8192", "-t", "1") as engine:
        for name, schema in CORPUS.items():
            suited = fit_schema(schema).schema
            function = {"name": "f", "parameters": suited}
            constraint = {"type": "json_schema", "json_schema": {"name": "x", "schema": suited}}
            for way, members in (
                ("auto", {"tools": [{"type": "function", "function": function}]}),
                ("required", {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}),
                ("format", {"response_format": constraint}),
            ):
                body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, **members}
                answer = engine.client.post("/v1/chat/completions", json=body)
                if answer.status_code != 200:
                    refused[name, way] = answer.text[:200]
    assert refused == {}
