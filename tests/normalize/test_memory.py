"""What was read of earlier requests is used again, within bounds."""

from __future__ import annotations

from deck.normalize.memory import Memory


def test_a_value_is_remembered_by_its_key() -> None:
    memory: Memory[str] = Memory()
    memory.keep((b"a", True), "one", 1)
    memory.keep((b"a", False), "other", 1)
    assert (memory.get((b"a", True)), memory.get((b"a", False)), memory.get((b"b", True))) == ("one", "other", None)


def test_the_oldest_make_room() -> None:
    memory: Memory[int] = Memory(most=3, room=1000)
    for number in range(5):
        memory.keep(number, number, 10)
    assert [memory.get(number) for number in range(5)] == [None, None, 2, 3, 4]


def test_keys_take_no_more_bytes_than_there_is_room_for() -> None:
    memory: Memory[int] = Memory(most=100, room=1000)
    for number in range(6):
        memory.keep(number, number, 250)
    assert [memory.get(number) for number in range(6)] == [None, None, 2, 3, 4, 5]
    memory.keep("large", 1, 251)
    assert memory.get("large") is None
    memory.keep(5, 7, 250)
    assert memory.get(5) == 5
    memory.keep(6, 6, 250)
    assert [memory.get(number) for number in (2, 3, 6)] == [None, 3, 6]
