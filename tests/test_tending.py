"""When a server counts as hung, by looks that are played."""

from __future__ import annotations

from deck.servers.vitals import Vitals
from deck.tending import HangPulse, Look


def look(now: float, cpu: float | None = 1.0, *, heard: bool = True, **owed: int) -> Look:
    seen = None if cpu is None else Vitals(cpu=cpu, resident=0, transferred=0)
    return Look(now=now, owed=owed, seen=seen, is_heard=heard)


def test_one_that_owes_nothing_does_not_hang() -> None:
    pulse = HangPulse()
    assert [pulse.take(look(now, heard=False)) for now in (0.0, 100.0)] == [(0, 0), (0, 0)]


def test_one_that_owes_and_does_nothing_is_idle() -> None:
    pulse = HangPulse()
    assert [pulse.take(look(now, a=3)) for now in (0.0, 10.0, 30.0, 60.0)][1:] == [(10, 0), (30, 0), (60, 0)]


def test_one_that_works_is_not_idle_however_long_its_prompt() -> None:
    pulse = HangPulse()
    assert {pulse.take(look(now, cpu=now / 2, a=0))[0] for now in (0.0, 10.0, 40.0, 60.0, 90.0)} == {0}


def test_one_that_waits_for_a_graphics_card_is_not_idle() -> None:
    """A tenth of a percent of a processor is more than `/health` takes."""
    pulse = HangPulse()
    idle = [pulse.take(look(float(now), cpu=1 + now * 0.002, a=0))[0] for now in range(0, 600, 10)]
    assert max(idle) < 40


def test_answers_to_health_are_no_work() -> None:
    pulse = HangPulse()
    idle = [pulse.take(look(float(now), cpu=1 + now * 0.0002, a=0))[0] for now in range(0, 610, 10)]
    assert idle[-1] == 600


def test_one_whose_answers_grow_does_not_hang() -> None:
    pulse = HangPulse()
    pulse.take(look(0.0, a=1, b=1))
    assert pulse.take(look(10.0, a=1, b=2, heard=False)) == (0, 0)
    assert pulse.take(look(20.0, a=1, b=2, heard=False)) == (10, 10)


def test_who_comes_and_goes_is_no_sign_of_life() -> None:
    """Or clients that give up and try again would keep a hung server up for ever."""
    pulse = HangPulse()
    pulse.take(look(0.0, a=0))
    pulse.take(look(30.0, b=0))
    assert pulse.take(look(60.0, c=0)) == (60, 0)


def test_one_that_is_deaf_hangs_though_it_is_busy() -> None:
    pulse = HangPulse()
    assert [pulse.take(look(now, cpu=now, heard=False, a=1))[1] for now in (0.0, 10.0, 20.0)] == [0, 10, 20]
    assert pulse.take(look(30.0, cpu=30.0, heard=True, a=1))[1] == 0


def test_what_cannot_be_seen_counts_as_work() -> None:
    pulse = HangPulse()
    assert [pulse.take(look(now, cpu=None, a=1)) for now in (0.0, 10.0, 600.0)] == [(0, 0), (0, 0), (0, 0)]


def test_one_that_is_spared_begins_anew() -> None:
    pulse = HangPulse()
    assert [pulse.take(look(now, a=1)) for now in (0.0, 20.0)] == [(0, 0), (20, 0)]
    pulse.spare()
    assert pulse.take(look(30.0, a=1)) == (0, 0)


def test_a_time_in_which_nobody_looked_does_not_count() -> None:
    """Deck was stopped, and so was the server, most likely."""
    pulse = HangPulse()
    assert [pulse.take(look(now, heard=False, a=1)) for now in (0.0, 500.0, 510.0)] == [(0, 0), (0, 0), (10, 10)]
