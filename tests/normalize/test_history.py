"""Calls and results that clients garble."""

from __future__ import annotations

from typing import Any

import pytest

from deck.canon.request import ChatRequest, Image, Message, Text, ToolCall, ToolResult
from deck.errors import DeckError
from deck.normalize.history import repair_history
from deck.normalize.report import Report

A, B = "aaaaaaaaa", "bbbbbbbbb"


def call(*ids: str, arguments: str = "{}") -> tuple[str, tuple[Any, ...]]:
    return "assistant", tuple(ToolCall(id, "read_note", arguments) for id in ids)


def result(*ids: str) -> tuple[str, tuple[Any, ...]]:
    return "tool", tuple(ToolResult(id, (Text(f"of {id[0]}"),)) for id in ids)


def user(text: str = "hi") -> tuple[str, tuple[Any, ...]]:
    return "user", (Text(text),)


def repaired(*turns: tuple[str, tuple[Any, ...]]) -> tuple[ChatRequest, Report, bool]:
    messages = tuple(Message(role, parts, f"messages[{place}]") for place, (role, parts) in enumerate(turns))  # type: ignore[arg-type]  # roles are words here
    request, report = ChatRequest(model="m", messages=messages), Report()
    after = repair_history(request, report)
    return after, report, after is request


def shown(request: ChatRequest) -> str:
    """Return the turns as a line: `u`, `a(ids)`, `t(ids)`."""
    names = []
    for message in request.messages:
        ids = "".join(part.id[0] for part in message.parts if isinstance(part, ToolCall | ToolResult))
        names.append(f"{message.role[0]}({ids})" if ids else message.role[0])
    return " ".join(names)


@pytest.mark.parametrize(
    "turns",
    [
        [user()],
        [user(), call(A), result(A)],
        [user(), call(A, B), result(A), result(B), user()],
        [user(), call(A, B), result(A, B)],
        [user(), call(A)],
        [user(), call(A), result(A), call(B), result(B), user()],
    ],
)
def test_what_is_in_order_stays_as_it_is(turns: list[Any]) -> None:
    _, report, is_same = repaired(*turns)
    assert is_same
    assert not report.notes


@pytest.mark.parametrize(
    ("turns", "after", "note"),
    [
        ([user(), call(A, B), result(B), result(A)], "u a(ab) t(a) t(b)", "messages[2]:reordered"),
        ([user(), result(A), call(A), user()], "u a(a) t(a) u", "messages[1]:reordered"),
        ([user(), call(A), user(), result(A)], "u a(a) t(a) u", "messages[3]:reordered"),
        ([user(), result(B)], "u u", "messages[1].role=tool>user"),
        ([user(), call(A), user()], "u a(a) t(a) u", "messages[1].tool_calls>no-result"),
        ([user(), call(A, B), result(A)], "u a(ab) t(a) t(b)", "messages[1].tool_calls>no-result"),
    ],
)
def test_what_is_plainly_meant_is_put_in_order(turns: list[Any], after: str, note: str) -> None:
    request, report, _ = repaired(*turns)
    assert shown(request) == after
    assert note in [item.shown for item in report.notes]


def test_a_result_without_a_call_keeps_what_it_says() -> None:
    request, _, _ = repaired(user(), result(B))
    assert "of b" in "".join(part.text for part in request.messages[-1].parts if isinstance(part, Text))


def test_two_calls_of_one_id_get_their_own_results() -> None:
    request, report, _ = repaired(user(), call(A), result(A), user(), call(A), result(A))
    ids = [part.id for message in request.messages for part in message.parts if isinstance(part, ToolCall)]
    answers = [part.id for message in request.messages for part in message.parts if isinstance(part, ToolResult)]
    assert len(set(ids)) == 2
    assert answers == ids
    assert report.notes[0].detail == "two calls have one id"


def test_a_call_that_a_turn_went_past_gets_no_result_of_the_next_one_of_its_id() -> None:
    """In the old form of functions every call of one function has one id."""
    request, _, _ = repaired(user(), call(A), user("never mind"), call(A), result(A))
    results = [part for message in request.messages for part in message.parts if isinstance(part, ToolResult)]
    assert [message.role for message in request.messages] == ["user", "assistant", "tool", "user", "assistant", "tool"]
    assert [part.parts[0] for part in results] == [Text("[no result: the call was not carried out]"), Text("of a")]


PICTURE = Image("data:image/png;base64,AAAA")


@pytest.mark.parametrize(
    ("after", "shape", "place"),
    [
        ([], "u a(ab) t(a) t(b) u", 4),
        ([user("and?")], "u a(ab) t(a) t(b) u", 4),
        ([call("ccccccccc"), result("ccccccccc")], "u a(ab) t(a) t(b) u a(c) t(c)", 4),
    ],
    ids=["last", "before a user's turn", "before a call"],
)
def test_pictures_of_results_stand_behind_the_last_of_them(after: list[Any], shape: str, place: int) -> None:
    first = ("tool", (ToolResult(A, (Text("one"), PICTURE, Text("two"))),))
    request, report, _ = repaired(user(), call(A, B), first, result(B), *after)
    assert shown(request) == shape
    assert request.messages[place].parts[0] is PICTURE
    assert request.messages[2].parts == (ToolResult(A, (Text("one"), Text("two"))),)
    assert [note.shown for note in report.notes] == ["messages[2]:image>user"]


def test_two_results_of_one_call_are_refused() -> None:
    with pytest.raises(DeckError, match=r"messages\[3\]"):
        repaired(user(), call(A), result(A), result(A))


@pytest.mark.parametrize(
    ("arguments", "after"),
    [("", "{}"), ("null", "{}"), (" ", "{}"), ('""', "{}"), ("[]", "{}"), ('"{\\"a\\": 1}"', '{"a": 1}')],
)
def test_arguments_that_say_nothing_are_an_empty_object(arguments: str, after: str) -> None:
    request, report, _ = repaired(user(), call(A, arguments=arguments), result(A))
    [part] = request.messages[1].parts
    assert isinstance(part, ToolCall)
    assert part.arguments == after
    assert report.notes


@pytest.mark.parametrize("arguments", ["{", "path=a", "[1]", "5", '"text"'])
def test_arguments_that_are_something_else_are_refused(arguments: str) -> None:
    with pytest.raises(DeckError, match=r"messages\[1\]\.tool_calls: the arguments of 'read_note'"):
        repaired(user(), call(A, arguments=arguments), result(A))
