"""Prompt caches on disk: kept for a server like the one that they are from, and for no other."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.live import live_deck
from engine_support import MODEL, needs_engine

from deck.config import Config
from deck.contracts import ServerState
from deck.profile import Profile, ServerSettings
from deck.servers.command import setting_faults
from deck.servers.process import Process
from deck.servers.slots import SlotFiles, remove_old, signature_of


class Played:
    """A server that writes what it is told to hold."""

    def __init__(self, directory: Path, *held: int, fails: str = "") -> None:
        self.directory = directory
        self.held = held
        self.fails = fails
        self.restored: list[int] = []

    async def slot(self, number: int, action: str, file: str, *, limit: float) -> int:
        if self.fails == action:
            raise httpx.ReadError("gone")
        if action == "restore":
            assert (self.directory / file).stat().st_size == self.held[number]
            self.restored.append(number)
        else:
            (self.directory / file).write_bytes(b"x" * self.held[number])
        return self.held[number]


def kept(tmp_path: Path, *held: int, limit: int = 1 << 20, fails: str = "") -> tuple[SlotFiles, Any]:
    files = SlotFiles("m", tmp_path, limit=limit)
    return files, Played(files.directory, *held, fails=fails)


def names(files: SlotFiles) -> list[str]:
    return sorted(path.name for path in files.directory.iterdir())


def test_what_was_saved_is_restored_once(tmp_path: Path) -> None:
    files, server = kept(tmp_path, 10, 0, 30)
    assert asyncio.run(files.save(server, "s", 3)) == 40
    assert stat.S_IMODE(files.directory.stat().st_mode) == 0o700
    assert asyncio.run(files.restore(server, "s")) == 40
    assert server.restored == [0, 2]
    assert names(files) == []
    assert asyncio.run(files.restore(server, "s")) == 0


def test_another_server_gets_nothing_and_it_is_removed(tmp_path: Path) -> None:
    files, server = kept(tmp_path, 10)
    asyncio.run(files.save(server, "s", 1))
    assert asyncio.run(files.restore(server, "t")) == 0
    assert names(files) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"slots": {"0": 1}}', '{"signature": "s", "slots": {"x": 1}}'])
def test_a_record_that_cannot_be_read_counts_for_nothing(tmp_path: Path, text: str) -> None:
    files, server = kept(tmp_path, 10)
    asyncio.run(files.save(server, "s", 1))
    (files.directory / "manifest.json").write_text(text, encoding="utf-8")
    assert asyncio.run(files.restore(server, "s")) == 0
    assert names(files) == []


def test_together_they_stay_below_the_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files, server = kept(tmp_path, 10, 60, 20, limit=50)
    assert asyncio.run(files.save(server, "s", 3)) == 30
    assert names(files) == ["manifest.json", "slot-0.bin", "slot-2.bin"]
    assert "save_limit" in caplog.text


def test_a_disk_without_room_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files, server = kept(tmp_path, 10, limit=1 << 60)
    assert asyncio.run(files.save(server, "s", 1)) == 0
    assert names(files) == []
    assert "no room" in caplog.text


@pytest.mark.parametrize("fails", ["save", "restore"])
def test_a_failure_costs_the_cache_alone(tmp_path: Path, fails: str, caplog: pytest.LogCaptureFixture) -> None:
    files, server = kept(tmp_path, 10, fails=fails)
    asyncio.run(files.save(server, "s", 1))
    assert asyncio.run(files.restore(server, "s")) == 0
    assert names(files) == []
    assert "gone" in caplog.text


def test_a_launch_is_told_from_another(tmp_path: Path) -> None:
    model = tmp_path / "x.gguf"
    model.write_bytes(b"GGUF")
    first = signature_of(["llama-server", "-m", "x.gguf", "-c", "1"], tmp_path)
    assert signature_of(["llama-server", "-m", "x.gguf", "-c", "1"], tmp_path) == first
    assert signature_of(["llama-server", "-m", "x.gguf", "-c", "2"], tmp_path) != first
    os.utime(model, (1, 1))
    assert signature_of(["llama-server", "-m", "x.gguf", "-c", "1"], tmp_path) != first


def test_a_week_removes_what_nobody_came_back_for(tmp_path: Path) -> None:
    files, server = kept(tmp_path, 10)
    asyncio.run(files.save(server, "s", 1))
    now = files.directory.stat().st_mtime
    remove_old(tmp_path, now + 6 * 86400)
    assert files.directory.exists()
    remove_old(tmp_path, now + 8 * 86400)
    assert not files.directory.exists()
    remove_old(tmp_path / "nowhere", now)


def test_the_flag_is_decks_while_the_key_is_set(tmp_path: Path, config: Config) -> None:
    server = ServerSettings(model=tmp_path / "x.gguf", save_slots=True, args=("--slot-save-path", "/x"))
    [fault] = setting_faults(Profile(id="a", server=server))
    assert "beside save_slots" in fault


def test_a_restore_takes_its_own_time_and_none_of_the_loads(
    config: Config, make_profile: Callable[..., Profile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is ready: an hour that its cache takes fails no start."""
    brought: list[str] = []

    async def restore(self: SlotFiles, probe: Any, signature: str) -> int:
        loop = asyncio.get_running_loop()
        real = loop.time
        loop.time = lambda: real() + 3600  # type: ignore[method-assign]  # so that what is due by then happens now
        for _ in range(5):
            await asyncio.sleep(0)
        loop.time = real  # type: ignore[method-assign]  # as it was
        brought.append(signature)
        return 5

    monkeypatch.setattr(SlotFiles, "restore", restore)

    async def main() -> None:
        server = Process(make_profile(save_slots=True), config)
        await server.start()
        assert (server.state, len(brought)) == (ServerState.READY, 1)
        await server.stop(grace=5)

    asyncio.run(main())


@pytest.mark.engine
@needs_engine
@pytest.mark.parametrize("saves", [True, False])
def test_a_conversation_goes_on_where_it_was_after_an_unload(tmp_path: Path, saves: bool) -> None:
    """What is measured: prompt tokens that are processed after the model was unloaded and loaded again."""
    text = (
        f'id = "small"\n[server]\nmodel = "{MODEL}"\nctx_size = 8192\nparallel = 2\nsave_slots = {str(saves).lower()}\n'
    )
    with live_deck(tmp_path, profiles={"small": text}) as deck, deck.client() as client:

        def processed(messages: list[dict[str, str]]) -> tuple[int, str]:
            body = {"model": "small", "messages": messages, "max_tokens": 8, "temperature": 0}
            found = client.post("/v1/chat/completions", json=body).raise_for_status().json()
            usage = found["usage"]
            return usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"], found["id"]

        first = [{"role": "user", "content": "word " * 400}]
        second = [{"role": "user", "content": "text " * 300}]
        for messages in (first, second):
            assert processed(messages)[0] > 500
        client.post("/deck/servers/small/unload").raise_for_status()
        for messages in (second, first):  # not as the slots come: Deck remembers whose they were
            count, _ = processed([*messages, {"role": "assistant", "content": "x"}, {"role": "user", "content": "Hi"}])
            assert (count < 50) is saves
        slots = deck.state / "slots"
        assert not saves or [path.name for path in slots.glob("*/*")] == [], "each save is used once"
        assert slots.exists() is saves
