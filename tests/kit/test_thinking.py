"""Thoughts in the text: where they count, what is trimmed, and what stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deck.canon.answer import Fold
from deck.canon.events import Event, Finish, FinishReason, PartDelta, PartEnd, PartStart, Start, Usage
from deck.canon.grammar import GrammarChecker
from deck.canon.request import Reasoning, Text, ToolCall
from deck.kit import BlockMarks, HarmonyChannels, ThinkTags, block_marks, think_tags
from deck.normalize.report import Report

Make = Callable[[Report], ThinkTags | HarmonyChannels | BlockMarks]
BLOCKS = block_marks({"<think|>": "reasoning", "<say|>": "text", "<say|>\n": "text"}, ("<end|>",))
HEAD = "<|channel|>analysis<|message|>"


def parts(make: Make, text: str, size: int = 1, report: Report | None = None) -> list[tuple[str, str]]:
    found, checker, fold = make(report or Report()), GrammarChecker(), Fold()
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    events: list[Event] = [Start(), PartStart(0, "text"), *(PartDelta(0, piece) for piece in pieces), PartEnd(0)]
    for event in [*events, Finish(FinishReason.STOP, Usage(1, 1))]:
        for made in found.feed(event):
            checker.feed(made)
            fold.feed(made)
    return [(type(part).__name__, part.text) for part in fold.answer().parts if isinstance(part, Text | Reasoning)]


@pytest.mark.parametrize(
    ("make", "text", "wanted"),
    [
        (ThinkTags, "<think>\nhm, ok\n</think>\n\nHello", [("Reasoning", "hm, ok"), ("Text", "Hello")]),
        (ThinkTags, "Hello <think> x", [("Text", "Hello <think> x")]),
        (ThinkTags, "  <think>a</think><think>b</think>c", [("Reasoning", "ab"), ("Text", "c")]),
        (ThinkTags, "</think>\n\nHi", [("Text", "Hi")]),
        (ThinkTags, "<think>never ends\n", [("Reasoning", "never ends")]),
        (ThinkTags, "<thin", [("Text", "<thin")]),
        (ThinkTags, "  \n plain", [("Text", "  \n plain")]),
        (ThinkTags, "<think></think>x", [("Text", "x")]),
        (ThinkTags, "<think>a\n\nb </th x</think>y", [("Reasoning", "a\n\nb </th x"), ("Text", "y")]),
        (think_tags(("[A]", "[/A]"), ("<b>", "</b>")), "[A]x[/A]y", [("Reasoning", "x"), ("Text", "y")]),
        (
            HarmonyChannels,
            f"{HEAD}hm<|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>",
            [("Reasoning", "hm"), ("Text", "Hi")],
        ),
        (HarmonyChannels, "plain <|end|> text <|chan", [("Text", "plain <|end|> text <|chan")]),
        (HarmonyChannels, "<|channel|>weird<|message|>x", [("Text", "<|channel|>weird<|message|>x")]),
        (HarmonyChannels, "<|channel|>" + "a" * 300, [("Text", "<|channel|>" + "a" * 300)]),
        (HarmonyChannels, f"{HEAD}cut", [("Reasoning", "cut")]),
        (BLOCKS, "<think|>hm<end|><say|>Hi<end|>", [("Reasoning", "hm"), ("Text", "Hi")]),
        (BLOCKS, "<say|>\nHi", [("Text", "Hi")]),
        (BLOCKS, "a <end|> b <th", [("Text", "a <end|> b <th")]),
    ],
)
def test_thoughts_and_text(make: Make, text: str, wanted: list[tuple[str, str]]) -> None:
    for size in (1, 2, 7, 1000):
        assert parts(make, text, size) == wanted, size


def test_one_note_says_so_and_none_where_nothing_was_done() -> None:
    report = Report()
    parts(ThinkTags, "<think>a</think><think>b</think>c", report=report)
    assert [(note.field, note.shown) for note in report.notes] == [("leaked_thinking", "text>reasoning")]
    report = Report()
    parts(ThinkTags, "a <think> b", report=report)
    assert not report.notes


def test_thoughts_stream_as_they_come() -> None:
    found = ThinkTags(Report())
    events = [
        made for event in [Start(), PartStart(0, "text"), PartDelta(0, "<think>one two")] for made in found.feed(event)
    ]
    assert PartDelta(0, "one two") in events


def test_other_parts_pass() -> None:
    found, fold = ThinkTags(Report()), Fold()
    events: list[Event] = [
        Start(),
        PartStart(0, "reasoning"),
        PartDelta(0, "<think>"),
        PartEnd(0),
        PartStart(1, "text"),
        PartDelta(1, "Hi"),
        PartEnd(1),
        PartStart(2, "tool_call", "id0000001", "now"),
        PartDelta(2, "{}"),
        PartEnd(2),
        Finish(FinishReason.TOOL_CALLS, Usage(1, 1)),
    ]
    for event in events:
        for made in found.feed(event):
            fold.feed(made)
    assert fold.answer().parts == (Reasoning("<think>"), Text("Hi"), ToolCall("id0000001", "now", "{}"))


def test_logprobs_come_with_the_text() -> None:
    entry = {"token": "x"}
    found = ThinkTags(Report())
    events: list[Event] = [
        Start(),
        PartStart(0, "text"),
        PartDelta(0, "<thi", (entry,)),
        PartDelta(0, "s", (entry,)),
        PartEnd(0),
    ]
    made = [item for event in events for item in found.feed(event)]
    assert sum(len(item.logprobs) for item in made if isinstance(item, PartDelta)) == 2


def test_the_logprobs_of_tokens_that_show_nothing_come_at_the_end() -> None:
    """Of an answer that the limit ended in its first tag they are all that there is."""
    entry, end = {"token": "<think>"}, Finish(FinishReason.LENGTH, Usage(1, 1))
    begun: list[Event] = [Start(), PartStart(0, "text"), PartDelta(0, "", (entry,)), PartEnd(0)]
    found = ThinkTags(Report())
    assert [item for event in [*begun, end] for item in found.feed(event)] == [*begun, end]
    found = ThinkTags(Report())
    events = [PartStart(0, "text"), PartDelta(0, "<think>a</think>b"), PartDelta(0, "", (entry,)), PartEnd(0), end]
    made = [item for event in events for item in found.feed(event)]
    assert [item.index for item in made if isinstance(item, PartStart)] == [0, 1]
    assert [item.index for item in made if isinstance(item, PartDelta) and item.logprobs] == [1]


def test_the_logprobs_of_tags_that_end_a_text_come_with_the_next() -> None:
    """Also where that text is let through as it is, and without a piece of the first one."""
    entry = {"token": "</think>"}
    found = ThinkTags(Report())
    events: list[Event] = [
        PartStart(0, "text"),
        PartDelta(0, "<think>hm"),
        PartDelta(0, "</think>", (entry,)),
        PartEnd(0),
        PartStart(1, "text"),
        PartDelta(1, "plain"),
        PartDelta(1, " text"),
        PartEnd(1),
    ]
    made = [piece for event in events for piece in found.feed(event)]
    assert made == [
        PartStart(0, "reasoning"),
        PartDelta(0, "hm"),
        PartEnd(0),
        PartStart(1, "text"),
        PartDelta(1, "plain", (entry,)),
        PartDelta(1, " text"),
        PartEnd(1),
    ]


def test_a_text_that_cannot_hold_thoughts_passes_as_it_is() -> None:
    events: list[Event] = [PartStart(0, "text"), PartDelta(0, "Hi"), PartDelta(0, " <think>"), PartEnd(0)]
    found = ThinkTags(Report())
    made = [piece for event in events for piece in found.feed(event)]
    assert made == events
    assert [piece is event for piece, event in zip(made, events, strict=True)] == [True, True, True, False]


def test_tags_may_be_any_sequence() -> None:
    found = ThinkTags(Report(), [("[A]", "[/A]")])
    assert [*found.feed(PartStart(0, "text")), *found.feed(PartDelta(0, "[A]x[/A]"))] == [
        PartStart(0, "reasoning"),
        PartDelta(0, "x"),
    ]
