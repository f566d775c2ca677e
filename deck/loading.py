"""Plugins and models, loaded and checked against each other: what `deck serve` starts with and a reload reads anew."""

from __future__ import annotations

from deck.catalog import Catalog, shelf, shipped_dir
from deck.config import Config
from deck.contracts import Facts
from deck.errors import DeckError
from deck.normalize.report import Report
from deck.normalize.sampling import SAMPLING, SAMPLING_NAMES
from deck.plugins import Plugins
from deck.profile import Profile, unknown_sampling


class StartError(Exception):
    """Deck cannot start, or not so; the message says what to change."""


def load(config: Config) -> tuple[Plugins, Catalog]:
    """Return plugins and models.

    Raises:
        StartError: a profile or a family says something that nothing knows.
        PluginError: a plugin cannot be used.
        ProfileError: a file cannot be used.
        CatalogError: names clash.
    """
    plugins = Plugins(config)
    for family in plugins.families.values():
        unknown = sorted(set(family.defaults(Facts())) - SAMPLING_NAMES)
        if unknown:
            raise StartError(f"family {family.name!r}: {', '.join(unknown)}: not a sampling field Deck knows")
    strangers = [name for name in config.lanes if name not in plugins.surfaces]
    if strangers:
        known = ", ".join(sorted(plugins.surfaces))
        raise StartError(f"lanes.{strangers[0]}: no surface named {strangers[0]!r}; known: {known}")
    return plugins, load_catalog(config, plugins)


def load_catalog(config: Config, plugins: Plugins) -> Catalog:
    """Read every profile and check it against the plugins.

    Raises:
        StartError: a profile names a sampling field or a family that nothing knows, or a value out of range.
        ProfileError: a file cannot be used.
        CatalogError: names clash.
    """
    catalog = Catalog.load([shipped_dir(), *plugins.profile_dirs(), *config.profiles])
    for profile in catalog.profiles:
        fault = profile_fault(profile, plugins)
        if fault is not None:
            raise StartError(f"{profile.source}: {fault}")
    return catalog


def available() -> Catalog:
    """Return the profiles that come with Deck and are not in force until an operator enables them."""
    return shelf(shipped_dir())


def is_shipped(profile: Profile) -> bool:
    """Tell whether a profile's file is one that came with Deck."""
    return profile.source.resolve().is_relative_to(shipped_dir().resolve())


def profile_fault(profile: Profile, plugins: Plugins) -> str | None:
    """Return what in a profile does not fit the sampling fields and families there are, None = nothing."""
    unknown = unknown_sampling(profile, SAMPLING_NAMES)
    if unknown:
        return f"{', '.join(unknown)}: not a sampling field Deck knows"
    wrong = _wrong_values(profile)
    if wrong is None and profile.family is not None and profile.family not in plugins.families:
        return f"family: no family named {profile.family!r}; known: {', '.join(sorted(plugins.families))}"
    return wrong


def _wrong_values(profile: Profile) -> str | None:
    """Return what is wrong with a profile's own sampling values: the client must not be blamed for them."""
    types = {field.name: field.type for field in SAMPLING}
    for section in ("defaults", "force"):
        for name, value in getattr(profile, section).items():
            try:
                types[name].check(value, f"{section}.{name}", Report())
            except DeckError as error:
                return error.message
    for name, value in profile.limits.items():
        if types[name].json not in ("integer", "number"):
            return f"limits.{name}: only a number can be limited"
        if name == "max_tokens" and value < 1:
            return "limits.max_tokens: must be at least 1"
    return None
