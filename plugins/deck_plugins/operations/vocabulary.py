"""Ids of a model's tokens in requests: what is one, and whether the model has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deck.api import Facts, invalid, wrong_type

_SHOWN = 1 << 31


def is_ids(item: Any) -> bool:
    """Say whether a value is a row of token ids, of one at least."""
    return isinstance(item, list) and bool(item) and all(type(each) is int for each in item)


def read_ids(item: Any, path: str, expected: str) -> None:
    """Refuse what is no row of token ids, by the first that is none.

    Raises:
        DeckError: it is something else.
    """
    if not isinstance(item, list):
        raise wrong_type(path, expected, item)
    for position, each in enumerate(item):
        if type(each) is not int:
            raise wrong_type(f"{path}[{position}]", "a token id", each)


def check_ids(item: Any, path: str, facts: Facts) -> None:
    """Refuse ids that the model does not have, wherever they lie in `item`: llama-server fails on them, or lies.

    Raises:
        DeckError: an id is none of the running model's.
    """
    known = facts.metadata.get("n_vocab")
    last = known if isinstance(known, int) else _SHOWN
    for where, each in _numbers(item, path):
        if not 0 <= each < last:
            raise invalid(f"{where}: this model has no token {each}; its ids are 0 to {last - 1}", where)


def _numbers(item: Any, path: str) -> Iterator[tuple[str, int]]:
    if type(item) is int:
        yield path, item
    elif isinstance(item, list):
        for position, each in enumerate(item):
            yield from _numbers(each, f"{path}[{position}]")
