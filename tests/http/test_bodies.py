"""Whatever a client sends as a body, it gets a clear answer in JSON, and Deck stays small and alive."""

from __future__ import annotations

import asyncio
import gzip
import json
import resource
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from app_support import BODY, CHAT, TOKEN, App, app, error_of

MIB = 1024 * 1024
PLAIN = json.dumps(BODY).encode()
JSON = {"content-type": "application/json"}
LIMIT = MIB


def post(deck: App, content: Any, headers: dict[str, str] | None = None, path: str = CHAT) -> httpx.Response:
    return deck.send("POST", path, content=content, headers={**JSON, **(headers or {})})


def with_field(text: bytes) -> bytes:
    return PLAIN[:-1] + b"," + text + b"}"


BAD = {
    "empty": (b"", "empty"),
    "blank": (b" \n ", "empty"),
    "no-json": (b"model=m1", "not JSON"),
    "html": (b"<html>", "not JSON"),
    "cut": (PLAIN[:-3], "not JSON"),
    "two-values": (PLAIN + PLAIN, "not JSON"),
    "trailing-comma": (PLAIN[:-1] + b",}", "not JSON"),
    "single-quotes": (b"{'model': 'm1'}", "not JSON"),
    "comment": (b"{/* */}", "not JSON"),
    "array": (b"[" + PLAIN + b"]", "an array"),
    "string": (b'"m1"', "a string"),
    "number": (b"1", "a number"),
    "true": (b"true", "a boolean"),
    "null": (b"null", "null"),
    "nan": (with_field(b'"temperature":NaN'), "NaN"),
    "infinity": (with_field(b'"temperature":Infinity'), "Infinity"),
    "minus-infinity": (with_field(b'"temperature":-Infinity'), "-Infinity"),
    "huge-exponent": (with_field(b'"temperature":1e999'), ""),
    "duplicate-keys": (b'{"model":"a",' + PLAIN[1:], "'model' stands twice"),
    "duplicate-keys-inside": (
        b'{"model":"m1","messages":[{"role":"user","content":"a","content":"b"}]}',
        "'content' stands twice in messages[0]",
    ),
    "duplicate-keys-escaped": (b'{"\\u006dodel":"a",' + PLAIN[1:], "'model' stands twice"),
    "invalid-utf-8": (PLAIN.replace(b"hi", b"\xff\xfe"), "UTF-8"),
    "overlong-utf-8": (PLAIN.replace(b"hi", b"\xc0\xaf"), "UTF-8"),
    "utf-8-surrogate": (PLAIN.replace(b"hi", b"\xed\xa0\x80"), "UTF-8"),
    "utf-16": (PLAIN.decode().encode("utf-16"), "UTF-8"),
    "bom": (b"\xef\xbb\xbf" + PLAIN, "byte order mark"),
    "nul": (PLAIN.replace(b"hi", b"\x00"), "not JSON"),
    "depth-10000": (with_field(b'"metadata":' + b"[" * 10_000 + b"]" * 10_000), "nested too deeply"),
    "depth-10000-objects": (with_field(b'"metadata":' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000), "nested too deeply"),
    "depth-200": (with_field(b'"metadata":' + b"[" * 200 + b"]" * 200), "nested too deeply"),
    "depth-unclosed": (b"[" * 100_000, "nested too deeply"),
    "lone-surrogate": (PLAIN.replace(b"hi", b"\\ud800"), "surrogate"),
    "lone-low-surrogate": (PLAIN.replace(b"hi", b"\\udc00x"), "surrogate"),
    "big-integer": (with_field(b'"seed":' + b"9" * 40), ""),
    "endless-integer": (with_field(b'"seed":' + b"9" * 5000), ""),
}


@pytest.mark.parametrize(("content", "said"), BAD.values(), ids=BAD)
def test_a_bad_body_is_400_and_says_why(deck: App, content: bytes, said: str) -> None:
    """B172."""
    assert said in error_of(post(deck, content), 400)["message"]
    assert not deck.upstream()
    assert post(deck, PLAIN).status_code == 200


@pytest.mark.parametrize(
    "content",
    [
        PLAIN,
        b" \r\n\t" + PLAIN + b"\n",
        PLAIN.replace(b"hi", b"\\ud83d\\ude00 \\u00e9 \\/"),
        PLAIN.replace(b"hi", "ünïcödé 😀 \u202e".encode()),
        with_field(b'"metadata":' + b"[" * 100 + b"]" * 100),
    ],
)
def test_an_odd_but_good_body_works(deck: App, content: bytes) -> None:
    answer = post(deck, content)
    assert answer.status_code == 200, answer.text
    assert deck.upstream()[0]["messages"] == json.loads(content)["messages"]


@pytest.mark.parametrize("path", [CHAT, "/deck/explain"])
@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("APPLICATION/JSON", 200),
        ("application/vnd.api+json", 200),
        ("text/plain;charset=UTF-8", 200),
        ("", 200),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("text/html", 415),
        ("application/xml", 415),
        ("application/jsonp", 415),
        ("x" * 5000, 415),
    ],
)
def test_content_types(deck: App, path: str, kind: str, status: int) -> None:
    """B172."""
    answer = post(deck, PLAIN, {"content-type": kind}, path)
    assert answer.status_code == status, answer.text
    if status == 415:
        assert "application/json" in error_of(answer, 415)["message"]
        assert len(answer.content) < 1000


def zipped(content: bytes) -> bytes:
    return gzip.compress(content)


def zst(content: bytes) -> bytes:
    return zstandard.compress(content)


def zst_streamed(content: bytes) -> bytes:
    maker = zstandard.ZstdCompressor().compressobj()
    return maker.compress(content) + maker.flush()


def bare(content: bytes) -> bytes:
    maker = zlib.compressobj(wbits=-15)
    return maker.compress(content) + maker.flush()


GOOD: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "identity": ("identity", bytes),
    "gzip": ("gzip", zipped),
    "x-gzip": ("x-gzip", zipped),
    "upper": ("GZIP", zipped),
    "two-members": ("gzip", lambda content: zipped(content[:9]) + zipped(content[9:])),
    "deflate": ("deflate", zlib.compress),
    "deflate-bare": ("deflate", bare),
    "zstd": ("zstd", zst),
    "zstd-without-size": ("zstd", zst_streamed),
    "zstd-two-frames": ("zstd", lambda content: zst(content[:9]) + zst(content[9:])),
    "gzip-then-zstd": ("gzip, zstd", lambda content: zst(zipped(content))),
    "zstd-then-gzip": ("zstd,gzip", lambda content: zipped(zst(content))),
    "identity-listed": ("identity, gzip", zipped),
}


@pytest.mark.parametrize(("coding", "make"), GOOD.values(), ids=GOOD)
@pytest.mark.parametrize("path", [CHAT, "/deck/explain"])
def test_codings_are_decoded_and_not_forwarded(
    deck: App, path: str, coding: str, make: Callable[[bytes], bytes]
) -> None:
    answer = post(deck, make(PLAIN), {"content-encoding": coding}, path)
    assert answer.status_code == 200, answer.text
    for request in deck.fake.requests:
        assert "content-encoding" not in request.headers


@pytest.mark.parametrize(
    ("coding", "content", "status", "said"),
    [
        ("foo", PLAIN, 415, "'foo'"),
        ("br", PLAIN, 415, "'br'"),
        ("gzip, foo", zipped(PLAIN), 415, "'foo'"),
        ("gzip, gzip, gzip", PLAIN, 415, "3 codings"),
        (", ".join(["gzip"] * 1000), PLAIN, 415, "codings"),
        ("x" * 5000, PLAIN, 415, "accepted"),
        ("gzip", PLAIN, 400, "gzip"),
        ("gzip", b"\x1f\x8b" + b"\xff" * 50, 400, "gzip"),
        ("gzip", zipped(PLAIN)[:-5], 400, "gzip"),
        ("gzip", zipped(PLAIN)[:-8] + b"\0" * 8, 400, "gzip"),
        ("gzip", zipped(PLAIN) + b"rubbish", 400, "gzip"),
        ("gzip", zst(PLAIN), 400, "gzip"),
        ("deflate", b"x\x9c" + b"\xff" * 50, 400, "deflate"),
        ("deflate", zlib.compress(PLAIN)[:-3], 400, "deflate"),
        ("zstd", PLAIN, 400, "zstd"),
        ("zstd", b"\x28\xb5\x2f\xfd" + b"\xff" * 50, 400, "zstd"),
        ("zstd", zst(PLAIN)[:-3], 400, "zstd"),
        ("gzip, zstd", zst(PLAIN), 400, "gzip"),
        ("gzip", zipped(b"no json"), 400, "not JSON"),
    ],
)
def test_codings_that_fail(deck: App, coding: str, content: bytes, status: int, said: str) -> None:
    answer = post(deck, content, {"content-encoding": coding})
    assert said in error_of(answer, status)["message"]
    assert len(answer.content) < 1000


def test_a_zstd_body_without_its_header_is_400(deck: App) -> None:
    error_of(post(deck, zst(PLAIN)), 400)


@pytest.fixture
def small(tmp_path: Path) -> Any:
    with app(tmp_path / "small", body_limit=LIMIT) as running:
        yield running


def test_too_long_by_its_length_is_413_unread(small: App) -> None:
    """B172: the body itself never comes."""

    async def never() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    answer = post(small, never(), {"content-length": str(LIMIT + 1)})
    assert error_of(answer, 413)["code"] == "request_too_large"
    for length in ("9" * 100, "9" * 10_000):
        error_of(post(small, never(), {"content-length": length}), 413)


@pytest.mark.parametrize("length", ["-1", "x", "1.5", "0x10", "1,2", ""])
def test_a_length_that_is_no_number_is_400(small: App, length: str) -> None:
    error_of(post(small, PLAIN, {"content-length": length}), 400)


def test_exactly_the_limit_is_accepted(small: App) -> None:
    content = PLAIN + b" " * (LIMIT - len(PLAIN))
    assert post(small, content).status_code == 200
    error_of(post(small, content + b" "), 413)


async def endless(seen: list[int]) -> AsyncIterator[bytes]:
    while True:
        seen[0] += 64 * 1024
        yield b" " * 64 * 1024


def test_too_long_in_chunks_is_413_and_read_no_further(small: App) -> None:
    seen = [0]
    error_of(post(small, endless(seen)), 413)
    assert seen[0] <= LIMIT + 128 * 1024


def zstd_bomb(size: int) -> bytes:
    maker = zstandard.ZstdCompressor(level=3).compressobj()
    block = bytes(MIB)
    return b"".join([maker.compress(block) for _ in range(size // MIB)]) + maker.flush()


def gzip_bomb(size: int) -> bytes:
    maker = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = bytes(MIB)
    return b"".join([maker.compress(block) for _ in range(size // MIB)]) + maker.flush()


BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "gzip": ("gzip", lambda: gzip_bomb(256 * MIB)),
    "zstd": ("zstd", lambda: zstd_bomb(1024 * MIB)),
    "stacked": ("zstd, gzip", lambda: zipped(zstd_bomb(1024 * MIB))),
    "gzip-in-gzip": ("gzip, gzip", lambda: zipped(gzip_bomb(256 * MIB))),
}


@pytest.mark.parametrize(("coding", "make"), BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_413_in_little_memory(small: App, coding: str, make: Callable[[], bytes]) -> None:
    bomb = make()
    assert len(bomb) < LIMIT
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    answer = post(small, bomb, {"content-encoding": coding})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    error_of(answer, 413)
    assert peak < 8 * LIMIT
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 64 * MIB


def test_chunks_of_any_size_make_one_body(deck: App) -> None:
    """B163: a chunked request, as `Transfer-Encoding: chunked` comes over ASGI."""

    async def pieces(step: int) -> AsyncIterator[bytes]:
        for start in range(0, len(PLAIN), step):
            yield PLAIN[start : start + step]

    for step in (1, 7, 1000):
        assert post(deck, pieces(step)).status_code == 200
    assert [body["messages"] for body in deck.upstream()] == [BODY["messages"]] * 3


def test_a_slow_body_is_408(tmp_path: Path) -> None:
    with app(tmp_path, body_timeout=0.05) as deck:
        never = asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield PLAIN[:5]
            await never.wait()

        error = error_of(post(deck, slow()), 408)
        assert error["type"] == "timeout_error"
        assert "0.05 s" in error["message"]
        error_of(deck.send("POST", "/deck/explain", content=slow(), headers=JSON), 408)


def test_a_client_that_leaves_in_its_body_gets_nothing_and_starts_nothing(deck: App) -> None:
    sent: list[Any] = []
    messages = iter([{"type": "http.request", "body": PLAIN[:4], "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    for path in (CHAT, "/deck/explain"):
        messages = iter([{"type": "http.request", "body": PLAIN[:4], "more_body": True}, {"type": "http.disconnect"}])
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": [(b"authorization", b"Bearer " + TOKEN.encode())],
        }
        deck.runner.run(deck.deck(scope, receive, send))
    assert sent == []
    assert deck.deck.board.states() == {}


def test_headers_of_the_vendor_are_listed(tmp_path: Path) -> None:
    names = ["Idempotency-Key", "OpenAI-Beta", "OpenAI-Organization", "OpenAI-Project"]
    with app(tmp_path) as deck:
        answer = deck.chat(headers=dict.fromkeys(names, "x"))
        assert answer.headers["x-athena-compatibility-ignored"] == ", ".join(names)
