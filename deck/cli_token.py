"""`deck token`: make, list and revoke tokens."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import time
from pathlib import Path
from typing import Any

from deck.errors import DeckError, ErrorKind
from deck.tokens import Entry, TokenStore, parse_duration

_RAW = argparse.RawDescriptionHelpFormatter
_LONGEST = 100 * 365 * 86400
_COLUMNS = ("ID", "NAME", "MODELS", "RIGHTS", "COMPATIBILITY", "CREATED", "EXPIRES")


def add(subparsers: Any) -> None:
    """Add the command to those of `deck`."""
    command = subparsers.add_parser(
        "token",
        help="make, list and revoke the tokens that clients use",
        description="Every client needs a token. Deck keeps digests only: a token is shown once, when it is made.\n"
        "A running Deck sees changes within about a second, no restart is needed.",
        epilog="example:\n  deck token create laptop\n  deck token list\n  deck token revoke laptop",
        formatter_class=_RAW,
    )
    actions = command.add_subparsers(metavar="ACTION", required=True)
    _create(actions)
    _list(actions)
    _revoke(actions)


def _create(actions: Any) -> None:
    command = actions.add_parser(
        "create",
        help="make a token",
        description="Make a token and print it, once. Clients send it as 'Authorization: Bearer TOKEN' or as\n"
        "'x-api-key: TOKEN'. The token alone goes to standard output, so that a script can take it.",
        epilog="examples:\n"
        "  deck token create laptop\n"
        "  deck token create ci --models qwen3-coder-30b,demo --expires 30d\n"
        "  export OPENAI_API_KEY=$(deck token create shell)",
        formatter_class=_RAW,
    )
    command.add_argument("name", metavar="NAME", help="whose token it is; shown in logs")
    command.add_argument(
        "--models", metavar="ID,…", type=_names, help="the only models it may use, by id; default: all"
    )
    command.add_argument("--admin", action="store_true", help="may use the routes for operators too")
    command.add_argument("--expires", metavar="TIME", type=_lifetime, help="valid for so long, as 12h or 30d")
    command.add_argument(
        "--compatibility", choices=("strict", "lenient"), help="lenient removes unknown fields instead of refusing them"
    )
    command.add_argument(
        "--profiles",
        metavar="DIR",
        action="append",
        type=Path,
        help="a directory of model profiles, to see whether --models are there; default: as `deck serve`",
    )
    _sources(command)
    command.set_defaults(run=_run_create)


def _list(actions: Any) -> None:
    command = actions.add_parser(
        "list",
        help="list the tokens",
        description="List the tokens of the state directory, never their text. That of DECK_TOKEN is not among them.",
        epilog="example:\n  deck token list",
        formatter_class=_RAW,
    )
    _sources(command)
    command.set_defaults(run=_run_list)


def _revoke(actions: Any) -> None:
    command = actions.add_parser(
        "revoke",
        help="make a token invalid",
        description="Remove a token. New requests with it are refused; answers that already run are finished.",
        epilog="example:\n  deck token revoke laptop",
        formatter_class=_RAW,
    )
    command.add_argument("name", metavar="NAME", help="the token's name, as `deck token list` shows it")
    _sources(command)
    command.set_defaults(run=_run_revoke)


def _sources(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", metavar="FILE", help="a deck.toml; default: ./deck.toml if it is there")
    command.add_argument("--state", metavar="DIR", type=Path, help="where tokens are kept; default: as `deck serve`")


def _names(text: str) -> list[str]:
    names = [name for name in (item.strip() for item in text.split(",")) if name]
    if not names:
        raise argparse.ArgumentTypeError("name at least one model")
    return names


def _lifetime(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc
    if seconds < 1:
        raise argparse.ArgumentTypeError("a token lives for a second at least; leave the option out for ever")
    if seconds > _LONGEST:
        raise argparse.ArgumentTypeError("a token lives for 100 years at most; leave the option out for ever")
    return seconds


def _store(arguments: argparse.Namespace) -> TokenStore:
    from deck.config import load_config

    file = Path(arguments.config) if arguments.config else None
    config = load_config(file, os.environ, {"state": arguments.state})
    return TokenStore(config.state / "tokens.json", None)


def _warn_of_unknown(arguments: argparse.Namespace) -> None:
    """Say which of the models are no ids, so that the token would reach nothing by them.

    Without a directory of profiles only those that come with Deck are known, and no name is called unknown.
    """
    from deck.loading import load
    from deck.serve import configuration

    config = configuration(arguments)
    _, catalog = load(config)
    for name in arguments.models or ():
        match = catalog.resolve(name)
        if match is None:
            if config.profiles:
                where = ", ".join(str(path) for path in config.profiles)
                print(f"warning: no profile in {where} has the id {name!r}", file=sys.stderr)
        elif match.profile.id != name:
            print(f"warning: {name!r} is an alias; the id to give is {match.profile.id!r}", file=sys.stderr)


def _run_create(arguments: argparse.Namespace) -> int:
    if arguments.models:
        _warn_of_unknown(arguments)
    store = _store(arguments)
    entry, plaintext = store.create(
        arguments.name, arguments.models, arguments.admin, arguments.expires, arguments.compatibility
    )
    until = f", valid until {_time(entry.expires)}" if entry.expires is not None else ""
    print(f"Token {entry.name!r}{until}. Keep it: it is not shown again.", file=sys.stderr)
    print(f"It is for a Deck with this state directory: {store.directory}", file=sys.stderr)
    print(plaintext)
    return 0


def _run_list(arguments: argparse.Namespace) -> int:
    store = _store(arguments)
    if store.fault is not None:
        raise DeckError(ErrorKind.INTERNAL, f"{store.fault}; repair or remove it")
    rows = [_COLUMNS, *(_row(entry, time.time()) for entry in store.entries())]
    if len(rows) == 1:
        print("no tokens yet; make one with: deck token create NAME", file=sys.stderr)
        return 0
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _run_revoke(arguments: argparse.Namespace) -> int:
    entry = _store(arguments).revoke(arguments.name)
    print(f"Token {entry.name!r} ({entry.id}) is revoked.", file=sys.stderr)
    return 0


def _row(entry: Entry, now: float) -> tuple[str, ...]:
    expires = "never" if entry.expires is None else _time(entry.expires)
    return (
        entry.id,
        entry.name,
        "all" if entry.models is None else ",".join(entry.models),
        "admin" if entry.admin else "client",
        entry.compatibility or "-",
        _time(entry.created),
        f"{expires} (expired)" if entry.is_expired(now) else expires,
    )


def _time(seconds: int) -> str:
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):  # somebody wrote it there
        return f"{seconds} s"
