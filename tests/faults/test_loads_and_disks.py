"""Loads that take long, disks that are full, places that are taken, clients that leave a Deck that drains."""

from __future__ import annotations

import asyncio
import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2e.live import ROOT, LiveDeck, children, free_port, is_alive, live_deck
from e2e.live import until as until_now
from faults.support import (
    Rig,
    bounded,
    client_of,
    configured,
    depth,
    leave,
    local,
    post,
    reading,
    remote,
    stream,
    until,
    works,
)
from faults.test_heartbeats import beats

from deck.testing.fake_llama import Act, Reply
from deck.testing.frames import content, role

# Polls of /health until the fake is ready: about 1.5 s.
SLOW = ("--fake-unhealthy", "10")


@bounded
async def test_a_load_longer_than_heartbeat_and_queue_wait_is_waited_for(tmp_path: Path) -> None:
    """Whoever waits for the model that loads is served; whoever waits for another is told why, and in time."""
    profiles = {"slow": local(tmp_path / "slow", "slow", *SLOW), "other": local(tmp_path / "other", "other")}
    arguments = configured(tmp_path, heartbeat="50ms", queue_wait="300ms")
    with live_deck(tmp_path, *arguments, profiles=profiles) as deck:
        async with client_of(deck) as client:
            began = time.monotonic()
            waiting = [asyncio.ensure_future(stream(client, "slow")), asyncio.ensure_future(post(client, "slow"))]
            await until(lambda: children(deck.process.pid))
            refused = await post(client, "other")
            assert refused.status_code == 503, refused.text
            assert "waited 0.3 s for room to load 'other': 'slow' is being loaded" in refused.json()["error"]["message"]
            assert int(refused.headers["retry-after"]) > 0
            streamed, whole = await asyncio.gather(*waiting)
            assert time.monotonic() - began > 1
            assert streamed.is_done
            assert beats(streamed) >= 3
            assert whole.status_code == 200, whole.text
            await works(client, "slow")


@contextmanager
def cramped(tmp: Path, profiles: dict[str, str], **options: object) -> Iterator[LiveDeck]:
    """Start a Deck whose process and disk are as `options` of Popen say."""
    directory = tmp / "profiles"
    directory.mkdir(parents=True)
    for name, text in profiles.items():
        (directory / f"{name}.toml").write_text(text)
    port, token = free_port(), "deck-" + secrets.token_urlsafe(32)
    command = [sys.executable, "-m", "deck", "serve", "--port", str(port), "--state", str(tmp / "state")]
    process = subprocess.Popen(
        [*command, "--profiles", str(directory)],
        cwd=ROOT,
        env={**os.environ, "DECK_TOKEN": token},
        stdout=subprocess.DEVNULL,
        **options,  # type: ignore[call-overload]
    )
    deck = LiveDeck(process, port, token, tmp / "state", tmp / "deck.log")
    try:
        until_now(lambda: process.poll() is not None or listens(port), 30, "Deck")
        assert process.poll() is None
        yield deck
    finally:
        process.terminate()
        process.wait(20)


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


async def goes_on(deck: LiveDeck) -> None:
    """Assert that answers, streams and reasons of failures need no disk."""
    async with client_of(deck) as client:
        for _ in range(3):
            await works(client, "good")
            assert (await stream(client, "good")).is_done
            failed = await post(client, "failing")
            assert failed.status_code == 503
            assert "exited with status 3: failed to load model" in failed.json()["error"]["message"]
        assert (await client.post("/deck/reload")).status_code == 200
    deck.process.terminate()
    assert await asyncio.to_thread(deck.process.wait, 10) == 0
    assert not children(deck.process.pid)


@bounded
async def test_a_full_disk_under_the_logs_costs_only_the_logs(tmp_path: Path) -> None:
    """The models' logs and Deck's own go to a device that is full."""
    profiles = {
        "good": local(tmp_path / "good", "good"),
        "failing": local(tmp_path / "failing", "failing", "--fake-exit", "3"),
    }
    logs = tmp_path / "state" / "logs"
    logs.mkdir(parents=True)
    for name in profiles:
        (logs / f"{name}.log").symlink_to("/dev/full")
    with open("/dev/full", "wb") as full, cramped(tmp_path, profiles, stderr=full) as deck:
        await goes_on(deck)


@bounded
async def test_a_process_that_may_write_no_file_serves_all_the_same(tmp_path: Path) -> None:
    profiles = {
        "good": local(tmp_path / "good", "good"),
        "failing": local(tmp_path / "failing", "failing", "--fake-exit", "3"),
    }

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    with (tmp_path / "deck.log").open("wb") as log:
        with cramped(tmp_path, profiles, stderr=log, preexec_fn=limit) as deck:
            await goes_on(deck)
        assert (tmp_path / "deck.log").stat().st_size == 0


def test_a_port_that_is_taken_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "deck", "serve", "--port", port, "--state", str(tmp_path / "state")]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert ran.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert "--port" in ran.stderr


@bounded
async def test_a_place_for_sockets_that_is_taken_is_said_and_works_once_it_is_free(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "run").write_text("a file where a directory should be")
    with live_deck(tmp_path, profiles={"good": local(tmp_path / "good", "good")}) as deck:
        async with client_of(deck) as client:
            answer = await post(client, "good")
            assert answer.status_code == 503, answer.text
            assert "no private directory for its files" in answer.json()["error"]["message"]
            (state / "run").unlink()
            await works(client, "good")


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "buffered"])
@bounded
async def test_the_last_client_that_leaves_ends_the_drain(tmp_path: Path, streamed: bool) -> None:
    port = free_port()
    arguments = configured(tmp_path, drain="60s")
    with live_deck(tmp_path, *arguments, profiles={"remote": remote("remote", port)}) as deck:
        rig = Rig(deck, port)
        stalled = Reply(steps=[role(), content("Hi"), Act.STALL])
        async with rig.fake(stalled) as fake, rig.client() as client:
            asking = asyncio.ensure_future(post(client, stream=streamed))
            received = await fake.received()
            deck.process.send_signal(signal.SIGTERM)
            await until(lambda: not listens(deck.port))
            assert deck.process.poll() is None, "it waits for the answer"
            await leave(asking)
            assert await asyncio.to_thread(deck.process.wait, 5) == 0
            assert received.left.is_set()
        assert "Traceback" not in deck.logged()


@bounded
async def test_a_client_that_leaves_a_replaced_server_lets_its_successor_start(tmp_path: Path) -> None:
    """While a changed profile's old server drains, newcomers wait; they need not wait for who has left."""
    text = local(tmp_path / "mute", "mute", "--fake-stall", parallel=2)
    with live_deck(tmp_path, profiles={"mute": text}) as deck:
        async with client_of(deck) as client:
            async with reading(client, "mute") as old:
                await old.until_text("Hello")
                [engine] = children(deck.process.pid)
                path = tmp_path / "profiles" / "mute.toml"
                path.write_text(text.replace('"--fake-stall"', '"--fake-text", "anew"'))
                answer = await client.post("/deck/reload")
                assert answer.status_code == 200, answer.text
                waiting = asyncio.ensure_future(post(client, "mute"))
                await until_depth(client, 1)
                assert is_alive(engine)
            found = await asyncio.wait_for(waiting, 5)
            assert found.json()["choices"][0]["message"]["content"].strip() == "anew"
            assert not is_alive(engine)


async def until_depth(client: object, count: int) -> None:
    async with asyncio.timeout(5):
        while await depth(client) != count:  # type: ignore[arg-type]
            pass
