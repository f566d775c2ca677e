"""What an exchange leaves behind is freed at once: a collection in the middle of streams would stop them all."""

from __future__ import annotations

import asyncio
import gc
import json
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from app_support import BODY, CHAT, TOKEN, app
from http_wire import Wire
from uvicorn.server import ServerState

from deck.connection import Connection
from deck.testing.fake_llama import Reply
from deck.testing.frames import content, done, finish, role, usage


@pytest.mark.parametrize("changes", [{}, {"stream": True}, {"max_tokens": "no"}], ids=["buffered", "stream", "error"])
def test_an_exchange_leaves_no_garbage(tmp_path: Path, changes: dict[str, Any]) -> None:
    body = json.dumps({**BODY, **changes}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {len(body)}\r\n\r\n"
    steps = (role(), content("Hello"), content(" you"), finish(), usage(1, 2), done())
    with app(tmp_path, [Reply(steps=steps) for _ in range(20)]) as running:

        async def exchanges(count: int) -> None:
            config = uvicorn.Config(running.deck, log_config=None, interface="asgi3", ws="none")  # type: ignore[arg-type]
            connection, wire = Connection(config, ServerState(), {}, asyncio.get_running_loop()), Wire()
            connection.connection_made(wire)
            for number in range(count):
                connection.data_received(head.encode() + body)
                async with asyncio.timeout(20):
                    while wire.got.count(b"HTTP/1.1 ") <= number or any(connection._state.tasks):
                        await asyncio.sleep(0)
            connection.connection_lost(None)

        running.runner.run(exchanges(3))
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            running.runner.run(exchanges(5))
            gc.collect()
            left = [item for item in gc.garbage if type(item).__module__.startswith(("deck.", "deck_plugins."))]
            left = [item for item in left if not type(item).__module__.startswith("deck.testing")]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert left == []
