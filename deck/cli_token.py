"""`deck token`: make, list and revoke tokens; effective in a running Deck within a second."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from deck.tokens import TokenError, TokenStore, parse_duration

_RAW = argparse.RawDescriptionHelpFormatter


def add(commands: Any) -> None:
    """Add the command and its subcommands."""
    token = commands.add_parser(
        "token",
        help="make, list and revoke tokens",
        description="Tokens are kept as SHA-256 digests in the state directory; a running Deck sees changes by itself.",
        epilog="example:\n  deck token create laptop --models tiny-chat --expires 30d",
        formatter_class=_RAW,
    )
    actions = token.add_subparsers(metavar="ACTION", required=True)
    create = actions.add_parser("create", help="make a token and print it once")
    create.add_argument("name", metavar="NAME", help="whom or what it is for")
    create.add_argument("--models", metavar="A,B", help="only these models (profile ids); default: all")
    create.add_argument("--admin", action="store_true", help="may use administrative routes")
    create.add_argument("--expires", metavar="TIME", help="30d, 12h, 90m; default: never")
    create.add_argument("--lenient", action="store_true", help="report unknown fields instead of refusing them")
    create.set_defaults(run=_create)
    listing = actions.add_parser("list", help="list tokens, without secrets")
    listing.set_defaults(run=_list)
    revoke = actions.add_parser("revoke", help="remove a token")
    revoke.add_argument("name", metavar="NAME")
    revoke.set_defaults(run=_revoke)
    for action in (create, listing, revoke):
        action.add_argument("--state", metavar="DIR", help="the state directory of `deck serve`")
        action.add_argument("--config", metavar="FILE", help="a deck.toml")


def _store(arguments: argparse.Namespace) -> TokenStore:
    from deck.serve import configuration

    return TokenStore(configuration(arguments).state / "tokens.json")


def _guarded(work: Any) -> int:
    try:
        work()
    except TokenError as exc:
        print(f"deck: {exc}", file=sys.stderr)
        return 1
    return 0


def _create(arguments: argparse.Namespace) -> int:
    def work() -> None:
        models = [name.strip() for name in arguments.models.split(",") if name.strip()] if arguments.models else None
        _, token = _store(arguments).create(
            arguments.name,
            models=models,
            admin=arguments.admin,
            expires_in=parse_duration(arguments.expires) if arguments.expires else None,
            compatibility="lenient" if arguments.lenient else None,
        )
        print(token)
        print("Shown once; keep it. Clients send it as 'Authorization: Bearer …'.", file=sys.stderr)

    return _guarded(work)


def _list(arguments: argparse.Namespace) -> int:
    for entry in _store(arguments).entries():
        until = "never" if entry.expires is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.expires))
        models = "all models" if entry.models is None else ", ".join(entry.models)
        flags = " admin" if entry.admin else ""
        print(f"{entry.name}  {models}{flags}  expires {until}")
    return 0


def _revoke(arguments: argparse.Namespace) -> int:
    return _guarded(lambda: _store(arguments).revoke(arguments.name))
