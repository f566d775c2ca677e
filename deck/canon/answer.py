"""A whole answer, folded from events for clients that do not stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

from deck import json
from deck.canon.events import Event, Failed, Finish, FinishReason, PartDelta, PartEnd, PartStart, Progress, Start
from deck.canon.request import Reasoning, Text, ToolCall
from deck.canon.value import value

AnswerPart = Text | Reasoning | ToolCall


@value(frozen=True, slots=True)
class Answer:
    """What the model produced, in order, and how it ended.

    `logprobs` are those of the whole answer, `part_logprobs` the same for each of `parts`. `cut_calls` are the names of
    calls that the token limit cut and that came back as text.
    """

    parts: tuple[AnswerPart, ...]
    finish: Finish
    logprobs: tuple[Mapping[str, Any], ...] = ()
    fingerprint: str | None = None
    cut_calls: tuple[str, ...] = ()
    part_logprobs: tuple[tuple[Mapping[str, Any], ...], ...] = ()


@dataclass(slots=True)
class _Open:
    start: PartStart
    text: list[str]
    first_logprob: int


class Fold:
    """Collect events into an `Answer`; raise what `Failed` carries."""

    def __init__(self) -> None:
        self._parts: list[AnswerPart] = []
        self._logprobs_of: list[tuple[Mapping[str, Any], ...]] = []
        self._open: _Open | None = None
        self._logprobs: list[Mapping[str, Any]] = []
        self._fingerprint: str | None = None
        self._finish: Finish | None = None

    def feed(self, event: Event) -> None:
        """Take the next event.

        Raises:
            DeckError: the stream failed.
        """
        self.take((event,))

    def take(self, events: Iterable[Event]) -> None:
        """Take the next events.

        Raises:
            DeckError: the stream failed.
        """
        for event in events:
            if isinstance(event, PartDelta):
                assert self._open is not None
                self._open.text.append(event.text)
                if event.logprobs:
                    self._logprobs.extend(event.logprobs)
            elif isinstance(event, PartStart):
                self._open = _Open(event, [], len(self._logprobs))
            elif isinstance(event, PartEnd):
                self._close()
            elif isinstance(event, Finish):
                self._finish = event
            elif isinstance(event, Start):
                self._fingerprint = event.fingerprint
            elif isinstance(event, Failed):
                raise event.error
            elif not isinstance(event, Progress):
                assert_never(event)

    def _close(self) -> None:
        assert self._open is not None
        text, start = "".join(self._open.text), self._open.start
        logprobs = tuple(self._logprobs[self._open.first_logprob :])
        self._open = None
        if start.kind == "tool_call":
            self._parts.append(ToolCall(start.tool_id, start.tool_name, text))
        elif start.kind == "text" and (text or logprobs):
            self._parts.append(Text(text))
        elif text:
            self._parts.append(Reasoning(text))
        else:
            return
        self._logprobs_of.append(logprobs)

    @property
    def finish(self) -> Finish | None:
        """The end, once it was seen."""
        return self._finish

    def answer(self) -> Answer:
        """Return the whole; only after `Finish`."""
        assert self._finish is not None
        parts: list[AnswerPart] = []
        cut: list[str] = []
        for part in self._parts:
            if not isinstance(part, ToolCall) or is_json_object(part.arguments):
                parts.append(part)
            elif self._finish.reason in (FinishReason.LENGTH, FinishReason.CONTEXT):
                # An honest finish: the fragment is text of the assistant, never an invented object.
                cut.append(part.name)
                parts.append(Text(f"{part.name}({part.arguments}"))
            else:
                parts.append(replace(part, arguments=part.arguments or "{}"))
        return Answer(
            tuple(parts),
            self._finish,
            tuple(self._logprobs),
            self._fingerprint,
            tuple(cut),
            tuple(self._logprobs_of),
        )


def is_json_object(text: str) -> bool:
    """Tell whether `text` is one complete JSON object."""
    try:
        return type(json.loads(text)) is dict
    except ValueError:
        return False
