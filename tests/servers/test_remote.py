"""A llama-server that runs elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from deck.config import Config
from deck.contracts import Address, ServerState
from deck.errors import DeckError
from deck.profile import Profile, ServerSettings
from deck.servers import LocalLauncher
from deck.servers.probe import facts_of
from deck.servers.remote import Remote, address_of
from deck.testing.fake_llama import FakeLlama


def _profile(url: str, **keys: Any) -> Profile:
    return Profile(id="far", server=ServerSettings(url=url, **keys), source=Path("far.toml"))


def test_it_is_asked_what_it_is_with_the_key_from_the_environment() -> None:
    async def main() -> None:
        async with FakeLlama(api_key="k", n_ctx=2048, slots=3) as fake:
            server = Remote(_profile(fake.url, api_key_env="MY_KEY"), {"MY_KEY": "k"})
            await server.start()
            assert server.state is ServerState.READY
            assert (server.facts.context, server.facts.slots, server.key) == (2048, 3, "k")
            assert server.address == Address(host="127.0.0.1", port=fake.port)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(server.wait_ended(), 0.01)
            waiting = asyncio.ensure_future(server.wait_ended())
            await server.stop(grace=1)
            assert server.state is ServerState.STOPPED
            await asyncio.wait_for(waiting, 5)  # or whoever waits for it would do so for ever

    asyncio.run(main())


def test_its_own_sampling_is_known_where_it_tells() -> None:
    params = {"temperature": 0.800000011920929, "top_k": 40, "seed": 4294967295, "samplers": ["top_k"], "stream": True}
    found = facts_of({"default_generation_settings": {"n_ctx": 8, "params": params}}, {})
    numbers = {"temperature": 0.8, "top_k": 40, "seed": 4294967295}
    assert found.sampling == {**numbers, "samplers": ("top_k",)}, "which of them run is known too"
    assert facts_of({"default_generation_settings": {"params": []}}, {}).sampling == {}
    assert facts_of({}, {}).sampling == {}


@pytest.mark.parametrize(("environ", "message"), [({}, "MY_KEY is not set"), ({"MY_KEY": "other"}, "401")])
def test_a_missing_or_wrong_key_is_said(environ: dict[str, str], message: str) -> None:
    async def main() -> None:
        async with FakeLlama(api_key="k") as fake:
            server = Remote(_profile(fake.url, api_key_env="MY_KEY"), environ)
            with pytest.raises(DeckError, match=message):
                await server.start()
            assert server.state is ServerState.FAILED
            assert message in (server.reason or "")

    asyncio.run(main())


def test_one_that_is_gone_is_said() -> None:
    async def main() -> None:
        async with FakeLlama() as fake:
            url = fake.url
        with pytest.raises(DeckError, match=r"'far' at http://127\.0\.0\.1:\d+ cannot be reached") as caught:
            await Remote(_profile(url)).start()
        assert caught.value.retry_after is not None

    asyncio.run(main())


def test_one_that_loads_is_asked_to_be_tried_later() -> None:
    async def main() -> None:
        async with FakeLlama(unhealthy=1) as fake:
            server = Remote(_profile(fake.url))
            with pytest.raises(DeckError, match="is loading its model"):
                await server.start()
            await server.start()
            assert server.state is ServerState.READY

    asyncio.run(main())


def test_one_without_props_is_used_without_facts() -> None:
    async def main() -> None:
        async with FakeLlama() as fake:
            server = Remote(_profile(fake.url + "/none"))
            await server.start()
            assert server.state is ServerState.READY
            assert server.facts.context is None

    asyncio.run(main())


def test_a_url_is_an_address() -> None:
    assert address_of("https://h/llama/") == Address(host="h", port=443, tls=True, prefix="/llama")
    assert address_of("http://[::1]:99") == Address(host="::1", port=99)


def test_the_launcher_knows_which_is_which(config: Config, tmp_path: Path) -> None:
    launcher = LocalLauncher(config)
    assert isinstance(launcher.launch(_profile("http://h")), Remote)
    local = Profile(id="near", server=ServerSettings(model=tmp_path / "x.gguf"))
    assert launcher.launch(local).state is ServerState.STOPPED
