"""Reported failures of legacy Completions, by their number in the list of cases."""

from __future__ import annotations

from typing import Any

import pytest
from completions_support import body, parse, refusal, upstream

from deck.api import Fold, PartDelta, PartEnd, PartStart, ReplyHead, Start
from deck.canon.events import Finish, FinishReason, Usage
from deck_plugins.surfaces.openai_completions import OpenAICompletions

B94: dict[str, Any] = {"model": "m1", "prompt": "2+2=4", "max_tokens": 1, "echo": True, "logprobs": 1}


def test_b94_an_echo_is_refused_not_ignored() -> None:
    error = refusal(B94)
    assert (error.kind.status, error.param) == (400, "echo")


def test_b94_without_an_echo_the_logprobs_have_the_legacy_form() -> None:
    sent, _ = upstream({**B94, "echo": False})
    assert sent["logprobs"] == 1
    assert "echo" not in sent
    surface, fold = OpenAICompletions(), Fold()
    entry = {"id": 9, "token": "!", "bytes": [33], "logprob": -0.25, "top_logprobs": []}
    events = [Start(), PartStart(0, "text"), PartDelta(0, "!", (entry,)), PartEnd(0)]
    for event in [*events, Finish(FinishReason.LENGTH, Usage(5, 1))]:
        fold.feed(event)
    parsed, _ = parse({**B94, "echo": False})
    found = surface.render(fold.answer(), parsed, ReplyHead(seed="A" * 40, created=1, model="m1"))
    assert set(found["choices"][0]["logprobs"]) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"suffix": "}"}, "suffix"), ({"best_of": 3}, "best_of"), ({"prompt": ["a", "b"]}, "prompt")],
)
def test_b95_what_cannot_be_done_is_refused_naming_it(fields: dict[str, Any], param: str) -> None:
    assert refusal(body(**fields)).param == param


def test_b95_two_prompts_of_tokens_are_two_prompts() -> None:
    assert refusal(body(prompt=[[1], [2]])).param == "prompt"


@pytest.mark.parametrize("prompt", [[1, 2, 3], ""])
def test_b95_tokens_and_an_empty_prompt_are_forwarded(prompt: Any) -> None:
    assert upstream(body(prompt=prompt))[0]["prompt"] == prompt
