"""When a server that failed is used again; time is an argument."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deck.servers.breaker import Breaker, Circuit


def breaker(jitter: Callable[[], float] = lambda: 1.0) -> Breaker:
    return Breaker(jitter, limit=3, first=1.0, longest=8.0)


def opened(at: float = 0.0) -> Breaker:
    found = breaker()
    for _ in range(3):
        found.failed(at)
    return found


def test_only_failures_in_a_row_open_it() -> None:
    found = breaker()
    for _ in range(5):
        found.failed(0)
        found.failed(0)
        assert found.allows(0)
        found.succeeded()
    for _ in range(3):
        found.failed(0)
    assert found.state(0) is Circuit.OPEN
    assert not found.allows(0.99)
    assert found.retry_in(0.25) == 0.75


def test_half_open_lets_one_try_through() -> None:
    found = opened()
    assert found.state(1) is Circuit.HALF_OPEN
    assert found.allows(1)
    assert found.begin(1)
    assert not found.allows(1)
    found.abandon()
    assert found.allows(1)


def test_a_try_that_ends_well_closes_it() -> None:
    found = opened()
    found.begin(1)
    found.succeeded()
    assert found.state(1) is Circuit.CLOSED
    found.failed(1)
    found.failed(1)
    assert found.allows(1), "its failures are forgotten"


def test_an_answer_that_begins_lets_others_in_on_probation() -> None:
    found = opened()
    found.begin(1)
    found.answered()
    assert found.allows(1)
    assert not found.begin(1), "no try any more"
    found.failed(1)
    assert found.state(1) is Circuit.OPEN
    assert found.retry_in(1) == 2.0, "longer than before"


def test_an_answer_that_begins_forgets_no_failures_while_it_is_closed() -> None:
    found = breaker()
    for _ in range(3):
        found.answered()
        found.failed(0)
    assert found.state(0) is Circuit.OPEN


def test_each_opening_is_twice_as_long_up_to_a_bound() -> None:
    found, now, times = opened(), 0.0, []
    for _ in range(6):
        times.append(found.retry_in(now))
        now += times[-1]
        found.begin(now)
        found.failed(now)
    assert times == [1, 2, 4, 8, 8, 8]


def test_a_long_calm_makes_an_opening_short_again() -> None:
    found = opened()
    found.begin(1)
    found.failed(1)
    assert found.retry_in(1) == 2.0
    found.answered()
    found.failed(6.9)
    assert found.retry_in(6.9) == 4.0
    found.answered()
    found.failed(6.9 + 4 + 8)
    assert found.retry_in(6.9 + 4 + 8) == 1.0


def test_one_that_is_known_to_be_gone_opens_it_at_once() -> None:
    found = breaker()
    found.trip(5)
    assert found.state(5) is Circuit.OPEN
    found.trip(5.5)
    assert found.retry_in(5.5) == 0.5, "what is known already changes nothing"
    found.trip(6)
    assert found.retry_in(6) == 2.0


def test_exchanges_that_began_before_change_nothing_while_it_is_open() -> None:
    found = opened()
    for _ in range(20):
        found.failed(0.5)
    assert found.retry_in(0.5) == 0.5


def test_an_exchange_that_began_before_and_ends_well_closes_it() -> None:
    found = opened()
    found.succeeded()
    assert found.allows(0)


@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
def test_jitter_shortens_an_opening_by_a_quarter_at_most(jitter: float) -> None:
    found = breaker(lambda: jitter)
    found.trip(0)
    assert found.retry_in(0) == 0.75 + 0.25 * jitter


EVENTS = st.sampled_from(["failed", "trip", "succeeded", "answered", "begin", "abandon"])


@given(st.lists(st.tuples(EVENTS, st.floats(0, 20)), max_size=60))
def test_it_never_stays_shut_for_longer_than_its_longest_time(events: list[tuple[str, float]]) -> None:
    found, now = breaker(), 0.0
    for event, passed in events:
        now += passed
        match event:
            case "failed" | "trip":
                getattr(found, event)(now)
            case "begin":
                if found.allows(now):
                    found.begin(now)
            case _:
                getattr(found, event)()
        assert 0 <= found.retry_in(now) <= 8.0001
    found.abandon()
    assert found.allows(now + 8.0001)


def test_other_times_hold_for_what_is_open_too() -> None:
    found = opened()
    found.retime(0.5, first=0.1, longest=0.4)
    assert found.retry_in(0.5) == pytest.approx(0.4)
    found.succeeded()
    for _ in range(3):
        found.failed(10)
    assert found.retry_in(10) == pytest.approx(0.1)
