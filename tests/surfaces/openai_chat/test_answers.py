"""Answers of Chat Completions: the same events streamed and buffered, judged by the automaton and the SDK's types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from chat_automaton import ChatStream, StreamFault, check
from chat_support import TOOL, body, parse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import TypeAdapter

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
from deck_plugins.surfaces.openai_chat import OpenAIChat

HEAD = ReplyHead(seed="A" * 40, created=1767225600, model="m1")
USAGE = Usage(prompt=5, completion=2, cached=1)


def text(index: int, *pieces: str) -> list[Event]:
    return [PartStart(index, "text"), *(PartDelta(index, piece) for piece in pieces), PartEnd(index)]


def thought(index: int, *pieces: str) -> list[Event]:
    return [PartStart(index, "reasoning"), *(PartDelta(index, piece) for piece in pieces), PartEnd(index)]


def call(index: int, identity: str, *pieces: str) -> list[Event]:
    head = PartStart(index, "tool_call", identity, "read_note")
    return [head, *(PartDelta(index, piece) for piece in pieces), PartEnd(index)]


def stream(events: Sequence[Event], **fields: Any) -> bytes:
    parsed, _ = parse(body(stream=True, **fields))
    projector = OpenAIChat().projector(parsed, HEAD)
    return b"".join(projector.feed(event) for event in events)


def buffered(events: Sequence[Event], **fields: Any) -> dict[str, Any]:
    parsed, _ = parse(body(**fields))
    fold = Fold()
    for event in events:
        fold.feed(event)
    return OpenAIChat().render(fold.answer(), parsed, HEAD)


CASES: dict[str, list[Event]] = {
    "text": [Start(), *text(0, "Hel", "lo 🌍"), Finish(FinishReason.STOP, USAGE)],
    "thinking": [Start(), *thought(0, "hm"), *text(1, "ok"), Finish(FinishReason.STOP, USAGE)],
    "call": [Start(), *call(0, "abc123def", '{"pa', 'th":"a"}'), Finish(FinishReason.TOOL_CALLS, USAGE)],
    "two calls": [
        Start(),
        *text(0, "I look"),
        *call(1, "abc123def", "{}"),
        *call(2, "xyz123def", '{"path":"b"}'),
        Finish(FinishReason.TOOL_CALLS, USAGE),
    ],
    "empty": [Start(), Finish(FinishReason.STOP, USAGE)],
    "cut": [Start(), *text(0, "a"), Finish(FinishReason.LENGTH, USAGE)],
    "progress": [Progress("prompt", {"total": 9}), Start(), *text(0, "a"), Finish(FinishReason.STOP, USAGE)],
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("include_usage", [True, False])
def test_streamed_and_buffered_say_the_same(name: str, include_usage: bool) -> None:
    options = {"stream_options": {"include_usage": include_usage}}
    got: ChatStream = check(stream(CASES[name], **options), include_usage=include_usage)
    whole = buffered(CASES[name])
    message = whole["choices"][0]["message"]
    assert got.text == (message["content"] or "")
    assert got.reasoning == message.get("reasoning_content", "")
    assert got.calls == [{"id": item["id"], **item["function"]} for item in message.get("tool_calls", [])]
    assert got.finish == whole["choices"][0]["finish_reason"]
    if include_usage:
        assert got.usage == whole["usage"]
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert whole["id"] == got.chunks[0]["id"] == "chatcmpl-" + "A" * 29


@pytest.mark.parametrize("name", CASES)
def test_the_sdks_own_types_accept_it_strictly(name: str) -> None:
    TypeAdapter(ChatCompletion).validate_python(buffered(CASES[name]), strict=True)
    adapter = TypeAdapter(ChatCompletionChunk)
    for chunk in check(stream(CASES[name])).chunks:
        adapter.validate_python(chunk, strict=True)


def test_content_is_null_when_there_are_only_calls() -> None:
    assert buffered(CASES["call"])["choices"][0]["message"]["content"] is None
    assert buffered(CASES["empty"])["choices"][0]["message"]["content"] == ""


def test_a_failure_ends_the_stream_in_an_error_and_without_done() -> None:
    error = DeckError(ErrorKind.UPSTREAM, "it died")
    got = check(stream([Start(), PartStart(0, "text"), PartDelta(0, "he"), Failed(error)]))
    assert got.error == {"message": "it died", "type": "server_error", "param": None, "code": "upstream_error"}
    assert got.text == "he"
    assert not got.is_done


def test_heartbeats_keep_the_grammar() -> None:
    parsed, _ = parse(body(stream=True))
    projector = OpenAIChat().projector(parsed, HEAD)
    data = projector.heartbeat() + projector.heartbeat()
    for event in CASES["call"]:
        data += projector.feed(event) + (b"" if isinstance(event, Finish) else projector.heartbeat())
    assert check(data).calls[0]["arguments"] == '{"path":"a"}'


def test_old_functions_get_their_old_answer() -> None:
    fields: dict[str, Any] = {"functions": [TOOL["function"]]}
    message = buffered(CASES["two calls"], **fields)["choices"][0]
    assert message["finish_reason"] == "function_call"
    assert message["message"]["function_call"] == {"name": "read_note", "arguments": "{}"}
    assert "tool_calls" not in message["message"]
    data = stream(CASES["call"], **fields)
    deltas = [item["choices"][0]["delta"].get("function_call", {}) for item in check(data).chunks]
    assert "".join(item.get("arguments", "") for item in deltas) == '{"path":"a"}'
    assert [item["name"] for item in deltas if "name" in item] == ["read_note"]


def test_hidden_reasoning_reaches_nobody() -> None:
    fields: dict[str, Any] = {"reasoning": {"exclude": True}}
    assert "reasoning_content" not in buffered(CASES["thinking"], **fields)["choices"][0]["message"]
    assert check(stream(CASES["thinking"], **fields)).reasoning == ""


def test_logprobs_are_cut_to_what_was_asked() -> None:
    entry = {
        "id": 5,
        "token": "a",
        "logprob": -0.1,
        "bytes": [97],
        "top_logprobs": [{"id": 5, "token": "a", "logprob": -0.1, "bytes": [97]}],
    }
    events: list[Event] = [
        Start(),
        PartStart(0, "text"),
        PartDelta(0, "a", (entry,)),
        PartEnd(0),
        Finish(FinishReason.STOP, USAGE),
    ]
    clean = {"token": "a", "logprob": -0.1, "bytes": [97]}
    for top, alternatives in ((0, []), (1, [clean])):
        fields: dict[str, Any] = {"logprobs": True, "top_logprobs": top}
        content = buffered(events, **fields)["choices"][0]["logprobs"]["content"]
        assert content == [{**clean, "top_logprobs": alternatives}]
        chunks = check(stream(events, **fields)).chunks
        assert [item["choices"][0]["logprobs"] for item in chunks if item["choices"][0]["logprobs"]] == [
            {"content": content, "refusal": None}
        ]


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


def test_token_ids_are_given_when_asked() -> None:
    entries = ({"id": 1, "token": "a"}, {"id": 2, "token": "b"})
    delta = PartDelta(0, "ab", entries)
    events: list[Event] = [Start(), PartStart(0, "text"), delta, PartEnd(0), Finish(FinishReason.STOP, USAGE)]
    choice = buffered(events, return_token_ids=True)["choices"][0]
    assert (choice["token_ids"], choice["logprobs"]) == ([1, 2], None)
    assert "token_ids" not in buffered(events)["choices"][0]
    streamed = check(stream(events, return_token_ids=True)).chunks
    assert [item["choices"][0].get("token_ids") for item in streamed] == [None, [1, 2], None]


def test_a_call_cut_by_the_limit_comes_back_as_text() -> None:
    events: list[Event] = [Start(), *call(0, "abc123def", '{"path":"'), Finish(FinishReason.LENGTH, USAGE)]
    choice = buffered(events)["choices"][0]
    assert choice["finish_reason"] == "length"
    assert "tool_calls" not in choice["message"]
    assert '{"path":"' in choice["message"]["content"]


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_every_kind_of_error_has_an_envelope_of_four_members(kind: ErrorKind) -> None:
    error = OpenAIChat().error(DeckError(kind, "m", param="p"), "req_1")["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] is None or isinstance(error["code"], str)


def _chunks(data: bytes) -> list[bytes]:
    return [item + b"\n\n" for item in data.split(b"\n\n")[:-1]]


GOOD = stream(CASES["two calls"])


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda parts: parts[1:],
        lambda parts: parts[:-1],
        lambda parts: [*parts[:-2], parts[-1]],
        lambda parts: [parts[0], *parts],
        lambda parts: [*parts, parts[-1]],
        lambda parts: [item.replace(b'"index":0,"id"', b'"index":1,"id"') for item in parts],
        lambda parts: [*parts[:2], parts[2].replace(b"chatcmpl-A", b"chatcmpl-B"), *parts[3:]],
        lambda parts: [item.replace(b"\n", b"\r\n") for item in parts],
        lambda parts: [*parts[:-1], parts[1], parts[-1]],
        lambda parts: [b": ping\n\n", *parts],
    ],
)
def test_the_automaton_catches_corrupted_streams(corrupt: Any) -> None:
    check(b"".join(_chunks(GOOD)))
    with pytest.raises((StreamFault, KeyError)):
        check(b"".join(corrupt(_chunks(GOOD))))


def test_frames_are_json_without_loss() -> None:
    odd = 'quote " slash \\ line\n sep\u2028 emoji 🌍'
    data = stream([Start(), *text(0, odd), Finish(FinishReason.STOP, USAGE)])
    assert check(data).text == odd
    assert json.loads(json.dumps(odd)) == odd


def test_thoughts_that_are_left_out_leave_no_trace_in_logprobs() -> None:
    """Buffered as streamed: neither their tokens nor the ids of these."""
    entries = [
        {"id": place, "token": word, "logprob": -0.1, "top_logprobs": []} for place, word in enumerate(("hm", "Hi"))
    ]
    events: list[Event] = [
        Start(),
        PartStart(0, "reasoning"),
        PartDelta(0, "hm", (entries[0],)),
        PartEnd(0),
        PartStart(1, "text"),
        PartDelta(1, "Hi", (entries[1],)),
        PartEnd(1),
        Finish(FinishReason.STOP, USAGE),
    ]
    for hidden in ({"include_reasoning": False}, {"reasoning": {"exclude": True}}):
        (choice,) = buffered(events, logprobs=True, return_token_ids=True, **hidden)["choices"]
        assert [item["token"] for item in choice["logprobs"]["content"]] == ["Hi"]
        assert choice["token_ids"] == [1]
        assert b'"hm"' not in stream(events, logprobs=True, return_token_ids=True, **hidden)
    (choice,) = buffered(events, logprobs=True, return_token_ids=True)["choices"]
    assert choice["token_ids"] == [0, 1]
