from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deck.upstream.sse import SSEDecoder, SSEError


@dataclass(frozen=True)
class Case:
    name: str
    data: bytes
    payloads: list[bytes]
    rest: tuple[bytes, ...] = ()


CASES = [
    Case("one frame", b'data: {"a":1}\n\n', [b'{"a":1}']),
    Case("two frames", b"data: 1\n\ndata: 2\n\n", [b"1", b"2"]),
    Case("no space", b"data:1\n\n", [b"1"]),
    Case("only one space is taken", b"data:  1\n\n", [b" 1"]),
    Case("crlf", b"data: 1\r\n\r\ndata: 2\r\n\r\n", [b"1", b"2"]),
    Case("cr", b"data: 1\r\rdata: 2\r\r", [b"1", b"2"]),
    Case("mixed line ends", b"data: 1\r\n\ndata: 2\n\r\ndata: 3\r\n\r", [b"1", b"2", b"3"]),
    Case("many blank lines", b"\n\n\n\ndata: 1\n\n\n\n\ndata: 2\n\n", [b"1", b"2"]),
    Case("several lines", b"data: a\ndata: b\n\n", [b"a\nb"]),
    Case("comments", b":\n\n: ping\n\ndata: 1\n: in between\ndata: 2\n\n", [b"1\n2"]),
    Case("other fields", b"event: x\nid: 7\nretry: 5\ndata: 1\n\nevent: y\n\n", [b"1"]),
    Case("empty data", b"data:\n\ndata: \n\ndata\n\ndata: 1\n\n", [b"1"]),
    Case("byte order mark", b"\xef\xbb\xbfdata: 1\n\n", [b"1"]),
    Case("error line", b'error: {"code":400}\n\n', [b'{"error":{"code":400}}']),
    Case("error line without space", b'error:{"code":400}\n\n', [b'{"error":{"code":400}}']),
    Case("letters of four bytes", "data: 🌍🌍\n\n".encode(), ["🌍🌍".encode()]),
    Case("no blank line at the end", b"data: 1\n\ndata: 2\n", [b"1"], (b"2",)),
    Case("no line end at the end", b"data: 1\n\ndata: [DONE]", [b"1"], (b"[DONE]",)),
    Case("cut within a field name", b"data: 1\n\nda", [b"1"]),
    Case("nothing", b"", []),
]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1 << 20])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_payloads_come_out_whatever_the_slicing(case: Case, step: int) -> None:
    decoder = SSEDecoder()
    payloads = [
        payload for start in range(0, len(case.data), step) for payload in decoder.feed(case.data[start:][:step])
    ]
    assert payloads == case.payloads
    assert tuple(decoder.end()) == case.rest


def test_a_frame_comes_out_as_soon_as_it_is_whole() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"data: 1\n") == []
    assert decoder.feed(b"\n") == [b"1"]
    assert decoder.feed(b"data: 2\r\n\r") == [b"2"]
    assert decoder.feed(b"\ndata: 3\n\n") == [b"3"]


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1)), st.data())
def test_random_slices_change_nothing(texts: list[str], data: st.DataObject) -> None:
    end = data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    stream = b"".join(b"data: " + text.encode() + 2 * end for text in texts)
    decoder, payloads = SSEDecoder(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        payloads += decoder.feed(stream[:size])
        stream = stream[size:]
    assert payloads == [text.encode() for text in texts]
    assert decoder.end() == []


def fed(decoder: SSEDecoder, data: bytes, step: int) -> list[bytes]:
    """Feed slices; a refusal leaves what came before it."""
    payloads: list[bytes] = []
    for start in range(0, len(data), step):
        try:
            payloads += decoder.feed(data[start : start + step])
        except SSEError as error:
            return [*payloads, *error.payloads, b"refused"]
    return payloads


@pytest.mark.parametrize("step", [1, 5, 1 << 20])
def test_a_frame_over_the_limit_is_refused_and_what_came_before_is_kept(step: int) -> None:
    data = b"data: 1\n\n" + b"data: " + b"x" * 35 + b"\n\n"
    assert fed(SSEDecoder(limit=40), data, step) == [b"1", b"refused"]


@pytest.mark.parametrize("step", [1, 5, 1 << 20])
def test_a_frame_of_the_limit_passes(step: int) -> None:
    data = b"data: " + b"x" * 34 + b"\n\n"
    assert fed(SSEDecoder(limit=40), data, step) == [b"x" * 34]


def test_an_endless_frame_is_refused_before_it_ends() -> None:
    assert fed(SSEDecoder(limit=1000), b"y" * 5000, 100) == [b"refused"]
