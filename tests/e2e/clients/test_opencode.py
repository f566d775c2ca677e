"""The real OpenCode, without a terminal, through all wires that its AI SDK speaks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chat_automaton
import messages_automaton
import pytest
import responses_automaton
from e2e.clients.play import calls, results, says
from e2e.clients.stage import MODEL, Ran, Stage, Theatre, bounded, grows, needs

pytestmark = needs("opencode")


def check_chat(data: bytes) -> Any:
    return chat_automaton.check(data, include_usage=True)


WIRES: list[Any] = [
    pytest.param("@ai-sdk/openai-compatible", "/v1/chat/completions", check_chat, id="chat"),
    pytest.param("@ai-sdk/openai", "/v1/responses", responses_automaton.check, id="responses"),
    pytest.param("@ai-sdk/anthropic", "/v1/messages", messages_automaton.check, id="messages"),
]


async def opencode(stage: Stage, package: str, prompt: str) -> Ran:
    config = {
        "autoupdate": False,
        "share": "disabled",
        "provider": {
            "deck": {
                "npm": package,
                "name": "Deck",
                "options": {"baseURL": f"{stage.tap.url}/v1", "apiKey": "{env:DECK_TOKEN}"},
                "models": {MODEL: {"name": "My model", "limit": {"context": 32768, "output": 4096}}},
            }
        },
        "model": f"deck/{MODEL}",
    }
    stage.write("opencode.json", json.dumps(config))
    quiet = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    return await stage.run("opencode", "run", prompt, DECK_TOKEN=stage.deck.token, **quiet)


@pytest.mark.parametrize(("package", "path", "check"), WIRES)
@bounded
async def test_a_file_is_read_and_the_answer_is_printed(
    theatre: Theatre, tmp_path: Path, package: str, path: str, check: Callable[[bytes], Any]
) -> None:
    turns = calls(("read", {"filePath": str(tmp_path / "work" / "note.txt")})), says("The note says: purple-4711.")
    async with theatre.stage(tmp_path, *turns) as stage:
        stage.write("note.txt", "the colour is purple-4711\n")
        ran = await opencode(stage, package, "What does note.txt say?")
        assert ran.code == 0, ran
        assert "The note says: purple-4711." in ran.out
        exchanges = stage.tap.exchanges()
        assert [(item.path, item.status) for item in exchanges] == [(path, 200)] * 3  # the first is for a title
        for item in exchanges:
            assert check(item.answer).error is None
        grows(stage.bodies)
        (result,) = results(stage.bodies[-1])
        assert "the colour is purple-4711" in result
