"""A request that llama-server dies of: it is an error with the reason, and never asked again of the next run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from e2e.live import LiveDeck, live_deck
from faults.support import body, bounded, client_of, local, until, works

WORD = "poison"
SCHEMA = {"type": "object", "title": WORD}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "buffered": ("/v1/chat/completions", body("buffered", user=WORD, messages=[{"role": "user", "content": WORD}])),
    "streamed": ("/v1/chat/completions", body("streamed", stream=True, messages=[{"role": "user", "content": WORD}])),
    "counted": (
        "/v1/chat/completions",
        body("counted", max_tokens=4000, messages=[{"role": "user", "content": f"{WORD} " * 800}]),
    ),
    "count": ("/v1/messages/count_tokens", body("count", messages=[{"role": "user", "content": WORD}])),
    "schema": ("/v1/completions", {"model": "schema", "prompt": "hi", "json_schema": SCHEMA}),
    "operation": ("/tokenize", {"model": "operation", "content": WORD}),
}


@pytest.fixture(scope="module")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDeck]:
    tmp = tmp_path_factory.mktemp("poison")
    profiles = {name: local(tmp / name, name, "--fake-poison", WORD, ctx_size=4096) for name in REQUESTS}
    with live_deck(tmp, profiles=profiles) as running:
        yield running


@pytest.mark.parametrize("is_warm", [True, False], ids=["by an old connection", "by a new one"])
@pytest.mark.parametrize("model", REQUESTS)
@bounded
async def test_what_kills_one_run_is_not_asked_of_the_next(deck: LiveDeck, model: str, is_warm: bool) -> None:
    path, asked = REQUESTS[model]
    log = deck.state / "logs" / f"{model}.log"
    async with client_of(deck) as client:
        if is_warm or model == "count":  # a count loads nothing
            await works(client, model)
        before = log.read_text().count("poisoned") if log.exists() else 0
        answer = await client.post(path, json=asked)
        assert answer.status_code in (502, 503), answer.text
        assert "exited with status 134" in answer.text
        await until(lambda: log.read_text().count("poisoned") > before)
        await works(client, model)
        assert log.read_text().count("poisoned") == before + 1
