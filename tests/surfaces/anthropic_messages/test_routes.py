"""Messages through a whole Deck in front of a fake llama-server: routes, headers, errors, counts, heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from app_support import TOKEN, App, app, messages_error_of
from e2e.live import free_port, live_deck
from faults.support import DEADLINE, Reader, Rig, bounded, configured, local, remote, until
from messages_automaton import MessagesStream, check
from messages_support import COUNT, MESSAGES, TOOL, body, text, user

from deck.testing.fake_llama import Act, Reply, Script, Step, refuse, say
from deck.testing.frames import chunk, content, done, error_frame, finish, reasoning, role, tool, usage

OVERFLOW = "request (41000 tokens) exceeds the available context size (32768 tokens), try increasing it"
TOO_LONG = {"type": "invalid_request_error", "message": "prompt is too long: 41000 tokens > 32768 maximum"}


def send(deck: App, path: str = MESSAGES, **options: Any) -> httpx.Response:
    options.setdefault("json", body())
    return deck.send("POST", path, **options)


def stream(deck: App, **fields: Any) -> MessagesStream:
    answer = send(deck, json=body(stream=True, **fields))
    assert answer.status_code == 200, answer.text
    return check(answer.content)


@pytest.fixture
def deck(tmp_path: Path) -> Iterator[App]:
    with app(tmp_path, [say("Hello", "!")]) as running:
        yield running


def in_turn(tmp_path: Path, *replies: Reply) -> Any:
    script: Script = list(replies)
    return app(tmp_path, script)


def progress(total: int, cache: int) -> bytes:
    detail = {"total": total, "cache": cache, "processed": total, "time_ms": 1}
    return chunk({"role": "assistant", "content": None}, prompt_progress=detail)


@pytest.mark.parametrize("path", [MESSAGES, "/messages", "/v1/messages/", "/v1/v1/messages", "/v1/messages?beta=true"])
def test_every_way_to_write_the_path_is_answered(deck: App, path: str) -> None:
    answer = send(deck, path)
    assert answer.json()["content"] == [{"type": "text", "text": "Hello!", "citations": None}]
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    shown = answer.headers.get("x-athena-compatibility-ignored")
    assert shown == ("?beta" if "?" in path else None)


def test_the_vendors_headers_are_reported_and_never_passed_on(deck: App) -> None:
    headers = {"anthropic-version": "2031-01-01", "anthropic-beta": "a-2025-01-01,b-2025-01-01"}
    answer = send(deck, headers=headers)
    assert answer.headers["x-athena-compatibility-ignored"] == "anthropic-beta, anthropic-version"
    assert not any(name.startswith("anthropic") for name in deck.fake.requests[-1].headers)


@pytest.mark.parametrize("headers", [{"x-api-key": TOKEN}, {"authorization": f"Bearer {TOKEN}"}])
def test_either_credential_is_enough(deck: App, headers: dict[str, str]) -> None:
    """B167."""
    assert send(deck, token=None, headers=headers).status_code == 200


def test_a_stream_has_its_headers_and_frames(deck: App) -> None:
    answer = send(deck, json=body(stream=True))
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["request-id"]
    assert check(answer.content).text == "Hello!"


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, None),
        ({"thinking": {"type": "disabled"}}, None),
        ({"thinking": {"type": "adaptive"}}, "thinking"),
        ({"output_config": {"effort": "high"}}, "output_config.effort"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, "output_config.effort, thinking"),
    ],
)
def test_a_model_that_does_not_think_says_so(tmp_path: Path, fields: dict[str, Any], names: str | None) -> None:
    plain = 'id = "plain"\n{server}[capabilities]\nreasoning = false\n'
    with app(tmp_path, profiles={"plain": plain}) as deck:
        answer = send(deck, json=body(model="plain", **fields))
        assert answer.headers.get("x-athena-compatibility-ignored") == names
        sent = deck.fake.chats[-1].json()
    assert "reasoning_effort" not in sent
    assert "chat_template_kwargs" not in sent


def test_metadata_goes_nowhere(deck: App) -> None:
    answer = send(deck, json=body(metadata={"user_id": '{"device_id":"canary"}'}))
    assert answer.headers["x-athena-compatibility-ignored"] == "metadata"
    assert b"canary" not in deck.fake.requests[-1].body
    assert "canary" not in str(deck.fake.requests[-1].headers)


# What is asked of llama-server beyond the answer


def test_the_matched_stop_sequence_is_told(tmp_path: Path) -> None:
    last = finish("stop", __verbose={"stop_type": "word", "stopping_word": "END"})
    reply = Reply(steps=[role(), content("a"), last, usage(5, 2), done()])
    with in_turn(tmp_path, reply) as deck:
        whole = send(deck, json=body(stop_sequences=["END", "x"])).json()
        assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", "END")
        got = stream(deck, stop_sequences=["END"])
        assert (got.stop_reason, got.stop_sequence) == ("stop_sequence", "END")
        other = send(deck, json=body()).json()
        assert (other["stop_reason"], other["stop_sequence"]) == ("end_turn", None)
        sent = [request.json() for request in deck.fake.chats]
    assert [item.get("verbose") for item in sent] == [True, True, None]
    assert [item.get("return_progress") for item in sent] == [None, True, None]


def test_the_prompts_tokens_are_told_at_the_beginning(tmp_path: Path) -> None:
    reply = Reply(steps=[progress(9, 2), content("a"), finish(), usage(9, 1, 2), done()])
    with in_turn(tmp_path, reply) as deck:
        got = stream(deck)
    begun = got.message["usage"]
    assert (begun["input_tokens"], begun["cache_read_input_tokens"]) == (7, 2)
    assert got.usage == {**begun, "output_tokens": 1}


def test_a_full_context_is_no_limit_of_the_clients(tmp_path: Path) -> None:
    reply = Reply(steps=[role(), content("a"), finish("length"), usage(5, 10), done()])
    with in_turn(tmp_path, reply) as deck:
        assert send(deck, json=body(max_tokens=10)).json()["stop_reason"] == "max_tokens"
        assert send(deck, json=body(max_tokens=11)).json()["stop_reason"] == "model_context_window_exceeded"
        assert stream(deck, max_tokens=11).stop_reason == "model_context_window_exceeded"


def test_no_tokens_at_all_process_the_prompt(tmp_path: Path) -> None:
    reply = Reply(steps=[role(), content("a"), finish("length"), usage(5, 1), done()])
    with in_turn(tmp_path, reply) as deck:
        whole = send(deck, json=body(max_tokens=0)).json()
        assert (whole["content"], whole["stop_reason"], whole["usage"]["output_tokens"]) == ([], "max_tokens", 0)
        got = stream(deck, max_tokens=0)
        assert (got.content, got.stop_reason) == ([], "max_tokens")


# The counter


def test_a_count_asks_the_running_server_with_the_same_body(tmp_path: Path) -> None:
    with in_turn(tmp_path, say("Hello")) as deck:
        deck.fake._routes["/v1/chat/completions/input_tokens"] = {"input_tokens": 17}
        request = {"model": "m1", "system": "Be brief.", "tools": [TOOL], "messages": [user()]}
        send(deck, json={**request, "max_tokens": 8})
        answer = send(deck, COUNT + "?beta=true", json=request)
        assert answer.status_code == 200
        assert answer.json() == {"input_tokens": 17}
        assert "x-deck-estimate" not in answer.headers
        generated, counted = deck.fake.requests[-2].json(), deck.fake.requests[-1].json()
    assert counted == {
        **{key: value for key, value in generated.items() if key != "max_tokens"},
        "stream": False,
    }


def test_a_count_for_a_model_that_is_not_loaded_is_an_estimate(tmp_path: Path) -> None:
    profile = f'id = "cold"\n[server]\nmodel = "{tmp_path / "no.gguf"}"\n'
    with app(tmp_path, profiles={"cold": profile}) as deck:
        request = {"model": "cold", "messages": [user("one two three four five")]}
        answer = send(deck, COUNT, json=request)
        assert answer.headers["x-deck-estimate"] == "1"
        bigger = send(deck, COUNT, json={**request, "tools": [TOOL]})
        assert 0 < answer.json()["input_tokens"] < bigger.json()["input_tokens"]


def test_a_count_refuses_what_is_not_its_own(deck: App) -> None:
    error = messages_error_of(send(deck, COUNT, json=body()), 400)
    assert "'max_tokens'" in error["message"]


# Errors


def test_what_goes_wrong_before_the_surface_has_its_envelope(deck: App) -> None:
    assert messages_error_of(send(deck, token=None), 401)["type"] == "authentication_error"
    assert messages_error_of(send(deck, token="wrong"), 401)["type"] == "authentication_error"
    assert messages_error_of(deck.send("GET", MESSAGES), 405)["type"] == "invalid_request_error"
    assert messages_error_of(deck.send("GET", COUNT), 405)["type"] == "invalid_request_error"
    assert messages_error_of(deck.send("POST", "/v1/messages/batches"), 404)["type"] == "not_found_error"
    assert messages_error_of(send(deck, json=None, content=b"{"), 400)["type"] == "invalid_request_error"
    assert messages_error_of(send(deck, json=None, content=b"[]"), 400)["type"] == "invalid_request_error"
    assert messages_error_of(send(deck, json=body(model="no")), 404)["type"] == "not_found_error"
    assert messages_error_of(send(deck, json=body(temprature=1)), 400)["type"] == "invalid_request_error"
    coded = send(deck, json=None, content=b"x", headers={"content-encoding": "foo"})
    assert messages_error_of(coded, 415)["type"] == "invalid_request_error"


def test_another_route_speaks_the_wire_of_the_vendors_header(deck: App) -> None:
    answer = deck.send("POST", "/v1/nothing", headers={"anthropic-version": "2023-06-01"})
    assert messages_error_of(answer, 404)["type"] == "not_found_error"


def test_a_body_over_the_limit_is_too_large(tmp_path: Path) -> None:
    with app(tmp_path, body_limit=2000) as deck:
        answer = send(deck, json=body(messages=[user("x" * 3000)]))
        assert messages_error_of(answer, 413)["type"] == "request_too_large"


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("reply", "status", "error"),
    [
        (
            refuse(400, OVERFLOW, "exceed_context_size_error", n_prompt_tokens=41000, n_ctx=32768),
            400,
            TOO_LONG,
        ),
        (
            refuse(500, "image input is not supported - hint: provide the mmproj"),
            400,
            {
                "type": "invalid_request_error",
                "message": "image input is not supported - hint: provide the mmproj",
            },
        ),
        (refuse(500, "boom"), 502, {"type": "api_error", "message": "boom"}),
        (
            refuse(503, "Loading model", "unavailable_error"),
            503,
            {"type": "overloaded_error", "message": "Loading model"},
        ),
        (Reply(steps=[error_frame(500, "boom")]), 502, {"type": "api_error", "message": "boom"}),
        (Reply(steps=[role(), error_frame(500, "boom")]), 502, {"type": "api_error", "message": "boom"}),
        (
            Reply(steps=[role(), error_frame(400, OVERFLOW, "exceed_context_size_error")]),
            400,
            TOO_LONG,
        ),
    ],
)
def test_a_failure_before_the_first_byte_has_its_status(
    tmp_path: Path, reply: Reply, status: int, error: dict[str, str], streams: bool
) -> None:
    with in_turn(tmp_path, reply) as deck:
        assert messages_error_of(send(deck, json=body(stream=streams)), status) == error


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (error_frame(500, "slot failure"), {"type": "api_error", "message": "slot failure"}),
        (error_frame(400, OVERFLOW, "exceed_context_size_error"), TOO_LONG),
        (
            error_frame(500, "Context size has been exceeded."),
            {"type": "invalid_request_error", "message": "prompt is too long: Context size has been exceeded."},
        ),
        (Act.CLOSE, None),
        (finish("abort"), None),
    ],
)
def test_a_failure_after_it_is_an_error_event(tmp_path: Path, last: Step, error: dict[str, str] | None) -> None:
    with in_turn(tmp_path, Reply(steps=[role(), content("he"), last])) as deck:
        got = stream(deck)
    assert got.text == "he"
    assert got.error is not None
    assert got.error == error or (error is None and got.error["type"] == "api_error")
    assert got.stop_reason is None


def test_a_call_without_an_object_is_an_error_that_is_not_tried_again(tmp_path: Path) -> None:
    reply = Reply(steps=[role(), tool(0, "a1", "read_note", "[1]"), finish("tool_calls"), usage(5, 2), done()])
    once = {"m1": 'id = "m1"\nretry_calls = false\n{server}'}
    with app(tmp_path, [reply], profiles=once) as deck:
        answer = send(deck, json=body(tools=[TOOL]))
    assert "'read_note'" in messages_error_of(answer, 502)["message"]
    assert answer.headers["x-should-retry"] == "false"


# Explain


def test_explain_shows_every_step_of_this_wire(deck: App) -> None:
    request = body(
        system=[text("x-anthropic-billing-header: cch=1"), text("Be brief.", cache_control={"type": "ephemeral"})],
        tools=[TOOL],
        metadata={"user_id": "u"},
    )
    shown = deck.send("POST", "/deck/explain", json=request, headers={"x-deck-surface": "messages"}).json()
    assert shown["surface"] == "messages"
    assert shown["canonical"]["messages"][0]["parts"] == [{"part": "text", "text": "Be brief."}]
    assert shown["upstream"]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert [note["path"] for note in shown["notes"]] == ["metadata", "system[1].cache_control", "system[0]"]
    assert all(note["reason"] for note in shown["notes"])


def test_capabilities_show_both_routes(deck: App) -> None:
    shown = deck.send("GET", "/v1/capabilities").json()
    assert shown["surfaces"]["messages"]["routes"] == ["POST /v1/messages", "POST /v1/messages/count_tokens"]
    assert "min_p" in shown["surfaces"]["messages"]["extensions"]
    assert "/v1/messages" not in shown["not_implemented"]
    assert "/v1/messages/batches" in shown["not_implemented"]


# Silence


@pytest.fixture(scope="module")
def beating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    tmp, port = tmp_path_factory.mktemp("messages"), free_port()
    profiles = {
        "remote": remote("remote", port),
        "slow": local(tmp / "slow", "slow", "--fake-unhealthy", "9"),
        "never": local(tmp / "never", "never", "--fake-unhealthy", "999999", load_timeout="700ms"),
    }
    with live_deck(tmp, *configured(tmp, heartbeat="50ms"), profiles=profiles) as running:
        yield Rig(running, port)


def two_pings(data: bytes) -> bool:
    return data.count(b"event: ping") >= 2


async def read(client: httpx.AsyncClient, gate: asyncio.Event | None = None, **fields: Any) -> bytes:
    """Read a stream to its end; open the gate after two pings."""
    async with client.stream("POST", MESSAGES, json=body(stream=True, **fields)) as response:
        assert response.status_code == 200
        reader = Reader(response)
        if gate is not None:
            await reader.until(two_pings)
            gate.set()
        async for piece in reader._chunks:
            reader.data += piece
        return reader.data


@bounded
async def test_prefill_is_bridged_by_pings_after_the_beginning(beating: Rig) -> None:
    """B20: a client counts events, not comments."""
    gate = asyncio.Event()
    reply = Reply(steps=say("Hello").steps, before_headers=gate)
    async with beating.fake(reply), beating.client() as client:
        got = check(await read(client, gate, model="remote"))
    assert got.text == "Hello"
    assert got.pings >= 2
    assert got.events[0]["type"] == "message_start"


@bounded
async def test_silence_within_a_block_is_bridged(beating: Rig) -> None:
    gate = asyncio.Event()
    steps: list[Step] = [role(), reasoning("a"), gate, reasoning("b"), content("c"), finish(), done()]
    async with beating.fake(Reply(steps=steps)), beating.client() as client:
        got = check(await read(client, gate, model="remote"))
    assert (got.thinking, got.text) == ("ab", "c")


@bounded
async def test_the_load_is_bridged(beating: Rig) -> None:
    async with beating.client() as client:
        got = check(await read(client, model="slow"))
    assert got.text.startswith("Hello")
    assert got.pings >= 2


@bounded
async def test_a_load_that_fails_after_pings_is_an_error_event(beating: Rig) -> None:
    async with beating.client() as client:
        got = check(await read(client, model="never"))
    assert got.pings >= 2
    assert got.error is not None
    assert got.error["type"] == "overloaded_error"


@bounded
async def test_a_refusal_after_pings_is_an_error_event(beating: Rig) -> None:
    gate = asyncio.Event()
    reply = refuse(400, OVERFLOW, "exceed_context_size_error", n_prompt_tokens=41000, n_ctx=32768)
    late = Reply(steps=reply.steps, status=reply.status, headers=reply.headers, before_headers=gate)
    async with beating.fake(late), beating.client() as client:
        got = check(await read(client, gate, model="remote"))
    assert got.error == TOO_LONG


@bounded
async def test_a_client_that_leaves_frees_the_server(beating: Rig) -> None:
    """B158."""
    async with beating.fake(Reply(steps=[role(), content("a"), Act.STALL])) as fake, beating.client() as client:
        async with client.stream("POST", MESSAGES, json=body(model="remote", stream=True)) as response:
            await Reader(response).until_text("text_delta")
        request = await fake.received()
        await asyncio.wait_for(request.left.wait(), DEADLINE / 4)
        await until(lambda: request.is_cancelled)
