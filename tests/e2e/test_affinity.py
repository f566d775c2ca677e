"""What affinity saves on the real engine, in prompt tokens; `tests/bench/affinity.py` measures the times too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench.affinity import Measured, profile, run, text
from e2e.live import LiveDeck, live_deck
from engine_support import needs_engine

from deck.tokens import TokenStore

pytestmark = [pytest.mark.engine, needs_engine]


@pytest.mark.parametrize(("slots", "most"), [(2, 0.95), (3, 0.6)])
def test_two_agents_and_their_titles_process_fewer_prompt_tokens(slots: int, most: float) -> None:
    """Without llama-server's cache in host memory; with two slots one of the agents must lose its prompt."""
    found: dict[bool, Measured] = {
        affinity: run(slots, 0, affinity=affinity, turns=9, words=100) for affinity in (True, False)
    }
    assert found[True].prompt == found[False].prompt
    assert found[True].processed < most * found[False].processed


def ask(deck: LiveDeck, session: str, words: list[str], token: str | None = None) -> int:
    """Send a turn of a conversation; return how many of its prompt tokens were processed."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": f"You are {session}."}]
    for said in words:
        messages += [{"role": "user", "content": said}, {"role": "assistant", "content": "Done."}]
    body = {"model": "agent", "messages": messages[:-1], "max_tokens": 2, "temperature": 0.1}
    headers = {"x-session-affinity": session}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    with deck.client() as client:
        usage = client.post("/v1/chat/completions", json=body, headers=headers).raise_for_status().json()["usage"]
    processed: int = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    return processed


def test_one_principal_does_not_push_another_s_prompt_out(tmp_path: Path) -> None:
    """Two slots, and a token that asks for one conversation after the other."""
    _, other = TokenStore(tmp_path / "state" / "tokens.json", None).create("other")
    words = [text(f"mine {number}", 120) for number in range(3)]
    with live_deck(tmp_path, profiles={"agent": profile(2, 0)}) as deck:
        ask(deck, "mine", words[:2])
        for number in range(4):
            ask(deck, f"theirs {number}", [text(f"theirs {number}", 120), "more"], other)
        assert ask(deck, "mine", words) < 500  # of 1100


def test_a_server_with_a_shared_cache_chooses_itself(tmp_path: Path) -> None:
    """An empty slot that is named gets nothing back from host memory: Deck names none."""
    shared = profile(2, 64).replace('["--cache-ram"', '["--kv-unified", "--cache-ram"')
    words = [text(f"mine {number}", 120) for number in range(3)]
    with live_deck(tmp_path, profiles={"agent": shared}) as deck:
        ask(deck, "mine", words[:2])
        ask(deck, "theirs", [text("theirs", 120)])
        assert ask(deck, "mine", words) < 500  # of 1100
