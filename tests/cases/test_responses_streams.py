"""Reported failures of streams on the Responses wire: entries of sections B and D of the list of cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from app_support import App, app, error_of
from responses_automaton import ResponsesStream, check
from responses_support import OTHER, ROUTE, TOOL, body, validate_event

from deck.testing.fake_llama import Act, Reply, Step, refuse, say
from deck.testing.frames import (
    chunk,
    comment,
    content,
    done,
    error_frame,
    finish,
    frame,
    reasoning,
    role,
    tool,
    usage,
)

TOOLS = [TOOL, OTHER]
END = (usage(5, 3), done())
EARTH = "Hello 🌍, grüß dich"
OVERFLOW = "the request exceeds the available context size, try increasing it"
LINE = b'error: {"code":400,"message":"%b","type":"invalid_request_error"}\n\n' % OVERFLOW.encode()


@dataclass(frozen=True)
class Said:
    """What an answer said, without its ids; calls are names and arguments."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    status: str = "completed"


def said(found: dict[str, Any]) -> Said:
    texts: dict[str, str] = {"message": "", "reasoning": ""}
    calls = []
    for item in found["output"]:
        if item["type"] == "function_call":
            calls.append((item["name"], item["arguments"]))
            assert item["call_id"].startswith("call_")
        else:
            texts[item["type"]] += item["content"][0]["text"]
    assert len({item["id"] for item in found["output"]}) == len(found["output"])
    return Said(texts["message"], texts["reasoning"], tuple(calls), found["status"])


def streamed(running: App, **fields: Any) -> ResponsesStream:
    answer = running.send("POST", ROUTE, json=body(stream=True, tools=TOOLS, **fields))
    assert answer.status_code == 200, answer.text
    found = check(answer.content)
    for event in found.events:
        validate_event(event)
    return found


def bare(*calls: dict[str, Any]) -> bytes:
    return frame({"object": "chat.completion.chunk", "choices": [{"delta": {"tool_calls": list(calls)}}]})


def whole(arguments: Any, **extra: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "read_note", "arguments": arguments}, **extra}


NOTE = (("read_note", '{"path":"a"}'),)
TWO = (*NOTE, ("read_note", '{"path":"b"}'))
SHAPES: dict[str, tuple[Sequence[bytes], Said]] = {
    "B40-event-order": ([role(), content("he"), content("llo"), finish(), usage(5, 2), done()], Said("hello")),
    "B41-length": ([role(), content("he"), finish("length"), *END], Said("he", status="incomplete")),
    "B97-no-index": ([role(), bare(whole('{"path":"a"}', id="a1")), finish("tool_calls"), *END], Said(calls=NOTE)),
    "B98-one-index": (
        [
            role(),
            tool(0, "a1", "read_note", '{"path":"a"}'),
            tool(0, "b2", "read_note", ""),
            tool(0, None, None, '{"path"'),
            tool(0, None, None, ':"b"}'),
            finish("tool_calls"),
            *END,
        ],
        Said(calls=TWO),
    ),
    "B100-empty-ids": (
        [
            role(),
            tool(0, "", "read_note", '{"path":"a"}'),
            tool(1, "", "read_note", '{"path":"b"}'),
            finish("tool_calls"),
            *END,
        ],
        Said(calls=TWO),
    ),
    "B101-object-arguments-and-stop": (
        [role(), bare(whole({"path": "a"}, id="a1", index=0)), finish("stop"), *END],
        Said(calls=NOTE),
    ),
    "B101-empty-finish": (
        [role(), tool(0, "a1", "read_note", '{"path":"a"}'), chunk({}, ""), *END],
        Said(calls=NOTE),
    ),
    "B101-finish-twice": ([role(), content("Hi"), finish(), finish(), *END], Said("Hi")),
    "B112-utf-8": ([role(), content(EARTH), finish(), *END], Said(EARTH)),
    "B112-crlf": ([item.replace(b"\n", b"\r\n") for item in (role(), content(EARTH), finish(), *END)], Said(EARTH)),
    "B118-comments": (
        [comment(), role(), comment(), content("A"), b"data:\n\n", comment(), content("B"), finish(), *END],
        Said("AB"),
    ),
    "B115-thinking-text-calls": (
        [
            role(),
            reasoning("Let me see."),
            content("I read."),
            tool(0, "a1", "read_note", '{"path":"a"}'),
            tool(1, "b2", "read_note", '{"path":"b"}'),
            finish("tool_calls"),
            *END,
        ],
        Said("I read.", "Let me see.", TWO),
    ),
    "B115-interleaved": (
        [
            role(),
            tool(0, "a1", "read_note", '{"path"'),
            tool(1, "b2", "read_note", '{"path":"b"}'),
            tool(0, None, None, ':"a"}'),
            finish("tool_calls"),
            *END,
        ],
        Said(calls=TWO),
    ),
}


@pytest.mark.parametrize("cut", [0, 1], ids=["whole", "bytes"])
@pytest.mark.parametrize(("steps", "meant"), SHAPES.values(), ids=SHAPES)
def test_streamed_and_buffered_say_what_was_meant(
    tmp_path: Path, steps: Sequence[bytes], meant: Said, cut: int
) -> None:
    with app(tmp_path, [Reply(steps=steps, slice_at=cut)]) as running:
        assert said(streamed(running).final) == meant
        answer = running.send("POST", ROUTE, json=body(tools=TOOLS))
        assert said(answer.json()) == meant
        assert "\ufffd" not in answer.text


@dataclass(frozen=True)
class Broken:
    """What the upstream does, the status it is worth before anything was said, and what the client had before it."""

    steps: Sequence[Step]
    status: int = 502
    is_begun: bool = True
    text: str = ""
    code: str = "server_error"
    message: str = ""


HALF = (role(), tool(0, "a1", "read_note", '{"path":'))
BROKEN = {
    "B41-closed": Broken([role(), content("he"), Act.CLOSE], text="he"),
    "B41-a-proper-end": Broken([role(), content("he")], text="he"),
    "B55-error": Broken([role(), content("he"), error_frame(500, "slot failure")], text="he", message="slot failure"),
    "B55-overflow": Broken(
        [role(), content("he"), error_frame(500, "Context size has been exceeded.")],
        400,
        text="he",
        code="context_length_exceeded",
    ),
    "B103-error-line": Broken([LINE, done()], 400, is_begun=False, message=OVERFLOW),
    "B103-error-line-later": Broken(
        [role(), content("Hi"), LINE, done()], 400, text="Hi", code="context_length_exceeded", message=OVERFLOW
    ),
    "B104-error-first": Broken([error_frame(500, "GPU lost")], is_begun=False, message="GPU lost"),
    "B104-error-later": Broken([role(), content("Hi"), error_frame(500, "GPU lost")], text="Hi", message="GPU lost"),
    "B107-parser": Broken(
        [role(), content("Let me"), error_frame(500, "Failed to parse input at pos 31: <tool_call>")], text="Let me"
    ),
    "B110-diff": Broken([*HALF, error_frame(500, "Invalid diff: '{\"a' not found at start of '{\"b'")]),
    "B110-reset": Broken([*HALF, Act.RESET]),
    "B113-finish-error": Broken([role(), content("Hi"), finish("error"), done()], text="Hi"),
    "B113-finish-abort": Broken([role(), content("Hi"), finish("abort"), done()], text="Hi"),
}


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN)
def test_a_broken_stream_ends_in_error_and_a_failed_response(tmp_path: Path, case: Broken) -> None:
    script = [Reply(steps=case.steps), say("Hello"), Reply(steps=case.steps)]
    with app(tmp_path, script) as running:
        if case.is_begun:
            found = streamed(running)
            assert found.status == "failed"
            assert found.error is not None
            assert found.final["error"]["code"] == case.code
            assert case.message in found.final["error"]["message"]
            deltas = [event["delta"] for event in found.events if event["type"] == "response.output_text.delta"]
            assert "".join(deltas) == case.text
        else:
            answer = running.send("POST", ROUTE, json=body(stream=True, tools=TOOLS))
            assert case.message in error_of(answer, case.status)["message"]
        assert said(streamed(running).final) == Said("Hello")
        answer = running.send("POST", ROUTE, json=body(tools=TOOLS))
        assert case.message in error_of(answer, case.status)["message"]


@pytest.mark.parametrize("stream", [False, True], ids=["buffered", "streamed"])
def test_b106_overflow_as_500_is_the_overflow_that_agents_know(tmp_path: Path, stream: bool) -> None:
    with app(tmp_path, [refuse(500, "Context size has been exceeded.")]) as running:
        answer = running.send("POST", ROUTE, json=body(stream=stream))
        assert error_of(answer, 400)["code"] == "context_length_exceeded"


def test_b109_half_a_call_in_the_text_is_incomplete(tmp_path: Path) -> None:
    steps = (role(), content('<tool_call>\n{"name": "read_note", "arg'), finish("length"), *END)
    with app(tmp_path, [Reply(steps=steps)]) as running:
        found = streamed(running)
    assert found.status == "incomplete"
    assert not found.of("function_call")


def test_b121_the_headers_keep_proxies_from_buffering(tmp_path: Path) -> None:
    with app(tmp_path, [say("Hello")]) as running:
        answer = running.send("POST", ROUTE, json=body(stream=True, metadata={"a": "b"}))
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-request-id"]
    assert answer.headers["x-athena-compatibility-ignored"] == "metadata"
    assert "content-length" not in answer.headers


# 119 speaks of Chat's chunks; 116 and 43 need time to pass and stand in tests/faults/test_responses.py.
ENTRIES = {40, 41, 55, 97, 98, 100, 101, 103, 104, 106, 107, 109, 110, 112, 113, 115, 118, 121}


def test_every_entry_has_a_case() -> None:
    numbers = {int(name[1:].partition("-")[0]) for name in (*SHAPES, *BROKEN)}
    assert numbers | {106, 109, 121} == ENTRIES
