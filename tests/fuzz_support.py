"""What the fuzzing tests of all surfaces share: JSON of a wire's own words, and what may become of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from deck import json
from deck.api import DeckError, Report


def values(names: Sequence[str], words: Sequence[str]) -> st.SearchStrategy[Any]:
    """Return a strategy for JSON whose members have `names` and whose texts are often `words`."""
    scalars = (
        st.none()
        | st.booleans()
        | st.integers(-(2**40), 2**40)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=8)
        | st.sampled_from(words)
    )
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(names), inner, max_size=4),
        max_leaves=12,
    )


def accepted_or_refused(upstream: Callable[..., tuple[Any, Report]], request: dict[str, Any], **options: Any) -> None:
    """Hold a surface to its word: a request is refused with a reason, or becomes JSON and headers."""
    with contextlib.suppress(DeckError):
        got, report = upstream(request, **options)
        json.dumps(got)
        report.headers()
