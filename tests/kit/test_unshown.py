"""Tools for models whose template shows none."""

from __future__ import annotations

from dataclasses import replace

from deck.canon.request import Text, ToolCall, ToolChoice
from deck.contracts import Facts
from deck.kit.unshown import TAGGED, tell_tools
from deck.normalize.report import Report
from deck.testing.family import ASKED, conversations

SHOWN = Facts(template_caps={"supports_tools": True, "supports_tool_calls": True})
UNSHOWN = Facts(template_caps={"supports_tools": False, "supports_tool_calls": True})
NEITHER = Facts(template_caps={"supports_tools": False, "supports_tool_calls": False})


def test_what_the_template_shows_or_does_not_say_stays() -> None:
    for facts in (SHOWN, Facts()):
        assert tell_tools(ASKED, facts, Report(), TAGGED) is ASKED


def test_tools_are_told_in_the_system_turn() -> None:
    report = Report()
    after = tell_tools(ASKED, UNSHOWN, report, TAGGED)
    [part] = after.messages[0].parts
    assert isinstance(part, Text)
    assert '"name":"read_note"' in part.text
    assert "<tool_call>" in part.text
    assert [note.shown for note in report.notes] == ["tools>system"]
    assert after.tools == ASKED.tools, "llama-server still reads the calls, where it can"


def test_only_what_may_be_called_is_told() -> None:
    narrowed = replace(ASKED, tool_choice=ToolChoice("required", ("now",)))
    report = Report()
    [part] = tell_tools(narrowed, UNSHOWN, report, TAGGED).messages[0].parts
    assert isinstance(part, Text)
    assert "read_note" not in part.text
    assert [note.path for note in report.notes] == ["tools", "tool_choice"]
    silent = replace(ASKED, tool_choice=ToolChoice("none"))
    assert tell_tools(silent, UNSHOWN, Report(), TAGGED) is silent


def test_calls_and_results_are_written_where_they_are_not_shown_either() -> None:
    report = Report()
    after = tell_tools(conversations()["two calls"], NEITHER, report, TAGGED)
    assert [item.role for item in after.messages] == ["system", "user", "assistant", "user"]
    said = ["\n".join(part.text for part in item.parts if isinstance(part, Text)) for item in after.messages]
    assert said[2].count('<tool_call>\n{"name": "read_note", "arguments": {"path": "a"}}\n</tool_call>') == 2
    assert said[3].count("read_note: a note") == 2
    assert not any(isinstance(part, ToolCall) for item in after.messages for part in item.parts)
    assert "messages[1].tool_calls>content" in [note.shown for note in report.notes]
    assert "messages[2].role>user" in [note.shown for note in report.notes]
