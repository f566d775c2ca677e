"""The real Claude Code, without a terminal, through Deck's Messages wire."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from e2e.clients.play import calls, results, rounds, says, text_of
from e2e.clients.stage import MODEL, Ran, Stage, Theatre, bounded, needs, notes
from messages_automaton import check

from deck.testing.fake_llama import Act, Received, Reply, refuse
from deck.testing.frames import content, role

pytestmark = needs("claude")
MESSAGES = "/v1/messages"
# What docs/clients.md lists.
IGNORED = [
    "?beta",
    "anthropic-beta",
    "context_management",
    "messages[].content[].cache_control",
    "metadata",
    "system[]",
    "system[].cache_control",
    "tools[].defer_loading",
]
# A PNG of one pixel.
DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)


def settings(stage: Stage) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": stage.tap.url,
        "ANTHROPIC_AUTH_TOKEN": stage.deck.token,
        "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "32768",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "4096",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_DISABLE_OFFICIAL_MARKETPLACE_AUTOINSTALL": "1",
    }


async def claude(stage: Stage, prompt: str) -> Ran:
    return await stage.run("claude", "-p", prompt, "--allowedTools", "Read", **settings(stage))


@bounded
async def test_a_file_is_read_and_the_answer_is_printed(theatre: Theatre, tmp_path: Path) -> None:
    turns = calls(("Read", {"file_path": str(tmp_path / "work" / "note.txt")})), says("The note says: purple-4711.")
    async with theatre.stage(tmp_path, *turns) as stage:
        stage.write("note.txt", "the colour is purple-4711\n")
        ran = await claude(stage, "What does note.txt say?")
        assert (ran.code, ran.out.strip()) == (0, "The note says: purple-4711."), ran
        stage.holds(MESSAGES, 2, check)
        (result,) = results(stage.bodies[-1])
        assert "the colour is purple-4711" in result
        for post in stage.posts(MESSAGES):
            assert notes(post, "ignored") == IGNORED
            assert notes(post, "changed") == ["messages[].role=system>user", "messages[]:user+user"]
        # It asks not to be shown thoughts, and still brings them back.
        assert [item.get("reasoning_content") for item in stage.bodies[-1]["messages"]][-2] == "Let me look."


@bounded
async def test_two_tools_at_once_are_both_run(theatre: Theatre, tmp_path: Path) -> None:
    """Claude Code sends the results as they come; the model gets them in the order of its calls."""
    work = tmp_path / "work"
    wanted = [("Read", {"file_path": str(work / name)}) for name in ("a.txt", "b.txt")]
    async with theatre.stage(tmp_path, calls(*wanted), says("Both read.")) as stage:
        stage.write("a.txt", "the colour is red\n")
        stage.write("b.txt", "the colour is blue\n")
        ran = await claude(stage, "What do a.txt and b.txt say?")
        assert (ran.code, ran.out.strip()) == (0, "Both read."), ran
        stage.holds(MESSAGES, 2, check)
        first, second = results(stage.bodies[-1])
        assert "red" in first
        assert "blue" in second


@bounded
async def test_a_tool_that_fails_is_told_to_the_model(theatre: Theatre, tmp_path: Path) -> None:
    turns = calls(("Read", {"file_path": str(tmp_path / "work" / "none.txt")})), says("There is no such file.")
    async with theatre.stage(tmp_path, *turns) as stage:
        ran = await claude(stage, "What does none.txt say?")
        assert (ran.code, ran.out.strip()) == (0, "There is no such file."), ran
        stage.holds(MESSAGES, 2, check)
        (result,) = results(stage.bodies[-1])
        assert "does not exist" in result


@bounded
async def test_a_tool_that_was_left_out_at_first_is_found_and_called(theatre: Theatre, tmp_path: Path) -> None:
    """Claude Code offers only some of its tools at once; the rest is named by references in a result."""
    turns = calls(("ToolSearch", {"query": "select:WebFetch"})), says("There it is.")
    async with theatre.stage(tmp_path, *turns) as stage:
        ran = await claude(stage, "Fetch a page")
        assert (ran.code, ran.out.strip()) == (0, "There it is."), ran
        before, after = stage.bodies
        new = {tool["function"]["name"] for tool in after["tools"] if tool not in before["tools"]}
        assert new == {"WebFetch"}
        assert "WebFetch" in results(after)[0]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [("dot.png", DOT, "could not process image"), ("page.pdf", b"%PDF-1.4\n%%EOF\n", "could not process PDF")],
)
@bounded
async def test_a_file_that_the_model_cannot_take_does_not_end_the_session(
    theatre: Theatre, tmp_path: Path, name: str, data: bytes, said: str
) -> None:
    turns = calls(("Read", {"file_path": str(tmp_path / "work" / name)})), says("I cannot see it.")
    async with theatre.stage(tmp_path, *turns) as stage:
        (stage.work / name).write_bytes(data)
        ran = await claude(stage, f"What is on {name}?")
        assert (ran.code, ran.out.strip()) == (0, "I cannot see it."), ran
        assert [item.status for item in stage.tap.exchanges()] == [200, 400, 200]
        (result,) = results(stage.bodies[-1])
        assert said in result


@bounded
async def test_a_full_context_is_summed_up_and_the_work_goes_on(theatre: Theatre, tmp_path: Path) -> None:
    full = refuse(400, "too long", "exceed_context_size_error", n_prompt_tokens=40000, n_ctx=32768)
    read = calls(("Read", {"file_path": str(tmp_path / "work" / "note.txt")}))

    def script(request: Received) -> Reply:
        last = text_of(request.json()["messages"][-1]["content"])
        if "<summary>" in last:
            return says("<summary>The note says purple-4711.</summary>")(request)
        if "The note says purple-4711." in last:
            return says("It says purple-4711.")(request)
        return full if rounds(request.json()["messages"]) else read(request)

    async with theatre.acting(tmp_path, script) as stage:
        stage.write("note.txt", "the colour is purple-4711\n")
        ran = await claude(stage, "What does note.txt say?")
        assert (ran.code, ran.out.strip()) == (0, "It says purple-4711."), ran
        assert [item.status for item in stage.tap.exchanges()] == [200, 400, 200, 200]


@bounded
async def test_an_answer_that_broke_off_is_asked_for_again_in_one_piece(theatre: Theatre, tmp_path: Path) -> None:
    half = Reply(steps=(role(), content("Half of"), Act.CLOSE))

    def script(request: Received) -> Reply:
        return half if len(stage.fake.chats) == 1 else says("The whole.")(request)

    async with theatre.acting(tmp_path, script) as stage:
        ran = await claude(stage, "Say it")
        assert (ran.code, ran.out.strip()) == (0, "The whole."), ran
        streamed, buffered = stage.posts(MESSAGES)
        assert check(streamed.answer).error is not None
        assert not buffered.json().get("stream")
        assert json.loads(buffered.answer)["content"][0]["text"] == "The whole."


@bounded
async def test_on_a_terminal_it_works_alike(theatre: Theatre, tmp_path: Path) -> None:
    turns = calls(("Read", {"file_path": str(tmp_path / "work" / "note.txt")})), says("The note says: purple-4711.")
    async with theatre.stage(tmp_path, *turns) as stage:
        stage.write("note.txt", "the colour is purple-4711\n")
        known = {"hasCompletedOnboarding": True, "projects": {str(stage.work): {"hasTrustDialogAccepted": True}}}
        (stage.home / ".claude.json").write_text(json.dumps(known))

        await stage.show(
            "claude",
            "What does note.txt say?",
            until=lambda: stage.answered(MESSAGES, b"purple"),
            **settings(stage),
        )
        stage.holds(MESSAGES, 2, check)
        (result,) = results(stage.bodies[-1])
        assert "the colour is purple-4711" in result
