"""`deck profiles`: list the models, show those that come with Deck, and enable them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deck.catalog import Catalog, CatalogError
from deck.config import Config
from deck.contracts import Facts
from deck.loading import StartError, available, load
from deck.plugins import PluginError
from deck.profile import Profile, ProfileError
from deck.serve import configuration
from deck.settings import nearest

_RAW = argparse.RawDescriptionHelpFormatter
Sources = Callable[[argparse.ArgumentParser], None]


def add(commands: Any, sources: Sources) -> None:
    """Add the command to those of `deck`; `sources` adds the options that say where settings come from."""
    command = commands.add_parser(
        "profiles",
        help="list the models, enable those that come with Deck",
        description="List each model with its family and why, its aliases, and the file that describes it;\n"
        "a file that replaces one of a lower source says which.",
        epilog="examples:\n  deck profiles\n  deck profiles available\n"
        "  deck profiles enable qwen3-coder-30b --profiles ~/deck-profiles",
        formatter_class=_RAW,
    )
    sources(command)
    command.set_defaults(run=_run_list)
    actions = command.add_subparsers(metavar="ACTION")
    _available(actions, sources)
    _enable(actions, sources)


def _available(actions: Any, sources: Sources) -> None:
    command = actions.add_parser(
        "available",
        help="show the models whose profiles come with Deck",
        description="Show the well-known models that Deck has a profile for: from where llama-server downloads each,\n"
        "and the context it is set up with. None is served before `deck profiles enable`.",
        epilog="example:\n  deck profiles available",
        formatter_class=_RAW,
        argument_default=argparse.SUPPRESS,  # else what stood before the action would be overwritten
    )
    sources(command)
    command.set_defaults(run=_run_available)


def _enable(actions: Any, sources: Sources) -> None:
    command = actions.add_parser(
        "enable",
        help="serve a model whose profile comes with Deck",
        description="Copy a profile that comes with Deck into your directory of profiles, the last one given. It is\n"
        "yours then: change its context, quantisation or sampling as you like. The model is downloaded by\n"
        "llama-server when it is first asked for. A running Deck serves it after a restart.",
        epilog="example:\n  deck profiles enable gpt-oss-20b --profiles ~/deck-profiles\n"
        "  deck probe gpt-oss-20b --profiles ~/deck-profiles",
        formatter_class=_RAW,
        argument_default=argparse.SUPPRESS,
    )
    command.add_argument("names", metavar="NAME", nargs="+", help="the model's id, as `deck profiles available` has it")
    sources(command)
    command.set_defaults(run=_run_enable)


def _run_list(arguments: argparse.Namespace) -> int:
    plugins, catalog = load(configuration(arguments))
    for profile in catalog.profiles:
        family, why = plugins.family(profile, Facts())
        print(f"{profile.id}  [{profile.kind}]  family {family.name} ({why})")
        if profile.aliases:
            print(f"    aliases  {', '.join(profile.aliases)}")
        print(f"    file     {profile.source}")
        for shadowed in catalog.shadows.get(profile.id, ()):
            print(f"    replaces {shadowed}")
    return 0


def _run_available(arguments: argparse.Namespace) -> int:
    _, catalog = load(configuration(arguments))
    enabled = {profile.id for profile in catalog.profiles}
    found = available().profiles
    width = max((len(profile.id) for profile in found), default=0)
    for profile in found:
        context = f"{(profile.server.ctx_size or 0) // profile.server.parallel} tokens"
        mark = "  (enabled)" if profile.id in enabled else ""
        print(f"{profile.id.ljust(width)}  {profile.server.hf or profile.server.model}  {context}{mark}")
    return 0


def _run_enable(arguments: argparse.Namespace) -> int:
    config = configuration(arguments)
    directory = _directory(config)
    shipped = available()
    for profile in [_wanted(name, shipped) for name in arguments.names]:
        path = enable(profile, directory, config)
        print(f"{profile.id}: {path}")
    first = arguments.names[0]
    print(f"Next: `deck check`, then `deck probe {first}` downloads and tries it, and `deck serve` serves it,")
    print(f"each with --profiles {directory} unless DECK_PROFILES or deck.toml names that directory.")
    return 0


def _directory(config: Config) -> Path:
    if not config.profiles:
        raise StartError("no directory of profiles: give one with --profiles DIR, DECK_PROFILES, or in deck.toml")
    return config.profiles[-1]


def _wanted(name: str, shipped: Catalog) -> Profile:
    match = shipped.resolve(name)
    if match is None:
        known = [profile.id for profile in shipped.profiles]
        message = f"no profile named {name!r} comes with Deck{nearest(name, known)}; see `deck profiles available`"
        raise StartError(message)
    return match.profile


def enable(profile: Profile, directory: Path, config: Config) -> Path:
    """Copy a shipped profile into an operator's directory and return the new file.

    Raises:
        StartError: it is there already, cannot be written, or does not fit beside the operator's other profiles.
    """
    path = directory / f"{profile.id}.toml"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for other in Catalog.load([directory]).profiles:
            if other.id == profile.id:
                raise StartError(f"{profile.id!r} is enabled already: {other.source}")
        text = profile.source.read_text(encoding="utf-8")
        file = path.open("x", encoding="utf-8")
    except OSError as exc:
        raise StartError(f"{path} cannot be written: {exc.strerror}") from exc
    try:
        with file:
            file.write(text)
        load(config)
    except OSError as exc:
        path.unlink()
        raise StartError(f"{path} cannot be written: {exc.strerror}") from exc
    except (CatalogError, ProfileError, PluginError, StartError):
        path.unlink()
        raise
    return path
