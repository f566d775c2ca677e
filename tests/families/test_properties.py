"""Whatever a model says: text without a call passes unharmed, and how it was cut never matters."""

from __future__ import annotations

import re

import pytest
from families_support import CASES, FAMILIES, LEAKS
from hypothesis import given, settings
from hypothesis import strategies as st

from deck.canon.events import FinishReason, PartDelta
from deck.config import Config
from deck.kit import StandardFamily, Stray
from deck.normalize.report import Report
from deck.plugins import Plugins
from deck.testing.family import ASKED, Leak, WrittenPart, answer_of, check_text, events_of, read_leaks

NAMES = sorted(FAMILIES)
_PIECES = sorted(
    {
        piece
        for _, _, leak in CASES
        for part in leak.parts
        for piece in re.findall(r"<[^<>\n]{1,40}>|\[[A-Z_]+\]|[{}\[\]\"'`:,;=]|\w+|\s+", part.text)
    }
)


def _marks(family: StandardFamily) -> list[str]:
    marks = [mark for syntax in family.syntaxes for mark in (*syntax.openers, *syntax.closers)]
    thoughts = ["<think>", "</think>", "<|", "[THINK]", "[/THINK]", "<channel", "<mm:", "</mm:"]
    return [*marks, *thoughts]


def _answers(name: str, leak: Leak) -> list[object]:
    return [answer_of(FAMILIES[name], leak, size)[0] for size in (1, 2, 3, 5, 16, 1 << 30)]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=200))
def test_ordinary_text_passes_as_it_is(name: str, text: str) -> None:
    family = FAMILIES[name]
    assert isinstance(family, StandardFamily)
    if any(mark in text for mark in _marks(family)) or text.lstrip()[:1] in ("{", "[", "`", "<"):
        return
    check_text(family, text)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(
    pieces=st.lists(st.sampled_from(_PIECES), max_size=30),
    kind=st.sampled_from(["text", "reasoning"]),
    finish=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
)
def test_how_a_text_is_cut_never_matters(name: str, pieces: list[str], kind: str, finish: FinishReason) -> None:
    part = WrittenPart(kind, "".join(pieces))  # type: ignore[arg-type]  # of the two
    leak = Leak(name="any", parts=(part,), finish=finish)
    first, *others = _answers(name, leak)
    assert all(other == first for other in others)


@pytest.mark.parametrize("name", NAMES)
def test_a_beginning_of_a_call_gives_the_same_however_it_is_cut(name: str) -> None:
    """Every leak, broken off at every place: the answer may differ from place to place, never from cut to cut."""
    for file in sorted((LEAKS / name).glob("*.toml")):
        for leak in read_leaks(file)[:6]:
            text = leak.parts[0].text
            for end in range(0, len(text), 3):
                cut = Leak(name=leak.name, parts=(WrittenPart("text", text[:end]),))
                first, *others = [answer_of(FAMILIES[name], cut, size)[0] for size in (1, 7, 1 << 30)]
                assert all(other == first for other in others), text[:end]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_found_never_depends_on_what_follows(name: str) -> None:
    """A syntax that found a call, or that there is none, stays with it however much more of the text comes."""
    family = FAMILIES[name]
    assert isinstance(family, StandardFamily)
    texts = [leak.parts[0].text for file in (LEAKS / name).glob("*.toml") for leak in read_leaks(file)]
    for syntax in family.syntaxes:
        for text in texts:
            for opener in syntax.openers:
                place = text.find(opener)
                if place < 0 or isinstance(syntax, Stray):
                    continue
                rest = text[place:] + " and more"
                verdict: object = True
                for end in range(len(opener), len(rest)):
                    found = syntax.read(rest[:end], is_end=False)
                    assert verdict in (True, found), (syntax, rest[:end])
                    verdict = found


@pytest.mark.parametrize("finish", [FinishReason.STOP, FinishReason.LENGTH])
@pytest.mark.parametrize("form", ["The `%s` opens a call: ", "The %s opens a call: ", "See %s, which opens it. ", "%s"])
@pytest.mark.parametrize("name", NAMES)
def test_who_speaks_of_calls_is_heard(name: str, form: str, finish: FinishReason) -> None:
    """Soon, and to the end, also where a limit cuts the answer; no more than a header's length waits."""
    family = FAMILIES[name]
    assert isinstance(family, StandardFamily)
    marks = [mark for syntax in family.syntaxes if isinstance(syntax, Stray) for mark in syntax.openers]
    openers = {opener for syntax in family.syntaxes if syntax.anywhere for opener in syntax.openers}
    for opener in sorted(openers - set(marks)):
        text = form % opener + "so that a model, it's said, may go on; 2 > 1, and (mostly) does. " * 40
        leak = Leak(name=opener, parts=(WrittenPart("text", text),), finish=finish)
        found, given, sent = family.filter(ASKED, Report(), "seed" * 10), "", 0
        assert found is not None
        for event in events_of(leak, 7):
            given += "".join(made.text for made in found.feed(event) if isinstance(made, PartDelta))
            if isinstance(event, PartDelta):
                sent += len(event.text)
                assert sent - len(given) < 700, (opener, given[-40:])
        wanted = text
        for mark in marks:  # of which no more than the mark may be missing
            wanted, given = wanted.replace(mark, ""), given.replace(mark, "")
        assert given.lstrip() == wanted.lstrip(), opener


def test_the_families_are_all_there() -> None:
    assert {"generic", "qwen", "glm", "deepseek", "gpt_oss", "kimi", "mistral", "llama"} <= set(
        Plugins(Config()).families
    )
