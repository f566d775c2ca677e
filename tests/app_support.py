"""What tests of the whole application share: a Deck in this process, a fake llama-server behind it, and requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from deck.app import Deck
from deck.catalog import Catalog
from deck.config import Config
from deck.plugins import Plugins
from deck.testing.fake_llama import FakeLlama, Script
from deck.tokens import TokenStore

TOKEN = "deck-test-0123456789abcdefghijklmnopqrstuvwxyz"
CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
OPENAI_ERROR = {"message", "type", "param", "code"}


class Clock:
    """A monotonic clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class App:
    """A Deck and its fake llama-server, talked to without a socket in front of Deck."""

    def __init__(self, runner: asyncio.Runner, deck: Deck, tokens: TokenStore, fake: FakeLlama, clock: Clock) -> None:
        self.runner = runner
        self.deck = deck
        self.tokens = tokens
        self.fake = fake
        self.clock = clock
        transport = httpx.ASGITransport(app=deck)  # type: ignore[arg-type]  # Deck takes the same three, typed wider
        self.client = httpx.AsyncClient(transport=transport, base_url="http://deck", timeout=20)

    def send(self, method: str, path: str, token: str | None = TOKEN, **options: Any) -> httpx.Response:
        """Send one request; `token=None` sends none."""
        headers = httpx.Headers(options.pop("headers", None), encoding="latin-1")
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        return self.runner.run(self.client.request(method, f"http://deck{path}", headers=headers, **options))

    def chat(self, **options: Any) -> httpx.Response:
        """Send the least chat request."""
        options.setdefault("json", BODY)
        return self.send("POST", CHAT, **options)

    def upstream(self) -> list[dict[str, Any]]:
        """Return the bodies of the chat requests that reached the fake llama-server."""
        return [item.json() for item in self.fake.requests if item.path == CHAT]


@contextlib.contextmanager
def app(
    tmp: Path,
    script: Script = (),
    *,
    profiles: dict[str, str] | None = None,
    routes: dict[str, Any] | None = None,
    **settings: Any,
) -> Iterator[App]:
    """Run a Deck with the models m1 and m2, both at the fake.

    `profiles` are further ones, `routes` further answers of the fake, `settings` those of the configuration.
    """
    with asyncio.Runner() as runner:
        fake = FakeLlama(script, routes=routes)
        runner.run(fake.start())
        directory = tmp / "profiles"
        directory.mkdir(parents=True)
        server = f'[server]\nurl = "{fake.url}"\n'
        texts = {"m1": f'id = "m1"\naliases = ["first"]\n{server}', "m2": f'id = "m2"\n{server}', **(profiles or {})}
        for name, text in texts.items():
            (directory / f"{name}.toml").write_text(text.replace("{server}", server), encoding="utf-8")
        config = Config(state=tmp / "state", **settings)
        clock = Clock()
        tokens = TokenStore(config.state / "tokens.json", TOKEN, clock=clock)
        deck = Deck(config, Catalog.load([directory]), Plugins(config), tokens)
        runner.run(deck.start())
        running = App(runner, deck, tokens, fake, clock)
        try:
            yield running
        finally:
            runner.run(running.client.aclose())
            runner.run(deck.stop())
            runner.run(fake.stop())


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    """Return the error of an answer, after checking status and envelope."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == OPENAI_ERROR
    assert isinstance(body["error"]["message"], str)
    assert body["error"]["message"]
    found: dict[str, Any] = body["error"]
    return found
