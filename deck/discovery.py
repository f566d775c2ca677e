"""What Deck says of itself: capabilities, models; made from the field tables and from what was declared or measured.

Nothing is inferred from a model's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deck import __version__
from deck.catalog import Catalog
from deck.contracts import Facts, Server, ServerState, Surface
from deck.normalize.fields import Field, Table, Treatment
from deck.operation import Operation
from deck.profile import Profile
from deck.scheduler.board import Board
from deck.servers.command import flags
from deck.tokens import Principal

# Routes of the vendors' APIs that Deck does not have; asked for by name they are 404 with this said.
NOT_IMPLEMENTED = (
    "/assistants",
    "/audio/speech",
    "/audio/transcriptions",
    "/audio/translations",
    "/batch",
    "/batches",
    "/completions",
    "/conversations",
    "/embeddings",
    "/files",
    "/fine_tuning/jobs",
    "/images/edits",
    "/images/generations",
    "/images/variations",
    "/messages",
    "/messages/batches",
    "/messages/count_tokens",
    "/moderations",
    "/realtime",
    "/rerank",
    "/responses",
    "/threads",
    "/uploads",
    "/vector_stores",
    "/videos",
)

# What of `[capabilities.measured]` says when and on what the probe was made.
_OF_PROBE = ("at", "of", "build")


def missing_routes(routes: Iterable[str]) -> list[str]:
    """Return the unimplemented routes that nothing serves, with their public prefix."""
    served = set(routes)
    return [f"/v1{path}" for path in NOT_IMPLEMENTED if path not in served]


def row(field: Field) -> dict[str, Any]:
    """Return one row of a table for a client."""
    shown: dict[str, Any] = {"treatment": field.treatment.value}
    if field.treatment is Treatment.MAPPED:
        shown |= {"type": field.type.json, "accepts": field.type.describe}
    if field.treatment is Treatment.TOLERATED:
        shown["values"] = [*field.allowed, None]
    if field.aliases:
        shown["aliases"] = list(field.aliases)
    if field.extension:
        shown["extension"] = True
    if field.reason:
        shown["reason"] = field.reason
    return shown


def table(rows: Table) -> dict[str, Any]:
    """Return a table by field name."""
    return {field.name: row(field) for field in rows}


def surface(item: Surface) -> dict[str, Any]:
    """Return what a surface accepts."""
    top = item.tables[""]
    return {
        "title": item.title,
        "routes": [f"{route.method} /v1{route.path}" for route in item.routes],
        "fields": table(top),
        "members": {path: table(rows) for path, rows in item.tables.items() if path},
        "extensions": sorted(field.name for field in top if field.extension),
        "aliases": {alias: field.name for field in top for alias in field.aliases},
        "annotations": sorted(field.name for field in top if field.treatment is Treatment.ANNOTATION),
        "refused": sorted(field.name for field in top if field.treatment is Treatment.REFUSED),
    }


def operation(item: Operation) -> dict[str, Any]:
    """Return what an operation accepts; one that a surface reads has no fields of its own."""
    return {
        "title": item.title,
        "routes": [f"POST /v1{path}" for path in item.paths],
        "kinds": list(item.kinds),
        "body": item.form,
        "answers": sorted(item.answers),
        "fields_of": item.surface,
        "fields": table(item.tables[""]) if item.surface is None else {},
    }


def capabilities(
    surfaces: Mapping[str, Surface],
    operations: Mapping[str, Operation],
    catalog: Catalog,
    board: Board,
    principal: Principal,
) -> dict[str, Any]:
    """Return the whole of `GET /v1/capabilities` for this token."""
    routes = [route.path for item in surfaces.values() for route in item.routes]
    routes += [path for item in operations.values() for path in item.paths]
    mine = [profile for profile in catalog.profiles if principal.may_use(profile.id)]
    builds = {server.facts.build for server in _servers(mine, board) if server.facts.build}
    return {
        "object": "capabilities",
        "deck": {"version": __version__},
        "engine": {"builds": sorted(builds)},
        "surfaces": {name: surface(item) for name, item in surfaces.items()},
        "operations": {name: operation(item) for name, item in operations.items()},
        "not_implemented": missing_routes(routes),
        "headers": {
            "ignored": "X-Athena-Compatibility-Ignored",
            "changed": "X-Athena-Compatibility-Changed",
        },
        "models": {profile.id: model(profile, board) for profile in mine},
    }


def _servers(profiles: Iterable[Profile], board: Board) -> list[Server]:
    found = (board.server(profile.id) for profile in profiles)
    return [server for server in found if server is not None]


def model(profile: Profile, board: Board) -> dict[str, Any]:
    """Return what is declared of a model, what was measured while it ran, and its state."""
    server = board.server(profile.id)
    facts = server.facts if server is not None else Facts()
    declared = profile.capabilities.model_dump(mode="json", exclude_none=True, exclude={"measured"})
    probed = profile.measured.model_dump(mode="json", exclude_none=True) if profile.measured is not None else {}
    measured = {name: value for name, value in probed.items() if name not in _OF_PROBE}
    measured |= {name: bool(value) for name, value in facts.modalities.items()}
    measured |= {f"template_{name.removeprefix('supports_')}": value for name, value in facts.template_caps.items()}
    if facts.context is not None:
        measured["context"] = facts.context
    if facts.slots is not None:
        measured["slots"] = facts.slots
    return {
        "kind": profile.kind,
        "aliases": list(profile.aliases),
        "state": (server.state if server is not None else ServerState.STOPPED).value,
        "declared": declared,
        "measured": measured,
        "probe": {name: probed[name] for name in _OF_PROBE if name in probed} or None,
        "context": facts.context or profile.capabilities.context or measured.get("context") or _slot(profile),
        "engine": facts.build,
    }


def _slot(profile: Profile) -> int | None:
    """Return the context that one slot will have: llama-server divides it over them, unless they share one cache."""
    size, slots = profile.server.ctx_size, profile.server.parallel
    if size is None or not slots or {"-kvu", "--kv-unified"} & set(flags(profile.server.args)):
        return size
    return size // slots


def models(profiles: Iterable[Profile], board: Board, principal: Principal) -> dict[str, Any]:
    """Return a model list that OpenAI, Anthropic and Codex clients all parse."""
    data = [entry(profile, board) for profile in profiles if principal.may_use(profile.id)]
    return {
        "object": "list",
        "data": data,
        "models": [codex_entry(item) for item in data],
        "has_more": False,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }


def entry(profile: Profile, board: Board, shown_as: str | None = None) -> dict[str, Any]:
    """Return one model: OpenAI's `object`, `created`, `owned_by`, Anthropic's `type`, `display_name`, `created_at`."""
    known = model(profile, board)
    return {
        "id": shown_as or profile.id,
        "object": "model",
        "created": 0,
        "owned_by": "deck",
        "type": "model",
        "display_name": profile.description or profile.id,
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": known["context"],
        "aliases": list(profile.aliases),
        "context_length": known["context"],
        "max_model_len": known["context"],
        "state": known["state"],
    }


def codex_entry(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return one model in the shape Codex decodes."""
    return {
        "slug": item["id"],
        "name": item["id"],
        "model": item["id"],
        "display_name": item["display_name"],
        "context_window": item["context_length"],
    }
