"""What a client may send as JSON, and how each mistake is named."""

from __future__ import annotations

import json as plain
import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deck import json
from deck.errors import DeckError, ErrorKind

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT | st.sampled_from([":", "\\u003a", "a:b", '":']),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT | st.sampled_from([":", "k"]), inner, max_size=4),
    max_leaves=20,
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=5)


def refusal(data: bytes, **options: int) -> DeckError:
    with pytest.raises(DeckError) as caught:
        json.loads_request(data, **options)
    assert caught.value.kind is ErrorKind.INVALID_REQUEST
    return caught.value


@given(OBJECTS)
def test_an_object_survives_the_round_trip(value: dict[str, Any]) -> None:
    assert json.loads_request(json.dumps(value)) == value


@given(OBJECTS, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_any_spelling_of_an_object_is_read_alike(value: dict[str, Any], ascii_only: bool, indent: Any) -> None:
    written = plain.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert json.loads_request(written) == value


@given(OBJECTS)
def test_escaped_colons_are_no_repeated_keys(value: dict[str, Any]) -> None:
    """An escaped colon upsets the count of colons; the slow check must then decide, and rightly."""
    inside = plain.dumps({"text": ":", "rest": value}).replace('"text": ":"', '"text": "\\u003A"', 1)
    assert json.loads_request(inside.encode()) == {"text": ":", "rest": value}


@given(OBJECTS, TEXT, VALUES, VALUES)
def test_a_repeated_key_is_always_found(rest: dict[str, Any], key: str, first: Any, second: Any) -> None:
    """Whatever stands around it, whatever the values hold."""
    for write in (plain.dumps, lambda item: json.dumps(item).decode()):  # the latter as the codec itself writes
        member = write(key) + ":"
        inner = "{" + member + write(first) + "," + member + write(second) + "}"
        body = '{"x":[0,' + inner + '],"y":' + write(rest) + "}"
        error = refusal(body.encode())
        assert error.param is not None
    assert error.param.startswith("x[1].")
    assert "stands twice in x[1]" in error.message


@dataclass(frozen=True)
class Case:
    data: bytes
    message: str
    param: str | None = None


CASES = {
    "empty": Case(b"", "the body is empty"),
    "blank": Case(b" \r\n\t", "the body is empty"),
    "bom": Case(b"\xef\xbb\xbf{}", "byte order mark (BOM)"),
    "only a bom": Case(b"\xef\xbb\xbf", "byte order mark (BOM)"),
    "not UTF-8": Case(b'{"a":"\xff"}', "not valid UTF-8 at byte 6"),
    "surrogate as UTF-8": Case(b'{"a":"\xed\xa0\x80"}', "not valid UTF-8 at byte 6"),
    "UTF-16": Case('{"a":1}'.encode("utf-16"), "not valid UTF-8 at byte 0"),
    "cut": Case(b'{"a":[1,', "not JSON"),
    "comma": Case(b'{"a":1,}', "line 1, column 7"),
    "second line": Case(b'{"a":1,\n "b" 2}', "line 2, column 6"),
    "rest": Case(b'{"a":1} {"b":2}', "unexpected content"),
    "single quotes": Case(b"{'a':1}", "not JSON"),
    "NaN": Case(b'{"a":NaN}', "column 6 of the body stands NaN"),
    "Infinity": Case(b'{"a":[Infinity]}', "stands Infinity"),
    "-Infinity": Case(b'{"a":[-Infinity]}', "stands -Infinity"),
    "huge float": Case(b'{"a":1e999}', "infinity"),
    "array": Case(b"[]", "must be a JSON object, not an array"),
    "string": Case(b'"x"', "must be a JSON object, not a string"),
    "number": Case(b"7", "must be a JSON object, not a number"),
    "true": Case(b"true", "must be a JSON object, not a boolean"),
    "null": Case(b"null", "must be a JSON object, not null"),
    "twice": Case(b'{"model":"a","model":"b"}', "the key 'model' stands twice at the top level", "model"),
    "twice below": Case(b'{"m":[{"c":{"d":1,"d":1}}]}', "'d' stands twice in m[0].c", "m[0].c.d"),
    "twice, one escaped": Case(b'{"a":1,"\\u0061":2}', "'a' stands twice", "a"),
    "twice, hidden by an escaped colon": Case(b'{"a":1,"a":2,"b":"\\u003a"}', "'a' stands twice", "a"),
    "lone high surrogate": Case(b'{"a":"\\ud83d\\ude00 \\ud800"}', "stands \\ud800, one half of a surrogate pair"),
    "lone low surrogate": Case(b'{"a":"\\\\ud800\\udC00"}', "stands \\udC00"),
    "lone surrogate in a key": Case(b'{"\\ud800":1}', "stands \\ud800"),
    "integer that loses digits": Case(b'{"a":{"seed":18446744073709551617}}', "a.seed: the integer", "a.seed"),
    "integer too large for any field": Case(
        b'{"max_tokens":1%030d}' % 1,
        "does not fit 64 bits; send a smaller one, or a string where any value may stand",
        "max_tokens",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_bad_body_is_named(case: Case) -> None:
    error = refusal(case.data)
    assert case.message in error.message
    assert error.param == case.param


def test_names_in_messages_are_bounded() -> None:
    key = b'"' + b"k" * 5000 + b'"'
    assert len(refusal(b"{" + key + b":1," + key + b":2}").message) < 300


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, -(2**63), 9007199254740993])
def test_integers_of_64_bits_are_exact(number: int) -> None:
    assert json.loads_request(b'{"a":%d}' % number) == {"a": number}


@pytest.mark.parametrize("written", [b"18446744073709551616", b"-36893488147419103232", b"1e30", b"2.5e200"])
def test_a_large_number_that_a_float_holds_is_taken(written: bytes) -> None:
    """As a bound in a schema: 2**64 loses nothing as a float."""
    assert json.loads_request(b'{"a":%s}' % written) == {"a": float(written)}


def nested(depth: int) -> bytes:
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


def test_depth_is_counted_with_the_body_itself() -> None:
    assert json.loads_request(nested(128))
    assert "at most 128" in refusal(nested(129)).message
    assert json.loads_request(b'{"a":1}', max_depth=1)
    assert "at most 1 " in refusal(b'{"a":{}}', max_depth=1).message


@pytest.mark.parametrize(
    "bomb",
    [
        nested(1000),
        nested(10_000),
        b"[" * 100_000,
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        b'{"a":%s,"a":1}' % (b"[" * 1000 + b"]" * 1000),
    ],
    ids=["1000", "10000", "unclosed", "objects", "in a repeated key"],
)
def test_a_recursion_bomb_is_refused_for_its_depth(bomb: bytes) -> None:
    assert "nested too deeply" in refusal(bomb).message


def test_dumps_takes_mappings_and_refuses_strangers() -> None:
    assert json.dumps({"a": MappingProxyType({"b": (1, 2)})}) == b'{"a":{"b":[1,2]}}'
    with pytest.raises(TypeError):
        json.dumps(object())
    with pytest.raises(TypeError):
        json.dumps("\ud800")


def test_pretty_is_for_people() -> None:
    assert json.pretty({"a": [1]}) == '{\n  "a": [\n    1\n  ]\n}'


def test_loads_is_plain() -> None:
    assert json.loads('[1, "x"]') == json.loads(b'[1,"x"]') == [1, "x"]
    assert math.isclose(json.loads(b"1.5"), 1.5)
    with pytest.raises(ValueError, match="invalid literal"):
        json.loads(b"nope")


@pytest.mark.parametrize("text", ['{"n":123456789012345678901}', '{"a": [1, -99999999999999999999]}', '{"n":1}'])
def test_what_is_embedded_in_an_answer_keeps_its_digits(text: str) -> None:
    written = json.dumps({"input": json.embedded(text, json.loads(text))}).decode()
    assert plain.loads(written)["input"] == plain.loads(text)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "{"])
def test_what_a_model_wrote_must_be_json(text: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|Expecting"):
        json.loads_exact(text)


@pytest.mark.parametrize("value", [float("inf"), [float("nan")], "\ud83d"])
def test_what_has_no_json_is_not_written(value: Any) -> None:
    with pytest.raises(ValueError, match=r"JSON compliant|surrogates"):
        json.dumps_exact(value)


def test_what_a_model_wrote_comes_back_as_it_was() -> None:
    text = '{"n":123456789012345678901,"s":"é","f":1.5}'
    assert json.dumps_exact(json.loads_exact(text)) == text
