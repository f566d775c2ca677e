"""What was changed or ignored in one request, and the two response headers that say so.

Paths are the client's own. Names in the headers are bounded, and what may not stand in a list of names is written as
in a URL, `%` and the bytes of UTF-8; values never appear there, but for numbers in a clamp.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from urllib.parse import quote

from deck.canon.value import value

IGNORED_HEADER = "X-Athena-Compatibility-Ignored"
CHANGED_HEADER = "X-Athena-Compatibility-Changed"
_HEADER_LIMIT, _LONGEST = 2048, 120
_INDEX = re.compile(r"\[\d+\]")
_SAFE = "_.[]()>=+*/:-?$@"
_UNSAFE = re.compile(rf"[^A-Za-z0-9{re.escape(_SAFE)}]")


class NoteKind(Enum):
    """Whether a field had no effect, or has one under another name or value."""

    IGNORED = "ignored"
    CHANGED = "changed"


@value(frozen=True, slots=True)
class Note:
    """One entry: the client's path, the reason, what the header shows, and the table's name of the field."""

    kind: NoteKind
    path: str
    detail: str
    shown: str
    field: str


class Report:
    """Grow while a request is normalised; afterwards it is only read, but for what the answer itself settles."""

    __slots__ = ("_notes",)

    def __init__(self) -> None:
        self._notes: list[Note] = []

    @property
    def notes(self) -> tuple[Note, ...]:
        """All entries in the order they were made."""
        return tuple(self._notes)

    def ignored(self, path: str, detail: str, *, field: str | None = None) -> None:
        """Say that what stands at `path` had no effect."""
        self._notes.append(Note(NoteKind.IGNORED, path, detail, path, field or _bare(path)))

    def changed(self, path: str, detail: str, *, shown: str | None = None, field: str | None = None) -> None:
        """Say that what stands at `path` was honoured differently; `shown` as `a>b` or `a=2.5>2`."""
        self._notes.append(Note(NoteKind.CHANGED, path, detail, shown or path, field or _bare(path)))

    def add(self, notes: Iterable[Note]) -> None:
        """Take over the entries of another report."""
        self._notes += notes

    def settled(self, path: str) -> None:
        """Take back that what stands at `path` had no effect: the answer was found to hold to it."""
        self._notes = [note for note in self._notes if note.kind is NoteKind.CHANGED or note.path != path]

    @property
    def size(self) -> int:
        """How many entries there are."""
        return len(self._notes)

    def rewind(self, size: int) -> None:
        """Take back all but the first `size` entries: what they speak of is done anew."""
        del self._notes[size:]

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers to send, none when there is nothing to say."""
        if not self._notes:
            return []
        found = []
        for name, kind in ((IGNORED_HEADER, NoteKind.IGNORED), (CHANGED_HEADER, NoteKind.CHANGED)):
            shown = sorted({_safe(note.shown) for note in self._notes if note.kind is kind})
            if shown:
                found.append((name, _bounded(shown)))
        return found


def _bare(path: str) -> str:
    return _INDEX.sub("[]", path)


def _safe(shown: str) -> str:
    shown = _INDEX.sub("[]", shown)[:_LONGEST]
    if _UNSAFE.search(shown):
        shown = quote(shown, safe=_SAFE, errors="replace")
    return shown[:_LONGEST]


def _bounded(names: list[str]) -> str:
    size, kept = 0, list[str]()
    for position, name in enumerate(names):
        size += len(name) + 2
        if size > _HEADER_LIMIT - 16:
            return ", ".join([*kept, f"+{len(names) - position} more"])
        kept.append(name)
    return ", ".join(kept)
