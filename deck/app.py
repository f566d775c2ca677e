"""Deck as one ASGI application: puts its parts together, routes, and owns their life.

Default-deny: what needs no token stands in `admin.PUBLIC`. No route redirects. There is no CORS: a browser's preflight,
which carries no token, is 401 like any other request without one, and with a token `OPTIONS` is 405.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from deck import discovery, query
from deck.admin import Admin, send_answer
from deck.body import ClientGone
from deck.catalog import Catalog, CatalogError, shipped_dir
from deck.config import Config
from deck.contracts import Launcher, Route, Server, Surface
from deck.control import Control
from deck.endpoint import Endpoint
from deck.errors import DeckError, ErrorKind, invalid
from deck.forwarding import OperationEndpoint
from deck.http import Receive, Scope, Send, header, normal_path, request_id
from deck.loading import StartError, load_catalog
from deck.media import ImageFetcher
from deck.metrics import Metrics
from deck.normalize.repairs import REPAIRS
from deck.normalize.report import Report
from deck.operation import Operation
from deck.pipeline import Pipeline
from deck.plugins import Plugins
from deck.profile import Profile, ProfileError
from deck.reload import Change, compare
from deck.routing import Router
from deck.scheduler.board import Board
from deck.scheduler.policy import Policy
from deck.servers import LocalLauncher
from deck.servers.gguf import facts_of_file
from deck.servers.memory import estimate_memory
from deck.serving import error_headers
from deck.tending import Tender
from deck.tokens import TokenStore
from deck.upstream.client import UpstreamClient
from deck.upstream.transport import Transport
from deck.watching import fingerprint, watch

_log = logging.getLogger("deck.app")
# Clients send about thirty; each may be a credential, which costs a digest.
_MOST_HEADERS = 128
_MOST_HEADER_BYTES = 64 * 1024


class Deck:
    """The application.

    Args:
        config: how to serve.
        catalog: the models.
        plugins: surfaces, families, steps, observers.
        tokens: who may use it.
        launcher: starts servers where no plugin does; the local one if not given.
        observers: told of every exchange, beside the plugins' and the metrics.
    """

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        plugins: Plugins,
        tokens: TokenStore,
        *,
        launcher: Launcher | None = None,
        observers: Sequence[Any] = (),
    ) -> None:
        self.config = config
        self.plugins = plugins
        self.metrics = _metrics(catalog, plugins)
        self._launcher = launcher or LocalLauncher(config, plugins)
        self._transport = Transport()
        client = UpstreamClient(self._transport)
        policy = plugins.policy() or _policy(config)
        router = Router(config.lanes, config.affinity, queue_wait=config.queue_wait)
        self.board = Board(
            policy,
            self._launcher_of,
            grace=config.stop_grace,
            on_gone=client.forget,
            on_load=self.metrics.loaded,
            on_recycle=self.metrics.recycled,
            on_hang=self.metrics.hung,
            on_up=lambda server: self._tender.tend(server),
            memory_of=estimate_memory,
            faulty=self._faulty,
            book_of=router.book_of,
        )
        self.metrics.watch(self.board.states, lambda: self.board.depth, lambda: self.endpoint.streams)
        self.metrics.watch_replicas(self.board.replicas)
        self._images = ImageFetcher(config.media, most_in_all=config.body_limit)
        lenient = config.compatibility == "lenient"
        self.pipeline = Pipeline(
            catalog,
            plugins,
            self.board,
            client,
            images=self._images,
            lenient=lenient,
            router=router,
            most_guests=config.queue_limit,
        )
        watching = [self.metrics, *observers, *plugins.observers]
        self.endpoint = Endpoint(config, tokens, self.pipeline, watching, self.metrics.observer_failed)
        self.operations = OperationEndpoint(self.endpoint, client)
        self._tender = Tender(self.board, self.endpoint.owed, client.status)
        self.profiles_fault: str | None = None
        self.control = Control(self.pipeline, self.reload, lambda: self.profiles_fault)
        self.admin = Admin(config, tokens, self.pipeline, self.metrics, self.control)
        self._surfaces: Mapping[str, Surface] = {path: found[0] for path, found in plugins.routes.items()}
        self._routes: Mapping[str, Route] = {path: found[1] for path, found in plugins.routes.items()}
        self._operations: Mapping[str, Operation] = plugins.operation_routes
        self._posts: Mapping[str, Surface | Operation] = {**self._surfaces, **self._operations}
        self._stack = contextlib.AsyncExitStack()
        self._watch: asyncio.Task[None] | None = None

    def _launcher_of(self, profile: Profile) -> Launcher:
        return self.plugins.launcher(profile) or self._launcher

    def _faulty(self, profile: Profile) -> Server | None:
        launcher = self._launcher_of(profile)
        return launcher.faulty(profile) if isinstance(launcher, LocalLauncher) else None

    def _flags_of(self, profile: Profile) -> Sequence[str]:
        return self.plugins.family(profile, facts_of_file(profile.server.model))[0].arguments()

    def reload(self, *, dry_run: bool = False) -> Change:
        """Read the profiles anew and go on with them; running answers go on, and so do servers launched the same way.

        Args:
            dry_run: only tell what would change.

        Raises:
            DeckError: a profile is wrong; nothing has changed.
        """
        old = self.pipeline.catalog
        try:
            new = load_catalog(self.config, self.plugins)
        except (StartError, ProfileError, CatalogError) as exc:
            self.profiles_fault = str(exc)
            raise invalid(f"nothing is reloaded: {exc}") from exc
        if not dry_run:
            self.profiles_fault = None
        change = compare(old, new, self._flags_of)
        if dry_run:
            return change
        if not change.is_empty:
            self._renew(new, change)
        _log.info("reloaded: %s", change.told())
        return change

    def _renew(self, new: Catalog, change: Change) -> None:
        self.pipeline.renew(new)
        self.metrics.know(profile.id for profile in new.profiles)
        for profile in new.profiles:
            if profile.id in change.relaunched or profile.id in change.changed:
                self.board.renew(profile, relaunch=profile.id in change.relaunched)
            elif profile.id not in change.added:
                self.board.keep(profile)
        for name in change.removed:
            self.board.remove(name)
        new_or_changed = {*change.added, *change.relaunched, *change.changed}  # the others' failures still count
        for profile in new.profiles:
            if profile.id in new_or_changed and (profile.schedule.preload or profile.schedule.keep_warm):
                self.board.preload(profile)

    def reload_or_log(self) -> None:
        """Reload; what is wrong is logged."""
        try:
            self.reload()
        except DeckError as error:
            _log.error("%s", error.message)
        except Exception:
            _log.exception("the profiles could not be read anew")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        match scope["type"]:
            case "http":
                path = normal_path(scope["path"])
                surface = self._surfaces.get(path)
                if surface is not None and scope["method"] == "POST" and not _is_header_bomb(scope):
                    await self.endpoint(scope, receive, send, surface, self._routes[path])
                elif path in self._operations and scope["method"] == "POST" and not _is_header_bomb(scope):
                    await self.operations(scope, receive, send, self._operations[path])
                else:
                    await self._fixed(scope, receive, send, path)
            case "lifespan":
                await self._lifespan(receive, send)
            case _:
                await receive()
                await send({"type": "websocket.close", "code": 1000})

    async def _fixed(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        identity = request_id(scope)
        headers = [(b"x-request-id", identity.encode())]
        method = scope["method"]
        try:
            answer = await self._answer(scope, receive, method, path)
        except DeckError as exc:
            surface = self._voice(scope, path)
            headers += _further_ids(surface, identity)
            body = surface.error(exc, identity) if surface else _plain(exc)
            headers += [*error_headers(exc), *self._allow(exc, path)]
            answer = exc.kind.status, body
        except ClientGone:
            return
        except Exception as exc:
            _log.exception("%s %s failed inside Deck", method, path[:100])
            fault = DeckError(ErrorKind.INTERNAL, f"Deck failed on this request: {type(exc).__name__}")
            answer = fault.kind.status, _plain(fault)
        else:
            headers += _unread(scope, path)
        await send_answer(send, answer, headers, with_body=method != "HEAD")

    async def _answer(self, scope: Scope, receive: Receive, method: str, path: str) -> tuple[int, Any]:
        if _is_header_bomb(scope):
            message = f"more than {_MOST_HEADERS} headers or {_MOST_HEADER_BYTES // 1024} KiB of them; send fewer"
            raise DeckError(ErrorKind.HEADERS_TOO_LARGE, message)
        if self.admin.is_public(method, scope["path"]):
            return await self.admin.public(path)
        principal = self.admin.authenticate(scope)
        if (header(scope, b"upgrade") or b"").lower() == b"websocket":
            message = "Deck speaks no WebSocket; send POST and read server-sent events"
            raise DeckError(ErrorKind.UPGRADE_REQUIRED, message)
        methods = self.admin.find(path)
        if methods is not None:
            handler = methods.get("GET" if method == "HEAD" else method)
            if handler is None:
                raise _wrong_method(method, path, methods)
            return await handler(scope, receive, principal)
        if path in self._posts:
            raise _wrong_method(method, path, ("POST",))
        raise self._unknown(path)

    def _unknown(self, path: str) -> DeckError:
        within = next((known for known in self._posts if path.startswith(f"{known}/")), None)
        if within is not None:
            message = f"/v1{path[:100]} is not implemented by Deck"
            if within in self._surfaces:
                message += ", which stores nothing; send the whole input instead"
            return DeckError(ErrorKind.NOT_FOUND, message)
        missing = [known for known in discovery.NOT_IMPLEMENTED if known not in self._posts]
        asked = max((known for known in missing if f"{path}/".startswith(f"{known}/")), key=len, default=None)
        if asked is not None:
            return DeckError(ErrorKind.NOT_FOUND, f"/v1{asked} is not implemented by Deck")
        known_paths = ", ".join(f"/v1{item}" for item in sorted(self._posts))
        message = f"no route {path[:100]!r}; Deck serves {known_paths}, /v1/models and /v1/capabilities"
        return DeckError(ErrorKind.NOT_FOUND, message)

    def _allow(self, error: DeckError, path: str) -> list[tuple[bytes, bytes]]:
        if error.kind is not ErrorKind.METHOD_NOT_ALLOWED:
            return []
        methods = set(self.admin.find(path) or ({"POST"} if path in self._posts else {}))
        if "GET" in methods:
            methods.add("HEAD")
        return [(b"allow", ", ".join(sorted(methods)).encode())]

    def _voice(self, scope: Scope, path: str) -> Surface | Operation | None:
        """Return the surface whose envelope an error takes: by path, else by the vendor's own header, else Chat's."""
        if path in self._posts:
            return self._posts[path]
        if header(scope, b"anthropic-version") is not None and "messages" in self.plugins.surfaces:
            return self.plugins.surfaces["messages"]
        near = next((item for known, item in self._surfaces.items() if path.startswith(known + "/")), None)
        return near or self.plugins.surfaces.get("chat")

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.start()
        except Exception as exc:
            _log.exception("Deck did not start")
            await send({"type": "lifespan.startup.failed", "message": str(exc)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def start(self) -> None:
        """Enter what plugins brought."""
        for context in self.plugins.lifespans({"board": self.board, "catalog": self.pipeline.catalog}):
            await self._stack.enter_async_context(context)
        if isinstance(self._launcher, LocalLauncher):
            self._launcher.open()
        for profile in self.pipeline.catalog.profiles:
            if profile.schedule.preload or profile.schedule.keep_warm:
                self.board.preload(profile)
        if self.config.watch_profiles:
            directories = [shipped_dir(), *self.plugins.profile_dirs(), *self.config.profiles]
            known = fingerprint(directories)
            watching = watch(directories, known, self.config.watch_profiles, self.reload_or_log)
            self._watch = asyncio.get_running_loop().create_task(watching)

    async def stop(self) -> None:
        """End exchanges that still run, stop every server, and leave nothing behind."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        self.endpoint.abort_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await self.endpoint.wait_idle()
        await self._tender.aclose()
        await self.board.close()
        if isinstance(self._launcher, LocalLauncher):
            self._launcher.close()
        await self._images.aclose()
        await self._transport.aclose()
        await self._stack.aclose()


def _further_ids(surface: Surface | Operation | None, identity: str) -> list[tuple[bytes, bytes]]:
    names = surface.id_headers if surface is not None else ()
    return [(name.encode(), identity.encode()) for name in names if name != "x-request-id"]


def _unread(scope: Scope, path: str) -> list[tuple[bytes, bytes]]:
    """Report the query that a route of discovery does not read; those under /deck refuse what they do not know."""
    if not scope.get("query_string") or path.startswith("/deck/"):
        return []
    report = Report()
    query.ignore(scope["query_string"], report)
    return [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in report.headers()]


def _is_header_bomb(scope: Scope) -> bool:
    headers = scope["headers"]
    return len(headers) > _MOST_HEADERS or len(b"".join(chain.from_iterable(headers))) > _MOST_HEADER_BYTES


def _policy(config: Config) -> Policy:
    scheduler = config.scheduler
    return Policy(
        queue_limit=config.queue_limit,
        queue_wait=config.queue_wait,
        memory=scheduler.memory,
        ageing=scheduler.ageing,
        token_limit=scheduler.token_limit,
    )


def _metrics(catalog: Catalog, plugins: Plugins) -> Metrics:
    wires: list[Surface | Operation] = [*plugins.surfaces.values(), *plugins.operations.values()]
    fields = {field.name for item in wires for table in item.tables.values() for field in table}
    return Metrics(
        models=[profile.id for profile in catalog.profiles],
        surfaces=list(plugins.surfaces),
        operations=list(plugins.operations),
        known_fields=frozenset((*fields, *REPAIRS)),
    )


def _wrong_method(method: str, path: str, methods: Iterable[str]) -> DeckError:
    message = f"{method[:20]} is not allowed on {path[:100]!r}; use {' or '.join(sorted(methods))}"
    return DeckError(ErrorKind.METHOD_NOT_ALLOWED, message)


def _plain(error: DeckError) -> dict[str, Any]:
    return {
        "error": {"message": error.message, "type": error.kind.label, "param": error.param, "code": error.code},
    }
