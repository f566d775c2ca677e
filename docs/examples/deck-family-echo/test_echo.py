"""The family against Deck's kit for tests."""

from deck_family_echo import Echo

from deck.testing.family import Leak, WrittenPart, check_leak, check_text

CALL = '<<call>>{"name": "read_note", "arguments": {"path": "a"}}<</call>>'


def test_a_call_is_found():
    parts = (WrittenPart("text", f"I look.\n{CALL}"),)
    check_leak(Echo(), Leak(name="one", parts=parts, says="I look.", calls=(("read_note", {"path": "a"}),)))


def test_ordinary_text_passes():
    check_text(Echo(), "<<call>> is how it calls")
