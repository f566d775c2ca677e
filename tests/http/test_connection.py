"""What comes before HTTP is understood: heads without end, no HTTP at all. Bytes over a real socket."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from app_support import BODY
from e2e.live import LiveDeck, live_deck

MIB = 1024 * 1024
CHUNK = b"a" * 64 * 1024


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDeck]:
    with live_deck(tmp_path_factory.mktemp("connection")) as running:
        yield running


def memory(deck: LiveDeck) -> int:
    """Return the most that Deck ever held, in bytes."""
    status = Path(f"/proc/{deck.process.pid}/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def exchange(deck: LiveDeck, first: bytes, more: bytes = b"", most: int = 0) -> tuple[bytes, int]:
    """Send `first`, then `more` until Deck ends the connection or `most` bytes are out; return answer and count."""
    sent, answer = 0, b""
    with socket.create_connection(("127.0.0.1", deck.port)) as sock:
        sock.settimeout(20)
        with contextlib.suppress(ConnectionError):
            sock.sendall(first)
            while sent < most:
                sock.sendall(more)
                sent += len(more)
        with contextlib.suppress(ConnectionError):
            while piece := sock.recv(65536):
                answer += piece
    return answer, sent


def refusal(answer: bytes, status: int) -> None:
    """Check that an answer, where the reset let it through, is a refusal in JSON that ends the connection."""
    if not answer:
        return
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), head
    assert b"application/json" in head
    assert b"x-request-id: req_" in head.lower()
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


ENDLESS = {
    "one-header": (b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Long: ", CHUNK),
    "many-headers": (b"GET /v1/models HTTP/1.1\r\nHost: x\r\n", b"X-A: b\r\n" * 8000),
    "header-name": (b"GET /v1/models HTTP/1.1\r\nHost: x\r\n", CHUNK),
    "url": (b"GET /", CHUNK),
    "trailers": (b"POST /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X-A: b\r\n" * 8000),
    "trailer": (b"POST /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-A: ", CHUNK),
    "chunk-extension": (b"POST /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;x=", CHUNK),
}


@pytest.mark.parametrize(("first", "more"), ENDLESS.values(), ids=ENDLESS)
def test_a_head_without_end_is_cut_off_in_little_memory(live: LiveDeck, first: bytes, more: bytes) -> None:
    before = memory(live)
    answer, sent = exchange(live, first, more, most=256 * MIB)
    assert sent < 32 * MIB
    assert memory(live) - before < 16 * MIB
    if answer.startswith(b"HTTP/1.1 431"):
        refusal(answer, 431)
    with live.client() as client:
        assert client.get("/v1/models").status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        b"".join(b"X-%d: value\r\n" % number for number in range(10_000)),
        b"".join(b"X-%d: value\r\n" % number for number in range(200)),
        b"X-Long: " + b"a" * MIB + b"\r\n",
        b"X-Long: " + b"a" * 70_000 + b"\r\n",
    ],
    ids=["10000", "200", "1-MiB", "70-kB"],
)
def test_a_header_bomb_is_431(live: LiveDeck, head: bytes) -> None:
    token = f"Authorization: Bearer {live.token}\r\n".encode()
    request = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + token + head + b"\r\n"
    refusal(exchange(live, request)[0], 431)


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"hello\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["tls", "words", "version", "path"],
)
def test_what_is_no_http_is_400_in_json(live: LiveDeck, request_: bytes) -> None:
    answer, _ = exchange(live, request_)
    assert answer
    refusal(answer, 400)


def test_smuggling_is_refused(live: LiveDeck) -> None:
    both = b"POST /v1/models HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    twice = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd"
    for request in (both, twice):
        answer, _ = exchange(live, request)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1 ") == 1


def test_200_mb_are_413_in_little_memory(live: LiveDeck) -> None:
    """B172."""
    before = memory(live)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {live.token}\r\n".encode()
    head += b"Connection: close\r\nContent-Length: %d\r\n\r\n" % (200 * MIB)
    answer, _ = exchange(live, head, CHUNK, most=200 * MIB)
    assert answer.startswith(b"HTTP/1.1 413 ")
    refusal(answer, 413)
    assert memory(live) - before < 16 * MIB
    with live.client() as client:
        assert client.get("/v1/models").status_code == 200


def test_a_large_body_in_small_chunks_is_no_head(live: LiveDeck) -> None:
    """What is held back is counted between pieces of a body, not over them."""
    body = json.dumps({**BODY, "model": "none", "messages": [{"role": "user", "content": "a" * 200_000}]}).encode()
    chunks = b"".join(b"1;x\r\n%c\r\n" % byte for byte in body) + b"0\r\nX-Trailer: 1\r\n\r\n"
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {live.token}\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )
    answer, _ = exchange(live, head.encode() + chunks)
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"model_not_found" in answer


def test_a_connection_serves_many_requests(live: LiveDeck) -> None:
    with live.client() as client:
        for _ in range(50):
            assert client.get("/v1/models", headers={"x-long": "a" * 4000}).status_code == 200


def test_a_websocket_over_the_wire_is_426_and_leaves_no_warning(live: LiveDeck) -> None:
    headers = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-key": "x", "sec-websocket-version": "13"}
    with live.client() as client:
        for _ in range(2):
            assert client.get("/v1/responses", headers=headers).status_code == 426
        assert client.get("/v1/models").status_code == 200
    assert "WebSocket library" not in live.logged()
