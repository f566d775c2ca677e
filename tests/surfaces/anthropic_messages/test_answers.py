"""Answers of Messages: the same events streamed and buffered, judged by the automaton and the SDK's types."""

from __future__ import annotations

import typing
from typing import Any

import anthropic.types as sdk
import pytest
from messages_automaton import MessagesStream, check
from messages_support import HEAD, body, buffered, parse, streamed
from pydantic import TypeAdapter
from tapes.tapefile import Tape, play, tapes

from deck import json
from deck.api import (
    DeckError,
    ErrorKind,
    Event,
    Failed,
    Finish,
    FinishReason,
    GrammarChecker,
    Overrun,
    PartDelta,
    PartEnd,
    PartStart,
    Progress,
    Start,
    Usage,
)
from deck_plugins.surfaces.anthropic_messages import AnthropicMessages
from deck_plugins.surfaces.anthropic_messages.signature import unseal

USAGE = Usage(prompt=5, completion=2, cached=1)
MESSAGE = TypeAdapter(sdk.Message)
EVENTS = {
    typing.get_args(event.model_fields["type"].annotation)[0]: TypeAdapter(event)
    for event in typing.get_args(typing.get_args(sdk.RawMessageStreamEvent)[0])
}


def say(index: int, *pieces: str) -> list[Event]:
    return [PartStart(index, "text"), *(PartDelta(index, piece) for piece in pieces), PartEnd(index)]


def think(index: int, *pieces: str) -> list[Event]:
    return [PartStart(index, "reasoning"), *(PartDelta(index, piece) for piece in pieces), PartEnd(index)]


def call(index: int, identity: str, *pieces: str) -> list[Event]:
    head = PartStart(index, "tool_call", identity, "read_note")
    return [head, *(PartDelta(index, piece) for piece in pieces), PartEnd(index)]


def end(reason: FinishReason = FinishReason.STOP, **members: Any) -> Finish:
    return Finish(reason, USAGE, **members)


CASES: dict[str, list[Event]] = {
    "text": [Start(), *say(0, "Hel", "lo 🌍"), end()],
    "thinking": [Start(), *think(0, "hm"), *say(1, "ok"), end()],
    "thinking twice": [Start(), *think(0, "a"), *say(1, "X"), *think(2, "b"), *say(3, "Y"), end()],
    "call": [Start(), *call(0, "abc123def", '{"pa', 'th":"a"}'), end(FinishReason.TOOL_CALLS)],
    "two calls": [
        Start(),
        *say(0, "I look"),
        *call(1, "abc123def", "{}"),
        *call(2, "xyz123def", '{"path":"b"}'),
        end(FinishReason.TOOL_CALLS),
    ],
    "empty": [Start(), end()],
    "empty parts": [Start(), *think(0, ""), *say(1, "", "a"), *say(2), end()],
    "cut": [Start(), *say(0, "a"), end(FinishReason.LENGTH)],
    "context": [Start(), *say(0, "a"), end(FinishReason.CONTEXT)],
    "stop sequence": [Start(), *say(0, "a"), end(stop_sequence="END")],
    "progress": [Progress("prompt", {"total": 9, "cache": 2}), Start(), *say(0, "a"), end()],
    "prefill only": [Start(), Finish(FinishReason.LENGTH, Usage(5, 0, 1))],
}


def strict(stream: MessagesStream) -> None:
    """Hold every event against the SDK's own type; unknown members are looked for too."""
    for event in stream.events:
        if event["type"] in EVENTS:
            found = EVENTS[event["type"]].validate_python(event, strict=True)
            assert found.model_dump(mode="json", by_alias=True, exclude_unset=True) == event


@pytest.mark.parametrize("name", CASES)
def test_streamed_and_buffered_say_the_same(name: str) -> None:
    fields: dict[str, Any] = {"stop_sequences": ["END"]}
    got, whole = check(streamed(CASES[name], **fields)), buffered(CASES[name], **fields)
    strict(got)
    found = MESSAGE.validate_python(whole, strict=True)
    assert found.model_dump(mode="json", by_alias=True, exclude_unset=True) == whole
    for member in ("content", "stop_reason", "stop_sequence", "usage"):
        assert getattr(got, member) == whole[member], member
    for member in ("id", "type", "role", "model"):
        assert got.message[member] == whole[member]


def test_the_reasons_to_stop() -> None:
    fields: dict[str, Any] = {"stop_sequences": ["END"]}
    reasons = {name: buffered(CASES[name], **fields)["stop_reason"] for name in CASES}
    assert reasons["text"] == "end_turn"
    assert reasons["two calls"] == "tool_use"
    assert reasons["cut"] == reasons["prefill only"] == "max_tokens"
    assert reasons["context"] == "model_context_window_exceeded"
    assert reasons["stop sequence"] == "stop_sequence"
    assert buffered(CASES["stop sequence"], **fields)["stop_sequence"] == "END"
    assert buffered(CASES["prefill only"])["content"] == []


def test_a_stop_word_of_the_template_is_an_ordinary_end() -> None:
    whole = buffered(CASES["stop sequence"], stop_sequences=["other"])
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("end_turn", None)


def test_usage_tells_cached_tokens_apart() -> None:
    assert buffered(CASES["text"])["usage"] == {
        "input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 1,
        "output_tokens": 2,
    }
    unknown: list[Event] = [Start(), Finish(FinishReason.STOP, Usage(5, 2))]
    assert buffered(unknown)["usage"]["cache_read_input_tokens"] == 0


def test_the_message_begins_when_the_prompt_is_counted() -> None:
    parsed, _ = parse(body(stream=True))
    projector = AnthropicMessages().projector(parsed, HEAD)
    assert projector.feed(Progress("load")) == b""
    assert projector.feed(Start()) == b""
    begun = projector.feed(Progress("prompt", {"total": 9, "cache": 2, "processed": 4, "time_ms": 1}))
    message = json.loads(begun.split(b"data: ")[1])["message"]
    assert (message["usage"]["input_tokens"], message["usage"]["cache_read_input_tokens"]) == (7, 2)
    assert projector.feed(Progress("prompt", {"total": 9, "cache": 2, "processed": 9})) == b""
    assert parsed.needs.prompt_progress


def test_heartbeats_keep_the_grammar() -> None:
    parsed, _ = parse(body(stream=True))
    projector = AnthropicMessages().projector(parsed, HEAD)
    data = projector.heartbeat() + projector.heartbeat()
    assert data.startswith(b"event: message_start\n")
    for event in CASES["two calls"]:
        data += projector.feed(event) + (b"" if isinstance(event, Finish) else projector.heartbeat())
    got = check(data)
    assert got.calls[1]["input"] == {"path": "b"}
    assert got.pings == 2 + len(CASES["two calls"]) - 1


@pytest.mark.parametrize("name", ["thinking", "thinking twice"])
def test_thoughts_that_are_not_displayed_leave_a_signed_block(name: str) -> None:
    fields: dict[str, Any] = {"thinking": {"type": "adaptive", "display": "omitted"}}
    got, whole = check(streamed(CASES[name], **fields)), buffered(CASES[name], **fields)
    assert got.content == whole["content"]
    blocks = [block for block in whole["content"] if block["type"] == "thinking"]
    assert blocks
    assert all(block["thinking"] == "" and block["signature"] for block in blocks)
    shown = [block["thinking"] for block in buffered(CASES[name])["content"] if block["type"] == "thinking"]
    assert [unseal(block["signature"]) for block in blocks] == shown
    assert not any(event.get("delta", {}).get("type") == "thinking_delta" for event in got.events)


def test_signatures_depend_on_the_answer_and_the_block_alone() -> None:
    first, second = (block for block in buffered(CASES["thinking twice"])["content"] if block["type"] == "thinking")
    assert first["signature"] != second["signature"]
    assert first["signature"] == buffered(CASES["thinking"])["content"][0]["signature"]


def test_ids_have_the_wires_form() -> None:
    whole = buffered(CASES["call"])
    assert whole["id"] == "msg_01" + "A" * 22
    assert whole["content"][0]["id"] == "toolu_abc123def"


def test_a_call_cut_by_the_limit_is_text_when_buffered_and_a_fragment_when_streamed() -> None:
    events: list[Event] = [Start(), *call(0, "abc123def", '{"path":"'), end(FinishReason.LENGTH)]
    whole = buffered(events)
    assert whole["stop_reason"] == "max_tokens"
    assert whole["content"] == [{"type": "text", "text": 'read_note({"path":"', "citations": None}]
    got = check(streamed(events))
    assert (got.cut, got.stop_reason) == ('{"path":"', "max_tokens")


@pytest.mark.parametrize("arguments", ["[1]", '"x"', "{broken"])
def test_an_input_that_is_no_object_is_an_error_and_never_invented(arguments: str) -> None:
    events: list[Event] = [Start(), *call(0, "abc123def", arguments), end(FinishReason.TOOL_CALLS)]
    with pytest.raises(DeckError) as caught:
        buffered(events)
    assert caught.value.kind is ErrorKind.UPSTREAM
    assert "'read_note'" in caught.value.message


def test_a_failure_ends_the_stream_in_an_error_and_nothing_else() -> None:
    error = DeckError(ErrorKind.UPSTREAM, "it died")
    got = check(streamed([Start(), PartStart(0, "text"), PartDelta(0, "he"), Failed(error)]))
    assert got.error == {"type": "api_error", "message": "it died"}
    assert got.text == "he"
    assert not got.is_done


def test_frames_are_json_without_loss() -> None:
    odd = 'quote " slash \\ line\n sep\u2028 emoji 🌍'
    assert check(streamed([Start(), *say(0, odd), end()])).text == odd


# Tapes


@pytest.mark.parametrize("tape", tapes(), ids=lambda tape: tape.name)
def test_every_tape_gives_a_valid_answer(tape: Tape) -> None:
    """What llama-server was recorded or feared to send comes out valid, and the same streamed and buffered."""
    events = play(tape.decoder(), [tape.data])
    checker = GrammarChecker()
    for event in events:
        checker.feed(event)
    fields: dict[str, Any] = {"stop_sequences": ["four", "END"]}
    got = check(streamed(events, **fields))
    strict(got)
    if isinstance(events[-1], Failed):
        assert got.error is not None
        with pytest.raises(DeckError):
            buffered(events, **fields)
        return
    whole = buffered(events, **fields)
    MESSAGE.validate_python(whole, strict=True)
    assert got.stop_reason == whole["stop_reason"]
    assert got.usage == whole["usage"]
    if got.cut is None:
        assert got.content == whole["content"]
    else:
        assert got.content[:-1] == whole["content"][:-1]
        assert whole["content"][-1]["text"] == f"{got.calls[-1]['name']}({got.cut}"


# Errors


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_every_kind_of_error_has_the_envelope(kind: ErrorKind) -> None:
    whole = AnthropicMessages().error(DeckError(kind, "m", param="p"), "req_1")
    assert set(whole) == {"type", "error", "request_id"}
    assert whole["type"] == "error"
    assert whole["request_id"] == "req_1"
    assert set(whole["error"]) == {"type", "message"}
    if whole["error"]["type"] != "request_too_large":  # the SDK's union lacks it
        TypeAdapter(sdk.shared.ErrorResponse).validate_python(whole, strict=True)


def test_errors_take_their_types_from_their_kinds() -> None:
    def type_of(kind: ErrorKind) -> str:
        return str(AnthropicMessages().error(DeckError(kind, "m"), "r")["error"]["type"])

    assert type_of(ErrorKind.AUTHENTICATION) == "authentication_error"
    assert type_of(ErrorKind.PERMISSION) == "permission_error"
    assert type_of(ErrorKind.MODEL_NOT_FOUND) == "not_found_error"
    assert type_of(ErrorKind.TOO_LARGE) == "request_too_large"
    assert type_of(ErrorKind.RATE_LIMIT) == "rate_limit_error"
    assert type_of(ErrorKind.UNAVAILABLE) == "overloaded_error"
    assert type_of(ErrorKind.UPSTREAM_TIMEOUT) == "timeout_error"
    assert type_of(ErrorKind.INTERNAL) == type_of(ErrorKind.UPSTREAM) == "api_error"


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Overrun(41000, 32768), "prompt is too long: 41000 tokens > 32768 maximum"),
        (Overrun(32768, 32768), "prompt is too long: 32768 tokens > 32767 maximum"),
        (
            Overrun(41000, 32768, is_estimate=True),
            "prompt is too long: 41000 tokens > 32768 maximum (at least, since the model is not loaded)",
        ),
        (
            Overrun(188240, 200000, 21333),
            "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000,"
            " decrease input length or `max_tokens` and try again",
        ),
        (None, "prompt is too long: it does not fit"),
    ],
)
def test_an_overflow_is_worded_as_clients_read_it(limits: Overrun | None, message: str) -> None:
    error = DeckError(ErrorKind.CONTEXT_LENGTH, "it does not fit", limits=limits)
    assert AnthropicMessages().error(error, "r")["error"] == {"type": "invalid_request_error", "message": message}
    got = check(streamed([Start(), *say(0, "a"), Failed(error)]))
    assert got.error == {"type": "invalid_request_error", "message": message}
