"""`deck serve`: from a configuration to a listening server and an orderly end."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from deck import __version__, logs
from deck.app import Deck
from deck.catalog import Catalog
from deck.config import Config, default_state, load_config
from deck.connection import Connection
from deck.loading import StartError, load
from deck.tokens import TokenStore

_log = logging.getLogger("deck.serve")
_REPAIR = "repair or remove it"
_BACKLOG = 2048
_GC_THRESHOLDS = (5000, 20, 20)
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def overrides_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the command line sets, for `load_config`."""
    names = ("host", "port", "state", "log_level")
    found = {name: getattr(arguments, name) for name in names if getattr(arguments, name, None) is not None}
    if getattr(arguments, "profiles", None):
        found["profiles"] = arguments.profiles
    return found


def configuration(arguments: argparse.Namespace) -> Config:
    """Return the configuration of a command line."""
    file = getattr(arguments, "config", None)
    return load_config(Path(file) if file else None, os.environ, overrides_of(arguments))


def token_store(config: Config, environ: Mapping[str, str] = os.environ) -> TokenStore:
    """Return the tokens of a state directory, and the one of the environment."""
    return TokenStore(config.state / "tokens.json", environ.get("DECK_TOKEN") or None)


class _Server(uvicorn.Server):
    """Uvicorn with a limit on draining that ends streams in their wire's own error instead of cutting them.

    A signal is a request to stop, so Deck ends with status 0; Uvicorn's own handler would raise it again at the end.
    """

    def __init__(self, config: uvicorn.Config, deck: Deck, drain: float, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._deck = deck
        self._drain = drain
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            _spare_the_collector()
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._deck.reload_or_log)
            self._on_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            loop = asyncio.get_running_loop()
            loop.call_later(self._drain, self._deck.endpoint.abort_all)
        else:
            self._deck.endpoint.abort_all()
        self.should_exit = True


def _spare_the_collector() -> None:
    """Keep what lives as long as Deck out of every garbage collection, and collect less often.

    What exchanges leave behind is freed without the collector; it is there for the rare cycle, as of an exception.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def serve(arguments: argparse.Namespace) -> int:
    """Run until a signal; return the exit status."""
    config = configuration(arguments)
    logs.configure(config.log_level, sys.stderr, secrets=[os.environ.get("DECK_TOKEN", "")])
    plugins, catalog = load(config)
    tokens = token_store(config)
    if tokens.fault is not None:
        if tokens.admits_nobody:
            raise StartError(f"{tokens.fault}, so nobody could be let in; {_REPAIR}, or give a token by DECK_TOKEN")
        _log.error("%s, so that only DECK_TOKEN lets anybody in; %s", tokens.fault, _REPAIR)
    deck = Deck(config, catalog, plugins, tokens, observers=[logs.ExchangeLog()])
    settings = uvicorn.Config(
        deck,
        host=config.host,
        port=config.port,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        # Deck reads neither the client's address nor its scheme; the middleware would wrap every request.
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=math.ceil(config.drain) + 2,  # the last word of an answer may take one second
        timeout_keep_alive=75,
        http=Connection,
        ws="none",
        lifespan="on",
    )
    listener = listen(config)
    first = tokens.create("first", admin=True)[1] if tokens.is_empty else None
    port = listener.getsockname()[1]
    server = _Server(settings, deck, config.drain, lambda: greet(config, port, catalog, first))
    with contextlib.suppress(SystemExit):
        server.run(sockets=[listener])
    return 0 if server.started else 1


def listen(config: Config) -> socket.socket:
    """Return the socket that clients connect to.

    Raises:
        StartError: the address is taken, or not this machine's.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as exc:
        listener.close()
        where = f"{config.host}:{config.port}"
        raise StartError(f"cannot listen on {where}: {exc.strerror}; choose another with --port or --host") from exc
    return listener


def greet(config: Config, port: int, catalog: Catalog, first: str | None) -> None:
    """Print where Deck listens and, the first time, a token and a request to try."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    address = f"http://{host}:{port}"
    state = "" if config.state == default_state(os.environ) else f" --state {config.state}"
    chat = [profile.id for profile in catalog.of_kind("chat")]
    print(f"Deck {__version__} on {address}, models: {', '.join(chat) or 'none'}", flush=True)
    shown = "$DECK_TOKEN"
    if first is not None:
        shown = first
        print(f"Your token, shown once: {shown}", flush=True)
        print(f"Make others with `deck token create NAME{state}`.", flush=True)
    elif "DECK_TOKEN" not in os.environ:
        print(f"Tokens: see `deck token list{state}`; put one in DECK_TOKEN for the line below.", flush=True)
    if config.host not in _LOOPBACK:
        print("Listening beyond this machine in plain HTTP: put a proxy with TLS in front.", flush=True)
    if chat:
        body = f'{{"model": "{chat[0]}", "stream": true, "messages": [{{"role": "user", "content": "Hello"}}]}}'
        print(
            f'Try:\n  curl -N {address}/v1/chat/completions -H "Authorization: Bearer {shown}" \\\n'
            f"    -H 'Content-Type: application/json' -d '{body}'",
            flush=True,
        )
