"""`deck ps`, `load`, `unload`, `logs` and `reload`: what an operator does to a running Deck, over its own HTTP."""

from __future__ import annotations

import argparse
import ipaddress
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import httpx

from deck.config import load_config

_RAW = argparse.RawDescriptionHelpFormatter
_FOLLOW = 1.0
_COLUMNS = ("MODEL", "STATE", "RUNNING", "WAITING", "SLOTS", "MEMORY", "NOTE")
_MIB = 1 << 20
_NOTE = 80
_TOKEN = re.compile(rb"[!-~]+")


class AskError(Exception):
    """A running Deck could not be asked, or said no; the message says why."""


def add(subparsers: Any) -> None:
    """Add the commands to those of `deck`."""
    _command(subparsers, "ps", _run_ps, "list the models and what their servers do", "deck ps")
    load = _command(
        subparsers, "load", _run_load, "load a model now", "deck load qwen3-coder-30b", "Failures before are forgotten."
    )
    unload = _command(
        subparsers,
        "unload",
        _run_unload,
        "unload a model",
        "deck unload qwen3-coder-30b --now",
        "Running answers end first; new requests for it wait, and load it again.",
    )
    unload.add_argument("--now", action="store_true", help="stop it at once; running answers end in an error")
    logs = _command(subparsers, "logs", _run_logs, "show what a model's llama-server prints", "deck logs -f demo")
    logs.add_argument("-f", "--follow", action="store_true", help="go on showing what comes")
    logs.add_argument(
        "-n", "--lines", type=_count, default=100, metavar="N", help="how many last lines (default 100, 0 = none)"
    )
    for command in (load, unload, logs):
        command.add_argument("model", metavar="MODEL", help="its id or an alias")
    reload = _command(
        subparsers,
        "reload",
        _run_reload,
        "read the profiles anew",
        "deck reload --diff",
        "All profiles are checked first: if one is wrong, nothing changes. Servers that are launched the same way\n"
        "go on, with their answers; others stop when nobody uses them. Configuration and plugins need a restart.",
    )
    reload.add_argument("--diff", action="store_true", help="only show what would change")


def _command(subparsers: Any, name: str, run: Any, what: str, example: str, more: str = "") -> Any:
    command = subparsers.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}.\n{more}".rstrip()
        + "\n\nIt asks a running Deck, with an admin token from the variable DECK_TOKEN or from --token-file.",
        epilog=f"example:\n  {example}",
        formatter_class=_RAW,
    )
    command.add_argument("--url", help="where Deck listens; default: host and port of the configuration")
    command.add_argument("--token-file", type=Path, metavar="FILE", help="file that holds an admin token")
    command.add_argument("--config", metavar="FILE", help="deck.toml that says where Deck listens")
    command.set_defaults(run=run)
    return command


def _run_ps(arguments: argparse.Namespace) -> int:
    found = _ask(arguments, "GET", "")
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for item in found["servers"]:
        rows += [_row(item), *(_replica_row(replica) for replica in item["replicas"])]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_COLUMNS))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    if found.get("profiles_fault"):
        print(f"the profiles on disk are not in force: {found['profiles_fault']}", file=sys.stderr)
    return 0


def _row(server: Mapping[str, Any]) -> tuple[str, ...]:
    memory, expected = server["memory"], server["expected_memory"]
    shown = f"{memory / _MIB:.0f} MiB" if memory else f"~{expected / _MIB:.0f} MiB" if expected else "-"
    note = "removed: stops when it is free" if server.get("removed") else "pinned" if server["pinned"] else ""
    reason = _first_line(server["reason"]) if server["state"] == "failed" else ""
    note = reason or note
    if server["failures"]:
        note = f"failed {server['failures']} times, tried again in {server['retry_in']} s"
        note += f": {reason}" if reason else ""
    if server.get("loading"):
        note = _load(server["loading"])
    return (
        server["id"],
        server["state"],
        str(server["running"]),
        str(server["waiting"]),
        str(server["slots"] or "-"),
        shown,
        note,
    )


def _first_line(text: str | None) -> str:
    """Return how a reason begins, not longer than a note."""
    line = next((line.strip() for line in (text or "").splitlines() if line.strip()), "")
    return line if len(line) <= _NOTE else f"{line[:_NOTE].rstrip()}…"


def _replica_row(replica: Mapping[str, Any]) -> tuple[str, ...]:
    notes = [replica["reason"], *replica["differs"]]
    return (
        f"  {replica['url']}",
        replica["state"],
        str(replica["running"]),
        "-",
        str(replica["slots"] or "-"),
        "-",
        "; ".join(note for note in notes if note),
    )


def _load(load: Mapping[str, Any]) -> str:
    """Say what a model that loads is doing."""
    told = f"{load['seconds']:.0f} s"
    if load["last_time"] is not None:
        told += f" (last time {load['last_time']:.0f} s)"
    if load["done"] is not None:
        told += f", {load['done']:.0%}"
    return f"{told}: {load['line'][:_NOTE]}" if load["line"] else told


def _run_load(arguments: argparse.Namespace) -> int:
    print(f"loading {arguments.model} …", file=sys.stderr)
    print(_ask(arguments, "POST", f"/{arguments.model}/load")["state"])
    return 0


def _run_unload(arguments: argparse.Namespace) -> int:
    query = "?now" if arguments.now else ""
    print(_fate(_ask(arguments, "POST", f"/{arguments.model}/unload{query}")))
    return 0


def _fate(server: Mapping[str, Any]) -> str:
    """Say what becomes of an unloaded model's server."""
    if server["unload"] != "pending":
        return str(server["unload"])
    running = server["running"]
    if not running:
        return "will stop when it has been loaded and nobody uses it"
    return f"will stop when {running} running {'answer has' if running == 1 else 'answers have'} ended"


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected a whole number, 0 or more, not {text!r}")
    return int(text)


def _run_logs(arguments: argparse.Namespace) -> int:
    found = _ask(arguments, "GET", f"/{arguments.model}/log?lines={arguments.lines}")
    while True:
        for line in found["lines"]:
            print(line, flush=True)
        if not arguments.follow:
            return 0
        try:
            time.sleep(_FOLLOW)
        except KeyboardInterrupt:
            return 0
        found = _ask(arguments, "GET", f"/{arguments.model}/log?after={found['after']}")


def _run_reload(arguments: argparse.Namespace) -> int:
    query = "?dry_run" if arguments.diff else ""
    change = _ask(arguments, "POST", query, base="/deck/reload")
    words = {"added": "new", "removed": "gone", "relaunched": "launched anew", "changed": "changed, server kept"}
    lines = [f"{word}: {', '.join(change[key])}" for key, word in words.items() if change[key]]
    print("\n".join(lines) or "nothing has changed")
    return 0


def _ask(arguments: argparse.Namespace, method: str, path: str, *, base: str = "/deck/servers") -> dict[str, Any]:
    url = arguments.url or _address(arguments)
    try:
        answer = httpx.request(
            method,
            f"{url.rstrip('/')}{base}{path}",
            headers={"authorization": f"Bearer {_token(arguments)}"},
            timeout=None,
            trust_env=not _is_here(url),  # no proxy stands between this machine and itself
        )
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise AskError(f"no Deck answers at {url}: {exc}; is it running? Name another with --url") from exc
    try:
        body = answer.json()
    except ValueError:
        raise AskError(f"what answers at {url} is no Deck") from None
    error = body.get("error") if isinstance(body, dict) else None
    if answer.status_code != 200:
        said = error.get("message") if isinstance(error, dict) else None
        raise AskError(said if isinstance(said, str) else f"what answers at {url} is no Deck: {answer.status_code}")
    if not isinstance(body, dict):
        raise AskError(f"what answers at {url} is no Deck")
    return _Found(body, url=url)


class _Found(dict[str, Any]):
    """What a Deck answered; what lacks a member that every Deck tells is no Deck."""

    def __init__(self, body: dict[str, Any], *, url: str) -> None:
        super().__init__(body)
        self._url = url

    def __missing__(self, key: str) -> NoReturn:
        raise AskError(f"what answers at {self._url} is no Deck: it tells no {key!r}")


def _is_here(url: str) -> bool:
    host = httpx.URL(url).host
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _address(arguments: argparse.Namespace) -> str:
    config = load_config(Path(arguments.config) if arguments.config else None, os.environ)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)
    return f"http://[{host}]:{config.port}" if ":" in host else f"http://{host}:{config.port}"


def _token(arguments: argparse.Namespace) -> str:
    file: Path | None = arguments.token_file
    try:
        content = file.read_bytes() if file is not None else os.fsencode(os.environ.get("DECK_TOKEN", ""))
    except OSError as exc:
        raise AskError(f"{file} cannot be read: {exc.strerror}") from exc
    token = content.strip()
    if file is None and not token:
        raise AskError("no token: put an admin token into DECK_TOKEN, or name a file with --token-file")
    if not _TOKEN.fullmatch(token):
        where = file if file is not None else "DECK_TOKEN"
        raise AskError(f"{where} holds no token: expected one line of letters, digits and punctuation")
    return token.decode("ascii")
