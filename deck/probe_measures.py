"""What `deck probe` asks of a model, each question small enough for a small model.

A value is False only where something refused, or where what came shows that the model cannot; where a model merely did
something else it is None, for a declared or measured False makes Deck refuse requests.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Mapping
from typing import Any

from deck import json
from deck.canon.answer import is_json_object
from deck.canon.events import FinishReason
from deck.canon.request import (
    Audio,
    ChatRequest,
    Image,
    Message,
    Output,
    Reasoning,
    ReasoningSetting,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from deck.errors import DeckError
from deck.probe import Heard, Measure, Seen, Subject

# Room for the thoughts of a model that cannot be kept from thinking.
_BUDGET = 1024
_SPEED_TOKENS = 64
_PROMPT_WORDS = 400
_MARK = "Mark 5213."
_WEATHER = Tool(
    "get_weather",
    "Get the weather of a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
_QUIET = ReasoningSetting(enabled=False)


def _asking(*turns: Message | str, budget: int = _BUDGET, **rest: Any) -> ChatRequest:
    messages = tuple(turn if isinstance(turn, Message) else Message("user", (Text(turn),)) for turn in turns)
    sampling: Mapping[str, Any] = {"max_tokens": budget, **rest.pop("sampling", {})}
    fields: dict[str, Any] = {"reasoning": _QUIET, **rest}
    return ChatRequest(model="probe", messages=messages, sampling=sampling, stream=True, **fields)


def _text(heard: Heard) -> str:
    return "".join(part.text for part in heard.answer.parts if isinstance(part, Text)).strip()


def _calls(heard: Heard) -> list[ToolCall]:
    return [part for part in heard.answer.parts if isinstance(part, ToolCall)]


def _thoughts(heard: Heard) -> str:
    return "".join(part.text for part in heard.answer.parts if isinstance(part, Reasoning)).strip()


def _short(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 40 else line[:40] + "…")


def _is_cut(heard: Heard) -> bool:
    return heard.answer.finish.reason in (FinishReason.LENGTH, FinishReason.CONTEXT)


async def _answers(subject: Subject) -> Seen:
    heard = await subject.ask(_asking("Say pong"))
    if text := _text(heard):
        return True, f"asked to say pong, it said {_short(text)}"
    return None, "it thought and did not come to an answer" if _is_cut(heard) else "the answer was empty"


async def _streams(subject: Subject) -> Seen:
    heard = await subject.ask(_asking("Count to 10"))
    tokens = heard.answer.finish.usage.completion
    remark = f"{tokens} tokens in {heard.pieces} pieces, the first after {heard.first:.2f} s"
    return (heard.pieces > 1 if tokens > 1 else None), remark


async def _seen_by(subject: Subject, *turns: Message) -> Seen:
    """Tell whether a template shows the model the turn that bears the mark."""
    prompt = await subject.prompt(_asking(*turns))
    return (True, "") if _MARK in prompt else (False, "its template leaves it out")


async def _system(subject: Subject) -> Seen:
    return await _seen_by(subject, Message("system", (Text(_MARK),)), _user("Hello"))


async def _developer(subject: Subject) -> Seen:
    return await _seen_by(subject, Message("developer", (Text(_MARK),)), _user("Hello"))


async def _late_system(subject: Subject) -> Seen:
    turns = _user("Hello"), Message("assistant", (Text("Hello!"),)), Message("system", (Text(_MARK),)), _user("Hello")
    return await _seen_by(subject, *turns)


def _user(text: str) -> Message:
    return Message("user", (Text(text),))


async def _calls_a_tool(subject: Subject) -> Seen:
    request = _asking("What's the weather in Paris?", tools=(_WEATHER,))
    heard = await subject.ask(request)
    for call in _calls(heard):
        if call.name == _WEATHER.name and is_json_object(call.arguments):
            return True, f"it called {call.name} with {call.arguments}"
    if await _hides(subject, request, _WEATHER.name):
        return False, "its template shows it no tools"
    return None, f"it did not call the tool it was shown, but said {_short(_text(heard))}"


async def _hides(subject: Subject, request: ChatRequest, word: str) -> bool:
    try:
        return word not in await subject.prompt(request)
    except DeckError:
        return False  # a server that shows no prompts proves nothing


async def _calls_two(subject: Subject) -> Seen:
    question = "What's the weather in Paris and what's the weather in Rome?"
    heard = await subject.ask(_asking(question, tools=(_WEATHER,), parallel_tool_calls=True))
    count = len(_calls(heard))
    return count > 1, f"asked for two cities, it made {count} {'call' if count == 1 else 'calls'} in one turn"


async def _must_call(subject: Subject) -> Seen:
    choice = ToolChoice("required")
    heard = await subject.ask(_asking("Hello", tools=(_WEATHER,), tool_choice=choice))
    if _calls(heard):
        return True, "greeted, it made the call that was required"
    return (None if _is_cut(heard) else False), f"it was to call a tool, but said {_short(_text(heard))}"


async def _reads_results(subject: Subject) -> Seen:
    call = ToolCall("probe0001", _WEATHER.name, '{"city": "Paris"}')
    turns = (
        _user("What's the weather in Paris?"),
        Message("assistant", (call,)),
        Message("tool", (ToolResult(call.id, (Text("22 C"),)),)),
    )
    heard = await subject.ask(_asking(*turns, tools=(_WEATHER,)))
    text = _text(heard)
    return bool(text) or None, f"told 22 C, it said {_short(text)}"


async def _thinks(subject: Subject) -> Seen:
    request = _asking("What is the capital of France?", reasoning=ReasoningSetting(enabled=True))
    heard = await subject.ask(request)
    thoughts = _thoughts(heard)
    return bool(thoughts), f"it thought {_short(thoughts)}" if thoughts else "asked to think, it did not"


async def _can_be_quiet(subject: Subject) -> Seen:
    heard = await subject.ask(_asking("What is the capital of France?"))
    thoughts = _thoughts(heard)
    return not thoughts, f"it thought all the same: {_short(thoughts)}" if thoughts else ""


async def _knows_efforts(subject: Subject) -> Seen:
    prompts = set()
    for effort in ("low", "high"):
        setting = ReasoningSetting(enabled=True, effort=effort)
        prompts.add(await subject.prompt(_asking("Hello", reasoning=setting)))
    return len(prompts) > 1, "" if len(prompts) > 1 else "its template makes the same of low and of high"


async def _keeps_to_a_schema(subject: Subject) -> Seen:
    output = Output("json_schema", _PERSON, "person")
    heard = await subject.ask(_asking("Return JSON: name Ana, age 31, city Rome", output=output))
    text = _text(heard)
    if is_json_object(text) and _is_person(json.loads(text)):
        return True, f"it wrote {_short(text)}"
    return (None if _is_cut(heard) else False), f"it wrote {_short(text)}"


def _is_person(value: Mapping[str, Any]) -> bool:
    kinds = {"name": str, "age": int, "city": str}
    return value.keys() == kinds.keys() and all(type(value[name]) is kind for name, kind in kinds.items())


async def _sees(subject: Subject) -> Seen:
    if subject.facts.modalities.get("vision") is False:
        return False, "llama-server has no part of the model that reads images"
    turn = Message("user", (Image(red_square()), Text("What colour is this picture? Answer with one word.")))
    return True, f"shown a red square, it said {_short(_text(await subject.ask(_asking(turn))))}"


async def _hears(subject: Subject) -> Seen:
    if subject.facts.modalities.get("audio") is False:
        return False, "llama-server has no part of the model that hears"
    turn = Message("user", (Audio(tone(), "wav"), Text("What do you hear? Answer with a few words.")))
    return True, f"played a tone, it said {_short(_text(await subject.ask(_asking(turn))))}"


async def _context(subject: Subject) -> Seen:
    trained = subject.facts.metadata.get("n_ctx_train")
    slots = subject.facts.slots
    remarks = [f"{slots} {'slot' if slots == 1 else 'slots'}"] if slots else []
    remarks += [f"trained for {trained}"] if isinstance(trained, int) else []
    return subject.facts.context, ", ".join(remarks)


async def _reads_fast(subject: Subject) -> Seen:
    room = (subject.facts.context or 4 * _PROMPT_WORDS) // 4
    words = " ".join(f"{number}" for number in range(min(_PROMPT_WORDS, room)))
    heard = await subject.ask(_asking(f"{words} Say pong", budget=1, sampling={"cache_prompt": False}))
    count, rate = _timed(heard, "prompt_n", "prompt_per_second")
    return rate, f"{count or heard.answer.finish.usage.prompt} tokens of prompt"


async def _writes_fast(subject: Subject) -> Seen:
    request = _asking("Count to 100", budget=_SPEED_TOKENS, sampling={"ignore_eos": True})
    heard = await subject.ask(request)
    tokens = heard.answer.finish.usage.completion
    count, rate = _timed(heard, "predicted_n", "predicted_per_second")
    if rate is None and tokens > 1 and heard.seconds > heard.first:
        rate = round((tokens - 1) / (heard.seconds - heard.first), 1)
    return rate, f"{count or tokens} tokens, one request at a time"


def _timed(heard: Heard, count: str, rate: str) -> tuple[int | None, float | None]:
    timings = heard.answer.finish.timings or {}
    number, speed = timings.get(count), timings.get(rate)
    is_real = isinstance(speed, int | float) and not isinstance(speed, bool) and math.isfinite(speed) and speed > 0
    return (number if type(number) is int else None), (round(float(speed), 1) if is_real and speed else None)


def red_square(side: int = 224) -> str:
    """Return a picture as a `data:` URL, of the size that most vision models are built on."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = b"\0" + b"\xff\0\0" * side
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(row * side)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


def tone(seconds: float = 1.0, rate: int = 16000, pitch: float = 440.0) -> str:
    """Return a sine tone as base64 of a WAV file: one channel, 16 bits."""
    count = int(seconds * rate)
    wave = b"".join(struct.pack("<h", int(12000 * math.sin(2 * math.pi * pitch * at / rate))) for at in range(count))
    head = b"RIFF" + struct.pack("<I", 36 + len(wave)) + b"WAVE"
    form = b"fmt " + struct.pack("<IHHIIHH", 16, 1, 1, rate, 2 * rate, 2, 16)
    return base64.b64encode(head + form + b"data" + struct.pack("<I", len(wave)) + wave).decode()


MEASURES = (
    Measure(name="text", title="answers in text", way="path", run=_answers),
    Measure(name="streaming", title="answers in pieces", way="path", run=_streams),
    Measure(name="system", title="system role", way="template", run=_system),
    Measure(name="developer", title="developer role", way="template", run=_developer),
    Measure(name="late_system", title="system in mid-conversation", way="template", run=_late_system),
    Measure(name="tools", title="calls a tool", way="path", run=_calls_a_tool),
    Measure(name="parallel_tools", title="two calls in one turn", way="path", run=_calls_two),
    Measure(name="required_tools", title="required call", way="path", run=_must_call),
    Measure(name="tool_results", title="reads a tool's result", way="path", run=_reads_results),
    Measure(name="reasoning", title="thinks when asked", way="path", run=_thinks),
    Measure(name="reasoning_off", title="thinking can be off", way="path", run=_can_be_quiet),
    Measure(name="efforts", title="efforts of thinking", way="template", run=_knows_efforts),
    Measure(name="json_schema", title="keeps to a JSON schema", way="path", run=_keeps_to_a_schema),
    Measure(name="vision", title="images", way="path", run=_sees),
    Measure(name="audio", title="audio", way="path", run=_hears),
    Measure(name="context", title="context, tokens of a slot", way="facts", run=_context),
    Measure(name="prompt_speed", title="reads, tokens a second", way="path", run=_reads_fast),
    Measure(name="speed", title="writes, tokens a second", way="path", run=_writes_fast),
)
