"""The real Codex, without a terminal, through Deck's Responses wire."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from e2e.clients.play import calls, results, says, text_of
from e2e.clients.stage import KNOWN, MODEL, Ran, Stage, Theatre, bounded, needs, notes
from responses_automaton import check

from deck.testing.fake_llama import Act, Received, Reply, refuse
from deck.testing.frames import content, role

pytestmark = needs("codex")
RESPONSES = "/v1/responses"
# What docs/clients.md lists.
IGNORED = [
    "client_metadata",
    "include[](reasoning.encrypted_content)",
    "input[].id",
    "prompt_cache_key",
    "reasoning.summary",
    "store",
    "tools[](web_search)",
]
LATER = {"input[].content[].annotations", "input[].content[].logprobs", "input[].status"}
CHANGED = [
    "input[].role=developer>system",
    "input[]:system+system",
    "input[]:user+user",
    "tools[]:namespace>function",
]
CONFIG = """
model = "{model}"
model_provider = "deck"
model_context_window = 32768
check_for_update_on_startup = false

[model_providers.deck]
name = "Deck"
base_url = "{url}/v1"
env_key = "DECK_TOKEN"
wire_api = "responses"

[analytics]
enabled = false

[features]
plugins = false
apps = false
daemon_auto_start = false
"""


def configure(stage: Stage, model: str = MODEL, config: str = "") -> None:
    directory = stage.home / ".codex"
    directory.mkdir()
    (directory / "config.toml").write_text(CONFIG.format(model=model, url=stage.tap.url) + config)


async def codex(stage: Stage, prompt: str, *arguments: str, model: str = MODEL, config: str = "") -> Ran:
    configure(stage, model, config)
    # The commands are those of the play, so that no sandbox is needed, which not every machine has.
    rest = "--skip-git-repo-check", "--sandbox", "danger-full-access", *arguments
    return await stage.run("codex", "exec", *rest, prompt, DECK_TOKEN=stage.deck.token)


def says_the_note(stage: Stage, ran: Ran) -> None:
    assert (ran.code, ran.out.strip()) == (0, "The note says: purple-4711."), ran
    stage.holds(RESPONSES, 2, check)
    (result,) = results(stage.bodies[-1])
    assert "purple-4711" in result


@bounded
async def test_a_file_is_read_and_the_answer_is_printed(theatre: Theatre, tmp_path: Path) -> None:
    turns = calls(("exec_command", {"cmd": "cat note.txt"})), says("The note says: purple-4711.")
    async with theatre.stage(tmp_path, *turns) as stage:
        stage.write("note.txt", "the colour is purple-4711\n")
        says_the_note(stage, await codex(stage, "What does note.txt say?"))
        first, second = stage.posts(RESPONSES)
        assert notes(first, "ignored") == IGNORED
        assert set(notes(second, "ignored")) - set(IGNORED) == LATER
        assert notes(first, "changed") == notes(second, "changed") == CHANGED


@bounded
async def test_a_tool_of_an_mcp_server_is_called_in_its_namespace(theatre: Theatre, tmp_path: Path) -> None:
    """Codex knows the tool only by name and namespace: a flattened name would be an unsupported call."""
    server = Path(__file__).with_name("notes_server.py")
    config = f'[mcp_servers.notes]\ncommand = {json.dumps(sys.executable)}\nargs = ["{server}"]\n'
    turns = calls(("read_note", {"title": "colour"})), says("The note says: purple-4711.")
    async with theatre.stage(tmp_path, *turns) as stage:
        says_the_note(stage, await codex(stage, "What does the note say?", config=config))


@bounded
async def test_a_freeform_patch_is_applied(theatre: Theatre, tmp_path: Path) -> None:
    change = "@@\n-the colour is red\n+the colour is purple-4711\n"
    patch = f"*** Begin Patch\n*** Update File: note.txt\n{change}*** End Patch\n"
    turns = calls(("apply_patch", {"input": patch})), says("Done.")
    async with theatre.stage(tmp_path, *turns) as stage:
        note = stage.write("note.txt", "the colour is red\n")
        ran = await codex(stage, "Make it purple-4711", model=KNOWN)
        assert (ran.code, ran.out.strip()) == (0, "Done."), ran
        assert note.read_text() == "the colour is purple-4711\n"
        stage.holds(RESPONSES, 2, check)


@bounded
async def test_a_refused_websocket_costs_no_retries(theatre: Theatre, tmp_path: Path) -> None:
    async with theatre.stage(tmp_path, says("Hello.")) as stage:
        ran = await codex(stage, "Hi", "-c", "model_providers.deck.supports_websockets=true")
        assert (ran.code, ran.out.strip()) == (0, "Hello."), ran
        assert [(item.method, item.status) for item in stage.tap.exchanges()] == [("GET", 426), ("POST", 200)]


@bounded
async def test_an_answer_in_a_schema_is_asked_of_the_model(theatre: Theatre, tmp_path: Path) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"colour": {"type": "string"}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    async with theatre.stage(tmp_path, calls(("answer", {"colour": "purple"}))) as stage:
        path = stage.write("schema.json", json.dumps(schema))
        ran = await codex(stage, "Which colour?", "--output-schema", str(path))
        assert (ran.code, json.loads(ran.out)) == (0, {"colour": "purple"}), ran
        # Beside Codex's own tools, which a grammar for the answer would keep from being called.
        [body] = stage.bodies
        assert len(body["tools"]) > 1
        assert body["tools"][-1]["function"]["name"] == "answer"
        assert body["tools"][-1]["function"]["parameters"] == schema
        assert body["tool_choice"] == "required"


@bounded
async def test_an_answer_that_broke_off_is_asked_for_again(theatre: Theatre, tmp_path: Path) -> None:
    half = Reply(steps=(role(), content("Half of"), Act.CLOSE))

    def script(request: Received) -> Reply:
        return half if len(stage.fake.chats) == 1 else says("The whole.")(request)

    async with theatre.acting(tmp_path, script) as stage:
        ran = await codex(stage, "Say it")
        assert (ran.code, ran.out.strip()) == (0, "The whole."), ran
        broken, whole = stage.posts(RESPONSES)
        assert check(broken.answer).error is not None
        assert check(whole.answer).error is None


@bounded
async def test_a_full_context_is_said_to_be_full(theatre: Theatre, tmp_path: Path) -> None:
    full = refuse(400, "too long", "exceed_context_size_error", n_prompt_tokens=40000, n_ctx=32768)
    async with theatre.acting(tmp_path, lambda request: full) as stage:
        ran = await codex(stage, "Hi")
        assert ran.code == 1, ran
        assert "ran out of room in the model's context window" in ran.err


@bounded
async def test_a_long_history_is_compacted_with_a_request_of_its_own(theatre: Theatre, tmp_path: Path) -> None:
    """Codex goes by the usage that Deck reports: 1230 tokens after the first answer of a play."""
    handed_over: list[str] = []

    def script(request: Received) -> Reply:
        messages = request.json()["messages"]
        if not request.json().get("tools"):
            handed_over.append(text_of(messages[-1]["content"]))
            return says("The note says purple-4711.")(request)
        if handed_over:
            return says("It says purple-4711.", prompt=100)(request)
        return calls(("exec_command", {"cmd": "cat note.txt"}))(request)

    async with theatre.acting(tmp_path, script) as stage:
        stage.write("note.txt", "the colour is purple-4711\n")
        ran = await codex(stage, "What does it say?", "-c", "model_auto_compact_token_limit=1000")
        assert (ran.code, ran.out.strip()) == (0, "It says purple-4711."), ran
        assert [item.status for item in stage.posts(RESPONSES)] == [200, 200, 200]
        assert "The note says purple-4711." in text_of(stage.bodies[-1]["messages"][-1]["content"])


@bounded
async def test_on_a_terminal_it_works_alike(theatre: Theatre, tmp_path: Path) -> None:
    turns = calls(("exec_command", {"cmd": "cat note.txt"})), says("The note says: purple-4711.")
    async with theatre.stage(tmp_path, *turns) as stage:
        stage.write("note.txt", "the colour is purple-4711\n")
        configure(stage, config=f'[projects."{stage.work}"]\ntrust_level = "trusted"\n')
        await stage.show(
            "codex",
            "--sandbox",
            "danger-full-access",
            "What does note.txt say?",
            until=lambda: stage.answered(RESPONSES, b"The note says: purple-4711."),
            DECK_TOKEN=stage.deck.token,
        )
        assert all(check(post.answer).error is None for post in stage.posts(RESPONSES))
        (result,) = results(stage.bodies[-1])
        assert "purple-4711" in result
