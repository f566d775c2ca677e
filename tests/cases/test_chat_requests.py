"""Reported failures of Chat requests: each entry of section C of the list of cases, by its number and topic.

Most are judged by what would reach llama-server; those that need an answer go through a whole Deck.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from app_support import App, app, error_of
from chat_automaton import check
from chat_support import OTHER, TOOL, body, changed, ignored, refusal, upstream, user

from deck.testing.fake_llama import Reply, refuse, say
from deck.testing.frames import content, done, finish, role, tool, usage

TOOL_RES = {"type": "function", **TOOL["function"], "strict": False}
SCHEMA = {"type": "object"}


def assistant(content: Any = None, **members: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **members}


def call(arguments: Any = "{}", **members: Any) -> dict[str, Any]:
    return {
        "id": "call_abc123def",
        "type": "function",
        "function": {"name": "read_note", "arguments": arguments},
        **members,
    }


def result(content: Any, **members: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "call_abc123def", "content": content, **members}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A request that is honoured: members of the upstream body (None = not there), and names in the report."""

    request: dict[str, Any]
    has: dict[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


def messages(*items: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return body(messages=list(items), **fields)


def off(**fields: Any) -> Sent:
    return Sent(
        request=body(**fields), has={"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": None}
    )


def effort(asked: str, near: str) -> Sent:
    return Sent(
        request=body(reasoning_effort=asked),
        has={"reasoning_effort": near, "chat_template_kwargs": {"enable_thinking": True}},
        changed=() if asked == near else (f"reasoning_effort={asked}>{near}",),
    )


def arguments(sent: Any, got: str) -> Sent:
    history = [user(), assistant(tool_calls=[call(sent)]), result("x")]
    function = {"name": "read_note", "arguments": got}
    expected = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "abc123def", "type": "function", "function": function}],
    }
    return Sent(request=messages(*history), has={"messages": [user(), expected, result("x", tool_call_id="abc123def")]})


def tool_content(sent: Any, got: str) -> Sent:
    history = [user(), assistant(tool_calls=[call()]), result(sent)]
    return Sent(request=messages(*history), has={"messages[2]": result(got, tool_call_id="abc123def")})


NAMED = {"type": "function", "function": {"name": "read_note"}}

HONOURED = {
    "B61-max-completion-tokens": Sent(request=body(max_completion_tokens=16), has={"max_tokens": 16}),
    "B61-equal-values": Sent(request=body(max_completion_tokens=16, max_tokens=16), has={"max_tokens": 16}),
    "B61-null-is-absent": Sent(request=body(max_completion_tokens=None, max_tokens=32), has={"max_tokens": 32}),
    "B61-both-null": Sent(request=body(max_completion_tokens=None, max_tokens=None), has={"max_tokens": None}),
    "B62-effort-none": off(reasoning_effort="none"),
    "B62-reasoning-effort-none": off(reasoning={"effort": "none"}),
    "B62-thinking-disabled": off(thinking={"type": "disabled"}),
    "B62-enable-thinking-false": off(enable_thinking=False),
    "B62-template-kwarg-false": off(chat_template_kwargs={"enable_thinking": False}),
    "B62-all-five-agree": off(
        reasoning_effort="none",
        reasoning={"effort": "none"},
        thinking={"type": "disabled"},
        enable_thinking=False,
        chat_template_kwargs={"enable_thinking": False},
    ),
    "B62-low": effort("low", "low"),
    "B62-medium": effort("medium", "medium"),
    "B62-high": effort("high", "high"),
    "B62-xhigh": effort("xhigh", "high"),
    "B62-minimal": effort("minimal", "low"),
    "B62-max": effort("max", "high"),
    "B64-prefill-array": Sent(
        request=messages(user(), assistant([{"type": "text", "text": "Once"}])),
        has={"messages[-1]": assistant("Once")},
    ),
    "B65-trailing-assistant": Sent(
        request=messages(user(), assistant("Once"), enable_thinking=True),
        has={"messages[-1]": assistant("Once"), "chat_template_kwargs": {"enable_thinking": False}},
        changed=("messages[]>enable_thinking=false",),
    ),
    "B65-trailing-assistant-with-effort": Sent(
        request=messages(user(), assistant("Once"), reasoning_effort="high"),
        has={"reasoning_effort": None, "chat_template_kwargs": {"enable_thinking": False}},
        changed=("messages[]>enable_thinking=false",),
    ),
    "B67-developer": Sent(
        request=messages({"role": "developer", "content": "Be brief."}, user()),
        has={"messages": [{"role": "system", "content": "Be brief."}, user()]},
        changed=("messages[].role=developer>system",),
    ),
    "B67-developer-and-system": Sent(
        request=messages({"role": "developer", "content": "A"}, {"role": "system", "content": "B"}, user()),
        has={"messages": [{"role": "system", "content": "A\n\nB"}, user()]},
    ),
    "B68-several-systems": Sent(
        request=messages({"role": "system", "content": "A"}, {"role": "system", "content": "B"}, user("x"), user("y")),
        has={"messages": [{"role": "system", "content": "A\n\nB"}, user("x\ny")]},
    ),
    "B68-system-in-the-middle": Sent(
        request=messages(user("x"), {"role": "system", "content": "A"}, user("y")),
        has={"messages": [user("x\n[system note]\nA\n[end of system note]\ny")]},
    ),
    "B70-two-users": Sent(
        request=messages(user("a"), user("b"), assistant("c"), user("d")),
        has={"messages": [user("a\nb"), assistant("c"), user("d")]},
    ),
    "B71-object": Sent(
        request=body(tools=[TOOL, OTHER], tool_choice=NAMED),
        has={"tools": [TOOL], "tool_choice": "required"},
        changed=("tool_choice>tools",),
    ),
    "B71-object-auto": Sent(request=body(tools=[TOOL], tool_choice={"type": "auto"}), has={"tool_choice": "auto"}),
    "B71-any": Sent(request=body(tools=[TOOL], tool_choice="any"), has={"tool_choice": "required"}),
    "B73-none": Sent(request=body(tools=[TOOL], tool_choice="none"), has={"tools": None, "tool_choice": None}),
    "B74-json-object": Sent(
        request=body(response_format={"type": "json_object"}), has={"response_format": {"type": "json_object"}}
    ),
    "B74-text": Sent(request=body(response_format={"type": "text"}), has={"response_format": None}),
    "B74-json-schema": Sent(
        request=body(
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "r", "schema": SCHEMA, "strict": True, "description": "d"},
            }
        ),
        has={"response_format": {"type": "json_schema", "json_schema": {"name": "r", "schema": SCHEMA}}},
        ignored=("response_format.json_schema.description", "response_format.json_schema.strict"),
    ),
    "B79-tools-empty": Sent(request=body(tools=[]), has={"tools": None}),
    "B79-tools-empty-auto": Sent(
        request=body(tools=[], tool_choice="auto", parallel_tool_calls=True),
        has={"tools": None, "tool_choice": None, "parallel_tool_calls": None},
        ignored=("parallel_tool_calls",),
    ),
    "B80-flat-tools": Sent(
        request=body(tools=[TOOL_RES]), has={"tools": [TOOL]}, changed=("tools[]>tools[].function",)
    ),
    "B83-thinking-part": Sent(
        request=messages(
            user(), assistant([{"type": "thinking", "thinking": "p"}, {"type": "text", "text": "x"}]), user()
        ),
        has={"messages[1]": assistant("x", reasoning_content="p")},
    ),
    "B85-array": tool_content([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
    "B85-null": tool_content(None, ""),
    "B85-empty": tool_content("", ""),
    "B85-object": tool_content({"a": 1}, '{"a":1}'),
    "B85-call-without-result": Sent(
        request=messages(user(), assistant(tool_calls=[call()]), user("next")), has={"messages[-1]": user("next")}
    ),
    "B86-object": arguments({"path": "a"}, '{"path":"a"}'),
    "B86-empty": arguments("", "{}"),
    "B86-null-string": arguments("null", "{}"),
    "B86-null": arguments(None, "{}"),
    "B86-invalid-json": arguments('{"path":', '{"unparsed":"{\\"path\\":"}'),
    "B88-camel-case": Sent(
        request=body(promptCacheKey="s1"), has={"promptCacheKey": None}, ignored=("promptCacheKey",)
    ),
    "B89-copilot-keys": Sent(
        request=messages(
            {
                **user(),
                "copilot_references": [],
                "copilot_confirmations": [],
                "copilot_cache_control": {"type": "ephemeral"},
            },
            assistant("x", cot_id="1", cot_summary="s"),
            user(),
        ),
        has={"messages": [user(), assistant("x"), user()]},
        ignored=tuple(
            f"messages[].{name}"
            for name in (
                "copilot_cache_control",
                "copilot_confirmations",
                "copilot_references",
                "cot_id",
                "cot_summary",
            )
        ),
    ),
    "B91-extra-body": Sent(request=body(extra_body={"top_k": 20}), has={"top_k": 20, "extra_body": None}),
    "B92-functions": Sent(
        request=body(functions=[TOOL["function"]], function_call={"name": "read_note"}),
        has={"tools": [TOOL], "tool_choice": "required", "functions": None, "function_call": None},
    ),
}


def member(got: dict[str, Any], name: str) -> Any:
    if name.startswith("messages["):
        return got["messages"][int(name[9:-1])]
    return got.get(name)


@pytest.mark.parametrize("case", HONOURED.values(), ids=HONOURED)
def test_it_is_honoured(case: Sent) -> None:
    got, report = upstream(case.request)
    assert {name: member(got, name) for name in case.has} == case.has
    assert set(case.ignored) <= set(ignored(report))
    assert set(case.changed) <= set(changed(report))


REFUSED = {
    "B61-conflict": (body(max_tokens=32, max_completion_tokens=16), "max_completion_tokens", "max_tokens"),
    "B62-contradiction": (body(reasoning_effort="high", enable_thinking=False), "enable_thinking", "reasoning_effort"),
    "B62-kwargs-contradict": (
        body(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True}),
        "chat_template_kwargs.enable_thinking",
        "reasoning_effort",
    ),
    "B71-unknown-name": (
        body(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "x"}}),
        "tool_choice",
        "'x'",
    ),
    "B74-unknown-type": (body(response_format={"type": "xml"}), "response_format.type", "json_schema"),
    "B79-required-without-tools": (body(tools=[], tool_choice="required"), "tool_choice", "no tools"),
    "B80-responses-body": (
        {"model": "m1", "input": [user()], "tools": [TOOL_RES], "stream": True, "store": False, "include": []},
        "input",
        "/v1/responses",
    ),
    "B80-both": (body(input="hi"), "input", "/v1/responses"),
    "B85-missing-id": (messages(user(), {"role": "tool", "content": "x"}), "messages[1].tool_call_id", "required"),
    "B86-array": (
        messages(user(), assistant(tool_calls=[call("[1]")]), result("x")),
        "messages[1].tool_calls[0].function.arguments",
        "JSON",
    ),
    "B89-unknown-message-key": (messages({**user(), "copilot_mood": 1}), "messages[0].copilot_mood", "copilot_mood"),
    "B91-typo": (body(temprature=0.5), "temprature", "temperature"),
    "B91-nested-typo": (
        body(stream=True, stream_options={"include_usag": True}),
        "stream_options.include_usag",
        "include_usage",
    ),
    "B91-extra-body-conflict": (body(extra_body={"top_k": 20}, top_k=40), "extra_body.top_k", "top_k"),
    "B92-functions-and-tools": (body(functions=[TOOL["function"]], tools=[TOOL]), "functions", "tools"),
}


@pytest.mark.parametrize(("request_", "param", "said"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused_naming_the_field(request_: dict[str, Any], param: str, said: str) -> None:
    error = refusal(request_)
    assert (error.kind.status, error.param) == (400, param)
    assert said in error.message


@pytest.mark.parametrize("images", [0, 2], ids=["B70-text", "B70-images-preserved"])
def test_merged_users_keep_their_parts_in_order(images: int) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    first = user([{"type": "text", "text": "a"}, *[picture] * images])
    got, _ = upstream(messages(first, user("b"), assistant("c")))
    merged = got["messages"][0]["content"]
    if not images:
        assert merged == "a\nb"
        return
    assert merged == [{"type": "text", "text": "a"}, picture, picture, {"type": "text", "text": "b"}]


@pytest.mark.parametrize("stray", [{"tool_call_id": "call_nobody00"}], ids=["B85-orphan-result"])
def test_an_orphan_result_is_kept_or_refused_but_never_breaks(tmp_path: Path, stray: dict[str, Any]) -> None:
    with app(tmp_path) as deck:
        answer = deck.chat(json=messages(user(), result("x", **stray), user()))
        assert answer.status_code in (200, 400), answer.text


@pytest.mark.parametrize("number", [1], ids=["B82-content-and-thinking"])
def test_content_and_thinking_beside_calls_reach_every_other_template(number: int) -> None:
    """Templates of gpt-oss refuse the three together; moving one is the harmony family's work."""
    history = [user(), assistant("I will read", reasoning_content="plan", tool_calls=[call()]), result("x")]
    got, _ = upstream(messages(*history))
    assert got["messages"][1]["content"] == "I will read"
    assert got["messages"][1]["reasoning_content"] == "plan"
    assert len(got["messages"][1]["tool_calls"]) == number


def test_old_functions_in_history_become_calls_and_results() -> None:
    """B92: both halves get one id."""
    history = [
        user(),
        assistant(None, function_call={"name": "read_note", "arguments": "{}"}),
        {"role": "function", "name": "read_note", "content": "x"},
    ]
    got, report = upstream(messages(*history))
    called, answered = got["messages"][1:]
    assert called["tool_calls"][0]["function"] == {"name": "read_note", "arguments": "{}"}
    assert (answered["role"], answered["tool_call_id"]) == ("tool", called["tool_calls"][0]["id"])
    assert "messages[].role=function>tool" in changed(report)


CALLED = Reply(steps=(role(), tool(0, "abc", "read_note", "{}"), finish("tool_calls"), usage(1, 1), done()))


@pytest.fixture
def calling(tmp_path: Path) -> Iterator[App]:
    with app(tmp_path, [CALLED]) as running:
        yield running


@pytest.mark.parametrize("asked", [{"functions": [TOOL["function"]]}], ids=["B92-answer"])
def test_a_client_of_functions_gets_function_call_back(calling: App, asked: dict[str, Any]) -> None:
    choice = calling.chat(json=body(**asked)).json()["choices"][0]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "read_note", "arguments": "{}"}
    assert "tool_calls" not in choice["message"]
    stream = calling.chat(json=body(stream=True, **asked))
    assert '"function_call"' in stream.text
    assert '"tool_calls"' not in stream.text


# What llama-server itself refuses: the answer must be clear, in the wire's envelope, and never a 500 without a reason.
UPSTREAM_SAYS = {
    "B65-prefill-incompatible": (400, "Assistant response prefill is incompatible with enable_thinking."),
    "B76-pattern": (400, "Pattern must start with '^' and end with '$'"),
    "B77-grammar": (400, "failed to parse grammar"),
    "B83-content-type": (400, "unsupported content[].type"),
}
PATTERN = {"type": "object", "properties": {"path": {"type": "string", "pattern": "[a-z]+", "maxLength": 100_000}}}


@pytest.mark.parametrize("stream", [False, True], ids=["buffered", "streamed"])
@pytest.mark.parametrize(("status", "text"), UPSTREAM_SAYS.values(), ids=UPSTREAM_SAYS)
def test_what_llama_server_refuses_is_a_clear_400(tmp_path: Path, status: int, text: str, stream: bool) -> None:
    tools = [{"type": "function", "function": {"name": "read_note", "parameters": PATTERN}}]
    with app(tmp_path, [refuse(status, text, "invalid_request_error"), say("Hello")]) as deck:
        answer = deck.chat(json=body(tools=tools, stream=stream))
        if answer.status_code == 200:
            assert len(deck.upstream()) == 2, "a repaired request is sent once more"
            return
        error = error_of(answer, 400)
        assert text.split(" must")[0].split(".")[0].lower() in error["message"].lower()
        assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "text",
    [
        "Cannot pass both content and thinking in an assistant message with tool calls!",
        "After the optional system message, conversation roles must alternate user/assistant/user/assistant/...",
    ],
    ids=["B82-harmony", "B70-alternation"],
)
def test_what_a_template_raises_is_told(tmp_path: Path, text: str) -> None:
    with app(tmp_path, [refuse(500, text)]) as deck:
        answer = deck.chat(json=body())
        assert answer.status_code in (400, 500, 502), answer.text
        error = error_of(answer, answer.status_code)
        assert text[:40] in error["message"]


def test_no_tools_means_no_calls_in_the_answer(tmp_path: Path) -> None:
    """B79 and B73: prose that looks like a call stays prose."""
    text = '{"name":"x","arguments":{}}'
    reply = Reply(steps=(role(), content(text), finish(), usage(1, 1), done()))
    with app(tmp_path, [reply]) as deck:
        for asked in (body(tools=[]), body(), body(tools=[TOOL], tool_choice="none")):
            choice = deck.chat(json=asked).json()["choices"][0]
            assert choice["message"]["content"] == text
            assert "tool_calls" not in choice["message"]
            assert check(deck.chat(json={**asked, "stream": True}).content).text == text
        assert all("tools" not in sent for sent in deck.upstream())


ENTRIES = {61, 62, 64, 65, 67, 68, 70, 71, 73, 74, 76, 77, 79, 80, 82, 83, 85, 86, 88, 89, 91, 92}


def test_every_entry_of_the_section_has_a_case() -> None:
    named = [*HONOURED, *REFUSED, *UPSTREAM_SAYS, "B82-harmony", "B70-alternation"]
    assert {int(name[1:].partition("-")[0]) for name in named} == ENTRIES
