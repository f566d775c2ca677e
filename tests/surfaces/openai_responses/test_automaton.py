"""The automaton of Responses streams, itself tested: corruptions that a client's own reader would let pass, or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from responses_automaton import StreamFault, check
from responses_support import TOOL, raw_stream

from deck.api import (
    DeckError,
    ErrorKind,
    Event,
    Failed,
    Finish,
    FinishReason,
    PartDelta,
    PartEnd,
    PartStart,
    Start,
    Usage,
)


def text(index: int, said: str) -> list[Event]:
    return [PartStart(index, "text"), PartDelta(index, said), PartEnd(index)]


def call(index: int, identity: str, arguments: str) -> list[Event]:
    return [PartStart(index, "tool_call", identity, "read_note"), PartDelta(index, arguments), PartEnd(index)]


def _frames(data: bytes) -> list[bytes]:
    return [item + b"\n\n" for item in data.split(b"\n\n")[:-1]]


def _renumbered(parts: list[bytes]) -> bytes:
    """Number the frames anew, so that the fault is seen and not the gap it left."""
    done = []
    for number, part in enumerate(parts):
        if part.startswith(b"event: "):
            head, _, rest = part.partition(b'"sequence_number":')
            part = head + b'"sequence_number":%d' % number + rest.lstrip(b"0123456789")
        done.append(part)
    return b"".join(done)


GOOD = raw_stream(
    [
        Start(),
        *text(0, "I look"),
        *call(1, "abc123def", "{}"),
        *call(2, "xyz123def", '{"path":"b"}'),
        Finish(FinishReason.TOOL_CALLS, Usage(5, 2)),
    ],
    tools=[TOOL],
)
FAILED = raw_stream([Start(), *text(0, "a"), Failed(DeckError(ErrorKind.UPSTREAM, "it died"))])
Parts = list[bytes]


def at(parts: Parts, name: str, place: int = 0) -> int:
    return [number for number, part in enumerate(parts) if part.startswith(b"event: " + name.encode() + b"\n")][place]


def without(name: str, place: int = 0) -> Callable[[Parts], Parts]:
    return lambda parts: [part for number, part in enumerate(parts) if number != at(parts, name, place)]


def twice(name: str, place: int = 0) -> Callable[[Parts], Parts]:
    def change(parts: Parts) -> Parts:
        number = at(parts, name, place)
        return [*parts[: number + 1], *parts[number:]]

    return change


def replaced(old: bytes, new: bytes, name: str, place: int = 0) -> Callable[[Parts], Parts]:
    def change(parts: Parts) -> Parts:
        number = at(parts, name, place)
        assert old in parts[number]
        return [*parts[:number], parts[number].replace(old, new), *parts[number + 1 :]]

    return change


CORRUPT: dict[str, Callable[[Parts], Parts]] = {
    "first event missing": without("response.created"),
    "in_progress missing": without("response.in_progress"),
    "item start missing": without("response.output_item.added"),
    "part start missing": without("response.content_part.added"),
    "part stop missing": without("response.content_part.done"),
    "text done missing": without("response.output_text.done"),
    "arguments done missing": without("response.function_call_arguments.done"),
    "item stop missing": without("response.output_item.done"),
    "terminal missing": without("response.completed"),
    "done missing": lambda parts: parts[:-1],
    "item start twice": twice("response.output_item.added", 1),
    "item stop twice": twice("response.output_item.done", 1),
    "part stop twice": twice("response.content_part.done"),
    "text done twice": twice("response.output_text.done"),
    "created twice": twice("response.created"),
    "terminal twice": twice("response.completed"),
    "duplicate index": replaced(b'"output_index":1', b'"output_index":0', "response.output_item.added", 1),
    "index gap": replaced(b'"output_index":1', b'"output_index":2', "response.output_item.added", 1),
    "response id changes": replaced(b"resp_A", b"resp_B", "response.completed"),
    "item id changes": replaced(b"fc_abc", b"fc_abd", "response.output_item.done", 1),
    "id used before": lambda parts: [part.replace(b"fc_xyz", b"fc_abc") for part in parts],
    "call id used before": lambda parts: [part.replace(b"call_xyz", b"call_abc") for part in parts],
    "delta of another item": replaced(b"fc_abc", b"fc_xyz", "response.function_call_arguments.delta"),
    "delta lost": without("response.function_call_arguments.delta", 1),
    "delta of a wrong kind": lambda parts: [
        part.replace(b"function_call_arguments.delta", b"output_text.delta") for part in parts
    ],
    "delta after the stop": lambda parts: [
        *parts[: at(parts, "response.output_item.done") + 1],
        parts[at(parts, "response.output_text.delta")],
        *parts[at(parts, "response.output_item.done") + 1 :],
    ],
    "done is another text": replaced(b'"text":"I look"', b'"text":"I l"', "response.output_text.done"),
    "part is another text": replaced(b'"text":"I look"', b'"text":"I l"', "response.content_part.done"),
    "item is another text": replaced(b'"text":"I look"', b'"text":"I l"', "response.output_item.done"),
    "arguments are another text": replaced(b'"arguments":"{}"', b'"arguments":""', "response.output_item.done", 1),
    "terminal output differs": replaced(b'"I look"', b'"I l"', "response.completed"),
    "terminal status differs": replaced(b'"completed","background"', b'"failed","background"', "response.completed"),
    "terminal without usage": replaced(b'"usage":{', b'"usage":null,"_":{', "response.completed"),
    "usage before the end": replaced(b'"usage":null', b'"usage":{}', "response.in_progress"),
    "unknown event": replaced(b"response.output_text.done", b"response.output_text.end", "response.output_text.done"),
    "event line differs": replaced(b"event: response.completed", b"event: response.done", "response.completed"),
    "no event line": replaced(b"event: response.completed\n", b"", "response.completed"),
    "comment": lambda parts: [b": ping\n\n", *parts],
    "crlf": lambda parts: [part.replace(b"\n", b"\r\n") for part in parts],
    "overlap": lambda parts: [
        part for number, part in enumerate(parts) if number not in range(at(parts, "response.output_text.done"), 8)
    ],
    "item incomplete in a completed response": lambda parts: [
        part.replace(b'"status":"completed","call_id"', b'"status":"incomplete","call_id"').replace(
            b'"arguments":"{}","status":"completed"', b'"arguments":"{}","status":"incomplete"'
        )
        for part in parts
    ],
}


@pytest.mark.parametrize("corrupt", CORRUPT.values(), ids=CORRUPT)
def test_the_automaton_catches_corrupted_streams(corrupt: Callable[[Parts], Parts]) -> None:
    good = _frames(GOOD)
    assert _renumbered(good) == GOOD
    check(GOOD)
    bad = corrupt(good)
    assert bad != good
    with pytest.raises((StreamFault, KeyError)):
        check(_renumbered(bad))


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b'"sequence_number":5', b'"sequence_number":6'),
        lambda data: data.replace(b'"sequence_number":0', b'"sequence_number":1'),
        lambda data: data[:-1],
        lambda data: data.replace(b"I look", b"\xf0\x9f"),
    ],
    ids=["number twice", "number from 1", "last frame open", "half a character"],
)
def test_the_automaton_catches_wrong_numbers_and_bytes(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises((StreamFault, UnicodeDecodeError)):
        check(change(GOOD))


@pytest.mark.parametrize(
    "corrupt",
    [
        without("error"),
        without("response.failed"),
        replaced(b'"message":"it died","param"', b'"message":"it lives","param"', "error"),
        twice("error"),
        lambda parts: [*parts[:-2], parts[1], *parts[-2:]],
        replaced(b'"error":{"code"', b'"error":null,"_":{"code"', "response.failed"),
    ],
    ids=["no error", "no failed", "two errors differ", "error twice", "event between", "failed without error"],
)
def test_the_automaton_catches_corrupted_failures(corrupt: Callable[[Parts], Parts]) -> None:
    check(FAILED)
    with pytest.raises((StreamFault, KeyError)):
        check(_renumbered(corrupt(_frames(FAILED))))
