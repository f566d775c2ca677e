"""What the reader takes without a call is exactly what the check takes as it is."""

from __future__ import annotations

from typing import Any

import pytest

from deck.errors import DeckError
from deck.normalize.fields import Field, Reader, Table, Treatment
from deck.normalize.reasoning import REASONING_FIELDS
from deck.normalize.report import Report
from deck.normalize.sampling import EXTENSIONS, SAMPLING
from deck.normalize.types import array, mapping, one_of, string

FIELDS = (
    *SAMPLING,
    *EXTENSIONS,
    *REASONING_FIELDS,
    Field.mapped("words", one_of("a", "none")),
    Field.mapped("free", string()),
    Field.mapped("full", string(empty=False)),
    Field.mapped("short", string(longest=3)),
    Field.mapped("list", array()),
    Field.mapped("object", mapping()),
)
NUMBERS = (-101, -2, -1, 0, 1, 2, 3, 20, 100, 2**31 - 2, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**64, -(2**64))
FLOATS = (-2.0, -1.5, -0.5, -0.0, 0.0, 0.5, 0.99, 1.0, 1.5, 2.0, 2.5, 1e9, 1e300, float("inf"), float("nan"))
VALUES = (None, True, False, *NUMBERS, *FLOATS, "", "a", "none", "high", "auto", "long enough", [], ["a"], {}, {"a": 1})


def outcome(call: Any) -> tuple[Any, ...]:
    report = Report()
    try:
        value = call(report)
    except DeckError as error:
        return "refused", error.message, error.param, error.code
    return repr(value), type(value), report.notes


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_the_short_cut_changes_nothing(field: Field) -> None:
    assert field.treatment is Treatment.MAPPED
    table = Table("test", (field,))
    for value in VALUES:
        if value is None:
            assert field.name not in Reader(Report()).read(table, {field.name: None})
            continue
        read = outcome(lambda report, value=value: Reader(report).read(table, {field.name: value}).get(field.name))
        assert read == outcome(lambda report, value=value: field.type.check(value, field.name, report)), value


def test_a_path_is_the_clients_own() -> None:
    table = Table("test", (Field.mapped("words", one_of("a"), "w"), Field.mapped("free", string())))
    found = Reader(Report()).read(table, {"w": "a", "free": "x"}, "outer")
    assert (found.path("words"), found.path("free"), found.path("none")) == ("outer.w", "outer.free", "none")
    found = Reader(Report()).read_with_extra(table, {"free": "x", "extra_body": {"words": "a"}}, protected=frozenset())
    assert (found.path("words"), found.path("free")) == ("extra_body.words", "free")


def test_two_places_that_disagree_are_both_named() -> None:
    table = Table("test", (Field.mapped("free", string(), "f"),))
    with pytest.raises(DeckError, match=r"'outer.free' and 'outer.f' say different things"):
        Reader(Report()).read(table, {"free": "x", "f": "y"}, "outer")
    with pytest.raises(DeckError, match=r"'outer.f' and 'outer.free' say different things"):
        Reader(Report()).read(table, {"f": "x", "free": "y"}, "outer")
    with pytest.raises(DeckError, match=r"'free' and 'extra_body.free' say different things"):
        Reader(Report()).read_with_extra(table, {"free": "x", "extra_body": {"free": "y"}}, protected=frozenset())
