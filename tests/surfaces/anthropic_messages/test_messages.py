"""Turns of Messages, in all the shapes that clients send, as llama-server gets them."""

from __future__ import annotations

from typing import Any

import pytest
from messages_support import (
    CALL,
    OTHER,
    PIXEL,
    TOOL,
    assistant,
    body,
    changed,
    ignored,
    image,
    parse,
    refusal,
    result,
    text,
    upstream,
    user,
)

from deck.api import ChatRequest, Facts
from deck_plugins.surfaces.anthropic_messages.blocks import ERROR_LINE
from deck_plugins.surfaces.anthropic_messages.signature import seal

SENT_CALL = {
    "id": "abc123def",
    "type": "function",
    "function": {"name": "read_note", "arguments": '{"path":"a"}'},
}
SENT_IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}


def sent(*messages: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = upstream(body(messages=list(messages), **fields))[0]["messages"]
    return found


def report_of(*messages: dict[str, Any], **fields: Any) -> tuple[list[str], list[str]]:
    _, report = upstream(body(messages=list(messages), **fields))
    return ignored(report), changed(report)


def tool(content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "abc123def", "content": content}


ASKED = (user("look"), assistant(CALL))
SENT_ASKED = [user("look"), {"role": "assistant", "content": "", "tool_calls": [SENT_CALL]}]


@pytest.mark.parametrize(
    ("system", "got"),
    [
        ("Be brief.", "Be brief."),
        ([text("Be brief.")], "Be brief."),
        ([text("A"), text("B")], "A\n\nB"),
        ([text("A"), text(""), text("B")], "A\n\nB"),
        ("", None),
        ([], None),
        ([text("")], None),
        (None, None),
    ],
)
def test_the_system_prompt(system: Any, got: str | None) -> None:
    expected = [] if got is None else [{"role": "system", "content": got}]
    assert sent(user(), system=system) == [*expected, user()]


BILLING = "x-anthropic-billing-header: cc_version=9.9.9.aaa; cc_entrypoint=cli; cch=11111;"


@pytest.mark.parametrize(
    ("system", "got", "names"),
    [
        ([text(BILLING), text("A")], "A", (["system[]"], [])),
        ([text(f"{BILLING}\nA"), text("B")], "A\n\nB", ([], ["system[]"])),
        (f"{BILLING}\nA", "A", ([], ["system"])),
        (BILLING, None, (["system"], [])),
        ([text("A"), text(f"Never write {BILLING}")], f"A\n\nNever write {BILLING}", ([], [])),
    ],
)
def test_the_clients_attribution_is_left_out_and_reported(
    system: Any, got: str | None, names: tuple[list[str], list[str]]
) -> None:
    expected = [] if got is None else [{"role": "system", "content": got}]
    assert sent(user(), system=system) == [*expected, user()]
    assert report_of(user(), system=system) == names


def test_the_profile_may_keep_the_attribution() -> None:
    got, report = upstream(body(system=[text(BILLING), text("A")]), remove_attribution=False)
    assert got["messages"][0]["content"] == f"{BILLING}\n\nA"
    assert report.notes == ()


def test_a_users_words_are_never_taken_for_the_attribution() -> None:
    assert sent(user(BILLING)) == [user(BILLING)]
    assert sent(user([text(BILLING)])) == [user(BILLING)]


@pytest.mark.parametrize(
    ("content", "got"),
    [
        ("hi", "hi"),
        ("", ""),
        ([], ""),
        ([text("hi")], "hi"),
        ([text("a"), text("b")], "a\nb"),
        ([text("")], ""),
        ([text("a"), image()], [{"type": "text", "text": "a"}, SENT_IMAGE]),
        ([image(), text("a")], [SENT_IMAGE, {"type": "text", "text": "a"}]),
    ],
)
def test_a_user_turn(content: Any, got: Any) -> None:
    assert sent(user(content)) == [user(got)]


@pytest.mark.parametrize(
    ("blocks", "got"),
    [
        ([text("a")], {"content": "a"}),
        ([CALL], {"content": "", "tool_calls": [SENT_CALL]}),
        ([text("a"), CALL], {"content": "a", "tool_calls": [SENT_CALL]}),
        (
            [{"type": "thinking", "thinking": "plan", "signature": "c2ln"}, text("a")],
            {"content": "a", "reasoning_content": "plan"},
        ),
        ([{"type": "thinking", "thinking": "plan"}, text("a")], {"content": "a", "reasoning_content": "plan"}),
        ([{"type": "thinking", "thinking": "", "signature": "c2ln"}, text("a")], {"content": "a"}),
        (
            [{"type": "thinking", "thinking": "", "signature": seal("plan")}, text("a")],
            {"content": "a", "reasoning_content": "plan"},
        ),
        (
            [{"type": "thinking", "thinking": "seen", "signature": seal("plan")}, text("a")],
            {"content": "a", "reasoning_content": "seen"},
        ),
        ([{"type": "redacted_thinking", "data": "xyz"}, text("a")], {"content": "a"}),
        ([{"type": "redacted_thinking", "data": "xyz"}], {"content": ""}),
        (
            [{**CALL, "input": {}}],
            {"content": "", "tool_calls": [{**SENT_CALL, "function": {"name": "read_note", "arguments": "{}"}}]},
        ),
        (
            [{key: value for key, value in CALL.items() if key != "input"}],
            {"content": "", "tool_calls": [{**SENT_CALL, "function": {"name": "read_note", "arguments": "{}"}}]},
        ),
    ],
)
def test_an_assistant_turn(blocks: list[dict[str, Any]], got: dict[str, Any]) -> None:
    assert sent(user(), assistant(*blocks), user("go on"))[1] == {"role": "assistant", **got}


def test_a_foreign_id_is_mapped_and_still_finds_its_result() -> None:
    call = {**CALL, "id": "toolu_01AbCdEfGhIjKlMnOpQrStUv"}
    answer = {**result("r"), "tool_use_id": call["id"]}
    got = sent(user(), assistant(call), user([answer]))
    identity = got[1]["tool_calls"][0]["id"]
    assert len(identity) == 9
    assert got[2]["tool_call_id"] == identity


@pytest.mark.parametrize(
    ("content", "got"),
    [
        ("r", "r"),
        ("", ""),
        ([], ""),
        (None, ""),
        ([text("a"), text("b")], "a\nb"),
        ([{"type": "tool_reference", "tool_name": "now"}], "[tool: now]"),
    ],
)
def test_a_result(content: Any, got: str) -> None:
    assert sent(*ASKED, user([result(content)])) == [*SENT_ASKED, tool(got)]


def test_a_result_without_content_is_empty() -> None:
    bare = {"type": "tool_result", "tool_use_id": CALL["id"]}
    assert sent(*ASKED, user([bare])) == [*SENT_ASKED, tool("")]


@pytest.mark.parametrize(("content", "got"), [("boom", f"{ERROR_LINE}\nboom"), ("", ERROR_LINE)])
def test_a_failed_call_says_so_to_the_model(content: str, got: str) -> None:
    turns = (*ASKED, user([result(content, is_error=True)]))
    assert sent(*turns)[-1] == tool(got)
    assert report_of(*turns)[1] == ["messages[].content[].is_error>messages[].content[].content"]


@pytest.mark.parametrize("value", [False, None])
def test_a_call_that_did_not_fail_says_nothing(value: bool | None) -> None:
    turns = (*ASKED, user([result("r", is_error=value)]))
    assert sent(*turns)[-1] == tool("r")
    assert report_of(*turns) == ([], [])


def test_an_image_in_a_result_follows_it() -> None:
    got = sent(*ASKED, user([result([text("page"), image()])]))
    assert got[2:] == [tool("page"), {"role": "user", "content": [SENT_IMAGE]}]


def test_results_come_before_the_rest_of_their_turn() -> None:
    other = {**CALL, "id": "toolu_xyz123def"}
    first, second = result("1"), {**result("2"), "tool_use_id": other["id"]}
    turns = (user("look"), assistant(CALL, other), user([first, second, text("and now")]))
    assert [item["content"] for item in sent(*turns)[2:]] == ["1", "2", "and now"]
    assert [item["role"] for item in sent(*turns)[2:]] == ["tool", "tool", "user"]
    assert report_of(*turns) == ([], [])
    mixed = (*turns[:2], user([first, text("and now"), second]))
    assert sent(*mixed) == sent(*turns)
    assert report_of(*mixed)[1] == ["messages[].content:reordered"]


def test_blocks_of_an_assistant_in_another_order_are_sorted_and_reported() -> None:
    thought = {"type": "thinking", "thinking": "plan", "signature": "s"}
    turns = (user(), assistant(text("a"), CALL, thought, text("b")), user([result("r")]))
    got = sent(*turns)[1]
    assert (got["content"], got["reasoning_content"]) == ("a\nb", "plan")
    assert report_of(*turns)[1] == ["messages[].content:reordered"]


@pytest.mark.parametrize("signed", ["c2ln", "deck:", "deck:c2ln", seal("plan")[:-8], "deck:é", seal("x" * (5 << 20))])
def test_a_signature_that_holds_no_thought_is_ignored(signed: str) -> None:
    hidden = {"type": "thinking", "thinking": "", "signature": signed}
    assert "reasoning_content" not in sent(user(), assistant(hidden, text("a")), user("b"))[1]
    assert report_of(user(), assistant(hidden, text("a")), user("b"))[0] == ["messages[].content[].signature"]


def test_a_thought_that_was_not_shown_comes_back_in_its_signature() -> None:
    for thought in ("plan", "päng \U0001f600", "x" * 100_000):
        hidden = {"type": "thinking", "thinking": "", "signature": seal(thought)}
        assert sent(user(), assistant(hidden, text("a")), user("b"))[1]["reasoning_content"] == thought
        assert report_of(user(), assistant(hidden, text("a")), user("b")) == ([], [])


def test_what_an_assistant_turn_loses_is_reported() -> None:
    thought = {"type": "thinking", "thinking": "plan", "signature": "c2ln"}
    redacted = {"type": "redacted_thinking", "data": "x"}
    mark = {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}
    call = {**CALL, "caller": {"type": "direct"}}
    names, _ = report_of(user(), assistant(mark, thought, redacted, text("a", citations=[{}]), call), user([result()]))
    assert names == [
        "messages[].content[]",
        "messages[].content[].caller",
        "messages[].content[].citations",
        "messages[].content[].signature",
    ]


def test_a_trailing_assistant_turn_is_continued() -> None:
    got, report = upstream(body(messages=[user(), assistant(text("Once"))]))
    assert got["messages"][-1] == {"role": "assistant", "content": "Once"}
    assert got["chat_template_kwargs"] == {"enable_thinking": False}
    assert changed(report) == ["messages[]>enable_thinking=false"]


# System turns in mid-conversation


def test_a_system_turn_stays_in_its_place() -> None:
    turns = (user("hi"), assistant(text("hello")), {"role": "system", "content": "12 left"}, user("go on"))
    got = sent(*turns, system="Be brief.")
    assert [item["role"] for item in got] == ["system", "user", "assistant", "user"]
    assert got[0]["content"] == "Be brief."
    assert "12 left" in got[3]["content"]
    assert got[3]["content"].endswith("go on")


def test_a_system_turn_may_be_blocks() -> None:
    turn = {"role": "system", "content": [text("a"), text("b", cache_control={"type": "ephemeral"})]}
    parsed, report = parse(body(messages=[user(), turn]))
    assert isinstance(parsed.request, ChatRequest)
    assert [part.text for part in parsed.request.messages[1].parts if hasattr(part, "text")] == ["a\n\nb"]
    assert ignored(report) == ["messages[].content[].cache_control"]


@pytest.mark.parametrize(("clear_at", "stays"), [("never", True), (None, True), ("next_user_message", False)])
def test_a_system_turn_is_cleared_when_its_client_says_so(clear_at: str | None, stays: bool) -> None:
    turn = {"role": "system", "content": "12 left", "clear_at": clear_at}
    assert ("12 left" in str(sent(user(), turn, user("go on")))) is stays
    assert "12 left" in str(sent(user(), turn))
    _, names = report_of(user(), turn, assistant(text("a")), user("go on"))
    assert ("messages[].clear_at" in names) is not stays


def change(kind: str, name: str = "now", **members: Any) -> dict[str, Any]:
    return {"role": "system", "content": [{"type": kind, "tool": {"type": "tool_reference", "name": name}, **members}]}


@pytest.mark.parametrize(
    ("kinds", "offered", "names"),
    [
        (["tool_addition"], ["read_note", "now"], (["messages[].content[]"], [])),
        (["tool_removal"], ["read_note"], ([], ["messages[].content[]>tools"])),
        (
            ["tool_removal", "tool_addition"],
            ["read_note", "now"],
            (["messages[].content[]"], ["messages[].content[]>tools"]),
        ),
    ],
)
def test_tools_may_be_withdrawn_in_mid_conversation(
    kinds: list[str], offered: list[str], names: tuple[list[str], list[str]]
) -> None:
    request = body(tools=[TOOL, OTHER], messages=[user(), *(change(kind) for kind in kinds), user("go on")])
    got, report = upstream(request)
    assert [item["function"]["name"] for item in got["tools"]] == offered
    assert [item["role"] for item in got["messages"]] == ["user"]
    assert (ignored(report), [name for name in changed(report) if name.endswith(">tools")]) == names


@pytest.mark.parametrize("turns", [[{"role": "system", "content": ""}], [change("tool_addition")]])
def test_turns_that_say_nothing_are_no_conversation(turns: list[Any]) -> None:
    assert refusal(body(messages=turns, tools=[OTHER])).param == "messages"


def test_a_withdrawn_tool_cannot_be_forced() -> None:
    request = body(tools=[TOOL, OTHER], messages=[user(), change("tool_removal")])
    assert refusal({**request, "tool_choice": {"type": "tool", "name": "now"}}).param == "tool_choice.name"
    alone = body(tools=[OTHER], messages=[user(), change("tool_removal")], tool_choice={"type": "any"})
    assert refusal(alone).param == "tool_choice"


def test_a_change_of_a_tool_that_is_not_there_is_reported() -> None:
    _, report = upstream(body(tools=[TOOL], messages=[user(), change("tool_removal")]))
    assert ignored(report) == ["messages[].content[]"]


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "tool_definition", "definition": {}}, "tool.type"),
        ({"type": "tool_reference"}, "tool.name"),
        ({"name": "now"}, "tool.type"),
    ],
)
def test_a_change_of_another_form_is_refused(tool: dict[str, Any], param: str) -> None:
    error = refusal(body(messages=[user(), change("tool_addition", tool=tool)]))
    assert error.param in (f"messages[1].content[0].{param}", "messages[1].content[0].tool.definition")


def test_the_effort_of_one_system_turn_is_reported() -> None:
    turn = {"role": "system", "content": "a", "output_config": {"effort": "low"}}
    assert report_of(user(), turn)[0] == ["messages[].output_config"]


# Images


def test_an_image_may_be_a_data_url() -> None:
    source = {"type": "url", "url": f"data:image/png;base64,{PIXEL}"}
    assert sent(user([{"type": "image", "source": source}])) == [user([SENT_IMAGE])]


def test_a_remote_image_needs_the_operators_leave() -> None:
    source = {"type": "url", "url": "https://example.org/a.png"}
    request = body(messages=[user([{"type": "image", "source": source}])])
    assert refusal(request).param == "messages[0].content[0].source.url"
    got, _ = upstream(request, remote_images=True)
    assert got["messages"][0]["content"] == [{"type": "image_url", "image_url": {"url": source["url"]}}]


@pytest.mark.parametrize(
    ("source", "param"),
    [
        ({"type": "file", "file_id": "f"}, "source.file_id"),
        ({"type": "base64", "media_type": "image/bmp", "data": PIXEL}, "source.media_type"),
        ({"type": "base64", "data": PIXEL}, "source.media_type"),
        ({"type": "base64", "media_type": "image/png"}, "source.data"),
        ({"type": "base64", "media_type": "image/png", "data": "a b"}, "source.data"),
        ({"type": "url"}, "source.url"),
        ({"type": "url", "url": "https://example.org/a.png", "data": PIXEL}, "source.data"),
        ({"type": "base64", "media_type": "image/png", "data": PIXEL, "url": "https://x.example/a"}, "source.url"),
        ({"data": PIXEL}, "source.type"),
    ],
)
def test_an_image_that_cannot_be_read_names_its_member(source: dict[str, Any], param: str) -> None:
    error = refusal(body(messages=[user([{"type": "image", "source": source}])]))
    assert error.param in (f"messages[0].content[0].{param}", "messages[0].content[0].source.type")


def test_the_canonical_turns_know_where_they_stood() -> None:
    parsed, _ = parse(body(system="a", messages=[*ASKED, user([result("r"), text("x")])]))
    assert isinstance(parsed.request, ChatRequest)
    assert [item.origin for item in parsed.request.messages] == [
        "system",
        "messages[0]",
        "messages[1]",
        "messages[2].content[0]",
        "messages[2]",
    ]


def test_what_the_template_cannot_take_names_the_clients_turn() -> None:
    got, report = upstream(body(messages=[user("a"), user("b")]), Facts())
    assert got["messages"] == [user("a\nb")]
    assert changed(report) == ["messages[]:user+user"]


# Refusals

REFUSED = [
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
    {"type": "search_result", "content": [], "source": "s", "title": "t"},
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
    {"type": "container_upload", "file_id": "f"},
    {"type": "mcp_tool_use", "id": "x", "name": "n", "server_name": "s", "input": {}},
    {"type": "compaction", "content": "x"},
    {"type": "mcp_tool_listing", "mcp_server_name": "x", "tools": []},
]


@pytest.mark.parametrize("block", REFUSED, ids=lambda block: block["type"])
@pytest.mark.parametrize("lenient", [True, False])
def test_blocks_that_carry_meaning_deck_cannot_show_are_refused(block: dict[str, Any], lenient: bool) -> None:
    for turns, path in (
        ([user([text("a"), block])], "messages[0].content[1]"),
        ([user(), assistant(block)], "messages[1].content[0]"),
        ([*ASKED, user([result([block])])], "messages[2].content[0].content[0]"),
    ):
        error = refusal(body(messages=turns), lenient=lenient)
        assert error.param == path
        assert block["type"] in error.message
        assert len(error.message) > len(path) + len(block["type"]) + 10


@pytest.mark.parametrize(
    ("turns", "param"),
    [
        (["x"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([user(1)], "messages[0].content"),
        ([user([1])], "messages[0].content[0]"),
        ([user([{"text": "a"}])], "messages[0].content[0].type"),
        ([user([{"type": "text"}])], "messages[0].content[0].text"),
        ([user([{"type": "text", "text": 1}])], "messages[0].content[0].text"),
        ([user([{"type": "input_text", "text": "a"}])], "messages[0].content[0].type"),
        ([user([CALL])], "messages[0].content[0].type"),
        ([user([{"type": "thinking", "thinking": "a"}])], "messages[0].content[0].type"),
        ([assistant(image())], "messages[0].content[0].type"),
        ([assistant(result())], "messages[0].content[0].type"),
        ([assistant({**CALL, "input": "{}"})], "messages[0].content[0].input"),
        ([assistant({**CALL, "name": ""})], "messages[0].content[0].name"),
        ([assistant({key: CALL[key] for key in ("type", "name")})], "messages[0].content[0].id"),
        ([assistant({**CALL, "caller": {"type": "code_execution_20260120"}})], "messages[0].content[0].caller"),
        ([assistant({**CALL, "toolset_name": "x"})], "messages[0].content[0].toolset_name"),
        ([user([{"type": "tool_result", "content": "x"}])], "messages[0].content[0].tool_use_id"),
        ([user([result({"a": 1})])], "messages[0].content[0].content"),
        ([user([result("r", is_error="yes")])], "messages[0].content[0].is_error"),
        ([user([result([CALL])])], "messages[0].content[0].content[0].type"),
        ([user([image(transformations={"oversized_image": "error"})])], "messages[0].content[0].transformations"),
        ([{"role": "system", "content": [image()]}], "messages[0].content[0].type"),
        ([{**user(), "clear_at": "never"}], "messages[0].clear_at"),
        ([{"role": "system", "content": "a", "clear_at": "now"}], "messages[0].clear_at"),
    ],
)
def test_a_shape_that_cannot_be_honoured_is_refused_naming_it(turns: list[Any], param: str) -> None:
    error = refusal(body(messages=turns))
    assert (error.kind.status, error.param) == (400, param)


def test_each_block_of_the_system_prompt_has_its_own_path() -> None:
    assert refusal(body(system=[text("a"), {"type": "image"}])).param == "system[1].type"
    assert [note.path for note in upstream(body(system=[text("a"), text(BILLING)]))[1].notes] == ["system[1]"]
