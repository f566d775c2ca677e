"""What was read of earlier requests is used again, within bounds."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from deck.normalize.memory import Memory


def test_a_value_is_remembered_by_its_key() -> None:
    memory: Memory[str] = Memory()
    memory.keep((b"a", True), "one", b"")
    memory.keep((b"a", False), "other", b"")
    assert (memory.get((b"a", True)), memory.get((b"a", False)), memory.get((b"b", True))) == ("one", "other", None)


def test_those_used_last_stay() -> None:
    memory: Memory[int] = Memory(most=3)
    for number in range(3):
        memory.keep(number, number, b"")
    assert memory.get(0) == 0
    memory.keep(3, 3, b"")
    assert [memory.get(number) for number in range(4)] == [0, None, 2, 3]


def test_what_is_remembered_takes_no_more_bytes_than_there_is_room_for() -> None:
    memory: Memory[int] = Memory(most=100, room=1000)
    for number in range(6):
        memory.keep(number, number, b"x" * 250)
    assert [memory.get(number) for number in range(6)] == [None, None, 2, 3, 4, 5]
    memory.keep("large", 1, b"x" * 251)
    assert memory.get("large") is None
    memory.keep(5, 7, b"")
    assert memory.get(5) == 5
    memory.keep(6, 6, b"x" * 250)
    assert [memory.get(number) for number in (2, 3, 6)] == [None, 3, 6]


@pytest.mark.parametrize(
    ("written", "notes"), [(b"{}" * 50_000, 0), (b"[]" * 50_000, 0), (b"1," * 50_000, 0), (b"", 9_000)]
)
def test_many_small_objects_count_for_more_than_their_bytes(written: bytes, notes: int) -> None:
    memory: Memory[int] = Memory(room=16 << 20)
    memory.keep(1, 1, written, notes)
    assert memory.get(1) is None
    memory.keep(2, 2, b"x" * len(written))
    assert memory.get(2) == 2


def test_what_is_held_is_bounded() -> None:
    """Each body is legal and costs 86 times its bytes once it is decoded."""
    memory: Memory[object] = Memory()
    tracemalloc.start()
    try:
        for number in range(200):
            written = b'{"x":[%s]}' % b",".join([b"{}"] * (2_000 * (1 + number % 4)))
            memory.keep(number, json.loads(written), written)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 16 << 20
