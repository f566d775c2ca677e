"""The hooks a plugin may implement; called at start-up or reload, never during a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from deck.config import Config
    from deck.contracts import Facts, Family, Launcher, Observer, Step, Surface
    from deck.operation import Operation
    from deck.profile import Profile

PROJECT = "deck"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def deck_add_commands(subparsers: Any) -> None:
    """Add subcommands to the `deck` command (argparse subparsers)."""


@hookspec
def deck_register_surfaces(config: Config) -> Iterable[Surface]:
    """Return surfaces; a name or route that stands twice refuses start-up."""
    raise NotImplementedError


@hookspec
def deck_register_operations(config: Config) -> Iterable[Operation]:
    """Return operations; a name or route that stands twice refuses start-up."""
    raise NotImplementedError


@hookspec
def deck_register_families(config: Config) -> Iterable[Family]:
    """Return families; a name that stands twice refuses start-up."""
    raise NotImplementedError


@hookspec
def deck_register_steps(config: Config) -> Iterable[Step]:
    """Return steps, run in the order of `(phase, name)` after Deck's own."""
    raise NotImplementedError


@hookspec
def deck_register_observers(config: Config) -> Iterable[Observer]:
    """Return observers, told of every exchange after its end."""
    raise NotImplementedError


@hookspec
def deck_profile_dirs(config: Config) -> Iterable[Path]:
    """Return directories of profiles: above the shipped ones, below the operator's."""
    raise NotImplementedError


@hookspec(firstresult=True)
def deck_choose_family(profile: Profile, facts: Facts) -> str | None:
    """Return the family for a model from its facts, None = no opinion; the first answer counts (firstresult)."""


@hookspec(firstresult=True)
def deck_make_policy(config: Config) -> Any:
    """Return the scheduling policy, None = Deck's own; the first answer counts (firstresult)."""


@hookspec(firstresult=True)
def deck_make_launcher(profile: Profile, config: Config) -> Launcher | None:
    """Return what starts this profile's server, None = a local llama-server or its url (firstresult)."""


@hookspec
def deck_lifespan(services: Mapping[str, Any]) -> AbstractAsyncContextManager[None]:
    """Return a context that is entered at start-up and left at the end: the only way to async."""
    raise NotImplementedError
