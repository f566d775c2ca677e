"""Frames that are passed on: the same at any slicing, and as they were written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deck.upstream.frames import FrameCutter, payload_of, with_payload
from deck.upstream.sse import SSEDecoder, SSEError

STREAM = (
    b": hello\n\n"
    b'event: a\ndata: {"x": 1}\n\n'
    b"id: 7\r\ndata: one\r\ndata: two\r\n\r\n"
    b"data: mac\r\r"
    b"data: mixed\r\n\n"
    b"data: [DONE]\n\n"
)
PAYLOADS = [b"", b'{"x": 1}', b"one\ntwo", b"mac", b"mixed", b"[DONE]"]


def cut(data: bytes, step: int) -> list[bytes]:
    cutter = FrameCutter()
    frames = [frame for at in range(0, len(data), step) for frame in cutter.feed(data[at : at + step])]
    return [*frames, *cutter.end()]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, 1 << 20])
def test_any_slicing_gives_the_same_events(step: int) -> None:
    frames = cut(STREAM, step)
    assert b"".join(frames) == STREAM
    assert [payload_of(frame) for frame in frames if frame.strip()] == PAYLOADS


@given(st.lists(st.sampled_from([b"data: ", b"x", b"\n", b"\r\n", b"\r", b":", b"{}", b"event: y"]), max_size=40))
def test_nothing_is_lost_and_payloads_are_what_a_reader_reads(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    cutter = FrameCutter()
    frames = [frame for piece in pieces for frame in cutter.feed(piece)]
    assert data.startswith(b"".join(frames))
    decoder = SSEDecoder()
    read = [payload for piece in frames for payload in decoder.feed(piece)]
    assert [found for frame in frames if (found := payload_of(frame)).strip(b"\n")] == [
        item for item in read if item.strip(b"\n")
    ]


def test_a_frame_is_bounded() -> None:
    cutter = FrameCutter(limit=100)
    assert cutter.feed(b"data: " + b"x" * 90) == []
    with pytest.raises(SSEError, match="more than 100 bytes"):
        cutter.feed(b"x" * 20)


def test_a_payload_is_exchanged_and_the_rest_stays() -> None:
    frame = b"event: a\r\nid: 7\r\ndata: one\r\ndata: two\r\n\r\n"
    assert with_payload(frame, b"{}") == b"event: a\nid: 7\ndata: {}\n\n"
    assert with_payload(b"data: x\n\n", b"y") == b"data: y\n\n"


def test_what_the_end_leaves_is_ended() -> None:
    cutter = FrameCutter()
    assert cutter.feed(b"data: x\n\ndata: y") == [b"data: x\n\n"]
    assert cutter.end() == [b"data: y\n\n"]
    assert cutter.end() == []
