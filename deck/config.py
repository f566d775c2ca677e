"""How Deck itself is set: defaults, then `deck.toml`, then `DECK_*` variables, then the command line.

Knows the keys and the precedence. Does not know secrets: `DECK_TOKEN` is read by whoever keeps the tokens.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictBool, StringConstraints, ValidationError

from deck.hosts import read_pattern
from deck.profile import Compatibility
from deck.settings import Seconds, Size, Table, expanded, faults, nearest, read_toml

_DEFAULT_FILE = Path("deck.toml")


def _absolute(path: Path) -> Path:
    return expanded(path).absolute()


Place = Annotated[Path, AfterValidator(_absolute)]


class ConfigError(ValueError):
    """The configuration cannot be used; the message names where it was set, the key and the remedy."""


class AdminSettings(Table):
    """`[admin]`: who may use the routes that observe Deck."""

    public_metrics: StrictBool = Field(default=False, description="/metrics needs no token")


def _pattern(text: str) -> str:
    return read_pattern(text)


def _no_star(text: str) -> str:
    if text.startswith("*") and not text.startswith("*."):
        raise ValueError("'*' would open every host of your own networks; name the hosts")
    return text


HostPattern = Annotated[str, AfterValidator(_pattern)]


class MediaSettings(Table):
    """`[media]`: images that clients name by URL; Deck fetches them, llama-server never does."""

    allow: tuple[HostPattern, ...] = Field(default=(), description="hosts on the public internet to fetch from")
    allow_private: tuple[Annotated[HostPattern, AfterValidator(_no_star)], ...] = Field(
        default=(), description="hosts to fetch from that may be this machine or in its own networks"
    )
    max_bytes: Size = Field(default=10_000_000, gt=0, description="largest image")
    timeout: Seconds = Field(default=10.0, gt=0, description="time for the whole of one image")


class SchedulerSettings(Table):
    """`[scheduler]`: what models may take of the machine, and who comes first."""

    memory: Size | None = Field(
        default=None, description="memory that loaded models may take together; not set = one local model at a time"
    )
    ageing: Seconds = Field(default=30.0, gt=0, description="waiting time that counts as one level of priority")
    token_limit: Annotated[int, Field(strict=True, ge=1)] | None = Field(
        default=None, description="most running requests of one token"
    )


class LaneSettings(Table):
    """`[lanes.<surface>]`: which lanes its exchanges may use beside `continuous`."""

    serial: StrictBool = Field(default=True, description="one at a time within a conversation")
    static: StrictBool = Field(default=True, description="identical greedy buffered requests share one generation")
    tools: StrictBool = Field(default=True, description="requests with tools may leave `continuous`")


class AffinitySettings(Table):
    """`[affinity]`: conversations and the slots of servers that have several."""

    slots: StrictBool = Field(default=True, description="Deck chooses the slot; off = llama-server does")
    grace: Seconds = Field(default=60.0, gt=0, description="time between two requests for which a slot is kept")
    longest: Seconds = Field(default=1800.0, gt=0, description="time for which one conversation may keep a slot")
    patience: Seconds = Field(
        default=3.0, description="longest wait for a slot that is free and kept for another token"
    )


class Config(Table):
    """Everything that is set for the whole of Deck. `warnings` is what loading noticed, no key of it."""

    host: Annotated[str, StringConstraints(min_length=1)] = Field(
        default="127.0.0.1", description="address to listen on"
    )
    port: Annotated[int, Field(strict=True, ge=0, le=65535)] = Field(
        default=8484, description="port to listen on; 0 = any"
    )
    profiles: tuple[Place, ...] = Field(default=(), description="directories of profiles, a later one wins")
    state: Place = Field(default_factory=lambda: default_state(os.environ), description="tokens, logs and sockets")
    llama_server: str | None = Field(default=None, description="llama-server to use, a path or a name on PATH")
    body_limit: Size = Field(default=32 * 1024**2, gt=0, description="largest request body, after decompression")
    body_timeout: Seconds = Field(default=30.0, gt=0, description="time for a request body to arrive")
    heartbeat: Seconds = Field(default=10.0, gt=0, description="silence after which a stream gets a sign of life")
    queue_limit: Annotated[int, Field(strict=True, ge=0)] = Field(default=64, description="exchanges that may wait")
    queue_wait: Seconds = Field(default=300.0, gt=0, description="longest wait for a slot")
    watch_profiles: Seconds = Field(
        default=0.0, description="how often the files of profiles are looked at for changes; 0 = never"
    )
    drain: Seconds = Field(default=30.0, description="time for running answers when Deck stops")
    stop_grace: Seconds = Field(default=5.0, description="time between SIGTERM and SIGKILL of a llama-server")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least level that is logged"
    )
    compatibility: Compatibility = Field(default="strict", description="strict or lenient, for every model and token")
    admin: AdminSettings = AdminSettings()
    media: MediaSettings = MediaSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    lanes: Mapping[str, LaneSettings] = Field(default_factory=dict, description="by surface, which lanes it may use")
    affinity: AffinitySettings = AffinitySettings()
    warnings: tuple[str, ...] = Field(default=(), exclude=True)


def default_state(environ: Mapping[str, str]) -> Path:
    """Return where state is kept if nobody says: the XDG state directory."""
    given = environ.get("XDG_STATE_HOME", "")
    if given.startswith("/"):
        return Path(given) / "deck"
    try:
        home = Path(environ.get("HOME") or Path.home())
    except RuntimeError:  # nobody has this number; what cannot be used there is said when it is used
        home = Path("/")
    return home / ".local" / "state" / "deck"


def _paths(text: str) -> list[str]:
    return [item for item in text.split(os.pathsep) if item]


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


_VARIABLES: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "DECK_HOST": ("host", str),
    "DECK_PORT": ("port", _integer),
    "DECK_PROFILES": ("profiles", _paths),
    "DECK_STATE": ("state", str),
    "DECK_LLAMA_SERVER": ("llama_server", str),
    "DECK_LOG_LEVEL": ("log_level", str.lower),
}
# Read elsewhere: the file's own place is needed before it, and a token is no part of a value that may be shown.
_ELSEWHERE = ("DECK_CONFIG", "DECK_TOKEN")


def load_config(
    file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """Return the configuration.

    Args:
        file: a `deck.toml`; None = that of `DECK_CONFIG`, else `./deck.toml` if it is there.
        environ: where `DECK_*` are looked up; an empty variable counts as not set.
        overrides: what the command line sets, by key.

    Raises:
        ConfigError: a source holds a wrong key or value.
    """
    values: dict[str, Any] = {"state": default_state(environ)}
    found = _file(file, environ)
    if found is not None:
        values |= _of_file(found)
    values |= _of_environment(environ)
    values |= {key: value for key, value in (overrides or {}).items() if value is not None}
    return _validated({**values, "warnings": tuple(_unknown(environ))}, "configuration")


def _file(file: Path | None, environ: Mapping[str, str]) -> Path | None:
    if file is not None:
        return file
    if environ.get("DECK_CONFIG"):
        return _home(environ["DECK_CONFIG"], "DECK_CONFIG")
    return _DEFAULT_FILE if _DEFAULT_FILE.is_file() else None


def _home(path: str, where: str) -> Path:
    try:
        return expanded(path)
    except ValueError as exc:
        raise ConfigError(f"{where}: {exc}") from None


def _of_file(file: Path) -> dict[str, Any]:
    """Return what a file sets, its paths put under its directory; checked by itself, so that errors name it."""
    try:
        values = read_toml(file)
    except ValueError as exc:
        raise ConfigError(f"{file}: {exc}") from exc
    if "warnings" in values:
        raise ConfigError(f"{file}: warnings: unknown key")
    _validated(values, str(file))
    directory = file.parent.absolute()
    if "state" in values:
        values["state"] = directory / _home(values["state"], f"{file}: state")
    if "profiles" in values:
        values["profiles"] = [directory / _home(item, f"{file}: profiles") for item in values["profiles"]]
    if "/" in values.get("llama_server", ""):
        values["llama_server"] = str(directory / _home(values["llama_server"], f"{file}: llama_server"))
    return values


def _of_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for variable, (key, convert) in _VARIABLES.items():
        text = environ.get(variable, "")
        if not text:
            continue
        try:
            value = convert(text)
        except ValueError as exc:
            raise ConfigError(f"{variable}: {exc}") from exc
        _validated({key: value}, variable)
        values[key] = value
    return values


def _unknown(environ: Mapping[str, str]) -> list[str]:
    known = (*_VARIABLES, *_ELSEWHERE)
    strangers = sorted(name for name in environ if name.startswith("DECK_") and name not in known)
    return [f"{name} is set but Deck knows no such variable{nearest(name, known)}" for name in strangers]


def _validated(values: Mapping[str, Any], where: str) -> Config:
    try:
        return Config.model_validate(dict(values))
    except ValidationError as exc:
        raise ConfigError("\n".join(f"{where}: {fault}" for fault in faults(exc, Config))) from exc
