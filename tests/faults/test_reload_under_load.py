"""Profiles that are edited while their neighbours stream: no stream that has nothing to do with it is cut."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
from e2e.live import children, live_deck
from faults.support import bounded, client_of, gguf, post, reading
from scripted_llama import script

WORDS = 60


def scripted(directory: Path, name: str, **keys: Any) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    settings = {"model": str(gguf(directory)), "binary": str(script(directory)), "parallel": 8, "memory": 1000, **keys}
    return "\n".join([f'id = "{name}"', "[server]", *(f"{key} = {json.dumps(item)}" for key, item in settings.items())])


def saying(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def told(client: httpx.AsyncClient, model: str) -> list[str]:
    """Return the words of a stream that takes about a second."""
    async with reading(client, model, messages=saying(f"words {WORDS} pace 20")) as reader:
        found = await reader.rest()
    assert found.is_done, found.error
    return found.text.split()


async def running(client: httpx.AsyncClient, model: str) -> None:
    """Wait until a model answers somebody."""
    async with asyncio.timeout(5):
        while not any(
            item["id"] == model and item["running"] for item in (await client.get("/deck/servers")).json()["servers"]
        ):
            pass


@bounded
async def test_edits_of_one_profile_leave_the_streams_of_the_others_whole(tmp_path: Path) -> None:
    """Relaunches, a new profile, one that is gone, and one that is wrong, one after the other."""
    (tmp_path / "deck.toml").write_text('[scheduler]\nmemory = "10000"\n')
    profiles = {name: scripted(tmp_path / name, name) for name in ("busy", "edited", "gone")}
    directory = tmp_path / "profiles"
    with live_deck(tmp_path, "--config", str(tmp_path / "deck.toml"), profiles=profiles) as deck:
        async with client_of(deck) as client:
            for name in profiles:
                assert (await post(client, name, messages=saying("words 1"))).status_code == 200
            before = set(children(deck.process.pid))
            is_over = asyncio.Event()

            async def streams() -> list[list[str]]:
                found = [await told(client, "busy")]
                while not is_over.is_set():
                    found.append(await told(client, "busy"))
                return found

            streaming = [asyncio.ensure_future(streams()) for _ in range(6)]

            async def reloaded(status: int = 200) -> None:
                await running(client, "busy")
                answer = await client.post("/deck/reload")
                assert answer.status_code == status, answer.text
                await running(client, "busy")
                assert (await post(client, "edited", messages=saying("words 1"))).status_code == 200

            for size in (2048, 4096, 8192):
                (directory / "edited.toml").write_text(scripted(tmp_path / "edited", "edited", ctx_size=size))
                await reloaded()
            (directory / "late.toml").write_text(scripted(tmp_path / "late", "late"))
            await reloaded()
            (directory / "gone.toml").unlink()
            await reloaded()
            assert (await post(client, "gone")).status_code == 404
            (directory / "late.toml").write_text('id = "late"\ncolour = "red"\n')
            await reloaded(400)
            is_over.set()
            words = [f"w{number}" for number in range(WORDS)]
            for found in await asyncio.gather(*streaming):
                assert found == [words] * len(found)
            after = set(children(deck.process.pid))
            assert len(before & after) == 1, "of the three only the one that nobody edited still runs"


@bounded
async def test_an_edit_lets_the_streams_of_its_own_model_end(tmp_path: Path) -> None:
    text = scripted(tmp_path / "busy", "busy")
    with live_deck(tmp_path, profiles={"busy": text}) as deck:
        async with client_of(deck) as client:
            assert (await post(client, "busy", messages=saying("words 1"))).status_code == 200
            [engine] = children(deck.process.pid)
            async with reading(client, "busy", messages=saying(f"words {WORDS} pace 10")) as reader:
                await reader.until_text("w1 ")
                (tmp_path / "profiles" / "busy.toml").write_text(scripted(tmp_path / "busy", "busy", ctx_size=2048))
                assert (await client.post("/deck/reload")).status_code == 200
                waiting = asyncio.ensure_future(post(client, "busy", messages=saying("words 1")))
                found = await reader.rest()
            assert found.is_done
            assert len(found.text.split()) == WORDS
            assert (await waiting).status_code == 200
            assert children(deck.process.pid) != [engine]
