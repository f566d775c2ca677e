import json
from dataclasses import dataclass

import pytest

from deck.errors import ErrorKind, Overrun
from deck.upstream.failures import LONGEST_MESSAGE, RETRY_AFTER, upstream_error


def envelope(code: int, message: str, label: str = "server_error", **extra: object) -> bytes:
    return json.dumps({"error": {"code": code, "message": message, "type": label, **extra}}).encode()


@dataclass(frozen=True)
class Case:
    status: int
    message: str
    kind: ErrorKind
    label: str = "server_error"


CLIENT, UPSTREAM, OVERFLOW = ErrorKind.INVALID_REQUEST, ErrorKind.UPSTREAM, ErrorKind.CONTEXT_LENGTH
CASES = [
    Case(400, '"messages" is required', CLIENT, "invalid_request_error"),
    Case(500, "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj", CLIENT),
    Case(500, "audio input is not supported", CLIENT),
    Case(500, "Jinja Exception: Conversation roles must alternate user/assistant", CLIENT),
    Case(500, "Conversation roles must alternate", CLIENT),
    Case(500, "this custom template is not supported", CLIENT),
    Case(500, "Failed to parse messages: Missing 'role'", CLIENT),
    Case(500, "unsupported content[].type", CLIENT),
    Case(500, "Cannot pass both response_format and grammar", CLIENT),
    Case(400, "Failed to parse grammar", CLIENT),
    Case(500, "failed to parse grammar", CLIENT),
    Case(500, "Unrecognized json_schema: {}", CLIENT),
    Case(500, "Assistant response prefill is incompatible with enable_thinking.", CLIENT),
    Case(500, "[json.exception.type_error.302] type must be string, but is null", CLIENT),
    Case(500, "input (900 tokens) is too large to process. increase the physical batch size", OVERFLOW),
    Case(500, "got exception: Unexpected empty grammar stack after accepting piece: x", UPSTREAM),
    Case(501, "This server does not support embeddings", CLIENT, "not_supported_error"),
    Case(500, "The model produced output that does not match the expected peg-native format", UPSTREAM),
    Case(500, "Failed to parse input at pos 31: <tool_call>the template", UPSTREAM),
    Case(500, "Compute error.", UPSTREAM),
    Case(404, "File Not Found", UPSTREAM, "not_found_error"),
    Case(502, "bad gateway", UPSTREAM),
    Case(500, "Context size has been exceeded.", OVERFLOW),
    Case(400, "the request exceeds the available context size", OVERFLOW, "invalid_request_error"),
    Case(400, "too long, it says", OVERFLOW, "exceed_context_size_error"),
    Case(503, "Loading model", ErrorKind.UNAVAILABLE, "unavailable_error"),
    Case(429, "slow down", ErrorKind.UNAVAILABLE),
    Case(413, "too big", ErrorKind.TOO_LARGE),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.status} {case.message[:30]}")
def test_the_one_at_fault_is_named_and_the_words_are_kept(case: Case) -> None:
    error = upstream_error(case.status, envelope(case.status, case.message, case.label))
    assert error.kind is case.kind
    assert error.message == case.message


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.status} {case.message[:30]}")
def test_an_error_in_a_stream_means_the_same(case: Case) -> None:
    error = upstream_error(200, json.loads(envelope(case.status, case.message, case.label)))
    assert error.kind is case.kind


def test_overflow_has_its_numbers() -> None:
    text = "request (41000 tokens) exceeds the available context size (32768 tokens), try increasing it"
    error = upstream_error(400, envelope(400, text, "exceed_context_size_error", n_prompt_tokens=41000, n_ctx=32768))
    assert (error.code, error.limits) == ("context_length_exceeded", Overrun(41000, 32768))
    assert upstream_error(400, envelope(400, text)).limits == Overrun(41000, 32768)
    assert upstream_error(500, envelope(500, "Context size has been exceeded.")).limits is None


def test_overflow_is_worded_as_clients_know_it_with_what_llama_server_said() -> None:
    text = "request (41000 tokens) exceeds the available context size (32768 tokens), try increasing it"
    assert upstream_error(400, envelope(400, text)).message == (
        "This model's maximum context length is 32768 tokens. However, your messages resulted in 41000 tokens."
        f" Please reduce the length of the messages. ({text})"
    )


def test_an_input_that_is_too_long_is_told_with_both_numbers_and_a_remedy() -> None:
    text = "input (900 tokens) is too large to process. increase the physical batch size (current batch size: 512)"
    assert upstream_error(500, envelope(500, text)).message == (
        "an input of 900 tokens is longer than the 512 that the model takes at a time;"
        f" send shorter ones, or have [server] ctx_size raised ({text})"
    )


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_decks_affair(status: int) -> None:
    error = upstream_error(status, envelope(status, "Invalid API Key", "authentication_error"))
    assert error.kind is ErrorKind.UPSTREAM
    assert "refused Deck's key" in error.message


def test_what_the_model_did_is_not_worth_another_try() -> None:
    error = upstream_error(500, envelope(500, "output that does not match the expected peg-native format"))
    assert error.should_retry is False
    assert upstream_error(500, envelope(500, "Compute error.")).should_retry is None


def test_a_busy_server_may_be_asked_again() -> None:
    assert upstream_error(503, envelope(503, "Loading model", "unavailable_error")).retry_after == RETRY_AFTER


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (500, b"", "llama-server answered 500 without a message"),
        (400, b"", "llama-server answered 400 without a message"),
        (500, b"null", "llama-server answered 500 without a message"),
        (500, b"[1]", "llama-server answered 500 without a message"),
        (500, b'{"error":{}}', "llama-server answered 500 without a message"),
        (502, b"<html><body>Bad Gateway</body></html>", "llama-server answered 502 with a page of HTML"),
        (500, b"  it broke\n", "it broke"),
        (500, b'{"error":"it broke"}', "it broke"),
        (500, b'{"message":"it broke"}', "it broke"),
        (500, b"\xff broke", "\ufffd broke"),
    ],
)
def test_any_body_gives_a_message(status: int, body: bytes, message: str) -> None:
    assert upstream_error(status, body).message == message


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("failed to load '/srv/my models/a-7b.gguf'", "failed to load 'a-7b.gguf'"),
        ("failed to load C:\\models\\a.gguf, sorry", "failed to load a.gguf, sorry"),
        ("/src/ggml.cpp:12: GGML_ASSERT failed", "ggml.cpp:12: GGML_ASSERT failed"),
        (
            "see https://example.com/a/b.json and /v1/chat/completions",
            "see https://example.com/a/b.json and /v1/chat/completions",
        ),
        ("use and/or model.gguf", "use and/or model.gguf"),
    ],
)
def test_paths_of_files_lose_their_folders(sent: str, shown: str) -> None:
    assert upstream_error(500, envelope(500, sent)).message == shown


def test_a_message_is_bounded() -> None:
    assert len(upstream_error(500, b"x" * 100_000).message) == LONGEST_MESSAGE


@pytest.mark.parametrize("code", [None, "500", True, 200, 99999])
def test_a_stream_error_without_a_status_is_the_upstreams(code: object) -> None:
    assert upstream_error(200, {"error": {"code": code, "message": "broke"}}).kind is ErrorKind.UPSTREAM
