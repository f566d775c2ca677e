"""Servers that do nothing while they owe something, ready or loading, and those that are only slow."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from e2e.live import children, is_alive, live_deck
from engine_support import MODEL, needs_engine
from faults.support import body, client_of, configured, local, post, reading, unhurried, until, works
from wires import WIRES

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def engine(**keys: Any) -> str:
    """Return the profile of the tiny model on the embedded engine."""
    settings = {"ctx_size": 65536, **keys}
    lines = [f"{key} = {value!r}".replace("'", '"') for key, value in settings.items()]
    return "\n".join(['id = "tiny"', "[server]", f'model = "{MODEL}"', *lines])


@pytest.mark.engine
@needs_engine
@unhurried
async def test_an_engine_that_stands_still_in_its_answer_is_ended_and_replaced(tmp_path: Path) -> None:
    """Its stream ends with the reason; who comes meanwhile gets the new one."""
    with live_deck(tmp_path, profiles={"tiny": engine(hang_timeout="1s", parallel=2)}) as deck:
        async with client_of(deck) as client:
            async with reading(client, "tiny", max_tokens=30_000, ignore_eos=True) as reader:
                await reader.until(lambda data: data.count(b"data: ") > 3)
                [pid] = children(deck.process.pid)
                os.kill(pid, signal.SIGSTOP)
                found = await reader.rest()
            assert found.error is not None
            assert "it hung: for" in found.error["message"]
            await works(client, "tiny")
            assert not is_alive(pid)
            stats = (await client.get("/metrics")).text
            assert 'deck_server_hangs_total{model="tiny"} 1' in stats
        assert "hangs: it hung" in deck.logged()


@pytest.mark.engine
@needs_engine
@unhurried
async def test_a_slow_prompt_is_left_alone(tmp_path: Path) -> None:
    """Nothing comes of it for many times `hang_timeout`, but the engine works."""
    with live_deck(tmp_path, profiles={"tiny": engine(hang_timeout="200ms")}) as deck:
        async with client_of(deck) as client:
            await works(client, "tiny")
            [pid] = children(deck.process.pid)
            began = time.monotonic()
            prompt = "word " * 3000
            answer = await post(client, "tiny", messages=[{"role": "user", "content": prompt}], max_tokens=2)
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["prompt_tokens"] > 4000
            assert time.monotonic() - began > 0.4
            assert children(deck.process.pid) == [pid]


@unhurried
async def test_one_that_answers_health_and_idles_over_an_answer_hangs(tmp_path: Path) -> None:
    profiles = {"mute": local(tmp_path / "mute", "mute", "--fake-stall", hang_timeout="1s")}
    with live_deck(tmp_path, profiles=profiles) as deck:
        async with client_of(deck) as client, reading(client, "mute") as reader:
            await reader.until_text("Hello")
            found = await reader.rest()
            assert found.text == "Hello "
            assert found.error is not None
            assert "it took no processor time" in found.error["message"]
            await until(lambda: not children(deck.process.pid))


@unhurried
async def test_one_that_hangs_in_a_shared_generation_is_seen(tmp_path: Path) -> None:
    """It is nobody's own exchange."""
    profiles = {"mute": local(tmp_path / "mute", "mute", "--fake-stall", hang_timeout="1s")}
    with live_deck(tmp_path, profiles=profiles) as deck:
        async with client_of(deck) as client:
            answer = await post(client, "mute", temperature=0)
            assert answer.status_code == 502
            assert "it hung" in answer.json()["error"]["message"]
            await until(lambda: "lane=static" in deck.logged())


@unhurried
async def test_one_that_hangs_over_an_operation_is_seen(tmp_path: Path) -> None:
    profiles = {"still": local(tmp_path / "still", "still", hang_timeout="1s")}
    with live_deck(tmp_path, profiles=profiles) as deck:
        async with client_of(deck) as client:
            await works(client, "still")
            [pid] = children(deck.process.pid)
            os.kill(pid, signal.SIGSTOP)
            found = await client.post("/tokenize", json={"model": "still", "content": "a"})
            assert found.status_code in (502, 503)
            assert "it hung" in found.json()["error"]["message"]
            await until(lambda: not is_alive(pid))


@unhurried
async def test_one_that_works_is_ended_by_its_silence_alone(tmp_path: Path) -> None:
    keys = {"hang_timeout": "300ms", "stall_timeout": "2s"}
    profiles = {"busy": local(tmp_path / "busy", "busy", "--fake-stall", "--fake-busy", **keys)}
    with live_deck(tmp_path, profiles=profiles) as deck:
        async with client_of(deck) as client, reading(client, "busy") as reader:
            await reader.until_text("Hello")
            pids = children(deck.process.pid)
            found = await reader.rest()
            assert found.error is not None
            assert "was silent for 2 s" in found.error["message"]
            assert children(deck.process.pid) == pids


@unhurried
async def test_a_client_that_does_not_read_makes_no_server_hang(tmp_path: Path) -> None:
    """The server then owes nothing: it is the client that is waited for."""
    profile = local(tmp_path / "full", "full", "--fake-long", "16000000", hang_timeout="500ms", parallel=2)
    with live_deck(tmp_path, profiles={"full": profile}) as deck:
        async with client_of(deck) as client:
            asked = json.dumps(body("full", stream=True)).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: deck\r\nauthorization: Bearer {deck.token}\r\n"
            reader, writer = await asyncio.open_connection("127.0.0.1", deck.port, limit=1024)
            writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(asked) + asked)
            await reader.readuntil(b"\r\n\r\n")
            pids = children(deck.process.pid)
            began = time.monotonic()
            while time.monotonic() - began < 5:
                assert (await client.get("/v1/stats")).json()["servers"]["full"] == "ready"
                await asyncio.sleep(0.1)
            assert children(deck.process.pid) == pids
            data = b""
            while b"[DONE]" not in data:
                data = data[-100:] + await reader.read(1 << 16)
            writer.close()


@unhurried
async def test_a_load_without_a_sign_of_life_is_given_up(tmp_path: Path) -> None:
    profiles = {"stuck": local(tmp_path / "stuck", "stuck", "--fake-unhealthy", "999999", load_stall="1s")}
    with live_deck(tmp_path, profiles=profiles) as deck:
        async with client_of(deck) as client:
            answer = await post(client, "stuck")
            assert answer.status_code == 503, answer.text
            assert "did not start: hung: for 1 s it printed nothing" in answer.json()["error"]["message"]
            assert not children(deck.process.pid)


@unhurried
async def test_who_waits_for_a_load_and_wants_to_know_is_told_of_it(tmp_path: Path) -> None:
    """In the signs of life of a stream, on the wires that have a place for it; nobody else gets more than those."""
    slow = ("--fake-unhealthy", "12", "--fake-dots")
    profiles = {"slow": local(tmp_path / "slow", "slow", *slow)}
    with live_deck(tmp_path, *configured(tmp_path, heartbeat="150ms"), profiles=profiles) as deck:
        async with client_of(deck) as client:
            for wire in ("chat", "completions", "responses"):
                reads = WIRES[wire]
                asked = {**reads.body("hi", True, 20), "model": "slow"}
                quiet, curious = await asyncio.gather(
                    client.post(reads.path, json=asked),
                    client.post(reads.path, json={**asked, "return_progress": True}),
                )
                assert b"load_progress" not in quiet.content
                frames = [json.loads(line[6:]) for line in curious.text.splitlines() if line.startswith("data: {")]
                told = [frame["load_progress"] for frame in frames if "load_progress" in frame]
                assert told, curious.text
                assert told[-1]["done"] > 0
                assert told[-1]["line"] == "main: model loaded"
                for answer in (quiet, curious):
                    said = reads.stream(answer.content)  # both are streams of their wire
                    assert wire == "completions" or said.error is None  # the fake speaks chat
                await client.post("/deck/servers/slow/unload")


@unhurried
async def test_a_load_that_prints_goes_on_and_is_shown(tmp_path: Path) -> None:
    """Up to `load_timeout`, which is another bound."""
    arguments = ("--fake-unhealthy", "999999", "--fake-dots")
    keys = {"load_stall": "1s", "load_timeout": "5s"}
    profiles = {"slow": local(tmp_path / "slow", "slow", *arguments, **keys)}
    with live_deck(tmp_path, profiles=profiles) as deck:
        async with client_of(deck) as client:
            asking = asyncio.ensure_future(post(client, "slow"))

            async def loading() -> Any:
                return (await client.get("/v1/stats")).json()["loading"].get("slow")

            seen = []
            while not asking.done():
                seen.append(await loading())
                await asyncio.sleep(0.1)
            answer = await asking
            assert "was not ready after 5 s" in answer.json()["error"]["message"]
            shares = [item["done"] for item in seen if item and item["done"]]
            assert shares == sorted(shares)
            assert shares[-1] > 0.05
            assert max(item["seconds"] for item in seen if item) > 3
            assert await loading() is None
