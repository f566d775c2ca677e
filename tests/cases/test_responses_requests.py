"""Reported failures of Responses requests: each entry of section B of the list of cases, by its number and topic.

Most are judged by what would reach llama-server; those that need an answer go through a whole Deck.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zstandard
from app_support import App, app, error_of
from responses_automaton import check
from responses_support import (
    GRAMMAR,
    ONE_STRING,
    ROUTE,
    TOOL,
    body,
    call,
    changed,
    function,
    ignored,
    items,
    output,
    refusal,
    thought,
    upstream,
    user,
)

from deck import json
from deck.testing.fake_llama import Reply, say
from deck.testing.frames import content, done, finish, role, tool, usage

RES = {**TOOL, "strict": False}
SEARCH = {
    "type": "web_search",
    "search_content_types": ["text", "image"],
    "search_context_size": "low",
    "filters": {"allowed_domains": ["example.org"]},
    "user_location": {"type": "approximate"},
}
HOSTED = [
    {"type": "web_search", "external_web_access": False},
    {"type": "local_shell"},
    {"type": "image_generation", "output_format": "png"},
]
NOTES = {"type": "namespace", "name": "notes", "description": "Notes", "tools": [RES]}
TOP = {
    "type": "namespace",
    "name": "functions",
    "tools": [{"type": "custom", "name": "exec", "format": {"type": "text"}}],
}
EMPTY_THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": None, "content": None, "encrypted_content": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A request that is honoured: members of the upstream body (None = not there), and names in the report."""

    request: dict[str, Any]
    has: dict[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] | None = None
    changed: tuple[str, ...] = ()


NAMES = "names of the tools"

HONOURED = {
    "B28-hosted-tools": Sent(
        request=body(tools=[RES, *HOSTED], tool_choice="auto"),
        has={"tools": [function()]},
        ignored=("tools[](image_generation)", "tools[](local_shell)", "tools[](web_search)"),
    ),
    "B29-custom-tool": Sent(
        request=body(tools=[GRAMMAR], stream=True),
        has={
            "tools": [
                function(
                    GRAMMAR,
                    description="Edit files\n\nThe input must match this Lark grammar:\nstart: /.+/s",
                    parameters=ONE_STRING,
                )
            ]
        },
        ignored=("tools[].format",),
        changed=("tools[]:custom>function",),
    ),
    "B31-hosted-sub-fields": Sent(
        request=body(tools=[RES, SEARCH]), has={"tools": [function()]}, ignored=("tools[](web_search)",)
    ),
    "B32-namespaces": Sent(request=body(tools=[NOTES, TOP]), has={NAMES: ["notes__read_note", "exec"]}),
    "B32-history": Sent(
        request=items(user(), call(namespace="notes"), output(), tools=[NOTES]),
        has={NAMES: ["notes__read_note"], "called": "notes__read_note"},
    ),
    "B34-null-members": Sent(request=items(EMPTY_THOUGHT, user()), has={"messages": [user()]}),
    "B35-encrypted-null": Sent(
        request=items(user(), thought("need a", encrypted_content=None), call(), output()),
        has={"thought": "need a"},
        ignored=("input[].id",),
    ),
    "B35-encrypted-opaque": Sent(
        request=items(user(), thought("need a", encrypted_content="b3BhcXVl"), call(), output()),
        has={"thought": "need a"},
        ignored=("input[].encrypted_content", "input[].id"),
    ),
    "B37-developers": Sent(
        request=items(
            {"role": "developer", "content": "B"},
            user(),
            {"role": "developer", "content": "C"},
            user("go on"),
            instructions="A",
        ),
        has={
            "messages": [
                {"role": "system", "content": "A\n\nB"},
                user("hi\n[system note]\nC\n[end of system note]\ngo on"),
            ]
        },
    ),
    "B47-access-programs": Sent(
        request=body(access_programs=["x"], client_metadata={"a": "b"}, request_country="ZZ"),
        has={"access_programs": None, "client_metadata": None, "request_country": None},
        ignored=("access_programs", "client_metadata", "request_country"),
    ),
    "B49-metadata": Sent(request=body(metadata={"a": "b"}), has={"metadata": None}, ignored=("metadata",)),
    "B52-tools-empty": Sent(request=body(tools=[]), has={"tools": None, "tool_choice": None}, ignored=()),
    "B53-reasoning-kept": Sent(
        request=items(user(), thought(summary="need a"), call(), output()),
        has={"thought": "need a", "called": "read_note", "turns": ["user", "assistant", "tool"]},
        changed=("input[].summary>input[].content",),
    ),
    "B58-store-true": Sent(request=body(store=True), has={"store": None}, ignored=("store",)),
    "B58-store-false": Sent(request=body(store=False), has={"store": None}, ignored=("store",)),
    "B58-store-absent": Sent(request=body(), ignored=()),
}


def member(got: dict[str, Any], name: str) -> Any:
    if name == NAMES:
        return [item["function"]["name"] for item in got["tools"]]
    if name == "thought":
        return got["messages"][1]["reasoning_content"]
    if name == "called":
        return got["messages"][1]["tool_calls"][0]["function"]["name"]
    if name == "turns":
        return [item["role"] for item in got["messages"]]
    return got.get(name)


@pytest.mark.parametrize("case", HONOURED.values(), ids=HONOURED)
def test_it_is_honoured(case: Sent) -> None:
    got, report = upstream(case.request)
    assert {name: member(got, name) for name in case.has} == case.has
    if case.ignored is not None:
        assert tuple(ignored(report)) == case.ignored
    assert set(case.changed) <= set(changed(report))


REFUSED = {
    "B28-forced": (body(tools=[RES, *HOSTED], tool_choice={"type": "web_search"}), "tool_choice", "web_search"),
    "B32-collision": (body(tools=[{**RES, "name": "notes__read_note"}, NOTES]), "tools[1].tools[0].name", "notes"),
    "B59-item-reference": (
        items({"type": "item_reference", "id": "rs_1"}, user()),
        "input[0]",
        "store: false",
    ),
}


@pytest.mark.parametrize(("request_", "param", "said"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused_naming_the_field(request_: dict[str, Any], param: str, said: str) -> None:
    error = refusal(request_)
    assert (error.kind.status, error.param) == (400, param)
    assert said in error.message


@pytest.fixture
def deck(tmp_path: Path) -> Iterator[App]:
    with app(tmp_path, [say("Hello")]) as running:
        yield running


def encoded(request: dict[str, Any]) -> dict[str, tuple[bytes, str]]:
    plain = json.dumps(request)
    squeezed = zstandard.compress(plain)
    return {
        "zstd": (squeezed, "zstd"),
        "gzip": (gzip.compress(plain), "gzip"),
        "deflate": (zlib.compress(plain), "deflate"),
        "identity": (plain, "identity"),
        "stacked": (zstandard.compress(gzip.compress(plain)), "gzip, zstd"),
    }


@pytest.mark.parametrize("coding", encoded({}))
def test_b46_a_compressed_body_is_read(deck: App, coding: str) -> None:
    data, name = encoded(body())[coding]
    answer = deck.send("POST", ROUTE, content=data, headers={"content-encoding": name})
    assert answer.status_code == 200, answer.text
    assert answer.json()["output"][0]["content"][0]["text"] == "Hello"
    assert "content-encoding" not in deck.fake.requests[-1].headers


@pytest.mark.parametrize(
    ("data", "coding", "status"),
    [
        (b"{}", "foo", 415),
        (b"\x28\xb5\x2f\xfdgarbage", "zstd", 400),
        (zstandard.compress(bytes(64 << 20)), "zstd", 413),
    ],
    ids=["unknown", "corrupt", "bomb"],
)
def test_b46_what_cannot_be_decoded_is_told(deck: App, data: bytes, coding: str, status: int) -> None:
    answer = deck.send("POST", ROUTE, content=data, headers={"content-encoding": coding})
    error_of(answer, status)


def test_b44_the_model_list_has_both_shapes(deck: App) -> None:
    listed = deck.send("GET", "/v1/models?client_version=0.171.0").json()
    assert [item["id"] for item in listed["data"]] == ["m1", "m2"]
    assert [item["slug"] for item in listed["models"]] == ["m1", "m2"]
    assert {"slug", "display_name"} <= set(listed["models"][0])


NOT_SERVED: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "B50-unknown-field": ("POST", ROUTE, {"json": body(temprature=1)}, 400),
    "B50-no-json": ("POST", ROUTE, {"content": b"{"}, 400),
    "B50-unknown-model": ("POST", ROUTE, {"json": {**body(), "model": "x"}}, 404),
    "B50-method": ("GET", ROUTE, {}, 405),
    "B50-compact": ("POST", f"{ROUTE}/compact", {"json": body()}, 404),
    "B50-retrieve": ("GET", f"{ROUTE}/resp_1", {}, 404),
    "B50-cancel": ("POST", f"{ROUTE}/resp_1/cancel", {}, 404),
    "B50-delete": ("DELETE", f"{ROUTE}/resp_1", {}, 404),
    "B50-token": ("POST", ROUTE, {"json": body(), "token": None}, 401),
    "B50-websocket": ("GET", ROUTE, {"headers": {"upgrade": "websocket", "connection": "upgrade"}}, 426),
    "B56-tags": ("GET", "/api/tags", {}, 404),
    "B56-version": ("GET", "/api/version", {}, 404),
    "B56-show": ("POST", "/api/show", {"json": {"model": "m1"}}, 404),
}


@pytest.mark.parametrize(("method", "path", "options", "status"), NOT_SERVED.values(), ids=NOT_SERVED)
def test_every_error_has_the_wires_envelope(
    deck: App, method: str, path: str, options: dict[str, Any], status: int
) -> None:
    error_of(deck.send(method, path, **options), status)
    assert not deck.upstream()


def test_b58_the_answer_says_that_nothing_is_stored(deck: App) -> None:
    answer = deck.send("POST", ROUTE, json=body(store=True))
    assert answer.json()["store"] is False
    assert answer.headers["x-athena-compatibility-ignored"] == "store"


def test_b49_metadata_is_repeated_and_goes_no_further(deck: App) -> None:
    answer = deck.send("POST", ROUTE, json=body(metadata={"a": "canary"}))
    assert answer.json()["metadata"] == {"a": "canary"}
    assert "canary" not in str(deck.fake.requests[-1].body)


def test_b52_prose_that_looks_like_a_call_stays_prose(tmp_path: Path) -> None:
    text = '{"name":"x","arguments":{}}'
    with app(tmp_path, [say(text)]) as running:
        found = running.send("POST", ROUTE, json=body(input=f"Show JSON {text}", tools=[])).json()["output"]
    assert [(item["type"], item["content"][0]["text"]) for item in found] == [("message", text)]


def answered(tmp_path: Path, name: str, arguments: str, **fields: Any) -> tuple[list[Any], list[Any]]:
    """Return the items of a called tool, buffered and streamed."""
    reply = Reply(steps=(role(), tool(0, "abc", name, arguments), finish("tool_calls"), usage(1, 1), done()))
    with app(tmp_path, [reply]) as running:
        whole = running.send("POST", ROUTE, json=body(**fields))
        assert whole.status_code == 200, whole.text
        stream = check(running.send("POST", ROUTE, json=body(stream=True, **fields)).content)
    return whole.json()["output"], stream.items


PATCH = "*** Begin Patch\n*** End Patch"
CALLED: dict[str, tuple[str, str, list[Any], dict[str, Any]]] = {
    "B29-custom": (
        "apply_patch",
        '{"input":"*** Begin Patch\\n*** End Patch"}',
        [GRAMMAR],
        {"type": "custom_tool_call", "name": "apply_patch", "input": PATCH},
    ),
    "B32-namespace": (
        "notes__read_note",
        "{}",
        [NOTES],
        {"type": "function_call", "name": "read_note", "namespace": "notes", "arguments": "{}"},
    ),
    "B32-custom-at-the-top": (
        "exec",
        '{"input":"ls"}',
        [TOP],
        {"type": "custom_tool_call", "name": "exec", "input": "ls"},
    ),
}


@pytest.mark.parametrize(("name", "arguments", "tools", "expected"), CALLED.values(), ids=CALLED)
def test_a_call_comes_back_as_the_client_knows_it(
    tmp_path: Path, name: str, arguments: str, tools: list[Any], expected: dict[str, Any]
) -> None:
    for found in answered(tmp_path, name, arguments, tools=tools):
        assert len(found) == 1
        rest = {key: value for key, value in found[0].items() if key not in ("id", "call_id", "status")}
        assert rest == expected


def test_b38_usage_has_all_its_details(tmp_path: Path) -> None:
    reply = Reply(steps=(role(), content("ok"), finish(), usage(5, 1), done()))
    expected = {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 6,
    }
    with app(tmp_path, [reply]) as running:
        assert running.send("POST", ROUTE, json=body()).json()["usage"] == expected
        assert check(running.send("POST", ROUTE, json=body(stream=True)).content).final["usage"] == expected


def test_the_sampling_in_effect_is_shown(tmp_path: Path) -> None:
    """The client's, then what the profile says, then what the server says of itself."""
    profile = (
        'id = "tuned"\n{server}\n[defaults]\ntop_p = 0.5\n[force]\npresence_penalty = 1\n[limits]\nmax_tokens = 9\n'
    )
    with app(tmp_path, [say("Hello")], profiles={"tuned": profile}) as running:
        asked = {"model": "tuned", "input": "hi", "temperature": 0.25, "max_output_tokens": 99}
        for found in (
            running.send("POST", ROUTE, json=asked).json(),
            check(running.send("POST", ROUTE, json={**asked, "stream": True}).content).final,
        ):
            assert (found["temperature"], found["top_p"], found["presence_penalty"]) == (0.25, 0.5, 1)
            assert found["max_output_tokens"] == 9
        answer = running.send("POST", ROUTE, json={"model": "tuned", "input": "hi"})
        assert answer.json()["max_output_tokens"] == 9
        assert answer.headers["x-athena-compatibility-changed"] == "max_output_tokens>9"


def test_what_the_server_says_of_itself_is_shown_once_it_is_asked(tmp_path: Path) -> None:
    params = {"temperature": 0.30000001192092896, "top_p": 0.5, "presence_penalty": 0, "max_tokens": -1, "samplers": []}
    props = {"default_generation_settings": {"n_ctx": 4096, "params": params}, "total_slots": 1}
    with app(tmp_path, [say("Hello")], routes={"/props": props}) as running:
        whole = running.send("POST", ROUTE, json=body(top_p=1)).json()
        stream = check(running.send("POST", ROUTE, json=body(top_p=1, stream=True)).content)
    for found in (whole, stream.final, stream.events[0]["response"]):
        assert (found["temperature"], found["top_p"], found["max_output_tokens"]) == (0.3, 1, None)


def test_a_count_of_a_model_that_is_not_loaded_says_so(deck: App) -> None:
    answer = deck.send("POST", f"{ROUTE}/input_tokens", json=body(instructions="Be brief."))
    assert answer.status_code == 200, answer.text
    assert set(answer.json()) == {"object", "input_tokens"}
    assert answer.json()["object"] == "response.input_tokens"
    assert answer.json()["input_tokens"] > 0


# Their tests judge bytes of streams, in test_responses_streams.py, and live, in tests/faults.
ELSEWHERE = {40, 41, 43, 55}
BY_NAME = {38, 44, 46, 49, 52, 58}
ENTRIES = {28, 29, 31, 32, 34, 35, 37, 38, 40, 41, 43, 44, 46, 47, 49, 50, 52, 53, 55, 56, 58, 59}


def test_every_entry_of_the_section_has_a_case() -> None:
    named = [*HONOURED, *REFUSED, *NOT_SERVED, *CALLED]
    numbers = {int(name[1:].partition("-")[0]) for name in named}
    own: list[Callable[..., Any]] = [value for name, value in globals().items() if name.startswith("test_b")]
    found = {int(item.__name__[6:8]) for item in own}
    assert found == BY_NAME
    assert numbers | found | ELSEWHERE == ENTRIES
