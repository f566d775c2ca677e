"""Entries of llama-server's logprobs in the four parallel lists of this wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Logprobs:
    r"""Convert entries as they come; offsets go on counting, in characters, from the start of the returned text.

    The wire's own shape (OpenAI API reference, `choices[].logprobs`): the token that was taken stands among its
    alternatives, so there are up to one more of them than were asked for; a token that is not whole UTF-8 is written
    `bytes:\xf0…`.
    """

    __slots__ = ("_offset", "_top")

    def __init__(self, top: int) -> None:
        self._top = top
        self._offset = 0

    def convert(self, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the lists for the next tokens of the answer."""
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(entry.get("token", ""))
        return {
            "tokens": [_name(entry) for entry in entries],
            "token_logprobs": [_value(entry) for entry in entries],
            "top_logprobs": [self._alternatives(entry) for entry in entries],
            "text_offset": offsets,
        }

    def _alternatives(self, entry: Mapping[str, Any]) -> dict[str, float]:
        found: dict[str, float] = {}
        for other in (entry.get("top_logprobs") or ())[: self._top]:
            found.setdefault(_name(other), _value(other))
        found.setdefault(_name(entry), _value(entry))
        return found


def _value(entry: Mapping[str, Any]) -> float:
    value: float = entry.get("logprob", 0.0)
    return value


def _name(entry: Mapping[str, Any]) -> str:
    text: str = entry.get("token", "")
    data = entry.get("bytes")
    if isinstance(data, list) and bytes(data) != text.encode("utf-8", "surrogatepass"):
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
    return text
