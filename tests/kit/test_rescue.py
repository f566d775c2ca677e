"""The filter of calls: what it never does, what it says, and what it leaves to other parts of the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deck.canon.events import Event, Failed, Finish, FinishReason, PartDelta, PartEnd, PartStart, Progress, Start, Usage
from deck.canon.request import ChatRequest, Output, Tool, ToolChoice
from deck.errors import DeckError, ErrorKind
from deck.kit import BareJson, PythonCalls, TaggedFunction, TaggedJson, rescue_of
from deck.normalize.report import Report
from deck.testing.family import ASKED

TAGS = (TaggedJson("<tool_call>", "</tool_call>"), TaggedFunction())
CALL = '<tool_call>{"name": "read_note", "arguments": {"path": "a"}}</tool_call>'
DONE = Finish(FinishReason.STOP, Usage(1, 1))
PYTHON = PythonCalls("[", "")


def run(events: list[Event], request: ChatRequest = ASKED, report: Report | None = None) -> list[Event]:
    found = rescue_of(TAGS, request, report or Report(), "seed")
    assert found is not None
    return [made for event in events for made in found.feed(event)]


def said(*texts: str) -> list[Event]:
    return [Start(), PartStart(0, "text"), *(PartDelta(0, text) for text in texts), PartEnd(0), DONE]


@pytest.mark.parametrize(
    "request_",
    [
        replace(ASKED, tools=()),
        replace(ASKED, tool_choice=ToolChoice("none")),
        replace(ASKED, tools=(), tool_choice=ToolChoice("auto")),
    ],
)
def test_nothing_is_looked_for_where_no_tool_is_offered(request_: ChatRequest) -> None:
    assert rescue_of(TAGS, request_, Report(), "seed") is None


def test_a_narrowed_choice_narrows_what_may_be_called() -> None:
    asked = replace(ASKED, tool_choice=ToolChoice("required", ("now",)))
    events = run(said(CALL), asked)
    assert not any(isinstance(event, PartStart) and event.kind == "tool_call" for event in events)


def test_bare_json_is_not_looked_for_where_json_is_asked_for() -> None:
    asked = replace(ASKED, output=Output("json_object"))
    assert rescue_of((BareJson(),), asked, Report(), "seed") is None


def test_each_call_leaves_a_note_and_an_id_of_its_own() -> None:
    report = Report()
    events = run(said(CALL, CALL), report=report)
    ids = [event.tool_id for event in events if isinstance(event, PartStart) and event.kind == "tool_call"]
    assert len(set(ids)) == 2
    assert all(len(id) == 9 and id.isalnum() for id in ids)
    assert [(note.field, note.shown) for note in report.notes] == [("rescued_call", "text>tool_calls")] * 2
    assert run(said(CALL, CALL)) == events, "ids depend on the seed alone"
    assert events[-1] == Finish(FinishReason.TOOL_CALLS, Usage(1, 1))


def test_text_goes_on_behind_a_call() -> None:
    events = run(said("a\n", CALL, "\n\n", "b"))
    texts = [event.text for event in events if isinstance(event, PartDelta)]
    assert texts == ["a", '{"path":"a"}', "b"]
    assert [event.kind for event in events if isinstance(event, PartStart)] == ["text", "tool_call", "text"]


def test_a_call_that_had_only_begun_when_it_failed_is_left_out() -> None:
    error = Failed(DeckError(ErrorKind.UPSTREAM, "gone"))
    events = run([Start(), PartStart(0, "text"), PartDelta(0, "a\n<tool_call>{"), error])
    assert events[-1] is error
    assert "".join(event.text for event in events if isinstance(event, PartDelta)) == "a"


def test_progress_passes_at_any_time() -> None:
    moved = Progress("prompt")
    assert run([moved, Start(), moved])[0] is moved


def test_logprobs_of_text_that_was_held_back_come_with_it() -> None:
    one, two = {"token": "a"}, {"token": "b"}
    parts = [PartDelta(0, "x <", (one,)), PartDelta(0, "b> y", (two,))]
    events = run([Start(), PartStart(0, "text"), *parts, PartEnd(0), DONE])
    found = [entry for event in events if isinstance(event, PartDelta) for entry in event.logprobs]
    assert found == [one, two]


def test_logprobs_of_tokens_that_show_nothing_come_at_the_end() -> None:
    entry = {"token": "<think>"}
    for text, texts in (("", [""]), ("Hi", ["Hi", ""])):
        parts = [PartDelta(0, text), PartDelta(0, "", (entry,))]
        events = run([Start(), PartStart(0, "text"), *parts, PartEnd(0), DONE])
        deltas = [event for event in events if isinstance(event, PartDelta)]
        assert [event.text for event in deltas] == texts
        assert deltas[-1].logprobs == (entry,)
        assert sum(isinstance(event, PartStart) for event in events) == 1


def test_a_cut_call_is_left_out_and_noted() -> None:
    report = Report()
    cut = Finish(FinishReason.LENGTH, Usage(1, 1))
    events = run([*said('Hm.\n<tool_call>{"name": "read_')[:-1], cut], report=report)
    assert [event.text for event in events if isinstance(event, PartDelta)] == ["Hm."]
    assert events[-1] == cut
    assert "the limit cut a call" in report.notes[0].detail


CUT = Finish(FinishReason.LENGTH, Usage(1, 1))
BROKEN = Failed(DeckError(ErrorKind.UPSTREAM, "broke off"))


@pytest.mark.parametrize("end", [CUT, BROKEN], ids=["cut", "broken"])
@pytest.mark.parametrize(
    "text",
    [
        '{"id": 1, "title": "An order", "lines": [1, 2, 3',
        '{"name": "Alice", "age": 30}',
        "[see(appendix)](http://x) and then",
    ],
)
def test_what_only_begins_as_a_call_may_is_text_however_it_ends(text: str, end: Event) -> None:
    for size in (1, 7, 99):
        report = Report()
        found = rescue_of((BareJson(), PYTHON), ASKED, report, "seed")
        assert found is not None
        pieces = [text[place : place + size] for place in range(0, len(text), size)]
        events = [made for event in [*said(*pieces)[:-1], end] for made in found.feed(event)]
        assert "".join(event.text for event in events if isinstance(event, PartDelta)) == text
        assert report.notes == ()


def test_the_beginning_of_a_call_of_an_offered_tool_is_left_out_also_without_marks() -> None:
    report = Report()
    found = rescue_of((BareJson(),), ASKED, report, "seed")
    assert found is not None
    events = [made for event in [*said('{"name": "now", "argu')[:-1], CUT] for made in found.feed(event)]
    assert not [event for event in events if isinstance(event, PartDelta)]
    assert "the limit cut a call" in report.notes[0].detail


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "set", "n": 5}</tool_call>',
        '{"name": "set", "description": "the set", "n": 5}',
        '[set(**{"n": 5})]',
        "[set(n=1e999)]",
        '<tool_call>{"name": "set", "arguments": {"s": "\\ud83d"}}</tool_call>',
    ],
)
def test_what_would_lose_something_as_a_call_is_text(text: str) -> None:
    found = rescue_of((*TAGS, BareJson(), PYTHON), ASKED, Report(), "seed")
    assert found is not None
    events = [made for event in said(text) for made in found.feed(event)]
    assert [event.kind for event in events if isinstance(event, PartStart)] == ["text"]
    assert "".join(event.text for event in events if isinstance(event, PartDelta)) == text


LONG = 123456789012345678901


@pytest.mark.parametrize(
    "text",
    [
        f'<tool_call>{{"name": "set", "arguments": {{"n": {LONG}}}}}</tool_call>',
        f"<function=set>\n<parameter=n>\n{LONG}\n</parameter>\n</function>",
        f"[set(n={LONG})]",
    ],
)
def test_numbers_keep_their_digits(text: str) -> None:
    found = rescue_of((*TAGS, PYTHON), ASKED, Report(), "seed")
    assert found is not None
    events = [made for event in said(text) for made in found.feed(event)]
    assert [event.text for event in events if isinstance(event, PartDelta)] == [f'{{"n":{LONG}}}']


@pytest.mark.parametrize("kind", [5, True, {}, [5], None])
def test_a_schema_whose_type_is_none_decides_nothing(kind: object) -> None:
    asked = replace(ASKED, tools=(Tool("f", None, {"type": "object", "properties": {"n": {"type": kind}}}),))
    events = run(said("<function=f>\n<parameter=n>\n1\n</parameter>\n</function>"), asked)
    assert [event.text for event in events if isinstance(event, PartDelta)] == ['{"n":"1"}']


def test_a_call_of_a_name_that_is_not_offered_is_text_also_among_others() -> None:
    text = '<tool_call>{"name": "delete_all", "arguments": {}}{"name": "now", "arguments": {}}</tool_call>'
    events = run(said(text))
    assert [event.tool_name for event in events if isinstance(event, PartStart) and event.kind == "tool_call"] == [
        "now"
    ]
    assert '"delete_all"' in "".join(event.text for event in events if isinstance(event, PartDelta))


def thought(*after: Event, reason: FinishReason = FinishReason.STOP) -> list[Event]:
    start = [Start(), PartStart(0, "reasoning"), PartDelta(0, f"hm {CALL} ok"), PartEnd(0)]
    return [*start, *after, Finish(reason, Usage(1, 1))]


@pytest.mark.parametrize(
    ("after", "reason", "is_call"),
    [
        ([], FinishReason.STOP, True),
        ([], FinishReason.LENGTH, False),
        ([PartStart(1, "text"), PartDelta(1, "\n"), PartEnd(1)], FinishReason.STOP, True),
        ([PartStart(1, "text"), PartDelta(1, "Hi"), PartEnd(1)], FinishReason.STOP, False),
        (
            [PartStart(1, "tool_call", "id0000001", "now"), PartDelta(1, "{}"), PartEnd(1)],
            FinishReason.TOOL_CALLS,
            False,
        ),
    ],
)
def test_a_call_among_thoughts_counts_only_where_nothing_else_is_said(
    after: list[Event], reason: FinishReason, is_call: bool
) -> None:
    events = run(thought(*after, reason=reason))
    names = [event.tool_name for event in events if isinstance(event, PartStart) and event.kind == "tool_call"]
    assert ("read_note" in names) is is_call
    thoughts = "".join(event.text for event in events if isinstance(event, PartDelta))
    assert (CALL in thoughts) is not is_call


def test_the_same_call_is_sent_once_wherever_it_stands() -> None:
    given = [
        PartStart(0, "tool_call", "id0000001", "read_note"),
        PartDelta(0, '{"path": '),
        PartDelta(0, '"a"}'),
        PartEnd(0),
    ]
    text = [PartStart(1, "text"), PartDelta(1, CALL), PartEnd(1)]
    end = Finish(FinishReason.TOOL_CALLS, Usage(1, 1))
    for parts in ([*given, *text], [*text, *given]):
        report = Report()
        events = run([Start(), *parts, end], report=report)
        assert sum(isinstance(event, PartStart) for event in events) == 1
        assert any("sent once" in note.detail for note in report.notes)


def test_arguments_get_the_types_of_the_schema() -> None:
    properties = {
        "n": {"type": "integer"},
        "f": {"type": ["number", "null"]},
        "s": {"type": "string"},
        "u": {},
        "o": {"anyOf": [{"type": "object"}, {"type": "null"}]},
    }
    asked = replace(ASKED, tools=(Tool("f", None, {"type": "object", "properties": properties}),))
    values = {"n": "5", "f": "null", "s": "5", "u": "5", "o": '{"a": 1}', "more": "[1]"}
    body = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in values.items())
    events = run(said(f"<function=f>\n{body}</function>"), asked)
    [arguments] = [event.text for event in events if isinstance(event, PartDelta)]
    assert arguments == '{"n":5,"f":null,"s":"5","u":"5","o":{"a":1},"more":[1]}'


def test_answers_without_a_call_are_the_same_parts() -> None:
    events = run(said("Hello ", "there."))
    assert "".join(event.text for event in events if isinstance(event, PartDelta)) == "Hello there."
    assert events[-1] is DONE


def test_a_second_call_stays_text_where_the_client_takes_one() -> None:
    asked = replace(ASKED, parallel_tool_calls=False)
    events = run(said(CALL, " and ", CALL), asked)
    assert sum(isinstance(event, PartStart) and event.kind == "tool_call" for event in events) == 1
    assert events[-2] == PartEnd(1)
    assert CALL in "".join(event.text for event in events if isinstance(event, PartDelta))
