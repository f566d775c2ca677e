"""One reader for each wire: what a stream and a whole answer said, in the same words, whatever the wire.

A surface that is registered and has no reader here fails the joint tests: add one to `WIRES`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import chat_automaton
import completions_automaton

Call = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What reached the client; a call is (id without its prefix, name, arguments); `finish` in the wire's words."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    finish: str | None = None
    error: str | None = None

    def settled(self, *, is_cut: bool) -> Said:
        """Return it as a whole answer has it: a call that the limit cut is text, one without arguments has none."""
        text, calls = self.text, []
        for identity, name, arguments in self.calls:
            if is_cut and not _is_object(arguments):
                text += f"{name}({arguments}"
            else:
                calls.append((identity, name, arguments or "{}"))
        return replace(self, text=text, calls=tuple(calls))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """How a wire asks and answers.

    Args:
        path: its generating route.
        body: the least request that says `words`, streamed or not, and that asks for no more than `limit` tokens.
        stream: reads a whole stream; raises where it breaks the wire's grammar or does not end in the wire's own way.
        whole: reads a buffered answer.
        has_text_only: it can carry neither thoughts nor calls.
    """

    path: str
    body: Callable[[str, bool, int | None], dict[str, Any]]
    stream: Callable[[bytes], Said]
    whole: Callable[[Mapping[str, Any]], Said]
    has_text_only: bool = False


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _with(body: dict[str, Any], stream: bool, **limit: int | None) -> dict[str, Any]:
    set_limit = {name: value for name, value in limit.items() if value is not None}
    return {"model": "m1", **body, **set_limit, **({"stream": True} if stream else {})}


# OpenAI Chat Completions


def _chat_body(words: str, stream: bool, limit: int | None) -> dict[str, Any]:
    return _with({"messages": [{"role": "user", "content": words}]}, stream, max_tokens=limit)


def _chat_stream(data: bytes) -> Said:
    got = chat_automaton.check(data)
    calls = tuple((_bare(item["id"]), item["name"], item["arguments"]) for item in got.calls)
    error = got.error["message"] if got.error else None
    return Said(text=got.text, reasoning=got.reasoning, calls=calls, finish=got.finish, error=error)


def _chat_whole(answer: Mapping[str, Any]) -> Said:
    (choice,) = answer["choices"]
    message = choice["message"]
    calls = [(_bare(item["id"]), *item["function"].values()) for item in message.get("tool_calls", ())]
    return Said(
        text=message["content"] or "",
        reasoning=message.get("reasoning_content", ""),
        calls=tuple(calls),
        finish=choice["finish_reason"],
    )


def _bare(identity: str) -> str:
    return identity.partition("_")[2]


# OpenAI Completions


def _text_body(words: str, stream: bool, limit: int | None) -> dict[str, Any]:
    return _with({"prompt": words}, stream, max_tokens=limit)


def _text_stream(data: bytes) -> Said:
    got = completions_automaton.check(data)
    return Said(text=got.text, finish=got.finish, error=got.error["message"] if got.error else None)


def _text_whole(answer: Mapping[str, Any]) -> Said:
    (choice,) = answer["choices"]
    return Said(text=choice["text"], finish=choice["finish_reason"])


# Anthropic Messages


def _messages_body(words: str, stream: bool, limit: int | None) -> dict[str, Any]:
    return _with({"messages": [{"role": "user", "content": words}]}, stream, max_tokens=1 if limit is None else limit)


def _messages_stream(data: bytes) -> Said:
    import messages_automaton

    got = messages_automaton.check(data)
    fragment = {"input": got.cut} if got.cut is not None else {}
    blocks = [*got.content[:-1], {**got.content[-1], **fragment}] if got.content else []
    said = _blocks(blocks)
    return replace(said, finish=got.stop_reason, error=got.error["message"] if got.error else None)


def _messages_whole(answer: Mapping[str, Any]) -> Said:
    return replace(_blocks(answer["content"]), finish=answer["stop_reason"])


def _blocks(blocks: list[dict[str, Any]]) -> Said:
    calls = [block for block in blocks if block["type"] == "tool_use"]
    return Said(
        text="".join(block["text"] for block in blocks if block["type"] == "text"),
        reasoning="".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        calls=tuple((_bare(block["id"]), block["name"], _arguments(block["input"])) for block in calls),
    )


def _arguments(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# OpenAI Responses


def _responses_body(words: str, stream: bool, limit: int | None) -> dict[str, Any]:
    return _with({"input": words}, stream, max_output_tokens=limit)


def _responses_stream(data: bytes) -> Said:
    import responses_automaton

    got = responses_automaton.check(data)
    if got.error is not None:
        return replace(_items(got.items), error=got.final["error"]["message"])
    return replace(_items(got.items), finish=_status(got.final))


def _responses_whole(answer: Mapping[str, Any]) -> Said:
    return replace(_items(answer["output"]), finish=_status(answer))


def _status(answer: Mapping[str, Any]) -> str:
    details = answer.get("incomplete_details") or {}
    return f"{answer['status']} {details.get('reason', '')}".strip()


def _items(items: list[dict[str, Any]]) -> Said:
    def text(kind: str) -> str:
        found = [item for item in items if item["type"] == kind]
        return "".join(part["text"] for item in found for part in item.get("content") or ())

    calls = [item for item in items if item["type"] == "function_call"]
    return Said(
        text=text("message"),
        reasoning=text("reasoning"),
        calls=tuple((_bare(item["call_id"]), item["name"], item["arguments"]) for item in calls),
    )


WIRES: Mapping[str, Wire] = {
    "chat": Wire(path="/v1/chat/completions", body=_chat_body, stream=_chat_stream, whole=_chat_whole),
    "completions": Wire(
        path="/v1/completions", body=_text_body, stream=_text_stream, whole=_text_whole, has_text_only=True
    ),
    "messages": Wire(path="/v1/messages", body=_messages_body, stream=_messages_stream, whole=_messages_whole),
    "responses": Wire(path="/v1/responses", body=_responses_body, stream=_responses_stream, whole=_responses_whole),
}
