"""JSON in and out, through one codec: what Deck and llama-server say is trusted, what a client says is checked.

Knows the codec's limits and gaps and closes them for clients. Does not know any field.

Numbers: integers of 64 bits (-2**63 to 2**64-1) are exact. Beyond that the codec reads a float; a client's integer that
a float cannot hold exactly is refused, so that no digit is ever lost in silence. `NaN` and infinities are no JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NoReturn

import orjson

from deck.errors import DeckError, invalid

_WORDS = re.compile(r"NaN|-?Infinity")
# A pair is consumed whole, so that only a half which stands alone is captured; other escapes are stepped over.
_SURROGATE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)
_AS_DIGIT = bytes(ord("0") if chr(byte).isdigit() else byte for byte in range(128)) + bytes(range(128, 256))
_LONG = b"0" * 19
_BOM = b"\xef\xbb\xbf"
_SHOWN = 100
_TYPES = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}


class _Pairs(list[tuple[str, Any]]):
    """An object as it was written, repeated keys and all."""


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


dumps: Callable[[Any], bytes] = partial(orjson.dumps, default=_plain)
"""Encode; mappings of any type count as objects.

Raises:
    TypeError: a value has no JSON form: an unknown type, a lone surrogate, an integer beyond 64 bits.
"""

loads: Callable[[bytes | str], Any] = orjson.loads
"""Decode what a trusted party wrote.

Raises:
    ValueError: it is no JSON.
"""


def loads_exact(text: str) -> Any:
    """Decode what a model wrote: integers of any size keep all their digits.

    Raises:
        ValueError: it is no JSON.
    """
    return json.loads(text, parse_constant=_refuse)


def dumps_exact(value: Any) -> str:
    """Encode what `loads_exact` gave.

    Raises:
        ValueError: a number is not finite, or a string holds half a surrogate pair.
        TypeError: a value has no JSON form.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text.encode()
    return text


def embedded(text: str, value: Any) -> Any:
    """Return what stands for a decoded object in an answer: itself, or its text where digits would be lost."""
    return orjson.Fragment(text) if _LONG in text.encode().translate(_AS_DIGIT) else value


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def pretty(value: Any) -> str:
    """Encode for people."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_INDENT_2).decode()


def loads_request(data: bytes, *, max_depth: int = 128) -> dict[str, Any]:
    """Decode a client's body, strictly.

    Args:
        data: the body.
        max_depth: how many objects and arrays may lie in each other, the body itself counted.

    Raises:
        DeckError: `INVALID_REQUEST`, saying what is wrong and where.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as exc:
        _explain(data, exc, max_depth)
    if type(value) is not dict:
        raise invalid(f"the body must be a JSON object, not {_TYPES.get(type(value), 'null')}")
    # What has few brackets is not deep. To take them out is several times faster than to count them.
    most = max_depth + 1
    is_shallow = 2 * len(data) - len(data.replace(b"[", b"", most)) - len(data.replace(b"{", b"", most)) <= max_depth
    is_rounded = not is_shallow and _walk(value, max_depth)
    written = orjson.dumps(value)
    if written == data:  # as most clients write it: nothing was repeated, rounded or escaped
        return value
    # What has no long row of digits has no number that could have been rounded.
    if is_shallow and _LONG in data.translate(_AS_DIGIT):
        is_rounded = _walk(value, max_depth)
    # In a text, colons stand behind keys and inside strings; a repeated key leaves more in the client's than in ours.
    if is_rounded or written.count(b":") != data.count(b":") or (b"\\u003" in data and _has_escaped_colon(data)):
        _inspect(data, max_depth)
    return value


def _walk(value: dict[str, Any], max_depth: int) -> bool:
    """Return whether a float may be an integer that was rounded; raise where nesting is too deep."""
    is_rounded = False
    level: list[Any] = [value]
    for _ in range(max_depth):
        below: list[Any] = []
        for item in level:
            for member in item.values() if type(item) is dict else item:
                kind = type(member)
                if kind is str:
                    continue
                if kind is dict or kind is list:
                    below.append(member)
                elif kind is float and not -(2.0**63) < member < 2.0**64:
                    is_rounded = True
        if not below:
            return is_rounded
        level = below
    raise _too_deep(max_depth)


def _has_escaped_colon(data: bytes) -> bool:
    return b"\\u003a" in data or b"\\u003A" in data


def _inspect(data: bytes, max_depth: int) -> None:
    """Find what the codec cannot tell: a repeated key, or an integer that a float cannot hold."""
    try:
        written = json.loads(data, object_pairs_hook=_Pairs)
    except RecursionError as exc:
        raise _too_deep(max_depth) from exc
    stack: list[tuple[str, Any]] = [("", written)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, _Pairs):
            stack += reversed(list(_members(path, value)))
        elif isinstance(value, list):
            stack += reversed([(f"{path}[{index}]", member) for index, member in enumerate(value)])
        elif isinstance(value, int) and not -(2**63) <= value < 2**64 and float(value) != value:
            remedy = "send a smaller one, or a string where any value may stand"
            raise invalid(f"{path}: the integer {_cut(str(value))} does not fit 64 bits; {remedy}", path)


def _members(path: str, pairs: _Pairs) -> Iterator[tuple[str, Any]]:
    seen = set()
    for key, value in pairs:
        place = f"{path}.{_cut(key)}" if path else _cut(key)
        if key in seen:
            where = f"in {path}" if path else "at the top level"
            raise invalid(f"the key {_cut(key)!r} stands twice {where}; send it once", place)
        seen.add(key)
        yield place, value


def _explain(data: bytes, exc: orjson.JSONDecodeError, max_depth: int) -> NoReturn:
    """Raise what the client is told of a body that the codec refused."""
    if not data.strip():
        raise invalid("the body is empty; send a JSON object") from exc
    if data.startswith(_BOM):
        raise invalid("the body starts with a byte order mark (BOM); send UTF-8 without one") from exc
    try:
        text = data.decode()
    except UnicodeDecodeError as fault:
        raise invalid(f"the body is not valid UTF-8 at byte {fault.start}") from fault
    if "depth limit" in exc.msg:
        raise _too_deep(max_depth) from exc
    if "surrogate" in exc.msg:
        lone = next((found[1] for found in _SURROGATE.finditer(text, exc.pos) if found[1]), "escape")
        raise invalid(f"{_at(exc)} stands {lone}, one half of a surrogate pair: it is no character") from exc
    # The codec points behind a sign.
    word = _WORDS.match(text, max(exc.pos - 1, 0)) or _WORDS.match(text, exc.pos)
    if word is not None:
        raise invalid(f"{_at(exc)} stands {word[0]}, which is no JSON; send a number or null") from exc
    raise invalid(f"the body is not JSON: {exc.msg} ({_at(exc)})") from exc


def _at(exc: orjson.JSONDecodeError) -> str:
    return f"at line {exc.lineno}, column {exc.colno} of the body"


def _too_deep(max_depth: int) -> DeckError:
    return invalid(f"the body is nested too deeply; at most {max_depth} objects and arrays may lie in each other")


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
