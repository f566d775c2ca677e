"""The model's part in a play with a client: what the fake llama-server says at each turn of a tool loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from deck.testing.fake_llama import Received, Reply
from deck.testing.frames import content, done, finish, reasoning, role, tool, usage

Turn = Callable[[Received], Reply]
_PIECE = 7


def calls(*wanted: tuple[str, Mapping[str, Any]], thought: str = "Let me look.", text: str = "I read it.") -> Turn:
    """Think, speak and call tools, each named by how its name ends among those that were offered."""

    def turn(request: Received) -> Reply:
        offered = [item["function"]["name"] for item in request.json()["tools"]]
        steps = [role(), *(reasoning(piece) for piece in _cut(thought)), content(text)]
        for place, (ending, arguments) in enumerate(wanted):
            (name,) = [name for name in offered if name == ending or name.endswith("__" + ending)]
            # llama-server's ids are 32 alphanumerics.
            steps.append(tool(place, f"{place:032d}", name, ""))
            steps += [tool(place, arguments=piece) for piece in _cut(json.dumps(arguments))]
        return Reply(steps=(*steps, finish("tool_calls"), usage(1200, 30), done()))

    return turn


def says(text: str, prompt: int = 1300) -> Turn:
    """End the loop with an answer; `prompt` is how many tokens the model says that it read."""
    words = [content(piece) for piece in _cut(text)]
    return lambda request: Reply(steps=(role(), *words, finish(), usage(prompt, 9), done()))


def play(*turns: Turn) -> Turn:
    """Choose the turn by how many rounds of tools a conversation has had; requests on the side get a word."""

    def script(request: Received) -> Reply:
        body = request.json()
        if not body.get("tools"):
            return says("A title")(request)
        return turns[min(rounds(body["messages"]), len(turns) - 1)](request)

    return script


def rounds(messages: Iterable[Mapping[str, Any]]) -> int:
    """Return how often the model has called tools."""
    return sum(bool(message.get("tool_calls")) for message in messages)


def results(body: Mapping[str, Any]) -> list[str]:
    """Return the texts of the tools' results in an upstream body."""
    return [text_of(message["content"]) for message in body["messages"] if message["role"] == "tool"]


def text_of(value: str | Sequence[Mapping[str, Any]]) -> str:
    return value if isinstance(value, str) else "".join(part.get("text", "") for part in value)


def _cut(text: str) -> list[str]:
    return [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
