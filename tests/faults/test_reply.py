"""The order of heartbeats and frames, where a live Deck would need luck to show it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from faults.support import bounded

from deck.reply import Reply


class Client:
    """ASGI's `send` to a client that reads nothing until `reads` is set."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.reads.set()
        self.blocked = asyncio.Event()
        self.got = b""
        self.is_ended = False

    async def send(self, message: Mapping[str, Any]) -> None:
        if not self.reads.is_set():
            self.blocked.set()
        await self.reads.wait()
        assert not self.is_ended, "something after the end"
        self.got += message.get("body", b"")
        self.is_ended = message["type"] == "http.response.body" and not message.get("more_body")


@bounded
async def test_a_frame_follows_a_heartbeat_that_was_made_before_it() -> None:
    client = Client()
    reply = Reply(client.send, tuple)
    made = asyncio.Event()

    def beat() -> bytes:
        made.set()
        return b"role "

    reply.beat(0.01, beat)
    client.reads.clear()
    await made.wait()
    reply.quiet()
    writing = asyncio.ensure_future(reply.frames(b"text "))
    await client.blocked.wait()
    client.reads.set()
    await writing
    await reply.end()
    assert client.got == b"role text "


@bounded
async def test_the_end_follows_a_heartbeat_that_was_made_before_it() -> None:
    client = Client()
    reply = Reply(client.send, tuple)
    made = asyncio.Event()

    def beat() -> bytes:
        made.set()
        return b"beat "

    reply.beat(0.01, beat)
    client.reads.clear()
    await made.wait()
    ending = asyncio.ensure_future(reply.end())
    await client.blocked.wait()
    client.reads.set()
    await ending
    assert client.got == b"beat "
    assert client.is_ended


@bounded
async def test_no_heartbeat_is_made_while_a_frame_waits_for_the_client() -> None:
    client = Client()
    reply = Reply(client.send, tuple)
    asked = 0

    def beat() -> bytes:
        nonlocal asked
        asked += 1
        return b"beat "

    client.reads.clear()
    reply.beat(0.01, beat)
    writing = asyncio.ensure_future(reply.frames(b"text "))
    await client.blocked.wait()
    ticks = asyncio.Event()
    asyncio.get_running_loop().call_later(0.1, ticks.set)
    await ticks.wait()
    assert asked == 0
    client.reads.set()
    await writing
    await reply.end()
    assert client.got == b"text "
