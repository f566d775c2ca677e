import pytest
from tapes.tapefile import Tape, tapes

from deck.canon.answer import Answer, Fold, is_json_object
from deck.canon.events import Event, Failed, Finish, FinishReason, PartDelta, PartEnd, PartStart, Progress, Start, Usage
from deck.canon.request import Reasoning, Text, ToolCall
from deck.errors import DeckError, ErrorKind, Overrun

TAPES = tapes()
WHOLE = [tape for tape in TAPES if '"finish"' in "".join(tape.lines[-1:])]
BROKEN = [tape for tape in TAPES if '"failed"' in "".join(tape.lines[-1:])]


def folded(*events: Event) -> Answer:
    fold = Fold()
    for event in events:
        fold.feed(event)
    return fold.answer()


def part(index: int, start: PartStart, *texts: str) -> list[Event]:
    return [start, *(PartDelta(index, text) for text in texts), PartEnd(index)]


def end(reason: FinishReason = FinishReason.STOP) -> Finish:
    return Finish(reason, Usage(3, 2))


@pytest.mark.parametrize("tape", WHOLE, ids=lambda tape: tape.name)
def test_an_answer_has_the_text_that_was_streamed(tape: Tape) -> None:
    answer = folded(*tape.events)
    deltas = "".join(event.text for event in tape.events if isinstance(event, PartDelta))
    texts = [part.arguments if isinstance(part, ToolCall) else part.text for part in answer.parts]
    if not answer.cut_calls:
        assert "".join(texts).replace("{}", "") == deltas.replace("{}", "")
    assert answer.finish == tape.events[-1]
    assert answer.fingerprint


@pytest.mark.parametrize("tape", BROKEN, ids=lambda tape: tape.name)
def test_a_failure_is_raised(tape: Tape) -> None:
    with pytest.raises(DeckError):
        folded(*tape.events)


def test_logprobs_are_those_of_the_whole_and_of_each_part() -> None:
    one, two, three = {"token": "a"}, {"token": "b"}, {"token": "c"}
    answer = folded(
        Start(),
        *part(0, PartStart(0, "reasoning")),
        PartStart(1, "text"),
        PartDelta(1, "a", (one,)),
        PartDelta(1, "", (two,)),
        PartEnd(1),
        *part(2, PartStart(2, "tool_call", "idididid1", "f"), "{}"),
        PartStart(3, "text"),
        PartDelta(3, "c", (three,)),
        PartEnd(3),
        end(),
    )
    assert answer.logprobs == (one, two, three)
    assert answer.part_logprobs == ((one, two), (), (three,))
    assert len(answer.part_logprobs) == len(answer.parts)


def test_a_text_of_nothing_but_logprobs_is_a_part_and_one_of_nothing_is_none() -> None:
    """Else they would be nobody's where those of thoughts are left out."""
    entry = {"token": "<think>"}
    answer = folded(Start(), PartStart(0, "text"), PartDelta(0, "", (entry,)), PartEnd(0), end())
    assert (answer.parts, answer.part_logprobs) == ((Text(""),), ((entry,),))
    assert folded(Start(), *part(0, PartStart(0, "text"), ""), end()).parts == ()


def test_what_a_failure_carries_is_what_is_raised() -> None:
    error = DeckError(ErrorKind.CONTEXT_LENGTH, "too long", limits=Overrun(9, 8))
    with pytest.raises(DeckError) as caught:
        folded(Start(), Failed(error))
    assert caught.value is error


def test_parts_keep_their_order_and_kind() -> None:
    answer = folded(
        Start("m", "b1"),
        Progress("prompt", {"processed": 1}),
        *part(0, PartStart(0, "text"), "a", "b"),
        *part(1, PartStart(1, "reasoning"), "c"),
        *part(2, PartStart(2, "tool_call", "idididid1", "f"), '{"a"', ":1}"),
        *part(3, PartStart(3, "text"), "d"),
        end(FinishReason.TOOL_CALLS),
    )
    assert answer.parts == (Text("ab"), Reasoning("c"), ToolCall("idididid1", "f", '{"a":1}'), Text("d"))
    assert answer.fingerprint == "b1"
    assert answer.cut_calls == ()


def test_a_part_without_text_leaves_nothing() -> None:
    assert folded(Start(), *part(0, PartStart(0, "text"), ""), end()).parts == ()


def test_logprobs_are_collected_over_all_parts() -> None:
    events: list[Event] = [Start()]
    for index, token in enumerate("ab"):
        delta = PartDelta(index, token, ({"token": token},))
        events += [PartStart(index, "text" if index else "reasoning"), delta, PartEnd(index)]
    assert folded(*events, end()).logprobs == ({"token": "a"}, {"token": "b"})


def test_a_call_that_the_limit_cut_comes_back_as_text() -> None:
    call = PartStart(0, "tool_call", "idididid1", "f")
    answer = folded(Start(), *part(0, call, '{"a": "b'), end(FinishReason.LENGTH))
    assert answer.parts == (Text('f({"a": "b'),)
    assert answer.cut_calls == ("f",)


def test_a_whole_call_stays_a_call_at_the_limit() -> None:
    call = PartStart(0, "tool_call", "idididid1", "f")
    answer = folded(Start(), *part(0, call, '{"a":1}'), end(FinishReason.LENGTH))
    assert answer.parts == (ToolCall("idididid1", "f", '{"a":1}'),)
    assert answer.cut_calls == ()


def test_arguments_that_are_no_json_stay_as_they_are_when_nothing_was_cut() -> None:
    call = PartStart(0, "tool_call", "idididid1", "f")
    answer = folded(Start(), *part(0, call, "{oops"), end(FinishReason.TOOL_CALLS))
    assert answer.parts == (ToolCall("idididid1", "f", "{oops"),)


@pytest.mark.parametrize(
    ("text", "is_object"),
    [("{}", True), (' {"a":[1]}\n', True), ("[]", False), ("1", False), ('"{}"', False), ("", False), ('{"a"', False)],
)
def test_only_a_whole_object_is_one(text: str, is_object: bool) -> None:
    assert is_json_object(text) is is_object
