"""A model that cannot start: no client takes the error for load, and only operators see paths of the host."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from app_support import TOKEN, App, app
from wires import WIRES

from deck.errors import DeckError, ErrorKind, without_paths
from deck.testing.fake_llama import Reply
from deck.testing.frames import content, done, error_frame, role, text

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"input": "hi"},
}


def broken(tmp_path: Path) -> dict[str, str]:
    weights = tmp_path / "no-model.gguf"
    weights.write_text("this is no model", encoding="utf-8")
    return {"broken": f'id = "broken"\n[server]\nmodel = "{weights}"\nbinary = "/bin/false"\n'}


def asked(deck: App, path: str, **options: Any) -> dict[str, Any]:
    answer = deck.send("POST", path, json={"model": "broken", **BODIES[path]}, **options)
    assert answer.status_code == 503, answer.text
    assert answer.headers["x-should-retry"] == "false"
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize("path", BODIES)
def test_it_is_no_overload(tmp_path: Path, path: str) -> None:
    with app(tmp_path, profiles=broken(tmp_path)) as deck:
        error = asked(deck, path)
    assert error["type"] == ("api_error" if path == "/v1/messages" else "server_error")
    assert error.get("code") in (None, "server_error")
    assert "'broken' did not start" in error["message"]


def test_only_operators_see_paths(tmp_path: Path) -> None:
    with app(tmp_path, profiles=broken(tmp_path)) as deck:
        _, plain = deck.tokens.create("plain")
        seen = asked(deck, "/v1/chat/completions")["message"]
        other = asked(deck, "/v1/chat/completions", token=plain)["message"]
    assert "/bin/false" in seen or str(tmp_path) in seen
    assert "/bin/" not in other
    assert str(tmp_path) not in other
    assert "…/" in other


async def streamed(deck: App, gate: asyncio.Event, path: str, body: dict[str, Any], token: str) -> bytes:
    """Return what a client got of a stream whose upstream goes on once the client has its beginning."""
    headers = {"authorization": f"Bearer {token}"}
    async with asyncio.timeout(20):
        answer = asyncio.get_running_loop().create_task(deck.client.post(path, json=body, headers=headers))
        while not any(serving.reply.has_started for serving in deck.deck.endpoint._running):
            await asyncio.sleep(0)
        gate.set()
        return (await answer).content


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize("is_alone", [False, True])
def test_only_operators_see_paths_at_the_end_of_a_stream(tmp_path: Path, name: str, is_alone: bool) -> None:
    wire, gate = WIRES[name], asyncio.Event()
    failed = error_frame(500, "the disk of /srv/secret/cache is full") + done()
    say = text if name == "completions" else content
    begun = () if name == "completions" else (role(),)
    script = [Reply(steps=(*begun, say("a"), gate, failed if is_alone else say("b") + failed))]
    with app(tmp_path, script) as deck:
        _, plain = deck.tokens.create("plain")
        body = wire.body("hi", True, 9)
        seen = deck.runner.run(streamed(deck, gate, wire.path, body, TOKEN))
        gate.clear()
        other = deck.runner.run(streamed(deck, gate, wire.path, body, plain))
    assert wire.stream(seen).error == "the disk of /srv/secret/cache is full"
    assert wire.stream(other).error == "the disk of …/cache is full"
    assert (b'"b"' in other) is not is_alone
    assert b"secret" not in other


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("'/srv/models/a.gguf' is no GGUF", "'…/a.gguf' is no GGUF"),
        ("the server at '/run/deck/x-1.sock' stops", "the server at '…/x-1.sock' stops"),
        ("listening on unix:///run/deck/x-1.sock", "listening on unix://…/x-1.sock"),
        ("POST /v1/chat/completions is refused", "POST /v1/chat/completions is refused"),
        ("see https://example.org/a/b", "see https://example.org/a/b"),
        ("1/2 of it, and/or /tmp", "1/2 of it, and/or /tmp"),
        ("open:/srv/secret/a.gguf: no such file", "open:…/a.gguf: no such file"),
        ("cannot open file:///srv/secret/a.gguf", "cannot open file://…/a.gguf"),
        ("at unix:///run/deck/x.sock", "at unix://…/x.sock"),
        ("/v1/../srv/secret/a is none", "…/a is none"),
        ("--model=/srv/secret/a.gguf", "--model=…/a.gguf"),
        ("open //srv//secret/a.gguf", "open …/a.gguf"),
        ("open /srv/My Models/secret/a.gguf now", "open …/a.gguf now"),
        ("open /srv/models (old), v2/secret/a.gguf", "open …/a.gguf"),
        ("'/srv/My: Models/secret/a b.gguf' is none", "'…/a b.gguf' is none"),
        ("/srv/secret/a.gguf is not in /srv/other/b", "…/a.gguf is not in …/b"),
        ("/srv/secret/a 1/2 done", "…/a 1/2 done"),
        ("/srv/secret/a.gguf: 1/2 done", "…/a.gguf: 1/2 done"),
        ("/srv/secret/cache is full and/or gone", "…/cache is full and/or gone"),
        ("/srv/secret/b is no https://example.org/a/b", "…/b is no https://example.org/a/b"),
        ("https://[::1]:8/a/b?x=/srv/y/z", "https://[::1]:8/a/b?x=/srv/y/z"),
        ("/v1/models, /v1/infill or /v1/audio/speech", "/v1/models, /v1/infill or /v1/audio/speech"),
        ("http://127.0.0.1:80/v1/models and /srv/secret/x", "http://127.0.0.1:80/v1/models and …/x"),
    ],
)
def test_paths_are_told_apart(message: str, shown: str) -> None:
    error = DeckError(ErrorKind.UNAVAILABLE, message, retry_after=2, should_retry=False)
    found = without_paths(error)
    assert (found.message, found.kind, found.retry_after, found.should_retry) == (
        shown,
        ErrorKind.UNAVAILABLE,
        2,
        False,
    )
    assert without_paths(DeckError(ErrorKind.INVALID_REQUEST, message)).message == message
