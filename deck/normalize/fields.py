"""Field tables: every field a client may send, how it is treated and why; and the one reader of them.

A table generates what `GET /v1/capabilities` and the documentation say, so they cannot disagree with the code.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

from deck.errors import DeckError, invalid
from deck.normalize.report import Report
from deck.normalize.types import FieldType, Plain, anything


class Treatment(Enum):
    """What becomes of a field."""

    MAPPED = "mapped"
    ANNOTATION = "annotation"
    TOLERATED = "tolerated"
    REFUSED = "refused"


_ANY = anything("any")
# How much a known spelling must look like an unknown one to be named; at 0.6 `extra_body` looks like `textVerbosity`.
_ALIKE = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One row of a table.

    `aliases` are other spellings; `hint` marks a refused value that a lenient profile drops instead;
    `extension` marks what no vendor's wire has.
    """

    name: str
    type: FieldType = _ANY
    aliases: tuple[str, ...] = ()
    treatment: Treatment = Treatment.MAPPED
    reason: str = ""
    allowed: tuple[Any, ...] = ()
    hint: bool = False
    extension: bool = False

    @classmethod
    def mapped(cls, name: str, type: FieldType, *aliases: str, extension: bool = False, reason: str = "") -> Self:
        """A field that has its effect."""
        return cls(name=name, type=type, aliases=aliases, extension=extension, reason=reason)

    @classmethod
    def annotation(cls, name: str, reason: str, *aliases: str) -> Self:
        """Accepted, removed, reported."""
        return cls(name=name, aliases=aliases, treatment=Treatment.ANNOTATION, reason=reason)

    @classmethod
    def tolerated(cls, name: str, allowed: tuple[Any, ...], reason: str, *, hint: bool = False) -> Self:
        """Removed and reported for the values in `allowed`; any other value is refused."""
        return cls(name=name, treatment=Treatment.TOLERATED, allowed=allowed, reason=reason, hint=hint)

    @classmethod
    def refused(cls, name: str, reason: str) -> Self:
        """Refused with the reason; a name that ends in `*` covers all names with that beginning."""
        return cls(name=name, treatment=Treatment.REFUSED, reason=reason)


class Table:
    """The fields of one object of a wire; refuses to be built with a spelling that stands twice.

    `plain` holds, by name, what mapped fields take as it is.
    """

    __slots__ = ("_index", "_prefixes", "fields", "plain", "where")

    def __init__(self, where: str, fields: Iterable[Field]) -> None:
        self.where = where
        self.fields = tuple(fields)
        self._index: dict[str, Field] = {}
        self.plain: dict[str, Plain] = {}
        self._prefixes: list[tuple[str, Field]] = []
        for field in self.fields:
            for spelling in (field.name, *field.aliases):
                if spelling in self._index:
                    raise ValueError(f"{where}: {spelling!r} stands in the table twice")
                self._index[spelling] = field
            if field.treatment is Treatment.MAPPED and field.type.plain != Plain():
                self.plain[field.name] = field.type.plain
            if field.name.endswith("*"):
                self._prefixes.append((field.name[:-1], field))

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def find(self, spelling: str) -> Field | None:
        """Return the row for a client's spelling."""
        field = self._index.get(spelling)
        if field is None:
            return next((row for prefix, row in self._prefixes if spelling.startswith(prefix)), None)
        return field

    def nearest(self, spelling: str) -> str | None:
        """Return the known spelling that looks most like an unknown one."""
        found = difflib.get_close_matches(spelling, self._index, n=1, cutoff=_ALIKE)
        return found[0] if found else None


class Values:
    """What a table's reader found: canonical values, and where the client wrote each.

    `paths` names those that do not stand at `prefix` under their canonical name.
    """

    __slots__ = ("paths", "prefix", "values")

    def __init__(self, values: dict[str, Any], paths: dict[str, str], prefix: str = "") -> None:
        self.values = values
        self.paths = paths
        self.prefix = prefix

    def get(self, name: str, default: Any = None) -> Any:
        """Return a canonical value, absent and null alike as `default`."""
        return self.values.get(name, default)

    def path(self, name: str) -> str:
        """Return where the client wrote it."""
        found = self.paths.get(name)
        if found is None:
            return f"{self.prefix}.{name}" if self.prefix and name in self.values else name
        return found

    def __contains__(self, name: object) -> bool:
        return name in self.values


class Reader:
    """Reads objects by their tables into canonical values, noting in one report."""

    __slots__ = ("lenient", "report")

    def __init__(self, report: Report, *, lenient: bool = False) -> None:
        self.report = report
        self.lenient = lenient

    def read(self, table: Table, body: Mapping[str, Any], path: str = "") -> Values:
        """Read `body`, whose own path is `path`.

        Raises:
            DeckError: a field is unknown, refused, of a wrong type, or disagrees with its alias.
        """
        found = Values({}, {}, path)
        values, plain = found.values, table.plain
        for key, value in body.items():
            row = plain.get(key)
            if (
                row is not None
                and type(value) in row.types
                and (row.words is None or value in row.words)
                and (row.low is None or row.low <= value <= row.high)
                and (value or not row.filled)
                and key not in values
            ):
                values[key] = value
            else:
                self._read(table, key, value, path, found)
        return found

    def read_with_extra(self, table: Table, body: Mapping[str, Any], *, protected: frozenset[str]) -> Values:
        """Read a top level whose `extra_body` is flattened; `protected` names may not come from there."""
        if "extra_body" not in body:
            return self.read(table, body)
        extra = body["extra_body"]
        found = self.read(table, {key: value for key, value in body.items() if key != "extra_body"})
        if extra is not None:
            if not isinstance(extra, dict):
                raise invalid("extra_body: expected an object", "extra_body", "invalid_type")
            for name in extra:
                field = table.find(name)
                if (field.name if field else name) in protected:
                    where = f"extra_body.{name}"
                    raise invalid(f"{where} may not replace {name!r}; send it at the top level", where)
            for key, value in extra.items():
                self._read(table, key, value, "extra_body", found)
        return found

    def _read(self, table: Table, key: str, value: Any, path: str, found: Values) -> None:
        """Read one member of what stands at `path` into `found`."""
        where = f"{path}.{key}" if path else key
        field = table.find(key)
        if field is None:
            self._unknown(table, key, where)
        elif field.treatment is not Treatment.MAPPED:
            self._unmapped(field, value, where)
        elif value is not None:
            self._mapped(field, key, field.type.check(value, where, self.report), where, found)

    def _mapped(self, field: Field, key: str, value: Any, where: str, found: Values) -> None:
        name, values = field.name, found.values
        if key != name:
            self.report.changed(where, f"is read as {name}", shown=f"{where}>{name}", field=name)
        if name not in values:
            values[name], found.paths[name] = value, where
        elif values[name] != value or isinstance(values[name], bool) != isinstance(value, bool):
            raise invalid(f"{found.path(name)!r} and {where!r} say different things; send one of them", where)

    def _unmapped(self, field: Field, value: Any, where: str) -> None:
        match field.treatment:
            case Treatment.ANNOTATION:
                if value is not None:
                    self.report.ignored(where, field.reason, field=field.name)
            case Treatment.TOLERATED:
                if value is not None and not _among(value, field.allowed) and not (self.lenient and field.hint):
                    allowed = ", ".join(_json(item) for item in field.allowed) or "null"
                    raise invalid(
                        f"{where}: {field.reason}; only {allowed} is accepted, or leave it out",
                        where,
                        "unsupported_value",
                    )
                self.report.ignored(where, field.reason, field=field.name)
            case _:
                if value is not None:
                    raise invalid(f"{where}: {field.reason}", where, "unsupported_parameter")

    def _unknown(self, table: Table, key: str, where: str) -> None:
        if self.lenient:
            self.report.ignored(where, "unknown field", field="other")
            return
        raise unknown(table, key, where)


def unknown(table: Table, key: str, where: str) -> DeckError:
    """Build the error for a field that no row names."""
    if where == "extra_body.extra_body":
        return invalid(f"unknown field {where!r}; extra_body is not nested", where, "unknown_parameter")
    near = table.nearest(key)
    hint = f"; did you mean {near!r}?" if near else "; GET /v1/capabilities lists what is accepted"
    return invalid(f"unknown field {_bounded(where)!r}{hint}", _bounded(where), "unknown_parameter")


def _bounded(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "…"


def _among(value: Any, allowed: tuple[Any, ...]) -> bool:
    return any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in allowed)


def _json(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, repr(value)) if isinstance(value, bool) else repr(value)
