"""The real Qwen Code, without a terminal, through Deck's Chat Completions wire."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import chat_automaton
from e2e.clients.play import calls, results, says
from e2e.clients.stage import MODEL, Ran, Stage, Theatre, bounded, needs, notes

pytestmark = needs("qwen")
CHAT = "/v1/chat/completions"
# With these it asks for nothing at its maker's, and knows the context of the model.
SETTINGS = {
    "privacy": {"usageStatisticsEnabled": False},
    "general": {"enableAutoUpdate": False},
    "model": {"generationConfig": {"contextWindowSize": 32768, "samplingParams": {"max_tokens": 4096}}},
}


def check(data: bytes) -> Any:
    return chat_automaton.check(data, include_usage=True)


async def qwen(stage: Stage, prompt: str) -> Ran:
    place = stage.home / ".qwen"
    place.mkdir()
    (place / "settings.json").write_text(json.dumps(SETTINGS))
    environment = {
        "OPENAI_BASE_URL": f"{stage.tap.url}/v1",
        "OPENAI_API_KEY": stage.deck.token,
        "OPENAI_MODEL": MODEL,
    }
    return await stage.run("qwen", prompt, **environment)


@bounded
async def test_a_file_is_read_and_the_answer_is_printed(theatre: Theatre, tmp_path: Path) -> None:
    path = str(tmp_path / "work" / "note.txt")
    turns = calls(("read_file", {"file_path": path})), says("The note says: purple-4711.")
    async with theatre.stage(tmp_path, *turns) as stage:
        stage.write("note.txt", "the colour is purple-4711\n")
        ran = await qwen(stage, "What does note.txt say?")
        assert (ran.code, ran.out.strip()) == (0, "The note says: purple-4711."), ran
        stage.holds(CHAT, 2, check)
        (result,) = results(stage.bodies[-1])
        assert "the colour is purple-4711" in result
        for post in stage.posts(CHAT):
            assert notes(post, "ignored") == []
            assert notes(post, "changed") == []
            assert 0 < post.json()["max_tokens"] <= 4096
        # It brings the model's thoughts back.
        assert [item.get("reasoning_content") for item in stage.bodies[-1]["messages"]][-2] == "Let me look."
