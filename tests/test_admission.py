"""What cannot fit is refused before it queues, with both numbers, in the words of each wire."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from admission_support import (
    CHANGED,
    CONTEXT,
    COUNTER,
    COUNTERS,
    HUGE,
    LONG,
    answering,
    asked,
    counters,
    generated,
    load,
    prompt_words,
    props,
    refusal,
    send,
    sum_words,
    watched,
)
from app_support import app
from chat_support import TOOL
from faults.support import local
from wires import WIRES

from deck import admission
from deck.errors import DeckError, ErrorKind
from deck.testing.fake_llama import Reply, refuse, say
from deck.testing.frames import done, finish, role, tool, usage


@pytest.fixture(params=[False, True], ids=["buffered", "streamed"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=list(WIRES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_what_is_small_is_not_counted(tmp_path: Path, name: str, stream: bool) -> None:
    with app(tmp_path, answering, routes=counters(10)) as deck:
        load(deck)
        assert send(deck, WIRES[name], "hi", 100, stream=stream).is_success
        assert [item.path for item in deck.fake.requests] == [item.path for item in deck.fake.asked]


def test_what_may_not_fit_is_counted_once_and_served_if_it_does(tmp_path: Path, name: str, stream: bool) -> None:
    with app(tmp_path, answering, routes=counters(1002)) as deck:
        load(deck)
        answer = send(deck, WIRES[name], LONG, 100, stream=stream)
        assert answer.is_success, answer.text
        (counter,) = asked(deck, *COUNTERS)
        assert len(generated(deck)) == 1
        if name == "completions":
            assert counter.json() == {"content": LONG, "add_special": True, "parse_special": True}
        else:
            assert counter.json() == {**generated(deck)[0], "stream": False}
        assert generated(deck)[0]["max_tokens"] == 100
        assert CHANGED not in answer.headers


def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(tmp_path: Path, name: str, stream: bool) -> None:
    with app(tmp_path, answering, routes=counters(5000)) as deck:
        load(deck)
        answer = send(deck, WIRES[name], LONG, 100, stream=stream)
        assert refusal(name, answer) == prompt_words(name, 5000, CONTEXT)
        assert len(asked(deck, *COUNTERS)) == 1
        assert generated(deck) == []


def test_a_budget_that_does_not_fit_is_refused_with_both_numbers(tmp_path: Path, name: str, stream: bool) -> None:
    with app(tmp_path, answering, routes=counters(1000)) as deck:
        load(deck)
        answer = send(deck, WIRES[name], "hi", 32000, stream=stream)
        assert refusal(name, answer) == sum_words(name, 1000, 32000, CONTEXT)
        assert generated(deck) == []


def test_a_profile_may_lower_the_budget_to_what_is_left(tmp_path: Path, name: str, stream: bool) -> None:
    profiles = {"capped": 'id = "capped"\nbudget_overflow = "cap"\n{server}'}
    with app(tmp_path, answering, profiles=profiles, routes=counters(1000)) as deck:
        load(deck, "capped")
        answer = send(deck, WIRES[name], "hi", 32000, stream=stream, model="capped")
        assert answer.is_success, answer.text
        field = "max_output_tokens" if name == "responses" else "max_tokens"
        assert f"{field}=32000>3096" in answer.headers[CHANGED]
        assert [body["max_tokens"] for body in generated(deck)] == [3096]
        deck.fake._routes |= counters(4096)
        too_long = send(deck, WIRES[name], "hi", 32000, stream=stream, model="capped")
        words = refusal(name, too_long)
        assert "4096" in words
        assert "32000" not in words


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_the_context_ended_an_answer_whose_budget_was_lowered(tmp_path: Path, reason: str) -> None:
    profiles = {"capped": 'id = "capped"\nbudget_overflow = "cap"\n{server}'}
    with app(tmp_path, [say("a", reason=reason)], profiles=profiles, routes=counters(4095)) as deck:
        answer = send(deck, WIRES["messages"], "hi", 32000, model="capped").json()
        assert answer["stop_reason"] == ("model_context_window_exceeded" if reason == "length" else "end_turn")


@pytest.mark.parametrize(
    ("tokens", "limit", "fits"),
    [(4095, 1, True), (4096, 1, False), (4095, None, True), (4096, None, False), (4000, 96, True), (4000, 97, False)],
)
def test_it_fits_to_the_last_token(tmp_path: Path, tokens: int, limit: int | None, fits: bool) -> None:
    with app(tmp_path, answering, routes=counters(tokens)) as deck:
        load(deck)
        answer = send(deck, WIRES["chat"], LONG, limit)
        assert answer.status_code == (200 if fits else 400)


def test_prefill_only_needs_no_room_for_an_answer(tmp_path: Path) -> None:
    with app(tmp_path, answering, routes=counters(4096)) as deck:
        load(deck)
        assert send(deck, WIRES["messages"], LONG, 0).is_success
        deck.fake._routes |= counters(4097)
        assert "4097 tokens > 4096" in refusal("messages", send(deck, WIRES["messages"], LONG, 0))


@pytest.mark.parametrize(
    ("keys", "limit", "status"),
    [
        ("[limits]\nmax_tokens = 100\n", 32000, 200),
        ("[limits]\nmax_tokens = 8000\n", 32000, 400),
        ("[limits]\nmax_tokens = 8000\n", None, 200),
        ("[defaults]\nmax_tokens = 8000\n", None, 200),
        ("[force]\nmax_tokens = 8000\n", 100, 200),
        ("[force]\nmax_tokens = 100\n", 32000, 200),
        ('drop = ["max_tokens"]\n', 32000, 200),
    ],
)
def test_the_budget_is_the_clients_own_as_the_profile_leaves_it(
    tmp_path: Path, keys: str, limit: int | None, status: int
) -> None:
    with app(tmp_path, answering, profiles={"p": f'id = "p"\n{keys}{{server}}'}, routes=counters(1000)) as deck:
        load(deck, "p")
        assert send(deck, WIRES["chat"], "hi", limit, model="p").status_code == status


def test_ids_of_tokens_need_no_counter(tmp_path: Path) -> None:
    with app(tmp_path, answering) as deck:
        load(deck)
        wire = WIRES["completions"]
        body = {**wire.body("", False, 1), "prompt": [1] * 4095}
        assert deck.send("POST", wire.path, json=body).is_success
        answer = deck.send("POST", wire.path, json={**body, "prompt": [1] * 5000})
        assert refusal("completions", answer) == prompt_words("completions", 5000, CONTEXT)
        assert asked(deck, *COUNTERS) == []


def test_a_picture_that_may_not_fit_is_counted(tmp_path: Path) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    media = {**props(), "modalities": {"vision": True}}
    with app(tmp_path, answering, routes={**counters(5000), "/props": media}) as deck:
        load(deck)
        body = {"model": "m1", "max_tokens": 1, "messages": [{"role": "user", "content": [picture]}]}
        assert "5000" in refusal("chat", deck.chat(json=body))


def test_what_llama_server_itself_says_has_the_same_words(tmp_path: Path, name: str, stream: bool) -> None:
    said = "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it"
    full = refuse(400, said, "exceed_context_size_error", n_prompt_tokens=5000, n_ctx=4096)
    with app(tmp_path, [full]) as deck:
        words = refusal(name, send(deck, WIRES[name], "hi", 1, stream=stream))
        assert words.startswith(prompt_words(name, 5000, 4096))


# A server that cannot count


def test_where_nobody_counts_llama_server_says_what_is_too_long(tmp_path: Path) -> None:
    said = "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it"
    with app(tmp_path, [say("a"), refuse(400, said)]) as deck:
        load(deck)
        assert "5000" in refusal("chat", send(deck, WIRES["chat"], LONG, 1))
        assert len(asked(deck, *COUNTERS)) == 1


def test_a_server_that_does_not_count_is_not_asked_for_ever(tmp_path: Path) -> None:
    with app(tmp_path, answering) as deck:
        load(deck)
        for _ in range(5):
            assert send(deck, WIRES["chat"], LONG, 1).is_success
        assert len(asked(deck, COUNTER)) == 3


def test_a_count_that_succeeds_forgives_the_failures_before(tmp_path: Path) -> None:
    replies: list[Any] = [{}, {}, {"input_tokens": 9}, {}, {}, {"input_tokens": 9}]
    with app(tmp_path, answering, routes={COUNTER: lambda received: replies.pop(0)}) as deck:
        load(deck)
        for _ in range(6):
            assert send(deck, WIRES["chat"], LONG, 1).is_success
        assert replies == []


def test_a_client_s_mistake_is_no_failure_of_the_counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bytes] = []

    async def refuse_it(server: Any, body: bytes) -> int:
        calls.append(body)
        raise DeckError(ErrorKind.INVALID_REQUEST, "no such template variable")

    with app(tmp_path, answering) as deck:
        load(deck)
        monkeypatch.setattr(deck.deck.pipeline._fitter._client, "count_chat", refuse_it)
        for _ in range(5):
            assert send(deck, WIRES["chat"], LONG, 1).is_success
        assert len(calls) == 5


def test_a_counter_that_is_silent_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_PATIENCE", 0.05)
    with app(tmp_path, answering) as deck:
        load(deck)
        silent: asyncio.Future[int] = deck.runner.get_loop().create_future()
        monkeypatch.setattr(deck.deck.pipeline._fitter._client, "count_chat", lambda server, body: silent)
        assert send(deck, WIRES["chat"], LONG, 1).is_success
        assert silent.cancelled()


# A model that is not loaded


def test_what_plainly_does_not_fit_loads_no_model(tmp_path: Path, name: str, stream: bool) -> None:
    with app(tmp_path, profiles={"cold": local(tmp_path / "cold", "cold", ctx_size=CONTEXT)}) as deck:
        answer = send(deck, WIRES[name], HUGE, 100, stream=stream, model="cold")
        words = refusal(name, answer)
        assert words.startswith(prompt_words(name, 5000, CONTEXT))
        assert "not loaded" in words
        assert deck.deck.board.server("cold") is None
        assert deck.deck.board.depth == 0


def test_a_budget_beyond_the_whole_context_loads_no_model(tmp_path: Path, name: str) -> None:
    with app(tmp_path, profiles={"cold": local(tmp_path / "cold", "cold", ctx_size=CONTEXT)}) as deck:
        words = refusal(name, send(deck, WIRES[name], "Hello there, model!", 32000, model="cold"))
        assert words.startswith(sum_words(name, 2, 32000, CONTEXT))
        assert deck.deck.board.server("cold") is None


COLD = 'id = "cold"\n{keys}{{server}}{more}'


@pytest.mark.parametrize(
    ("keys", "more", "words", "limit"),
    [
        ("", "ctx_size = 4096\n", LONG, 100),
        ("", "ctx_size = 4096\n", "hi", 4000),
        ("", "", HUGE, 100),
        ('budget_overflow = "cap"\n', "ctx_size = 4096\n", "hi", 32000),
        ("[limits]\nmax_tokens = 100\n", "ctx_size = 4096\n", "hi", 32000),
    ],
    ids=["perhaps", "just", "unknown", "capped", "limited"],
)
def test_what_may_fit_is_looked_at_once_the_model_is_loaded(
    tmp_path: Path, keys: str, more: str, words: str, limit: int
) -> None:
    profiles = {"cold": COLD.format(keys=keys, more=more)}
    with app(tmp_path, answering, profiles=profiles, routes=counters(20)) as deck:
        assert send(deck, WIRES["chat"], words, limit, model="cold").is_success
    with app(tmp_path / "again", answering, profiles=profiles, routes=counters(5000)) as deck:
        is_counted = "limits" not in keys
        answer = send(deck, WIRES["chat"], words, limit, model="cold")
        assert answer.status_code == (400 if is_counted else 200)
        if is_counted:
            assert refusal("chat", answer) == prompt_words("chat", 5000, CONTEXT)
            assert generated(deck) == []
        assert deck.deck.board.running("cold") == 0


def test_the_declared_context_counts_where_the_launch_line_says_none(tmp_path: Path) -> None:
    profiles = {"cold": 'id = "cold"\n{server}[capabilities]\ncontext = 1000\n'}
    with app(tmp_path, answering, profiles=profiles) as deck:
        assert "1000" in refusal("chat", send(deck, WIRES["chat"], HUGE, 1, model="cold"))
        assert deck.fake.requests == []


def test_the_notes_of_a_request_that_was_shaped_twice_stand_once(tmp_path: Path) -> None:
    profiles = {"cold": 'id = "cold"\n[limits]\ntemperature = 1\n{server}ctx_size = 4096\n'}
    with app(tmp_path, answering, profiles=profiles) as deck:
        records: list[Any] = []
        deck.deck.endpoint._observers = [type("Seen", (), {"observe": staticmethod(records.append)})()]
        body = {**WIRES["chat"].body("hi", False, 5), "model": "cold", "temperature": 1.5}
        for _ in range(2):  # not loaded, then loaded
            assert deck.chat(json=body).headers[CHANGED] == "temperature=1.5>1"
        assert [list(record.notes) for record in records] == [[("changed", "temperature")]] * 2


def test_a_context_that_shifts_holds_any_answer(tmp_path: Path) -> None:
    profile = local(tmp_path / "cold", "cold", "--context-shift", ctx_size=CONTEXT)
    with app(tmp_path, profiles={"cold": profile}) as deck:
        body = {"model": "cold", "prompt": [1] * 100, "max_tokens": 32000}
        for _ in range(2):  # not loaded, then loaded
            assert deck.send("POST", WIRES["completions"].path, json=body).status_code == 200
        refused = deck.send("POST", WIRES["completions"].path, json={**body, "prompt": [1] * 5000})
        assert refusal("completions", refused) == prompt_words("completions", 5000, CONTEXT)


# A server that changes while one waits for it


def test_another_server_than_there_was_is_looked_at_anew(tmp_path: Path) -> None:
    profiles = {"p": 'id = "p"\n[limits]\ntemperature = 1\n{server}'}
    with app(tmp_path, answering, profiles=profiles, routes=counters(100)) as deck:
        load(deck, "p")
        body = {**WIRES["chat"].body("hi", False, 5), "model": "p", "temperature": 1.5}
        records: list[Any] = []
        deck.deck.endpoint._observers = [type("Seen", (), {"observe": staticmethod(records.append)})()]
        contexts = iter([CONTEXT, 64])

        def renew(server: Any) -> None:
            server.facts = replace(server.facts, context=next(contexts))

        assert watched(deck, renew) == []
        assert deck.chat(json=body).is_success
        assert refusal("chat", deck.chat(json=body)) == prompt_words("chat", 100, 64)
        assert [list(record.notes) for record in records] == [[("changed", "temperature")]] * 2
        assert deck.deck.board.running("p") == 0


def test_who_takes_more_than_was_granted_waits_for_it(tmp_path: Path) -> None:
    with app(tmp_path, answering) as deck:
        seen, settled = watched(deck, lambda server: None), list[int]()

        def settle(ticket: Any, credit: int) -> bool:
            settled.append(credit)
            return len(settled) > 1

        deck.deck.board.settle = settle  # type: ignore[method-assign]  # as if others had taken the pool
        deck.deck.pipeline._fitter._known.clear()
        answer = send(deck, WIRES["chat"], "hi", 9)
        assert answer.is_success
        assert len(seen) == 2
        assert seen[1] == settled[0]
        assert len(generated(deck)) == 1


def test_slots_of_their_own_are_promised_whole(tmp_path: Path) -> None:
    """Whoever waits for a server may find one whose slots share."""
    with app(tmp_path, answering) as deck:
        load(deck)
        seen = watched(deck, lambda server: None)
        assert send(deck, WIRES["chat"], "hi", 5).is_success
        assert seen == [CONTEXT]


def test_what_cannot_be_shaped_without_a_server_is_promised_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with app(tmp_path, answering) as deck:
        shape = deck.deck.pipeline._shaper.shape

        def picky(exchange: Any, facts: Any) -> Any:
            if facts is admission.NO_FACTS:
                exchange.report.changed("a", "b")
                raise DeckError(ErrorKind.INVALID_REQUEST, "tell me more of the server")
            return shape(exchange, facts)

        monkeypatch.setattr(deck.deck.pipeline._shaper, "shape", picky)
        seen = watched(deck, lambda server: None)
        answer = send(deck, WIRES["chat"], "hi", 5)
        assert answer.is_success
        assert CHANGED not in answer.headers
        assert seen[0] > 1 << 30


def test_a_reload_changes_what_becomes_of_a_long_budget(tmp_path: Path) -> None:
    profiles = {"p": 'id = "p"\n{server}'}
    with app(tmp_path, answering, profiles=profiles, routes=counters(1000)) as deck:
        load(deck, "p")
        assert send(deck, WIRES["chat"], "hi", 32000, model="p").status_code == 400
        path = tmp_path / "profiles" / "p.toml"
        path.write_text('budget_overflow = "cap"\n' + path.read_text(encoding="utf-8"), encoding="utf-8")

        async def reload() -> tuple[str, ...]:
            return deck.deck.reload().changed

        assert deck.runner.run(reload()) == ("p",)
        assert send(deck, WIRES["chat"], "hi", 32000, model="p").is_success
        assert generated(deck)[-1]["max_tokens"] == 3096


# Counts, and further tries


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1/responses/input_tokens"])
def test_a_count_is_never_refused_for_its_length(tmp_path: Path, path: str) -> None:
    body = {"model": "m1", "messages": [{"role": "user", "content": HUGE}]}
    if "responses" in path:
        body = {"model": "m1", "input": HUGE}
    with app(tmp_path, answering, routes=counters(50_000)) as deck:
        estimated = deck.send("POST", path, json=body)
        assert estimated.json()["input_tokens"] > CONTEXT
        load(deck)
        assert deck.send("POST", path, json=body).json()["input_tokens"] == 50_000


def test_an_answer_is_kept_if_what_was_wrong_with_it_does_not_fit_any_more(tmp_path: Path) -> None:
    counts = iter([10, 5000])
    routes = {COUNTER: lambda received: {"input_tokens": next(counts)}}
    wrong = Reply(steps=(role(), tool(0, "abcdefghi", "delete_all", "{}"), finish("tool_calls"), usage(10, 5), done()))
    with app(tmp_path, [wrong], routes=routes) as deck:
        body = {**WIRES["chat"].body(LONG, False, 100), "tools": [TOOL]}
        answer = deck.chat(json=body)
        assert answer.status_code == 200, answer.text
        assert "delete_all" in answer.json()["choices"][0]["message"]["content"]
        assert len(generated(deck)) == 1
