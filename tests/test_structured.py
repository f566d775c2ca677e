"""Finished answers against the schemas they were asked to hold to: the verdicts, and what the client is told."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from app_support import BODY, App, app
from chat_support import TOOL

from deck.api import Answer, ChatRequest, Finish, FinishReason, Output, Report, Text, Tool, ToolCall, Usage
from deck.structured import Unchecked, check_answer, fault
from deck.testing.fake_llama import Received, Reply, say
from deck.testing.frames import content, done, finish, role, tool, usage

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
GOOD = '{"name": "Ada", "age": 36}'
IGNORED = "x-athena-compatibility-ignored"
STRICT = "response_format.json_schema.strict"


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        (GOOD, PERSON),
        (f"\n {GOOD} \n", PERSON),
        ("[1, 2, 3]", {"items": {"type": "integer"}, "uniqueItems": True}),
        ('"2026-11-30"', {"format": "date"}),
        ('"anything"', {"format": "of our own"}),
        ('{"next": {"next": {}}}', {"properties": {"next": {"$ref": "#"}}, "additionalProperties": False}),
        ("4", {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 3, "exclusiveMinimum": True}),
        ("1", {}),
    ],
)
def test_what_holds(text: str, schema: dict[str, Any]) -> None:
    assert fault(text, schema) is None


@pytest.mark.parametrize(
    ("text", "schema", "why"),
    [
        ('{"name": "Ada"}', PERSON, "/: required"),
        ('{"name": "Ada", "age": "old"}', PERSON, "/properties/age: type"),
        ('{"name": "Ada", "age": 1, "secret": 2}', PERSON, "/: additionalProperties"),
        ('{"name": "Ada", "age": -1}', PERSON, "/properties/age: minimum"),
        (GOOD[:-1], PERSON, "not JSON"),
        ("hello", PERSON, "not JSON"),
        ("[1, 1]", {"uniqueItems": True}, "/: uniqueItems"),
        ('"2026-13-30"', {"format": "date"}, "/: format"),
        ("3", {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 3, "exclusiveMinimum": True}, "/: "),
        ('{"next": {"next": 1}}', {"type": "object", "properties": {"next": {"$ref": "#"}}}, "/: type"),
        (json.dumps("a" * 100_000 + "b"), {"pattern": "^(a+)+$"}, "/: pattern"),
    ],
)
def test_what_does_not_hold_is_named_by_the_schema_and_never_by_the_answer(
    text: str, schema: dict[str, Any], why: str
) -> None:
    found = fault(text, schema)
    assert found is not None
    assert found.startswith(why)
    assert "secret" not in found
    assert "old" not in found


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "no such type"}, "compiled"),
        ({"pattern": "^(?=a).*$"}, "compiled"),
        ({"pattern": "^((a{1000}){1000}){1000}$"}, "compiled"),
        ({"$schema": "https://example.org/meta.json"}, "compiled"),
        ({"$ref": "https://example.org/a.json"}, "another document"),
        ({"properties": {"name": {"$ref": "file:///etc/hostname"}}}, "another document"),
        ({"$ref": "#"}, "circle"),
        ({"enum": ["x" * 300_000]}, "larger than 256 KiB"),
    ],
)
def test_what_cannot_be_checked_says_why(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(Unchecked, match=why):
        fault(GOOD, schema)


@pytest.mark.parametrize(
    ("text", "why"),
    [(json.dumps("a" * 200_000), "longer than 128 KiB"), ("[" * 70 + "]" * 70, "deeper than 64 levels")],
)
def test_an_answer_out_of_bounds_is_not_checked(text: str, why: str) -> None:
    with pytest.raises(Unchecked, match=why):
        fault(text, PERSON)


def _forked(levels: int) -> tuple[str, dict[str, Any]]:
    there: dict[str, Any] = {"$ref": "#"}
    branches = [{"properties": {"c": there}, "required": [key]} for key in ("c", "d", "e")]
    return '{"c":' * levels + "{}" + "}" * levels, {"oneOf": branches}


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        (json.dumps("a" * 100_000 + "b"), {"pattern": "^(a+)+$"}),
        (json.dumps("ab" * 50_000), {"pattern": "^[ab]*a[ab]{300}c$"}),
        _forked(40),
        _forked(6),
        (json.dumps([{"c": {}}] * 10_000), {"items": _forked(1)[1]}),
        (json.dumps(list(range(20_000))), {"uniqueItems": True}),
    ],
    ids=["backtracking", "states", "deep fork", "fork", "many", "unique"],
)
def test_nothing_that_a_client_may_send_takes_long(text: str, schema: dict[str, Any]) -> None:
    """With a backtracking engine, or without the bound on steps, the first ones would outlast the machine."""
    began = time.process_time()
    with contextlib.suppress(Unchecked):
        fault(text, schema)
    assert time.process_time() - began < 30


def test_the_validator_is_not_loaded_before_it_is_needed() -> None:
    code = "import sys, deck.app; assert 'jsonschema_rs' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# What becomes of the notes


def answer(*parts: Text | ToolCall, reason: FinishReason = FinishReason.STOP) -> Answer:
    return Answer(parts=parts, finish=Finish(reason, Usage(1, 1)))


def request(output: Output | None = None, tools: Sequence[Tool] = ()) -> ChatRequest:
    return ChatRequest(model="m1", messages=(), output=output, tools=tuple(tools))


def judged(given: Answer, asked: ChatRequest) -> list[tuple[str, str]]:
    """Return the notes that stay, from one for each strict that was asked for."""
    report = Report()
    for item in (asked.output, *asked.tools):
        if item is not None and item.strict_path is not None:
            report.ignored(item.strict_path, "not promised")
    check_answer(given, asked, report)
    return [(note.path, note.detail) for note in report.notes]


OUTPUT = Output("json_schema", schema=PERSON, path="response_format", strict_path=STRICT)
READ = Tool("read", parameters=PERSON, path="tools[0].function", strict_path="tools[0].function.strict")
NOW = Tool("now", path="tools[1].function", strict_path="tools[1].function.strict")
CALLED = FinishReason.TOOL_CALLS


def test_an_answer_that_holds_settles_strict() -> None:
    assert judged(answer(Text(GOOD)), request(OUTPUT)) == []
    assert judged(answer(Text(GOOD[:9]), Text(GOOD[9:])), request(OUTPUT)) == []


def test_an_answer_that_does_not_hold_is_reported_where_it_was_asked_for() -> None:
    assert judged(answer(Text("{}")), request(OUTPUT)) == [
        (STRICT, "not promised"),
        ("response_format", "the answer does not hold to the schema: /: required"),
    ]
    assert judged(answer(Text("{}")), request(replace(OUTPUT, strict_path=None))) == [
        ("response_format", "the answer does not hold to the schema: /: required")
    ]


def test_a_schema_that_cannot_be_checked_is_reported() -> None:
    output = replace(OUTPUT, schema={"pattern": "(?=a)"})
    assert [path for path, _ in judged(answer(Text(GOOD)), request(output))] == [STRICT, "response_format"]


def test_any_json_object() -> None:
    output = Output("json_object")
    assert judged(answer(Text("{}")), request(output)) == []
    assert judged(answer(Text("[]")), request(output)) == [("response_format", "the answer is not a JSON object")]


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.CONTEXT])
def test_an_answer_that_was_cut_is_not_judged(reason: FinishReason) -> None:
    assert judged(answer(Text("{"), reason=reason), request(OUTPUT)) == [(STRICT, "not promised")]


def test_a_whole_call_of_an_answer_that_was_cut_settles_nothing() -> None:
    given = answer(ToolCall("1", "read", GOOD), Text('read({"name'), reason=FinishReason.LENGTH)
    assert judged(given, request(tools=[READ])) == [("tools[0].function.strict", "not promised")]


def test_an_answer_without_text_or_with_a_grammar_is_not_judged() -> None:
    assert judged(answer(), request(OUTPUT)) == [(STRICT, "not promised")]
    assert judged(answer(Text("no")), request(Output("grammar", grammar='root ::= "no"'))) == []


def test_calls_that_all_hold_settle_strict() -> None:
    calls = [ToolCall("1", "read", GOOD), ToolCall("2", "read", GOOD), ToolCall("3", "now", "{}")]
    assert judged(answer(Text("Let me see."), *calls, reason=CALLED), request(OUTPUT, [READ, NOW])) == [
        (STRICT, "not promised")
    ], "what is said beside a call is no answer to the schema"


def test_a_call_that_does_not_hold_is_reported_at_its_tool() -> None:
    calls = [ToolCall("1", "now", "{}"), ToolCall("2", "read", "{}")]
    notes = judged(answer(*calls, reason=CALLED), request(tools=[READ, NOW]))
    assert notes[2:] == [("tools[0].function", "the answer does not hold to the schema: /: required")]
    assert {path for path, _ in notes[:2]} == {"tools[0].function.strict", "tools[1].function.strict"}


def test_without_calls_nothing_is_settled() -> None:
    assert len(judged(answer(Text("Hello")), request(tools=[READ]))) == 1
    assert len(judged(answer(ToolCall("1", "unknown", "{}"), reason=CALLED), request(tools=[READ]))) == 1


# The whole way


def shape(schema: dict[str, Any], *, strict: bool | None = True) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": strict, "schema": schema}}


def strict_tool(*, strict: bool = True) -> dict[str, Any]:
    return {**TOOL, "function": {**TOOL["function"], "strict": strict}}


def calling(arguments: str) -> Reply:
    steps = (role(), tool(0, "abcdefghi", "read_note", arguments), finish("tool_calls"), usage(10, 5), done())
    return Reply(steps=steps)


def _script(received: Received) -> Reply:
    said = received.json()["messages"][-1]["content"]
    if said.startswith("call "):
        return calling(said.removeprefix("call "))
    if said.startswith("cut "):
        return Reply(steps=(role(), content(said.removeprefix("cut ")), finish("length"), usage(10, 5), done()))
    return say(said)


@pytest.fixture(scope="module")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    first = {"m1": 'id = "m1"\nretry_calls = false\n{server}'}
    with app(tmp_path_factory.mktemp("structured"), _script, profiles=first) as running:
        yield running


def asked(deck: App, said: str, **fields: Any) -> httpx.Response:
    reply = deck.chat(json={**BODY, "messages": [{"role": "user", "content": said}], **fields})
    assert reply.status_code == 200, reply.text
    return reply


def listed(reply: httpx.Response) -> list[str]:
    found: str = reply.headers.get(IGNORED, "")
    return found.split(", ") if found else []


def test_strict_is_not_listed_when_the_answer_was_found_to_hold(deck: App) -> None:
    assert listed(asked(deck, GOOD, response_format=shape(PERSON))) == []


def test_an_answer_that_breaks_its_schema_is_delivered_and_listed(deck: App) -> None:
    reply = asked(deck, '{"name": "secret"}', response_format=shape(PERSON))
    assert reply.json()["choices"][0]["message"]["content"] == '{"name": "secret"}'
    assert listed(reply) == ["response_format", STRICT]
    assert "secret" not in str(reply.headers)


def test_a_cut_answer_keeps_the_note(deck: App) -> None:
    assert listed(asked(deck, "cut {", response_format=shape(PERSON))) == [STRICT]


def test_without_strict_only_a_broken_answer_is_listed(deck: App) -> None:
    assert listed(asked(deck, GOOD, response_format=shape(PERSON, strict=False))) == []
    assert listed(asked(deck, "{}", response_format=shape(PERSON, strict=None))) == ["response_format"]
    assert listed(asked(deck, "[]", response_format={"type": "json_object"})) == ["response_format"]


def test_calls_are_checked_against_their_tools(deck: App) -> None:
    assert listed(asked(deck, 'call {"path": "a.md"}', tools=[strict_tool()])) == []
    assert listed(asked(deck, "call {}", tools=[strict_tool()])) == [
        "tools[].function.parameters",
        "tools[].function.strict",
    ]
    assert listed(asked(deck, "call {}", tools=[strict_tool(strict=False)])) == ["tools[].function.parameters"]
    assert listed(asked(deck, "hello", tools=[strict_tool()])) == ["tools[].function.strict"]


def test_a_flat_tool_and_one_that_is_strict_outside_are_settled_too(deck: App) -> None:
    flat = {"type": "function", **TOOL["function"], "strict": True}
    outside = {**TOOL, "strict": True}
    for item in (flat, outside):
        assert listed(asked(deck, 'call {"path": "a.md"}', tools=[item])) == []
        assert listed(asked(deck, "hello", tools=[item])) == ["tools[].strict"]


def test_a_stream_is_not_checked(deck: App) -> None:
    reply = asked(deck, GOOD, response_format=shape(PERSON), stream=True)
    assert STRICT in listed(reply)


def test_the_notes_are_counted(deck: App) -> None:
    asked(deck, "{}", response_format=shape(PERSON, strict=False))
    notes = deck.send("GET", "/v1/stats").json()["notes"]
    assert notes["response_format"] >= 1
    asked(deck, "call {}", tools=[strict_tool(strict=False)])
    assert deck.send("GET", "/v1/stats").json()["notes"]["tools"] >= 1


@pytest.mark.parametrize(
    ("wire", "word", "members", "kept"),
    [
        (
            "responses",
            GOOD,
            {"text": {"format": {"type": "json_schema", "name": "p", "schema": PERSON, "strict": True}}},
            "text.format.strict",
        ),
        (
            "responses",
            'call {"path": "a.md"}',
            {"tools": [{"type": "function", **TOOL["function"], "strict": True}]},
            "tools[].strict",
        ),
        (
            "messages",
            'call {"path": "a.md"}',
            {"tools": [{"name": "read_note", "input_schema": TOOL["function"]["parameters"], "strict": True}]},
            "tools[].strict",
        ),
    ],
)
def test_strict_is_settled_on_every_wire(deck: App, wire: str, word: str, members: dict[str, Any], kept: str) -> None:
    spoken = {"input": word} if wire == "responses" else {"messages": [{"role": "user", "content": word}]}
    body = {"model": "m1", **spoken, **members}
    assert listed(deck.send("POST", f"/v1/{wire}", json=body)) == []
    assert kept in listed(deck.send("POST", f"/v1/{wire}", json={**body, "stream": True}))
