"""`deck probe`: try a model, show what it can, and write it into its profile."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from deck import json
from deck.catalog import Catalog
from deck.config import Config
from deck.loading import StartError, available, is_shipped, load
from deck.profile import Profile
from deck.serve import configuration
from deck.settings import parse_duration

_RAW = argparse.RawDescriptionHelpFormatter
_LIMIT = 300.0


def add(commands: Any, sources: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the command to those of `deck`; `sources` adds the options that say where settings come from."""
    command = commands.add_parser(
        "probe",
        help="try a model and show what it can",
        description="Start the model as `deck serve` would, downloading it if need be, and ask it small things: text,\n"
        "streaming, system and developer roles, tools (one, two at once, required, results), thinking on and\n"
        "off, efforts, a JSON schema, images, audio, its context, tokens a second. Then show a table.\n"
        "A question mark means that the probe could not find out; the remark says why.\n"
        "What is measured is what a client would get: the profile's sampling and the model's family are in\n"
        "force, with a fixed seed. Roles and efforts are asked of the chat template alone, since a family\n"
        "repairs them.\n"
        "Exit status 0 = the model answers, 1 = it does not start or does not answer.",
        epilog="examples:\n  deck probe qwen3-8b --profiles ~/deck-profiles\n"
        "  deck probe qwen3-8b --write     keep the result in the profile, as [capabilities.measured]\n"
        "  deck probe qwen3-8b --json      for programs; progress goes to standard error",
        formatter_class=_RAW,
    )
    command.add_argument("model", metavar="MODEL", help="id or alias of a chat model, as `deck profiles` lists it")
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    command.add_argument("--write", action="store_true", help="put the result into the profile's file")
    command.add_argument(
        "--limit", metavar="TIME", type=_duration, default=_LIMIT, help="longest time for one question (default 5m)"
    )
    sources(command)
    command.set_defaults(run=run)


def _duration(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc
    if not seconds:
        raise argparse.ArgumentTypeError("a question needs some time")
    return seconds


def run(arguments: argparse.Namespace) -> int:
    """Probe the model; return the exit status."""
    from rich.console import Console

    from deck.probe import Finding, probe
    from deck.probe_measures import MEASURES
    from deck.probe_result import Result, show, worded, write

    logging.getLogger("deck").addHandler(logging.NullHandler())  # what fails is told once, as the command's own error
    config = configuration(arguments)
    plugins, catalog = load(config)
    profile = wanted(arguments.model, catalog)
    if arguments.write:
        writable(profile)
    errors = Console(stderr=True, highlight=False)
    warn_of_others(config, profile)

    def told(finding: Finding) -> None:
        if not errors.is_terminal:
            errors.print(f"  {finding.measure.title}: {worded(finding.value)} {finding.remark}", markup=False)

    with _progress(errors, len(MEASURES)) as begun:
        work = probe(profile, config, plugins, MEASURES, limit=arguments.limit, on_begin=begun, on_end=told)
        subject, findings = asyncio.run(work)
    result = Result(
        profile=profile,
        family=subject.family,
        build=subject.facts.build,
        at=datetime.datetime.now(datetime.UTC).date(),
        findings=findings,
    )
    written = write(result) if arguments.write else None
    if arguments.json:
        print(json.pretty(result.as_json() | {"written": str(written) if written else None}))
    else:
        show(result, Console(highlight=False))
        print(f"Written to {written}." if written else "Keep it in the profile with --write.")
    return 0 if result.is_usable else 1


def wanted(name: str, catalog: Catalog) -> Profile:
    """Return the chat model of a name.

    Raises:
        StartError: there is none, or it is of another kind.
    """
    match = catalog.resolve(name)
    if match is None:
        if available().resolve(name) is not None:
            raise StartError(f"{name!r} comes with Deck but is not enabled: run `deck profiles enable {name}` first")
        known = ", ".join(profile.id for profile in catalog.of_kind("chat")) or "none"
        raise StartError(f"no model named {name!r}; known: {known}")
    if match.profile.kind != "chat":
        raise StartError(f"{name!r} is of kind {match.profile.kind}; only chat models can be probed")
    return match.profile


def writable(profile: Profile) -> None:
    """Refuse to write where an operator's hand has no business, before minutes are spent.

    Raises:
        StartError: the profile is Deck's own, or its file may not be written.
    """
    path = profile.source
    if is_shipped(profile):
        raise StartError(f"{path} is Deck's own: copy it into a directory of yours and give that with --profiles")
    if not os.access(path, os.W_OK) or not os.access(path.resolve().parent, os.W_OK):
        raise StartError(f"{path} may not be written by you; leave --write out, or copy it elsewhere")


def warn_of_others(config: Config, profile: Profile) -> None:
    """Say when a Deck of the same state directory has models in memory: a second one may not fit beside them."""
    from deck.servers.place import listening

    if not profile.server.is_remote and listening(config.state / "run"):
        print(f"note: a Deck on {config.state} has a model loaded; the probe loads another beside it", file=sys.stderr)


@contextlib.contextmanager
def _progress(console: Any, count: int) -> Iterator[Callable[[str], None]]:
    """Show what is under way: a line that changes on a terminal, else a line for the start alone."""
    number = iter(range(count + 1))
    if not console.is_terminal:

        def begun(what: str) -> None:
            if next(number) == 0:
                console.print(f"{what} …", markup=False)

        yield begun
        return
    with console.status("") as status:

        def changed(what: str) -> None:
            at = next(number)
            status.update(f"{what} …" if at == 0 else f"{at} of {count}: {what} …")

        yield changed
