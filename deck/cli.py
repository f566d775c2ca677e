"""The `deck` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deck import __version__, cli_probe, cli_profiles, cli_servers, cli_token, json
from deck.admin import explain
from deck.catalog import CatalogError
from deck.cli_servers import AskError
from deck.config import Config, ConfigError
from deck.errors import DeckError
from deck.loading import StartError, available, load, profile_fault
from deck.plugins import PluginError, Plugins
from deck.profile import Profile, ProfileError
from deck.serve import configuration, serve, token_store

_RAW = argparse.RawDescriptionHelpFormatter
_FAULTS = (ConfigError, CatalogError, ProfileError, PluginError, StartError, AskError)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    arguments = parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
    except _FAULTS as exc:
        print(f"deck: {exc}", file=sys.stderr)
        return 1
    except DeckError as error:
        print(f"deck: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains once more at its end
        return 1
    return status


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(
        prog="deck",
        description="A compatibility router in front of llama-server. Point any client at it; it starts the model the\n"
        "request names, answers in the client's own wire, and says what it could not honour.",
        epilog="first steps:\n  deck serve                 start with the shipped demo model\n"
        "  deck token create laptop   make a token for a client\n"
        "  deck profiles              see the models and where their profiles lie\n"
        "  deck profiles available    see the models that Deck has a profile for\n"
        "  deck check                 find what would fail before serving",
        formatter_class=_RAW,
    )
    top.add_argument("--version", action="version", version=f"deck {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    _serve(commands)
    _check(commands)
    _explain(commands)
    cli_profiles.add(commands, _sources)
    cli_probe.add(commands, _sources)
    _plugins(commands)
    cli_token.add(commands)
    cli_servers.add(commands)
    _add_plugin_commands(commands)
    return top


def _add_plugin_commands(commands: Any) -> None:
    try:
        Plugins(Config()).add_commands(commands)
    except PluginError as exc:
        # The commands that need plugins say so themselves; the others must go on, to find out what is wrong.
        print(f"deck: {exc}", file=sys.stderr)


def _sources(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", metavar="FILE", help="a deck.toml; default: ./deck.toml if it is there")
    command.add_argument(
        "--profiles",
        metavar="DIR",
        action="append",
        type=Path,
        help="a directory of model profiles (*.toml); may be given several times, a later one wins",
    )
    command.add_argument("--state", metavar="DIR", type=Path, help="where tokens, logs and sockets are kept")


def _serve(commands: Any) -> None:
    command = commands.add_parser(
        "serve",
        help="serve clients",
        description="Listen for clients and start llama-servers as they are asked for. The first start with no token\n"
        "makes one and prints it once. Ends on SIGTERM or Ctrl-C: running answers are finished first.",
        epilog="example:\n  deck serve --profiles ~/models/profiles --port 8484",
        formatter_class=_RAW,
    )
    _sources(command)
    command.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    command.add_argument("--port", type=int, help="port to listen on (default 8484)")
    command.add_argument("--log-level", dest="log_level", help="debug, info, warning or error (default info)")
    command.set_defaults(run=serve)


def _check(commands: Any) -> None:
    command = commands.add_parser(
        "check",
        help="find what would fail before serving",
        description="Validate configuration, profiles, plugins, model files and the llama-server binary.\n"
        "Exit status 0 = all good, 1 = something would fail; each finding names the file and the remedy.",
        formatter_class=_RAW,
    )
    _sources(command)
    command.set_defaults(run=_run_check)


def _run_check(arguments: argparse.Namespace) -> int:
    from deck.servers import check_profile, replica_notes

    config = configuration(arguments)
    plugins, catalog = load(config)
    print(f"ok       configuration, {len(plugins.loaded)} plugins")
    for warning in config.warnings:
        print(f"warning  {warning}")
    if hosts := (*config.media.allow, *config.media.allow_private):
        print(f"ok       images by URL are fetched from {', '.join(hosts)}")
    bad = _check_state(config)
    for profile in catalog.profiles:
        faults = check_profile(profile, config)
        bad += bool(faults)
        print(f"{'FAILED ' if faults else 'ok     '}  {profile.id} ({profile.source})")
        for fault in faults:
            print(f"         {fault}")
        for note in (*_memory_notes(profile, config), *replica_notes(profile)):
            print(f"         note: {note}")
        for note in _notes(profile):
            print(f"         note: {note}")
    if not catalog.profiles:
        print("FAILED   no profiles: give a directory with --profiles")
    bad += _check_shelf(plugins)
    return 1 if bad or not catalog.profiles else 0


def _check_state(config: Config) -> int:
    """Check what Deck keeps in its state directory; return how much of that would fail."""
    from deck.servers.place import state_fault

    found = (state_fault(config.state), token_store(config).fault)
    for fault in found:
        if fault is not None:
            print(f"FAILED   state: {fault}")
    if not any(found):
        print(f"ok       state in {config.state}")
    return sum(fault is not None for fault in found)


def _memory_notes(profile: Profile, config: Config) -> list[str]:
    """Say what a local model is reckoned to take of what there is; one that does not fit is a fault."""
    from deck.servers.memory import estimate_memory
    from deck.settings import shown_size

    budget = config.scheduler.memory
    if profile.server.is_remote or budget is None:
        return []
    memory = estimate_memory(profile)
    if memory is None:
        return ["nobody knows what it takes, so no other local model is loaded beside it; set server.memory"]
    return [] if memory > budget else [f"takes about {shown_size(memory)} of {shown_size(budget)}"]


def _notes(profile: Profile) -> Iterator[str]:
    """Yield what an operator should know of a profile that will work."""
    measured = profile.capabilities.measured
    if measured is not None and profile.measured is None:
        yield f"what was measured is of {measured.of!r} and counts no more: run `deck probe {profile.id} --write`"
    if profile.server.hf is not None:
        yield f"llama-server downloads {profile.server.hf} when it is first asked for"


def _check_shelf(plugins: Plugins) -> int:
    """Check the profiles that nobody has enabled; return how many would fail."""
    from deck.servers.command import setting_faults

    found = available().profiles
    bad = 0
    for profile in found:
        fault = profile_fault(profile, plugins)
        faults = [*([fault] if fault else []), *setting_faults(profile)]
        bad += bool(faults)
        for item in faults:
            print(f"FAILED   {profile.id} ({profile.source})\n         {item}")
    if found and not bad:
        print(f"ok       profiles not enabled: {len(found)} (see `deck profiles available`)")
    return bad


def _explain(commands: Any) -> None:
    command = commands.add_parser(
        "explain",
        help="show what Deck would make of a request",
        description="Read a client's request body and show its canonical form, the body that llama-server would get,\n"
        "and each note with its reason. Nothing is executed; facts of a running server are not known here\n"
        "(POST /deck/explain of a running Deck knows them).",
        epilog="example:\n  deck explain request.json\n  echo '{…}' | deck explain -",
        formatter_class=_RAW,
    )
    _sources(command)
    command.add_argument("file", metavar="FILE", help="a JSON body, - for standard input")
    command.add_argument("--surface", default="chat", help="the wire it was written for (default chat)")
    command.set_defaults(run=_run_explain)


def _run_explain(arguments: argparse.Namespace) -> int:
    from deck.app import Deck
    from deck.serving import NOBODY

    config = configuration(arguments)
    plugins, catalog = load(config)
    deck = Deck(config, catalog, plugins, token_store(config))
    content = _content(arguments.file)
    surface = plugins.surfaces.get(arguments.surface)
    if surface is None:
        raise StartError(f"no surface named {arguments.surface!r}; known: {', '.join(sorted(plugins.surfaces))}")
    try:
        shown = explain(deck.pipeline, surface, json.loads_request(content), NOBODY)
    except DeckError as error:
        print(json.pretty(surface.error(error, "dry-run")))
        return 1
    print(json.pretty(shown))
    return 0


def _content(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as exc:
        raise StartError(f"{file} cannot be read: {exc.strerror}") from exc


def _plugins(commands: Any) -> None:
    command = commands.add_parser(
        "plugins",
        help="list the plugins",
        description="List each plugin with its distribution and the hooks it implements, then what they registered.",
        formatter_class=_RAW,
    )
    _sources(command)
    command.set_defaults(run=_run_plugins)


def _run_plugins(arguments: argparse.Namespace) -> int:
    config: Config = configuration(arguments)
    plugins, _ = load(config)
    for item in plugins.loaded:
        print(f"{item.name}  {item.module}  ({item.distribution} {item.version})")
        print(f"    hooks  {', '.join(item.hooks) or 'none'}")
    print(f"surfaces  {', '.join(sorted(plugins.surfaces))}")
    print(f"operations  {', '.join(sorted(plugins.operations))}")
    print(f"families  {', '.join(sorted(plugins.families))}")
    print(f"steps     {', '.join(f'{step.phase}:{step.name}' for step in plugins.steps) or 'none of plugins'}")
    return 0
