"""A child's life, with the embedded engine and the model that Deck ships."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

import httpx
import pytest

from deck.catalog import shipped_dir
from deck.config import Config
from deck.contracts import ServerState
from deck.errors import DeckError
from deck.profile import load_profile
from deck.servers import LocalLauncher, check_profile
from deck.servers.process import Process

_TINY = shipped_dir() / "tiny-chat.toml"
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed"),
]


def test_the_shipped_model_passes_the_check(config: Config) -> None:
    assert check_profile(load_profile(_TINY), config, {"PATH": ""}) == []


def test_the_shipped_model_is_served(config: Config) -> None:
    async def main() -> None:
        server = Process(load_profile(_TINY), config, {"PATH": ""})
        async with asyncio.timeout(60):
            await server.start()
        try:
            assert server.facts.slots == 2
            assert (server.facts.context or 0) >= 32768
            assert server.facts.template_caps["supports_tools"] is True
            assert server.facts.metadata["general.architecture"]
            body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
            transport = httpx.AsyncHTTPTransport(uds=server.address.uds)
            headers = {"authorization": f"Bearer {server.key}"}
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as client:
                assert (await client.post("/v1/chat/completions", json=body)).status_code == 401
                answer = await client.post("/v1/chat/completions", json=body, headers=headers)
            assert answer.status_code == 200
            assert answer.json()["model"] == "tiny-chat"
        finally:
            await server.stop(grace=10)
        assert server.state is ServerState.STOPPED
        log = (config.state / "logs" / "tiny-chat.log").read_text(encoding="utf-8")
        assert (server.key or "?") not in log

    asyncio.run(main())


def test_a_broken_model_says_why(config: Config, tmp_path: Path) -> None:
    model = tmp_path / "broken.gguf"
    model.write_bytes(b"GGUF" + b"\xff" * 100)
    shipped = load_profile(_TINY)
    profile = shipped.model_copy(update={"server": shipped.server.model_copy(update={"model": model})})

    async def main() -> None:
        server = LocalLauncher(config).launch(profile)
        with pytest.raises(DeckError, match=r"exited with status 1: .*this GGUF file is version") as caught:
            await server.start()
        assert caught.value.should_retry is False
        assert server.state is ServerState.FAILED

    asyncio.run(main())
