"""Whatever JSON a client sends is accepted or refused with a reason; whatever a model says is a valid stream."""

from __future__ import annotations

from functools import partial
from typing import Any

from fuzz_support import accepted_or_refused, values
from hypothesis import given, settings
from hypothesis import strategies as st
from responses_support import CUSTOM, NOTES, TOOL, body, buffered, items, refusal, stream, upstream

from deck.api import Event, Finish, FinishReason, PartDelta, PartEnd, PartStart, Start, Usage
from deck_plugins.surfaces.openai_responses.fields import FIELDS
from deck_plugins.surfaces.openai_responses.item_fields import ITEMS
from deck_plugins.surfaces.openai_responses.tables import TABLES
from deck_plugins.surfaces.openai_responses.tool_fields import TOOLS

SPELLINGS = sorted(
    {name for table in TABLES.values() for field in table for name in (field.name, *field.aliases)}
    - {row.name for table in (ITEMS, TOOLS) for row in table}
)
KINDS = sorted({row.name for table in (ITEMS, TOOLS) for row in table} | {"input_text", "output_text", "input_image"})
VALUES = values(
    SPELLINGS, [*KINDS, "user", "assistant", "system", "auto", "required", "function", "functions", "grammar"]
)
OBJECTS = st.dictionaries(st.sampled_from(SPELLINGS), VALUES, max_size=5)


outcome = partial(accepted_or_refused, upstream)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(row.name for row in FIELDS)), VALUES, st.booleans())
def test_any_value_of_any_field(name: str, value: Any, lenient: bool) -> None:
    outcome(body(**{name: value}), lenient=lenient)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), OBJECTS) | VALUES, max_size=4))
def test_any_items(found: list[Any]) -> None:
    outcome(items(*({**item[1], "type": item[0]} if isinstance(item, tuple) else item for item in found)))


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), OBJECTS), max_size=3) | VALUES, VALUES)
def test_any_tools_and_choice(tools: Any, choice: Any) -> None:
    if isinstance(tools, list):
        tools = [{**tool[1], "type": tool[0]} if isinstance(tool, tuple) else tool for tool in tools]
    outcome(body(tools=tools, tool_choice=choice))


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=1, max_size=20).filter(lambda name: FIELDS.find(name) is None))
def test_any_unknown_name_is_refused(name: str) -> None:
    if name != "extra_body":
        assert refusal(body(**{name: 1})).code == "unknown_parameter"


PART = st.tuples(
    st.sampled_from(["text", "reasoning", "read_note", "apply_patch", "notes__read_note"]),
    st.lists(st.text(alphabet='{}":a\\nu0d83🌍 input', max_size=6), max_size=4),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PART, max_size=5), st.sampled_from(list(FinishReason)), st.booleans())
def test_any_answer_is_valid_and_the_same_streamed_and_buffered(
    parts: list[tuple[str, list[str]]], reason: FinishReason, hidden: bool
) -> None:
    events: list[Event] = [Start()]
    for index, (kind, pieces) in enumerate(parts):
        if kind in ("text", "reasoning"):
            events.append(PartStart(index, kind))  # type: ignore[arg-type]  # the two kinds without a name
        else:
            # As the decoder does: a call without arguments gets an empty object.
            pieces = pieces if "".join(pieces).strip() else ["{}"]
            events.append(PartStart(index, "tool_call", f"abcdefgh{index}", kind))
        events += [*(PartDelta(index, piece) for piece in pieces), PartEnd(index)]
    events.append(Finish(reason, Usage(1, 1)))
    fields = {"tools": [TOOL, CUSTOM, NOTES], "reasoning": {"exclude": hidden}}
    found, whole = stream(events, **fields), buffered(events, **fields)
    if whole["status"] == "completed":
        assert found.final == whole
    assert found.final["usage"] == whole["usage"]
