"""Token counts that llama-server does not give: of an answer's thoughts, and of a prompt before its model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from deck import json
from deck.canon.events import Event, Finish, PartDelta, PartStart
from deck.contracts import Server
from deck.errors import DeckError
from deck.normalize.report import Report
from deck.upstream.client import UpstreamClient

_MEDIUM = 1024


class ThoughtCounter:
    """Counts the tokens of what was thought, where llama-server does not, just before the end of the answer."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._is_open = False

    async def count(self, events: list[Event], client: UpstreamClient, server: Server, report: Report) -> list[Event]:
        """Return the events, the counted tokens in their `Finish`."""
        for place, event in enumerate(events):
            if isinstance(event, PartStart):
                self._is_open = event.kind == "reasoning"
            elif isinstance(event, PartDelta) and self._is_open:
                self._text.append(event.text)
            elif isinstance(event, Finish) and event.usage.reasoning is None:
                usage = replace(event.usage, reasoning=await self._tokens(client, server, report))
                return [*events[:place], replace(event, usage=usage), *events[place + 1 :]]
        return events

    async def _tokens(self, client: UpstreamClient, server: Server, report: Report) -> int | None:
        if not self._text:
            return 0
        try:
            return await client.count_text(server, "".join(self._text))
        except DeckError as error:
            report.ignored("usage.reasoning_tokens", f"not counted: {error.message}", field="other")
            return None


def estimate(body: Mapping[str, Any]) -> int:
    """Return roughly how many tokens a body's prompt takes: a token for each four bytes of what the model reads.

    A prompt of token ids is counted; a picture or a sound counts as `_MEDIUM` tokens, whatever its bytes.
    """
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return len(prompt)
    read = [body[name] for name in ("messages", "tools", "prompt") if name in body]
    media = [part for message in body.get("messages", ()) for part in _media(message)]
    size = sum(len(json.dumps(item)) for item in read) - sum(len(json.dumps(part)) for part in media)
    return 1 + size // 4 + _MEDIUM * len(media)


def _media(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    parts = content if isinstance(content, list) else ()
    return [part for part in parts if part.get("type") in ("image_url", "input_audio")]
