"""What tests of admission share: servers that count, requests that are too long, and the words of each wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
from app_support import TOKEN, App, any_error_of
from wires import WIRES, Wire

from deck.testing.fake_llama import Received, Reply, say, say_text

CHANGED = "x-athena-compatibility-changed"
COUNTER = "/v1/chat/completions/input_tokens"
TOKENIZER = "/tokenize"
COUNTERS = (COUNTER, TOKENIZER)
BEARER = {"authorization": f"Bearer {TOKEN}"}
CONTEXT = 4096
LONG = "word " * 1000  # of more bytes than the context has tokens
HUGE = "word " * 10_000  # too long by any tokenizer


def counters(tokens: int) -> dict[str, Any]:
    return {COUNTER: {"input_tokens": tokens}, TOKENIZER: {"tokens": [1] * tokens}}


def props(context: int = CONTEXT, slots: int = 1) -> dict[str, Any]:
    return {
        "default_generation_settings": {"n_ctx": context, "params": {}},
        "total_slots": slots,
        "chat_template": "{{ messages }}",
        "chat_template_caps": {"supports_tools": True, "supports_tool_calls": True, "supports_system_role": True},
    }


def answering(received: Received) -> Reply:
    return say_text("Hello") if received.path == "/v1/completions" else say("Hello")


def asked(deck: App, *paths: str) -> list[Received]:
    return [item for item in deck.fake.requests if item.path in paths]


def generated(deck: App) -> list[dict[str, Any]]:
    return [item.json() for item in deck.fake.asked]


def send(deck: App, wire: Wire, words: str, limit: int | None, *, stream: bool = False, model: str = "m1") -> Any:
    return deck.send("POST", wire.path, json={**wire.body(words, stream, limit), "model": model})


def load(deck: App, model: str = "m1") -> None:
    """Have the model loaded by a request that leaves no trace."""
    assert deck.send("POST", WIRES["chat"].path, json={**WIRES["chat"].body("a", False, 1), "model": model}).is_success
    deck.fake.requests.clear()


def prompt_words(name: str, prompt: int, context: int) -> str:
    of = "prompt" if name == "completions" else "messages"
    return {
        "messages": f"prompt is too long: {prompt} tokens > {context} maximum",
    }.get(
        name,
        f"This model's maximum context length is {context} tokens. However, your {of} resulted in {prompt} tokens."
        f" Please reduce the length of the {of}.",
    )


def sum_words(name: str, prompt: int, budget: int, context: int) -> str:
    of = "prompt" if name == "completions" else "messages"
    return {
        "messages": f"input length and `max_tokens` exceed context limit: {prompt} + {budget} > {context},"
        " decrease input length or `max_tokens` and try again",
    }.get(
        name,
        f"This model's maximum context length is {context} tokens. However, you requested {prompt + budget} tokens"
        f" ({prompt} in the {of}, {budget} in the completion). Please reduce the length of the {of} or completion.",
    )


def refusal(name: str, answer: httpx.Response) -> str:
    error = any_error_of(WIRES[name].path, answer, 400)
    assert error["type"] == "invalid_request_error"
    if name != "messages":
        assert error["code"] == "context_length_exceeded"
    message: str = error["message"]
    return message


def watched(deck: App, on_grant: Callable[[Any], None]) -> list[int]:
    """Note what is promised to each, and do something to the server that is granted."""
    seen: list[int] = []
    acquire = deck.deck.board.acquire

    async def watch(profile: Any, token: str, credit: int, claim: Any, quote: Any) -> Any:
        seen.append(credit)
        ticket, server = await acquire(profile, token, credit, claim, quote)
        on_grant(server)
        return ticket, server

    deck.deck.board.acquire = watch  # type: ignore[method-assign]  # to see what is promised
    return seen
