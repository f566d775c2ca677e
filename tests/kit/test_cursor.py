"""Reading a text that may not be complete."""

from __future__ import annotations

import pytest

from deck.kit.cursor import Cursor, NeedsMore, NotACall, Tag


def cursor(text: str, *, is_end: bool = False) -> Cursor:
    return Cursor(text, is_end=is_end)


def test_a_literal_is_there_may_come_or_is_not_there() -> None:
    assert cursor("<a>x").take("<a>") == "<a>"
    with pytest.raises(NeedsMore):
        cursor("<").take("<a>")
    with pytest.raises(NotACall):
        cursor("<", is_end=True).take("<a>")
    with pytest.raises(NotACall):
        cursor("<b").take("<a>")


def test_the_first_literal_is_preferred_while_it_may_come() -> None:
    with pytest.raises(NeedsMore):
        cursor("```").maybe("```json", "```")
    assert cursor("```", is_end=True).maybe("```json", "```") == "```"
    assert cursor("```{").maybe("```json", "```") == "```"


def test_text_before_the_nearest_literal() -> None:
    place = cursor("ab;c,d")
    assert place.until(",", ";") == "ab"
    assert place.until(",") == "c"
    with pytest.raises(NeedsMore):
        place.until(",")
    assert cursor("rest", is_end=True).rest(",") == "rest"


@pytest.mark.parametrize("raw", ['{"a": "}"}', '{"a": "\\"}"}', '[{"a": []}]', '{"a": "</x>"}'])
def test_a_value_ends_where_its_own_bracket_closes(raw: str) -> None:
    place = cursor(raw + "}]rest")
    assert place.value()[1] == raw
    for end in range(1, len(raw)):
        with pytest.raises(NeedsMore):
            cursor(raw[:end]).value()


@pytest.mark.parametrize("text", ["x", '"a"', "{a: 1} ", "{]} ", "[" * 200, '{"a": tru} '])
def test_what_is_no_value(text: str) -> None:
    with pytest.raises(NotACall):
        cursor(text).value()


def test_a_name_may_go_on() -> None:
    with pytest.raises(NeedsMore):
        cursor("read").name()
    assert cursor("read", is_end=True).name() == "read"
    assert cursor("read-it.now:1 x").name() == "read-it.now:1"


def test_a_tag_is_read_whole() -> None:
    tag = Tag("<f=", r"(\w+)", r"\w*")
    assert cursor("<f=a>x").tag(tag)[1] == "a"
    for begun in ("", "<", "<f", "<f=", "<f=a"):
        with pytest.raises(NeedsMore):
            cursor(begun).tag(tag)
        with pytest.raises(NotACall):
            cursor(begun, is_end=True).tag(tag)
    for other in ("<g=a>", "<g", "x", "<f= b", "<f=a b", "<f=" + "a" * 600):
        with pytest.raises(NotACall):
            cursor(other).tag(tag)
