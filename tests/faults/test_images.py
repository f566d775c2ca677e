"""A client that leaves while Deck fetches an image: the host is told at once, and no llama-server ever hears of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from e2e.live import free_port, live_deck
from faults.support import SOON, bounded, client_of, leave, post, remote, within, works
from web_site import listener, site

from deck.testing.fake_llama import FakeLlama, say


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "buffered"])
def test_a_client_that_leaves_ends_the_fetch(tmp_path: Path, stream: bool) -> None:
    sock, port = listener(), free_port()
    address = f"127.0.0.1:{sock.getsockname()[1]}"
    file = tmp_path / "deck.toml"
    file.write_text(f'[media]\nallow_private = ["{address}"]\ntimeout = "1h"\n', encoding="utf-8")

    @bounded
    async def main() -> None:
        content = [{"type": "image_url", "image_url": {"url": f"http://{address}/a.png"}}]
        async with FakeLlama([say("Hello")], port=port) as fake, site(sock) as web, client_of(deck) as client:
            web.default = None
            messages = [{"role": "user", "content": content}]
            asking = asyncio.ensure_future(post(client, messages=messages, stream=stream))
            await web.came.wait()
            await leave(asking)
            await within(web.left.wait(), SOON)
            assert fake.requests == []
            await works(client)

    with live_deck(tmp_path, "--config", str(file), profiles={"remote": remote("remote", port)}) as deck:
        main()
