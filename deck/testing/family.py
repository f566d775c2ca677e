"""Proves a model family: its own and other people's.

`check_leak` holds the family's filter against a text that a model wrote; `check_text` shows that ordinary text passes
unharmed; `check_adapt` that conversations come out in the shapes that templates take. Each raises `AssertionError`
with what was wrong. Leaks are written in TOML, see `read_leaks`.
"""

from __future__ import annotations

import copy
import itertools
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deck.canon.answer import Answer, Fold
from deck.canon.events import Event, Finish, FinishReason, PartDelta, PartEnd, PartKind, PartStart, Start, Usage
from deck.canon.grammar import GrammarChecker
from deck.canon.request import ChatRequest, Message, Reasoning, Text, Tool, ToolCall, ToolResult
from deck.contracts import Facts, Family
from deck.normalize.report import Report

SIZES = (1, 7, 64, 1 << 30)
_STRING = {"type": "string"}
TOOLS = (
    Tool("read_note", "Read a note", {"type": "object", "properties": {"path": _STRING}, "required": ["path"]}),
    Tool("now"),
    Tool(
        "set",
        "Set values",
        {
            "type": "object",
            "properties": {
                "n": {"type": "integer"},
                "flag": {"type": "boolean"},
                "o": {"type": "object"},
                "a": {"type": "array"},
                "s": _STRING,
                "z": {"anyOf": [_STRING, {"type": "null"}]},
            },
        },
    ),
)
ASKED = ChatRequest(model="m1", messages=(Message("user", (Text("hi"),), "messages[0]"),), tools=TOOLS)


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """A part as llama-server would give it; `name` is a call's, whose arguments are the text."""

    kind: PartKind
    text: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """What a model wrote, and what the answer is to be.

    Args:
        name: of the case.
        parts: what llama-server makes of what the model wrote.
        says: the answer's text.
        thinks: its thoughts.
        calls: its calls: name and decoded arguments.
        finish: why llama-server said that it ended.
    """

    name: str
    parts: tuple[WrittenPart, ...]
    says: str = ""
    thinks: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    finish: FinishReason = FinishReason.STOP


def read_leaks(path: Path) -> list[Leak]:
    """Return the leaks of a file: a table `[[leak]]` each.

    Keys: `name`; `text` and its `kind` (text or reasoning), or several `[[leak.part]]` with `kind`, `text` and `name`;
    `says`, `thinks`, `calls` (each with `name` and `arguments`, a text of JSON), `finish` (stop, length or tool_calls).
    """
    return [_leak(item) for item in tomllib.loads(path.read_text(encoding="utf-8"))["leak"]]


def _leak(item: Mapping[str, Any]) -> Leak:
    parts = item.get("part") or [{"kind": item.get("kind", "text"), "text": item["text"]}]
    return Leak(
        name=item["name"],
        parts=tuple(WrittenPart(part["kind"], part["text"], part.get("name", "")) for part in parts),
        says=item.get("says", ""),
        thinks=item.get("thinks", ""),
        calls=tuple((call["name"], json.loads(call["arguments"])) for call in item.get("calls", ())),
        finish=FinishReason(item.get("finish", "stop")),
    )


def events_of(leak: Leak, size: int) -> Iterator[Event]:
    """Return the events of what was written, at most `size` characters in each."""
    yield Start()
    for index, part in enumerate(leak.parts):
        yield PartStart(index, part.kind, f"id0000{index:03}" if part.name else "", part.name)
        for place in range(0, len(part.text), size):
            yield PartDelta(index, part.text[place : place + size])
        yield PartEnd(index)
    yield Finish(leak.finish, Usage(1, 1))


def answer_of(family: Family, leak: Leak, size: int, request: ChatRequest = ASKED) -> tuple[Answer, Report]:
    """Return the answer that the client gets, checked for the grammar of events, and the notes."""
    report = Report()
    found = family.filter(request, report, "seed" * 10)
    checker, fold = GrammarChecker(), Fold()
    for event in events_of(leak, size):
        for made in found.feed(event) if found is not None else (event,):
            checker.feed(made)
            fold.feed(made)
    assert checker.is_complete, "the filter swallowed the end of the answer"
    return fold.answer(), report


def check_leak(family: Family, leak: Leak, request: ChatRequest = ASKED) -> None:
    """Hold the family against a leak, however the text is cut."""
    first: Answer | None = None
    for size in SIZES:
        answer, report = answer_of(family, leak, size, request)
        where = f"{leak.name} in pieces of {size}"
        if first is not None:
            assert answer == first, f"{where}: {answer} is not {first}"
            continue
        first = answer
        says = "".join(part.text for part in answer.parts if isinstance(part, Text))
        thinks = "".join(part.text for part in answer.parts if isinstance(part, Reasoning))
        calls = tuple((part.name, json.loads(part.arguments)) for part in answer.parts if isinstance(part, ToolCall))
        assert calls == leak.calls, f"{where}: calls {calls}, not {leak.calls}"
        assert says == leak.says, f"{where}: text {says!r}, not {leak.says!r}"
        assert thinks == leak.thinks, f"{where}: thoughts {thinks!r}, not {leak.thinks!r}"
        ids = [part.id for part in answer.parts if isinstance(part, ToolCall)]
        assert len(set(ids)) == len(ids), f"{where}: two calls have one id"
        _check_end(leak, answer, report, where)


def _check_end(leak: Leak, answer: Answer, report: Report, where: str) -> None:
    is_called = bool(leak.calls) and leak.finish is FinishReason.STOP
    wanted = FinishReason.TOOL_CALLS if is_called else leak.finish
    assert answer.finish.reason is wanted, f"{where}: it ended by {answer.finish.reason}, not {wanted}"
    given = [(part.kind, part.text) for part in leak.parts]
    if given != [("text", leak.says)] and given != [("reasoning", leak.thinks), ("text", leak.says)]:
        assert report.notes or len(leak.parts) > 1, f"{where}: nothing says that the answer was changed"


def check_text(family: Family, text: str, request: ChatRequest = ASKED, *, kind: PartKind = "text") -> None:
    """Hold the family against text that holds no call and no thoughts: it must pass as it is, however it is cut."""
    leak = Leak(name="ordinary text", parts=(WrittenPart(kind, text),))
    for size in SIZES:
        answer, report = answer_of(family, leak, size, request)
        found = "".join(part.text for part in answer.parts if isinstance(part, Text | Reasoning))
        assert found == text, f"in pieces of {size}: {found!r} is not {text!r}"
        assert not any(isinstance(part, ToolCall) for part in answer.parts), "a call was made of ordinary text"
        assert answer.finish.reason is FinishReason.STOP
        assert not report.notes, f"unchanged text left notes: {report.notes}"


def _say(role: Any, text: str, *more: Any) -> tuple[Any, tuple[Any, ...]]:
    return role, ((Text(text),) if text else ()) + more


def _calls(*ids: str) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(id, "read_note", '{"path": "a"}') for id in ids)


def _result(id: str) -> tuple[str, tuple[ToolResult, ...]]:
    return "tool", (ToolResult(id, (Text("a note"),)),)


_ONE, _TWO = "abc123def", "ghi456jkl"
_CONVERSATIONS: Mapping[str, Sequence[Any]] = {
    "a question": [_say("user", "hi")],
    "system first": [_say("system", "Be brief."), _say("user", "hi")],
    "two systems": [_say("system", "A"), _say("system", "B"), _say("user", "hi")],
    "developer": [_say("developer", "Be brief."), _say("user", "hi")],
    "system and developer": [_say("system", "A"), _say("developer", "B"), _say("user", "hi")],
    "system in the midst": [
        _say("system", "A"),
        _say("user", "hi"),
        _say("assistant", "hello"),
        _say("system", "12000 left"),
        _say("user", "go on"),
    ],
    "system at the end": [_say("user", "hi"), _say("assistant", "hello"), _say("system", "go on")],
    "two users": [_say("user", "a"), _say("user", "b")],
    "two assistants": [_say("user", "a"), _say("assistant", "b"), _say("assistant", "c"), _say("user", "d")],
    "a call": [_say("user", "a"), _say("assistant", "", *_calls(_ONE)), _result(_ONE)],
    "text beside a call": [_say("user", "a"), _say("assistant", "I look.", *_calls(_ONE)), _result(_ONE)],
    "thoughts beside a call": [
        _say("user", "a"),
        ("assistant", (Reasoning("plan"), Text("I look."), *_calls(_ONE))),
        _result(_ONE),
    ],
    "two calls": [_say("user", "a"), _say("assistant", "", *_calls(_ONE, _TWO)), _result(_ONE), _result(_TWO)],
    "a user behind a result": [
        _say("user", "a"),
        _say("assistant", "", *_calls(_ONE)),
        _result(_ONE),
        _say("user", "never mind"),
    ],
    "a call after a call": [
        _say("user", "a"),
        _say("assistant", "", *_calls(_ONE)),
        _result(_ONE),
        _say("assistant", "", *_calls(_TWO)),
        _result(_TWO),
        _say("assistant", "done"),
        _say("user", "thanks"),
    ],
    "system behind a result": [
        _say("user", "a"),
        _say("assistant", "", *_calls(_ONE)),
        _result(_ONE),
        _say("system", "hurry"),
    ],
    "prefill": [_say("user", "a"), _say("assistant", "Once")],
}


def conversations() -> dict[str, ChatRequest]:
    """Return conversations in shapes that templates are known to raise on, and usual ones, by a name."""
    return {name: _asked(turns) for name, turns in _CONVERSATIONS.items()}


def _asked(turns: Sequence[Any]) -> ChatRequest:
    messages = tuple(Message(role, parts, f"messages[{place}]") for place, (role, parts) in enumerate(turns))
    return ChatRequest(model="m1", messages=messages, tools=TOOLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """A conversation as the family leaves it, and the notes."""

    name: str
    request: ChatRequest
    report: Report = field(default_factory=Report)


def check_adapt(
    family: Family, facts: Facts | None = None, render: Callable[[ChatRequest], object] | None = None
) -> list[Adapted]:
    """Hold `adapt` against all conversations; return what it made of them.

    Args:
        family: to be proved.
        facts: of the model, its template among them.
        render: makes the prompt of a request by the real template, and raises where that does.
    """
    found = []
    for name, request in conversations().items():
        before, report = copy.deepcopy(request), Report()
        adapted = family.adapt(request, facts or Facts(), report)
        assert request == before, f"{name}: the request itself was changed"
        assert family.adapt(request, facts or Facts(), Report()) == adapted, (
            f"{name}: the second time it came out otherwise"
        )
        assert adapted == request or report.notes, f"{name}: nothing says that the request was changed"
        _check_shape(name, adapted.messages)
        if render is not None:
            render(adapted)
        found.append(Adapted(name=name, request=adapted, report=report))
    return found


def _check_shape(name: str, messages: Sequence[Message]) -> None:
    roles = [message.role for message in messages]
    assert "developer" not in roles, f"{name}: templates know no developer"
    assert "system" not in roles[1:], f"{name}: a system turn is not the first"
    for one, other in itertools.pairwise(roles):
        assert (one, other) != ("user", "user"), f"{name}: two user turns in a row"
    calls: list[str] = []
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCall):
                calls.append(part.id)
            elif isinstance(part, ToolResult):
                assert part.id in calls, f"{name}: a result stands before its call"


def check_family(family: Family, leaks: Sequence[Leak] = (), facts: Facts | None = None) -> None:
    """Prove a family: all leaks, ordinary text, and all conversations."""
    for leak in leaks:
        check_leak(family, leak)
    for text in ("", "Hello.", "a < b", "[1, 2] {x}", "```py\nprint('<tag>')\n```", "line\n\nline  ", "Wörter 🌍"):
        check_text(family, text)
    check_adapt(family, facts)
