"""Answers of Completions: the same events streamed and buffered, judged by the automaton and the SDK's types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from completions_automaton import StreamFault, TextStream, check
from completions_support import body, parse
from openai.types import Completion
from pydantic import TypeAdapter
from tapes.tapefile import Tape, tapes

from deck import json
from deck.api import (
    DeckError,
    ErrorKind,
    Event,
    Failed,
    Finish,
    FinishReason,
    Fold,
    PartDelta,
    PartEnd,
    PartStart,
    Progress,
    ReplyHead,
    Start,
    Usage,
)
from deck_plugins.surfaces.openai_completions import OpenAICompletions

HEAD = ReplyHead(seed="A" * 40, created=1767225600, model="m1")
USAGE = Usage(prompt=5, completion=2, cached=1)
RAW = [tape for tape in tapes() if tape.raw]
WHOLE = [tape for tape in RAW if isinstance(tape.events[-1], Finish)]


def said(*pieces: str, reason: FinishReason = FinishReason.STOP) -> list[Event]:
    deltas = [PartDelta(0, piece) for piece in pieces]
    return [Start(fingerprint="b1"), PartStart(0, "text"), *deltas, PartEnd(0), Finish(reason, USAGE)]


def stream(events: Sequence[Event], **fields: Any) -> bytes:
    parsed, _ = parse(body(stream=True, **fields))
    projector = OpenAICompletions().projector(parsed, HEAD)
    return b"".join(projector.feed(event) for event in events)


def buffered(events: Sequence[Event], **fields: Any) -> dict[str, Any]:
    parsed, _ = parse(body(**fields))
    fold = Fold()
    for event in events:
        fold.feed(event)
    return OpenAICompletions().render(fold.answer(), parsed, HEAD)


def entry(token: str, value: float = -0.5, *others: tuple[str, float], data: list[int] | None = None) -> dict[str, Any]:
    def one(text: str, logprob: float) -> dict[str, Any]:
        return {"id": 1, "token": text, "bytes": list(text.encode()), "logprob": logprob}

    found = {**one(token, value), "top_logprobs": [one(*other) for other in others]}
    return found if data is None else {**found, "bytes": data}


def spoken(*deltas: tuple[str, list[dict[str, Any]]]) -> list[Event]:
    parts = [PartDelta(0, text, tuple(entries)) for text, entries in deltas]
    return [Start(), PartStart(0, "text"), *parts, PartEnd(0), Finish(FinishReason.STOP, USAGE)]


CASES: dict[str, list[Event]] = {
    "text": said("Hel", "lo 🌍"),
    "length": said("a", reason=FinishReason.LENGTH),
    "context": said("a", reason=FinishReason.CONTEXT),
    "empty": [Start(), Finish(FinishReason.STOP, USAGE)],
    "progress": [Progress("prompt", {"total": 9}), *said("a")],
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("include_usage", [True, False])
def test_streamed_and_buffered_say_the_same(name: str, include_usage: bool) -> None:
    options = {"stream_options": {"include_usage": include_usage}}
    got: TextStream = check(stream(CASES[name], **options), include_usage=include_usage)
    whole = buffered(CASES[name])
    choice = whole["choices"][0]
    assert (got.text, got.finish) == (choice["text"], choice["finish_reason"])
    assert got.usage == (whole["usage"] if include_usage else None)
    assert whole["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert whole["id"] == got.chunks[0]["id"] == "cmpl-" + "A" * 29
    assert whole["object"] == "text_completion"


@pytest.mark.parametrize("tape", RAW, ids=lambda tape: tape.name)
def test_a_recorded_answer_says_the_same_streamed_and_buffered(tape: Tape) -> None:
    fields = {"logprobs": 2, "timings_per_token": True}
    got = check(stream(tape.events, return_progress=True, **fields))
    if isinstance(tape.events[-1], Failed):
        assert got.error is not None
        with pytest.raises(DeckError):
            buffered(tape.events, **fields)
        return
    choice = buffered(tape.events, **fields)["choices"][0]
    assert (got.text, got.finish, got.logprobs) == (choice["text"], choice["finish_reason"], choice["logprobs"])
    if choice["logprobs"]["tokens"]:
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
        assert [choice["text"][place : place + len(token)] for place, token in placed(choice)] == [
            token for _, token in placed(choice)
        ]


def placed(choice: dict[str, Any]) -> list[tuple[int, str]]:
    return list(zip(choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"], strict=True))


@pytest.mark.parametrize("name", CASES)
def test_the_sdks_own_type_accepts_it_strictly(name: str) -> None:
    adapter = TypeAdapter(Completion)
    adapter.validate_python(buffered(CASES[name], logprobs=1), strict=True)
    for chunk in check(stream(CASES[name])).chunks:
        for choice in chunk["choices"]:
            # The SDK types the reason as never null, though the vendor's own intermediate chunks are.
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        adapter.validate_python(chunk, strict=True)


def test_chunks_are_never_those_of_the_chat_wire() -> None:
    data = stream(said("a", "b"))
    assert b"delta" not in data
    assert b"chat.completion" not in data
    assert b"role" not in data


def test_reasons_are_the_wires_own() -> None:
    found = {reason: buffered(said("a", reason=reason))["choices"][0]["finish_reason"] for reason in FinishReason}
    assert found == {
        FinishReason.STOP: "stop",
        FinishReason.LENGTH: "length",
        FinishReason.CONTEXT: "length",
        FinishReason.TOOL_CALLS: "stop",
    }


def test_a_failure_ends_the_stream_in_an_error_and_without_done() -> None:
    error = DeckError(ErrorKind.UPSTREAM, "it died")
    got = check(stream([Start(), PartStart(0, "text"), PartDelta(0, "he"), Failed(error)]))
    assert got.error == {"message": "it died", "type": "server_error", "param": None, "code": "upstream_error"}
    assert (got.text, got.is_done) == ("he", False)


def test_heartbeats_keep_the_grammar() -> None:
    parsed, _ = parse(body(stream=True, stream_options={"include_usage": True}))
    projector = OpenAICompletions().projector(parsed, HEAD)
    data = projector.heartbeat()
    for event in CASES["text"]:
        data += projector.feed(event) + (b"" if isinstance(event, Finish) else projector.heartbeat())
    assert check(data, include_usage=True).text == "Hello 🌍"


def test_logprobs_are_four_lists_and_offsets_count_characters_across_chunks() -> None:
    events = spoken(
        ("🌍", [entry("🌍", -0.1, ("🌍", -0.1), ("a", -3.0))]),
        ("b", [entry("b", -0.2, ("c", -0.15), ("d", -0.9))]),
        ("cd", [entry("c"), entry("d")]),
        ("", [entry("", -0.3)]),
    )
    expected = {
        "tokens": ["🌍", "b", "c", "d", ""],
        "token_logprobs": [-0.1, -0.2, -0.5, -0.5, -0.3],
        "top_logprobs": [
            {"🌍": -0.1, "a": -3.0},
            {"c": -0.15, "d": -0.9, "b": -0.2},
            {"c": -0.5},
            {"d": -0.5},
            {"": -0.3},
        ],
        "text_offset": [0, 1, 2, 3, 4],
    }
    assert buffered(events, logprobs=2)["choices"][0]["logprobs"] == expected
    chunks = check(stream(events, logprobs=2))
    assert chunks.logprobs == expected
    assert chunks.chunks[1]["choices"][0]["logprobs"]["text_offset"] == [1]


def test_logprobs_of_zero_show_the_taken_token_only() -> None:
    events = spoken(("b", [entry("b", -0.2, ("c", -0.15))]))
    assert buffered(events, logprobs=0)["choices"][0]["logprobs"]["top_logprobs"] == [{"b": -0.2}]
    assert buffered(events)["choices"][0]["logprobs"] is None


def test_a_token_that_is_not_whole_utf8_is_written_in_bytes() -> None:
    half = {"id": 3, "token": "\ufffd", "bytes": [240, 159], "logprob": -1.0}
    events = spoken(("b", [{**entry("b"), "top_logprobs": [half]}]))
    top = buffered(events, logprobs=1)["choices"][0]["logprobs"]["top_logprobs"]
    assert top == [{"bytes:\\xf0\\x9f": -1.0, "b": -0.5}]


def test_token_ids_are_given_when_asked() -> None:
    events = spoken(("ab", [{**entry("a"), "id": 7}, {**entry("b"), "id": 8}]))
    choice = buffered(events, return_token_ids=True)["choices"][0]
    assert (choice["token_ids"], choice["logprobs"]) == ([7, 8], None)
    assert "token_ids" not in buffered(events)["choices"][0]
    chunks = check(stream(events, return_token_ids=True)).chunks
    assert [item["choices"][0].get("token_ids") for item in chunks] == [[7, 8], None]


def test_timings_and_progress_are_sent_only_when_asked() -> None:
    events: list[Event] = [
        Progress("prompt", {"total": 9}),
        Start(),
        PartStart(0, "text"),
        PartDelta(0, "a", timings={"predicted_n": 1}),
        PartEnd(0),
        Finish(FinishReason.STOP, USAGE, timings={"predicted_n": 1}),
    ]
    assert b"timings" not in stream(events)
    assert b"prompt_progress" not in stream(events)
    asked = check(stream(events, timings_per_token=True, return_progress=True)).chunks
    assert [item["prompt_progress"] for item in asked if "prompt_progress" in item] == [{"total": 9}]
    assert sum("timings" in item for item in asked) == 2
    assert buffered(events, timings_per_token=True)["timings"] == {"predicted_n": 1}


def test_what_was_asked_about_the_service_is_answered() -> None:
    assert buffered(CASES["text"], service_tier="auto")["service_tier"] == "default"
    assert buffered(CASES["text"])["system_fingerprint"] == "b1"
    assert {chunk["system_fingerprint"] for chunk in check(stream(CASES["text"])).chunks} == {"b1"}


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_every_kind_of_error_has_an_envelope_of_four_members(kind: ErrorKind) -> None:
    error = OpenAICompletions().error(DeckError(kind, "m", param="p"), "req_1")["error"]
    assert set(error) == {"message", "type", "param", "code"}


def _frames(data: bytes) -> list[bytes]:
    return [frame + b"\n\n" for frame in data.split(b"\n\n")[:-1]]


def _text_after_finish(frames: list[bytes]) -> list[bytes]:
    return [*frames[:-1], frames[0], frames[-1]]


def _no_end(frames: list[bytes]) -> list[bytes]:
    return frames[:-1]


def _another_id(frames: list[bytes]) -> list[bytes]:
    chunk = json.loads(frames[1][6:])
    return [frames[0], b"data: " + json.dumps({**chunk, "id": "cmpl-other"}) + b"\n\n", *frames[2:]]


def _no_finish(frames: list[bytes]) -> list[bytes]:
    return [*frames[:-2], frames[-1]]


def _event_line(frames: list[bytes]) -> list[bytes]:
    return [b"event: x\n" + frames[0], *frames[1:]]


@pytest.mark.parametrize("spoil", [_text_after_finish, _no_end, _another_id, _no_finish, _event_line])
def test_the_automaton_notices(spoil: Any) -> None:
    with pytest.raises(StreamFault):
        check(b"".join(spoil(_frames(stream(CASES["text"])))))
