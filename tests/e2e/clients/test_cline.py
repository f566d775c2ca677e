"""The real Cline, on the command line and without a terminal, through Deck's Chat Completions wire."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import chat_automaton
from e2e.clients.play import calls, results, says
from e2e.clients.stage import MODEL, Ran, Stage, Theatre, bounded, needs, notes

pytestmark = needs("cline")
CHAT = "/v1/chat/completions"
PROVIDER = "openai-compatible"
# The second keeps it from leaving a daemon behind, which a later run would speak through.
ENVIRONMENT = {"CLINE_NO_AUTO_UPDATE": "1", "CLINE_SESSION_BACKEND_MODE": "local"}
# It asks there which of its features are on, whatever its settings say.
FLAGS = "data.cline.bot:443"


def check(data: bytes) -> Any:
    return chat_automaton.check(data, include_usage=True)


async def cline(stage: Stage, prompt: str) -> Ran:
    settings = stage.home / ".cline" / "data" / "settings"
    settings.mkdir(parents=True)
    (settings / "global-settings.json").write_text(json.dumps({"telemetryOptOut": True}))
    chosen = ("-p", PROVIDER, "-b", f"{stage.tap.url}/v1", "-k", stage.deck.token, "-m", MODEL)
    ran = await stage.run("cline", "auth", *chosen, **ENVIRONMENT)
    assert ran.code == 0, ran
    know_context(settings / "providers.json")
    return await stage.run("cline", "--json", prompt, **ENVIRONMENT)


def know_context(path: Path) -> None:
    """Add to what `cline auth` wrote the one thing that it cannot be told."""
    known = json.loads(path.read_text(encoding="utf-8"))
    known["providers"][PROVIDER]["settings"]["contextWindow"] = 32768
    path.write_text(json.dumps(known), encoding="utf-8")


@bounded
async def test_a_file_is_read_and_the_answer_is_printed(theatre: Theatre, tmp_path: Path) -> None:
    files = [{"path": str(tmp_path / "work" / "note.txt")}]
    async with theatre.stage(
        tmp_path, calls(("read_files", {"files": files})), says("The note says: purple.")
    ) as stage:
        stage.write("note.txt", "the colour is purple-4711\n")
        ran = await cline(stage, "What does note.txt say?")
        assert ran.code == 0, ran
        last = json.loads(ran.out.splitlines()[-1])
        assert (last["type"], last["finishReason"], last["text"]) == (
            "run_result",
            "completed",
            "The note says: purple.",
        )
        stage.holds(CHAT, 2, check, outside=[FLAGS])
        (result,) = results(stage.bodies[-1])
        assert "the colour is purple-4711" in result
        for post in stage.posts(CHAT):
            assert notes(post, "ignored") == []
            assert notes(post, "changed") == []
            assert 0 < post.json()["max_tokens"] < 32768
        # It brings the model's thoughts back.
        assert [item.get("reasoning_content") for item in stage.bodies[-1]["messages"]][-2] == "Let me look."
