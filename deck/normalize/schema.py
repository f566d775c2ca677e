"""What llama-server's grammar makes of a JSON Schema: which keywords it holds an answer to and which it skips."""

from __future__ import annotations

from typing import Any

from deck.normalize.report import Report

# llama.cpp common/json-schema-to-grammar.cpp: what it turns into a grammar, and what it passes over.
_NAMED = frozenset({"properties", "$defs", "definitions"})
_NESTED = frozenset({"items", "prefixItems", "anyOf", "oneOf", "allOf", "additionalProperties"})
_FORMATS = frozenset({"date", "time", "date-time", "uuid"})
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_LOOSE = frozenset(
    {
        "contains",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "maxProperties",
        "minProperties",
        "multipleOf",
        "not",
        "patternProperties",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
    }
)


def note_loosenings(report: Report, schema: Any, path: str) -> None:
    """Report the keywords that llama-server's grammar does not hold the answer to."""
    todo = [(schema, path)]
    while todo:
        value, where = todo.pop()
        if isinstance(value, list):
            todo += [(item, f"{where}[{place}]") for place, item in enumerate(value)]
        if not isinstance(value, dict):
            continue
        for key, item in value.items():
            if _is_loose(value, key, item):
                report.ignored(f"{where}.{key}", "llama-server's grammar does not hold the answer to it")
            elif key in _NAMED and isinstance(item, dict):
                todo += [(inner, f"{where}.{key}.{name}") for name, inner in item.items()]
            elif key in _NESTED:
                todo.append((item, f"{where}.{key}"))


def _is_loose(schema: dict[str, Any], key: str, value: Any) -> bool:
    if key == "pattern":
        return not (isinstance(value, str) and value.startswith("^") and value.endswith("$"))
    if key == "format":
        return value not in _FORMATS
    if key in _BOUNDS:
        return schema.get("type") != "integer"
    return key in _LOOSE
