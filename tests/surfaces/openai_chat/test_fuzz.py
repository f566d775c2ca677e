"""Whatever JSON a client sends, it is accepted or refused with a reason; nothing else ever happens."""

from __future__ import annotations

from functools import partial
from typing import Any

from chat_support import body, refusal, upstream
from fuzz_support import accepted_or_refused, values
from hypothesis import given, settings
from hypothesis import strategies as st

from deck_plugins.surfaces.openai_chat.fields import FIELDS, MESSAGE, TOOL

SPELLINGS = sorted(
    {name for table in (FIELDS, MESSAGE, TOOL) for field in table for name in (field.name, *field.aliases)}
    | {
        "type",
        "text",
        "image_url",
        "url",
        "input_audio",
        "function",
        "arguments",
        "json_schema",
        "schema",
        "budget_tokens",
    }
)
VALUES = values(SPELLINGS, ["user", "assistant", "tool", "system", "text", "image_url", "auto", "required", "function"])


outcome = partial(accepted_or_refused, upstream)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(SPELLINGS), VALUES, st.booleans())
def test_any_value_of_any_field(name: str, value: Any, lenient: bool) -> None:
    outcome(body(**{name: value}), lenient=lenient)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(SPELLINGS), VALUES, max_size=5) | VALUES, max_size=4))
def test_any_messages(messages: list[Any]) -> None:
    outcome(body(messages=messages))


@settings(max_examples=300, deadline=None)
@given(VALUES, VALUES)
def test_any_tools_and_choice(tools: Any, choice: Any) -> None:
    outcome(body(tools=tools, tool_choice=choice))


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=1, max_size=20).filter(lambda name: FIELDS.find(name) is None and name != "extra_body"))
def test_any_unknown_name_is_refused(name: str) -> None:
    assert refusal(body(**{name: 1})).code == "unknown_parameter"
