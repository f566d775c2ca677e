"""Answers of Responses: the same events streamed and buffered, judged by the automaton and the SDK's types."""

from __future__ import annotations

import json
from typing import Any

import pytest
from responses_automaton import check
from responses_support import CUSTOM, HEAD, NOTES, TOOL, body, buffered, parse, raw_stream, stream, validate_event

from deck.api import (
    DeckError,
    ErrorKind,
    Event,
    Failed,
    Finish,
    FinishReason,
    PartDelta,
    PartEnd,
    PartStart,
    Progress,
    ReplyHead,
    Start,
    Usage,
)
from deck_plugins.surfaces.openai_responses import OpenAIResponses

USAGE = Usage(prompt=5, completion=2, cached=1, reasoning=1)
STOP = Finish(FinishReason.STOP, USAGE)
CALLED = Finish(FinishReason.TOOL_CALLS, USAGE)
LENGTH = Finish(FinishReason.LENGTH, USAGE)


def text(index: int, *pieces: str) -> list[Event]:
    return [PartStart(index, "text"), *(PartDelta(index, piece) for piece in pieces), PartEnd(index)]


def thought(index: int, *pieces: str) -> list[Event]:
    return [PartStart(index, "reasoning"), *(PartDelta(index, piece) for piece in pieces), PartEnd(index)]


def call(index: int, identity: str, *pieces: str, name: str = "read_note") -> list[Event]:
    head = PartStart(index, "tool_call", identity, name)
    return [head, *(PartDelta(index, piece) for piece in pieces), PartEnd(index)]


PATCH = '{"input": "*** Begin Patch\\n\\"\\u00e9\\ud83c\\udf0d\\"\\n*** End Patch"}'
CASES: dict[str, list[Event]] = {
    "text": [Start(), *text(0, "Hel", "lo 🌍"), STOP],
    "thinking": [Start(), *thought(0, "hm", "m"), *text(1, "ok"), STOP],
    "text between thoughts": [Start(), *thought(0, "a"), *text(1, "X"), *thought(2, "b"), *text(3, "Y"), STOP],
    "call": [Start(), *call(0, "abc123def", '{"pa', 'th":"a"}'), CALLED],
    "two calls": [
        Start(),
        *text(0, "I look"),
        *call(1, "abc123def", "{}"),
        *call(2, "xyz123def", '{"path":"b"}'),
        CALLED,
    ],
    "call and text": [Start(), *call(0, "abc123def", "{}"), *text(1, "called"), CALLED],
    "namespace": [Start(), *call(0, "abc123def", "{}", name="notes__read_note"), CALLED],
    "custom": [Start(), *call(0, "abc123def", PATCH[:30], PATCH[30:60], PATCH[60:], name="apply_patch"), CALLED],
    "custom, not as asked": [Start(), *call(0, "abc123def", '{"patch":', '"x"}', name="apply_patch"), CALLED],
    "unknown tool": [Start(), *call(0, "abc123def", "{}", name="nobody"), CALLED],
    "empty": [Start(), STOP],
    "empty parts": [Start(), *thought(0), *text(1), *text(2, "", "a"), *text(3, ""), STOP],
    "only a thought": [Start(), *thought(0, "hm"), STOP],
    "cut text": [Start(), *text(0, "a"), LENGTH],
    "cut thought": [Start(), *thought(0, "a"), LENGTH],
    "cut after a call": [Start(), *text(0, "a"), *call(1, "abc123def", "{}"), LENGTH],
    "cut before a text": [Start(), *text(0, "a"), *text(1), LENGTH],
    "context full": [Start(), *text(0, "a"), Finish(FinishReason.CONTEXT, USAGE)],
    "prefill only": [Start(), Finish(FinishReason.LENGTH, Usage(5, 0))],
    "progress": [Progress("prompt", {"total": 9}), Start(), *text(0, "a"), STOP],
}
TOOLS = {"tools": [TOOL, CUSTOM, NOTES]}


@pytest.mark.parametrize("name", CASES)
def test_streamed_and_buffered_say_the_same(name: str) -> None:
    streamed, whole = stream(CASES[name], **TOOLS), buffered(CASES[name], **TOOLS)
    assert streamed.final == whole
    assert whole["id"] == "resp_" + "A" * 40


@pytest.mark.parametrize("name", CASES)
def test_heartbeats_may_stand_anywhere(name: str) -> None:
    parsed, _ = parse(body(stream=True, **TOOLS))
    projector = OpenAIResponses().projector(parsed, HEAD)
    data = projector.heartbeat() + projector.heartbeat()
    for event in CASES[name]:
        data += projector.feed(event) + (b"" if isinstance(event, Finish) else projector.heartbeat())
    found = check(data)
    for event_ in found.events:
        validate_event(event_)
    assert found.heartbeats == 1 + len(CASES[name]) - 1
    assert found.final["output"] == stream(CASES[name], **TOOLS).final["output"]


def test_a_stream_has_the_events_of_the_wire_in_order() -> None:
    assert stream(CASES["text"]).names() == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert stream(CASES["call"], **TOOLS).names()[2:] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]


def test_each_kind_of_item_has_its_shape() -> None:
    assert buffered(CASES["thinking"])["output"] == [
        {
            "id": "rs_" + "A" * 28 + "0000",
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hmm"}],
            "status": "completed",
        },
        {
            "id": "msg_" + "A" * 28 + "0001",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "ok", "annotations": [], "logprobs": []}],
        },
    ]
    assert buffered(CASES["call"], **TOOLS)["output"] == [
        {
            "id": "fc_abc123def",
            "type": "function_call",
            "status": "completed",
            "call_id": "call_abc123def",
            "name": "read_note",
            "arguments": '{"path":"a"}',
        }
    ]


def test_a_call_of_a_namespace_bears_it() -> None:
    for output in (buffered(CASES["namespace"], **TOOLS)["output"], stream(CASES["namespace"], **TOOLS).items):
        assert (output[0]["name"], output[0]["namespace"]) == ("read_note", "notes")


def test_a_custom_call_has_its_raw_input() -> None:
    found = stream(CASES["custom"], **TOOLS)
    assert found.items[0] == {
        "id": "ctc_abc123def",
        "type": "custom_tool_call",
        "status": "completed",
        "call_id": "call_abc123def",
        "name": "apply_patch",
        "input": '*** Begin Patch\n"é🌍"\n*** End Patch',
    }
    assert found.names().count("response.custom_tool_call_input.delta") == 3


def test_arguments_that_are_no_single_string_come_as_they_are() -> None:
    assert stream(CASES["custom, not as asked"], **TOOLS).items[0]["input"] == '{"patch":"x"}'


@pytest.mark.parametrize("name", ["cut text", "cut thought", "context full", "prefill only"])
def test_a_cut_answer_is_incomplete_and_so_is_its_last_item(name: str) -> None:
    found = buffered(CASES[name])
    assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in found["output"]] == ["incomplete"] * (name != "prefill only")
    assert stream(CASES[name]).names()[-1] == "response.incomplete"


def test_a_call_that_is_whole_when_the_limit_comes_is_complete() -> None:
    found = buffered(CASES["cut after a call"])
    assert [item["status"] for item in found["output"]] == ["completed", "completed"]
    assert found["status"] == "incomplete"


@pytest.mark.parametrize("name", ["read_note", "apply_patch"])
def test_a_call_cut_by_the_limit_stands_streamed_and_is_text_when_buffered(name: str) -> None:
    events: list[Event] = [Start(), *call(0, "abc123def", '{"input":"ab', name=name), LENGTH]
    item = stream(events, **TOOLS).items[0]
    assert item["status"] == "incomplete"
    assert item.get("arguments", item.get("input")) in ('{"input":"ab', "ab")
    message = buffered(events, **TOOLS)["output"][0]
    assert (message["type"], message["status"]) == ("message", "incomplete")
    assert message["content"][0]["text"] == f'{name}({{"input":"ab'


def test_usage_has_every_count_the_wire_requires() -> None:
    assert buffered(CASES["text"])["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 7,
    }
    unknown = [Start(), Finish(FinishReason.STOP, Usage(5, 2))]
    usage = buffered(unknown)["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] == usage["output_tokens_details"]["reasoning_tokens"] == 0


def test_the_object_repeats_what_was_asked_and_what_is_in_effect() -> None:
    asked: dict[str, Any] = {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "max_tool_calls": 3,
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "user": "u",
        "reasoning": {"effort": "low", "summary": "auto"},
        "store": True,
        "service_tier": "auto",
        "truncation": "auto",
        "top_logprobs": 2,
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "tools": [TOOL, CUSTOM, NOTES, {"type": "web_search"}],
        "tool_choice": {"type": "function", "name": "read_note"},
    }
    found = buffered(CASES["text"], **asked)
    same = ("instructions", "metadata", "max_tool_calls", "parallel_tool_calls", "prompt_cache_key", "tool_choice")
    assert {name: found[name] for name in same} == {name: asked[name] for name in same}
    assert (found["user"], found["safety_identifier"], found["text"]) == ("u", "s", asked["text"])
    assert found["reasoning"] == {"effort": "low", "summary": None}
    assert (found["store"], found["service_tier"], found["truncation"]) == (False, "default", "disabled")
    assert found["tools"] == [
        {**TOOL, "strict": None},
        CUSTOM,
        {**NOTES, "tools": [{**TOOL, "strict": None}]},
    ]
    assert (found["temperature"], found["top_p"], found["presence_penalty"]) == (0.6, 0.9, 0)
    assert (found["created_at"], found["completed_at"]) == (1767225600, 1767225607)


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("auto", "auto"),
        ({"type": "auto"}, "auto"),
        ({"type": "function", "function": {"name": "read_note"}}, {"type": "function", "name": "read_note"}),
        ({"type": "custom", "name": "apply_patch"}, {"type": "custom", "name": "apply_patch"}),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "read_note"}]},
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "read_note"}]},
        ),
    ],
)
def test_the_choice_is_repeated_in_the_wires_form(sent: Any, shown: Any) -> None:
    assert buffered(CASES["text"], **TOOLS, tool_choice=sent)["tool_choice"] == shown


def test_sampling_that_nobody_told_is_llama_cpps() -> None:
    parsed, _ = parse(body(stream=True))
    head = ReplyHead(seed="B" * 40, created=1, model="m1")
    found = check(OpenAIResponses().projector(parsed, head).heartbeat() + b"data: [DONE]\n\n", is_partial=True)
    assert found.events[0]["response"]["temperature"] == 0.8


def test_the_limit_in_effect_is_shown() -> None:
    parsed, _ = parse(body(stream=True))
    for limit, shown in ((7, 7), (0, 0), (-1, None)):
        head = ReplyHead(seed="B" * 40, created=1, model="m1", sampling=lambda limit=limit: {"max_tokens": limit})  # type: ignore[misc]
        data = OpenAIResponses().projector(parsed, head).heartbeat()
        assert f'"max_output_tokens":{json.dumps(shown)}'.encode() in data


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_a_failure_is_an_error_and_a_failed_response(kind: ErrorKind) -> None:
    error = DeckError(kind, "it died", param="input[0]", retry_after=3)
    found = stream([Start(), PartStart(0, "text"), PartDelta(0, "he"), Failed(error)])
    assert found.names()[-2:] == ["error", "response.failed"]
    assert found.error is not None
    assert (found.error["message"], found.error["param"]) == ("it died", "input[0]")
    assert found.final["error"]["message"].startswith("it died")
    assert found.final["output"] == []
    if kind is ErrorKind.CONTEXT_LENGTH:
        assert found.error["code"] == found.final["error"]["code"] == "context_length_exceeded"
    if kind is ErrorKind.RATE_LIMIT:
        assert "try again in 3s" in found.final["error"]["message"]


def test_an_item_that_was_whole_before_the_failure_is_closed() -> None:
    found = stream([Start(), *text(0, "he"), Failed(DeckError(ErrorKind.UPSTREAM, "it died"))])
    assert [item["status"] for item in found.final["output"]] == ["completed"]


def test_a_failure_before_anything_still_opens_the_stream() -> None:
    found = stream([Failed(DeckError(ErrorKind.UNAVAILABLE, "no"))])
    assert found.names() == ["response.created", "response.in_progress", "error", "response.failed"]


def test_hidden_reasoning_reaches_nobody() -> None:
    fields: dict[str, Any] = {"reasoning": {"exclude": True}}
    for name in ("thinking", "text between thoughts", "cut thought", "only a thought"):
        assert b"reasoning_text" not in raw_stream(CASES[name], **fields)
        assert stream(CASES[name], **fields).final == buffered(CASES[name], **fields)


ENTRY = {
    "id": 5,
    "token": "a",
    "logprob": -0.1,
    "bytes": [97],
    "top_logprobs": [{"id": 5, "token": "é", "logprob": -9}],
}


def test_logprobs_stand_in_deltas_done_and_parts() -> None:
    events: list[Event] = [
        Start(),
        *thought(0, "t"),
        PartStart(1, "text"),
        PartDelta(1, "", (ENTRY,)),
        PartDelta(1, "ab", (ENTRY, ENTRY)),
        PartDelta(1, "", (ENTRY,)),
        PartEnd(1),
        STOP,
    ]
    clean = {"token": "a", "logprob": -0.1, "bytes": [97]}
    for top, alternatives in ((0, []), (1, [{"token": "é", "logprob": -9, "bytes": [195, 169]}])):
        fields: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": top}
        whole = buffered(events, **fields)
        assert whole["output"][1]["content"][0]["logprobs"] == [{**clean, "top_logprobs": alternatives}] * 4
        assert stream(events, **fields).final == whole
    assert buffered(events)["output"][1]["content"][0]["logprobs"] == []


def test_a_text_of_nothing_but_logprobs_is_the_same_streamed_and_whole() -> None:
    events: list[Event] = [Start(), PartStart(0, "text"), PartDelta(0, "", (ENTRY,)), PartEnd(0), STOP]
    fields: dict[str, Any] = {"include": ["message.output_text.logprobs"]}
    whole = buffered(events, **fields)
    assert len(whole["output"][0]["content"][0]["logprobs"]) == 1
    assert stream(events, **fields).final == whole


def test_timings_and_progress_are_sent_only_when_asked() -> None:
    events: list[Event] = [
        Progress("queue"),
        Progress("prompt", {"total": 9}),
        Start(),
        PartStart(0, "text"),
        PartDelta(0, "a", timings={"predicted_n": 1}),
        PartEnd(0),
        Finish(FinishReason.STOP, USAGE, timings={"predicted_n": 2}),
    ]
    assert b"timings" not in raw_stream(events)
    assert b"prompt_progress" not in raw_stream(events)
    asked = {"timings_per_token": True, "return_progress": True}
    found = stream(events, **asked)
    assert [item["prompt_progress"] for item in found.events if "prompt_progress" in item] == [{"total": 9}]
    assert [item["timings"] for item in found.events if "timings" in item] == [{"predicted_n": 1}]
    assert found.final == buffered(events, **asked)
    assert found.final["timings"] == {"predicted_n": 2}


def test_frames_are_json_without_loss() -> None:
    odd = 'quote " slash \\ line\n sep\u2028 emoji 🌍'
    assert stream([Start(), *text(0, odd), STOP]).text() == odd


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_every_kind_of_error_has_an_envelope_of_four_members(kind: ErrorKind) -> None:
    error = OpenAIResponses().error(DeckError(kind, "m", param="p"), "req_1")["error"]
    assert set(error) == {"message", "type", "param", "code"}
