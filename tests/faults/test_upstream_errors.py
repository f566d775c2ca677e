"""Upstreams that refuse, die, babble or fall silent: each in the wire's error, and the next request works."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from chat_automaton import check
from chat_support import TOOL
from faults.support import Rig, bounded, post, works

from deck.testing.fake_llama import Act, Received, Reply, Step, refuse, say
from deck.testing.frames import chunk, content, done, error_frame, finish, role, tool

OVERFLOW = "the request exceeds the available context size, try increasing it"
LINE = b'error: {"code":400,"message":"%b","type":"invalid_request_error"}\n\n' % OVERFLOW.encode()
PARSER = "Failed to parse input at pos 31: <tool_call>{half"
DIFF = "Invalid diff: '{\"a' not found at start of '{\"b'"
CALL = [role(), tool(0, "a1", "read_note", '{"path":')]


@dataclass(frozen=True)
class Case:
    """What the upstream does, the status it is worth, and what the client had before it."""

    id: str
    steps: Sequence[Step]
    status: int
    begun: bool = False
    text: str = ""
    status_of_reply: int = 200
    message: str = ""


CASES = [
    Case("B103-error-line-first", [LINE, done()], 400, message=OVERFLOW),
    Case("B103-error-line-later", [role(), content("Hi"), LINE, done()], 400, True, "Hi", message=OVERFLOW),
    Case("B104-error-first", [error_frame(500, "GPU lost")], 502, message="GPU lost"),
    Case("B104-client-error-first", [error_frame(400, "bad field", "invalid_request_error")], 400),
    Case(
        "B104-error-later", [role(), content("Hi"), error_frame(500, "GPU lost")], 502, True, "Hi", message="GPU lost"
    ),
    Case("B104-error-after-the-role", [role(), error_frame(500, "GPU lost")], 502, True),
    Case("B107-parser", [role(), content("Let me"), error_frame(500, PARSER)], 502, True, "Let me"),
    Case("B110-diff-in-a-call", [*CALL, error_frame(500, DIFF)], 502, True),
    Case("B110-reset-in-a-call", [*CALL, Act.RESET], 502, True),
    Case("B113-finish-error", [role(), content("Hi"), finish("error"), done()], 502, True, "Hi"),
    Case("B113-finish-abort", [role(), content("Hi"), chunk({}, "abort"), done()], 502, True, "Hi"),
    Case("head-only", [Act.CLOSE], 502),
    Case("head-then-reset", [Act.RESET], 502),
    Case("nothing-and-a-proper-end", [], 502),
    Case("only-done", [done()], 502),
    Case("role-then-close", [role(), Act.CLOSE], 502, True),
    Case("role-then-reset", [role(), Act.RESET], 502, True),
    Case("text-then-close", [role(), content("Hi"), Act.CLOSE], 502, True, "Hi"),
    Case("text-then-reset", [role(), content("Hi"), Act.RESET], 502, True, "Hi"),
    Case("text-then-a-proper-end", [role(), content("Hi")], 502, True, "Hi"),
    Case("text-then-done-half", [role(), content("Hi"), b"data: [DO"], 502, True, "Hi"),
    Case("call-then-close", [*CALL, Act.CLOSE], 502, True),
    Case("call-then-a-proper-end", CALL, 502, True),
    Case("a-frame-cut", [role(), content("Hi"), content("there")[:-9], Act.CLOSE], 502, True, "Hi"),
    Case("a-page", [b"<html>It works</html>"], 502),
    Case("no-json", [b"data: {half\n\n", done()], 502),
    Case("no-json-later", [role(), content("Hi"), b"data: {half\n\n", done()], 502, True, "Hi"),
    Case("another-object", [b'data: {"object":"list","choices":{}}\n\n', done()], 502),
    Case("bytes", [bytes(range(256)) * 40], 502),
    Case("content-of-another-type", [role(), chunk({"content": 7}), done()], 502, True),
]


def good_after(steps: Sequence[Step]) -> list[Reply]:
    return [Reply(steps=steps), say("Hello"), Reply(steps=steps), say("Hello")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
@bounded
async def test_a_broken_stream_ends_in_the_wires_error(rig: Rig, case: Case) -> None:
    async with rig.fake(*good_after(case.steps)), rig.client() as client:
        answer = await post(client, stream=True, tools=[TOOL])
        if case.begun:
            assert answer.status_code == 200
            found = check(answer.content)
            assert found.error is not None
            assert not found.is_done
            assert found.text == case.text
            assert found.finish is None
            message = found.error["message"]
        else:
            assert answer.status_code == case.status, answer.text
            message = answer.json()["error"]["message"]
        assert case.message in message
        await works(client)
        whole = await post(client, tools=[TOOL])
        assert whole.status_code == case.status, whole.text
        assert set(whole.json()["error"]) == {"message", "type", "param", "code"}
        assert case.message in whole.json()["error"]["message"]
        await works(client)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "buffered"])
@bounded
async def test_a_page_with_status_200_is_no_answer(rig: Rig, stream: bool) -> None:
    """As of a web server at an address that is wrong."""
    page = Reply(
        steps=[b"<!doctype html>\n<html><body>It works</body></html>\n"], headers={"content-type": "text/html"}
    )
    async with rig.fake(page), rig.client() as client:
        answer = await post(client, stream=stream)
        assert answer.status_code == 502
        assert answer.json()["error"]["message"].endswith("is no llama-server: it sent a page of HTML")


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "buffered"])
@pytest.mark.parametrize(
    ("reply", "status", "code"),
    [
        (refuse(500, "Context size has been exceeded."), 400, "context_length_exceeded"),
        (refuse(400, "bad", "invalid_request_error"), 400, None),
        (refuse(500, DIFF), 502, "upstream_error"),
        (refuse(503, "Loading model", "unavailable_error"), 503, None),
        (Reply(status=400), 400, None),
        (Reply(status=500, steps=[b"<html>oops</html>"]), 502, "upstream_error"),
        (Reply(status=400, steps=[b'{"error":', Act.CLOSE]), 502, None),
    ],
    ids=["B106-overflow", "client", "B110-diff", "loading", "B157-empty-400", "html", "cut-in-the-error"],
)
@bounded
async def test_a_refusal_is_an_envelope_with_its_status(
    rig: Rig, reply: Reply, status: int, code: str | None, stream: bool
) -> None:
    async with rig.fake(reply, say("Hello")), rig.client() as client:
        answer = await post(client, stream=stream)
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert error["message"]
        if code is not None:
            assert error["code"] == code
        await works(client)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "buffered"])
@bounded
async def test_a_connection_that_ends_before_the_head_is_an_error(rig: Rig, stream: bool) -> None:
    """On a fresh connection the request is not sent twice: it may be what brought the server down."""

    def script(request: Received) -> Reply:
        if len(fake.chats) == 1:
            raise ConnectionResetError
        return say("Hello")

    async with rig.acting(script) as fake, rig.client() as client:
        answer = await post(client, stream=stream)
        assert answer.status_code == 502, answer.text
        assert len(fake.chats) == 1
        await works(client)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "buffered"])
@bounded
async def test_nobody_at_the_port_is_unavailable(rig: Rig, stream: bool) -> None:
    async with rig.fake(), rig.client() as client:
        await works(client)
    async with rig.client() as client:
        answer = await post(client, stream=stream)
        assert answer.status_code == 503, answer.text
        assert int(answer.headers["retry-after"]) > 0
    async with rig.fake(), rig.client() as client:
        await works(client)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "buffered"])
@bounded
async def test_a_port_that_does_not_speak_http_is_an_error(rig: Rig, stream: bool) -> None:
    async with rig.fake(), rig.client() as client:
        await works(client)

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-none\r\n" + bytes(range(256)))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(babble, "127.0.0.1", rig.port), rig.client() as client:
        answer = await post(client, stream=stream)
        assert answer.status_code == 502, answer.text
    async with rig.fake(), rig.client() as client:
        await works(client)


@bounded
async def test_a_stall_before_the_head_is_a_timeout(rig: Rig) -> None:
    silent = Reply(before_headers=asyncio.Event())
    async with rig.fake(silent, silent, say("Hello")) as fake, rig.client() as client:
        for stream in (True, False):
            answer = await post(client, "hasty", stream=stream)
            assert answer.status_code == 504, answer.text
            assert "silent for 0.3 s" in answer.json()["error"]["message"]
        await asyncio.wait_for(fake.chats[1].left.wait(), 1)
        await works(client, "hasty")


@pytest.mark.parametrize("begun", [[role(), content("Hi")], CALL], ids=["text", "call"])
@bounded
async def test_a_stall_in_the_middle_is_an_error_frame(rig: Rig, begun: list[Step]) -> None:
    stalled = Reply(steps=[*begun, Act.STALL])
    async with rig.fake(stalled, stalled, say("Hello")) as fake, rig.client() as client:
        answer = await post(client, "hasty", stream=True, tools=[TOOL])
        found = check(answer.content)
        assert found.error is not None
        assert "silent" in found.error["message"]
        assert (await post(client, "hasty", tools=[TOOL])).status_code == 504
        await asyncio.wait_for(fake.chats[1].left.wait(), 1)
        await works(client, "hasty")
