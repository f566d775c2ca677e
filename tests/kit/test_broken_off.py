"""An answer that breaks off: what was held back is let go, and what was open stays open, as it is incomplete.

A client takes the end of a call for a call that it may carry out.
"""

from __future__ import annotations

import pytest

from deck.canon.events import Event, Failed, PartDelta, PartEnd, PartKind, PartStart, Start
from deck.canon.grammar import GrammarChecker
from deck.canon.request import ChatRequest
from deck.errors import DeckError, ErrorKind
from deck.kit import HarmonyChannels, TaggedFunction, TaggedJson, ThinkTags, chain, rescue_of
from deck.normalize.report import Report
from deck.testing.family import ASKED

TAGS = (TaggedJson("<tool_call>", "</tool_call>"), TaggedFunction())
BROKEN = Failed(DeckError(ErrorKind.UPSTREAM, "it broke off"))


def run(events: list[Event], request: ChatRequest = ASKED) -> list[Event]:
    filters = (ThinkTags(Report()), HarmonyChannels(Report()), rescue_of(TAGS, request, Report(), "seed"))
    found, checker = chain(filters), GrammarChecker()
    assert found is not None
    made = [event for given in [Start(), *events, BROKEN] for event in found.feed(given)]
    for event in made:
        checker.feed(event)
    return made


def ends(events: list[Event]) -> int:
    return sum(isinstance(event, PartEnd) for event in events)


def text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, PartDelta))


@pytest.mark.parametrize("kind", ["text", "reasoning"])
@pytest.mark.parametrize("said", ["Let me", "Let me ", "Let me\n\n", "a < b", "<thi", "Let me <tool", "<|chan"])
def test_a_text_stays_open_and_whole(kind: PartKind, said: str) -> None:
    for size in (1, 3, 100):
        pieces = [PartDelta(0, said[place : place + size]) for place in range(0, len(said), size)]
        made = run([PartStart(0, kind), *pieces])
        assert ends(made) == 0
        assert text(made) == said
        assert made[-1] is BROKEN


def test_a_call_stays_open() -> None:
    made = run([PartStart(0, "tool_call", "abcdefghi", "read_note"), PartDelta(0, '{"path"')])
    assert ends(made) == 0
    assert text(made) == '{"path"'


def test_a_call_behind_one_that_was_found_in_the_text_stays_open() -> None:
    found = '<tool_call>{"name": "read_note", "arguments": {"path": "a"}}</tool_call>'
    call = PartStart(1, "tool_call", "abcdefghi", "read_note")
    made = run([PartStart(0, "text"), PartDelta(0, found), PartEnd(0), call, PartDelta(1, '{"pa')])
    assert ends(made) == 1
    assert text(made) == '{"path":"a"}{"pa'


def test_a_text_that_was_over_is_closed() -> None:
    made = run([PartStart(0, "text"), PartDelta(0, "Let me"), PartEnd(0)])
    assert ends(made) == 1
    assert text(made) == "Let me"


def test_the_beginning_of_a_call_in_the_text_is_not_shown() -> None:
    made = run([PartStart(0, "text"), PartDelta(0, 'Let me <tool_call>{"name": "read_note", "argu')])
    assert ends(made) == 0
    assert text(made).strip() == "Let me"
