"""Any JSON of an operation's own words, and any form, is refused with a reason or becomes what can be sent."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from fuzz_support import values
from hypothesis import given, settings
from hypothesis import strategies as st

from deck.api import DeckError, Facts, Operation, Report, json
from deck.form import kept, values_of
from deck.multipart import Section
from deck_plugins.operations import OPERATIONS

JSON = [item for item in OPERATIONS if item.form == "json" and item.surface is None]
FORMS = [item for item in OPERATIONS if item.form == "multipart"]
FACTS = [Facts(), Facts(metadata={"n_vocab": 10, "n_embd": 4})]


def names_of(operation: Operation) -> list[str]:
    rows = operation.tables[""]
    return [*(row.name for row in rows), *(alias for row in rows for alias in row.aliases), "text", "id", "unknown"]


@pytest.mark.parametrize("operation", JSON, ids=lambda item: item.name)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_json(operation: Operation, data: st.DataObject) -> None:
    words = ["a", "float", "base64", "mp3", "512x512", "auto", "low", ""]
    names = names_of(operation)
    body: dict[str, Any] = data.draw(st.dictionaries(st.sampled_from(names), values(names, words), max_size=6))
    body |= {name: data.draw(values(names, words)) for name in operation.required}
    report = Report()
    with contextlib.suppress(DeckError):
        asked = operation.parse({"model": "m", **body}, report, lenient=data.draw(st.booleans()))
        for facts in FACTS:
            with contextlib.suppress(DeckError):
                operation.check(asked, facts)
        json.dumps(dict(asked.fields))
        operation.render({"data": [{"embedding": [1.0]}], "results": [{"index": 0}]}, asked)
    report.headers()


@pytest.mark.parametrize("operation", FORMS, ids=lambda item: item.name)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_forms(operation: Operation, data: st.DataObject) -> None:
    name = st.sampled_from(names_of(operation)).flatmap(lambda word: st.sampled_from([word, f"{word}[]", f"{word}[a]"]))
    content = st.sampled_from([b"", b"1", b"0.5", b"true", b"auto", b'{"a": 1}', b"word", b"\xff"])
    part = st.builds(
        lambda name, content, filename: Section(name=name, content=memoryview(content), filename=filename),
        name,
        content,
        st.sampled_from([None, b"a.wav"]),
    )
    sections = data.draw(st.lists(part, max_size=6))
    with contextlib.suppress(DeckError):
        body = values_of(sections, operation.tables[""])
        asked = operation.parse({"model": "m", **body}, Report(), lenient=data.draw(st.booleans()))
        sent = list(kept(sections, asked.fields, "theirs"))
        assert [bytes(item.content) for item in sent if item.name == "model"] == [b"theirs"]
