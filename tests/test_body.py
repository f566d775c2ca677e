"""Reading a request body: sizes, codings, types, time, and clients that leave."""

from __future__ import annotations

import asyncio
import gzip
import random
import tracemalloc
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import zstandard

from deck.body import ClientGone, read_body
from deck.errors import DeckError, ErrorKind

LIMIT = 1024 * 1024
BODY = b'{"model": "m", "messages": []}' * 20
GONE = {"type": "http.disconnect"}


def bare_deflate(content: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(content) + packer.flush()


def zstd(content: bytes, level: int = 3) -> bytes:
    return zstandard.ZstdCompressor(level=level, write_checksum=True).compress(content)


CODINGS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd}


class Sender:
    """A client: `receive` gives its chunks in order, then waits for ever; `taken` counts them."""

    def __init__(self, chunks: Iterable[bytes | dict[str, Any]], *, complete: bool = True) -> None:
        items = list(chunks)
        self.messages = [
            item if isinstance(item, dict) else {"type": "http.request", "body": item, "more_body": True}
            for item in items
        ]
        if complete:
            self.messages.append({"type": "http.request"})
        self.taken = 0

    async def __call__(self) -> dict[str, Any]:
        if self.taken == len(self.messages):
            await asyncio.Event().wait()
        self.taken += 1
        return self.messages[self.taken - 1]


def read(
    sender: Sender | bytes, headers: Iterable[tuple[str, str]] = (), *, limit: int = LIMIT, timeout: float = 60
) -> bytes:
    scope = {"type": "http", "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers]}
    receive = sender if isinstance(sender, Sender) else Sender([sender])
    return asyncio.run(read_body(scope, receive, limit=limit, timeout=timeout))


def refused(*arguments: Any, **options: Any) -> DeckError:
    with pytest.raises(DeckError) as caught:
        read(*arguments, **options)
    return caught.value


def sliced(content: bytes, step: int) -> list[bytes]:
    return [content[start : start + step] for start in range(0, len(content), step)]


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_chunks_are_put_together(step: int) -> None:
    assert read(Sender(sliced(BODY, step))) == BODY


def test_a_body_in_one_message_is_not_copied() -> None:
    assert read(Sender([{"type": "http.request", "body": BODY}], complete=False)) is BODY


@pytest.mark.parametrize("coding", [None, *CODINGS])
def test_no_body_is_an_empty_one(coding: str | None) -> None:
    assert read(b"", [("content-encoding", coding)] if coding else []) == b""


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize("coding", CODINGS)
def test_codings_at_any_slicing(coding: str, step: int) -> None:
    sender = Sender(sliced(CODINGS[coding](BODY), step))
    assert read(sender, [("content-encoding", coding)]) == BODY


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("size", [1, 65535, 65536, 65537, 200_000, LIMIT])
def test_no_byte_is_lost_at_the_borders_of_pieces(coding: str, size: int) -> None:
    noise = random.Random(size).randbytes(size // 2)
    content = noise + b"x" * (size - len(noise))
    assert read(CODINGS[coding](content), [("content-encoding", coding)]) == content


@pytest.mark.parametrize("outer", CODINGS)
@pytest.mark.parametrize("inner", CODINGS)
def test_two_codings_are_undone_last_first(inner: str, outer: str) -> None:
    sent = CODINGS[outer](CODINGS[inner](BODY))
    assert read(sent, [("content-encoding", f"{inner}, {outer}")]) == BODY
    assert read(sent, [("content-encoding", inner), ("content-encoding", outer.upper())]) == BODY


def test_other_spellings_of_codings() -> None:
    assert read(BODY, [("content-encoding", "identity")]) == BODY
    assert read(BODY, [("content-encoding", " ")]) == BODY
    assert read(gzip.compress(BODY), [("content-encoding", "X-GZip, identity")]) == BODY
    assert read(bare_deflate(BODY), [("content-encoding", "deflate")]) == BODY


def test_members_and_frames_follow_each_other() -> None:
    assert read(gzip.compress(b"a") * 3, [("content-encoding", "gzip")]) == b"aaa"
    assert read(zstd(b"a") * 3, [("content-encoding", "zstd")]) == b"aaa"


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_a_row_of_empty_members_is_not_followed_for_ever(coding: str) -> None:
    """They make no output that a limit could stop, but each costs a decoder."""
    empty = CODINGS[coding](b"")
    assert read(empty * 4096, [("content-encoding", coding)]) == b""
    error = refused(empty * 4097, [("content-encoding", coding)])
    assert error.kind is ErrorKind.INVALID_REQUEST
    assert "more than 4096 members" in error.message


@pytest.mark.parametrize("coding", ["br", "compress", "aws-chunked", "x" * 5000])
def test_an_unknown_coding_is_named_with_those_accepted(coding: str) -> None:
    sender = Sender([BODY])
    error = refused(sender, [("content-encoding", f"gzip, {coding}")])
    assert error.kind is ErrorKind.UNSUPPORTED_MEDIA
    assert f"'{coding[:100]}'" in error.message
    assert "gzip, deflate, zstd" in error.message
    assert sender.taken == 0


def test_three_codings_are_too_many() -> None:
    error = refused(BODY, [("content-encoding", "gzip, gzip, gzip")])
    assert error.kind is ErrorKind.UNSUPPORTED_MEDIA
    assert "3 codings" in error.message


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("keep", [1, 5, -9, -1])
def test_a_cut_coding_is_refused(coding: str, keep: int) -> None:
    error = refused(CODINGS[coding](BODY)[:keep], [("content-encoding", coding)])
    assert error.kind is ErrorKind.INVALID_REQUEST
    assert coding in error.message


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("form", ["noise", "flipped", "trailing"])
def test_a_corrupt_coding_is_refused(coding: str, form: str) -> None:
    packed = CODINGS[coding](BODY)
    middle = len(packed) // 2
    sent = {
        "noise": BODY,
        "flipped": packed[:middle] + bytes(byte ^ 0xFF for byte in packed[middle : middle + 4]) + packed[middle + 4 :],
        "trailing": packed + b"more of it, which is no coding",
    }[form]
    error = refused(sent, [("content-encoding", coding)])
    assert error.kind is ErrorKind.INVALID_REQUEST
    assert coding in error.message


def test_a_length_over_the_limit_is_refused_before_reading() -> None:
    sender = Sender([BODY])
    error = refused(sender, [("content-length", str(LIMIT + 1))])
    assert error.kind is ErrorKind.TOO_LARGE
    assert "1 MiB" in error.message
    assert sender.taken == 0
    assert refused(b"", [("content-length", "9" * 5000)]).kind is ErrorKind.TOO_LARGE


def test_a_length_at_the_limit_is_fine() -> None:
    assert read(BODY, [("content-length", f"00{len(BODY)}")], limit=len(BODY)) == BODY


@pytest.mark.parametrize("length", ["-1", "abc", "1e3", "²", ""])
def test_a_length_that_is_none_is_refused(length: str) -> None:
    assert refused(BODY, [("content-length", length)]).kind is ErrorKind.INVALID_REQUEST


def test_chunks_over_the_limit_are_not_read_to_their_end() -> None:
    sender = Sender([b"x" * 100] * 50)
    assert refused(sender, limit=1000).kind is ErrorKind.TOO_LARGE
    assert sender.taken == 11


def bombs() -> dict[str, bytes]:
    zeros = bytes(64 * LIMIT)
    return {coding: pack(zeros) for coding, pack in CODINGS.items()}


@pytest.mark.parametrize("coding", CODINGS)
def test_a_bomb_is_refused_and_memory_stays_bounded(coding: str) -> None:
    sent = bombs()[coding]
    tracemalloc.start()
    try:
        error = refused(sent, [("content-encoding", coding)])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert error.kind is ErrorKind.TOO_LARGE
    assert f"decoded from {coding}" in error.message
    assert peak < 24 * LIMIT


def test_a_bomb_inside_a_coding_is_refused_where_it_bursts() -> None:
    sent = zstd(gzip.compress(bytes(64 * LIMIT)), 19)
    assert "decoded from gzip" in refused(sent, [("content-encoding", "gzip, zstd")]).message
    # The outer one bursts although the inner one would make nothing of it.
    stored = gzip.compress(BODY * 4000, 0)
    assert "decoded from zstd" in refused(zstd(stored), [("content-encoding", "gzip, zstd")]).message


def test_a_zstd_window_beyond_the_rfc_is_refused() -> None:
    settings = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    packer = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    sent = packer.compress(BODY) + packer.flush()
    assert refused(sent, [("content-encoding", "zstd")]).kind is ErrorKind.INVALID_REQUEST


@pytest.mark.parametrize("coding", CODINGS)
def test_decoding_gives_others_their_turn(coding: str) -> None:
    """A large body must not hold the loop from its first byte to its last."""

    async def main() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(count())
        scope = {"headers": [(b"content-encoding", coding.encode())]}
        sender = Sender([CODINGS[coding](bytes(32 * LIMIT))])
        await read_body(scope, sender, limit=32 * LIMIT, timeout=60)
        task.cancel()
        return turns

    assert asyncio.run(main()) >= 4


@pytest.mark.parametrize(
    "kind",
    [
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/vnd.api+json",
        "text/plain;charset=UTF-8",
        "",
    ],
)
def test_types_that_hold_json_are_read(kind: str) -> None:
    assert read(BODY, [("content-type", kind)]) == BODY


@pytest.mark.parametrize(
    "kind", ["multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "application/jsonp", "x" * 5000]
)
def test_other_types_are_refused_unread(kind: str) -> None:
    sender = Sender([BODY])
    error = refused(sender, [("content-type", kind)])
    assert error.kind is ErrorKind.UNSUPPORTED_MEDIA
    assert kind.partition(";")[0][:100] in error.message
    assert "application/json" in error.message
    assert sender.taken == 0


def test_a_body_that_does_not_come_is_a_timeout() -> None:
    error = refused(Sender([b"{"], complete=False), timeout=0)
    assert error.kind is ErrorKind.REQUEST_TIMEOUT
    assert "0 s" in error.message


@pytest.mark.parametrize("chunks", [[GONE], [b'{"a":', GONE]])
def test_a_client_that_leaves_is_no_error_of_anyone(chunks: list[Any]) -> None:
    with pytest.raises(ClientGone):
        read(Sender(chunks, complete=False))


def test_cancelling_the_reader_is_no_timeout() -> None:
    async def main() -> None:
        task = asyncio.create_task(read_body({"headers": []}, Sender([], complete=False), limit=1, timeout=60))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
