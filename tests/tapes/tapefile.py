"""Tapes: the bytes of one upstream answer and the events they mean, kept as files.

`meta.toml` has `origin` (where it came from) and, where they differ from the defaults, `seed`, `prefill_only` and `raw`
(the answer continues a raw prompt).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from deck.canon.events import Event, Failed, Finish, FinishReason, PartDelta, PartEnd, PartStart, Progress, Start, Usage
from deck.errors import DeckError, ErrorKind, Overrun
from deck.upstream.decode import Decoder

ROOT = Path(__file__).parent

_TYPES: Mapping[str, type[Event]] = {
    "start": Start,
    "part_start": PartStart,
    "part_delta": PartDelta,
    "part_end": PartEnd,
    "progress": Progress,
    "finish": Finish,
    "failed": Failed,
}
_NAMES = {kind: name for name, kind in _TYPES.items()}
_ERROR_MEMBERS = ("param", "code", "retry_after", "limits", "should_retry")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tape:
    """One case."""

    name: str
    data: bytes
    lines: tuple[str, ...]
    seed: str
    prefill_only: bool
    raw: bool

    @property
    def events(self) -> list[Event]:
        """What the bytes mean."""
        return [event_of(line) for line in self.lines]

    def decoder(self) -> Decoder:
        """Return a decoder that is set up for this case."""
        return Decoder(seed=self.seed, prefill_only=self.prefill_only, raw=self.raw)


def load(folder: Path) -> Tape:
    """Read a case; one without `events.jsonl` means nothing yet."""
    meta = tomllib.loads((folder / "meta.toml").read_text(encoding="utf-8"))
    events = folder / "events.jsonl"
    return Tape(
        name=folder.name,
        data=(folder / "upstream.sse").read_bytes(),
        lines=tuple(events.read_text(encoding="utf-8").splitlines()) if events.exists() else (),
        seed=meta.get("seed", "tape"),
        prefill_only=meta.get("prefill_only", False),
        raw=meta.get("raw", False),
    )


def tapes() -> list[Tape]:
    """Read every case."""
    return [load(path.parent) for path in sorted(ROOT.glob("*/upstream.sse"))]


def play(decoder: Decoder, slices: Iterable[bytes]) -> list[Event]:
    """Decode `slices` and the end of the stream."""
    events: list[Event] = []
    for piece in slices:
        events += decoder.feed(piece)
    return events + decoder.end()


def line_of(event: Event) -> str:
    """Return an event as one line of JSON, without what has its default."""
    members: dict[str, Any] = {"event": _NAMES[type(event)]}
    if isinstance(event, Failed):
        members |= {"kind": event.error.kind.label, "message": event.error.message}
        members |= {name: value for name in _ERROR_MEMBERS if (value := getattr(event.error, name)) is not None}
        if event.error.limits is not None:
            members["limits"] = [event.error.limits.prompt, event.error.limits.context]
    else:
        members |= _set(event)
    return json.dumps(members, ensure_ascii=False)


def event_of(line: str) -> Event:
    """Return the event that a line stands for."""
    members = json.loads(line)
    kind = _TYPES[members.pop("event")]
    if kind is Failed:
        (error,) = (error for error in ErrorKind if error.label == members["kind"])
        limits = members.get("limits")
        rest = {name: members[name] for name in _ERROR_MEMBERS if name in members and name != "limits"}
        return Failed(DeckError(error, members["message"], limits=Overrun(*limits) if limits else None, **rest))
    if kind is Finish:
        members |= {"reason": FinishReason(members["reason"]), "usage": Usage(**members["usage"])}
    if "logprobs" in members:
        members["logprobs"] = tuple(members["logprobs"])
    return kind(**members)


def _set(value: Any) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for member in fields(value):
        item = getattr(value, member.name)
        if member.default is MISSING or item != member.default:
            members[member.name] = _plain(item)
    return members


def _plain(item: Any) -> Any:
    if isinstance(item, Usage):
        return _set(item)
    return item.value if isinstance(item, FinishReason) else item
