"""Every recorded upstream stream, through this wire: valid, strictly typed, and the same streamed and buffered."""

from __future__ import annotations

from typing import Any

import pytest
from responses_support import buffered, stream
from tapes.tapefile import Tape, play, tapes

from deck.api import Failed, Finish, FinishReason, PartStart

TAPES = [pytest.param(tape, id=tape.name) for tape in tapes()]
CUT = (FinishReason.LENGTH, FinishReason.CONTEXT)


def tools(tape: Tape, kind: str) -> dict[str, Any]:
    """Offer the tools that the tape's model calls."""
    names = {event.tool_name for event in tape.events if isinstance(event, PartStart) and event.kind == "tool_call"}
    return {"tools": [{"type": kind, "name": name} for name in sorted(names)]}


@pytest.mark.parametrize("kind", ["function", "custom"])
@pytest.mark.parametrize("tape", TAPES)
def test_a_tape_is_a_valid_stream_and_a_valid_object(tape: Tape, kind: str) -> None:
    events = tape.events
    offered = tools(tape, kind)
    found = stream(events, **offered)
    last = events[-1]
    if isinstance(last, Failed):
        assert found.status == "failed"
        return
    assert isinstance(last, Finish)
    whole = buffered(events, **offered)
    assert found.status == whole["status"] == ("incomplete" if last.reason in CUT else "completed")
    assert found.final["usage"] == whole["usage"]
    is_cut = any(item["status"] == "incomplete" and "call_id" in item for item in found.items)
    if not is_cut:
        assert found.final == whole


@pytest.mark.parametrize("tape", TAPES)
def test_slicing_the_upstreams_bytes_changes_no_answer(tape: Tape) -> None:
    offered = tools(tape, "custom")
    whole = stream(play(tape.decoder(), [tape.data]), **offered)
    small = stream(play(tape.decoder(), [tape.data[at : at + 3] for at in range(0, len(tape.data), 3)]), **offered)
    assert small.final == whole.final


def test_the_tapes_have_calls_to_show() -> None:
    assert sum("tool_call" in line for tape in tapes() for line in tape.lines) > 20
