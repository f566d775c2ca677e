import pytest
from hypothesis import given
from hypothesis import strategies as st
from tapes.tapefile import Tape, tapes

from deck.canon.events import Event, Failed, Finish, FinishReason, PartDelta, PartEnd, PartStart, Progress, Start, Usage
from deck.canon.grammar import GrammarChecker, GrammarError
from deck.errors import DeckError, ErrorKind

WHOLE = [tape for tape in tapes() if '"finish"' in "".join(tape.lines[-1:])]
FAILED = Failed(DeckError(ErrorKind.UPSTREAM, "broke"))
FINISH = Finish(FinishReason.STOP, Usage(1, 1))
GOOD: list[Event] = [
    Start(),
    PartStart(0, "text"),
    PartDelta(0, "a"),
    PartEnd(0),
    PartStart(1, "reasoning"),
    PartEnd(1),
    FINISH,
]


def accepts(events: list[Event]) -> bool:
    checker = GrammarChecker()
    try:
        for event in events:
            checker.feed(event)
    except GrammarError:
        return False
    return checker.is_complete


def test_an_orderly_stream_is_accepted() -> None:
    assert accepts(GOOD)
    assert accepts([Start(), FINISH])


@pytest.mark.parametrize("stop", range(len(GOOD)))
def test_a_failure_may_end_it_anywhere(stop: int) -> None:
    assert accepts([*GOOD[:stop], FAILED])


@pytest.mark.parametrize("at", range(len(GOOD)))
def test_progress_may_stand_anywhere_before_the_end(at: int) -> None:
    assert accepts([*GOOD[:at], Progress("queue"), *GOOD[at:]])


BAD: dict[str, list[Event]] = {
    "nothing": [],
    "no end": GOOD[:-1],
    "no start": GOOD[1:],
    "two starts": [Start(), *GOOD],
    "finish at once": [FINISH],
    "two ends": [*GOOD, FINISH],
    "after the end": [*GOOD, Progress("load")],
    "after a failure": [Start(), FAILED, FINISH],
    "first index": [Start(), PartStart(1, "text"), PartEnd(1), FINISH],
    "index twice": [Start(), PartStart(0, "text"), PartEnd(0), PartStart(0, "text"), PartEnd(0), FINISH],
    "index skipped": [Start(), PartStart(0, "text"), PartEnd(0), PartStart(2, "text"), PartEnd(2), FINISH],
    "two open": [Start(), PartStart(0, "text"), PartStart(1, "text"), PartEnd(1), PartEnd(0), FINISH],
    "delta of no part": [Start(), PartDelta(0, "a"), FINISH],
    "delta of another": [Start(), PartStart(0, "text"), PartDelta(1, "a"), PartEnd(0), FINISH],
    "delta after the close": [Start(), PartStart(0, "text"), PartEnd(0), PartDelta(0, "a"), FINISH],
    "close of another": [Start(), PartStart(0, "text"), PartEnd(1), FINISH],
    "closed twice": [Start(), PartStart(0, "text"), PartEnd(0), PartEnd(0), FINISH],
    "finish while open": [Start(), PartStart(0, "text"), FINISH],
    "delta before the start": [PartDelta(0, "a"), *GOOD],
}


@pytest.mark.parametrize("events", BAD.values(), ids=BAD.keys())
def test_a_stream_out_of_order_is_refused(events: list[Event]) -> None:
    assert not accepts(events)


@given(st.sampled_from(WHOLE), st.data())
def test_a_tape_that_lost_an_event_is_refused(tape: Tape, data: st.DataObject) -> None:
    events = tape.events
    structure = [at for at, event in enumerate(events) if not isinstance(event, PartDelta | Progress)]
    del events[data.draw(st.sampled_from(structure))]
    assert not accepts(events)


@given(st.sampled_from(WHOLE), st.data())
def test_a_tape_with_an_event_twice_is_refused(tape: Tape, data: st.DataObject) -> None:
    events = tape.events
    structure = [at for at, event in enumerate(events) if not isinstance(event, PartDelta | Progress)]
    at = data.draw(st.sampled_from(structure))
    assert not accepts([*events[: at + 1], *events[at:]])


@given(st.sampled_from(WHOLE), st.data())
def test_a_tape_with_two_neighbours_swapped_is_refused(tape: Tape, data: st.DataObject) -> None:
    events = [event for event in tape.events if not isinstance(event, Progress)]
    borders = [
        at
        for at in range(len(events) - 1)
        if type(events[at]) is not type(events[at + 1]) and not isinstance(events[at], PartDelta)
    ]
    at = data.draw(st.sampled_from(borders))
    events[at], events[at + 1] = events[at + 1], events[at]
    assert not accepts(events)
