"""What models of each family were seen to write, or may by their templates: calls and thoughts come out of the text."""

from __future__ import annotations

from collections import Counter

import pytest
from families_support import CASES, FAMILIES

from deck.testing.family import Leak, check_leak

_IDS = [f"{family}-{file}-{leak.name}" for family, file, leak in CASES]


@pytest.mark.parametrize(("family", "file", "leak"), CASES, ids=_IDS)
def test_a_leak_is_repaired_however_it_is_cut(family: str, file: str, leak: Leak) -> None:
    check_leak(FAMILIES[family], leak)


def test_every_family_has_leaks() -> None:
    found = Counter(name for name, _, _ in CASES)
    assert set(found) == set(FAMILIES)
    assert min(found.values()) >= 12, found
