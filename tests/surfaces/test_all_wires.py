"""One set of tapes on every wire, streamed and buffered: the same answer, whole or as an error, and never a cut stream.

What a wire said is read by `wires.py`; what it had to say is in the tape's events.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import httpx
import pytest
from app_support import App, app
from tapes.tapefile import ROOT, Tape, play, tapes
from wires import WIRES, Said, Wire

from deck.api import (
    Answer,
    DeckError,
    Failed,
    Finish,
    FinishReason,
    Fold,
    ParseOptions,
    PartStart,
    Reasoning,
    ReplyHead,
    Report,
    Surface,
    Text,
    ToolCall,
)
from deck.config import Config
from deck.plugins import Plugins
from deck.testing.fake_llama import Received, Reply

HEAD = ReplyHead(seed="A" * 40, created=1767225600, model="m1")
TAPES = {tape.name: tape for tape in tapes()}
SURFACES = Plugins(Config()).surfaces
LIMITS = (FinishReason.LENGTH, FinishReason.CONTEXT)

# What the set must hold, by a tape that holds it; the engine's own recordings are counted apart.
NEEDED = {
    "plain text": "plain-text",
    "characters of several bytes": "emoji",
    "characters as surrogate escapes": "surrogate-pair-escaped",
    "half a surrogate": "surrogate-alone",
    "thinking then text": "thinking-then-text",
    "thinking only": "thinking-only",
    "one call": "one-call",
    "two parallel calls": "two-parallel-calls",
    "interleaved fragments of calls": "interleaved-calls",
    "text then a call": "text-then-call",
    "a call cut by the token limit": "call-cut-by-length",
    "a stop string": "engine-stop-named",
    "a grammar that filters": "engine-grammar",
    "logprobs": "logprobs",
    "an empty answer": "empty-answer",
    "an error before the first token": "error-first",
    "an error in mid-text": "error-mid",
    "an error in a call": "error-mid-call",
    "no [DONE]": "end-of-stream-mid",
    "garbage": "garbage-text",
    "two choices": "two-choices",
    "a raw prompt": "raw-plain",
}


def takes(wire: Wire, tape: Tape) -> bool:
    kinds = {event.kind for event in tape.events if isinstance(event, PartStart)}
    return not wire.has_text_only or kinds <= {"text"}


PAIRS = [
    pytest.param(surface, TAPES[name], id=f"{surface}-{name}")
    for surface in SURFACES
    for name in TAPES
    if surface not in WIRES or takes(WIRES[surface], TAPES[name])
]
on_every_wire = pytest.mark.parametrize(("name", "tape"), PAIRS)


def slices(data: bytes, step: int) -> Iterator[bytes]:
    return (data[place : place + step] for place in range(0, len(data), step))


def streamed(surface: Surface, tape: Tape, pieces: Iterable[bytes]) -> bytes:
    """Return what the client receives when the upstream's bytes come in `pieces`."""
    wire = WIRES[surface.name]
    parsed = surface.parse(wire.body("hi", True, None), Report(), ParseOptions())
    projector = surface.projector(parsed, HEAD)
    return b"".join(projector.feed(event) for event in play(tape.decoder(), pieces))


@cache
def in_one_piece(name: str, tape: str) -> bytes:
    return streamed(SURFACES[name], TAPES[tape], [TAPES[tape].data])


def folded(tape: Tape) -> Answer | DeckError:
    fold = Fold()
    try:
        for event in tape.events:
            fold.feed(event)
    except DeckError as error:
        return error
    return fold.answer()


def meant(answer: Answer) -> Said:
    """Return what the tape's events mean, in no wire's words."""
    calls = [(part.id, part.name, part.arguments) for part in answer.parts if isinstance(part, ToolCall)]
    return Said(
        text="".join(part.text for part in answer.parts if isinstance(part, Text)),
        reasoning="".join(part.text for part in answer.parts if isinstance(part, Reasoning)),
        calls=tuple(calls),
    )


def told(surface: Surface, error: DeckError) -> str:
    """Return the message of an error as the wire words it."""
    message: str = surface.error(error, "req_1")["error"]["message"]
    return message


def same(one: Said, other: Said) -> bool:
    """Compare but for the finish; arguments as values, since a wire may hold them decoded."""

    def values(said: Said) -> list[Any]:
        return [(identity, name, _decoded(arguments)) for identity, name, arguments in said.calls]

    return (one.text, one.reasoning, values(one)) == (other.text, other.reasoning, values(other))


def _decoded(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


# The set


def test_every_registered_surface_has_a_reader() -> None:
    assert set(SURFACES) <= set(WIRES)
    assert {"chat", "completions"} <= set(SURFACES)


@pytest.mark.parametrize("subject", NEEDED)
def test_the_set_has_what_it_must_have(subject: str) -> None:
    assert NEEDED[subject] in TAPES


def test_ten_tapes_and_more_are_the_engines_own() -> None:
    recorded = [name for name in TAPES if 'origin = "recorded from' in (ROOT / name / "meta.toml").read_text()]
    assert len([name for name in recorded if not TAPES[name].raw]) >= 10
    assert len([name for name in recorded if TAPES[name].raw]) >= 6


# Streamed and buffered


@on_every_wire
def test_a_stream_says_what_the_tape_means_and_ends_in_its_wires_own_way(name: str, tape: Tape) -> None:
    said = WIRES[name].stream(in_one_piece(name, tape.name))
    answer = folded(tape)
    if isinstance(answer, DeckError):
        assert (said.error, said.finish) == (told(SURFACES[name], answer), None)
        return
    assert said.error is None
    assert said.finish
    assert same(said.settled(is_cut=answer.finish.reason in LIMITS), meant(answer))


@on_every_wire
def test_a_whole_answer_says_the_same_as_the_stream(name: str, tape: Tape) -> None:
    surface, wire, answer = SURFACES[name], WIRES[name], folded(tape)
    said = wire.stream(in_one_piece(name, tape.name))
    if isinstance(answer, DeckError):
        assert said.error == told(surface, answer)
        return
    parsed = surface.parse(wire.body("hi", False, None), Report(), ParseOptions())
    whole = wire.whole(json.loads(json.dumps(surface.render(answer, parsed, HEAD))))
    assert same(whole, said.settled(is_cut=answer.finish.reason in LIMITS))
    assert whole.finish == said.finish


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64])
@on_every_wire
def test_any_slicing_gives_the_client_the_same_bytes(name: str, tape: Tape, step: int) -> None:
    assert streamed(SURFACES[name], tape, slices(tape.data, step)) == in_one_piece(name, tape.name)


@on_every_wire
def test_a_stream_that_is_cut_anywhere_ends_in_an_error_or_whole(name: str, tape: Tape) -> None:
    """Wherever the upstream breaks off, the client is told."""
    wire = WIRES[name]
    for place in range(0, len(tape.data), max(1, len(tape.data) // 16)):
        data = streamed(SURFACES[name], tape, [tape.data[:place]])
        said = wire.stream(data)
        assert (said.error is None) != (said.finish is None)


@on_every_wire
def test_signs_of_life_between_all_frames_change_nothing(name: str, tape: Tape) -> None:
    surface, wire = SURFACES[name], WIRES[name]
    parsed = surface.parse(wire.body("hi", True, None), Report(), ParseOptions())
    projector = surface.projector(parsed, HEAD)
    data = projector.heartbeat()
    for event in tape.events:
        data += projector.feed(event)
        if not isinstance(event, Finish | Failed):
            data += projector.heartbeat()
    plain = wire.stream(in_one_piece(name, tape.name))
    assert wire.stream(data) == plain


# Through a whole Deck


def _reply(request: Received) -> Reply:
    """Answer with the tape that the prompt names."""
    body = request.json()
    name = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
    return Reply(steps=(TAPES[name].data,), slice_at=97)


@pytest.fixture(scope="module")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    with app(tmp_path_factory.mktemp("wires"), _reply, routes={"/tokenize": {"tokens": [1, 2]}}) as running:
        yield running


WHOLE = [
    pytest.param(surface, tape, id=f"{surface}-{tape.name}")
    for surface in SURFACES
    for tape in TAPES.values()
    if surface not in WIRES or tape.raw == WIRES[surface].has_text_only
]


@pytest.mark.parametrize(("name", "tape"), WHOLE)
def test_a_whole_deck_says_it_streamed_and_buffered(deck: App, name: str, tape: Tape) -> None:
    wire = WIRES[name]
    limit = 0 if tape.prefill_only else 4096
    stream, whole = (deck.send("POST", wire.path, json=wire.body(tape.name, flag, limit)) for flag in (True, False))
    answer = folded(tape)
    if isinstance(answer, DeckError):
        message = told(SURFACES[name], answer)
        assert (whole.status_code, whole.json()["error"]["message"]) == (answer.kind.status, message)
        if stream.status_code != 200:
            # Nothing had reached the client yet.
            assert (stream.status_code, stream.json()["error"]["message"]) == (answer.kind.status, message)
        else:
            assert not isinstance(tape.events[0], Failed)
            assert wire.stream(stream.content).error == message
        return
    said, read = wire.stream(_ok(stream).content), wire.whole(_ok(whole).json())
    settled = said.settled(is_cut=answer.finish.reason in LIMITS)
    # Each exchange makes its own tool ids.
    assert same(_anonymous(settled), _anonymous(meant(answer)))
    assert same(_anonymous(read), _anonymous(meant(answer)))
    assert read.finish == said.finish


def _ok(answer: httpx.Response) -> httpx.Response:
    assert answer.status_code == 200, answer.text
    return answer


def _anonymous(said: Said) -> Said:
    calls = tuple((str(place), name, arguments) for place, (_, name, arguments) in enumerate(said.calls))
    return Said(text=said.text, reasoning=said.reasoning, calls=calls)
