"""Secrets stay where they belong: canaries go in by every door and must come out by none, also at debug level."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from app_support import BODY, CHAT, TOKEN, App, app
from e2e.live import LiveDeck, children, free_port, live_deck, until

from deck.testing.fake_llama import Received, Reply, say

UPSTREAM_KEY = "canary-upstream-" + secrets.token_hex(8)
WRONG_KEY = "canary-refused-" + secrets.token_hex(8)
DOORS = {
    name: f"canary-{name}-" + secrets.token_hex(8)
    for name in ("authorization", "x-api-key", "api-key", "query", "userinfo", "cookie", "malformed")
}


@dataclass
class Seen:
    """What came out of Deck, and the live Deck it came out of."""

    deck: LiveDeck
    answers: list[httpx.Response] = field(default_factory=list)
    commands: str = ""
    environments: dict[int, bytes] = field(default_factory=dict)

    def everything(self) -> Iterator[tuple[str, str]]:
        yield "stdout and stderr", self.deck.logged()
        yield "command lines", self.commands
        for path in self.deck.state.rglob("*"):
            if path.is_file():
                yield str(path), path.read_text(errors="replace")
        for answer in self.answers:
            yield f"{answer.request.method} {answer.url.path}", f"{answer.headers.raw!r} {answer.text}"


@contextlib.contextmanager
def remote_llama(key: str) -> Iterator[int]:
    port = free_port()
    command = [sys.executable, "-m", "deck.testing.fake_llama", "--port", str(port)]
    with subprocess.Popen(
        command, env={**os.environ, "LLAMA_API_KEY": key}, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as process:
        try:
            until(lambda: _listens(port), what="the fake llama-server")
            yield port
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    tmp = tmp_path_factory.mktemp("secrets")
    binary = tmp / "fake-llama-server"
    binary.write_text(f'#!/bin/sh\nexec {sys.executable} -m deck.testing.fake_llama "$@"\n', encoding="utf-8")
    binary.chmod(0o755)
    (tmp / "any.gguf").write_bytes(b"GGUF and nothing else")
    local = f'[server]\nmodel = "{tmp}/any.gguf"\nbinary = "{binary}"\nctx_size = 4096\n'
    with remote_llama(UPSTREAM_KEY) as port:
        url = f'[server]\nurl = "http://127.0.0.1:{port}"\n'
        profiles = {
            "local": f'id = "local"\n{local}',
            "crash": f'id = "crash"\n{local}args = ["--fake-crash"]\n',
            "dead": f'id = "dead"\n{local}args = ["--fake-exit", "3"]\n',
            "remote": f'id = "remote"\n{url}api_key_env = "UPSTREAM_KEY"\n',
            "refused": f'id = "refused"\n{url}api_key_env = "WRONG_KEY"\n',
            "away": f'id = "away"\n[server]\nurl = "http://127.0.0.1:{free_port()}"\napi_key_env = "UPSTREAM_KEY"\n',
        }
        env = {"UPSTREAM_KEY": UPSTREAM_KEY, "WRONG_KEY": WRONG_KEY, "DECK_LOG_LEVEL": "debug"}
        with live_deck(tmp / "deck", profiles=profiles, env=env) as deck:
            found = Seen(deck)
            run_scenarios(found, list(profiles))
            yield found


def run_scenarios(seen: Seen, models: list[str]) -> None:
    deck = seen.deck
    with httpx.Client(base_url=deck.base, timeout=60) as client:
        for model in models:
            for stream in (False, True):
                body = {**BODY, "model": model, "stream": stream, "metadata": {"a": "b"}}
                for headers in variants(deck.token):
                    query = {"api_key": DOORS["query"], "key": DOORS["query"]}
                    seen.answers.append(client.post(CHAT, json=body, headers=headers, params=query))
            for pid in [deck.process.pid, *children(deck.process.pid)]:
                with contextlib.suppress(OSError):
                    seen.commands += Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").replace("\0", " ") + "\n"
                    seen.environments[pid] = Path(f"/proc/{pid}/environ").read_bytes()
        paths = ["/v1/models", "/v1/capabilities", "/v1/stats", "/metrics", "/v1/none", "/api/tags", "/health"]
        for path in paths:
            for headers in [*variants(deck.token), foreign()]:
                for method in ("GET", "POST", "OPTIONS"):
                    seen.answers.append(client.request(method, f"{path}?api_key={DOORS['query']}", headers=headers))
        for content in (b"", b"{", b"[1]", json.dumps({**BODY, "temprature": 1}).encode()):
            for path in (CHAT, "/deck/explain"):
                seen.answers.append(client.post(path, content=content, headers=variants(deck.token)[0]))
        seen.answers.append(client.post(CHAT, json=BODY, headers=foreign()))
        seen.answers.append(httpx.get(f"http://user:{DOORS['userinfo']}@127.0.0.1:{deck.port}/v1/models"))
    for request in (
        f"GET /v1/models HTTP/9.9\r\nAuthorization: Bearer {DOORS['malformed']}\r\n\r\n",
        f"{DOORS['malformed']}\r\n\r\n",
        f"GET http://user:{DOORS['malformed']}@host/v1/models HTTP/1.1\r\nHost: h\r\n\r\n",
        f"GET /v1/models HTTP/1.1\r\nAuthorization: Bearer {DOORS['malformed']}\r\nbad header\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", deck.port)) as sock:
            sock.sendall(request.encode())
            sock.shutdown(socket.SHUT_WR)
            sock.settimeout(20)
            with contextlib.suppress(OSError):
                sock.recv(65536)


def foreign() -> dict[str, str]:
    return {
        "authorization": f"Bearer {DOORS['authorization']}",
        "x-api-key": DOORS["x-api-key"],
        "api-key": DOORS["api-key"],
        "cookie": f"session={DOORS['cookie']}",
    }


def variants(token: str) -> list[dict[str, str]]:
    """A valid token in each of the headers, foreign ones in the others."""
    return [
        {**foreign(), "authorization": f"Bearer {token}"},
        {**foreign(), "x-api-key": token},
        {**foreign(), "api-key": token},
    ]


def test_the_scenarios_are_what_they_should_be(seen: Seen) -> None:
    statuses = {answer.status_code for answer in seen.answers}
    assert {200, 400, 401, 404, 405, 502, 503} <= statuses, statuses
    assert "Invalid HTTP request" in seen.deck.logged()
    assert seen.deck.process.poll() is None


@pytest.mark.parametrize("secret", [*DOORS.values(), UPSTREAM_KEY, WRONG_KEY], ids=[*DOORS, "upstream", "refused"])
def test_no_canary_comes_out(seen: Seen, secret: str) -> None:
    """B166."""
    for place, text in seen.everything():
        assert secret not in text, place


def test_decks_token_comes_out_nowhere(seen: Seen) -> None:
    for place, text in seen.everything():
        assert seen.deck.token not in text, place


def test_children_get_no_secret_but_their_own_key(seen: Seen) -> None:
    own = []
    for pid, environment in seen.environments.items():
        if pid == seen.deck.process.pid:
            continue
        values = dict(item.split("=", 1) for item in environment.decode(errors="replace").split("\0") if "=" in item)
        assert seen.deck.token not in values.values()
        assert UPSTREAM_KEY not in values.values()
        assert WRONG_KEY not in values.values()
        own += [value for name, value in values.items() if name == "LLAMA_API_KEY"]
    assert own
    for key in own:
        assert len(key) >= 32
        for place, text in seen.everything():
            assert key not in text, place


def test_what_is_kept_is_for_its_owner_only(seen: Seen) -> None:
    state = seen.deck.state
    subprocess.run(
        [sys.executable, "-m", "deck", "token", "create", "x", "--state", str(state)], check=True, capture_output=True
    )
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "tokens.json").stat().st_mode) == 0o600
    for path in state.rglob("*"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077 or path.is_socket() or path.is_dir(), path


SENT = {
    "x-api-key": "sk-ant-client",
    "api-key": "azure-client",
    "cookie": "session=1",
    "openai-organization": "org",
    "openai-project": "project",
    "openai-beta": "x",
    "x-conversation-id": "c1",
    "session-id": "s1",
    "session_id": "s1",
    "x-session-id": "s1",
    "x-session-affinity": "s1",
    "x-claude-code-session-id": "s1",
    "x-client-request-id": "r1",
    "x-request-id": "r1",
    "idempotency-key": "i1",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "x",
    "http-referer": "https://app",
    "referer": "https://app",
    "origin": "https://app",
    "x-title": "app",
    "x-forwarded-for": "10.1.2.3",
    "forwarded": "for=10.1.2.3",
    "traceparent": "00-1-1-01",
    "user-agent": "SomeClient/1.0",
    "accept-language": "de",
    "x-openwebui-user-email": "a@b.c",
    "proxy-authorization": "Basic x",
}
ALLOWED = {
    "host",
    "content-type",
    "content-length",
    "authorization",
    "accept",
    "accept-encoding",
    "connection",
    "user-agent",
    "transfer-encoding",
}


@pytest.fixture
def tagged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """An upstream that adds headers of its own."""

    def script(request: Received) -> Reply:
        reply = say("Hello")
        headers = {
            "set-cookie": "upstream=1",
            "x-upstream": "leak",
            "x-request-id": "upstream-id",
            "access-control-allow-origin": "*",
            "keep-alive": "timeout=5",
            "x-accel-buffering": "yes",
        }
        return Reply(steps=reply.steps, headers=headers)

    with app(tmp_path, script) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
def test_no_header_of_the_client_reaches_llama_server(tagged: App, stream: bool) -> None:
    """B164: and no empty `Bearer`."""
    answer = tagged.chat(json={**BODY, "stream": stream}, headers=SENT)
    assert answer.status_code == 200
    assert tagged.fake.requests
    for request in tagged.fake.requests:
        assert set(request.headers) <= ALLOWED
        assert "authorization" not in request.headers
        text = json.dumps(dict(request.headers)) + request.body.decode()
        for value in [TOKEN, *(sent for sent in SENT.values() if len(sent) > 3)]:
            assert value not in text


@pytest.mark.parametrize("stream", [False, True])
def test_no_header_of_llama_server_reaches_the_client(tagged: App, stream: bool) -> None:
    """B173."""
    answer = tagged.chat(json={**BODY, "stream": stream}, headers={"x-request-id": "mine"})
    assert answer.headers["x-request-id"] == "mine"
    for name in ("server", "set-cookie", "x-upstream", "access-control-allow-origin", "keep-alive"):
        assert name not in answer.headers
    assert answer.headers.get("x-accel-buffering") == ("no" if stream else None)


def test_only_the_configured_key_goes_upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B164."""
    monkeypatch.setenv("UPSTREAM_KEY", UPSTREAM_KEY)
    keyed = 'id = "keyed"\n{server}api_key_env = "UPSTREAM_KEY"\n'
    with app(tmp_path, profiles={"keyed": keyed}) as running:
        assert running.chat(json={**BODY, "model": "keyed"}, headers=SENT).status_code == 200
        sent = [request.headers.get("authorization") for request in running.fake.requests if request.path == CHAT]
        assert sent == [f"Bearer {UPSTREAM_KEY}"]
        for path in ("/v1/capabilities", "/v1/models", "/v1/stats", "/metrics"):
            assert UPSTREAM_KEY not in running.send("GET", path).text
            assert "127.0.0.1" not in running.send("GET", path).text


def test_the_report_header_has_names_only(tmp_path: Path) -> None:
    """B173: ASCII, bounded, and no value of a client's."""
    with app(tmp_path) as running:
        body: dict[str, Any] = {**BODY, "metadata": {"k": "canary-value"}, "user": "canary-user"}
        body["messages"] = [
            {"role": "user", "content": "hi", "name": "canary-name"},
            *({"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}]} for _ in range(500)),
        ]
        answer = running.chat(json=body)
    assert answer.status_code == 200
    shown = answer.headers["x-athena-compatibility-ignored"]
    assert {"metadata", "user"} <= set(shown.split(", "))
    assert "canary" not in shown + answer.headers.get("x-athena-compatibility-changed", "")
    assert shown.isascii()
    assert len(shown) <= 2048
