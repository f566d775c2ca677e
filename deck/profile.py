"""Profiles: one served model as an operator wrote it down in a TOML file.

Knows the keys, their types and how to word a mistake. Does not know which sampling fields or families exist, nor
whether the model file is there: those are checked by whoever knows them.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    field_validator,
    model_validator,
)

from deck.settings import Frozen, Limit, Name, Seconds, Size, Table, expanded, faults, nearest, read_toml

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_MOST_URLS = 64
_HF = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(:[\w.-]+)?")


class ProfileError(ValueError):
    """A profile cannot be used; the message names its file, the key and the remedy."""


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


Compatibility = Literal["strict", "lenient"]
Kind = Literal["chat", "embedding", "rerank", "image", "speech", "transcription"]
# Kinds that llama-server does not serve, or not alone: any server that speaks OpenAI's API does.
_FOREIGN_KINDS = ("image", "speech", "transcription")
_PATH = re.compile(r"/[!-~]*")
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


# Keys of `[server]` that mean something only for a process of Deck's own.
_LOCAL = ("binary", "args", "env", "memory", "load_stall", "hang_timeout", "max_rss", "save_slots", "save_limit")


def _server_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be http://host:port or https://host:port, with an optional path prefix")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("must hold no user, query or fragment; a key goes into the variable of api_key_env")
    _ = parts.port  # raises ValueError where it is no port
    return value.rstrip("/")


class ServerSettings(Table):
    """`[server]`: the llama-server that serves the model; exactly one of `model`, `hf`, `url` and `urls`."""

    model: Path | None = Field(
        default=None, description="GGUF file; ${VAR} is expanded, relative to the profile's directory"
    )
    hf: str | None = Field(default=None, description="Hugging Face repository, org/repo or org/repo:quant")
    url: str | None = Field(
        default=None, description="a llama-server that runs elsewhere, http(s)://host:port[/prefix]"
    )
    urls: tuple[str, ...] = Field(
        default=(),
        max_length=_MOST_URLS,
        description="several of one model; Deck chooses one for each request",
    )
    command: tuple[str, ...] = Field(
        default=(), description="program and arguments of another server; {port} or {socket} is where it must listen"
    )
    health: str | None = Field(
        default=None, description="path that answers 200 when that server is ready; else it is when it listens"
    )
    model_name: str | None = Field(default=None, description="what that server calls the model; else the profile's id")
    fields: tuple[str, ...] = Field(default=(), description="further fields that clients may send to that server")
    api_key_env: str | None = Field(
        default=None, description="variable that holds the key of `url` or `urls`, or in which `command` is given one"
    )
    binary: str | None = Field(default=None, description="llama-server to use, a path or a name on PATH")
    ctx_size: Annotated[StrictInt, Field(ge=0)] | None = Field(
        default=None, description="tokens, over all slots together"
    )
    parallel: Annotated[StrictInt, Field(ge=0, le=1024)] = Field(
        default=1, description="slots, of each server; elsewhere 0 = no limit"
    )
    args: tuple[str, ...] = Field(default=(), description="further llama-server arguments")
    env: Frozen[str] = Field(default_factory=_nothing, repr=False, description="further environment of the process")
    ttl: Seconds = Field(default=900.0, description="idle time after which the model is unloaded; 0 = never")
    memory: Size | None = Field(default=None, description="what the process takes")
    load_timeout: Seconds = Field(default=600.0, gt=0, description="time to load")
    load_stall: Seconds = Field(
        default=120.0, description="time without any sign of life after which a load is given up; 0 = never"
    )
    stall_timeout: Seconds = Field(default=300.0, gt=0, description="longest silence of a running answer")
    health_interval: Seconds = Field(
        default=5.0,
        ge=0.1,
        le=300,
        description="about how often a server elsewhere is asked whether it is well",
    )
    hang_timeout: Seconds = Field(
        default=60.0, description="time in which a busy server does nothing after which it is ended; 0 = never"
    )
    max_rss: Annotated[Size, Field(gt=0)] | None = Field(
        default=None, description="memory above which the server is stopped when it is free, and starts anew"
    )
    save_slots: StrictBool = Field(default=False, description="prompt caches are kept on disk while it is not loaded")
    save_limit: Size = Field(default=4 << 30, gt=0, description="most bytes that they take there")
    load_to_count: StrictBool = Field(default=False, description="a request that only counts tokens may load the model")
    log_lines: Annotated[StrictInt, Field(ge=1, le=1000)] = Field(
        default=20, description="last log lines shown in errors"
    )

    @model_validator(mode="before")
    @classmethod
    def _unbounded_when_remote(cls, values: Any) -> Any:
        is_remote = isinstance(values, dict) and (values.get("url") is not None or values.get("urls"))
        if is_remote and "parallel" not in values:
            return {**values, "parallel": 0}
        return values

    @field_validator("hf")
    @classmethod
    def _is_repository(cls, value: str | None) -> str | None:
        if value is not None and not _HF.fullmatch(value):
            raise ValueError("must be org/repo or org/repo:quant")
        return value

    @field_validator("model", "binary", "command", "args")
    @classmethod
    def _can_be_passed(cls, value: Any) -> Any:
        items = value if isinstance(value, tuple) else (value,)
        if any("\0" in str(item) for item in items):
            raise ValueError("may hold no NUL")
        return value

    @field_validator("env")
    @classmethod
    def _is_environment(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for name, item in value.items():
            if not name or "=" in name:
                raise ValueError(f"{name!r} is no name of a variable")
            if "\0" in name + item:
                raise ValueError("may hold no NUL")
        return value

    @field_validator("health")
    @classmethod
    def _is_path(cls, value: str | None) -> str | None:
        if value is not None and not _PATH.fullmatch(value):
            raise ValueError("must be a path, /health say")
        return value

    @field_validator("url")
    @classmethod
    def _is_server(cls, value: str | None) -> str | None:
        return None if value is None else _server_url(value)

    @field_validator("urls")
    @classmethod
    def _are_servers(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        found = tuple(_server_url(value) for value in values)
        twice = next((url for url in found if found.count(url) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice} stands there twice")
        return found

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [name for name in ("model", "hf", "url", "urls", "command") if getattr(self, name)]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"exactly one of model, hf, url, urls and command is needed, not {found}")
        if self.command:
            self._check_command()
        if not self.is_remote:
            if self.api_key_env is not None and not self.command:
                raise ValueError("api_key_env belongs to url or command; a llama-server gets a key of its own")
            if "health_interval" in self.model_fields_set:
                raise ValueError("health_interval belongs to url; the process of any other server is watched")
            if self.parallel == 0:
                raise ValueError("parallel must be at least 1; 0 = no limit is for url only")
            return self
        local = [name for name in _LOCAL if name in self.model_fields_set]
        if local:
            raise ValueError(f"{', '.join(local)}: not with {given[0]}, Deck does not start that server")
        return self

    @property
    def is_remote(self) -> bool:
        """Whether the model is served elsewhere."""
        return self.url is not None or bool(self.urls)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The URLs of all servers elsewhere, none where Deck starts the server."""
        return self.urls if self.url is None else (self.url,)

    def _check_command(self) -> None:
        of_llama = [name for name in ("binary", "args", "ctx_size", "save_slots") if name in self.model_fields_set]
        if of_llama:
            raise ValueError(f"{', '.join(of_llama)}: for a llama-server only; write arguments into command")
        named = {found for item in self.command for found in _PLACEHOLDER.findall(item)}
        if not named <= {"port", "socket"} or len(named) != 1:
            raise ValueError("command: needs {port} or {socket}, where that server must listen, and no other {word}")


class Schedule(Table):
    """`[schedule]`: how the model shares the machine with others."""

    group: Name | None = Field(default=None, description="of the models of one group at most one is loaded")
    pinned: StrictBool = Field(default=False, description="once loaded it is never unloaded, not even when idle")
    preload: StrictBool = Field(default=False, description="loaded when Deck starts, if there is room")
    keep_warm: StrictBool = Field(
        default=False, description="loaded whenever there is room, at the start and later; never unloaded for idleness"
    )
    restart: Literal["on_demand", "always"] = Field(
        default="on_demand", description="after a crash: with the next request, or at once"
    )
    priority: Annotated[StrictInt, Field(ge=-100, le=100)] = Field(
        default=0, description="its requests come before those of a lower one; waiting raises it"
    )
    concurrency: Annotated[StrictInt, Field(ge=1)] | None = Field(
        default=None, description="most requests at a time, below what its slots allow"
    )
    min_resident: Seconds = Field(default=0.0, description="time that it stays loaded although others wait")


class Hooks(Table):
    """`[hooks]`: commands of the operator's at turns in the life of a server; each is a program and its arguments."""

    before_start: tuple[str, ...] = Field(default=(), description="before it is started; if it fails, it is not")
    after_ready: tuple[str, ...] = Field(default=(), description="when it serves")
    on_stop: tuple[str, ...] = Field(default=(), description="when it was stopped")
    on_crash: tuple[str, ...] = Field(default=(), description="when it has ended by itself, or did not start")
    timeout: Seconds = Field(default=30.0, gt=0, le=600, description="time for each of them; then it is killed")

    @field_validator("before_start", "after_ready", "on_stop", "on_crash")
    @classmethod
    def _is_command(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value and not value[0]:
            raise ValueError("the first is the program and may not be empty")
        if any("\0" in item for item in value):
            raise ValueError("may hold no NUL")
        return value


class Measured(Table):
    """`[capabilities.measured]`: what `deck probe` found when it tried the model; None = it could not find out.

    `of` is what was tried: where `[server]` names another model, the table says nothing. Speeds are tokens a second of
    one request at a time, `context` is tokens of a slot.
    """

    at: datetime.date
    of: str
    build: str | None = None
    text: StrictBool | None = None
    streaming: StrictBool | None = None
    system: StrictBool | None = None
    developer: StrictBool | None = None
    late_system: StrictBool | None = None
    tools: StrictBool | None = None
    parallel_tools: StrictBool | None = None
    required_tools: StrictBool | None = None
    tool_results: StrictBool | None = None
    reasoning: StrictBool | None = None
    reasoning_off: StrictBool | None = None
    efforts: StrictBool | None = None
    json_schema: StrictBool | None = None
    vision: StrictBool | None = None
    audio: StrictBool | None = None
    context: Annotated[StrictInt, Field(ge=1)] | None = None
    prompt_speed: Annotated[float, Field(ge=0)] | None = None
    speed: Annotated[float, Field(ge=0)] | None = None


class Capabilities(Table):
    """`[capabilities]`: what the operator declares of the model, None = not declared; and what was measured."""

    vision: StrictBool | None = None
    audio: StrictBool | None = None
    tools: StrictBool | None = None
    reasoning: StrictBool | None = None
    json_schema: StrictBool | None = None
    context: Annotated[StrictInt, Field(ge=1)] | None = None
    measured: Measured | None = None


class Profile(Table):
    """One served model. `source` is the file it came from, no key of it."""

    id: Name
    server: ServerSettings
    family: str | None = None
    aliases: tuple[Name, ...] = ()
    kind: Kind = "chat"
    description: str | None = None
    compatibility: Compatibility = "strict"
    template_kwargs: tuple[str, ...] = ()
    remove_attribution: StrictBool = True
    retry_calls: StrictBool = True
    budget_overflow: Literal["refuse", "cap"] = "refuse"
    capabilities: Capabilities = Capabilities()
    schedule: Schedule = Schedule()
    hooks: Hooks = Hooks()
    defaults: Frozen[Any] = Field(default_factory=_nothing)
    force: Frozen[Any] = Field(default_factory=_nothing)
    drop: tuple[str, ...] = ()
    limits: Frozen[Limit] = Field(default_factory=_nothing)
    source: Path = Field(default=Path("profile.toml"), exclude=True, repr=False)

    @model_validator(mode="after")
    def _fits_its_server(self) -> Self:
        server = self.server
        if server.is_remote and self.hooks.model_fields_set:
            raise ValueError("hooks: not with server.url, Deck does not start that server")
        if server.command and self.kind == "chat":
            raise ValueError("server.command: a chat model is served by llama-server: name model, hf or url")
        is_other = bool(server.command) or server.is_remote
        if self.kind in ("image", "speech") and not is_other:
            raise ValueError(f"kind: llama-server serves no {self.kind}; name another server in server.command or url")
        of_foreign = [name for name in ("health", "fields") if name in server.model_fields_set]
        if of_foreign and not self.is_foreign:
            raise ValueError(f"server.{of_foreign[0]}: only for a server that is no llama-server")
        if server.model_name is not None and not is_other:
            raise ValueError("server.model_name: a llama-server that Deck starts is told the profile's id")
        return self

    @property
    def is_foreign(self) -> bool:
        """True if what serves it is no llama-server: another program, or at `url` whatever serves that kind."""
        return bool(self.server.command) or (self.server.is_remote and self.kind in _FOREIGN_KINDS)

    @property
    def backend(self) -> str:
        """What messages call its server."""
        return "server" if self.is_foreign else "llama-server"

    @property
    def serves(self) -> str:
        """What `[server]` names: the repository, the address, the model's file without its directory, the program."""
        server = self.server
        if server.command:
            return Path(server.command[0]).name
        return server.hf or " ".join(server.addresses) or (server.model.name if server.model is not None else "")

    @property
    def measured(self) -> Measured | None:
        """What was measured of this very model."""
        found = self.capabilities.measured
        return found if found is not None and found.of == self.serves else None

    def can(self, name: Literal["vision", "audio", "tools", "reasoning", "json_schema"]) -> bool | None:
        """Return what is declared of the model, else what was measured; None = neither."""
        declared: bool | None = getattr(self.capabilities, name)
        if declared is not None or self.capabilities.measured is None:
            return declared
        measured = self.measured
        found: bool | None = getattr(measured, name) if measured is not None else None
        return found


def load_profile(path: Path, environ: Mapping[str, str] = os.environ) -> Profile:
    """Read a profile; `environ` is what `${VAR}` is looked up in.

    Raises:
        ProfileError: the file cannot be read, is no TOML, or holds a wrong key or value.
    """
    try:
        document = read_toml(path)
        _only_known(document)
        _resolve(document.get("server"), path.parent.absolute(), environ)
        return Profile.model_validate({**document, "source": path})
    except ValidationError as exc:
        raise ProfileError("\n".join(f"{path}: {fault}" for fault in faults(exc, Profile))) from exc
    except ValueError as exc:
        raise ProfileError(f"{path}: {exc}") from exc


def unknown_sampling(profile: Profile, known: Collection[str]) -> list[str]:
    """Return the names in defaults, force, drop and limits that are not in `known`, each with the nearest one."""
    named = [(table, name) for table in ("defaults", "force", "drop", "limits") for name in getattr(profile, table)]
    return [f"{table}.{name}{nearest(name, known)}" for table, name in named if name not in known]


def _only_known(document: dict[str, Any]) -> None:
    """Refuse keys that are fields of the model but none of the file."""
    for name, field in Profile.model_fields.items():
        if field.exclude and name in document:
            raise ValueError(f"{name}: unknown key")


def _resolve(server: Any, directory: Path, environ: Mapping[str, str]) -> None:
    """Expand variables in the `[server]` table and put its paths under the profile's directory, in place."""
    if not isinstance(server, dict):
        return
    for key in ("model", "binary", "url", "health"):
        if isinstance(server.get(key), str):
            server[key] = _expanded(server[key], f"server.{key}", environ)
    for key in ("args", "urls", "command"):
        if isinstance(server.get(key), list):
            server[key] = [
                _expanded(item, f"server.{key}.{number}", environ) if isinstance(item, str) else item
                for number, item in enumerate(server[key])
            ]
    if isinstance(server.get("model"), str) and server["model"]:
        server["model"] = str(directory / _home("server.model", server["model"]))
    binary = server.get("binary")
    if isinstance(binary, str) and "/" in binary:
        server["binary"] = str(directory / _home("server.binary", binary))


def _home(key: str, path: str) -> Path:
    try:
        return expanded(path)
    except ValueError as exc:
        raise ValueError(f"{key}: {exc}") from None


def _expanded(text: str, key: str, environ: Mapping[str, str]) -> str:
    missing = [name for name in _VARIABLE.findall(text) if name not in environ]
    if missing:
        raise ValueError(f"{key}: the environment variable {missing[0]} is not set")
    return _VARIABLE.sub(lambda found: environ[found[1]], text)
