"""The canonical answer stream: a step at a time, in a grammar that every projector can rely on.

`Start (PartStart PartDelta* PartEnd)* Finish`; one part open at a time; `Failed` may end it anywhere;
`Progress` may stand anywhere and may be dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal

from deck.canon.value import value
from deck.errors import DeckError

PartKind = Literal["text", "reasoning", "tool_call"]


class FinishReason(Enum):
    """Why an answer ended; `LENGTH` is the client's own limit, `CONTEXT` the model's."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTEXT = "context"


@value(frozen=True, slots=True)
class Usage:
    """Token counts; `prompt` includes `cached`; None = not known."""

    prompt: int
    completion: int
    cached: int | None = None
    reasoning: int | None = None


@value(frozen=True, slots=True)
class Start:
    """The upstream has begun to answer."""

    model: str = ""
    fingerprint: str | None = None


@value(frozen=True, slots=True)
class PartStart:
    """A part opens; `index` counts from 0 over all parts; tool members are set for a call only."""

    index: int
    kind: PartKind
    tool_id: str = ""
    tool_name: str = ""


@value(frozen=True, slots=True)
class PartDelta:
    """More of the open part; `logprobs` are llama-server's entries for the tokens in it."""

    index: int
    text: str
    logprobs: tuple[Mapping[str, Any], ...] = ()
    timings: Mapping[str, Any] | None = None


@value(frozen=True, slots=True)
class PartEnd:
    """The open part is complete."""

    index: int


@value(frozen=True, slots=True)
class Progress:
    """Something moves: a model loads, the request waits, the prompt is processed (`detail` as llama-server has it)."""

    stage: Literal["load", "queue", "prompt"]
    detail: Mapping[str, Any] | None = None


@value(frozen=True, slots=True)
class Finish:
    """The orderly end."""

    reason: FinishReason
    usage: Usage
    stop_sequence: str | None = None
    timings: Mapping[str, Any] | None = None


@value(frozen=True, slots=True)
class Failed:
    """The end that is not orderly; whatever part was open stays open."""

    error: DeckError


Event = Start | PartStart | PartDelta | PartEnd | Progress | Finish | Failed
