"""Which of several servers an exchange goes to."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from deck.servers.choice import Candidate, choose

NAMES = ("http://a:1", "http://b:1", "http://c:1")


def able(*running: int, room: int = 0, names: tuple[str, ...] = NAMES) -> list[Candidate]:
    return [Candidate(name=name, running=count, room=room) for name, count in zip(names, running, strict=False)]


def place(candidates: list[Candidate], *arguments: object) -> int:
    return candidates.index(choose(candidates, *arguments))  # type: ignore[arg-type]  # passed on


def test_the_idlest_is_chosen() -> None:
    assert place(able(2, 1, 3)) == 1


def test_those_that_are_alike_take_turns() -> None:
    found = [place(able(0, 0, 1), None, None, turn) for turn in range(4)]
    assert found == [0, 1, 0, 1]


def test_of_those_that_are_alike_a_slow_one_is_left_out() -> None:
    candidates = [
        Candidate(name="a", running=0, latency=0.1),
        Candidate(name="b", running=0, latency=0.5),
        Candidate(name="c", running=0),
    ]
    assert {choose(candidates, turn=turn).name for turn in range(6)} == {"a", "c"}


def test_a_slow_one_is_used_when_the_others_are_busier() -> None:
    candidates = [Candidate(name="a", running=3, latency=0.1), Candidate(name="b", running=0, latency=9.0)]
    assert choose(candidates).name == "b"


@given(st.text(max_size=40), st.permutations(NAMES), st.integers(0, 99))
def test_a_conversation_has_one_place_whoever_asks(affinity: str, names: tuple[str, ...], turn: int) -> None:
    assert choose(able(0, 0, 0), affinity).name == choose(able(0, 0, 0, names=tuple(names)), affinity, None, turn).name


def test_conversations_are_spread() -> None:
    counts = Counter(place(able(0, 0, 0), f"talk {number}") for number in range(3000))
    assert all(800 < counts[number] < 1200 for number in range(3)), counts


@given(st.text(max_size=20))
def test_a_server_that_goes_moves_its_own_conversations_alone(affinity: str) -> None:
    before = choose(able(0, 0, 0), affinity).name
    rest = tuple(name for name in NAMES if name != NAMES[0])
    after = choose(able(0, 0, names=rest), affinity).name
    assert before in (after, NAMES[0])


def test_a_conversation_goes_back_to_where_it_was_last() -> None:
    for number in range(20):
        assert choose(able(0, 0, 0), f"talk {number}", NAMES[2]).name == NAMES[2]


def test_a_conversation_leaves_a_server_that_is_overloaded() -> None:
    assert place(able(1, 0, 0), "talk", NAMES[0]) == 0, "one exchange is no load"
    assert place(able(2, 0, 0), "talk", NAMES[0]) != 0
    assert place(able(3, 3, 3), "talk", NAMES[0]) == 0, "none is above the mean"
    assert place(able(9, 4, 4), "talk", NAMES[0]) != 0


def test_one_without_a_free_slot_is_not_chosen_while_another_has_one() -> None:
    assert place(able(2, 1, 2, room=2), "talk", NAMES[0]) == 1
    assert place(able(2, 2, 3, room=2)) in (0, 1)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(0, 8), st.none() | st.text(max_size=5))
def test_nobody_is_far_above_the_mean(running: list[int], room: int, affinity: str | None) -> None:
    names = tuple(f"s{number}" for number in range(len(running)))
    candidates = able(*running, room=room, names=names)
    found = choose(candidates, affinity, names[0])
    mean = (sum(running) + 1) / len(running)
    assert found.running + 1 <= max(2, 1.5 * mean + 1)
    assert not found.is_full or all(item.is_full for item in candidates)
