"""The kit that proves a family finds what is wrong with one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deck.canon.events import Event, PartDelta
from deck.canon.request import ChatRequest, Message, Text
from deck.contracts import Facts, Features, Filter
from deck.kit import StandardFamily, TaggedJson
from deck.normalize.report import Report
from deck.testing.family import Leak, WrittenPart, check_adapt, check_family, check_leak, check_text, read_leaks

CALL = '<tool_call>{"name": "read_note", "arguments": {"path": "a"}}</tool_call>'
GOOD = StandardFamily(name="good", title="Good", source="", syntaxes=(TaggedJson("<tool_call>", "</tool_call>"),))
LEAK = Leak(name="one", parts=(WrittenPart("text", f"Hm.\n{CALL}"),), says="Hm.", calls=(("read_note", {"path": "a"}),))


class _Filter:
    """Does to each piece what a test says."""

    def __init__(self, change: Any) -> None:
        self._change = change

    def feed(self, event: Event) -> Iterator[Event]:
        if isinstance(event, PartDelta):
            event = replace(event, text=self._change(event.text))
        yield event


class Bad:
    """A family with one fault."""

    name = "bad"
    features = Features(title="Bad")

    def __init__(self, change: Any = None, adapt: Any = None) -> None:
        self._change, self._adapt = change, adapt

    def defaults(self, facts: Facts) -> dict[str, Any]:
        return {}

    def arguments(self) -> tuple[str, ...]:
        return ()

    def stops(self) -> tuple[str, ...]:
        return ()

    def filter(self, request: ChatRequest, report: Report, seed: str) -> Filter | None:
        return _Filter(self._change) if self._change else None

    def adapt(self, request: ChatRequest, facts: Facts, report: Report) -> ChatRequest:
        return self._adapt(request, report) if self._adapt else request  # type: ignore[no-any-return]  # a test's own


def test_a_sound_family_passes() -> None:
    check_family(GOOD, [LEAK])


def test_a_call_that_stays_text_is_found() -> None:
    with pytest.raises(AssertionError, match="calls \\(\\), not"):
        check_leak(Bad(), LEAK)


def test_a_filter_that_depends_on_the_cut_is_found() -> None:
    with pytest.raises(AssertionError):
        check_text(Bad(lambda text: text.strip()), "a b c")


def test_a_filter_that_loses_text_is_found() -> None:
    with pytest.raises(AssertionError, match="is not 'Hello'"):
        check_text(Bad(lambda text: text.replace("l", "")), "Hello")


def test_a_turn_that_templates_do_not_take_is_found() -> None:
    with pytest.raises(AssertionError, match="system turn is not the first"):
        check_adapt(Bad())


def test_a_silent_change_is_found() -> None:
    def silent(request: ChatRequest, report: Report) -> ChatRequest:
        return replace(request, messages=(Message("user", (Text("other"),)),))

    with pytest.raises(AssertionError, match="nothing says"):
        check_adapt(Bad(adapt=silent))


def test_a_template_that_raises_is_found() -> None:
    def render(request: ChatRequest) -> str:
        if any(message.role == "system" for message in request.messages):
            raise ValueError("System role not supported")
        return ""

    with pytest.raises(ValueError, match="not supported"):
        check_adapt(GOOD, render=render)


def test_leaks_are_read_from_toml(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text(
        """
        [[leak]]
        name = "one"
        text = "Hi"
        says = "Hi"
        [[leak]]
        name = "two"
        finish = "length"
        calls = [{ name = "now", arguments = "{}" }]
        [[leak.part]]
        kind = "tool_call"
        name = "now"
        text = "{}"
        """,
        encoding="utf-8",
    )
    one, two = read_leaks(file)
    assert one == Leak(name="one", parts=(WrittenPart("text", "Hi"),), says="Hi")
    assert two.parts == (WrittenPart("tool_call", "{}", "now"),)
    assert (two.finish.value, two.calls) == ("length", (("now", {}),))
