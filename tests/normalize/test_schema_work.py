"""The bound on the work of checking a value: what is cheap passes, what explodes or cannot be known does not."""

from __future__ import annotations

from typing import Any

import pytest

from deck.normalize.schema_work import bound_steps

TREE: dict[str, Any] = {
    "anyOf": [
        {"type": "integer"},
        {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}, "required": ["left"]},
    ]
}
WIDE: dict[str, Any] = {"properties": {f"p{number}": {"type": "string"} for number in range(5000)}}
VARIANTS: dict[str, Any] = {"items": {"oneOf": [{"properties": {"kind": {"const": n}}} for n in range(100)]}}


def doubling(levels: int) -> dict[str, Any]:
    """A schema that applies its last definition two to the power of `levels` times to one value."""
    defs: dict[str, Any] = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/a0", "$defs": {**defs, f"a{levels}": {"type": "object"}}}


FORKED: dict[str, Any] = {
    "oneOf": [{"properties": {"c": {"$ref": "#"}}}, {"properties": {"c": {"$ref": "#"}}, "required": ["d"]}]
}


@pytest.mark.parametrize(
    ("schema", "depth"),
    [
        ({}, 64),
        (TREE, 64),
        (WIDE, 3),
        (VARIANTS, 3),
        (doubling(8), 0),
        (FORKED, 8),
        ({"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"type": "string"}}}, 1),
        ({"prefixItems": [{"type": "string"}, {"$ref": "#/prefixItems/0"}]}, 2),
        ({"$id": "https://example.org/x", "properties": {"$id": {"type": "string"}}}, 1),
        ({"properties": {"a": True}, "additionalProperties": False}, 1),
        ({"properties": {"next": {"$ref": "#"}}}, 64),
        ({"dependencies": {"a": ["b"], "c": {"required": ["d"]}}}, 1),
    ],
)
def test_what_people_write_is_within_the_bound(schema: dict[str, Any], depth: int) -> None:
    bound_steps(schema, depth, 4096, pattern=1)


@pytest.mark.parametrize(
    ("schema", "depth", "why"),
    [
        (doubling(30), 0, "complex"),
        (doubling(400), 0, "complex"),
        (FORKED, 40, "complex"),
        ({"$ref": "#"}, 0, "circle"),
        ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"not": {"$ref": "#"}}}}, 0, "circle"),
        ({"properties": {"a": {"$ref": "https://example.org/a.json"}}}, 1, "another document"),
        ({"$ref": "other.json#/a"}, 0, "another document"),
        ({"$ref": "#named", "$defs": {"a": {"$anchor": "named"}}}, 0, "by name"),
        ({"$dynamicRef": "#x"}, 0, "by name"),
        ({"properties": {"a": {"$id": "https://example.org/b", "$ref": "#/c"}}}, 1, "by name"),
        ({"$ref": "#/$defs/none"}, 0, "not there"),
        ({"$ref": 7}, 0, "another document"),
        ({"allOf": [{"pattern": "a"}] * 50}, 0, "complex"),
        ({"properties": {"a": {"patternProperties": {str(n): {} for n in range(50)}}}}, 2, "complex"),
    ],
)
def test_what_explodes_or_cannot_be_known_is_not(schema: dict[str, Any], depth: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        bound_steps(schema, depth, 4096, pattern=100)


def test_a_reference_counts_only_as_deep_as_the_value_is() -> None:
    """An answer without depth cannot reach what a schema does further down."""
    bound_steps(FORKED, 3, 64, pattern=1)
    with pytest.raises(ValueError, match="complex"):
        bound_steps(FORKED, 6, 64, pattern=1)
