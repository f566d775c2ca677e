"""Models that servers elsewhere serve: what operators see of them, and what one model does to another."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from app_support import BODY, CHAT, TOKEN, app

from deck.cli_servers import _replica_row, _row
from deck.testing.fake_llama import FakeLlama, Reply
from deck.testing.frames import content, done, finish, role

HEADERS = {"authorization": f"Bearer {TOKEN}"}


def server_of(listed: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(item for item in listed["servers"] if item["id"] == "far")
    return found


@pytest.mark.parametrize("query", ["", "?now"])
def test_a_model_that_goes_cuts_no_stream_of_another_on_the_same_server(tmp_path: Path, query: str) -> None:
    gate = asyncio.Event()
    replies = [Reply(steps=[role(), content("one"), gate, content("two"), finish(), done()])]
    with app(tmp_path, replies) as running:

        async def play() -> str:
            post = running.client.post
            asked = asyncio.ensure_future(post(CHAT, json={**BODY, "model": "m2"}, headers=HEADERS))
            await running.fake.received(1)
            await post("/deck/servers/m1/load", headers=HEADERS)
            gone = (await post(f"/deck/servers/m1/unload{query}", headers=HEADERS)).json()
            assert gone["unload"] == "stopped"
            gate.set()
            answer = (await asked).json()
            return str(answer["choices"][0]["message"]["content"])

        assert running.runner.run(play()) == "onetwo"


def test_other_urls_are_taken_over_by_a_reload_while_an_answer_runs(tmp_path: Path) -> None:
    with app(tmp_path) as running:

        async def play() -> None:
            gate = asyncio.Event()
            held = Reply(steps=[role(), content("one"), gate, content("two"), finish(), done()])
            post, file = running.client.post, tmp_path / "profiles" / "far.toml"
            async with FakeLlama([held]) as first, FakeLlama() as second:

                def write(*urls: str) -> None:
                    server = {"urls": list(urls), "health_interval": 0.1, "parallel": 2}
                    lines = [f"{key} = {json.dumps(value)}" for key, value in server.items()]
                    file.write_text("\n".join(['id = "far"', "[server]", *lines]), encoding="utf-8")

                write(first.url)
                await post("/deck/reload", headers=HEADERS)
                asked = asyncio.ensure_future(post(CHAT, json={**BODY, "model": "far"}, headers=HEADERS))
                await first.received(1)
                write(second.url)
                change = (await post("/deck/reload", headers=HEADERS)).json()
                assert change["changed"] == ["far"]
                answer = await post(CHAT, json={**BODY, "model": "far"}, headers=HEADERS)
                assert answer.status_code == 200
                assert len(second.chats) == 1
                assert not asked.done()
                gate.set()
                assert (await asked).json()["choices"][0]["message"]["content"] == "onetwo"
                while server_of((await running.client.get("/deck/servers", headers=HEADERS)).json())["slots"] != 2:
                    await asyncio.sleep(0.01)
                shown = (await running.client.get("/deck/servers", headers=HEADERS)).json()
                server = server_of(shown)
                assert [item["url"] for item in server["replicas"]] == [second.url]
                await post("/deck/servers/far/unload", headers=HEADERS)

        running.runner.run(play())


def test_ps_shows_a_row_for_each_server() -> None:
    replica = {
        "url": "http://b:1",
        "state": "down",
        "reason": "cannot be reached",
        "running": 1,
        "slots": 4,
        "differs": ["it has 4096 tokens"],
    }
    server: dict[str, Any] = {
        "id": "far",
        "state": "ready",
        "running": 3,
        "waiting": 0,
        "slots": 8,
        "memory": None,
        "expected_memory": None,
        "pinned": False,
        "failures": 0,
    }
    assert _row(server) == ("far", "ready", "3", "0", "8", "-", "")
    note = "cannot be reached; it has 4096 tokens"
    assert _replica_row(replica) == ("  http://b:1", "down", "1", "-", "4", "-", note)


def test_another_server_counts_where_one_is_gone(tmp_path: Path) -> None:
    with app(tmp_path) as running:

        async def play() -> None:
            post = running.client.post
            routes = {"/v1/chat/completions/input_tokens": {"input_tokens": 42}}
            async with FakeLlama(routes=routes) as first, FakeLlama(routes=routes) as second:
                server = f'[server]\nurls = ["{first.url}", "{second.url}"]\nhealth_interval = "5m"\n'
                (tmp_path / "profiles" / "far.toml").write_text(f'id = "far"\n{server}', encoding="utf-8")
                await post("/deck/reload", headers=HEADERS)
                await post("/deck/servers/far/load", headers=HEADERS)
                await first.stop()
                for number in range(4):
                    messages = [{"role": "user", "content": f"conversation {number}"}]
                    body = {"model": "far", "messages": messages}
                    answer = await post("/v1/messages/count_tokens", json=body, headers=HEADERS)
                    assert answer.json() == {"input_tokens": 42}
                    assert "x-deck-estimate" not in answer.headers
                await post("/deck/servers/far/unload", headers=HEADERS)

        running.runner.run(play())
