"""Reported failures of Messages streams: entries of sections A and D of the list of cases, by number and topic."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from app_support import app, messages_error_of
from e2e.live import free_port, live_deck
from faults.support import Reader, Rig, bounded, configured, remote
from faults.test_stream_shapes import CASES, EARTH, Case, Said, scripted
from messages_automaton import MessagesStream, check
from messages_support import MESSAGES, OTHER, TOOL, body

from deck.testing.fake_llama import Act, Reply, Step
from deck.testing.frames import comment, content, done, error_frame, finish, reasoning, role, tool, usage

TOOLS = [TOOL, OTHER]
CALLED = tool(0, "abc123def", "read_note", '{"path":"a"}')
END = (usage(9, 7), done())


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    tmp, port = tmp_path_factory.mktemp("streams"), free_port()
    with live_deck(tmp, *configured(tmp), profiles={"remote": remote("remote", port)}) as deck:
        yield Rig(deck, port)


_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def streamed(tmp_path: Path, *steps: Step, **fields: Any) -> MessagesStream:
    fields = {"max_tokens": 1, "tools": TOOLS, **fields}
    with app(tmp_path, [Reply(steps=steps)]) as deck:
        answer = deck.send("POST", MESSAGES, json=body(stream=True, **fields))
    assert answer.status_code == 200, answer.text
    return check(answer.content)


def shapes(got: MessagesStream) -> list[str]:
    """Return the stream as one word for each event."""
    words = []
    for event in got.events:
        inner = event.get("content_block") or event.get("delta") or {}
        index = f"({event['index']})" if "index" in event else ""
        kind = inner.get("type")
        words.append(event["type"].removeprefix("content_block_") + index + (f":{kind}" if kind else ""))
    return words


def test_b08_each_kind_of_text_has_blocks_of_its_own(tmp_path: Path) -> None:
    got = streamed(
        tmp_path,
        role(),
        reasoning("a"),
        content("X"),
        reasoning("b"),
        content("Y"),
        finish(),
        *(usage(5, 4), done()),
    )
    block = ("start({0}):{1}", "delta({0}):{1}_delta")
    expected = ["message_start"]
    for index, kind in enumerate(("thinking", "text", "thinking", "text")):
        expected += [item.format(index, kind) for item in block]
        expected += [f"delta({index}):signature_delta"] if kind == "thinking" else []
        expected += [f"stop({index})"]
    assert shapes(got) == [*expected, "message_delta", "message_stop"]
    assert [block.get("thinking") or block.get("text") for block in got.content] == ["a", "X", "b", "Y"]
    assert got.stop_reason == "end_turn"


@pytest.mark.parametrize("ends", [1, 2])
def test_b10_a_block_stops_once(tmp_path: Path, ends: int) -> None:
    got = streamed(tmp_path, role(), CALLED, *[finish("tool_calls")] * ends, *END)
    stops = [event["index"] for event in got.events if event["type"] == "content_block_stop"]
    assert stops == [0]
    assert (got.stop_reason, got.calls[0]["input"]) == ("tool_use", {"path": "a"})


def test_b11_a_call_alone_has_no_text_and_its_own_reason(tmp_path: Path) -> None:
    got = streamed(tmp_path, role(), content(""), CALLED, finish("stop"), *END)
    assert [block["type"] for block in got.content] == ["tool_use"]
    assert got.stop_reason == "tool_use"


def test_b13_a_frame_of_usage_alone(tmp_path: Path) -> None:
    got = streamed(tmp_path, role(), content("ok"), finish(), usage(5, 1), done())
    assert got.usage is not None
    assert (got.text, got.usage["output_tokens"]) == ("ok", 1)


def test_b14_calls_that_interleave_come_one_after_the_other(tmp_path: Path) -> None:
    got = streamed(
        tmp_path,
        role(),
        tool(0, "a1", "read_note", ""),
        tool(1, "b2", "now", ""),
        tool(0, None, None, '{"path"'),
        tool(1, None, None, "{}"),
        tool(0, None, None, ':"a"}'),
        finish("tool_calls"),
        done(),
    )
    assert [(call["name"], call["input"]) for call in got.calls] == [("read_note", {"path": "a"}), ("now", {})]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
@pytest.mark.parametrize("cut", [0, 1], ids=["whole", "bytes"])
def test_streams_as_servers_send_them(tmp_path: Path, case: Case, cut: int) -> None:
    """B97, B98, B100, B101, B112, B118, B175: the same on this wire, streamed and buffered."""
    with app(tmp_path, [Reply(steps=case.frames, slice_at=cut)]) as deck:
        fields = {"max_tokens": 1, "tools": TOOLS}
        got = check(deck.send("POST", MESSAGES, json=body(stream=True, **fields)).content)
        whole = deck.send("POST", MESSAGES, json=body(**fields)).json()
    assert got.error is None
    calls = tuple((call["name"], json.dumps(call["input"], separators=(",", ":"))) for call in got.calls)
    reasons = {word: reason for reason, word in _REASONS.items()}
    assert Said(got.text, got.thinking, calls, reasons[str(got.stop_reason)]) == case.said
    assert got.content == [_alike(mine, theirs) for mine, theirs in zip(got.content, whole["content"], strict=True)]
    assert (got.stop_reason, got.usage) == (whole["stop_reason"], whole["usage"])


def _alike(mine: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Return a block of another answer with this one's ids, which differ from answer to answer."""
    return {**theirs, **{name: mine[name] for name in ("id", "signature") if name in mine and name in theirs}}


@pytest.mark.parametrize("seed", range(24))
def test_b115_any_script_gives_the_same_streamed_and_buffered(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    with app(tmp_path, [Reply(steps=scripted(source), slice_at=source.choice([0, 1, 7, 64]))]) as deck:
        fields = {"max_tokens": 1, "tools": TOOLS}
        got = check(deck.send("POST", MESSAGES, json=body(stream=True, **fields)).content)
        whole = deck.send("POST", MESSAGES, json=body(**fields)).json()
    assert got.content == [_alike(mine, theirs) for mine, theirs in zip(got.content, whole["content"], strict=True)]
    assert got.stop_reason == whole["stop_reason"]


LINE = (
    b'error: {"code":400,"message":"the request exceeds the available context size","type":"invalid_request_error"}\n\n'
)
PARSER = "Failed to parse input at pos 31: <tool_call>"
DIFF = "Invalid diff: '{' not found at start of '['"


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("steps", "status", "kind"),
    [
        ([LINE, done()], 400, "invalid_request_error"),
        ([error_frame(500, "GPU lost")], 502, "api_error"),
        ([error_frame(400, "bad field", "invalid_request_error")], 400, "invalid_request_error"),
        ([role(), error_frame(500, "GPU lost")], 502, "api_error"),
        ([role(), Act.CLOSE], 502, "api_error"),
        ([role(), finish("error"), done()], 502, "api_error"),
        ([error_frame(500, "Context size has been exceeded.")], 400, "invalid_request_error"),
    ],
    ids=["B103", "B104", "B104-client", "B104-role", "cut", "B113", "B106"],
)
def test_an_error_before_any_event_has_its_status(
    tmp_path: Path, steps: list[Step], status: int, kind: str, streams: bool
) -> None:
    with app(tmp_path, [Reply(steps=steps)]) as deck:
        answer = deck.send("POST", MESSAGES, json=body(stream=streams))
    assert messages_error_of(answer, status)["type"] == kind


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        ([LINE, done()], "invalid_request_error"),
        ([error_frame(500, "GPU lost")], "api_error"),
        ([error_frame(500, PARSER)], "api_error"),
        ([error_frame(500, DIFF)], "api_error"),
        ([Act.RESET], "api_error"),
        ([finish("error"), done()], "api_error"),
        ([error_frame(500, "Context size has been exceeded.")], "invalid_request_error"),
    ],
    ids=["B103", "B104", "B107", "B110", "B110-reset", "B113", "B106"],
)
@pytest.mark.parametrize("within", ["text", "call"])
def test_an_error_after_that_is_an_event_and_the_end(tmp_path: Path, last: list[Step], kind: str, within: str) -> None:
    begun = content("Let me") if within == "text" else tool(0, "a1", "read_note", '{"path"')
    got = streamed(tmp_path, role(), begun, *last)
    assert got.error is not None
    assert got.error["type"] == kind
    assert got.stop_reason is None
    assert got.text == ("Let me" if within == "text" else "")
    assert [event["type"] for event in got.events].count("content_block_stop") == 0


def test_b112_characters_that_the_network_cuts(tmp_path: Path) -> None:
    with app(tmp_path, [Reply(steps=[role(), content(EARTH), finish(), *END], slice_at=1)]) as deck:
        got = check(deck.send("POST", MESSAGES, json=body(stream=True)).content)
    assert got.text == EARTH


def test_b118_comments_are_not_passed_on(tmp_path: Path) -> None:
    with app(tmp_path, [Reply(steps=[comment(), role(), comment(), content("A"), finish(), *END])]) as deck:
        answer = deck.send("POST", MESSAGES, json=body(stream=True))
    assert b":\n\n" not in answer.content
    assert check(answer.content).text == "A"


@bounded
async def test_b116_each_piece_is_forwarded_before_the_next_exists(rig: Rig) -> None:
    words = [f"word{number} " for number in range(20)]
    gates = [asyncio.Event() for _ in words]
    steps: list[Step] = [role()]
    for gate, word in zip(gates, words, strict=True):
        steps += [gate, content(word)]
    request = body(model="remote", stream=True, tools=TOOLS)
    gates[0].set()  # the first event waits for what it can say of the prompt
    async with (
        rig.fake(Reply(steps=[*steps, finish(), *END])),
        rig.client() as client,
        client.stream("POST", MESSAGES, json=request) as response,
    ):
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        assert "content-length" not in response.headers
        reader = Reader(response)
        for gate, word in zip(gates, words, strict=True):
            gate.set()
            await reader.until_text(word)
        async for piece in reader._chunks:
            reader.data += piece
    assert check(reader.data).text == "".join(words)


def test_a_reason_that_names_calls_without_any_is_an_ordinary_end(tmp_path: Path) -> None:
    got = streamed(tmp_path, role(), content("a"), finish("tool_calls"), *END)
    assert (got.stop_reason, got.text) == ("end_turn", "a")
