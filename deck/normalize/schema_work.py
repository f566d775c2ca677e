"""How much work it is to check a value against a JSON Schema, found out without doing it.

A validator may take time exponential in the depth of a value where several branches of a schema refer to the same
one. Knows the keywords of JSON Schema 2020-12 and the drafts before it. Does not know what any of them demands.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

# Keywords that apply schemas to the value itself, and those that apply them to what is in it.
_HERE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
_INSIDE = (
    "patternProperties",
    "additionalProperties",
    "propertyNames",
    "contains",
    "unevaluatedProperties",
    "additionalItems",
    "unevaluatedItems",
)
# Of these, one schema applies to each item or member.
_APART = ("properties", "prefixItems", "items")
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies"})
# They look through all that was applied to the value.
_LOOK_BACK = frozenset({"unevaluatedProperties", "unevaluatedItems"})
_BY_NAME = frozenset({"$dynamicRef", "$recursiveRef"})
_MOST_PLACES = 16384
_LONGEST_CHAIN = 250


def bound_steps(schema: Any, depth: int, most: int, *, pattern: int) -> None:
    """Return if at most `most` schemas are applied on the way to any one value, `depth` levels down.

    Every branch is counted as if it were taken; a pattern counts as `pattern` steps.

    Raises:
        ValueError: it is more, or cannot be known: a reference to another document, by name, or in a circle.
    """
    _Steps(schema, most, pattern).count(schema, depth, 0)


class _Steps:
    """Remembers, by schema and depth, what it counted; None = is being counted."""

    def __init__(self, root: Any, most: int, pattern: int) -> None:
        self._root = root
        self._most = most
        self._pattern = pattern
        self._known: dict[tuple[int, int], int | None] = {}

    def count(self, schema: Any, depth: int, chain: int) -> int:
        if not isinstance(schema, dict):
            return 1
        key = (id(schema), depth)
        if key in self._known:
            known = self._known[key]
            if known is None:
                raise ValueError("the schema refers to itself in a circle")
            return known
        if chain > _LONGEST_CHAIN or len(self._known) > _MOST_PLACES:
            raise ValueError("the schema is too complex")
        self._known[key] = None
        steps = self._here(schema, depth, chain + 1)
        if depth:
            steps += self._inside(schema, depth - 1, chain + 1)
        if steps > self._most:
            raise ValueError("the schema is too complex")
        self._known[key] = steps
        return steps

    def _here(self, schema: dict[str, Any], depth: int, chain: int) -> int:
        if not _BY_NAME.isdisjoint(schema) or (isinstance(schema.get("$id"), str) and schema is not self._root):
            raise ValueError("the schema refers by name")
        inner = [item for keyword in _HERE for item in _schemas(schema, keyword)]
        if "$ref" in schema:
            inner.append(self._find(schema["$ref"]))
        steps = 0
        for item in inner:
            steps += self.count(item, depth, chain)
        times = 1 if _LOOK_BACK.isdisjoint(schema) else 2
        return 1 + self._pattern * ("pattern" in schema) + times * steps

    def _inside(self, schema: dict[str, Any], depth: int, chain: int) -> int:
        steps = self._pattern * len(_schemas(schema, "patternProperties"))
        for keyword in _INSIDE:
            for item in _schemas(schema, keyword):
                steps += self.count(item, depth, chain)
        for keyword in _APART:
            most = 0
            for item in _schemas(schema, keyword):
                most = max(most, self.count(item, depth, chain))
            steps += most
        return steps

    def _find(self, reference: Any) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise ValueError("the schema refers to another document, or by name")
        found = self._root
        for step in reference.split("/")[1:]:
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(step)] if isinstance(found, list) else found[step]
            except (LookupError, TypeError, ValueError):
                raise ValueError("the schema refers to what is not there") from None
        return found


def _schemas(schema: dict[str, Any], keyword: str) -> list[Any]:
    """Return the schemas under a keyword, which holds one, an array or an object of them."""
    value = schema.get(keyword)
    if keyword in _MAPS:
        return list(value.values()) if isinstance(value, dict) else []
    if isinstance(value, list):
        return value
    return [value] if isinstance(value, dict) else []
