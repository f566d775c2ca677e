"""Tools and a form for the answer at once: what is sent, and what becomes of the answer."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from app_support import app
from chat_automaton import check

from deck.answer_tool import AnswerText, with_answer_tool
from deck.canon.events import Event, Failed, Finish, FinishReason, PartDelta, PartEnd, PartStart, Start, Usage
from deck.canon.grammar import GrammarChecker
from deck.canon.request import ChatRequest, Message, Output, Text, Tool, ToolChoice
from deck.contracts import Facts
from deck.errors import DeckError, ErrorKind
from deck.normalize.report import Report
from deck.testing.fake_llama import Reply, say
from deck.testing.frames import done, finish, role, tool, usage

FORM = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
OBJECT, SCHEMA = Output("json_object"), Output("json_schema", FORM, "form")
FACTS = Facts(template_caps={"supports_tools": True})
CHANGED, IGNORED = "x-athena-compatibility-changed", "x-athena-compatibility-ignored"


def request(output: Output | None, choice: ToolChoice | None = None, names: tuple[str, ...] = ("now",)) -> ChatRequest:
    return ChatRequest(model="m1", messages=(), tools=tuple(map(Tool, names)), tool_choice=choice, output=output)


@pytest.mark.parametrize("output", [OBJECT, SCHEMA])
@pytest.mark.parametrize("choice", [None, ToolChoice("auto"), ToolChoice("auto", ("now",))])
def test_the_form_is_one_more_tool(output: Output, choice: ToolChoice | None) -> None:
    report = Report()
    sent, name = with_answer_tool(request(output, choice), FACTS, report)
    assert name == "answer"
    assert [item.name for item in sent.tools] == ["now", "answer"]
    assert sent.tools[1].parameters == (output.schema or {"type": "object"})
    assert sent.output is None
    assert sent.tool_choice == ToolChoice("required", ("now", "answer") if choice and choice.names else None)
    assert report.headers() == [("X-Athena-Compatibility-Changed", "response_format>tools")]


def test_a_template_without_tools_holds_no_form() -> None:
    report, facts = Report(), Facts(template_caps={"supports_tools": False})
    sent, name = with_answer_tool(request(SCHEMA, ToolChoice("auto", ("now",))), facts, report)
    assert name == "answer"
    assert sent.tool_choice == ToolChoice("auto", ("now", "answer"))
    assert dict(report.headers())["X-Athena-Compatibility-Ignored"] == "response_format"


def test_its_name_is_its_own() -> None:
    sent, name = with_answer_tool(request(OBJECT, names=("answer", "answer_2")), FACTS, Report())
    assert name == "answer_3" == sent.tools[-1].name


@pytest.mark.parametrize("names", [None, ("now",)])
def test_a_demanded_call_leaves_the_form_out(names: tuple[str, ...] | None) -> None:
    report, choice = Report(), ToolChoice("required", names)
    sent, name = with_answer_tool(request(SCHEMA, choice), FACTS, report)
    assert (sent.output, sent.tool_choice, name) == (None, choice, "")
    assert report.headers() == [("X-Athena-Compatibility-Changed", "response_format>tool_choice")]


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        ({"type": ["object"]}, {"type": "object"}),
        ({"properties": {"x": {}}}, {"type": "object", "properties": {"x": {}}}),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "object"}}},
            {"type": "object", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "object"}}},
        ),
    ],
)
def test_what_means_an_object_is_one(schema: dict[str, Any], sent: dict[str, Any]) -> None:
    made, name = with_answer_tool(request(Output("json_schema", schema, "form")), FACTS, Report())
    assert name
    assert made.tools[-1].parameters == sent


def test_an_answer_that_is_begun_keeps_its_form() -> None:
    report = Report()
    begun = replace(request(SCHEMA), messages=(Message("assistant", (Text("{"),), "messages[0]"),))
    assert with_answer_tool(begun, FACTS, report) == (begun, "")
    assert report.headers() == [("X-Athena-Compatibility-Ignored", "tools")]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {"anyOf": [{"type": "object"}]},
        {},
        {"$ref": "#/$defs/a"},
        {"$ref": "#/$defs/a", "$defs": []},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"$ref": "https://example.org/"},
    ],
)
def test_a_form_that_no_tool_can_have_is_reported(schema: dict[str, Any]) -> None:
    report, asked = Report(), request(Output("json_schema", schema, "form"))
    assert with_answer_tool(asked, FACTS, report) == (asked, "")
    assert report.headers() == [("X-Athena-Compatibility-Ignored", "tools")]


@pytest.mark.parametrize(
    "asked",
    [request(None), request(Output("grammar", grammar="root ::= [a]")), request(SCHEMA, ToolChoice("none"))],
    ids=["no form", "a grammar", "no calls"],
)
def test_nothing_is_changed_without_both(asked: ChatRequest) -> None:
    report = Report()
    assert with_answer_tool(asked, FACTS, report) == (asked, "")
    assert not report.notes


def called(index: int, name: str, text: str = '{"x":1}') -> Iterator[Event]:
    yield PartStart(index, "tool_call", f"id{index}", name)
    yield PartDelta(index, text)
    yield PartEnd(index)


def filtered(*parts: Iterator[Event], reason: FinishReason = FinishReason.TOOL_CALLS) -> tuple[list[Event], Report]:
    report, checker = Report(), GrammarChecker()
    answer, made = AnswerText("answer", report), list[Event]()
    for event in (Start(), *(event for part in parts for event in part), Finish(reason, Usage(1, 1))):
        for item in answer.feed(event):
            checker.feed(item)
            made.append(item)
    assert checker.is_complete
    return made[1:], report


def test_an_answer_is_text() -> None:
    made, report = filtered(called(0, "answer"))
    assert made == [
        PartStart(0, "text"),
        PartDelta(0, '{"x":1}'),
        PartEnd(0),
        Finish(FinishReason.STOP, Usage(1, 1)),
    ]
    assert not report.notes


def test_a_call_beside_it_stays_one() -> None:
    made, _ = filtered(called(0, "now", "{}"), called(1, "answer"))
    assert [item.kind for item in made if isinstance(item, PartStart)] == ["tool_call", "text"]
    assert made[-1] == Finish(FinishReason.TOOL_CALLS, Usage(1, 1))


def test_a_second_answer_is_left_out_with_a_note() -> None:
    made, report = filtered(called(0, "answer"), called(1, "answer"), called(2, "now", "{}"))
    assert [(item.index, item.kind) for item in made if isinstance(item, PartStart)] == [(0, "text"), (1, "tool_call")]
    assert [item.index for item in made if isinstance(item, PartEnd)] == [0, 1]
    assert [note.shown for note in report.notes] == ["text>out"]


def written(index: int, text: str) -> Iterator[Event]:
    yield PartStart(index, "text")
    yield PartDelta(index, text)
    yield PartEnd(index)


def parts(made: list[Event]) -> list[tuple[str, str]]:
    return [
        (start.kind, delta.text)
        for start, delta in itertools.pairwise(made)
        if isinstance(start, PartStart) and isinstance(delta, PartDelta)
    ]


def test_what_is_said_before_the_answer_is_a_thought() -> None:
    made, report = filtered(written(0, "Let me see. "), called(1, "answer"))
    assert parts(made) == [("reasoning", "Let me see. "), ("text", '{"x":1}')]
    assert [note.shown for note in report.notes] == ["text>reasoning"]
    made, report = filtered(written(0, "\n\n"), called(1, "answer"))
    assert parts(made) == [("text", '{"x":1}')]
    assert not report.notes


def thought(index: int, text: str) -> Iterator[Event]:
    yield PartStart(index, "reasoning")
    yield PartDelta(index, text)
    yield PartEnd(index)


def test_what_is_said_behind_the_answer_is_a_thought() -> None:
    made, report = filtered(called(0, "answer"), written(1, "That is all."), reason=FinishReason.STOP)
    assert parts(made) == [("text", '{"x":1}'), ("reasoning", "That is all.")]
    assert [note.shown for note in report.notes] == ["text>reasoning"]
    made, report = filtered(called(0, "answer"), written(1, " \n"), reason=FinishReason.STOP)
    assert parts(made) == [("text", '{"x":1}')]
    assert not report.notes


def test_thoughts_do_not_settle_what_is_held() -> None:
    made, _ = filtered(thought(0, "a"), written(1, "b"), thought(2, "c"), called(3, "answer"))
    assert parts(made) == [("reasoning", "a"), ("reasoning", "b"), ("reasoning", "c"), ("text", '{"x":1}')]
    made, _ = filtered(written(0, "b"), thought(1, "c"), called(2, "now", "{}"))
    assert parts(made) == [("text", "b"), ("reasoning", "c"), ("tool_call", "{}")]


def test_what_is_said_otherwise_is_text() -> None:
    made, report = filtered(written(0, "Let me see. "), called(1, "now", "{}"))
    assert parts(made) == [("text", "Let me see. "), ("tool_call", "{}")]
    made, _ = filtered(written(0, "No."), reason=FinishReason.STOP)
    assert parts(made) == [("text", "No.")]
    assert not report.notes


def test_what_is_held_when_the_answer_breaks_off_is_let_go() -> None:
    answer = AnswerText("answer", Report())
    failed = Failed(DeckError(ErrorKind.UPSTREAM, "gone"))
    begun = [PartStart(0, "text"), PartDelta(0, "Le")]
    made = [item for event in (*begun, failed) for item in answer.feed(event)]
    assert made == [*begun, failed]


def test_a_cut_answer_ends_by_the_limit() -> None:
    made, _ = filtered(called(0, "answer", '{"x'), reason=FinishReason.LENGTH)
    assert made[-1] == Finish(FinishReason.LENGTH, Usage(1, 1))


BODY = {
    "model": "m1",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": {"name": "now"}}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "form", "schema": FORM, "strict": True}},
}


def answered(name: str, arguments: str, reason: str = "tool_calls") -> Reply:
    return Reply(steps=[role(), tool(0, "abc123def", name, arguments), finish(reason), usage(5, 9), done()])


def test_the_answer_is_held_against_the_form(tmp_path: Path) -> None:
    script = [answered("answer", text) for text in ('{"x":1}', '{"x":"1"}', "{}")]
    with app(tmp_path, script) as deck:
        good, bad, _ = (deck.chat(json=BODY) for _ in script)
        assert good.json()["choices"][0]["message"]["content"] == '{"x":1}'
        assert good.json()["choices"][0]["finish_reason"] == "stop"
        assert IGNORED not in good.headers, "the whole answer was checked"
        assert "response_format" in bad.headers[IGNORED]
        sent = deck.upstream()[0]
        assert "response_format" not in sent
        assert sent["tool_choice"] == "required"
        assert [item["function"]["name"] for item in sent["tools"]] == ["now", "answer"]


@pytest.mark.parametrize("family", ["qwen", "llama"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_was_written_as_a_bare_call_is_the_answer(tmp_path: Path, family: str, stream: bool) -> None:
    """With a form and no tools such a text is the form's own; beside tools it can only be the call of the form's."""
    reply = say('{"name":"answer","arguments":', '{"x":1}}')
    profiles = {"bare": f'id = "bare"\nfamily = "{family}"\n{{server}}'}
    with app(tmp_path, [reply], profiles=profiles) as deck:
        answer = deck.chat(json={**BODY, "model": "bare", "stream": stream})
        if stream:
            found = check(answer.content)
            assert (json.loads(found.text), found.calls, found.finish) == ({"x": 1}, [], "stop")
        else:
            choice = answer.json()["choices"][0]
            assert json.loads(choice["message"]["content"]) == {"x": 1}
            assert "tool_calls" not in choice["message"]
            assert choice["finish_reason"] == "stop"


def test_what_the_limit_cuts_is_no_cut_call(tmp_path: Path) -> None:
    with app(tmp_path, [answered("answer", '{"x', "length")] * 2) as deck:
        choice = deck.chat(json=BODY).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ('{"x', "length")
        streamed = deck.chat(json={**BODY, "stream": True})
        assert 'deck_repairs_total{model="m1",what="cut_call"} 0.0' in deck.send("GET", "/metrics").text
        assert '\\"x' in streamed.text
