"""Starts that will fail again, crashes, sizes, and what killed Decks leave: on live Decks."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.live import ROOT, children, is_alive, live_deck
from engine_support import MODEL, needs_engine
from faults.support import client_of, configured, local, post, reading, unhurried, until, works
from wires import WIRES

_ARCHITECTURE = struct.pack("<Q", 20) + b"general.architecture" + struct.pack("<IQ", 8, 5)


def broken(tmp_path: Path, name: str) -> str:
    """Return the profile of the tiny model with something wrong with its file."""
    data = MODEL.read_bytes()
    changed = {
        "truncated": data[: len(data) // 2],
        "headless": data[:2000],
        "unknown": data.replace(_ARCHITECTURE + b"qwen2", _ARCHITECTURE + b"qwen9"),
        "holed": data.replace(b"blk.0.attn_q.weight", b"blk.0.attn_z.weight"),
    }[name]
    assert changed != data
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(changed)
    return f'id = "{name}"\n[server]\nmodel = "{path}"\nctx_size = 4096\n'


@pytest.mark.engine
@needs_engine
@unhurried
async def test_a_file_that_cannot_be_loaded_tells_clients_to_give_up(tmp_path: Path) -> None:
    """Until it is another file and the profile is changed or an operator asks."""
    names = {
        "truncated": "download it anew",
        "headless": "download it anew",
        "unknown": "does not know such a model",
        "holed": "does not hold what",
    }
    profiles = {name: broken(tmp_path, name) for name in names}
    with live_deck(tmp_path / "deck", profiles=profiles) as deck:
        async with client_of(deck) as client:
            for name, remedy in names.items():
                answer = await post(client, name)
                assert answer.status_code == 503, answer.text
                assert answer.headers["x-should-retry"] == "false"
                assert "retry-after" not in answer.headers
                assert remedy in answer.json()["error"]["message"]
            for _ in range(3):
                answer = await post(client, "truncated")
            assert "failed 3 times in a row" in answer.json()["error"]["message"]
            assert answer.headers["x-should-retry"] == "false"
            assert "retry-after" not in answer.headers
            (tmp_path / "truncated.gguf").write_bytes(MODEL.read_bytes())
            assert (await post(client, "truncated")).status_code == 503
            assert (await client.post("/deck/servers/truncated/load")).status_code == 200
            await works(client, "truncated")


@unhurried
async def test_a_flag_that_is_unknown_is_told_on_every_wire(tmp_path: Path) -> None:
    says = ("--fake-exit", "1", "--fake-says", "error: invalid argument: --no-such-flag")
    profiles = {"flagged": local(tmp_path / "flagged", "flagged", *says)}
    with live_deck(tmp_path, profiles=profiles) as deck:
        async with client_of(deck) as client:
            for wire in WIRES.values():
                for streamed in (True, False):
                    request = {**wire.body("hi", streamed, 4), "model": "flagged"}
                    answer = await client.post(wire.path, json=request)
                    assert answer.status_code == 503, answer.text
                    assert answer.headers["x-should-retry"] == "false"
                    assert "--no-such-flag (correct the arguments" in answer.text


@unhurried
async def test_a_changed_profile_ends_the_wait_for_the_next_try(tmp_path: Path) -> None:
    says = ("--fake-exit", "1", "--fake-says", "error: invalid argument: --no-such-flag")
    profiles = {"flagged": local(tmp_path / "flagged", "flagged", *says)}
    with live_deck(tmp_path, profiles=profiles) as deck:
        async with client_of(deck) as client:
            for _ in range(5):
                assert (await post(client, "flagged")).status_code == 503
            stats = (await client.get("/v1/stats")).json()
            assert stats["quarantined"]["flagged"]["failures"] >= 3
            (tmp_path / "profiles" / "flagged.toml").write_text(local(tmp_path / "flagged", "flagged"))
            assert (await client.post("/deck/reload")).status_code == 200
            await works(client, "flagged")


@unhurried
async def test_one_that_restarts_is_up_again_though_nobody_asks(tmp_path: Path) -> None:
    text = local(tmp_path / "good", "good") + '\n[schedule]\npreload = true\nrestart = "always"\n'
    with live_deck(tmp_path, profiles={"good": text}) as deck:
        [first] = await until(lambda: children(deck.process.pid))
        async with client_of(deck) as client:

            async def is_ready() -> bool:
                return bool((await client.get("/v1/stats")).json()["servers"].get("good") == "ready")

            async def ready() -> None:
                while not await is_ready():
                    await asyncio.sleep(0.02)

            await ready()
            os.kill(first, signal.SIGKILL)
            await until(lambda: (found := children(deck.process.pid)) and found != [first])
            await ready()
            assert (await client.post("/deck/servers/good/unload")).json()["unload"] == "stopped"
            assert not children(deck.process.pid)


@unhurried
async def test_one_that_is_kept_warm_comes_back_when_the_other_has_gone(tmp_path: Path) -> None:
    warm = local(tmp_path / "warm", "warm") + "\n[schedule]\nkeep_warm = true\n"
    profiles = {"warm": warm, "other": local(tmp_path / "other", "other", ttl="100ms")}
    with live_deck(tmp_path, profiles=profiles) as deck:
        async with client_of(deck) as client:

            async def states() -> dict[str, str]:
                found: dict[str, str] = (await client.get("/v1/stats")).json()["servers"]
                return found

            async def settled() -> None:
                while (await states()).get("warm") != "ready":
                    await asyncio.sleep(0.02)

            await settled()
            await works(client, "other")
            await settled()
            assert (await states())["other"] == "stopped"


@pytest.mark.engine
@needs_engine
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@unhurried
async def test_one_that_has_grown_is_recycled_between_two_answers(tmp_path: Path) -> None:
    """No answer is cut by it."""
    text = f'id = "tiny"\n[server]\nmodel = "{MODEL}"\nctx_size = 65536\nparallel = 2\nmax_rss = "1MiB"\n'
    text += 'hang_timeout = "1s"\n'  # so that it is looked at often
    with live_deck(tmp_path, profiles={"tiny": text}) as deck:
        async with client_of(deck) as client:
            async with reading(client, "tiny", max_tokens=7500, ignore_eos=True) as reader:
                await reader.until(lambda data: data.count(b"data: ") > 3)
                [first] = children(deck.process.pid)
                await until(lambda: "stops when it is free" in deck.logged())
                assert is_alive(first)
                found = await reader.rest()
                assert found.error is None
                assert found.is_done
            await until(lambda: not is_alive(first))
            await works(client, "tiny")
            counted = (await client.get("/metrics")).text
            assert 'deck_server_recycles_total{model="tiny"}' in counted
            assert 'deck_server_recycles_total{model="tiny"} 0' not in counted


@unhurried
async def test_one_whose_socket_is_gone_is_started_anew(tmp_path: Path) -> None:
    """Nobody could reach it any more, and its failing requests would keep it up."""
    text = local(tmp_path / "m1", "m1", hang_timeout="1s")
    with live_deck(tmp_path, profiles={"m1": text}) as deck:
        async with client_of(deck) as client:
            await works(client, "m1")
            [first] = children(deck.process.pid)
            [socket] = (deck.state / "run").glob("m1-*.sock")
            socket.unlink()
            await until(lambda: "its socket" in deck.logged() and not is_alive(first))
            await works(client, "m1")


@pytest.fixture
def near() -> Iterator[Path]:
    """A directory whose name leaves room for those of sockets."""
    with tempfile.TemporaryDirectory(prefix="deck") as found:
        yield Path(found)


@unhurried
async def test_a_new_deck_removes_what_a_killed_one_left_of_any_model(near: Path) -> None:
    tmp_path = near
    profiles = {name: local(tmp_path / name, name) for name in ("one", "two")}
    run = tmp_path / "state" / "run"
    config = ("--config", str(tmp_path / "deck.toml"))
    (tmp_path / "deck.toml").write_text('[scheduler]\nmemory = "64GiB"\n')
    with live_deck(tmp_path, *config, profiles=profiles) as deck:
        async with client_of(deck) as client:
            for name in profiles:
                await works(client, name)
        left = children(deck.process.pid)
        deck.process.kill()
        deck.process.wait(5)
        await until(lambda: not any(is_alive(pid) for pid in left))
    assert len(list(run.glob("*.sock"))) == 2
    assert len(list(run.glob("*.lock"))) == 1
    with live_deck(tmp_path, *config, profiles=profiles) as deck:
        assert list(run.glob("*.sock")) == []
        assert len(list(run.glob("*.lock"))) == 1
        assert "removed 3 files that a dead Deck left" in deck.logged()
        assert "another Deck" not in deck.logged()
    assert list(run.iterdir()) == []


@unhurried
async def test_two_decks_on_one_state_directory_leave_each_other_s_files_alone(near: Path) -> None:
    tmp_path = near
    profiles = {"good": local(tmp_path / "good", "good")}
    with live_deck(tmp_path, profiles=profiles) as first:
        async with client_of(first) as one:
            await works(one, "good")
            (tmp_path / "other").mkdir()
            state = str(tmp_path / "state")
            with live_deck(tmp_path / "other", "--state", state, profiles=profiles) as second:
                async with client_of(second) as two:
                    await works(two, "good")
                    assert f"another Deck (process {first.process.pid}) uses the state directory" in second.logged()
                    await works(one, "good")
                    assert len(list((tmp_path / "state" / "run").glob("*.sock"))) == 2
            await works(one, "good")


@unhurried
async def test_profiles_that_are_not_in_force_are_shown_until_they_are_right(tmp_path: Path) -> None:
    """Logged once, and seen by an operator who looks."""
    profiles = {"good": local(tmp_path / "good", "good")}
    with live_deck(tmp_path, *configured(tmp_path, watch_profiles="50ms"), profiles=profiles) as deck:
        wrong = tmp_path / "profiles" / "wrong.toml"
        wrong.write_text('id = "wrong"\n[server]\nmodl = "x"\n')
        await until(lambda: "nothing is reloaded" in deck.logged())
        command = [sys.executable, "-m", "deck", "ps", "--url", deck.base]
        environment = {**os.environ, "DECK_TOKEN": deck.token}

        def shown() -> str:
            ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
            assert "good" in ran.stdout
            return ran.stderr

        said = await asyncio.to_thread(shown)
        assert "the profiles on disk are not in force" in said
        assert "wrong.toml: server.modl: unknown key (did you mean 'model'?)" in said
        async with client_of(deck) as client:
            await works(client, "good")
        wrong.unlink()
        await until(lambda: "files of profiles have changed" in deck.logged().rpartition("nothing is reloaded")[2])
        assert await asyncio.to_thread(shown) == ""
        assert deck.logged().count("nothing is reloaded") == 1
