"""Slots of the real engine that share one pool: what happens when it runs full, and that Deck never lets it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from app_support import CHAT, TOKEN, App, app
from engine_support import ROOT, needs_engine

from deck import admission

pytestmark = [needs_engine, pytest.mark.engine]
POOL = 1024
PROFILE = (
    f'id = "pool"\n[server]\nmodel = "{ROOT}/profiles/tiny-chat/tiny-chat.gguf"\n'
    f'ctx_size = {POOL}\nparallel = 4\nargs = ["-t", "1", "-tb", "1", "--kv-unified"]\n'
)
FULL = "Context size has been exceeded"


async def ask(deck: App, words: int, limit: int | None, *, stream: bool = False) -> httpx.Response:
    body: dict[str, Any] = {
        "model": "pool",
        "messages": [{"role": "user", "content": "word " * words}],
        "ignore_eos": True,
        "stream": stream,
    }
    if limit is not None:
        body["max_tokens"] = limit
    return await deck.client.post(CHAT, json=body, headers={"authorization": f"Bearer {TOKEN}"})


def together(deck: App, asked: list[tuple[int, int | None]], *, stream: bool = False) -> list[httpx.Response]:
    """Send all at once, after one that loads the model."""

    async def play() -> list[httpx.Response]:
        async with asyncio.timeout(120):
            assert (await ask(deck, 1, 1)).is_success
            return list(await asyncio.gather(*(ask(deck, *item, stream=stream) for item in asked)))

    return deck.runner.run(play())


# Any two of them that run at once overflow the pool.
ASKED: list[tuple[int, int | None]] = [(20, 700)] * 4


def test_a_full_pool_ends_every_running_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The danger is real: without credits those that run at once all end in the error, through no fault of theirs."""
    monkeypatch.setattr(admission, "_credit", lambda prompt, request, context: 0)
    with app(tmp_path, profiles={"pool": PROFILE}) as deck:
        answers = together(deck, ASKED, stream=True)
        assert sum(FULL in answer.text for answer in answers) >= 2


@pytest.mark.parametrize("stream", [False, True], ids=["buffered", "streamed"])
def test_with_credits_the_same_all_finish(tmp_path: Path, stream: bool) -> None:
    with app(tmp_path, profiles={"pool": PROFILE}) as deck:
        answers = together(deck, ASKED, stream=stream)
        assert [answer.status_code for answer in answers] == [200] * 4
        assert not any(FULL in answer.text for answer in answers)
        if not stream:
            assert {answer.json()["usage"]["completion_tokens"] for answer in answers} == {700}


def test_whatever_comes_nobody_s_answer_is_ended_for_another_s(tmp_path: Path) -> None:
    """Prompts and budgets of every size, without a budget too, over slots that hold what was there before."""
    chance = random.Random(7)
    asked = [(chance.randint(1, 200), chance.choice([None, 1, 50, 50, 200, 200, 400])) for _ in range(40)]
    with app(tmp_path, profiles={"pool": PROFILE}) as deck:
        answers = together(deck, asked)
        assert Counter(answer.status_code for answer in answers) == {200: 40}
        for (_, limit), answer in zip(asked, answers, strict=True):
            usage = answer.json()["usage"]
            assert usage["completion_tokens"] == (limit or POOL - usage["prompt_tokens"])


@pytest.mark.parametrize("share", [2, 3, 4])
def test_a_pool_is_used_to_its_last_token(tmp_path: Path, share: int) -> None:
    with app(tmp_path, profiles={"pool": PROFILE}) as deck:
        prompt = together(deck, [(20, 1)])[0].json()["usage"]["prompt_tokens"]
        answers = together(deck, [(20, POOL // share - prompt)] * (2 * share))
        assert [answer.status_code for answer in answers] == [200] * (2 * share)
        assert {answer.json()["usage"]["total_tokens"] for answer in answers} == {POOL // share}


def test_what_exceeds_the_pool_alone_is_refused(tmp_path: Path) -> None:
    with app(tmp_path, profiles={"pool": PROFILE}) as deck:
        (long, wide, fine) = together(deck, [(1100, 1), (20, 1024), (20, 400)])
        assert [answer.status_code for answer in (long, wide, fine)] == [400, 400, 200]
        assert long.json()["error"]["code"] == wide.json()["error"]["code"] == "context_length_exceeded"
