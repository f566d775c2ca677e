"""The typed face of the plugins: what they registered, checked once; nothing else touches pluggy.

Plugins register through the entry-point group `deck`; built-in ones do as well. A broken plugin refuses start-up,
naming its entry point and distribution.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pluggy

from deck import hookspecs
from deck.config import Config
from deck.contracts import Facts, Family, Launcher, Observer, Route, Step, Surface
from deck.operation import Operation
from deck.profile import Profile

GROUP = "deck"


class PluginError(Exception):
    """A plugin that cannot be used; the message names it and its distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """One plugin as it was found."""

    name: str
    module: str
    distribution: str
    version: str
    hooks: tuple[str, ...]


class Plugins:
    """All plugins, loaded; `entry_points` stands in for the installed ones in tests."""

    def __init__(self, config: Config, entry_points: Iterable[importlib.metadata.EntryPoint] | None = None) -> None:
        self._config = config
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._owners: dict[tuple[str, str], list[str]] = {}
        self.loaded: tuple[Loaded, ...] = tuple(
            self._load(point)
            for point in sorted(
                entry_points if entry_points is not None else importlib.metadata.entry_points(group=GROUP),
                key=lambda point: point.name,
            )
        )
        self.surfaces: Mapping[str, Surface] = self._named("deck_register_surfaces", Surface, "surface")
        self.families: Mapping[str, Family] = self._named("deck_register_families", Family, "family")
        self.steps: Sequence[Step] = sorted(
            self._call("deck_register_steps", Step), key=lambda step: (step.phase, step.name)
        )
        self.observers: Sequence[Observer] = self._call("deck_register_observers", Observer)
        self.operations: Mapping[str, Operation] = self._named("deck_register_operations", Operation, "operation")
        self.routes: Mapping[str, tuple[Surface, Route]] = self._routes()
        self.operation_routes: Mapping[str, Operation] = self._operation_routes()

    def _load(self, point: importlib.metadata.EntryPoint) -> Loaded:
        found = point.dist
        distribution, version = (found.name, found.version) if found else ("unknown", "")
        if self._manager.has_plugin(point.name):
            raise PluginError(f"two plugins are named {point.name!r}; the second is in {distribution!r}")
        try:
            plugin = point.load()
            self._manager.register(plugin, name=point.name)
            self._manager.check_pending()
        except Exception as exc:
            raise PluginError(
                f"plugin {point.name!r} ({point.value}) of {distribution} {version} cannot be loaded: {exc}; "
                f"repair or uninstall {distribution}"
            ) from exc
        hooks = tuple(sorted(caller.name for caller in self._manager.get_hookcallers(plugin) or []))
        return Loaded(name=point.name, module=point.value, distribution=distribution, version=version, hooks=hooks)

    def _call(self, hook: str, protocol: Any) -> list[Any]:
        found: list[Any] = []
        for implementation in getattr(self._manager.hook, hook).get_hookimpls():
            try:
                results = list(implementation.function(**self._arguments(implementation)) or ())
            except Exception as exc:
                raise self._fault(implementation, f"{hook} failed: {exc}") from exc
            for result in results:
                if not isinstance(result, protocol):
                    what = f"{hook} returned {type(result).__name__}, which is not a {protocol.__name__}"
                    raise self._fault(implementation, what)
                if isinstance(getattr(result, "name", None), str):
                    self._owners[hook, result.name] = [
                        *self._owners.get((hook, result.name), []),
                        self._who(implementation),
                    ]
            found += results
        return found

    def _ask(self, hook: str, **arguments: Any) -> Any:
        caller = getattr(self._manager.hook, hook)
        try:
            return caller(**arguments)
        except Exception as exc:
            asked = " or ".join(self._who(implementation) for implementation in caller.get_hookimpls())
            raise PluginError(f"{asked}: {hook} failed: {exc}; repair or uninstall it") from exc

    def _who(self, implementation: Any) -> str:
        loaded = next((item for item in self.loaded if item.name == implementation.plugin_name), None)
        source = f" of {loaded.distribution} {loaded.version}".rstrip() if loaded else ""
        return f"plugin {implementation.plugin_name!r}{source}"

    def _fault(self, implementation: Any, what: str) -> PluginError:
        return PluginError(f"{self._who(implementation)}: {what}; repair or uninstall it")

    def _named(self, hook: str, protocol: Any, what: str) -> dict[str, Any]:
        named: dict[str, Any] = {}
        for item in self._call(hook, protocol):
            if item.name in named:
                owners = " and ".join(self._owners[hook, item.name])
                raise PluginError(f"a {what} named {item.name!r} is registered twice: by {owners}; uninstall one")
            named[item.name] = item
        return named

    def _arguments(self, implementation: Any) -> dict[str, Any]:
        return {name: self._config for name in implementation.argnames if name == "config"}

    def _routes(self) -> dict[str, tuple[Surface, Route]]:
        routes: dict[str, tuple[Surface, Route]] = {}
        for surface in self.surfaces.values():
            for route in surface.routes:
                if route.path in routes:
                    other = routes[route.path][0].name
                    raise PluginError(f"surfaces {other!r} and {surface.name!r} both claim {route.path!r}")
                routes[route.path] = (surface, route)
        return routes

    def _operation_routes(self) -> dict[str, Operation]:
        found: dict[str, Operation] = {}
        for operation in self.operations.values():
            if operation.name in self.surfaces:
                raise PluginError(f"a surface and an operation are both named {operation.name!r}")
            if operation.surface is not None and operation.surface not in self.surfaces:
                raise PluginError(f"the operation {operation.name!r} needs the surface {operation.surface!r}")
            for path in operation.paths:
                other = found.get(path) or (self.routes[path][0] if path in self.routes else None)
                if other is not None:
                    raise PluginError(f"{other.name!r} and the operation {operation.name!r} both claim {path!r}")
                found[path] = operation
        return found

    def routes_of_kind(self, kind: str) -> list[str]:
        """Return the public routes that a model of a kind serves, its own before those that others serve as well."""
        if kind == "chat":
            return [f"/v1{path}" for path, (_, route) in self.routes.items() if route.operation == "generate"]
        serving = [item for item in self.operations.values() if kind in item.kinds]
        return [f"/v1{item.paths[0]}" for item in sorted(serving, key=lambda item: len(item.kinds) > 2)]

    def profile_dirs(self) -> list[Path]:
        """Return the directories of profiles that plugins bring."""
        found = self._ask("deck_profile_dirs", config=self._config)
        return [Path(item) for result in found for item in result]

    def add_commands(self, subparsers: Any) -> None:
        """Let plugins add subcommands."""
        self._ask("deck_add_commands", subparsers=subparsers)

    def launcher(self, profile: Profile) -> Launcher | None:
        """Return a plugin's launcher for the profile, None = Deck's own."""
        found: Launcher | None = self._ask("deck_make_launcher", profile=profile, config=self._config)
        return found

    def policy(self) -> Any:
        """Return a plugin's scheduling policy, None = Deck's own."""
        return self._ask("deck_make_policy", config=self._config)

    def lifespans(self, services: Mapping[str, Any]) -> list[Any]:
        """Return the async contexts to enter at start-up."""
        return list(self._ask("deck_lifespan", services=services))

    def family(self, profile: Profile, facts: Facts) -> tuple[Family, str]:
        """Return the family of a model and why: the profile names it, a plugin chose it by facts, or it is generic.

        Raises:
            PluginError: the name belongs to no family.
        """
        name, why = profile.family, "the profile names it"
        if name is None:
            name, why = self._ask("deck_choose_family", profile=profile, facts=facts), "chosen from facts"
        if name is None:
            name, why = "generic", "nothing chose another"
        if name not in self.families:
            known = ", ".join(sorted(self.families))
            raise PluginError(f"profile {profile.id!r}: no family named {name!r}; known: {known}")
        return self.families[name], why
