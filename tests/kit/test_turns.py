"""Turns in the shapes that templates of several families take."""

from __future__ import annotations

from typing import Any

from deck.canon.request import ChatRequest, Message, Reasoning, Text, ToolCall, ToolResult
from deck.kit.turns import (
    add_system_line,
    answer_before_user,
    note_text_beside_calls,
    one_call_a_turn,
    order_turns,
    thoughts_beside_calls,
)
from deck.normalize.report import Report
from deck.testing.family import conversations

A, B = "aaaaaaaaa", "bbbbbbbbb"


def turn(role: Any, *parts: Any, place: int = 0) -> Message:
    return Message(role, parts, f"messages[{place}]")


def texts(messages: tuple[Message, ...]) -> list[tuple[str, str]]:
    return [(item.role, "|".join(part.text for part in item.parts if isinstance(part, Text))) for item in messages]


def test_a_later_system_turn_is_folded_at_its_place() -> None:
    report = Report()
    after = texts(order_turns(conversations()["system in the midst"].messages, report))
    assert [role for role, _ in after] == ["system", "user", "assistant", "user"]
    assert after[3][1] == "[system note]\n12000 left\n[end of system note]|go on"
    assert {note.path for note in report.notes} == {"messages[3].role", "messages[4]"}


def test_turns_in_order_are_the_same_object() -> None:
    for name in ("a question", "system first", "a call", "two calls", "a call after a call"):
        messages = conversations()[name].messages
        assert order_turns(messages, Report()) is messages


def test_each_call_gets_a_turn_and_its_result_behind_it() -> None:
    messages = (
        turn("user", Text("x")),
        turn("assistant", Text("look"), ToolCall(A, "f", "{}"), ToolCall(B, "g", "{}"), place=1),
        turn("tool", ToolResult(A, (Text("1"),)), place=2),
        turn("tool", ToolResult(B, (Text("2"),)), place=3),
        turn("user", Text("y"), place=4),
    )
    report = Report()
    after = one_call_a_turn(messages, report)
    assert [item.role for item in after] == ["user", "assistant", "tool", "assistant", "tool", "user"]
    assert after[1].parts == (Text("look"), ToolCall(A, "f", "{}"))
    assert after[3].parts == (ToolCall(B, "g", "{}"),)
    assert report.notes[0].shown == "messages[1].tool_calls>turns"
    assert one_call_a_turn(after, report) is after


def test_text_beside_thoughts_and_a_call_stands_behind_the_thoughts() -> None:
    report = Report()
    message = turn("assistant", Reasoning("plan"), Text("I look."), ToolCall(A, "f", "{}"))
    [after] = thoughts_beside_calls((message,), report)
    assert after.parts == (Reasoning("plan\n\nI look."), ToolCall(A, "f", "{}"))
    assert report.notes
    alone = (turn("assistant", Text("I look."), ToolCall(A, "f", "{}")),)
    assert thoughts_beside_calls(alone, Report()) is alone


def test_text_that_the_template_hides_is_reported() -> None:
    report = Report()
    note_text_beside_calls((turn("assistant", Text("I look."), ToolCall(A, "f", "{}"), place=3),), report)
    assert [note.path for note in report.notes] == ["messages[3].content"]


def test_a_user_turn_behind_a_result_is_folded_into_it() -> None:
    messages = conversations()["a user behind a result"].messages
    after = answer_before_user(messages, Report())
    assert [item.role for item in after] == ["user", "assistant", "tool"]
    result = after[-1].parts[0]
    assert isinstance(result, ToolResult)
    assert result.parts[-1] == Text("[user message]\nnever mind\n[end of user message]")


def test_a_line_of_the_system_turn() -> None:
    asked = ChatRequest(model="m", messages=(turn("user", Text("x")),))
    assert texts(add_system_line(asked.messages, "/think")) == [("system", "/think"), ("user", "x")]
    both = (turn("system", Text("A")), *asked.messages)
    assert texts(add_system_line(both, "/think"))[0] == ("system", "A\n\n/think")
