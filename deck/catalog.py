"""The catalog: every profile of every source under its id and aliases, as one immutable value.

Knows which source wins and which names clash. Does not know what a profile is used for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import deck
from deck.canon.value import value
from deck.errors import DeckError, ErrorKind
from deck.profile import Kind, Profile, load_profile

# Claude Code appends this to a model's name to ask for a context of a million tokens.
_SUFFIX = "[1m]"
# Below the shipped profiles, where no search for profiles looks.
_SHELF = "models"


class CatalogError(ValueError):
    """Profiles cannot stand beside each other; the message names the files."""


def no_model(name: str, known: Iterable[str]) -> DeckError:
    """Return the error for a name that is none of a model; `known` are those that the client may use there."""
    listed = ", ".join(sorted(known)) or "none"
    message = f"no model named {name[:100]!r}; this token may use: {listed}"
    return DeckError(ErrorKind.MODEL_NOT_FOUND, message, param="model", code="model_not_found")


@value(frozen=True, slots=True)
class Match:
    """A profile, and what of the asked name led to it; `suffix` = what remained without a `[1m]`."""

    profile: Profile
    via: Literal["id", "alias", "suffix"]


class Catalog:
    """Every model that Deck serves.

    Args:
        profiles: those in force; their ids and aliases differ.
        shadows: by id, the files whose profile a higher source replaced, lowest first.

    Raises:
        CatalogError: two profiles claim one name.
    """

    def __init__(self, profiles: Iterable[Profile], shadows: Mapping[str, Sequence[Path]] | None = None) -> None:
        self._profiles = tuple(sorted(profiles, key=lambda profile: profile.id))
        self._shadows = MappingProxyType({name: tuple(files) for name, files in (shadows or {}).items()})
        self._names = MappingProxyType(_names(self._profiles))

    @classmethod
    def load(cls, directories: Iterable[Path]) -> Catalog:
        """Read `*.toml` of directories in rising precedence; a later one replaces the whole profile of the same id.

        Raises:
            ProfileError: a file cannot be used.
            CatalogError: a directory is missing, or names clash.
        """
        found: dict[str, Profile] = {}
        shadows: dict[str, list[Path]] = {}
        seen: set[Path] = set()
        for directory in directories:
            if directory.resolve() in seen:
                continue
            seen.add(directory.resolve())
            for profile in _directory(directory):
                if profile.id in found:
                    shadows.setdefault(profile.id, []).append(found[profile.id].source)
                found[profile.id] = profile
        return cls(found.values(), shadows)

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Every profile in force, by id."""
        return self._profiles

    @property
    def shadows(self) -> Mapping[str, Sequence[Path]]:
        """By id, the files whose profile a higher source replaced."""
        return self._shadows

    def of_kind(self, kind: Kind) -> tuple[Profile, ...]:
        """Return the profiles of a kind."""
        return tuple(profile for profile in self._profiles if profile.kind == kind)

    def resolve(self, name: str) -> Match | None:
        """Return the profile of an id or alias, with or without a `[1m]` suffix; None = there is none."""
        match = self._names.get(name)
        if match is not None or not name.endswith(_SUFFIX):
            return match
        match = self._names.get(name.removesuffix(_SUFFIX))
        return Match(match.profile, "suffix") if match is not None else None


def shipped_dir() -> Path:
    """Return the directory of the profiles that come with Deck: inside the package, in a checkout beside it."""
    package = Path(deck.__file__).resolve().parent
    inside = package / "_profiles"
    return inside if inside.is_dir() else package.parent / "profiles"


def shelf(shipped: Path) -> Catalog:
    """Return the profiles that come with Deck and are not in force until an operator enables them.

    Raises:
        ProfileError: a file cannot be used.
        CatalogError: names clash.
    """
    directory = shipped / _SHELF
    return Catalog.load([directory]) if directory.is_dir() else Catalog(())


def _directory(directory: Path) -> list[Profile]:
    if not directory.is_dir():
        raise CatalogError(f"{directory}: no such directory of profiles")
    found: dict[str, Profile] = {}
    for path in sorted(directory.glob("[!.]*.toml")):  # editors keep locks and copies in hidden files
        profile = load_profile(path)
        other = found.setdefault(profile.id, profile)
        if other is not profile:
            raise CatalogError(f"{path}: id: {profile.id!r} is already the id in {other.source}; give one another id")
    return list(found.values())


def _names(profiles: Sequence[Profile]) -> dict[str, Match]:
    names: dict[str, Profile] = {}
    for profile in profiles:
        if profile.id in names:
            raise CatalogError(f"{profile.source}: id: {profile.id!r} is already the id in {names[profile.id].source}")
        names[profile.id] = profile
    for profile in profiles:
        for alias in profile.aliases:
            other = names.setdefault(alias, profile)
            if other is not profile:
                what = "id" if other.id == alias else "alias"
                message = f"{profile.source}: aliases: {alias!r} is already an {what} in {other.source}; remove one"
                raise CatalogError(message)
    return {name: Match(profile, "id" if profile.id == name else "alias") for name, profile in names.items()}
