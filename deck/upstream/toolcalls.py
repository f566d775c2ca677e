"""Tool calls from the fragments that a stream brings, one after the other however they interleave.

Servers disagree on whether a fragment carries an index, an id or a name; here that is decided once. Knows no text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deck import json
from deck.canon.answer import is_json_object
from deck.errors import DeckError, ErrorKind
from deck.normalize.ids import digest9
from deck.upstream.parts import Parts


def tool_id(seed: str, ordinal: int) -> str:
    """Return nine alphanumerics for the call number `ordinal` of the answer that `seed` names."""
    return digest9(f"{seed}:{ordinal}")


@dataclass(slots=True)
class _Call:
    id: str = ""
    name: str = ""
    fragments: list[str] = field(default_factory=list)
    is_closed: bool = False

    @property
    def arguments(self) -> str:
        return "".join(self.fragments)


class ToolCalls:
    """Write calls into `parts`: the first streams at once, others wait until it is complete.

    Args:
        seed: makes the ids of this answer's calls.
        parts: where they go.

    `count` is how many were written, `cut` the name of the one that a token limit cut, if one was.
    """

    def __init__(self, seed: str, parts: Parts) -> None:
        self._seed = seed
        self._parts = parts
        self._by_index: dict[int, _Call] = {}
        self._calls: list[_Call] = []
        self._waiting: deque[_Call] = deque()
        self._open: _Call | None = None
        self.count = 0
        self.cut = ""

    def feed(self, entry: Mapping[str, Any]) -> None:
        """Take one member of a delta's `tool_calls`.

        Raises:
            DeckError: it continues a call that was already closed.
        """
        function = entry.get("function")
        if not isinstance(function, Mapping):
            function = {}
        name, fragment = _text(function.get("name")), _fragment(function.get("arguments"))
        call = self._call(entry.get("index"), _text(entry.get("id")), name)
        if call.is_closed:
            if fragment.strip():
                raise _broken(f"llama-server continued the call of {call.name!r} after it was complete")
            return
        if fragment:
            call.fragments.append(fragment)
            if call is self._open:
                self._parts.delta(fragment)
        if self._waiting:
            self._advance()

    def close(self, *, is_cut: bool = False) -> None:
        """End the open call, if there is one; one without arguments gets `{}` unless it was cut."""
        call, self._open = self._open, None
        if call is None:
            return
        call.is_closed = True
        if is_cut and not is_json_object(call.arguments):
            self.cut = call.name
        if not is_cut and not call.arguments.strip():
            call.fragments.append("{}")
            self._parts.delta("{}")
        self._parts.close()

    def finish(self, *, is_cut: bool) -> None:
        """Write out all that still waits.

        Args:
            is_cut: the answer ran into its token limit, so that the last call may lack its end.

        Raises:
            DeckError: a call never got a name.
        """
        self.close(is_cut=is_cut and not self._waiting)
        while self._waiting:
            call = self._waiting.popleft()
            if call.name:
                self._start(call)
                self.close(is_cut=is_cut and not self._waiting)
            elif not is_cut and (call.id or call.arguments.strip()):
                raise _broken("llama-server sent a tool call without a name")

    def _call(self, index: object, identity: str, name: str) -> _Call:
        """Return the call that a fragment belongs to, or a new one."""
        if type(index) is int:
            call = self._by_index.get(index)
        else:
            latest = self._calls[-1] if self._calls else None
            call = next((known for known in self._calls if identity and known.id == identity), latest)
        if call is None or _begins_another(call, identity, name):
            call = _Call()
            self._calls.append(call)
            self._waiting.append(call)
        if type(index) is int:
            self._by_index[index] = call
        call.id = call.id or identity
        call.name = call.name or name
        return call

    def _advance(self) -> None:
        """Begin the waiting calls, in order, as far as each one before them is complete."""
        while self._waiting and self._waiting[0].name:
            if self._open is not None:
                if not _is_complete(self._open):
                    return
                self.close()
            self._start(self._waiting.popleft())

    def _start(self, call: _Call) -> None:
        self._parts.open("tool_call", tool_id(self._seed, self.count), call.name)
        self._open = call
        self.count += 1
        if call.fragments:
            self._parts.delta(call.arguments)


def _begins_another(call: _Call, identity: str, name: str) -> bool:
    if identity and call.id and identity != call.id:
        return True
    if not name or not call.name:
        return False
    # Some servers repeat the name in every fragment; only a finished call can be followed by its namesake.
    return name != call.name or (not identity and _is_complete(call))


def _is_complete(call: _Call) -> bool:
    """Tell whether the arguments are one JSON value that no further fragment could belong to."""
    text = call.arguments
    if not text.rstrip().endswith(("}", "]", '"')):
        return False
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _fragment(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value).decode()


def _broken(message: str) -> DeckError:
    return DeckError(ErrorKind.UPSTREAM, message, code="upstream_error")
