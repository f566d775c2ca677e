"""The decorator of values: dataclasses that the type checker holds to be frozen, and the interpreter does not.

A frozen dataclass costs four times as much to make as one that is not; a dozen are made for each request, several for
each token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

__all__ = ["value"]  # a type checker must see the very decorator that it knows, and that it is meant to be found here

_Class = TypeVar("_Class")

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:
    from dataclasses import dataclass

    def value(*, frozen: bool, slots: bool, kw_only: bool = False) -> Callable[[type[_Class]], type[_Class]]:
        """Return a decorator like `dataclass`, whose instances are compared and hashed by what they hold."""
        assert frozen, "a value never changes"
        return dataclass(slots=slots, kw_only=kw_only, unsafe_hash=True)
