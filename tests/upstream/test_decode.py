import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tapes.tapefile import Tape, line_of, play, tapes

from deck.canon.answer import Fold
from deck.canon.events import Event, Failed, Finish, FinishReason, PartDelta, PartEnd, PartStart, Progress, Start, Usage
from deck.canon.grammar import GrammarChecker
from deck.canon.request import Reasoning, Text, ToolCall
from deck.errors import ErrorKind
from deck.testing import frames
from deck.upstream import decode
from deck.upstream.decode import Decoder
from deck.upstream.sse import LIMIT
from deck.upstream.toolcalls import tool_id

TAPES = tapes()
END = frames.usage(10, 3) + frames.done()


def decoded(*pieces: bytes, **options: Any) -> list[Event]:
    return play(Decoder(seed="s", **options), pieces)


def calls(events: list[Event]) -> list[tuple[str, str]]:
    """Name and arguments of every call."""
    texts: dict[int, str] = {}
    names: dict[int, str] = {}
    for event in events:
        if isinstance(event, PartStart) and event.kind == "tool_call":
            names[event.index] = event.tool_name
        elif isinstance(event, PartDelta):
            texts[event.index] = texts.get(event.index, "") + event.text
    return [(name, texts.get(index, "")) for index, name in names.items()]


def failure(events: list[Event]) -> Failed:
    last = events[-1]
    assert isinstance(last, Failed)
    return last


def ending(events: list[Event]) -> Finish:
    last = events[-1]
    assert isinstance(last, Finish), last
    return last


@pytest.mark.parametrize("step", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("tape", TAPES, ids=lambda tape: tape.name)
def test_any_slicing_gives_the_same_events(tape: Tape, step: int) -> None:
    """Where the network cut the bytes must never matter."""
    slices = [tape.data[start : start + step] for start in range(0, len(tape.data), step)]
    events = play(tape.decoder(), slices)
    assert [json.loads(line_of(event)) for event in events] == [json.loads(line) for line in tape.lines]
    checker = GrammarChecker()
    for event in events:
        checker.feed(event)
    assert checker.is_complete


@settings(max_examples=25, deadline=None)
@given(st.data())
@pytest.mark.parametrize("tape", TAPES, ids=lambda tape: tape.name)
def test_random_slicing_gives_the_same_events(tape: Tape, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(tape.data)), max_size=12)) | {0, len(tape.data)})
    slices = [tape.data[start:stop] for start, stop in itertools.pairwise(cuts)]
    assert [line_of(event) for event in play(tape.decoder(), slices)] == list(tape.lines)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(TAPES), st.data())
def test_a_stream_cut_anywhere_still_obeys_the_grammar(tape: Tape, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, len(tape.data)))
    checker = GrammarChecker()
    for event in play(tape.decoder(), [tape.data[:size]]):
        checker.feed(event)
    assert checker.is_complete


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=4) | st.just('{"a":1}'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
CALL = st.fixed_dictionaries(
    {},
    optional={
        "index": st.integers(0, 2) | JSON,
        "id": st.sampled_from(["", "a", "b"]) | JSON,
        "function": st.fixed_dictionaries(
            {}, optional={"name": st.sampled_from(["", "f", "g"]) | JSON, "arguments": JSON | st.just('{"x":')}
        )
        | JSON,
    },
)
DELTA = st.fixed_dictionaries(
    {},
    optional={
        "content": st.text(max_size=3) | JSON,
        "reasoning_content": st.text(max_size=3) | JSON,
        "tool_calls": st.lists(CALL | JSON, max_size=3) | JSON,
    },
)
CHOICE = st.fixed_dictionaries(
    {},
    optional={
        "index": JSON,
        "delta": DELTA | JSON,
        "finish_reason": st.sampled_from(["stop", "length", "", None]) | JSON,
        "logprobs": JSON | st.fixed_dictionaries({"content": JSON}),
    },
)
CHUNK = st.fixed_dictionaries(
    {"choices": st.lists(CHOICE | JSON, max_size=2) | JSON},
    optional={
        "model": JSON,
        "usage": JSON | st.fixed_dictionaries({"prompt_tokens": JSON, "prompt_tokens_details": JSON}),
        "timings": JSON,
        "prompt_progress": JSON,
        "__verbose": JSON | st.fixed_dictionaries({"tokens": JSON, "stopping_word": JSON, "stop_type": JSON}),
        "error": JSON,
    },
)


@settings(max_examples=400, deadline=None)
@given(st.lists(CHUNK | JSON | DELTA.map(lambda delta: {"choices": [{"delta": delta}]}), max_size=6))
def test_no_upstream_can_break_the_decoder_or_the_grammar(chunks: list[Any]) -> None:
    events = decoded(*(frames.frame(chunk).replace(b"\r", b"") for chunk in chunks), frames.done())
    checker = GrammarChecker()
    for event in events:
        checker.feed(event)
    assert checker.is_complete
    ids = [event.tool_id for event in events if isinstance(event, PartStart) and event.kind == "tool_call"]
    assert len(set(ids)) == len(ids)
    assert all(len(identity) == 9 for identity in ids)


def test_a_delta_comes_out_with_the_bytes_that_complete_it() -> None:
    decoder = Decoder(seed="s")
    assert decoder.feed(frames.role()) == [Start("fake", "b11434-fake")]
    assert decoder.feed(frames.content("a")) == [PartStart(0, "text"), PartDelta(0, "a")]
    assert decoder.feed(frames.content("b")) == [PartDelta(0, "b")]
    assert decoder.feed(frames.tool(0, "x", "f", '{"a"')) == [
        PartEnd(0),
        PartStart(1, "tool_call", tool_id("s", 0), "f"),
        PartDelta(1, '{"a"'),
    ]
    assert decoder.feed(frames.tool(0, arguments=":1}")) == [PartDelta(1, ":1}")]
    assert not decoder.finished
    assert [type(event) for event in decoder.feed(frames.finish() + END)] == [PartEnd, Finish]
    assert decoder.finished
    assert decoder.feed(frames.content("late")) == []
    assert decoder.end() == []


def test_a_waiting_call_opens_as_soon_as_the_one_before_is_complete() -> None:
    decoder = Decoder(seed="s")
    decoder.feed(frames.tool(0, "x", "f", '{"a"'))
    assert decoder.feed(frames.tool(1, "y", "g", '{"b"')) == []
    assert decoder.feed(frames.tool(0, arguments=":1}")) == [
        PartDelta(0, ":1}"),
        PartEnd(0),
        PartStart(1, "tool_call", tool_id("s", 1), "g"),
        PartDelta(1, '{"b"'),
    ]
    assert decoder.feed(frames.tool(1, arguments=":2}")) == [PartDelta(1, ":2}")]


def test_ids_depend_on_the_seed_alone() -> None:
    assert tool_id("s", 0) == tool_id("s", 0)
    assert len({tool_id(seed, ordinal) for seed in ("s", "t") for ordinal in range(500)}) == 1000
    assert all(tool_id("s", ordinal).isalnum() and len(tool_id("s", ordinal)) == 9 for ordinal in range(100))


@pytest.mark.parametrize("reason", ["stop", "tool_calls"])
def test_a_call_makes_the_reason_tool_calls(reason: str) -> None:
    events = decoded(frames.tool(0, "x", "f", "{}"), frames.finish(reason), END)
    assert ending(events).reason is FinishReason.TOOL_CALLS


def test_a_call_does_not_hide_the_length_limit() -> None:
    events = decoded(frames.tool(0, "x", "f", "{}"), frames.finish("length"), END)
    assert ending(events).reason is FinishReason.LENGTH


def test_only_the_last_call_of_a_cut_answer_may_lack_its_arguments() -> None:
    events = decoded(frames.tool(0, "x", "f"), frames.tool(1, "y", "g"), frames.finish("length"), END)
    assert calls(events) == [("f", "{}"), ("g", "")]


@pytest.mark.parametrize("arguments", [None, "", " \n"])
def test_a_call_without_arguments_gets_an_empty_object(arguments: str | None) -> None:
    ((name, text),) = calls(decoded(frames.tool(0, "x", "f", arguments), frames.finish(), END))
    assert (name, json.loads(text)) == ("f", {})


def test_an_index_below_another_does_not_matter() -> None:
    events = decoded(frames.tool(5, "x", "f", "{}"), frames.tool(2, "y", "g", "{}"), frames.finish(), END)
    assert calls(events) == [("f", "{}"), ("g", "{}")]


def test_a_nameless_call_is_dropped_where_the_limit_cut_it() -> None:
    events = decoded(frames.content("a"), frames.tool(0, "x"), frames.finish("length"), END)
    assert calls(events) == []
    assert ending(events).reason is FinishReason.LENGTH


@pytest.mark.parametrize("value", ["error", "abort", "content_filter", "STOP", 1, ["stop"], {"a": 1}])
def test_a_reason_that_is_none_fails(value: Any) -> None:
    error = failure(decoded(frames.content("a"), frames.chunk({}, value), END)).error
    assert error.kind is ErrorKind.UPSTREAM
    assert str(value)[:10] in error.message


def test_an_error_keeps_the_part_open() -> None:
    events = decoded(frames.content("a"), frames.error_frame(500, "broke"))
    assert [type(event) for event in events] == [Start, PartStart, PartDelta, Failed]


def test_an_error_first_comes_without_a_start() -> None:
    """So that whoever answers can still choose a status."""
    assert [type(event) for event in decoded(frames.error_frame(500, "broke"))] == [Failed]


def test_the_end_before_the_finish_is_a_failure() -> None:
    error = failure(decoded(frames.content("a"))).error
    assert (error.kind, error.code) == (ErrorKind.UPSTREAM, "upstream_error")
    assert error.message == "the upstream ended the stream before the answer was complete"


def test_garbage_is_shown_by_its_head_only() -> None:
    error = failure(decoded(b"data: \x1b[31m" + b"secret " * 40 + b"\n\n")).error
    assert error.message.startswith("llama-server sent something that is no chunk of an answer: 285 bytes")
    assert len(error.message) < 130
    assert error.message.isprintable()


def test_a_frame_without_end_fails_and_keeps_what_came_before() -> None:
    events = decoded(frames.content("a") + b"data: " + b"x" * (LIMIT + 3))
    assert [type(event) for event in events] == [Start, PartStart, PartDelta, Failed]


def test_usage_comes_from_either_chunk() -> None:
    counts = {"prompt_tokens": 7, "completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 1}}
    events = decoded(frames.content("a"), frames.finish("stop", usage=counts), frames.done())
    assert ending(events).usage == Usage(7, 2, None, 1)
    events = decoded(frames.content("a"), frames.finish(), frames.usage(20, 3, 16), frames.done())
    assert ending(events).usage == Usage(20, 3, 16)


def test_prefill_only_shows_no_parts() -> None:
    logprobs = {"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": {"content": [{"token": "x"}]}}]}
    pieces = (frames.role(), frames.frame(logprobs), frames.tool(0, "x", "f", "{"), frames.finish("length"), END)
    events = decoded(*pieces, prefill_only=True)
    assert [type(event) for event in events] == [Start, Finish]
    assert ending(events).reason is FinishReason.LENGTH
    assert ending(events).usage == Usage(10, 0, 0)


def test_prefill_only_still_fails() -> None:
    assert [type(event) for event in decoded(frames.role(), prefill_only=True)] == [Start, Failed]


def test_progress_has_what_llama_server_tells() -> None:
    detail = {"total": 4, "cache": 0, "processed": 2, "time_ms": 1}
    events = decoded(frames.chunk({"role": "assistant", "content": None}, prompt_progress=detail))
    assert events[:2] == [Start("fake", "b11434-fake"), Progress("prompt", detail)]


def test_folded_answers_are_what_was_streamed() -> None:
    """Streamed and folded, an answer cannot differ: one decoder feeds both."""
    fold = Fold()
    pieces = (
        frames.reasoning("Think."),
        frames.content("Look: "),
        frames.content("here."),
        frames.tool(0, "x", "f", '{"a":1}'),
        frames.tool(1, "y", "g"),
        frames.finish(),
        END,
    )
    for event in decoded(*pieces):
        fold.feed(event)
    assert fold.answer().parts == (
        Reasoning("Think."),
        Text("Look: here."),
        ToolCall(tool_id("s", 0), "f", '{"a":1}'),
        ToolCall(tool_id("s", 1), "g", "{}"),
    )


def _alike(literal: str, created: int = 1, member: str = "content") -> bytes:
    choice = f'{{"finish_reason":null,"index":0,"delta":{{"{member}":{literal}}}}}'
    chunk = f'{{"choices":[{choice}],"created":{created},"id":"x","object":"chat.completion.chunk"}}'
    return b"data: " + chunk.encode() + b"\n\n"


_LITERALS = st.one_of(
    st.text().map(json.dumps),
    st.text().map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.sampled_from(
        [
            '"a"',
            '""',
            ' "a" ',
            "null",
            "1",
            "{}",
            '["a"]',
            '"a","content":"b"',
            '"a","role":"x"',
            '"a"}},{"index":1,"delta":{"content":"b"',
            '"\\"content\\":\\"a\\""',
            '"a',
            "",
            '"\\ud800"',
        ]
    ),
)


@given(st.lists(st.tuples(_LITERALS, st.integers(1, 2), st.sampled_from(["content", "content", "reasoning_content"]))))
def test_to_read_only_the_text_of_a_chunk_like_the_one_before_changes_nothing(
    chunks: list[tuple[str, int, str]],
) -> None:
    class Thorough(Decoder):
        def _is_alike(self, payload: bytes) -> bool:
            return False

    pieces = [frames.role(), _alike('"first"'), *(_alike(*chunk) for chunk in chunks), frames.finish(), END]
    assert repr(play(Decoder(seed="s"), pieces)) == repr(play(Thorough(seed="s"), pieces))


def test_the_text_of_chunks_that_are_alike_is_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    loads = decode.json.loads
    monkeypatch.setattr(decode.json, "loads", lambda data: read.append(data) or loads(data))
    events = decoded(frames.role(), _alike('"a"'), _alike('"b"'), _alike('"c"'), frames.finish(), END)
    assert [event.text for event in events if isinstance(event, PartDelta)] == ["a", "b", "c"]
    assert read.count(b'"b"') + read.count(b'"c"') >= 1
