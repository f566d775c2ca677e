"""Several llama-servers of one model that run elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from servers.replicas_support import (
    DOWN,
    LOADING,
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

from deck.contracts import Facts, Replica, ReplicaState, Replicated, ServerState
from deck.errors import DeckError, ErrorKind
from deck.profile import Profile, ServerSettings
from deck.servers.backend import Backend, Fate
from deck.servers.check import replica_notes
from deck.servers.remote import Remote, Use, common_facts
from deck.testing.fake_llama import Act, FakeLlama, Reply, refuse
from deck.testing.frames import content, done, finish, role
from deck.upstream.client import CHAT, UpstreamClient
from deck.upstream.failures import MidAnswer


@bounded
async def test_one_that_is_up_is_enough_to_start() -> None:
    async with fakes(1) as (fake,), running(gone(), fake.url, parallel=2) as remote:
        assert isinstance(remote, Replicated)
        assert states(remote) == [DOWN, UP]
        assert remote.state is ServerState.READY
        assert remote.slots == 2
        assert remote.address.port == fake.port
        shown = remote.replicas()[0]
        assert "cannot be reached" in (shown.reason or "")
        assert shown.retry_in is not None


@bounded
async def test_one_that_swallows_connections_holds_nobody_up() -> None:
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen(0)
        with contextlib.ExitStack() as stack:
            for _ in range(4):  # its queue is full now: whoever comes gets no answer at all
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(hole.getsockname())
            url = f"http://127.0.0.1:{hole.getsockname()[1]}"
            began = asyncio.get_running_loop().time()
            async with fakes(1) as (good,), running(url, good.url) as remote, upstream() as client:
                assert asyncio.get_running_loop().time() - began < 4
                assert states(remote) == [DOWN, UP]
                assert {await chat(client, remote, f"talk {number}") for number in range(9)} == {good.url}


@bounded
async def test_none_that_is_up_is_said_of_each() -> None:
    async with fakes(1, unhealthy=9) as (loading,):
        dead = gone()
        remote = Remote(profile_of(dead, loading.url), {})
        with pytest.raises(DeckError) as caught:
            await remote.start()
        message = caught.value.message
        assert f"{dead} cannot be reached" in message
        assert f"{loading.url} is loading its model" in message
        assert caught.value.kind is ErrorKind.UNAVAILABLE
        assert caught.value.retry_after is not None


@bounded
async def test_one_that_goes_and_comes_back_is_noticed_by_asking() -> None:
    changes: list[int] = []
    async with fakes(2) as (first, second), running(first.url, second.url, parallel=3) as remote:
        remote.on_slots = lambda: changes.append(remote.slots)
        assert remote.slots == 6
        await second.stop()
        await until(lambda: states(remote) == [UP, DOWN])
        assert remote.slots == 3
        async with FakeLlama(port=second.port, n_ctx=1024, unhealthy=2):
            await until(lambda: states(remote) == [UP, LOADING])
            await until(lambda: states(remote) == [UP, UP])
            await until(lambda: remote.facts.context == 1024)
            await until(lambda: changes[:2] == [3, 6])


@bounded
async def test_it_is_asked_no_more_once_it_is_stopped() -> None:
    async with fakes(1) as (fake,):
        async with running(fake.url) as remote:
            await until(lambda: len(fake.requests) > 5)
        count = len(fake.requests)
        assert remote.state is ServerState.STOPPED
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await until(lambda: len(fake.requests) > count)


@bounded
async def test_all_down_is_refused_at_once_with_reasons() -> None:
    async with fakes(2) as (first, second), running(first.url, second.url) as remote, upstream() as client:
        await first.stop()
        await second.stop()
        await until(lambda: states(remote) == [DOWN, DOWN])
        assert remote.state is ServerState.FAILED
        assert remote.slots == 0
        began = asyncio.get_running_loop().time()
        with pytest.raises(DeckError) as caught:
            await chat(client, remote)
        assert asyncio.get_running_loop().time() - began < 0.2
        assert caught.value.kind is ErrorKind.UNAVAILABLE
        assert first.url in caught.value.message
        assert second.url in caught.value.message
        assert (caught.value.retry_after or 0) >= 1
        assert remote.reason == caught.value.message


@bounded
async def test_another_is_asked_where_the_first_refuses_the_connection() -> None:
    async with (
        fakes(2) as (first, second),
        upstream() as client,
        running(first.url, second.url, health_interval=300) as remote,
    ):
        await first.stop()
        assert {await chat(client, remote) for _ in range(6)} == {second.url}
        await until(lambda: states(remote) == [DOWN, UP])


@bounded
async def test_a_conversation_stays_where_it_is_and_new_ones_are_spread() -> None:
    async with fakes(3) as three, running(*(fake.url for fake in three)) as remote, upstream() as client:
        first = {f"talk {number}": await chat(client, remote, f"talk {number}") for number in range(60)}
        again = {name: await chat(client, remote, name) for name in first}
        assert first == again
        assert all(count >= 3 for count in Counter(first.values()).values())
        assert len(set(first.values())) == 3


@bounded
async def test_two_without_shared_state_choose_alike() -> None:
    async with fakes(3) as three, upstream() as client:
        urls = [fake.url for fake in three]
        async with running(*urls) as one, running(*reversed(urls)) as other:
            for number in range(20):
                assert await chat(client, one, f"talk {number}") == await chat(client, other, f"talk {number}")


@bounded
async def test_a_conversation_moves_when_its_server_goes_and_stays_there() -> None:
    async with fakes(2) as two, running(*(fake.url for fake in two)) as remote, upstream() as client:
        home = await chat(client, remote, "talk")
        dying = next(fake for fake in two if fake.url == home)
        await dying.stop()
        moved = await chat(client, remote, "talk")
        assert moved != home
        async with FakeLlama(port=dying.port):
            await until(lambda: states(remote) == [UP, UP])
            assert await chat(client, remote, "talk") == moved


@bounded
async def test_what_differs_is_said_and_the_least_context_counts() -> None:
    async with (
        FakeLlama(alias="a", n_ctx=8192) as first,
        FakeLlama(alias="b", n_ctx=4096) as second,
        running(first.url, second.url) as remote,
    ):
        assert remote.facts.context == 4096
        one, other = remote.replicas()
        assert one.differs == ()
        assert [text.partition(",")[0] for text in other.differs] == [
            "it serves 'b'",
            "it has 4096 tokens of context per slot",
        ]
        assert other.model == "b"


def test_what_holds_of_all_is_the_least_and_what_all_can() -> None:
    one = Facts(context=8, slots=4, modalities={"vision": True}, template="t", template_caps={"tools": True})
    other = Facts(context=4, slots=None, modalities={"vision": False}, template="u", template_caps={})
    assert common_facts([one, one]) is one
    merged = common_facts([one, other])
    assert (merged.context, merged.slots, merged.template) == (4, 4, "t")
    assert merged.modalities == {"vision": False}
    assert merged.template_caps == {"tools": True}


@bounded
async def test_a_key_is_sent_to_all() -> None:
    async with fakes(2, api_key="k") as two:
        remote = Remote(profile_of(*(fake.url for fake in two), api_key_env="KEY"), {"KEY": "k"})
        await remote.start()
        assert states(remote) == [UP, UP]
        assert remote.key == "k"
        await remote.stop(grace=0)
        remote = Remote(profile_of(*(fake.url for fake in two), api_key_env="KEY"), {"KEY": "wrong"})
        with pytest.raises(DeckError, match="401"):
            await remote.start()


@bounded
async def test_a_name_is_looked_up_for_each_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that comes back has its name and another address."""
    where, real = ["127.0.0.2"], socket.getaddrinfo

    def look_up(host: Any, *rest: Any, **named: Any) -> Any:
        return real(where[0] if host == "llama-0.llama" else host, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    async with upstream() as client, FakeLlama(host="127.0.0.2") as pod:
        url = f"http://llama-0.llama:{pod.port}"
        async with running(url) as remote:
            assert await chat(client, remote) == url
            await pod.stop()
            await until(lambda: states(remote) == [DOWN])
            where[0] = "127.0.0.3"
            async with FakeLlama(host="127.0.0.3", port=pod.port) as anew:
                await until(lambda: states(remote) == [UP])
                assert await chat(client, remote) == url
                assert len(anew.chats) == 1


def test_check_says_who_cannot_be_used_and_what_differs() -> None:
    async def main() -> tuple[str, list[str]]:
        async with FakeLlama(alias="a") as first, FakeLlama(alias="b") as second:
            dead = gone()
            profile = profile_of(first.url, second.url, dead)
            return dead, await asyncio.to_thread(replica_notes, profile, {})

    dead, notes = asyncio.run(main())
    assert len(notes) == 2
    assert "it serves 'b', the first 'a'" in notes[0]
    assert notes[1].startswith(f"{dead} cannot be reached")


def test_a_url_alone_is_shown_as_no_replica() -> None:
    profile = Profile(id="far", server=ServerSettings(url="http://h"), source=Path("far.toml"))
    shown: list[Replica] = Remote(profile, {}).replicas()
    assert shown == []


async def broken(client: UpstreamClient, remote: Remote) -> ErrorKind | None:
    """Return the kind of the error that a chat ended in."""
    try:
        await chat(client, remote)
    except DeckError as error:
        return error.kind
    return None


@bounded
async def test_one_that_falls_silent_is_left_alone_though_it_says_that_it_is_well() -> None:
    never = Reply(before_headers=asyncio.Event())
    async with (
        FakeLlama([never]) as deaf,
        fakes(1) as (good,),
        upstream() as client,
        running(deaf.url, good.url, stall_timeout=0.05, health_interval=30) as remote,
    ):
        kinds = [await broken(client, remote) for _ in range(20)]
        assert kinds.count(ErrorKind.UPSTREAM_TIMEOUT) == 3, "nor tried elsewhere, for the time is up"
        assert len(deaf.chats) == 3
        shown = remote.replicas()[0]
        assert shown.state is DOWN
        assert "silent" in (shown.reason or "")
        assert shown.failures == 3


@bounded
async def test_one_that_has_failed_is_tried_with_one_exchange() -> None:
    gate = asyncio.Event()
    breaks = Reply(steps=[role(), content("x"), Act.CLOSE])
    replies = [breaks, breaks, breaks, Reply(steps=[gate, role(), content("x"), finish(), done()])]
    async with FakeLlama(replies) as shaky, upstream() as client, running(shaky.url, health_interval=10) as remote:
        backend = remote.backends()[0]
        for _ in range(3):
            await until(lambda: not backend.is_suspect)  # it is asked between them, and says that it is well
            await said(client, remote)
        await until(lambda: states(remote) == [ReplicaState.HALF_OPEN])
        tried = asyncio.ensure_future(chat(client, remote))
        await shaky.received(4)
        with pytest.raises(DeckError) as caught:
            await chat(client, remote)
        assert caught.value.kind is ErrorKind.UNAVAILABLE
        gate.set()
        await tried
        assert states(remote) == [UP]
        assert len(shaky.chats) == 4


async def said(client: UpstreamClient, remote: Remote) -> None:
    """Post a chat whose answer breaks off after its first byte, as the pipeline tells of it."""

    async def work(use: Use) -> DeckError | None:
        async with client.ask(use.server, CHAT, b"{}") as response:
            use.begun()
            try:
                await response.read()
            except httpx.HTTPError as exc:
                error = await client.broken(use.server, exc)
                error.__cause__ = MidAnswer()
                return error
        return None

    await remote.use(None, work)


@bounded
async def test_one_that_has_failed_is_tried_by_nobody_while_another_is_up() -> None:
    breaks = Reply(steps=[role(), content("x"), Act.CLOSE])
    async with (
        FakeLlama([breaks] * 9) as shaky,
        fakes(1) as (good,),
        upstream() as client,
        running(shaky.url, good.url, health_interval=10) as remote,
    ):
        backend = remote.backends()[0]
        while len(shaky.chats) < 3:
            await until(lambda: not backend.is_suspect)
            await said(client, remote)
        await until(lambda: states(remote)[0] is ReplicaState.HALF_OPEN)
        for _ in range(10):
            await chat(client, remote)
        assert len(shaky.chats) == 3


@bounded
async def test_many_refusals_are_few_questions() -> None:
    busy = refuse(429, "too many", "rate_limit_error")
    async with FakeLlama([busy]) as fake, upstream() as client, running(fake.url, health_interval=300) as remote:
        loop = asyncio.get_running_loop()
        asked, began = len(fake.requests), loop.time()
        for _ in range(100):
            assert await broken(client, remote) is ErrorKind.UNAVAILABLE
        health = [request for request in fake.requests[asked:] if request.path == "/health"]
        assert len(health) <= (loop.time() - began) / 0.05 + 2
        assert states(remote) == [UP], "one that is busy is not broken"


@bounded
async def test_a_reload_while_it_starts_has_its_servers_asked_with_the_key() -> None:
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen()
        silent = f"http://127.0.0.1:{hole.getsockname()[1]}"
        async with fakes(2, api_key="k") as (first, second):
            remote = Remote(profile_of(silent, api_key_env="KEY"), {"KEY": "k"})
            starting = asyncio.create_task(remote.start())
            await until(lambda: remote.key == "k")
            remote.profile = profile_of(first.url, second.url, api_key_env="KEY")
            await starting
            await until(lambda: states(remote) == [UP, UP])
            assert [backend.key for backend in remote.backends()] == ["k", "k"]
            await remote.stop(grace=0)


@bounded
async def test_other_times_of_a_reload_hold_for_servers_that_stay() -> None:
    async with fakes(1) as (fake,), running(fake.url, health_interval=300) as remote:
        backend = remote.backends()[0]
        remote.profile = profile_of(fake.url, health_interval=1)
        assert remote.backends()[0] is backend
        for _ in range(3):
            backend.begin(0.0)
            backend.end(0.0, Fate.BROKE, "gone", is_try=False)
        assert backend.retry_in(0.0) == pytest.approx(0.2, rel=0.3)


@bounded
async def test_one_that_only_listens_is_left_alone_once_it_breaks_what_it_is_asked() -> None:
    """Of a server that is no llama-server only that is known, and it says nothing of its answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        settings = ServerSettings(urls=(url,), health_interval=30)
        backend = Backend(Profile(id="v", kind="speech", server=settings), url, lambda: 1.0)
        await backend.ask()
        taken = 0
        while backend.accepts(now := asyncio.get_running_loop().time()):
            taken += 1
            assert taken <= 3
            backend.end(now, Fate.BROKE, "silent", is_try=backend.begin(now))
            await backend.ask()
        assert taken == 3
