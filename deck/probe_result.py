"""What a probe found, as a table, as JSON, and as `[capabilities.measured]` of the profile it was made for.

The profile's file is edited as text, so that every comment and every line of its owner stays as it is; the edit is read
back before it replaces the file.
"""

from __future__ import annotations

import datetime
import json as std_json
import os
import re
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from deck.loading import StartError
from deck.probe import Finding, Value
from deck.profile import Measured, Profile

_HEADER = "[capabilities.measured]"
_NOTE = "# Written by `deck probe`; a key of [capabilities] that you set yourself comes first."
_TABLE = re.compile(r"^[ \t]*\[")
_OURS = re.compile(r"^[ \t]*\[[ \t]*capabilities[ \t]*\.[ \t]*measured[ \t]*\]")
_WORDS: Mapping[Value, tuple[str, str]] = {True: ("yes", "green"), False: ("no", "red"), None: ("?", "yellow")}
_WAYS = {"path": "as a client asks", "template": "the template", "facts": "llama-server's word"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One probe: of which profile, adapted by which family, on which build, on which day."""

    profile: Profile
    family: str
    build: str | None
    at: datetime.date
    findings: Sequence[Finding]

    @property
    def is_usable(self) -> bool:
        """Whether the model answered at all."""
        return any(finding.measure.name == "text" and finding.value is True for finding in self.findings)

    def measured(self) -> dict[str, Any]:
        """Return the keys of `[capabilities.measured]`; what could not be found out has none."""
        head: dict[str, Any] = {"at": self.at, "of": self.profile.serves}
        if self.build is not None:
            head["build"] = self.build
        return head | {item.measure.name: item.value for item in self.findings if item.value is not None}

    def as_json(self) -> dict[str, Any]:
        """Return everything for a program."""
        return {
            "model": self.profile.id,
            "of": self.profile.serves,
            "family": self.family,
            "build": self.build,
            "at": self.at.isoformat(),
            "findings": [
                {
                    "name": item.measure.name,
                    "value": item.value,
                    "remark": item.remark,
                    "way": item.measure.way,
                    "seconds": round(item.seconds, 3),
                }
                for item in self.findings
            ],
        }


def show(result: Result, console: Console) -> None:
    """Print the table."""
    build = f", llama-server {result.build}" if result.build else ""
    title = f"{result.profile.id} ({result.profile.serves}), family {result.family}{build}, {result.at.isoformat()}"
    table = Table(title=Text(title), title_justify="left")
    for column in ("measure", "result", "remark", "by", "seconds"):
        table.add_column(column, justify="right" if column == "seconds" else "left", overflow="fold")
    for item in result.findings:
        seconds = f"{item.seconds:.1f}"
        table.add_row(item.measure.title, worded(item.value), Text(item.remark), _WAYS[item.measure.way], seconds)
    console.print(table)


def worded(value: Value) -> Text:
    """Return a value for a reader: yes, no, ? or a number."""
    if value is None or isinstance(value, bool):
        word, colour = _WORDS[value]
        return Text(word, style=colour)
    return Text(f"{value}")


def write(result: Result) -> Path:
    """Put the result into the profile's file and return that.

    Raises:
        StartError: the file cannot be written, or cannot hold the table as it stands.
    """
    path = result.profile.source
    table = measured_toml(result.measured())
    try:
        with path.open(encoding="utf-8", newline="") as file:
            before = file.read()
        after = with_measured(before, table)
        if not _differs_only_there(before, after):
            message = (
                f"{path} cannot be edited safely: make its capabilities a [capabilities] table, or paste:\n{table}"
            )
            raise StartError(message)
        _replace(path, after)
    except OSError as exc:
        raise StartError(f"{path} cannot be written: {exc.strerror}; the table to paste:\n{table}") from exc
    return path


def measured_toml(values: Mapping[str, Any]) -> str:
    """Return `[capabilities.measured]` as text."""
    lines = [_NOTE, _HEADER, *(f"{name} = {_toml(value)}" for name, value in values.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.date):
        return value.isoformat()
    # JSON's strings and numbers are TOML's, but for a character that TOML wants escaped.
    return std_json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def with_measured(text: str, table: str) -> str:
    """Return a profile's text with the table at its end, instead of the one it had."""
    kept: list[str] = []
    is_ours = False
    for line in text.splitlines(keepends=True):
        if _TABLE.match(line):
            is_ours = bool(_OURS.match(line))
            if is_ours and kept and kept[-1].strip() == _NOTE:
                kept.pop()
        if not is_ours or line.lstrip().startswith("#"):
            kept.append(line)
    body = "".join(kept).rstrip("\r\n")
    end = "\r\n" if "\r\n" in text else "\n"
    return body + 2 * end + table.replace("\n", end)


def _differs_only_there(before: str, after: str) -> bool:
    """Tell whether the edit changed nothing but the table, which then is one that a profile may have."""
    try:
        old, new = tomllib.loads(before.lstrip("\ufeff")), tomllib.loads(after.lstrip("\ufeff"))
        Measured.model_validate(_take(new))
        _take(old)
    except ValueError:
        return False
    return old == new


def _take(document: dict[str, Any]) -> Any:
    """Remove the table from a document and return it; a table left empty by that goes too."""
    capabilities = document.get("capabilities", {})
    found = capabilities.pop("measured", None)
    if not capabilities:
        document.pop("capabilities", None)
    return found


def _replace(path: Path, text: str) -> None:
    target = path.resolve()  # a link stays a link
    with tempfile.NamedTemporaryFile(
        "w", dir=target.parent, prefix=".deck-", delete=False, encoding="utf-8", newline=""
    ) as file:
        file.write(text)
    written = Path(file.name)
    try:
        written.chmod(target.stat().st_mode & 0o7777)
        os.replace(written, target)
    except OSError:
        written.unlink(missing_ok=True)
        raise
