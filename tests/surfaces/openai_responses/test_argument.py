"""The input of a custom call, decoded from its JSON as it comes: the same value for every slicing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deck_plugins.surfaces.openai_responses.argument import StringArgument


def decoded(pieces: list[str]) -> str:
    argument = StringArgument("input")
    return "".join(argument.feed(piece) for piece in pieces) + argument.end()


def slices(text: str, step: int) -> list[str]:
    return [text[at : at + step] for at in range(0, len(text), step)]


CASES = {
    "plain": ('{"input":"abc"}', "abc"),
    "spaces": (' { "input" : "abc" } ', "abc"),
    "empty": ('{"input":""}', ""),
    "escapes": (r'{"input":"a\"b\\c\/d\b\f\n\r\t"}', 'a"b\\c/d\b\f\n\r\t'),
    "unicode escapes": (r'{"input":"\u0041\u00e9\u20AC"}', "Aé€"),
    "a surrogate pair": (r'{"input":"x\ud83c\udf0dy"}', "x🌍y"),
    "two pairs": (r'{"input":"\ud83c\udf0d\uD83C\uDF0D"}', "🌍🌍"),
    "a lone high half": (r'{"input":"x\ud83cy"}', "x\ufffdy"),
    "a lone high half at the end": (r'{"input":"x\ud83c"}', "x\ufffd"),
    "a high half before an escape": (r'{"input":"\ud83c\n"}', "\ufffd\n"),
    "a lone low half": (r'{"input":"x\udf0dy"}', "x\ufffdy"),
    "two high halves": (r'{"input":"\ud83c\ud83c\udf0d"}', "\ufffd🌍"),
    "an unknown escape": (r'{"input":"a\qb"}', r"a\qb"),
    "no hexadecimal": (r'{"input":"a\u00zzb"}', r"a\u00zzb"),
    "an underscore is no digit": (r'{"input":"\u0_41"}', r"\u0_41"),
    "characters beyond the first plane": ('{"input":"🌍é"}', "🌍é"),
    "a raw line break": ('{"input":"a\nb"}', "a\nb"),
    "an escaped key": (r'{"\u0069nput":"a"}', "a"),
    "behind other members": ('{"a":1,"b":{"input":"no","c":["}"]},"d":"x,y","e":null,"input":"yes"}', "yes"),
    "before other members": ('{"input":"yes","b":"no"}', "yes"),
    "cut": ('{"input":"ab', "ab"),
    "cut in an escape": (r'{"input":"ab\u00', "ab"),
    "cut in a pair": (r'{"input":"ab\ud83c', "ab\ufffd"),
    "cut before the value": ('{"input":', '{"input":'),
    "cut in the key": ('{"inp', '{"inp'),
    "another member": ('{"patch":"x"}', '{"patch":"x"}'),
    "no string": ('{"input":5}', '{"input":5}'),
    "an object": ('{"input":{"a":"b"}}', '{"input":{"a":"b"}}'),
    "an array": ("[1]", "[1]"),
    "a bare text": ("*** Begin Patch", "*** Begin Patch"),
    "an empty object": ("{}", "{}"),
    "nothing": ("", ""),
    "no colon": ('{"input" "x"}', '{"input" "x"}'),
    "no quotes": ("{input:1}", "{input:1}"),
}


@pytest.mark.parametrize(("text", "value"), CASES.values(), ids=CASES)
def test_any_slicing_gives_the_same_value(text: str, value: str) -> None:
    for step in (1, 2, 3, 5, 7, 1000):
        assert decoded(slices(text, step)) == value


def test_the_value_comes_as_soon_as_it_can() -> None:
    argument = StringArgument("input")
    assert [argument.feed(piece) for piece in ('{"in', 'put": "a', "b\\", "n", 'c", ', "}")] == [
        "",
        "a",
        "b",
        "\n",
        "c",
        "",
    ]


@settings(max_examples=300, deadline=None)
@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.booleans(),
    st.dictionaries(st.text(max_size=4).filter(lambda key: key != "input"), st.text(max_size=4), max_size=3),
    st.lists(st.integers(1, 8), min_size=1),
)
def test_any_string_comes_back(value: str, ascii_: bool, others: dict[str, str], steps: list[int]) -> None:
    text = json.dumps({**others, "input": value}, ensure_ascii=ascii_)
    pieces, at = [], 0
    while at < len(text):
        step = steps[len(pieces) % len(steps)]
        pieces.append(text[at : at + step])
        at += step
    assert decoded(pieces) == value


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='{}[]":,\\u0d83inputab ', max_size=40), st.integers(1, 7))
def test_garbage_never_breaks_and_never_depends_on_slicing(text: str, step: int) -> None:
    whole = decoded([text])
    assert decoded(slices(text, step)) == whole
    whole.encode()
