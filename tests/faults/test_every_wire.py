"""A llama-server of Deck's own that dies, stalls, babbles or refuses, on each wire, streamed and buffered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from e2e.live import LiveDeck, children, is_alive, live_deck
from faults.support import bounded, client_of, configured, gguf
from scripted_llama import script
from soak.mix import TOOLS
from soak.talk import ask
from soak.verdict import Verdict, judge
from wires import WIRES

# What the server is told to do, the least that the reason must say, and the status where nothing was sent before.
DEEDS = {
    "die": ("exited with status 134", (502, 503)),
    "words 6 crash": ("exited with status 134", (502, 503)),
    "call crash": ("exited with status 134", (502, 503)),
    "words 6 stall": ("was silent for 0.4 s", (504,)),
    "prefill 60000": ("was silent for 0.4 s", (504,)),
    "call stall": ("was silent for 0.4 s", (504,)),
    "words 6 close": ("broke off: it closed the connection in the middle of its answer", (502,)),
    "words 0 close": ("", (502,)),
    "call close": ("broke off: it closed the connection in the middle of its answer", (502,)),
    "words 6 reset": ("broke off", (502,)),
    "words 6 garbage": ("no chunk of an answer", (502,)),
    "internal": ("GPU lost", (502,)),
    "busy": ("Loading model", (503,)),
    "empty": ("without a message", (400,)),
    "page": ("a page of HTML", (502,)),
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDeck]:
    tmp = tmp_path_factory.mktemp("wires")
    keys: dict[str, Any] = {"model": str(gguf(tmp)), "binary": str(script(tmp)), "stall_timeout": "400ms"}
    keys["parallel"] = 4
    lines = ['id = "m1"', "retry_calls = false", "[server]", *(f"{name} = {json.dumps(v)}" for name, v in keys.items())]
    with live_deck(tmp, *configured(tmp), profiles={"m1": "\n".join(lines)}) as deck:
        yield deck


async def said(deck: LiveDeck, wire: str, streamed: bool, deed: str) -> Verdict:
    request = WIRES[wire].body(deed, streamed, 100) | {"model": "m1"}
    if "call" in deed:
        request["tools"] = [TOOLS[wire]]
    headers = {**deck.headers, "content-type": "application/json"}
    got = await ask(deck.port, WIRES[wire].path, json.dumps(request).encode(), headers, limit=15)
    return judge(wire, streamed, got)


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "buffered"])
@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("wire", sorted(WIRES))
@bounded
async def test_a_fault_of_the_server_has_its_reason_and_the_next_request_works(
    faulty: LiveDeck, wire: str, deed: str, streamed: bool
) -> None:
    if "call" in deed and WIRES[wire].has_text_only:
        pytest.skip("this wire has no calls")
    reason, statuses = DEEDS[deed]
    async with client_of(faulty) as client:
        # An operator's word, or the third crash in a row would not be tried at once.
        assert (await client.post("/deck/servers/m1/load")).status_code == 200
    verdict = await said(faulty, wire, streamed, deed)
    assert verdict.outcome in (("error", "broken") if streamed else ("error",)), verdict
    assert reason in verdict.why, verdict
    if verdict.outcome == "error":
        assert verdict.status in statuses, verdict
    async with client_of(faulty) as client:
        assert (await client.post("/deck/servers/m1/load")).status_code == 200
    assert (await said(faulty, wire, streamed, "words 2")).outcome == "answer"
    assert len(await asyncio.to_thread(_alive, faulty)) == 1


def _alive(deck: LiveDeck) -> list[int]:
    return [pid for pid in children(deck.process.pid) if is_alive(pid)]
