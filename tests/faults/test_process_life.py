"""Engines and Decks that are killed, stopped or cannot start, as processes of the system."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_automaton import check
from e2e.live import ROOT, LiveDeck, children, free_port, is_alive, live_deck
from e2e.live import until as until_now
from engine_support import MODEL, needs_engine
from faults.support import (
    Rig,
    body,
    bounded,
    client_of,
    configured,
    local,
    post,
    queued,
    reading,
    remote,
    stream,
    until,
    works,
)

from deck.config import Config
from deck.contracts import Address, ServerState
from deck.errors import DeckError
from deck.profile import load_profile
from deck.servers.place import Place
from deck.servers.process import Process
from deck.testing.fake_llama import Act, FakeLlama, Reply, Step, say
from deck.testing.frames import content, done, finish, role

MODES = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "buffered"])


# A request of each kind, by the model that it is for: one that fails again and again is not tried at once.
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "buffered": ("/v1/chat/completions", body("buffered")),
    "streamed": ("/v1/chat/completions", body("streamed", stream=True)),
    "raw": ("/v1/completions", {"model": "raw", "prompt": "hi"}),
    "messages": ("/v1/messages", {**body("messages"), "max_tokens": 9}),
    "responses": ("/v1/responses", {"model": "responses", "input": "hi"}),
    "operation": ("/tokenize", {"model": "operation", "content": "one two"}),
    "count": ("/v1/messages/count_tokens", body("count")),
}


@pytest.fixture(scope="module")
def hosting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDeck]:
    """A Deck with engines that misbehave, one at a time."""
    tmp = tmp_path_factory.mktemp("hosting")
    profiles = {
        "good": local(tmp / "good", "good"),
        "mute": local(tmp / "mute", "mute", "--fake-stall", parallel=2),
        "crash": local(tmp / "crash", "crash", "--fake-crash"),
        "deaf": local(tmp / "deaf", "deaf", "--fake-deaf"),
        "brief": local(tmp / "brief", "brief", "--fake-deaf", ttl="50ms"),
        "failing": local(tmp / "failing", "failing", "--fake-exit", "3"),
        "missing": local(tmp / "missing", "missing", model=str(tmp / "nowhere.gguf")),
        "text": local(tmp / "text", "text", model=str(tmp / "deck.toml")),
        "bare": local(tmp / "bare", "bare", binary=str(tmp / "no-such-server")),
        "flagged": local(tmp / "flagged", "flagged", "--no-such-flag").replace("binary =", "#"),
    }
    profiles |= {model: local(tmp / model, model, "--fake-heir", "2") for model in REQUESTS}
    profiles["flagged"] = re.sub(r'model = ".*"', f'model = "{MODEL}"', profiles["flagged"])
    arguments = configured(tmp, stop_grace="300ms", drain="500ms")
    with live_deck(tmp, *arguments, profiles=profiles, env={"LLAMA_API_KEY": "not-the-childs"}) as deck:
        yield deck


def engines(deck: LiveDeck) -> list[int]:
    return [pid for pid in children(deck.process.pid) if is_alive(pid)]


def zombies(deck: LiveDeck) -> list[int]:
    return [pid for pid in children(deck.process.pid) if not is_alive(pid)]


@bounded
async def test_a_killed_engine_is_an_error_with_its_reason_and_the_next_request_restarts_it(hosting: LiveDeck) -> None:
    async with client_of(hosting) as client:
        async with reading(client, "mute") as one, reading(client, "mute") as two:
            await one.until_text("Hello")
            await two.until_text("Hello")
            [engine] = engines(hosting)
            os.kill(engine, signal.SIGKILL)
            for reader in (one, two):
                found = await reader.rest()
                assert found.text == "Hello "
                assert found.error is not None
                assert "killed by signal 9" in found.error["message"]
        assert not is_alive(engine)
        await until(lambda: not zombies(hosting))
        async with reading(client, "mute") as reader:
            await reader.until_text("Hello")
            assert engines(hosting) != [engine]


@MODES
@bounded
async def test_an_engine_that_crashes_in_its_answer_is_restarted(hosting: LiveDeck, streamed: bool) -> None:
    """B110, B150."""
    async with client_of(hosting) as client:
        for _ in range(2):
            if streamed:
                error = (await stream(client, "crash")).error
                assert error is not None
            else:
                answer = await post(client, "crash")
                assert answer.status_code == 502, answer.text
                error = answer.json()["error"]
            assert "exited with status 134" in error["message"]
        await works(client, "good")
        assert len(engines(hosting)) == 1


@bounded
async def test_an_engine_that_is_killed_while_idle_is_restarted(hosting: LiveDeck) -> None:
    """B151: a zombie never counts as alive."""
    async with client_of(hosting) as client:
        await works(client, "good")
        [engine] = engines(hosting)
        os.kill(engine, signal.SIGKILL)
        await until(lambda: engine not in children(hosting.process.pid))
        await works(client, "good")


@pytest.mark.parametrize("model", REQUESTS)
@bounded
async def test_a_request_that_a_dead_engine_never_heard_of_is_for_the_next(hosting: LiveDeck, model: str) -> None:
    """B151: also while Deck does not know of the death; output that another process holds open puts that off."""
    path, asked = REQUESTS[model]
    async with client_of(hosting) as client:
        await works(client, model)
        [engine, *_] = engines(hosting)
        os.kill(engine, signal.SIGKILL)
        await until(lambda: not is_alive(engine))
        answer = await client.post(path, json=asked)
        assert answer.status_code == 200, answer.text
        if model == "streamed":
            assert check(answer.content).is_done
        if model == "count":  # an estimate: a count loads nothing
            assert answer.headers["x-deck-estimate"] == "1"


@bounded
async def test_an_engine_that_ignores_sigterm_is_killed_and_reaped(hosting: LiveDeck) -> None:
    """B146: and then the next model starts."""
    async with client_of(hosting) as client:
        await works(client, "deaf")
        [engine] = engines(hosting)
        began = time.monotonic()
        await works(client, "good")
        assert time.monotonic() - began >= 0.3
        assert engine not in children(hosting.process.pid)
        assert not zombies(hosting)


@bounded
async def test_a_request_that_comes_while_the_idle_engine_stops_gets_a_new_one(hosting: LiveDeck) -> None:
    """B142, twice over."""

    async def is_stopping() -> bool:
        shown = (await client.get("/v1/stats")).json()["servers"]
        return bool(shown["brief"] == "draining")

    async with client_of(hosting) as client:
        for _ in range(2):
            await works(client, "brief")
            [engine] = engines(hosting)
            while not await is_stopping():
                pass
            assert is_alive(engine)
        await works(client, "brief")
        assert not is_alive(engine)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("failing", "exited with status 3"),
        ("missing", "nowhere.gguf"),
        ("text", "deck.toml"),
        ("bare", "no-such-server"),
        pytest.param("flagged", "no-such-flag", marks=needs_engine),
    ],
)
@MODES
@bounded
async def test_a_load_that_fails_says_why_and_is_tried_again(
    hosting: LiveDeck, model: str, reason: str, streamed: bool
) -> None:
    """B154."""
    async with client_of(hosting) as client:
        for _ in range(2):
            answer = await post(client, model, stream=streamed)
            assert answer.status_code == 503, answer.text
            assert reason in answer.json()["error"]["message"]
            assert (await client.get("/v1/stats")).json()["servers"][model] == "failed"
        await works(client, "good")


@bounded
async def test_a_load_that_fails_tells_all_who_wait_and_lets_the_others_pass(hosting: LiveDeck) -> None:
    async with client_of(hosting) as client:
        models = ["failing", "good", "failing", "good", "failing"]
        answers = await asyncio.gather(*(post(client, model) for model in models))
        assert [answer.status_code for answer in answers] == [503, 200, 503, 200, 503]


@bounded
async def test_a_load_that_failed_works_once_its_cause_is_gone(hosting: LiveDeck) -> None:
    path = hosting.state.parent / "nowhere.gguf"
    async with client_of(hosting) as client:
        assert (await post(client, "missing")).status_code == 503
        path.write_bytes(b"GGUF and nothing else")
        try:
            await works(client, "missing")
        finally:
            path.unlink()


@needs_engine
def test_check_names_each_fault(hosting: LiveDeck) -> None:
    tmp = hosting.state.parent
    command = [sys.executable, "-m", "deck", "check", "--config", str(tmp / "deck.toml"), "--profiles"]
    ran = subprocess.run(
        [*command, str(tmp / "profiles")], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    said = ran.stdout + ran.stderr
    assert ran.returncode == 1, said
    for word in ("nowhere.gguf", "deck.toml", "no-such-server", "--no-such-flag"):
        assert word in said


@bounded
async def test_a_stranger_on_a_socket_of_the_models_name_is_never_adopted(tmp_path: Path) -> None:
    """B148: nor is its socket removed."""
    profiles = {"good": local(tmp_path / "good", "good")}
    run = tmp_path / "state" / "run"
    run.mkdir(parents=True, mode=0o700)
    stranger, asked = socket.socket(socket.AF_UNIX), []
    path = run / "good-00000000.sock"
    stranger.bind(str(path))
    stranger.listen()

    def answer() -> None:
        while True:
            try:
                peer, _ = stranger.accept()
            except OSError:
                return
            with peer:
                asked.append(peer.recv(65536))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        with live_deck(tmp_path, *configured(tmp_path), profiles=profiles) as deck:
            async with client_of(deck) as client:
                await works(client, "good")
        assert path.exists()
        assert not any(asked), "only whether somebody listens may be tried"
    finally:
        stranger.shutdown(socket.SHUT_RDWR)
        stranger.close()
        thread.join(5)


@bounded
async def test_a_stranger_on_the_port_is_never_adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B148, where there are no UNIX sockets."""
    file = tmp_path / "good.toml"
    file.write_text(local(tmp_path, "good"))
    async with FakeLlama(alias="stranger") as stranger:
        place = Place(address=Address(port=stranger.port), log=tmp_path / "log", config_home=tmp_path)
        monkeypatch.setattr("deck.servers.process.make_place", lambda name, state, claim: place)
        server = Process(load_profile(file), Config(state=tmp_path / "state"))
        with pytest.raises(DeckError, match=r"'stranger', listens|exited with status"):
            await server.start()
        assert server.state is ServerState.FAILED
        assert server.pid is None


@bounded
async def test_a_killed_deck_leaves_no_engine(tmp_path: Path) -> None:
    with live_deck(tmp_path, profiles={"mute": local(tmp_path / "mute", "mute", "--fake-stall")}) as deck:
        async with client_of(deck) as client, reading(client, "mute") as reader:
            await reader.until_text("Hello")
            left = children(deck.process.pid)
            assert left
            deck.process.kill()
        deck.process.wait(5)
        await until(lambda: not any(is_alive(pid) for pid in left))


@bounded
async def test_a_stopped_deck_finishes_its_streams(tmp_path: Path) -> None:
    port, gate = free_port(), asyncio.Event()
    steps: list[Step] = [role(), content("one "), gate, content("two"), finish(), done()]
    with live_deck(tmp_path, profiles={"remote": remote("remote", port)}) as deck:
        rig = Rig(deck, port)
        async with rig.fake(Reply(steps=steps)), rig.client() as client, reading(client) as reader:
            await reader.until_text("one")
            deck.process.send_signal(signal.SIGTERM)
            await until(lambda: not listens(deck.port))
            assert deck.process.poll() is None
            gate.set()
            found = await reader.rest()
            assert found.text == "one two"
            assert found.is_done
        assert await asyncio.to_thread(deck.process.wait, 5) == 0


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@bounded
async def test_a_stopped_deck_ends_endless_streams_with_an_error(tmp_path: Path) -> None:
    """Those who wait in the queue or for a whole answer are told as well, and no engine is left."""
    port = free_port()
    profiles = {
        "remote": remote("remote", port),
        "single": remote("single", port, parallel=1),
        "mute": local(tmp_path / "mute", "mute", "--fake-stall"),
    }
    with live_deck(tmp_path, *configured(tmp_path, drain="300ms"), profiles=profiles) as deck:
        rig = Rig(deck, port)
        stalled = Reply(steps=[role(), content("Hi"), Act.STALL])
        async with rig.fake(stalled) as fake, rig.client() as client:
            async with reading(client, "single") as one, reading(client, "mute") as two:
                await one.until_text("Hi")
                await two.until_text("Hello")
                left = children(deck.process.pid)
                waiting = asyncio.ensure_future(post(client, "single"))
                await queued(client, 1)
                whole = asyncio.ensure_future(post(client))
                await fake.received(2)
                began = time.monotonic()
                deck.process.send_signal(signal.SIGTERM)
                for reader in (one, two):
                    found = await reader.rest()
                    assert found.error is not None
                    assert "shutting down" in found.error["message"]
                for answer in (await waiting, await whole):
                    assert answer.status_code == 503, answer.text
                    assert int(answer.headers["retry-after"]) > 0
            assert await asyncio.to_thread(deck.process.wait, 10) == 0
            assert time.monotonic() - began < 5
        assert not any(is_alive(pid) for pid in left)


@bounded
async def test_a_stop_while_a_model_loads_leaves_nothing(tmp_path: Path) -> None:
    profiles = {"slow": local(tmp_path / "slow", "slow", "--fake-unhealthy", "999999")}
    with live_deck(tmp_path, *configured(tmp_path, drain="200ms"), profiles=profiles) as deck:
        async with client_of(deck) as client:
            asking = asyncio.ensure_future(post(client, "slow", stream=True))
            left = await until(lambda: children(deck.process.pid))
            deck.process.send_signal(signal.SIGTERM)
            answer = await asking
            assert answer.status_code == 503, answer.text
        assert await asyncio.to_thread(deck.process.wait, 10) == 0
        assert not any(is_alive(pid) for pid in left)


@bounded
async def test_a_second_signal_ends_the_drain(tmp_path: Path) -> None:
    profiles = {"mute": local(tmp_path / "mute", "mute", "--fake-stall", "--fake-deaf")}
    arguments = configured(tmp_path, drain="60s", stop_grace="200ms")
    with live_deck(tmp_path, *arguments, profiles=profiles) as deck:
        async with client_of(deck) as client, reading(client, "mute") as reader:
            await reader.until_text("Hello")
            left = children(deck.process.pid)
            deck.process.send_signal(signal.SIGTERM)
            await until(lambda: not listens(deck.port))
            assert deck.process.poll() is None
            deck.process.send_signal(signal.SIGTERM)
            found = await reader.rest()
            assert found.error is not None
        assert await asyncio.to_thread(deck.process.wait, 10) == 0
        assert not any(is_alive(pid) for pid in left), "one that ignores SIGTERM is killed as well"


@bounded
async def test_a_client_that_reads_nothing_does_not_hold_up_the_end(tmp_path: Path) -> None:
    port = free_port()
    endless = Reply(steps=[role(), *([content("x" * 60_000)] * 400), Act.STALL])
    with live_deck(tmp_path, *configured(tmp_path, drain="100ms"), profiles={"remote": remote("remote", port)}) as deck:
        rig = Rig(deck, port)
        async with rig.fake(endless), rig.client() as client, reading(client) as reader:
            await reader.until_text("xxx")
            began = time.monotonic()
            deck.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(deck.process.wait, 15) == 0
            assert time.monotonic() - began < 10
        assert "Traceback" not in deck.logged()


@needs_engine
@bounded
async def test_the_real_engine_is_killed_in_mid_stream_and_comes_back(tmp_path: Path) -> None:
    fields = {"max_tokens": 4000, "ignore_eos": True, "temperature": 0}
    with live_deck(tmp_path) as deck:
        async with client_of(deck) as client:
            async with reading(client, "tiny-chat", **fields) as reader:
                await reader.until(lambda data: data.count(b"data: ") > 3)
                [engine, *_] = engines(deck)
                os.kill(engine, signal.SIGKILL)
                found = await reader.rest()
            assert found.error is not None
            assert "killed by signal 9" in found.error["message"]
            answer = await post(client, "tiny-chat", stream=True, max_tokens=4)
            assert check(answer.content).is_done


def test_the_rig_leaves_nothing(hosting: LiveDeck) -> None:
    """Whatever was done to them above, one engine at most is left, and no zombie."""
    until_now(lambda: not zombies(hosting))
    assert len(engines(hosting)) <= 1


@bounded
async def test_a_remote_server_that_was_replaced_is_used(tmp_path: Path) -> None:
    port = free_port()
    with live_deck(tmp_path, profiles={"remote": remote("remote", port)}) as deck:
        rig = Rig(deck, port)
        async with rig.client() as client:
            assert (await post(client)).status_code == 503
            for _ in range(2):
                async with rig.fake(say("Hello")):
                    await works(client)
