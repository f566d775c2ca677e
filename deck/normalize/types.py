"""The types a request field can have: each checks one JSON value and knows how to describe itself."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deck.errors import DeckError, invalid
from deck.normalize.report import Report

INT32_MAX = 2**31 - 1
UINT32_MAX = 2**32 - 1

Check = Callable[[Any, str, Report], Any]


@dataclass(frozen=True, slots=True)
class Plain:
    """Values that a type takes as they are, so that the reader need not call its check: the usual ones.

    A value is plain if its type is among `types`, it is among `words`, if there are any, and within `low`…`high`, if
    they are set; `filled`: and if it is not empty.
    """

    types: frozenset[type] = frozenset()
    words: frozenset[str] | None = None
    low: float | None = None
    high: float = 0
    filled: bool = False


_NOTHING_PLAIN = Plain()
_STRING: frozenset[type] = frozenset({str})
_ALL: frozenset[type] = frozenset({str, bool, int, float, list, dict})


@dataclass(frozen=True, slots=True)
class FieldType:
    """What values a field takes: `describe` for documents, `json` for the JSON type, `check` to read one."""

    json: str
    describe: str
    check: Check
    plain: Plain = _NOTHING_PLAIN


def wrong_type(path: str, expected: str, value: Any) -> DeckError:
    """Build the error for a value of another JSON type than `expected`."""
    return invalid(f"{path}: expected {expected}, got {json_name(value)}", path, "invalid_type")


def out_of_range(path: str, expected: str, value: Any) -> DeckError:
    """Build the error for a value of the right type that is not among the supported ones."""
    return invalid(f"{path}: expected {expected}, got {_shown(value)}", path, "unsupported_value")


def json_name(value: Any) -> str:
    """Name the JSON type of a decoded value."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def as_integer(value: Any, path: str, expected: str) -> int:
    """Return `value` as an int; a float without a fraction counts, as in JSON Schema."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(path, expected, value)
    if isinstance(value, float):
        if not math.isfinite(value) or not value.is_integer():
            raise out_of_range(path, expected, value)
        return int(value)
    return value


def integer(low: int | None = None, high: int | None = INT32_MAX) -> FieldType:
    """An integer within `low`…`high`."""
    expected = "an integer" + _range(low, high)

    def check(value: Any, path: str, report: Report) -> int:
        number = as_integer(value, path, expected)
        if (low is not None and number < low) or (high is not None and number > high):
            raise out_of_range(path, expected, value)
        return number

    return FieldType("integer", expected[3:], check, _within(low, high, int))


def _within(low: float | None, high: float | None, *numbers: type) -> Plain:
    return _NOTHING_PLAIN if low is None or high is None else Plain(frozenset(numbers), low=low, high=high)


def budget() -> FieldType:
    """An output budget: 0 = process the prompt only; above 2^31-1 it is capped, with a note."""
    expected = "an integer of at least 0"

    def check(value: Any, path: str, report: Report) -> int:
        number = as_integer(value, path, expected)
        if number < 0:
            raise out_of_range(path, expected, value)
        if number > INT32_MAX:
            report.changed(path, "capped to what llama-server can count", shown=f"{path}>{INT32_MAX}")
            return INT32_MAX
        return number

    described = "integer 0…2147483647, 0 = process the prompt only, larger is capped"
    return FieldType("integer", described, check, _within(0, INT32_MAX, int))


def off_or_integer(off: int, becomes: int, high: int = INT32_MAX) -> FieldType:
    """An integer of at least 0, or `off`, another engine's spelling of what llama-server writes as `becomes`."""
    expected = f"an integer 0…{high}, or {off}"

    def check(value: Any, path: str, report: Report) -> int:
        number = as_integer(value, path, expected)
        if number == off:
            report.changed(path, f"{off} is written {becomes} for llama-server", shown=f"{path}={off}>{becomes}")
            return becomes
        if not 0 <= number <= high:
            raise out_of_range(path, expected, value)
        return number

    return FieldType("integer", expected[3:], check)


def number(low: float | None = None, high: float | None = None) -> FieldType:
    """A finite number within `low`…`high`."""
    expected = "a number" + _range(low, high)

    def check(value: Any, path: str, report: Report) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(path, expected, value)
        if not math.isfinite(value) or (low is not None and value < low) or (high is not None and value > high):
            raise out_of_range(path, expected, value)
        return value

    return FieldType("number", expected[2:], check, _within(low, high, float, int))


def _range(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return ""
    if high is None:
        return f" of at least {low}"
    return f" {low}…{high}" if low is not None else f" of at most {high}"


def boolean() -> FieldType:
    """True or false; 0, 1 and "true" are not booleans."""

    def check(value: Any, path: str, report: Report) -> bool:
        if not isinstance(value, bool):
            raise wrong_type(path, "a boolean", value)
        return value

    return FieldType("boolean", "boolean", check, Plain(frozenset({bool})))


def string(*, longest: int | None = None, pattern: str | None = None, empty: bool = True) -> FieldType:
    """A string, within a length and a pattern."""
    compiled = re.compile(pattern) if pattern else None
    expected = "a string" + (f" of at most {longest} characters" if longest else "")
    expected += f" matching {pattern}" if pattern else "" if empty else ", not empty"

    def check(value: Any, path: str, report: Report) -> str:
        if not isinstance(value, str):
            raise wrong_type(path, "a string", value)
        if (longest and len(value) > longest) or (compiled and not compiled.fullmatch(value)) or not (empty or value):
            raise out_of_range(path, expected, value)
        return value

    is_free = longest is None and compiled is None
    return FieldType("string", expected[2:], check, Plain(_STRING, filled=not empty) if is_free else _NOTHING_PLAIN)


def one_of(*values: str) -> FieldType:
    """One of the listed strings."""
    expected = "one of " + ", ".join(repr(value) for value in values)

    def check(value: Any, path: str, report: Report) -> str:
        if not isinstance(value, str):
            raise wrong_type(path, "a string", value)
        if value not in values:
            raise out_of_range(path, expected, value)
        return value

    return FieldType("string", expected, check, Plain(_STRING, words=frozenset(values)))


def strings(*, most: int, or_one: bool = False, known: frozenset[str] | None = None) -> FieldType:
    """An array of up to `most` non-empty strings; `or_one` also takes a bare string; `known` closes the set."""
    expected = f"an array of up to {most} non-empty strings" + (", or a string" if or_one else "")
    if known:
        expected += ", each one of " + ", ".join(sorted(known))

    def check(value: Any, path: str, report: Report) -> list[str]:
        items = [value] if or_one and isinstance(value, str) else value
        if not isinstance(items, list):
            raise wrong_type(path, expected, value)
        if len(items) > most:
            raise out_of_range(path, expected, f"{len(items)} of them")
        for position, item in enumerate(items):
            where = path if items is not value else f"{path}[{position}]"
            if not isinstance(item, str):
                raise wrong_type(where, "a string", item)
            if not item or (known and item not in known):
                raise out_of_range(where, expected, item)
        return items

    return FieldType("array", expected[3:], check)


def mapping() -> FieldType:
    """A JSON object, read further by whoever owns it."""

    def check(value: Any, path: str, report: Report) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong_type(path, "an object", value)
        return value

    return FieldType("object", "object", check, Plain(frozenset({dict})))


def array() -> FieldType:
    """A JSON array, read further by whoever owns it."""

    def check(value: Any, path: str, report: Report) -> list[Any]:
        if not isinstance(value, list):
            raise wrong_type(path, "an array", value)
        return value

    return FieldType("array", "array", check, Plain(frozenset({list})))


def anything(describe: str) -> FieldType:
    """Any JSON value; the surface reads its structure, `describe` says what it takes."""
    return FieldType("any", describe, lambda value, path, report: value, Plain(_ALL))


def logit_bias() -> FieldType:
    """Token biases in llama-server's three shapes: {id: bias}, [[id, bias]], and either with a text for the id.

    Keys are ids of the model's own vocabulary, as integers or their decimal strings; text keys name the tokens
    of that text. A bias is a finite number or false, which bans the token.
    """
    expected = "an object {token: bias} or an array of [token, bias]"

    def check(value: Any, path: str, report: Report) -> list[list[Any]]:
        if isinstance(value, dict):
            pairs = [_bias(key, bias, f"{path}.{key}") for key, bias in value.items()]
        elif isinstance(value, list):
            pairs = [_bias_of(item, f"{path}[{position}]") for position, item in enumerate(value)]
        else:
            raise wrong_type(path, expected, value)
        if len({(type(key), key) for key, _ in pairs}) < len(pairs):
            raise invalid(f"{path}: a token stands twice", path)
        return pairs

    return FieldType(
        "object",
        "object {token: bias} or array of [token, bias], bias -100…100 or false; a text names each of its tokens",
        check,
    )


def _bias_of(item: Any, path: str) -> list[Any]:
    if not isinstance(item, list) or len(item) != 2:
        raise wrong_type(path, "a pair [token, bias]", item)
    return _bias(item[0], item[1], path)


def _bias(key: Any, bias: Any, path: str) -> list[Any]:
    if isinstance(key, str) and re.fullmatch(r"-?\d{1,9}", key):
        key = int(key)
    if isinstance(key, bool) or not isinstance(key, int | str) or key == "" or (isinstance(key, int) and key < 0):
        raise out_of_range(path, "a token id or a text", key)
    if bias is False:
        return [key, bias]
    if isinstance(bias, bool) or not isinstance(bias, int | float):
        raise wrong_type(path, "a number or false", bias)
    if not math.isfinite(bias) or not -100 <= bias <= 100:
        raise out_of_range(path, "a bias -100…100 or false", bias)
    return [key, bias]
