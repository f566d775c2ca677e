"""Values that only this wire has: a prompt in its four shapes, the number of logprobs, sequence breakers as text."""

from __future__ import annotations

from typing import Any

from deck.api import FieldType, Report, integer, invalid, json, out_of_range, strings, wrong_type

_MOST_LOGPROBS = 5
_PROMPT = "a string, or an array of token ids"
_TOKEN = integer(0)


def read_prompt(value: Any, path: str, report: Report) -> str | tuple[int, ...]:
    """Return a prompt as text or as token ids; a list of one prompt is that prompt.

    Raises:
        DeckError: several prompts, none, or something else.
    """
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise invalid(
                f"{path}: one completion per request; send each of the {len(value)} prompts as a request of its own",
                path,
                "unsupported_value",
            )
        value, path = value[0], f"{path}[0]"
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong_type(path, _PROMPT, value)
    if not value:
        raise invalid(f"{path}: expected at least one token id", path, "unsupported_value")
    return tuple(_TOKEN.check(token, f"{path}[{place}]", report) for place, token in enumerate(value))


def read_logprobs(value: Any, path: str) -> int | None:
    """Return how many alternatives to show beside each token, None = no logprobs at all."""
    if value is None or value is False:
        return None
    expected = f"an integer 0…{_MOST_LOGPROBS}, or false"
    if value is True or not isinstance(value, int):
        raise wrong_type(path, expected, value)
    if not 0 <= value <= _MOST_LOGPROBS:
        raise out_of_range(path, expected, value)
    return value


def breakers() -> FieldType:
    """An array of strings, or the JSON text of one, as other engines take it."""
    inner = strings(most=64)

    def check(value: Any, path: str, report: Report) -> Any:
        if not isinstance(value, str):
            return inner.check(value, path, report)
        try:
            decoded = json.loads(value)
        except ValueError:
            decoded = None
        if not isinstance(decoded, list):
            raise wrong_type(path, "an array of strings, or the JSON text of one", value)
        report.changed(path, "the text is read as the array it spells")
        return inner.check(decoded, path, report)

    return FieldType("array", f"{inner.describe}, or the JSON text of one", check)
