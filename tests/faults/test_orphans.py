"""A Deck that is killed or stopped at its worst moment: no process of it is left, and the next Deck works."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.live import LiveDeck, children, is_alive, live_deck
from engine_support import MODEL, needs_engine
from faults.support import bounded, client_of, configured, gguf, local, post, reading, until, works
from scripted_llama import script

LONG = {"max_tokens": 4000, "ignore_eos": True, "temperature": 0}
KINDS = pytest.mark.parametrize("kind", ["fake", pytest.param("engine", marks=[needs_engine, pytest.mark.engine])])


def profile(tmp: Path, kind: str, name: str, *arguments: str) -> str:
    """Return a profile of the fake, or of the real engine without the fake's arguments."""
    if kind == "engine":
        return f'id = "{name}"\n[server]\nmodel = "{MODEL}"\nctx_size = 4096\nargs = ["--threads", "1"]\n'
    return local(tmp / name, name, *arguments)


def left(deck: LiveDeck) -> list[int]:
    """Return every process whose command line names the state directory, whoever its parent is, but Deck itself."""
    mark, found = str(deck.state).encode(), []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            is_ours = mark in path.read_bytes()
        except OSError:
            continue
        pid = int(path.parent.name)
        if is_ours and pid != deck.process.pid and is_alive(pid):
            found.append(pid)
    return found


async def kill(deck: LiveDeck, *known: int) -> None:
    """Kill Deck; nothing of it may be left a moment later."""
    deck.process.kill()
    deck.process.wait(5)
    await until(lambda: not left(deck) and not any(is_alive(pid) for pid in known), 3)


@KINDS
@bounded
async def test_killed_while_a_model_loads(tmp_path: Path, kind: str) -> None:
    profiles = {"m1": profile(tmp_path, kind, "m1", "--fake-unhealthy", "999999")}
    with live_deck(tmp_path, profiles=profiles) as deck:
        async with client_of(deck) as client:
            asking = asyncio.ensure_future(post(client, "m1"))
            [engine] = await until(lambda: children(deck.process.pid))
            await kill(deck, engine)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


@KINDS
@bounded
async def test_killed_while_an_answer_streams(tmp_path: Path, kind: str) -> None:
    profiles = {"m1": profile(tmp_path, kind, "m1", "--fake-stall")}
    with live_deck(tmp_path, profiles=profiles) as deck:
        async with client_of(deck) as client, reading(client, "m1", **LONG) as reader:
            await reader.until(lambda data: data.count(b"data: ") >= 2)
            engines = left(deck)
            assert engines
            await kill(deck, *engines)


@KINDS
@bounded
async def test_killed_while_one_model_makes_room_for_another(tmp_path: Path, kind: str) -> None:
    profiles = {
        "m1": profile(tmp_path, kind, "m1", "--fake-deaf"),
        "m2": profile(tmp_path, kind, "m2", "--fake-unhealthy", "999999"),
    }
    for moment in ("stopping", "loading"):
        tmp = tmp_path / moment
        arguments = configured(tmp, stop_grace="60s" if moment == "stopping" else "50ms")
        with live_deck(tmp, *arguments, profiles=profiles) as deck:
            async with client_of(deck) as client:
                await works(client, "m1")
                [first] = children(deck.process.pid)
                asking = asyncio.ensure_future(post(client, "m2"))
                if moment == "stopping" and kind == "fake":
                    await until(lambda deck=deck: "draining" in states(deck))
                else:
                    await until(lambda deck=deck, first=first: set(children(deck.process.pid)) - {first})
                await kill(deck, first)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)


def states(deck: LiveDeck) -> list[str]:
    answer = httpx.get(f"{deck.base}/v1/stats", headers=deck.headers, timeout=5)
    return list(answer.json()["servers"].values())


@bounded
async def test_killed_though_the_program_is_a_script_that_stays(tmp_path: Path) -> None:
    """A wrapper around llama-server is Deck's child, llama-server is not."""
    directory = tmp_path / "m1"
    directory.mkdir()
    program = script(directory, "--deaf", is_wrapped=True)
    keys: dict[str, Any] = {"model": str(gguf(directory)), "binary": str(program)}
    text = "\n".join(['id = "m1"', "[server]", *(f"{key} = {json.dumps(item)}" for key, item in keys.items())])
    with live_deck(tmp_path, profiles={"m1": text}) as deck:
        async with client_of(deck) as client:
            await works(client, "m1")
            engines = children(deck.process.pid)
            assert len(engines) == 2
            await kill(deck, *engines)


@bounded
async def test_killed_while_hooks_run_that_are_no_scripts(tmp_path: Path) -> None:
    """What a hook has started is a child of its own, and ends with Deck as it does."""
    line = f"sleep 300 & echo $! > {tmp_path}/child; wait"
    hooks = f'\n[hooks]\nafter_ready = ["/bin/sh", "-c", {json.dumps(line)}]\ntimeout = "300s"\n'
    with live_deck(tmp_path, profiles={"m1": profile(tmp_path, "fake", "m1") + hooks}) as deck:
        async with client_of(deck) as client:
            await works(client, "m1")
            child = int(await until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text().strip()))
            assert is_alive(child)
            await kill(deck, child)


@bounded
async def test_killed_while_a_program_runs_that_has_started_the_server(tmp_path: Path) -> None:
    line = f"{sys.executable} -m http.server --bind 127.0.0.1 {{port}} & echo $! > {tmp_path}/child; wait"
    text = f'id = "voice"\nkind = "speech"\n[server]\ncommand = ["/bin/sh", "-c", {json.dumps(line)}]\n'
    with live_deck(tmp_path, profiles={"voice": text}) as deck:
        async with client_of(deck) as client:
            answer = await client.post("/deck/servers/voice/load")
            assert answer.json()["state"] == "ready", answer.text
            child = int((tmp_path / "child").read_text())
            assert is_alive(child)
            await kill(deck, child)


@KINDS
@bounded
async def test_the_next_deck_finds_nothing_in_its_way(tmp_path: Path, kind: str) -> None:
    profiles = {"m1": profile(tmp_path, kind, "m1")}
    with live_deck(tmp_path, profiles=profiles) as deck:
        async with client_of(deck) as client:
            await works(client, "m1")
        await kill(deck)
        sockets = list((deck.state / "run").glob("*.sock"))
        assert sockets, "a killed server leaves its socket"
    with live_deck(tmp_path, profiles=profiles) as deck:
        async with client_of(deck) as client:
            await works(client, "m1")
        assert not set(sockets) & set((deck.state / "run").glob("*.sock")), "stale ones are removed"


@pytest.mark.engine
@needs_engine
@bounded
async def test_sigterm_lets_the_real_engine_finish_what_it_can(tmp_path: Path) -> None:
    """A short answer ends whole, an endless one in its wire's error, and no engine is left."""
    text = profile(tmp_path, "engine", "m1").replace("ctx_size = 4096", "parallel = 2\nctx_size = 9000")
    with live_deck(tmp_path, *configured(tmp_path, drain="1s"), profiles={"m1": text}) as deck:
        async with client_of(deck) as client:
            await works(client, "m1")
            async with (
                reading(client, "m1", max_tokens=200, ignore_eos=True) as short,
                reading(client, "m1", **LONG) as endless,
            ):
                for reader in (short, endless):
                    await reader.until(lambda data: data.count(b"data: ") >= 2)
                engines = left(deck)
                assert engines
                deck.process.send_signal(signal.SIGTERM)
                assert (await short.rest()).is_done
                found = await endless.rest()
            assert found.is_done or (found.error is not None and "shutting down" in found.error["message"])
        assert await asyncio.to_thread(deck.process.wait, 10) == 0
        assert not left(deck)
        assert not any(is_alive(pid) for pid in engines)
