"""A client's JSON Schema in the form that llama-server's grammar takes, and word of each thing the grammar lets go.

llama-server turns a schema into a grammar (llama.cpp `common/json-schema-to-grammar.cpp`). It refuses the whole request
for a schema it cannot turn, hangs on a lower bound above its upper one, and passes over many keywords in silence. What
it refuses is loosened here as little as may be; what it passes over stays and is named.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from deck import json
from deck.normalize.report import Report

_NAMED = ("properties", "$defs", "definitions")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_FORMATS = frozenset({"date", "time", "date-time", "uuid"})
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_PASSED_OVER = frozenset(
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
_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
# Other languages' names of the same types, which tools made by hand carry.
_SAME_TYPE = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}
# llama.cpp's grammar takes up to 2000 repetitions; an array of n items needs some beside them.
_MOST_REPEATED = 1000
_INT64 = 1 << 63
_SHORT = 32 * 1024
_LONGEST_PATTERN = 2000
_LOOSE = "llama-server's grammar does not hold the answer to it"
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength")
_REPEATED = re.compile(r"\{(\d*),?(\d*)\}")
_TWICE_REPEATED = re.compile(r"(?<!\\)[*+?}][*+]")


@dataclass(frozen=True, slots=True)
class Loosening:
    """One thing that the answer is not held to: where in the schema, as `properties.a.pattern`, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class FittedSchema:
    """A schema as llama-server takes it, and what the answer is not held to."""

    schema: Mapping[str, Any]
    loosenings: tuple[Loosening, ...]


def fit_schema(schema: Mapping[str, Any]) -> FittedSchema:
    """Return the schema in the form that llama-server takes; the same for equal schemas, so not to be changed."""
    encoded = json.dumps(schema)
    return _remembered(encoded) if len(encoded) <= _SHORT else _remembered_long(encoded)


def note_loosenings(report: Report, fitted: FittedSchema, path: str) -> None:
    """Report what the answer is not held to; `path` is where the client wrote the schema."""
    for loosening in fitted.loosenings:
        report.ignored(f"{path}.{loosening.path}" if loosening.path else path, loosening.reason)


def _fitted(encoded: bytes) -> FittedSchema:
    return _Fitting(json.loads(encoded)).result()


# An agent sends the same tools with every turn.
_remembered = lru_cache(maxsize=512)(_fitted)
_remembered_long = lru_cache(maxsize=8)(_fitted)


class _Fitting:
    """One schema while it is walked; it is changed in place, being a copy already."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._loosenings: list[Loosening] = []
        self._aliases: dict[str, str] = {}

    def result(self) -> FittedSchema:
        self._schema(self._root, "")
        done: set[str] = set()
        while pending := [pointer for pointer in self._aliases if pointer not in done]:
            for pointer in pending:
                done.add(pointer)
                self._alias(pointer)
        return FittedSchema(self._root, tuple(self._loosenings))

    def _alias(self, pointer: str) -> None:
        """Give the target of a reference that llama-server cannot follow a name that it can."""
        target = json.loads(json.dumps(self._target(pointer)))
        definitions = self._root.setdefault("$defs", {})
        definitions[self._aliases[pointer]] = target
        if isinstance(target, dict):
            self._schema(target, f"$defs.{self._aliases[pointer]}")

    def _lose(self, path: str, reason: str) -> None:
        self._loosenings.append(Loosening(path, reason))

    def _drop(self, schema: dict[str, Any], key: str, path: str, reason: str) -> None:
        del schema[key]
        self._lose(_join(path, key), reason)

    def _schema(self, schema: dict[str, Any], path: str) -> None:
        self._type(schema, path)
        self._reference(schema, path)
        self._choices(schema, path)
        self._object(schema, path)
        self._array(schema, path)
        self._counts(schema, path)
        self._numbers(schema, path)
        self._text(schema, path)
        for key in schema:
            if key in _PASSED_OVER:
                self._lose(_join(path, key), _LOOSE)

    def _child(self, value: Any, path: str) -> dict[str, Any]:
        """Return a subschema as an object: `true` is one that takes anything, and so is what is no schema."""
        if isinstance(value, dict):
            self._schema(value, path)
            return value
        if value is not True:
            self._lose(path, "it is no schema" if value is not False else _LOOSE)
        return {}

    def _type(self, schema: dict[str, Any], path: str) -> None:
        if "type" not in schema:
            return
        said = schema["type"]
        named = [_type_of(item) for item in said] if isinstance(said, list) else [_type_of(said)]
        known = [name for name in named if name is not None]
        if len(known) < len(named) or not known:
            self._drop(schema, "type", path, "llama-server knows no such type; anything is taken")
        elif known != (said if isinstance(said, list) else [said]):
            schema["type"] = known if isinstance(said, list) else known[0]

    def _reference(self, schema: dict[str, Any], path: str) -> None:
        if "$ref" not in schema:
            return
        pointer = schema["$ref"]
        if self._target(pointer) is None:
            self._drop(schema, "$ref", path, "llama-server cannot follow it; anything is taken")
        elif "~" in pointer or "%" in pointer:
            name = self._aliases.setdefault(pointer, f"deck{len(self._aliases)}")
            schema["$ref"] = f"#/$defs/{name}"

    def _target(self, pointer: Any) -> Any:
        """Return what a reference within the schema points to in the end; None = nothing that is not itself."""
        seen = set()
        while isinstance(pointer, str) and pointer.startswith("#/") and pointer not in seen:
            seen.add(pointer)
            target = _resolved(self._root, pointer)
            if not isinstance(target, dict) or "$ref" not in target:
                return target if isinstance(target, dict) else None
            pointer = target["$ref"]
        return None

    def _choices(self, schema: dict[str, Any], path: str) -> None:
        if "enum" in schema and (not isinstance(schema["enum"], list) or not schema["enum"]):
            self._drop(schema, "enum", path, "it lists no values; anything is taken")
        for key in _LISTED:
            if key not in schema:
                continue
            if not isinstance(schema[key], list) or not schema[key]:
                self._drop(schema, key, path, "it lists no schemas; anything is taken")
                continue
            items = schema[key]
            if key in ("anyOf", "oneOf") and any(item is not False for item in items):
                items = [item for item in items if item is not False]  # nothing is one of these
            schema[key] = [self._child(item, f"{_join(path, key)}[{place}]") for place, item in enumerate(items)]

    def _object(self, schema: dict[str, Any], path: str) -> None:
        for key in _NAMED:
            if key not in schema:
                continue
            if not isinstance(schema[key], dict):
                self._drop(schema, key, path, "it is no object")
                if key == "properties":
                    schema[key] = {}
                continue
            where = _join(path, key)
            schema[key] = {name: self._child(item, f"{where}.{name}") for name, item in schema[key].items()}
        required = schema.get("required", [])
        if not isinstance(required, list):
            self._drop(schema, "required", path, "it is no list of names")
        elif not all(isinstance(name, str) for name in required):
            schema["required"] = [name for name in required if isinstance(name, str)]
            self._lose(_join(path, "required"), "it is no list of names")
        rest = schema.get("additionalProperties", True)
        if isinstance(rest, dict):
            self._schema(rest, _join(path, "additionalProperties"))
        elif not isinstance(rest, bool):
            self._drop(schema, "additionalProperties", path, "it is no schema")

    def _array(self, schema: dict[str, Any], path: str) -> None:
        if "items" not in schema:
            if _says(schema, "array") and "prefixItems" not in schema:
                # Templates ask for the items of every array, and raise in llama-server where there are none.
                schema["items"] = {}
            return
        items, where = schema["items"], _join(path, "items")
        if isinstance(items, list):
            schema["items"] = [self._child(item, f"{where}[{place}]") for place, item in enumerate(items)]
        else:
            schema["items"] = self._child(items, where)

    def _counts(self, schema: dict[str, Any], path: str) -> None:
        for key in _COUNTS:
            if key not in schema:
                continue
            count = _whole(schema[key])
            if count is None or count < 0:
                self._drop(schema, key, path, "it is no count")
            elif count <= _MOST_REPEATED or (key == "maxLength" and count < _INT64):
                schema[key] = count
            elif key == "maxLength":
                self._drop(schema, key, path, "it is beyond 64 bits")
            elif key == "maxItems":
                self._drop(schema, key, path, f"llama-server's grammar counts to {_MOST_REPEATED} items at most")
            else:
                schema[key] = _MOST_REPEATED
                self._lose(_join(path, key), f"llama-server's grammar is held to {_MOST_REPEATED} at most")
        for low, high in (_COUNTS[:2], _COUNTS[2:]):
            self._ordered(schema, low, high, path)

    def _ordered(self, schema: dict[str, Any], low: str, high: str, path: str) -> None:
        """Drop bounds that nothing fulfils: llama-server hangs on them."""
        if low in schema and high in schema and schema[low] > schema[high]:
            self._drop(schema, low, path, f"nothing fulfils it together with {high}")
            self._drop(schema, high, path, f"nothing fulfils it together with {low}")

    def _numbers(self, schema: dict[str, Any], path: str) -> None:
        for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            # Draft 4 wrote a switch beside the bound.
            if isinstance(schema.get(exclusive), bool):
                is_exclusive = schema.pop(exclusive)
                if is_exclusive and bound in schema:
                    schema[exclusive] = schema.pop(bound)
        is_integer = schema.get("type") == "integer" or schema.get("type") == ["integer"]
        for key in _BOUNDS:
            if key not in schema:
                continue
            value = schema[key]
            if isinstance(value, bool) or not isinstance(value, int | float):
                self._drop(schema, key, path, "it is no number")
            elif not -_INT64 <= value < _INT64:
                self._drop(schema, key, path, "it is beyond 64 bits")
            elif not is_integer:
                self._lose(_join(path, key), _LOOSE)
        self._ordered(schema, "minimum", "maximum", path)

    def _text(self, schema: dict[str, Any], path: str) -> None:
        if "format" in schema:
            if not isinstance(schema["format"], str):
                self._drop(schema, "format", path, "it is no name of a format")
            elif schema["format"] not in _FORMATS:
                self._lose(_join(path, "format"), _LOOSE)
        if "pattern" in schema:
            pattern = schema["pattern"]
            if not isinstance(pattern, str) or not _is_takeable(pattern):
                self._drop(schema, "pattern", path, "llama-server cannot make a grammar of it; any text is taken")
            elif not (pattern.startswith("^") and pattern.endswith("$")) or "(?" in pattern.replace("(?:", ""):
                self._lose(_join(path, "pattern"), _LOOSE)


def _says(schema: dict[str, Any], name: str) -> bool:
    said = schema.get("type")
    return said == name or (isinstance(said, list) and name in said)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _type_of(said: Any) -> str | None:
    if not isinstance(said, str):
        return None
    name = said.lower()
    return name if name in _TYPES else _SAME_TYPE.get(name)


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        return None
    return int(value)


def _resolved(root: Any, pointer: str) -> Any:
    value = root
    for step in _steps(pointer):
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def _steps(pointer: str) -> Iterable[str]:
    return (unquote(step).replace("~1", "/").replace("~0", "~") for step in pointer[2:].split("/"))


def _is_takeable(pattern: str) -> bool:
    """Tell whether llama-server survives a pattern; one with a construct that it does not know it takes as any text."""
    if len(pattern) > _LONGEST_PATTERN or not pattern.isascii() or _TWICE_REPEATED.search(pattern):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a later Python may read otherwise
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    if pattern.endswith("\\$") and (len(pattern) - len(pattern[:-1].rstrip("\\"))) % 2 == 0:
        return False
    counts = (int(count) for found in _REPEATED.finditer(pattern) for count in found.groups() if count)
    return all(count <= _MOST_REPEATED for count in counts)
