"""The grammar of a Responses stream as a checker of client bytes: what the SDK's helpers do not notice."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

TERMINALS = {"response.completed": "completed", "response.incomplete": "incomplete", "response.failed": "failed"}
# For each kind of item: the stem of its deltas, the member that its done event holds, whether it has content parts.
KINDS = {
    "message": ("response.output_text", "text", True),
    "reasoning": ("response.reasoning_text", "text", True),
    "function_call": ("response.function_call_arguments", "arguments", False),
    "custom_tool_call": ("response.custom_tool_call_input", "input", False),
}
PREFIXES = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_", "custom_tool_call": "ctc_"}


class StreamFault(Exception):
    """The stream breaks its grammar."""


@dataclass
class ResponsesStream:
    """What a valid stream said."""

    events: list[dict[str, Any]] = field(default_factory=list)
    items: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] | None = None
    final: dict[str, Any] = field(default_factory=dict)
    heartbeats: int = 0

    @property
    def status(self) -> str:
        return str(self.final["status"])

    def text(self, kind: str = "message") -> str:
        return "".join(part["text"] for item in self.of(kind) for part in item["content"])

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [item for item in self.items if item["type"] == kind]

    def names(self) -> list[str]:
        return [event["type"] for event in self.events]


def need(holds: object, why: str) -> None:
    if not holds:
        raise StreamFault(why)


def frames(data: bytes) -> list[dict[str, Any]]:
    """Return the events of whole frames, each with `event:` and one `data:` line; the last is `[DONE]`."""
    text = data.decode("utf-8")
    need("\r" not in text, "CR in a frame")
    need(text.endswith("\n\n"), "the last frame is not closed")
    pieces = text.split("\n\n")[:-1]
    need(pieces[-1] == "data: [DONE]", "the stream ends without [DONE]")
    return [_event(piece) for piece in pieces[:-1]]


def _event(piece: str) -> dict[str, Any]:
    lines = piece.split("\n")
    need(len(lines) == 2 and lines[0].startswith("event: ") and lines[1].startswith("data: "), f"no frame: {piece!r}")
    event = json.loads(lines[1][6:])
    need(type(event) is dict and event.get("type") == lines[0][7:], "the event line and the type differ")
    return dict(event)


def check(data: bytes, *, is_partial: bool = False) -> ResponsesStream:
    """Read a whole stream, or one that may end before its terminal event.

    Raises:
        StreamFault: at the first place that breaks the grammar.
    """
    automaton = _Automaton()
    for event in frames(data):
        automaton.feed(event)
    need(automaton.is_ended or is_partial, "no terminal event")
    return automaton.stream


class _Automaton:
    def __init__(self) -> None:
        self.stream = ResponsesStream()
        self.is_ended = False
        self._head: dict[str, Any] | None = None
        self._item: dict[str, Any] | None = None
        self._text: list[str] = []
        self._logprobs: list[Any] = []
        # Within an item: "new", "part" (content part open), "said" (text done), "closed" (part done).
        self._phase = ""

    def feed(self, event: dict[str, Any]) -> None:
        need(not self.is_ended, f"{event['type']} after the end")
        need(event.get("sequence_number") == len(self.stream.events), "sequence_number is not contiguous from 0")
        self.stream.events.append(event)
        name = event["type"]
        if "response" in event:
            self._lifecycle(name, event["response"])
        elif name == "error":
            self._error(event)
        else:
            need(self._head is not None and len(self.stream.events) > 2, f"{name} before the response is in progress")
            need(self.stream.error is None, f"{name} between error and response.failed")
            self._output(name, event)

    def _lifecycle(self, name: str, response: dict[str, Any]) -> None:
        count = len(self.stream.events)
        need((name == "response.created") == (count == 1), "response.created stands first and nowhere else")
        need(count != 2 or name == "response.in_progress", "response.in_progress stands second")
        head = {key: response[key] for key in ("id", "object", "created_at", "model")}
        need(self._head in (None, head), "id, object, created_at or model changed")
        self._head = head
        if name in TERMINALS:
            self._terminal(name, response)
            return
        need(name in ("response.created", "response.in_progress"), f"unknown event {name}")
        need(self.stream.error is None, f"{name} between error and response.failed")
        need(response["status"] == "in_progress", "status of a running response")
        need(response["output"] == [] and response["usage"] is None, "output or usage of a running response")
        need(response["completed_at"] is None and response["error"] is None, "a running response has no end")
        self.stream.heartbeats += count > 2

    def _terminal(self, name: str, response: dict[str, Any]) -> None:
        need(response["status"] == TERMINALS[name], "status of the terminal event")
        need(response["output"] == self.stream.items, "the terminal output is not what was streamed")
        failed = name == "response.failed"
        need((self.stream.error is not None) == failed, "error and response.failed go together")
        need((response["error"] is not None) == failed, "error of the response")
        need((response["usage"] is None) == failed, "usage of the response")
        need(failed or self._item is None, "an item is open at the end")
        need((response["incomplete_details"] is not None) == (name == "response.incomplete"), "incomplete_details")
        need((response["completed_at"] is not None) == (name == "response.completed"), "completed_at")
        if name == "response.completed":
            need(all(item["status"] == "completed" for item in self.stream.items), "an item that is not complete")
        self.stream.final, self.is_ended = response, True

    def _error(self, event: dict[str, Any]) -> None:
        need(len(self.stream.events) > 2 and self.stream.error is None, "an error out of place")
        need({"code", "message", "param", "error"} <= set(event), "members of the error, flat and nested")
        need(set(event["error"]) == {"type", "code", "message", "param"}, "members of the nested error")
        need(all(event[key] == event["error"][key] for key in ("code", "message", "param")), "two different errors")
        self.stream.error = event["error"]

    def _output(self, name: str, event: dict[str, Any]) -> None:
        if name == "response.output_item.added":
            self._added(event)
            return
        need(self._item is not None, f"{name} without an open item")
        assert self._item is not None
        need(event["output_index"] == len(self.stream.items), "output_index")
        if name == "response.output_item.done":
            self._item_done(event["item"])
            return
        need(event["item_id"] == self._item["id"], "item_id is not the open item's")
        stem, final, has_parts = KINDS[self._item["type"]]
        need(not has_parts or event["content_index"] == 0, "content_index")
        if name == "response.content_part.added":
            need(has_parts and self._phase == "new", "a content part out of place")
            need(event["part"]["text"] == "", "a content part that begins with text")
            self._phase = "part"
        elif name == f"{stem}.delta":
            need(self._phase == ("part" if has_parts else "new"), "a delta out of place")
            self._text.append(event["delta"])
            self._logprobs += event.get("logprobs", [])
            need(("logprobs" in event) == (self._item["type"] == "message"), "logprobs of a delta")
        elif name == f"{stem}.done":
            need(self._phase == ("part" if has_parts else "new"), "a done out of place")
            need(event[final] == "".join(self._text), "done is not the sum of the deltas")
            need(event.get("logprobs", []) == self._logprobs, "logprobs are not the sum of the deltas'")
            self._phase = "said"
        elif name == "response.content_part.done":
            need(has_parts and self._phase == "said", "a content part ends out of place")
            self._need_part(event["part"])
            self._phase = "closed"
        else:
            raise StreamFault(f"{name} in an item of type {self._item['type']}")

    def _added(self, event: dict[str, Any]) -> None:
        need(self._item is None, "an item opens while another is open")
        item = event["item"]
        need(event["output_index"] == len(self.stream.items), "output_index")
        need(item["type"] in KINDS and item["id"].startswith(PREFIXES[item["type"]]), "type and id of an item")
        need(item["status"] == "in_progress", "status of an item that opens")
        need(item["id"] not in {known["id"] for known in self.stream.items}, "an id that was used before")
        _, final, has_parts = KINDS[item["type"]]
        need(item["content"] == [] if has_parts else item[final] == "", "an item that opens with a text")
        if not has_parts:
            used = {known.get("call_id") for known in self.stream.items}
            need(item["call_id"].startswith("call_") and item["call_id"] not in used and item["name"], "head of a call")
        self._item, self._text, self._logprobs, self._phase = item, [], [], "new"

    def _item_done(self, item: dict[str, Any]) -> None:
        assert self._item is not None
        _, final, has_parts = KINDS[self._item["type"]]
        need(self._phase == ("closed" if has_parts else "said"), "an item ends before its parts")
        changing = {"status", "content", final}
        fixed = {key: value for key, value in self._item.items() if key not in changing}
        need(fixed == {key: value for key, value in item.items() if key not in changing}, "an item changed")
        need(item["status"] in ("completed", "incomplete"), "status of an item that is done")
        if has_parts:
            need(len(item["content"]) == 1, "parts of an item")
            self._need_part(item["content"][0])
        else:
            need(item[final] == "".join(self._text), "the item's text is not the sum of the deltas")
        self.stream.items.append(item)
        self._item = None

    def _need_part(self, part: dict[str, Any]) -> None:
        assert self._item is not None
        kind = "output_text" if self._item["type"] == "message" else "reasoning_text"
        need(part["type"] == kind and part["text"] == "".join(self._text), "a part is not the sum of the deltas")
        need(part.get("logprobs", []) == self._logprobs, "logprobs of a part")
