"""Requests and answers on one connection, without a socket: what Deck's own HTTP does with an application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from faults.support import bounded
from http_wire import Wire
from uvicorn.server import ServerState

from deck.body import whole_body
from deck.connection import Connection

HEAD = b"POST /v1/x?q=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
GET = b"GET /a%20b HTTP/1.1\r\nHost: x\r\n\r\n"
App = Callable[[Any, Any, Any], Awaitable[None]]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def connected(app: App, keep_alive: float = 75) -> tuple[Connection, Wire]:
    config = uvicorn.Config(app, log_config=None, interface="asgi3", ws="none")  # type: ignore[arg-type]  # typed wider
    config.timeout_keep_alive = keep_alive  # type: ignore[assignment]  # seconds are counted, whole or not
    connection, wire = Connection(config, ServerState(), {}, asyncio.get_running_loop()), Wire()
    connection.connection_made(wire)
    return connection, wire


async def ok(send: Any, body: bytes = b"ok") -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@bounded
async def test_the_scope_is_what_was_sent() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["method"], scope["path"], scope["raw_path"], scope["query_string"], scope["headers"]))
        await ok(send)

    connection, wire = connected(app)
    for _ in range(2):
        connection.data_received(GET)
        await settle()
    connection.data_received(HEAD + b"body")
    await settle()
    host = (b"host", b"x")
    assert seen == [
        ("GET", "/a b", b"/a%20b", b"", [host]),
        ("GET", "/a b", b"/a%20b", b"", [host]),
        ("POST", "/v1/x", b"/v1/x", b"q=1", [host, (b"content-length", b"4")]),
    ]
    assert wire.got == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok" * 3


@bounded
async def test_requests_behind_each_other_are_answered_in_order() -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    order = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        place = len(order)
        order.append(place)
        await gates[place].wait()
        await ok(send, b"%d" % place)

    connection, wire = connected(app)
    connection.data_received(GET + GET)
    await settle()
    assert order == [0]
    assert not wire.is_reading
    gates[1].set()
    await settle()
    assert order == [0]
    gates[0].set()
    await settle()
    assert order == [0, 1]
    assert wire.got.endswith(b"\r\n\r\n0HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n1")
    assert wire.is_reading


@bounded
async def test_a_body_comes_in_pieces_and_then_the_client_leaves() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(4):
            message = await receive()
            seen.append(message.get("body", message["type"]))

    connection, wire = connected(app)
    connection.data_received(HEAD + b"bo")
    await settle()
    connection.data_received(b"d")
    await settle()
    connection.data_received(b"y")
    await settle()
    assert seen == [b"bo", b"d", b"y"]
    connection.connection_lost(None)
    await settle()
    assert seen[3] == "http.disconnect"
    assert wire.got == b""


@bounded
async def test_a_client_that_waits_for_100_gets_it_when_the_body_is_wanted() -> None:
    wanted = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await wanted.wait()
        await receive()
        await ok(send)

    connection, wire = connected(app)
    connection.data_received(HEAD.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
    await settle()
    assert wire.got == b""
    wanted.set()
    await settle()
    assert wire.got == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.data_received(b"body")
    await settle()
    assert wire.got.endswith(b"ok")


@bounded
async def test_trailers_reach_nobody_and_are_not_kept() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["headers"], scope["deck.turn"].headers, (await receive())["body"]))
        await ok(send)

    connection, wire = connected(app)
    connection.data_received(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n")
    connection.data_received(b"Expect: 100-continue\r\n" * 1000 + b"\r\n")
    await settle()
    sent = [(b"host", b"a"), (b"transfer-encoding", b"chunked")]
    assert seen == [(sent, dict(sent), b"x")]
    assert wire.got.endswith(b"ok")
    assert connection._headers == []


@bounded
async def test_the_short_cut_takes_a_whole_body_only() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        turn = scope["deck.turn"]
        headers = turn.headers
        seen.append(whole_body(turn, headers, 3))
        seen.append(whole_body(turn, None, 100))
        seen.append(whole_body(turn, {**(headers or {}), b"content-encoding": b"gzip"}, 100))
        seen.append(whole_body(turn, {**(headers or {}), b"content-type": b"text/html"}, 100))
        seen.append(whole_body(turn, headers, 100))
        await ok(send)

    connection, _ = connected(app)
    connection.data_received(HEAD + b"body")
    await settle()
    assert seen == [None, None, None, None, b"body"]
    connection.data_received(HEAD + b"bod")
    await settle()
    assert seen[5:] == [None] * 5


@bounded
async def test_after_a_large_body_the_client_is_still_seen_to_leave() -> None:
    told = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert not wire.is_reading
        turn = scope["deck.turn"]
        assert len(turn.take_whole()) == 100_000
        turn.watch(lambda: told.append(True))
        await asyncio.Event().wait()

    connection, wire = connected(app)
    connection.data_received(HEAD.replace(b"4", b"100000") + b"x" * 100_000)
    await settle()
    assert wire.is_reading
    connection.connection_lost(None)
    assert told == [True]


@bounded
@pytest.mark.parametrize("first", [0, 10], ids=["at once", "in two pieces"])
async def test_after_a_large_body_that_came_in_pieces_the_client_is_still_seen_to_leave(first: int) -> None:
    told, bodies = [], []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        turn = scope["deck.turn"]
        while True:
            message = await receive()
            bodies.append(message["body"])
            if not message["more_body"]:
                break
        turn.watch(lambda: told.append(True))
        await asyncio.Event().wait()

    connection, wire = connected(app)
    connection.data_received(HEAD.replace(b"4", b"100000") + b"x" * first)
    await settle()
    connection.data_received(b"x" * (100_000 - first))
    await settle()
    assert sum(map(len, bodies)) == 100_000
    assert wire.is_reading
    connection.connection_lost(None)
    assert told == [True]


@bounded
async def test_what_is_wrong_behind_an_early_answer_gets_no_answer_of_its_own() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ok(send)

    connection, wire = connected(app)
    connection.data_received(HEAD.replace(b"Content-Length: 4", b"Transfer-Encoding: chunked") + b"5\r\nhello\r\n")
    await settle()
    answered = wire.got
    assert answered.startswith(b"HTTP/1.1 200 ")
    connection.data_received(b"zz\r\nnope")
    assert wire.got == answered
    assert wire.is_closed


@bounded
async def test_what_is_wrong_behind_a_whole_request_is_answered() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ok(send)

    connection, wire = connected(app)
    connection.data_received(GET)
    await settle()
    answered = len(wire.got)
    connection.data_received(b"nonsense\r\n\r\n")
    assert wire.got[answered:].startswith(b"HTTP/1.1 400 ")
    assert wire.is_closed


@bounded
@pytest.mark.parametrize("by_short_cut", [True, False])
async def test_a_stream_is_chunked_and_a_slow_client_is_waited_for(by_short_cut: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        turn = scope["deck.turn"]
        if by_short_cut:
            turn.start(200, [(b"a", b"b")], b"one")
            connection.pause_writing()
            assert turn.is_full
            await turn.drained()
            turn.write(b"two")
            turn.finish()
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        connection.pause_writing()
        await send({"type": "http.response.body", "body": b"two", "more_body": True})
        await send({"type": "http.response.body"})

    connection, wire = connected(app)
    connection.data_received(GET)
    await settle()
    assert wire.got == b"HTTP/1.1 200 OK\r\na: b\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n"
    connection.resume_writing()
    await settle()
    assert wire.got.endswith(b"one\r\n3\r\ntwo\r\n0\r\n\r\n")
    assert not wire.is_closed


@bounded
async def test_whoever_watches_is_told_once_and_only_while_the_answer_is_not_complete() -> None:
    told = []
    gate = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["deck.turn"].watch(lambda: told.append(scope["method"]))
        await gate.wait()
        await ok(send)

    connection, wire = connected(app)
    connection.data_received(GET)
    await settle()
    connection.connection_lost(ConnectionResetError())
    assert told == ["GET"]
    gate.set()
    await settle()
    assert wire.got == b"", "nothing is written to who has left"
    connection, wire = connected(app)
    connection.data_received(GET)
    await settle()
    connection.connection_lost(None)
    assert told == ["GET"]
    assert wire.got.endswith(b"ok")


@bounded
async def test_a_head_request_gets_no_body() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ok(send)

    connection, wire = connected(app)
    connection.data_received(GET.replace(b"GET", b"HEAD"))
    await settle()
    assert wire.got == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


@bounded
@pytest.mark.parametrize("has_begun", [True, False])
@pytest.mark.parametrize("raises", [True, False])
async def test_what_an_application_leaves_undone_ends_the_connection(has_begun: bool, raises: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if has_begun:
            scope["deck.turn"].start(200, [], b"one")
        if raises:
            raise ValueError("broken")

    connection, wire = connected(app)
    connection.data_received(GET)
    await settle()
    assert wire.is_closed
    if has_begun:
        assert wire.got.endswith(b"3\r\none\r\n")
    else:
        assert wire.got.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
        assert b"connection: close\r\n" in wire.got


@bounded
@pytest.mark.parametrize("value", [b"a\r\nb: c", b"a\nb", b"a\rb", b"a\0b"])
async def test_no_header_can_hold_another(value: bytes) -> None:
    faults: list[Exception] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"0"), (b"a", value)]
        try:
            scope["deck.turn"].answer(200, headers, b"")
        except ValueError as exc:
            faults.append(exc)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        except RuntimeError as exc:
            faults.append(exc)

    connection, wire = connected(app)
    connection.data_received(GET)
    await settle()
    assert [type(fault) for fault in faults] == [ValueError, RuntimeError]
    assert b"a: a" not in wire.got
    assert wire.got.startswith(b"HTTP/1.1 500 ")
    assert wire.is_closed


@bounded
async def test_a_body_of_another_length_than_announced_ends_the_connection() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"3")]})
        await send({"type": "http.response.body", "body": b"four"})

    connection, wire = connected(app)
    connection.data_received(GET)
    await settle()
    assert wire.is_closed
    assert b"four" not in wire.got


@bounded
async def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    gate = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await gate.wait()
        await ok(send)

    connection, wire = connected(app, keep_alive=0.02)
    gate.set()
    connection.data_received(GET)
    await settle()
    gate.clear()
    connection.data_received(GET)
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(0.1, passed.set)
    await passed.wait()
    assert not wire.is_closed
    gate.set()
    async with asyncio.timeout(10):
        while not wire.is_closed:
            await asyncio.sleep(0)
    assert wire.got.count(b"200 OK") == 2


@bounded
async def test_a_body_that_nobody_reads_may_go_on_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that comes before the end of the body, as 413 does, must not buy a client an endless upload."""
    monkeypatch.setattr("deck.connection._LINGER", 0.05)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ok(send)

    loop = asyncio.get_running_loop()
    endless, wire = connected(app)
    endless.data_received(HEAD + b"bo")
    await settle()
    assert wire.got.endswith(b"\r\n\r\nok")
    assert not wire.is_closing()
    began = loop.time()
    while not wire.is_closing():
        assert loop.time() - began < 5
        await asyncio.sleep(0)
    finished, wire = connected(app)
    finished.data_received(HEAD + b"bo")
    await settle()
    finished.data_received(b"dy")
    assert finished._linger is None
    finished.data_received(GET)
    await settle()
    assert wire.got.count(b"HTTP/1.1 200 OK") == 2
    assert not wire.is_closing()


@bounded
async def test_a_stop_lets_the_answer_that_is_being_sent_be_the_last() -> None:
    gate = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await gate.wait()
        await ok(send)

    connection, wire = connected(app)
    connection.data_received(GET)
    await settle()
    connection.shutdown()
    assert not wire.is_closed
    gate.set()
    await settle()
    assert wire.got == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"
    assert wire.is_closed
    idle, wire = connected(app)
    idle.shutdown()
    assert wire.is_closed


@bounded
@pytest.mark.parametrize("head", [b"HTTP/1.0", b"HTTP/1.1\r\nConnection: close"])
async def test_a_client_that_wants_no_more_is_let_go(head: bytes) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ok(send)

    connection, wire = connected(app)
    connection.data_received(GET.replace(b"HTTP/1.1", head))
    await settle()
    assert wire.is_closed
    assert b"connection: close\r\n" in wire.got


@bounded
@pytest.mark.parametrize("is_asgi", [True, False])
async def test_a_client_of_http_1_0_takes_no_chunks(is_asgi: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if not is_asgi:
            turn = scope["deck.turn"]
            turn.start(200, [(b"x-a", b"1")], b"one ")
            turn.write(b"two ")
            turn.write(b"three")
            turn.finish()
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-a", b"1")]})
        for body in (b"one ", b"two "):
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"three"})

    connection, wire = connected(app)
    connection.data_received(GET.replace(b"HTTP/1.1", b"HTTP/1.0"))
    await settle()
    assert wire.got == b"HTTP/1.1 200 OK\r\nx-a: 1\r\nconnection: close\r\n\r\none two three"
    assert wire.is_closed
