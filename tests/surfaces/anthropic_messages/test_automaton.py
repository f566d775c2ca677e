"""The automaton itself: it passes good streams and catches every corruption."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from messages_automaton import StreamFault, check
from messages_support import streamed

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

USAGE = Usage(prompt=5, completion=2, cached=1)
GOOD: list[Event] = [
    Start(),
    PartStart(0, "reasoning"),
    PartDelta(0, "hm"),
    PartEnd(0),
    PartStart(1, "text"),
    PartDelta(1, "Hel"),
    PartDelta(1, "lo"),
    PartEnd(1),
    PartStart(2, "tool_call", "abc123def", "read_note"),
    PartDelta(2, '{"path":'),
    PartDelta(2, '"a"}'),
    PartEnd(2),
    PartStart(3, "tool_call", "abc123xyz", "read_note"),
    PartDelta(3, "{}"),
    PartEnd(3),
    Finish(FinishReason.TOOL_CALLS, USAGE),
]
# Where each frame of that stream stands.
(
    START,
    THINK_START,
    THINK,
    SIGNATURE,
    THINK_STOP,
    TEXT_START,
    TEXT,
    TEXT_MORE,
    TEXT_STOP,
    CALL_START,
    CALL,
    CALL_MORE,
    CALL_STOP,
    OTHER_START,
    OTHER,
    OTHER_STOP,
    DELTA,
    STOP,
) = range(18)
Parts = list[bytes]


def parts() -> Parts:
    return [frame + b"\n\n" for frame in streamed(GOOD).split(b"\n\n")[:-1]]


def without(*places: int) -> Callable[[Parts], Parts]:
    return lambda frames: [frame for place, frame in enumerate(frames) if place not in places]


def swapped(place: int, old: bytes, new: bytes) -> Callable[[Parts], Parts]:
    def swap(frames: Parts) -> Parts:
        assert old in frames[place]
        return [*frames[:place], frames[place].replace(old, new), *frames[place + 1 :]]

    return swap


def moved(place: int, to: int) -> Callable[[Parts], Parts]:
    def move(frames: Parts) -> Parts:
        rest = [frame for other, frame in enumerate(frames) if other != place]
        return [*rest[:to], frames[place], *rest[to:]]

    return move


def doubled(place: int) -> Callable[[Parts], Parts]:
    return lambda frames: [*frames[: place + 1], *frames[place:]]


CORRUPTIONS: dict[str, Callable[[Parts], Parts]] = {
    "first event missing": without(START),
    "block start missing": without(TEXT_START),
    "call start missing": without(CALL_START),
    "stop missing": without(TEXT_STOP),
    "last stop missing": without(OTHER_STOP),
    "message_delta missing": without(DELTA),
    "terminal missing": without(STOP),
    "end missing": without(DELTA, STOP),
    "duplicate index": swapped(TEXT_START, b'"index":1', b'"index":0'),
    "index gap": swapped(TEXT_START, b'"index":1', b'"index":2'),
    "a delta of another index": swapped(TEXT, b'"index":1', b'"index":0'),
    "a stop of another index": swapped(TEXT_STOP, b'"index":1', b'"index":0'),
    "overlapping blocks": moved(TEXT_STOP, CALL_START),
    "text delta in a call": swapped(CALL, b'"input_json_delta","partial_json"', b'"text_delta","text"'),
    "thinking delta in text": swapped(TEXT, b'"text_delta","text"', b'"thinking_delta","thinking"'),
    "delta after the stop": moved(TEXT_MORE, TEXT_STOP),
    "double stop": doubled(CALL_STOP),
    "block started twice": doubled(TEXT_START),
    "broken tool JSON": without(CALL_MORE),
    "junk after tool JSON": doubled(CALL_MORE),
    "input that is no object": swapped(OTHER, b'"{}"', b'"[]"'),
    "repeated message_start": doubled(START),
    "repeated message_delta": doubled(DELTA),
    "repeated message_stop": doubled(STOP),
    "unknown event": swapped(STOP, b"message_stop", b"message_halt"),
    "missing event line": swapped(TEXT, b"event: content_block_delta\n", b""),
    "event line of another type": swapped(TEXT, b"event: content_block_delta", b"event: content_block_stop"),
    "text after the end": lambda frames: [*frames, frames[TEXT]],
    "ping after the end": lambda frames: [*frames, b'event: ping\ndata: {"type":"ping"}\n\n'],
    "ping before the start": lambda frames: [b'event: ping\ndata: {"type":"ping"}\n\n', *frames],
    "comment": lambda frames: [b": hi\n\n", *frames],
    "done": lambda frames: [*frames, b"data: [DONE]\n\n"],
    "no signature": without(SIGNATURE),
    "two signatures": doubled(SIGNATURE),
    "signature before the thought": moved(SIGNATURE, THINK),
    "block that does not begin empty": swapped(TEXT_START, b'"text":""', b'"text":"x"'),
    "message that does not begin empty": swapped(START, b'"content":[]', b'"content":[{}]'),
    "stop_reason unknown": swapped(DELTA, b'"tool_use"', b'"stop"'),
    "stop_reason that hides a call": swapped(DELTA, b'"tool_use"', b'"end_turn"'),
    "stop_sequence without its reason": swapped(DELTA, b'"stop_sequence":null', b'"stop_sequence":"x"'),
    "usage missing": swapped(DELTA, b'"output_tokens":2', b'"other":2'),
    "usage is no number": swapped(DELTA, b'"output_tokens":2', b'"output_tokens":null'),
    "same tool id": swapped(OTHER_START, b"abc123xyz", b"abc123def"),
    "CR LF": lambda frames: [frame.replace(b"\n", b"\r\n") for frame in frames],
    "last frame not closed": lambda frames: [*frames[:-1], frames[-1][:-1]],
}


def test_a_good_stream_passes() -> None:
    assert len(parts()) == STOP + 1
    got = check(b"".join(parts()))
    assert (got.text, got.thinking, got.stop_reason) == ("Hello", "hm", "tool_use")
    assert [call["input"] for call in got.calls] == [{"path": "a"}, {}]


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_every_corruption_is_caught(name: str) -> None:
    with pytest.raises((StreamFault, KeyError)):
        check(b"".join(CORRUPTIONS[name](parts())))


def test_an_error_ends_a_stream_wherever_it_comes() -> None:
    error = Failed(DeckError(ErrorKind.UPSTREAM, "it died"))
    for length in range(len(GOOD)):
        data = streamed([*GOOD[:length], error])
        assert check(data).error == {"type": "api_error", "message": "it died"}
        with pytest.raises(StreamFault):
            check(data + parts()[STOP])
