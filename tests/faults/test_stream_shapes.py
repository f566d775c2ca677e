"""Streams as servers really send them, through a live Deck: streamed and buffered say the same, in the wire's form."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from chat_automaton import check
from chat_support import OTHER, TOOL
from faults.support import Rig, bounded, post, reading, stream

from deck.testing.fake_llama import Reply, Step
from deck.testing.frames import chunk, comment, content, done, finish, frame, reasoning, role, tool, usage

TOOLS = [TOOL, OTHER]


@dataclass(frozen=True)
class Said:
    """What an answer said, without its ids."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    finish: str = "stop"


@dataclass(frozen=True)
class Case:
    id: str
    frames: Sequence[bytes]
    said: Said


def bare(*calls: dict[str, Any]) -> bytes:
    """A frame whose choice has no index, nor its calls."""
    return frame({"object": "chat.completion.chunk", "choices": [{"delta": {"tool_calls": list(calls)}}]})


def whole(name: str, arguments: Any, **extra: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **extra}


END = (usage(5, 3), done())
NOTE = (("read_note", '{"path":"a"}'),)
TWO = (("read_note", '{"path":"a"}'), ("read_note", '{"path":"b"}'))
EARTH = "Hello 🌍, grüß dich"
CASES = [
    Case(
        "B97-no-index",
        [role(), bare(whole("read_note", '{"path":"a"}', id="a1")), finish("tool_calls"), *END],
        Said(calls=NOTE, finish="tool_calls"),
    ),
    Case(
        "B98-one-index",
        [
            role(),
            tool(0, "a1", "read_note", '{"path":"a"}'),
            tool(0, "b2", "read_note", ""),
            tool(0, None, None, '{"path"'),
            tool(0, None, None, ':"b"}'),
            finish("tool_calls"),
            *END,
        ],
        Said(calls=TWO, finish="tool_calls"),
    ),
    Case(
        "B98-one-index-whole-calls",
        [
            role(),
            tool(0, "a1", "read_note", '{"path":"a"}'),
            tool(0, "b2", "read_note", '{"path":"b"}'),
            finish("tool_calls"),
            *END,
        ],
        Said(calls=TWO, finish="tool_calls"),
    ),
    Case(
        "B100-empty-ids",
        [
            role(),
            tool(0, "", "read_note", '{"path":"a"}'),
            tool(1, "", "read_note", '{"path":"b"}'),
            finish("tool_calls"),
            *END,
        ],
        Said(calls=TWO, finish="tool_calls"),
    ),
    Case(
        "B100-no-ids",
        [role(), tool(0, None, "read_note", '{"path":"a"}'), finish("tool_calls"), *END],
        Said(calls=NOTE, finish="tool_calls"),
    ),
    Case(
        "B101-stop-after-calls",
        [role(), tool(0, "a1", "read_note", '{"path":"a"}'), finish("stop"), *END],
        Said(calls=NOTE, finish="tool_calls"),
    ),
    Case(
        "B101-object-arguments",
        [role(), bare(whole("read_note", {"path": "a"}, id="a1", index=0)), finish("tool_calls"), *END],
        Said(calls=NOTE, finish="tool_calls"),
    ),
    Case(
        "B101-empty-finish",
        [role(), tool(0, "a1", "read_note", '{"path":"a"}'), chunk({}, ""), *END],
        Said(calls=NOTE, finish="tool_calls"),
    ),
    Case("B101-no-finish", [role(), content("Hi"), chunk({}), *END], Said("Hi")),
    Case("B101-finish-twice", [role(), content("Hi"), finish("stop"), finish("stop"), *END], Said("Hi")),
    Case("B112-characters", [role(), *(content(letter) for letter in EARTH), finish(), *END], Said(EARTH)),
    Case(
        "B112-crlf-and-no-space",
        [
            role().replace(b"\n", b"\r\n"),
            content(EARTH).replace(b"data: ", b"data:").replace(b"\n", b"\r\n"),
            finish().replace(b"\n", b"\r\n"),
            *(item.replace(b"\n", b"\r\n") for item in END),
        ],
        Said(EARTH),
    ),
    Case(
        "B118-comments-and-empty-data",
        [
            comment(),
            role(),
            comment(),
            content("A"),
            b"data:\n\n",
            b"data: \n\n",
            comment(),
            content("B"),
            finish(),
            *END,
        ],
        Said("AB"),
    ),
    Case(
        "B175-empty-arguments-then-another",
        [
            role(),
            tool(0, "a1", "now", ""),
            tool(1, "b2", "read_note", ""),
            tool(1, None, None, '{"pa'),
            tool(1, None, None, 'th":"a"}'),
            finish("tool_calls"),
            *END,
        ],
        Said(calls=(("now", "{}"), *NOTE), finish="tool_calls"),
    ),
    Case(
        "thinking-text-call",
        [
            role(),
            reasoning("Let me "),
            reasoning("see."),
            content("I read."),
            tool(0, "a1", "read_note", '{"path":"a"}'),
            finish("tool_calls"),
            *END,
        ],
        Said("I read.", "Let me see.", NOTE, "tool_calls"),
    ),
    Case("cut", [role(), content("Once upon"), finish("length"), *END], Said("Once upon", finish="length")),
    Case("no-done", [role(), content("All"), finish()], Said("All")),
]


def streamed(answer: httpx.Response) -> Said:
    found = check(answer.content)
    ids = [call["id"] for call in found.calls]
    assert len(set(ids)) == len(ids)
    assert found.error is None
    assert found.finish is not None
    calls = tuple((call["name"], call["arguments"]) for call in found.calls)
    return Said(found.text, found.reasoning, calls, found.finish)


def buffered(answer: httpx.Response) -> Said:
    choice = answer.json()["choices"][0]
    message = choice["message"]
    given = message.get("tool_calls", [])
    assert len({call["id"] for call in given if call["id"]}) == len(given)
    calls = tuple((call["function"]["name"], call["function"]["arguments"]) for call in given)
    return Said(message["content"] or "", message.get("reasoning_content") or "", calls, choice["finish_reason"])


@pytest.mark.parametrize("cut", [0, 1], ids=["whole", "bytes"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
@bounded
async def test_streamed_and_buffered_say_what_was_meant(rig: Rig, case: Case, cut: int) -> None:
    async with rig.fake(Reply(steps=case.frames, slice_at=cut)), rig.client() as client:
        assert streamed(await post(client, stream=True, tools=TOOLS)) == case.said
        assert buffered(await post(client, tools=TOOLS)) == case.said


def scripted(source: random.Random) -> list[bytes]:
    """Make a script of what a well-meaning server may send."""
    frames = [role()]
    for _ in range(source.randrange(4)):
        kind = source.choice([content, reasoning])
        frames += [kind(source.choice(["a", "🌍", "<tool", " \n", '"\\', "data: x\n\n"])) for _ in range(3)]
    for index in range(source.randrange(3)):
        text = json.dumps({"path": source.choice(["a", "ü", "{}", '"'])}, ensure_ascii=False)
        place = source.randrange(len(text) + 1)
        number = index if source.random() < 0.7 else None
        frames.append(tool(number, f"c{index}", "read_note", text[:place]))
        frames.append(tool(number, None, None, text[place:]))
    for _ in range(source.randrange(3)):
        frames.insert(source.randrange(len(frames)), comment())
    return [*frames, finish(source.choice(["stop", "tool_calls", "length"])), *END][: source.choice([None, None, -1])]


@pytest.mark.parametrize("seed", range(24))
@bounded
async def test_any_script_gives_the_same_streamed_and_buffered(rig: Rig, seed: int) -> None:
    """B115."""
    source = random.Random(seed)
    frames = scripted(source)
    async with rig.fake(Reply(steps=frames, slice_at=source.choice([0, 1, 7, 64]))), rig.client() as client:
        assert streamed(await post(client, stream=True, tools=TOOLS)) == buffered(await post(client, tools=TOOLS))


@bounded
async def test_each_chunk_is_forwarded_before_the_next_exists(rig: Rig) -> None:
    """B116: offering tools holds nothing back."""
    words = [f"word{number} " for number in range(20)]
    gates = [asyncio.Event() for _ in words]
    steps: list[Step] = [role()]
    for gate, word in zip(gates, words, strict=True):
        steps += [gate, content(word)]
    async with (
        rig.fake(Reply(steps=[*steps, finish(), *END])),
        rig.client() as client,
        reading(client, tools=TOOLS) as reader,
    ):
        for gate, word in zip(gates, words, strict=True):
            gate.set()
            await reader.until_text(word)
        assert (await reader.rest()).text == "".join(words)


@bounded
async def test_a_fragment_of_a_call_is_forwarded_before_the_next_exists(rig: Rig) -> None:
    gate = asyncio.Event()
    steps: list[Step] = [role(), tool(0, "a1", "read_note", '{"path":"first'), gate, tool(0, None, None, ' second"}')]
    async with (
        rig.fake(Reply(steps=[*steps, finish("tool_calls"), *END])),
        rig.client() as client,
        reading(client, tools=TOOLS) as reader,
    ):
        await reader.until_text("first")
        gate.set()
        found = await reader.rest()
    assert [json.loads(call["arguments"]) for call in found.calls] == [{"path": "first second"}]


@bounded
async def test_a_stream_has_the_headers_that_keep_proxies_from_buffering(rig: Rig) -> None:
    """B121."""
    async with rig.fake(), rig.client() as client:
        answer = await post(client, stream=True)
    assert answer.headers["content-type"].partition(";")[0] == "text/event-stream"
    assert "no-cache" in answer.headers["cache-control"]
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-length" not in answer.headers
    assert "content-encoding" not in answer.headers


@bounded
async def test_every_chunk_has_the_same_identity(rig: Rig) -> None:
    """B119, without heartbeats; `check` compares id, created, model and object."""
    async with rig.fake(), rig.client() as client:
        found = await stream(client)
    assert found.chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert found.chunks[0]["id"].startswith("chatcmpl-")
    assert found.chunks[0]["model"] == "remote"
