"""Servers elsewhere under a profile that a reload has changed."""

from __future__ import annotations

import asyncio

from servers.replicas_support import (
    UP,
    bounded,
    chat,
    fakes,
    gone,
    profile_of,
    running,
    states,
    until,
    upstream,
)

from deck.contracts import ServerState
from deck.profile import Profile, ServerSettings
from deck.servers.remote import Remote
from deck.testing.fake_llama import FakeLlama, Reply, say


@bounded
async def test_other_urls_are_taken_while_it_runs() -> None:
    async with (
        fakes(3) as (first, second, third),
        upstream() as client,
        running(first.url, second.url, parallel=2) as remote,
    ):
        changes: list[int] = []
        remote.on_slots = lambda: changes.append(remote.slots)
        remote.profile = profile_of(second.url, third.url, first.url, parallel=3)
        await until(lambda: states(remote) == [UP, UP, UP])
        assert remote.slots == 9
        await until(lambda: changes[-1] == 9)
        remote.profile = profile_of(third.url)
        assert {await chat(client, remote, f"talk {number}") for number in range(5)} == {third.url}
        asked = len(first.requests)
        await until(lambda: len(third.requests) > 12)
        assert len(first.requests) <= asked + 1


@bounded
async def test_another_url_is_taken_at_once_while_an_answer_runs() -> None:
    """What runs on the one before runs on; of the new one is known what it says, and nothing of the one before."""
    gate = asyncio.Event()
    held = Reply(steps=(*say("a").steps[:2], gate, *say("a").steps[2:]))
    async with (
        FakeLlama(lambda received: held, n_ctx=512) as first,
        FakeLlama(n_ctx=1024) as second,
        upstream() as client,
    ):
        profile = Profile(id="far", server=ServerSettings(url=first.url))
        remote = Remote(profile)
        await remote.start()
        assert remote.facts.context == 512
        running = asyncio.create_task(chat(client, remote))
        await until(lambda: first.chats)
        remote.profile = Profile(id="far", server=ServerSettings(url=second.url))
        assert remote.state is ServerState.READY
        assert remote.facts.context is None
        assert await chat(client, remote) == second.url
        await until(lambda: remote.facts.context == 1024)
        several = ServerSettings(urls=(second.url, first.url))
        remote.profile = Profile(id="far", server=several)
        await until(lambda: states(remote) == [UP, UP])
        remote.profile = Profile(id="far", server=ServerSettings(url=first.url))
        assert remote.facts.context == 512
        assert not remote._watching
        gate.set()
        assert await running == first.url
        await remote.stop(grace=0)


@bounded
async def test_another_url_is_asked_until_it_is_known_whatever_is_reloaded_meanwhile() -> None:
    """Or for ever nothing would be known of its context and its template."""
    dead = gone()

    def far(url: str, ttl: int) -> Profile:
        return Profile(id="far", server=ServerSettings(url=url, ttl=ttl, health_interval=0.1))

    async with FakeLlama(n_ctx=512) as first:
        remote = Remote(far(first.url, 1))
        await remote.start()
        for ttl in (2, 3):
            remote.profile = far(dead, ttl)
            assert remote._watching
            assert remote.facts.context is None
        async with FakeLlama(port=int(dead.rpartition(":")[2]), n_ctx=2048):
            await until(lambda: remote.facts.context == 2048)
            assert not remote._watching
        await remote.stop(grace=0)
