"""The real OpenCode, without a terminal, through Deck's Chat Completions wire."""

from __future__ import annotations

import json
from pathlib import Path

from chat_automaton import check
from e2e.clients.play import calls, results, says
from e2e.clients.stage import MODEL, Ran, Stage, Theatre, bounded, grows, needs

pytestmark = needs("opencode")
CHAT = "/v1/chat/completions"
CONFIG = {
    "$schema": "https://opencode.ai/config.json",
    "autoupdate": False,
    "share": "disabled",
    "provider": {
        "deck": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Deck",
            "options": {"apiKey": "{env:DECK_TOKEN}"},
            "models": {MODEL: {"name": "My model", "limit": {"context": 32768, "output": 4096}}},
        }
    },
    "model": f"deck/{MODEL}",
}


async def opencode(stage: Stage, prompt: str) -> Ran:
    config = json.loads(json.dumps(CONFIG))
    config["provider"]["deck"]["options"]["baseURL"] = stage.tap.url + "/v1"
    (stage.work / "opencode.json").write_text(json.dumps(config))
    quiet = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    return await stage.run("opencode", "run", prompt, DECK_TOKEN=stage.deck.token, **quiet)


@bounded
async def test_a_file_is_read_and_the_answer_is_printed(theatre: Theatre, tmp_path: Path) -> None:
    turns = calls(("read", {"filePath": str(tmp_path / "work" / "note.txt")})), says("The note says: purple-4711.")
    async with theatre.stage(tmp_path, *turns) as stage:
        stage.write("note.txt", "the colour is purple-4711\n")
        ran = await opencode(stage, "What does note.txt say?")
        assert ran.code == 0, ran
        assert "The note says: purple-4711." in ran.out
        exchanges = stage.tap.exchanges()
        assert [(item.path, item.status) for item in exchanges] == [(CHAT, 200)] * 3  # the first is for a title
        for item in exchanges:
            assert check(item.answer, include_usage=True).error is None
        grows(stage.bodies)
        (result,) = results(stage.bodies[-1])
        assert "the colour is purple-4711" in result
