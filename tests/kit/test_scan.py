"""What of a text is text and what calls: quoting, bounds, and how much work it is."""

from __future__ import annotations

import pytest

from deck.kit import Found, Grammar, Stray, TaggedFunction, TaggedJson, WrittenCall
from deck.kit.cursor import Cursor
from deck.kit.scan import LONGEST_CALL, MOST_TRIES, Match, Scan, rules_of

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
TAGGED = TaggedJson("<tool_call>", "</tool_call>")


def scanned(text: str, *syntaxes: object, size: int = 1 << 30) -> list[str | Match]:
    """Return the pieces of a text, neighbouring text joined."""
    scan = Scan(rules_of(tuple(syntaxes) or (TAGGED,)))  # type: ignore[arg-type]  # tests pass syntaxes only
    found: list[str | Match] = []
    pieces = [piece for place in range(0, len(text), size) for piece in scan.more(text[place : place + size])]
    for piece in (*pieces, *scan.end()):
        if isinstance(piece, str) and found and isinstance(found[-1], str):
            found[-1] += piece
        else:
            found.append(piece)
    return found


def kinds(text: str, *syntaxes: object) -> str:
    """Return the pieces of a text as letters: t for text, c for a call; they are the same however it is cut."""
    shown = {
        "".join("t" if isinstance(piece, str) else "c" for piece in scanned(text, *syntaxes, size=n))
        for n in (1, 5, 99)
    }
    assert len(shown) == 1
    return shown.pop()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (CALL, "c"),
        (f"a {CALL} b", "tct"),
        (f"{CALL}\n{CALL}", "cc"),
        (f"```\n{CALL}\n```", "t"),
        (f"~~~\n{CALL}", "tc"),
        (f"```x``` {CALL}", "tc"),
        (f"```\ncode\n```\n{CALL}", "tc"),
        (f"`{CALL}`", "t"),
        (f"`a {CALL}`", "t"),
        (f"`a` {CALL}", "tc"),
        (f"``a ` {CALL}``", "t"),
        (f"a ` b\n{CALL}", "tc"),
        (f"a ` b {CALL}", "t"),
        (f"`<tool_call>\n{CALL[11:]}` {CALL}", "tc"),
        (f"```` {CALL}", "t"),
        ("<tool_call> is a tag", "t"),
        (CALL[:-1], "t"),
        (f"use `a`\n{CALL}", "tc"),
        (f"use `\n{CALL}", "tc"),
        (f"<tool_call>{CALL}", "tc"),
    ],
)
def test_calls_and_what_only_looks_like_them(text: str, shown: str) -> None:
    assert kinds(text) == shown


def test_text_is_not_held_back() -> None:
    """Only what may be the beginning of a call waits, and the line breaks before it."""
    scan = Scan(rules_of((TAGGED,)))
    assert scan.more("Hello") == ["Hello"]
    assert scan.more(" you ") == [" you "]
    assert scan.more("and\n") == ["and"]
    assert scan.more("there <") == ["\nthere "]
    assert scan.more("b> <tool") == ["<b> "]
    assert scan.more("box>") == ["<toolbox>"]
    assert not scan.is_pending


def test_the_end_of_a_part_starts_anew() -> None:
    scan = Scan(rules_of((TAGGED,)))
    scan.more("```")
    scan.end()
    assert isinstance(scan.more(f"{CALL} ")[0], Match)


def test_a_call_that_is_cut_is_taken_back() -> None:
    scan = Scan(rules_of((TAGGED,)))
    assert scan.more('Wait.\n<tool_call>{"na') == ["Wait."]
    assert scan.is_pending
    assert scan.cut() == ([], '\n<tool_call>{"na')
    assert scan.end() == []


def test_what_is_no_call_is_let_go_where_the_text_is_cut() -> None:
    """It was not read again since its first character; quoted, it never was a call."""
    scan = Scan(rules_of((TAGGED,)))
    scan.more("a <tool_call>")
    scan._due = scan._look = 1000
    assert scan.more("is one") == []
    assert scan.cut() == (["<tool_call>is one"], "")
    assert scan.more("a `<tool_call>") == ["a `"]
    assert scan.cut() == (["<tool_call>"], "")


def test_the_longest_call_is_read_and_a_longer_one_is_text() -> None:
    def call(length: int) -> str:
        head, tail = '<tool_call>{"name": "f", "arguments": {"a": "', '"}}</tool_call>'
        return head + "x" * (length - len(head) - len(tail)) + tail

    for size in (4096, 1 << 30):
        assert [type(piece) for piece in scanned(call(LONGEST_CALL), size=size)] == [Match]
        assert scanned(call(LONGEST_CALL + 1), size=size) == [call(LONGEST_CALL + 1)]


def test_a_text_with_too_many_false_beginnings_is_about_calls() -> None:
    few, many = "<tool_call>" * (MOST_TRIES - 1), "<tool_call>" * MOST_TRIES
    assert [type(piece) for piece in scanned(few + CALL)] == [str, Match]
    assert scanned(many + CALL) == [many + CALL]


class _Counting(Grammar):
    def __init__(self) -> None:
        super().__init__(("<tool_call>",), ("}",))
        self.read_in_all = 0

    def read(self, text: str, *, is_end: bool) -> Found | bool:
        self.read_in_all += len(text)
        return super().read(text, is_end=is_end)

    def calls(self, cursor: Cursor) -> list[WrittenCall]:
        return TAGGED.calls(cursor)


@pytest.mark.parametrize("rest", ["}", "{}", "x", "</tool_call>"])
def test_a_long_call_is_not_read_again_and_again(rest: str) -> None:
    """However often it may have ended, all readings together cost a small multiple of its length."""
    counting = _Counting()
    text = '<tool_call>{"name": "' + rest * (100_000 // len(rest))
    scanned(text, counting, size=3)
    assert counting.read_in_all <= 24 * len(text)


def test_many_beginnings_cost_little() -> None:
    counting = _Counting()
    text = '<tool_call>{"' * 20_000
    scanned(text, counting, size=64)
    assert counting.read_in_all <= MOST_TRIES * LONGEST_CALL


def test_two_syntaxes_of_one_opener_are_tried_in_their_order() -> None:
    text = "<tool_call><function=f></function></tool_call>"
    assert kinds(text, TAGGED, TaggedFunction()) == "c"
    assert kinds(CALL, TaggedFunction(), TAGGED) == "c"


def test_marks_that_mean_nothing_are_found() -> None:
    [before, match] = scanned("done <end>", Stray("<end>"))
    assert before == "done "
    assert isinstance(match, Match)
    assert match.found == Found((), 5)
    assert match.text == "<end>"
