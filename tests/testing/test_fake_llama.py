import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from deck.testing import frames
from deck.testing.fake_llama import Act, FakeLlama, Received, Reply, Script, refuse, say

CHAT = "/v1/chat/completions"


@asynccontextmanager
async def served(script: Script = (), **options: object) -> AsyncIterator[tuple[FakeLlama, httpx.AsyncClient]]:
    async with FakeLlama(script, **options) as fake:  # type: ignore[arg-type]  # options are passed through
        socket = str(fake.socket) if fake.socket else None
        transport = httpx.AsyncHTTPTransport(uds=socket)
        async with httpx.AsyncClient(transport=transport, base_url=fake.url) as client:
            yield fake, client


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(bounded())


@pytest.mark.parametrize("slice_at", [0, 1, 7])
def test_a_scripted_reply_arrives_byte_for_byte(slice_at: int) -> None:
    async def test() -> None:
        reply = say("Hel", "lo 🌍")
        async with served([Reply(steps=reply.steps, slice_at=slice_at)]) as (fake, client):
            answer = await client.post(CHAT, json={"messages": []}, headers={"x-a": "b"})
            assert answer.content == b"".join(step for step in reply.steps if isinstance(step, bytes))
            request = fake.chats[0]
            assert (request.json(), request.headers["x-a"]) == ({"messages": []}, "b")
            assert request.answered.is_set()
            assert not request.is_cancelled

    run(test)


def test_it_listens_on_a_socket(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "x.sock"
        async with served(host=str(path)) as (_, client):
            assert (await client.get("/health")).json() == {"status": "ok"}
            assert (await client.get("/v1/models")).json()["data"][0]["id"] == "fake"
            assert (await client.get("/props")).json()["default_generation_settings"]["n_ctx"] == 4096
        assert not path.exists()

    run(test)


def test_health_is_slow_when_told_so() -> None:
    async def test() -> None:
        async with served(unhealthy=2) as (_, client):
            assert [(await client.get("/health")).status_code for _ in range(3)] == [503, 503, 200]

    run(test)


def test_replies_follow_the_script_and_the_last_one_stays() -> None:
    async def test() -> None:
        async with served([refuse(500, "broke"), say("ok")]) as (_, client):
            assert [(await client.post(CHAT)).status_code for _ in range(3)] == [500, 200, 200]

    run(test)


def test_a_script_may_be_a_function() -> None:
    async def test() -> None:
        def script(request: Received) -> Reply:
            return refuse(400, request.json()["model"])

        async with served(script) as (_, client):
            assert (await client.post(CHAT, json={"model": "m"})).json()["error"]["message"] == "m"

    run(test)


@pytest.mark.parametrize("act", [Act.CLOSE, Act.RESET])
def test_it_dies_in_the_middle(act: Act) -> None:
    async def test() -> None:
        async with served([Reply(steps=(frames.role(), act))]) as (_, client):
            with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
                await client.post(CHAT)

    run(test)


def test_it_waits_for_events_and_notices_who_leaves() -> None:
    async def test() -> None:
        go = asyncio.Event()
        async with served([Reply(steps=(frames.role(), go, frames.content("a"), Act.STALL))]) as (fake, client):
            async with client.stream("POST", CHAT) as answer:
                pieces = answer.aiter_raw()
                assert await anext(pieces) == frames.role()
                go.set()
                assert await anext(pieces) == frames.content("a")
                request = await fake.received()
                assert not request.left.is_set()
            await request.left.wait()
            await asyncio.sleep(0)
            assert not request.answered.is_set()

    run(test)


def test_even_the_status_may_wait() -> None:
    async def test() -> None:
        go = asyncio.Event()
        async with served([Reply(steps=say("a").steps, before_headers=go)]) as (fake, client):
            pending = asyncio.create_task(client.post(CHAT))
            request = await fake.received()
            assert not pending.done()
            pending.cancel()
            await request.left.wait()

    run(test)


def test_a_key_is_asked_for() -> None:
    async def test() -> None:
        async with served(api_key="k", routes={"/tokenize": {"tokens": [1]}}) as (_, client):
            assert (await client.get("/health")).status_code == 200
            assert (await client.post("/tokenize")).status_code == 401
            assert (await client.post("/tokenize", headers={"authorization": "Bearer k"})).json() == {"tokens": [1]}

    run(test)


def test_an_unknown_path_is_not_found() -> None:
    async def test() -> None:
        async with served() as (_, client):
            assert (await client.get("/nowhere")).json()["error"]["type"] == "not_found_error"

    run(test)


def spawned(*flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "deck.testing.fake_llama", "-m", "/models/a.gguf", "--no-ui", "-np", "2", *flags]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "LLAMA_API_KEY": ""})


def test_it_runs_as_a_process_with_llama_servers_flags(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    with spawned("--host", str(path), "-c", "8192", "--jinja") as process:
        assert process.stderr
        assert any("listening" in line for line in process.stderr)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost") as client:
            props = client.get("/props").json()
            assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (2, 4096)
            assert client.post(CHAT, json={}).content.endswith(frames.done())
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert not path.exists()


def test_a_process_may_fail_to_load() -> None:
    with spawned("--fake-exit", "1") as process:
        _, text = process.communicate(timeout=20)
        assert process.returncode == 1
        assert "exiting due to model loading error" in text
