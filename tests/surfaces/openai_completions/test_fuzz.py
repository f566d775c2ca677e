"""Whatever JSON a client sends, it is accepted or refused with a reason; nothing else ever happens."""

from __future__ import annotations

import contextlib
from typing import Any

from completions_support import body, refusal, upstream
from fuzz_support import accepted_or_refused, values
from hypothesis import given, settings
from hypothesis import strategies as st

from deck.api import DeckError
from deck_plugins.surfaces.openai_completions.fields import FIELDS

SPELLINGS = sorted({name for field in FIELDS for name in (field.name, *field.aliases)} | {"include_usage", "type"})
VALUES = values(SPELLINGS, ["[]", '["\\n"]', '["a", 1]', "{", "none", "auto"])


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(SPELLINGS), VALUES, max_size=4), st.booleans())
def test_any_values_of_any_fields(fields: dict[str, Any], lenient: bool) -> None:
    accepted_or_refused(upstream, {**body(), **fields}, lenient=lenient)


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_any_prompt(prompt: Any) -> None:
    with contextlib.suppress(DeckError):
        sent = upstream(body(prompt=prompt))[0]["prompt"]
        assert isinstance(sent, str) or all(type(token) is int and token >= 0 for token in sent)


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=1, max_size=20).filter(lambda name: FIELDS.find(name) is None and name != "extra_body"))
def test_any_unknown_name_is_refused(name: str) -> None:
    assert refusal(body(**{name: 1})).code == "unknown_parameter"
