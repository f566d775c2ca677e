"""How thinking is switched and efforts are fitted, by what stands in a template."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deck.canon.request import ReasoningSetting, Text
from deck.contracts import Facts
from deck.kit import StandardFamily, Switch
from deck.normalize.report import Report
from deck.testing.family import ASKED

OFF, ON = ReasoningSetting(enabled=False), ReasoningSetting(enabled=True)


def family(*switches: Switch, efforts: tuple[str, ...] = (), variable: str | None = None) -> StandardFamily:
    return StandardFamily(name="x", title="X", source="", switches=switches, efforts=efforts, effort_variable=variable)


def adapted(kind: StandardFamily, setting: ReasoningSetting, template: str = "") -> tuple[object, Report]:
    report = Report()
    return kind.adapt(replace(ASKED, reasoning=setting), Facts(template=template), report), report


def test_a_variable_of_the_template() -> None:
    kind = family(Switch(mark="mode", on={"mode": "on"}, off={"mode": "off"}), Switch())
    assert kind.adapt(replace(ASKED, reasoning=OFF), Facts(template="mode"), Report()).template_kwargs == {
        "mode": "off"
    }
    assert kind.adapt(replace(ASKED, reasoning=ON), Facts(template="mode"), Report()).template_kwargs == {"mode": "on"}
    assert kind.adapt(replace(ASKED, reasoning=OFF), Facts(template="else"), Report()).template_kwargs == {}
    own = replace(ASKED, reasoning=OFF, template_kwargs={"mode": "mine"})
    assert kind.adapt(own, Facts(template="mode"), Report()).template_kwargs == {"mode": "mine"}


def test_a_line_in_the_system_turn() -> None:
    kind = family(Switch(how="line", on="/think", off="/no_think"))
    report = Report()
    after = kind.adapt(replace(ASKED, reasoning=OFF), Facts(), report)
    assert after.messages[0].parts == (Text("/no_think"),)
    assert after.reasoning.enabled is False, "llama-server reads the variable"
    assert report.notes[0].kind.value == "changed"


@pytest.mark.parametrize(
    ("how", "setting", "is_noted"),
    [("always", OFF, True), ("always", ON, False), ("never", ON, True), ("never", OFF, False)],
)
def test_what_cannot_be_switched_is_said(how: str, setting: ReasoningSetting, is_noted: bool) -> None:
    kind = family(Switch(how=how))  # type: ignore[arg-type]  # one of the words
    report = Report()
    after = kind.adapt(replace(ASKED, reasoning=setting), Facts(), report)
    assert after.reasoning.enabled is None
    assert bool(report.notes) is is_noted


def test_the_least_effort_stands_for_off() -> None:
    kind = family(Switch(how="effort"), efforts=("low", "high"))
    report = Report()
    after = kind.adapt(replace(ASKED, reasoning=OFF), Facts(), report)
    assert (after.reasoning.enabled, after.reasoning.effort) == (None, "low")
    assert report.notes[0].shown == "reasoning_effort=none>low"


@pytest.mark.parametrize(
    ("asked", "wanted"), [("minimal", "low"), ("low", "low"), ("medium", "high"), ("xhigh", "max"), ("max", "max")]
)
def test_an_effort_is_the_nearest_known(asked: str, wanted: str) -> None:
    kind = family(efforts=("low", "high", "max"), variable="thinking_effort")
    report = Report()
    after = kind.adapt(
        replace(ASKED, reasoning=ReasoningSetting(effort=asked)), Facts(template="thinking_effort"), report
    )
    assert after.template_kwargs == {"thinking_effort": wanted}
    assert after.reasoning.effort is None
    assert bool(report.notes) is (asked != wanted)


def test_prefill_keeps_thinking_off_where_llama_server_must_know() -> None:
    kind = family(Switch(how="always"))
    messages = (*ASKED.messages, replace(ASKED.messages[0], role="assistant"))
    after = kind.adapt(replace(ASKED, messages=messages), Facts(), Report())
    assert after.reasoning.enabled is False
