"""Answers of Responses as JSON: the `response` object and its items, which the stream shows one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deck.api import (
    Answer,
    DeckError,
    ErrorKind,
    FinishReason,
    Parsed,
    PartStart,
    Reasoning,
    ReplyHead,
    ToolCall,
    Usage,
    is_json_object,
)
from deck_plugins.openai_wire import entry

from .argument import StringArgument
from .names import Named
from .parse import Reply
from .tools import ARGUMENT

# What llama.cpp does where nobody said anything (common.h), for as long as no server has told its own.
_SAMPLING: Mapping[str, float] = {"temperature": 0.8, "top_p": 0.95, "presence_penalty": 0, "frequency_penalty": 0}
CUT = frozenset({FinishReason.LENGTH, FinishReason.CONTEXT})
# The wire's codes of a failed response are a closed set. `context_length_exceeded` is no member of it, but agents
# compact their history when they read it (openai/codex, codex-rs/codex-api/src/sse/responses.rs).
_CODES = {
    ErrorKind.INVALID_REQUEST: "invalid_prompt",
    ErrorKind.CONTEXT_LENGTH: "context_length_exceeded",
    ErrorKind.TOO_LARGE: "invalid_prompt",
    ErrorKind.UNSUPPORTED_MEDIA: "invalid_prompt",
    ErrorKind.RATE_LIMIT: "rate_limit_exceeded",
}
_PREFIXES = {"message": "msg", "reasoning": "rs", "function": "fc", "custom": "ctc"}


@dataclass(frozen=True, slots=True)
class Item:
    """One item of the output: what it is from its beginning to its end.

    Args:
        kind: `message`, `reasoning`, `function` or `custom`.
        id: its own; a call's ends in the nine alphanumerics of `call_id`.
        call_id: of a call.
        named: how the client knows the called tool.
    """

    kind: str
    id: str
    call_id: str = ""
    named: Named | None = None

    @property
    def argument(self) -> StringArgument | None:
        """What decodes the input of a custom call."""
        return StringArgument(ARGUMENT) if self.kind == "custom" else None

    def shown(self, text: str, status: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """Return the item with its text; what is in progress has no parts yet."""
        if self.kind == "message":
            content = [output_text(text, logprobs)] if status != "in_progress" else []
            return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}
        if self.kind == "reasoning":
            content = [{"type": "reasoning_text", "text": text}] if status != "in_progress" else []
            return {"id": self.id, "type": "reasoning", "summary": [], "content": content, "status": status}
        assert self.named is not None
        body: dict[str, Any] = {"id": self.id, "call_id": self.call_id, "name": self.named.name}
        if self.named.namespace is not None:
            body["namespace"] = self.named.namespace
        if self.kind == "custom":
            return {"type": "custom_tool_call", **body, "input": text, "status": status}
        return {"type": "function_call", **body, "arguments": text, "status": status}


def output_text(text: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return a part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def item_of(start: PartStart, index: int, reply: Reply, head: ReplyHead) -> Item:
    """Return the item number `index` of the output, which a part begins."""
    if start.kind == "tool_call":
        named = reply.named.get(start.tool_name) or Named("function", start.tool_name)
        return Item(named.kind, f"{_PREFIXES[named.kind]}_{start.tool_id}", f"call_{start.tool_id}", named)
    kind = "message" if start.kind == "text" else "reasoning"
    return Item(kind, f"{_PREFIXES[kind]}_{head.seed[:28]}{index:04d}")


def status_of(item: Item, raw: str, reason: FinishReason | None) -> str:
    """Return how an item of the model's own text `raw` ended; `reason` ended the answer with it, None = others follow.

    A call whose arguments are whole is complete, even if the limit came right after them.
    """
    is_cut = reason in CUT and not (item.named is not None and is_json_object(raw))
    return "incomplete" if is_cut else "completed"


def logprobs_of(entries: Sequence[Mapping[str, Any]], top: int | None) -> list[dict[str, Any]]:
    """Return token entries in the wire's shape, in which the bytes always stand."""
    if top is None:
        return []
    return [_with_bytes(entry(item, top)) for item in entries]


def _with_bytes(found: dict[str, Any]) -> dict[str, Any]:
    for item in (found, *found["top_logprobs"]):
        if item["bytes"] is None:
            item["bytes"] = list(item["token"].encode())
    return found


def render(answer: Answer, parsed: Parsed, head: ReplyHead) -> dict[str, Any]:
    """Return the buffered `response` object."""
    reply: Reply = parsed.reply
    output: list[dict[str, Any]] = []
    last = len(answer.parts) - 1
    for place, part in enumerate(answer.parts):
        if isinstance(part, Reasoning) and reply.hide_reasoning:
            continue
        if isinstance(part, ToolCall):
            start, text = PartStart(place, "tool_call", part.id, part.name), part.arguments
        else:
            start, text = PartStart(place, "reasoning" if isinstance(part, Reasoning) else "text"), part.text
        item = item_of(start, len(output), reply, head)
        status = status_of(item, text, answer.finish.reason if place == last else None)
        if (argument := item.argument) is not None:
            text = argument.feed(text) + argument.end()
        entries = answer.part_logprobs[place] if place < len(answer.part_logprobs) else ()
        output.append(item.shown(text, status, logprobs_of(entries, reply.top_logprobs)))
    extra = {"timings": answer.finish.timings} if reply.timings and answer.finish.timings else {}
    return finished(reply, head, answer.finish.reason, output, answer.finish.usage) | extra


def finished(
    reply: Reply, head: ReplyHead, reason: FinishReason, output: list[dict[str, Any]], usage: Usage
) -> dict[str, Any]:
    """Return the object of an answer that ended in order."""
    if reason in CUT:
        details = {"reason": "max_output_tokens"}
        return response(reply, head, "incomplete", output=output, usage=usage_of(usage), incomplete_details=details)
    now = int(head.clock()) if head.clock is not None else head.created
    return response(reply, head, "completed", output=output, usage=usage_of(usage), completed_at=now)


def response(reply: Reply, head: ReplyHead, status: str, /, **members: Any) -> dict[str, Any]:
    """Return a `response` object in some state; `members` replace what they name.

    It has every member that the OpenAI SDK's strict types and the Open Responses schema ask for. Sampling is what is in
    effect, not what was sent.
    """
    sampling = {**_SAMPLING, **head.sampling()}
    limit = sampling.get("max_tokens")
    settings = {name: value for name, value in reply.settings.items() if name != "user" or value is not None}
    return {
        "id": response_id(head),
        "object": "response",
        "created_at": head.created,
        "completed_at": None,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "max_output_tokens": limit if isinstance(limit, int) and limit >= 0 else None,
        "model": head.model,
        "output": [],
        "previous_response_id": None,
        "service_tier": "default",
        "store": False,
        "truncation": "disabled",
        "usage": None,
        **{name: sampling[name] for name in _SAMPLING},
        **settings,
        **members,
    }


def response_id(head: ReplyHead) -> str:
    """Return the id of the answer: `resp_` and 40 alphanumerics."""
    return f"resp_{head.seed}"


def usage_of(usage: Usage) -> dict[str, Any]:
    """Return the usage object, all of whose members the wire requires; what nobody counted is 0."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached or 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
        "total_tokens": usage.prompt + usage.completion,
    }


def failure(error: DeckError) -> dict[str, str]:
    """Return the `error` of a failed response; agents read from a rate limit's words how long to wait."""
    message = error.message
    if error.kind is ErrorKind.RATE_LIMIT and error.retry_after is not None:
        message = f"{message}. Please try again in {max(1, round(error.retry_after))}s."
    return {"code": _CODES.get(error.kind, "server_error"), "message": message}
