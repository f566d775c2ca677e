"""A form's parts as the values that a field table reads, and the form as it is passed on.

Knows tables and parts. A form holds nothing but text and files: a text becomes what its field's row takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from deck import json
from deck.errors import DeckError, invalid
from deck.multipart import Section
from deck.normalize.fields import Field, Table
from deck.operation import Upload

# `name`, `name[]` for one of several, `name[key]` for a member.
_NAME = re.compile(r"([A-Za-z0-9_.-]{1,64})(\[\]|\[[A-Za-z0-9_.-]{1,64}\])?")
_INTEGER = re.compile(r"[+-]?\d{1,18}")
_NUMBER = re.compile(r"[+-]?(?:\d{1,18}\.?\d{0,18}|\.\d{1,18})(?:[eE][+-]?\d{1,3})?")
_WORDS = {"true": True, "false": False, "1": True, "0": False}
_SHOWN = 60


def values_of(sections: Iterable[Section], table: Table) -> dict[str, Any]:
    """Return the form's values by name: files, texts, and what texts mean where the table says so.

    Raises:
        DeckError: a name is none, stands twice, or a text is not UTF-8.
    """
    found: dict[str, Any] = {}
    for section in sections:
        name, inner = name_of(section)
        if name == "extra_body":
            where = section.name[:_SHOWN]
            raise invalid(f"{where}: a form has no extra_body; send its members as parts of their own", where)
        row = table.find(name)
        item = _value(section, name, row, is_one=inner == "[]")
        if inner not in ("", "[]"):
            members = found.setdefault(name, {})
            if not isinstance(members, dict) or inner[1:-1] in members:
                raise _twice(name)
            members[inner[1:-1]] = item
        elif inner == "[]" or _is_list(row):
            items = found.setdefault(name, [])
            if not isinstance(items, list):
                raise _twice(name)
            items.append(item)
        elif name in found:
            raise _twice(name)
        else:
            found[name] = item
    return found


def name_of(section: Section) -> tuple[str, str]:
    """Return the field of a part, and what stands in brackets behind it.

    Raises:
        DeckError: it is no name.
    """
    match = _NAME.fullmatch(section.name)
    if match is None:
        raise invalid(f"the form has a part whose name is no field's: {section.name[:_SHOWN]!r}")
    return match[1], match[2] or ""


def kept(sections: Sequence[Section], fields: Mapping[str, Any], model: str) -> Iterator[Section]:
    """Yield the parts that go to the backend: the model under its own name, and those that the reader let through."""
    yield Section(name="model", content=memoryview(model.encode()))
    for section in sections:
        name, _ = name_of(section)
        if name not in fields:
            continue
        if fields[name] is True or fields[name] is False:
            text = b"true" if fields[name] else b"false"
            yield Section(name=section.name, content=memoryview(text))
        else:
            yield section


def _is_list(row: Field | None) -> bool:
    return row is not None and row.type.json == "array"


def _value(section: Section, name: str, row: Field | None, *, is_one: bool) -> Any:
    if section.filename is not None:
        return Upload(filename=section.filename.decode(errors="replace"), size=len(section.content))
    try:
        text = str(section.content, "utf-8")
    except UnicodeDecodeError as exc:
        raise invalid(f"{name}: it is not valid UTF-8 at byte {exc.start}", name, "invalid_type") from exc
    kind = row.type.json if row is not None and not is_one else ""
    if kind == "boolean":
        return _WORDS.get(text.strip().lower(), text)
    if kind == "integer" and _INTEGER.fullmatch(text.strip()):
        return int(text)
    if kind == "object":
        return _object(text)
    if kind == "number" and _NUMBER.fullmatch(text.strip()):
        return float(text)
    return text


def _object(text: str) -> Any:
    try:
        return json.loads_request(text.encode())
    except DeckError:
        return text  # of a wrong type, as the reader then says


def _twice(name: str) -> DeckError:
    return invalid(f"{name} stands twice in the form; send it once", name)
