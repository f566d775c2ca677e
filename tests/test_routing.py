"""The needs of a request, and which requests belong to one conversation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deck.canon.request import ChatRequest, Message, ReasoningSetting, Text, TextRequest, Tool, ToolCall, ToolResult
from deck.config import AffinitySettings, Config, LaneSettings
from deck.continuations import Continuation, Continuations
from deck.contracts import Parsed, ParseOptions
from deck.conversation import beginning_of, goes_on, results_at_end, session_of_body, session_of_headers
from deck.exchange import Exchange
from deck.normalize.report import Report
from deck.plugins import Plugins
from deck.profile import Profile
from deck.routing import Router, needs_of
from deck.scheduler.lanes import Lane, RouteNeeds
from deck.tokens import Principal

CAPTURES = Path(__file__).parent / "e2e" / "captures"
PLUGINS = Plugins(Config())
HELLO = (Message("system", (Text("Be brief."),)), Message("user", (Text("hello"),)))
TOOL = Tool("read_file")
CALLED = (*HELLO, Message("assistant", (ToolCall("abcdefgh1", "read_file", "{}"),)))
ANSWERED = (*CALLED, Message("tool", (ToolResult("abcdefgh1", (Text("ok"),)),)))


def profile(**tables: Any) -> Profile:
    server = tables.pop("server", {"model": "/m.gguf", "parallel": 2})
    return Profile.model_validate({"id": "m", "server": server, **tables})


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest(model="m", messages=fields.pop("messages", HELLO), **fields)


GREEDY = {"temperature": 0}


@pytest.mark.parametrize(
    ("request_", "tables", "needs"),
    [
        (chat(sampling=GREEDY), {}, RouteNeeds(greedy=True)),
        (chat(), {}, RouteNeeds()),
        (chat(), {"defaults": GREEDY}, RouteNeeds(greedy=True)),
        (chat(sampling={"temperature": 1}), {"force": GREEDY}, RouteNeeds(greedy=True)),
        (chat(sampling=GREEDY), {"force": {"temperature": 1}}, RouteNeeds()),
        (chat(sampling=GREEDY), {"drop": ["temperature"]}, RouteNeeds()),
        (chat(sampling={"top_k": 1}), {}, RouteNeeds(greedy=True)),
        (chat(sampling={**GREEDY, "xtc_probability": 0.5}), {}, RouteNeeds()),
        (chat(sampling={**GREEDY, "mirostat": 2}), {}, RouteNeeds()),
        (chat(sampling={**GREEDY, "stop": ["x"]}), {}, RouteNeeds(greedy=True, stops=True)),
        (chat(sampling=GREEDY, logprobs=0), {}, RouteNeeds(greedy=True, logprobs=True)),
        (chat(sampling=GREEDY, reasoning=ReasoningSetting(enabled=True)), {}, RouteNeeds(greedy=True, thinking=True)),
        (chat(sampling=GREEDY, reasoning=ReasoningSetting(effort="low")), {}, RouteNeeds(greedy=True, thinking=True)),
        (chat(sampling=GREEDY, reasoning=ReasoningSetting(effort="none")), {}, RouteNeeds(greedy=True)),
        (chat(sampling=GREEDY, reasoning=ReasoningSetting(enabled=False)), {}, RouteNeeds(greedy=True)),
        (chat(reasoning=ReasoningSetting(enabled=True)), {}, RouteNeeds()),
        (chat(sampling={"stop": ["x"]}, logprobs=0), {}, RouteNeeds()),
        (chat(sampling={"max_tokens": 0}), {}, RouteNeeds(prefill_only=True)),
        (chat(stream=True, sampling=GREEDY), {}, RouteNeeds(stream=True)),
        (chat(tools=(TOOL,)), {}, RouteNeeds(tools=True, may_retry=True)),
        (chat(tools=(TOOL,)), {"retry_calls": False}, RouteNeeds(tools=True)),
        (TextRequest(model="m", prompt="x", sampling=GREEDY), {}, RouteNeeds(greedy=True)),
        (TextRequest(model="m", prompt=(1, 2), sampling={"max_tokens": 0}), {}, RouteNeeds(prefill_only=True)),
    ],
)
def test_what_a_request_needs(request_: Any, tables: dict[str, Any], needs: RouteNeeds) -> None:
    assert needs_of(request_, profile(**tables)) == needs


# Sessions


@pytest.mark.parametrize(
    ("headers", "session"),
    [
        ({"x-claude-code-session-id": "s"}, "s"),
        ({"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}, "s/a"),
        ({"x-claude-code-agent-id": "a"}, ""),
        ({"session-id": "c"}, "c"),
        ({"session_id": "c"}, "c"),
        ({"x-session-affinity": "o", "x-session-id": "p"}, "o"),
        ({"x-openwebui-chat-id": "w"}, "w"),
        ({"session-id": ""}, ""),
        ({"authorization": "Bearer x"}, ""),
        ({"session-id": "x" * 9999}, "x" * 4096),
    ],
)
def test_headers_name_a_session(headers: dict[str, str], session: str) -> None:
    assert session_of_headers({name.encode(): value.encode() for name, value in headers.items()}) == session


@pytest.mark.parametrize(
    ("body", "session"),
    [
        ({"prompt_cache_key": "k"}, "k"),
        ({"promptCacheKey": "k"}, "k"),
        ({"prompt_cache_key": None, "metadata": {"user_id": "u_session_1"}}, "u_session_1"),
        ({"metadata": {"user_id": "a user is no session"}}, "a user is no session"),
        ({"metadata": {"user_id": "anna"}}, ""),
        ({"metadata": {"sessionId": "q", "user_id": "u"}}, "q"),
        ({"metadata": {"user_id": 7}}, ""),
        ({"metadata": "x"}, ""),
        ({}, ""),
    ],
)
def test_a_body_names_a_session(body: dict[str, Any], session: str) -> None:
    assert session_of_body(body) == session


# Conversations


def conversation(request: Any, principal: str = "p", session: str = "s") -> bytes:
    return beginning_of(request, principal, session).whole


def test_turns_of_a_conversation_are_one_and_others_are_not() -> None:
    first = chat(tools=(TOOL,))
    later = chat(tools=(TOOL,), messages=ANSWERED, sampling=GREEDY, stream=True)
    assert conversation(first) == conversation(later)
    others = [
        conversation(first, principal="q"),
        conversation(first, session="t"),
        conversation(chat()),
        conversation(chat(tools=(TOOL, Tool("x")))),
        conversation(chat(tools=(TOOL,), messages=(Message("system", (Text("Title."),)), HELLO[1]))),
        conversation(chat(tools=(TOOL,), messages=(HELLO[0], Message("user", (Text("bye"),))))),
    ]
    assert len({conversation(first), *others}) == 7


def test_what_one_field_ends_with_is_not_what_the_next_begins_with() -> None:
    assert conversation(chat(), "ab", "c") != conversation(chat(), "a", "bc")


def test_the_head_is_alike_for_all_who_begin_alike() -> None:
    other = (HELLO[0], Message("user", (Text("bye"),)))
    assert beginning_of(chat(), "p", "s").head == beginning_of(chat(messages=other), "q", "t").head


def test_who_goes_on() -> None:
    assert not goes_on(chat())
    assert goes_on(chat(tools=(TOOL,)))
    assert goes_on(chat(messages=(*HELLO, Message("assistant", (Text("a"),)), HELLO[1])))
    assert not goes_on(TextRequest(model="m", prompt="x"))


def test_only_results_at_the_end_count() -> None:
    assert results_at_end(chat(messages=ANSWERED)) == ("abcdefgh1",)
    assert results_at_end(chat(messages=(*ANSWERED, Message("user", (Text("and?"),))))) == ()
    assert results_at_end(chat(messages=CALLED)) == ()
    assert results_at_end(chat()) == ()


def captured(name: str) -> Iterator[tuple[str, Any, str]]:
    """Yield surface, canonical request and session of what a real client sent."""
    for sent in json.loads((CAPTURES / f"{name}.json").read_text())["requests"]:
        path = sent["path"].removeprefix("/v1")
        if path not in PLUGINS.routes:
            continue
        surface = PLUGINS.routes[path][0]
        headers = {key.lower(): value for key, value in sent["headers"].items()}
        options = ParseOptions(headers={key: headers[key] for key in surface.header_names if key in headers})
        parsed = surface.parse(sent["body"], Report(), options)
        session = session_of_headers({key.encode(): value.encode() for key, value in headers.items()})
        yield surface.name, parsed.request, session or session_of_body(sent["body"])


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("claude-code-tool", "AA"),
        ("codex-tool", "AA"),
        ("opencode-tool", "tAA"),
        ("opencode", "tA"),
    ],
)
def test_a_real_client_s_turns_are_one_conversation_and_its_title_is_none(name: str, kinds: str) -> None:
    found = list(captured(name))
    assert len(found) == len(kinds)
    assert all(session for _, _, session in found)
    keys = [beginning_of(request, "p", session).whole for _, request, session in found]
    agents = {key for key, kind in zip(keys, kinds, strict=True) if kind == "A"}
    assert len(agents) == 1
    for key, kind, (_, request, _) in zip(keys, kinds, found, strict=True):
        assert goes_on(request) is (kind == "A")
        assert (key in agents) is (kind == "A")


# Records of calls


def record(**fields: Any) -> Continuation:
    return Continuation(**{"conversation": b"c", "head": b"h", "profile": "m", "since": 0.0, "until": 60.0, **fields})


def test_a_record_is_reclaimed_by_its_principal_and_surface_only() -> None:
    found = Continuations(grace=60, longest=1800)
    mine = record()
    found.leave("p", "chat", ["one", "two"], mine)
    assert found.reclaim("p", "chat", ("one", "two"), 1) is mine
    assert found.reclaim("p", "chat", ("two",), 1) is mine
    assert found.reclaim("q", "chat", ("one",), 1) is None
    assert found.reclaim("p", "messages", ("one",), 1) is None
    assert found.reclaim("p", "chat", ("one", "three"), 1) is None
    found.leave("p", "chat", ["three"], record(conversation=b"d"))
    assert found.reclaim("p", "chat", ("one", "three"), 1) is None


def test_a_record_ends_with_the_grace_and_a_chain_of_them_with_the_longest_time() -> None:
    found = Continuations(grace=60, longest=100)
    first = found.made(b"c", b"h", "m", 10.0, None)
    assert (first.since, first.until) == (10.0, 70.0)
    assert found.made(b"c", b"h", "m", 65.0, first.since).until == 110.0
    found.leave("p", "chat", ["one"], first)
    assert found.reclaim("p", "chat", ("one",), 70.0) is first
    assert found.reclaim("p", "chat", ("one", "one"), 70.1) is None
    assert len(found) == 0


def test_nobody_displaces_another_s_records_and_all_are_bounded() -> None:
    found = Continuations(grace=60, longest=1800)
    found.leave("p", "chat", ["mine"], record())
    for number in range(3000):
        found.leave("q", "chat", [f"call{number}"], record())
    assert len(found) == 513
    assert found.reclaim("p", "chat", ("mine",), 1) is not None
    assert found.reclaim("q", "chat", ("call0",), 1) is None
    for number in range(5000):
        found.leave(f"r{number}", "chat", ["x"], record())
    assert len(found) <= 1024 + 512


# Routing


def exchange(request: Any, principal: str = "p", session: str = "", **tables: Any) -> Exchange:
    who = Principal(name=principal, models=None, admin=False, compatibility=None)
    made = Exchange("id", PLUGINS.surfaces["chat"], who, "s" * 40, 0.0)
    made.profile, made.parsed, made.session = profile(**tables), Parsed(request, None), session
    return made


def routed(router: Router, made: Exchange, now: float = 0.0, body: Any = None) -> Exchange:
    router.route(made, body or {}, now)
    return made


def router(**lanes: bool) -> Router:
    return Router({"chat": LaneSettings(**lanes)}, AffinitySettings())


FOLLOWING = chat(tools=(TOOL,), messages=ANSWERED, stream=True)


def test_results_of_a_remembered_call_are_live() -> None:
    routes = router()
    first = routed(routes, exchange(chat(tools=(TOOL,), stream=True), session="s"))
    assert first.lane is Lane.CONTINUOUS
    routes.remember(first, ["abcdefgh1"], 1.0)
    live = routed(routes, exchange(FOLLOWING, session="s"), 30.0)
    assert live.lane is Lane.SERIAL
    assert live.claim is not None
    assert first.claim is not None
    assert live.claim.conversation == first.claim.conversation
    assert live.claim.alone
    assert routed(routes, exchange(FOLLOWING, session="s"), 62.0).lane is Lane.CONTINUOUS


@pytest.mark.parametrize("what", ["principal", "tools", "system", "model", "more", "switch"])
def test_what_does_not_match_is_not_live(what: str) -> None:
    routes = router(tools=what != "switch")
    routes.remember(routed(routes, exchange(chat(tools=(TOOL,)))), ["abcdefgh1"], 1.0)
    request, options = FOLLOWING, dict[str, Any]()
    match what:
        case "principal":
            options["principal"] = "q"
        case "tools":
            request = chat(tools=(TOOL, Tool("more")), messages=ANSWERED, stream=True)
        case "system":
            system = Message("system", (Text("Other."),))
            request = chat(tools=(TOOL,), messages=(system, *ANSWERED[1:]), stream=True)
        case "more":
            request = chat(tools=(TOOL,), messages=(*ANSWERED, HELLO[1]), stream=True)
        case "model":
            options["id"] = "other"
    assert routed(routes, exchange(request, **options), 2.0).lane is Lane.CONTINUOUS


def test_a_client_without_a_session_is_followed_by_its_calls() -> None:
    """Its first message may have changed; the conversation, and with it the slot, is the one of the calls."""
    routes = router()
    first = routed(routes, exchange(chat(tools=(TOOL,))))
    routes.remember(first, ["abcdefgh1"], 1.0)
    changed = (ANSWERED[0], Message("user", (Text("shortened"),)), *ANSWERED[2:])
    live = routed(routes, exchange(chat(tools=(TOOL,), messages=changed)), 2.0)
    assert live.claim is not None
    assert first.claim is not None
    assert live.claim.conversation == first.claim.conversation


@pytest.mark.parametrize(("queue_wait", "alone"), [(300.0, 60.0), (30.0, 15.0)])
def test_one_s_own_conversation_is_waited_for_no_longer_than_half_the_queue_s_time(
    queue_wait: float, alone: float
) -> None:
    routes = Router({}, AffinitySettings(), queue_wait=queue_wait)
    claim = routed(routes, exchange(chat(tools=(TOOL,)), session="s")).claim
    assert claim is not None
    assert claim.alone == alone


def test_who_waits_for_its_own_conversation() -> None:
    """A buffered turn with tools waits only where the client says which conversation it belongs to."""
    request = chat(tools=(TOOL,))
    named = routed(router(), exchange(request, session="s"))
    nameless = routed(router(), exchange(request))
    assert named.lane is nameless.lane is Lane.SERIAL
    assert named.claim is not None
    assert named.claim.alone
    assert nameless.claim is not None
    assert not nameless.claim.alone
    of_body = routed(router(), exchange(request), body={"prompt_cache_key": "k"})
    assert of_body.claim is not None
    assert of_body.claim.alone


@pytest.mark.parametrize(
    ("server", "has_claim"),
    [
        ({"model": "/m.gguf", "parallel": 2}, True),
        ({"model": "/m.gguf", "parallel": 1}, False),
        ({"model": "/m.gguf", "parallel": 2, "args": ["--kv-unified"]}, False),
        ({"url": "http://host:1"}, False),
        ({"url": "http://host:1", "parallel": 4}, False),
    ],
)
def test_claims_are_made_where_deck_gives_out_slots(server: dict[str, Any], has_claim: bool) -> None:
    assert (routed(router(), exchange(chat(), server=server)).claim is not None) is has_claim


def test_affinity_can_be_switched_off() -> None:
    off = Router({}, AffinitySettings(slots=False))
    assert routed(off, exchange(chat(), session="s")).claim is None
    assert routed(off, exchange(chat(tools=(TOOL,)), session="s")).claim is not None  # it still waits its turn
