"""What files of settings have in common: tables in TOML, durations and sizes, and how a mistake is worded."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    ValidationError,
)

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)(ms|s|m|h|d))+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?", re.IGNORECASE)
_MIB, _GIB = 1 << 20, 1 << 30
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_duration(value: Any) -> float:
    """Return seconds of `"15m"`, `"1h30m"`, `"250ms"`, `"0"` or a plain number of seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str) and value.strip() == "0":
        seconds = 0.0
    elif isinstance(value, str) and _DURATION.fullmatch(value.strip()):
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(value))
    else:
        raise ValueError('not a duration; write "30s", "15m", "1h30m" or "0"')
    if not 0 <= seconds < float("inf"):
        raise ValueError("a duration is not negative and ends")
    return seconds


def parse_size(value: Any) -> int:
    """Return bytes of `"20GiB"`, `"512 MB"` or a plain number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError('not a size; write "20GiB", "512MiB" or a number of bytes')
    unit = (found[2] or "").upper()
    return int(float(found[1]) * (1024 if unit.endswith("I") else 1000) ** _POWERS[unit[:1]])


def shown_size(size: int, *, up: bool = False) -> str:
    """Return bytes as people write them; rounded `up` or down: what is more is never shown as less."""
    unit, name = (_GIB, "GiB") if size >= 10 * _GIB else (_MIB, "MiB")
    tenths = -(-size * 10 // unit) if up else size * 10 // unit
    return f"{tenths / 10:.1f}".removesuffix(".0") + f" {name}"


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("must be a number")
    return value


def _frozen(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(value))


_V = TypeVar("_V")
Seconds = Annotated[float, BeforeValidator(parse_duration)]
Size = Annotated[int, BeforeValidator(parse_size)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}$")]
Frozen = Annotated[Mapping[str, _V], AfterValidator(_frozen), PlainSerializer(dict)]
Limit = Annotated[int | float, PlainValidator(_number)]


class Table(BaseModel):
    """What every table of a file has in common: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the document in a TOML file.

    Raises:
        ValueError: with the line, where it is no TOML, or the reason why it cannot be read.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as exc:
        raise ValueError(f"cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ValueError(f"is not UTF-8 text, byte {exc.start}") from exc


def expanded(path: str | Path) -> Path:
    """Return a path with `~` and `~user` replaced.

    Raises:
        ValueError: nobody knows that home directory.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError(f"{str(path)!r}: nobody knows that home directory; did you mean '~/…'?") from None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the known name most like `name`, "" when none is."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {found[0]!r}?)" if found else ""


_ANY = "*"
_LISTS = ("tuple_type", "list_type", "set_type", "frozen_set_type")


def faults(error: ValidationError, model: type[BaseModel]) -> Iterator[str]:
    """Yield each fault as `key: what is wrong`, with the nearest known key for an unknown one."""
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        path = [str(step) for step in item["loc"]]
        key = ".".join(path)
        if item["type"] == "extra_forbidden":
            yield f"{key}: unknown key{_nearest_key(path, model)}"
        elif item["type"] == "missing":
            yield f"{key}: is required"
        elif item["type"] == "string_pattern_mismatch":
            yield f"{key}: may hold letters, digits and . _ : / @ + - and starts with a letter or digit"
        elif item["type"] == "model_type":
            yield f"{key}: must be a table"
        elif item["type"] in _LISTS:
            yield f'{key}: must be a list, as ["…", "…"]'
        else:
            what = item["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
            yield f"{key}: {what}" if key else what


def _nearest_key(path: list[str], model: type[BaseModel]) -> str:
    keys = _keys(model)
    siblings = [key for key in keys if _is_beside(key.split("."), path)]
    by_tail = {key.rpartition(".")[2]: key for key in reversed(keys) if _ANY not in key}
    if path[-1] not in by_tail:
        close = nearest(path[-1], [key.rpartition(".")[2] for key in siblings])
        if close:
            return close
        found = difflib.get_close_matches(path[-1], list(by_tail), n=1, cutoff=0.6)
        return f" (did you mean {by_tail[found[0]]!r}?)" if found else ""
    return f" (did you mean {by_tail[path[-1]]!r}?)"


def _is_beside(key: list[str], path: list[str]) -> bool:
    return len(key) == len(path) and all(one in (_ANY, other) for one, other in zip(key[:-1], path, strict=False))


def _keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Return the dotted keys of a model and of its tables, those nearest to the root first."""
    own, below = [], []
    for name, field in model.model_fields.items():
        if field.exclude:
            continue
        own.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            below += _keys(field.annotation, f"{prefix}{name}.")
        for table in get_args(field.annotation):  # one for each name that somebody chooses
            if isinstance(table, type) and issubclass(table, BaseModel):
                below += _keys(table, f"{prefix}{name}.{_ANY}.")
    return own + below
