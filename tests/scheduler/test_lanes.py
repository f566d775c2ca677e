"""The lane of an exchange: the table of the architecture's page, row by row, is the function."""

from __future__ import annotations

import itertools
from dataclasses import fields
from pathlib import Path

import pytest

from deck.scheduler.lanes import Lane, RouteNeeds, Switches, route_decide

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
NEEDS = [field.name for field in fields(RouteNeeds)]
Row = tuple[str, dict[str, bool]]


def table() -> list[Row]:
    """Return the rows of the table: a lane, and what it says of which needs."""
    lines = iter(PAGE.read_text(encoding="utf-8").splitlines())
    head = next(line for line in lines if line.startswith("| lane | prefill only |"))
    names = [name.strip().replace(" ", "_") for name in head.strip("|").split("|")[1:]]
    assert sorted(names) == sorted(NEEDS)
    next(lines)
    rows = []
    for line in itertools.takewhile(lambda line: line.startswith("|"), lines):
        lane, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows.append((lane, {name: cell == "yes" for name, cell in zip(names, cells, strict=True) if cell}))
    return rows


def by_table(rows: list[Row], needs: dict[str, bool], switches: Switches) -> str:
    on = {"serial": switches.serial, "static": switches.static, "continuous": True}
    for lane, wanted in rows:
        is_for_tools = lane == "serial" and "prefill_only" not in wanted
        if not on[lane] or (is_for_tools and not switches.tools):
            continue
        if all(needs[name] == said for name, said in wanted.items()):
            return lane
    raise AssertionError("no row fits")


@pytest.mark.parametrize("switched", list(itertools.product((True, False), repeat=3)))
def test_the_table_is_the_function(switched: tuple[bool, bool, bool]) -> None:
    rows = table()
    switches = Switches(serial=switched[0], static=switched[1], tools=switched[2])
    for chosen in itertools.product((True, False), repeat=len(NEEDS)):
        needs = dict(zip(NEEDS, chosen, strict=True))
        assert route_decide(RouteNeeds(**needs), switches).value == by_table(rows, needs, switches), needs


def test_every_lane_has_a_row() -> None:
    assert {lane for lane, _ in table()} == {lane.value for lane in Lane}


def test_what_needs_nothing_runs_in_the_batch() -> None:
    assert route_decide(RouteNeeds(), Switches()) is Lane.CONTINUOUS
    assert route_decide(RouteNeeds(stream=True, greedy=True), Switches()) is Lane.CONTINUOUS
