"""One more try for a model whose call cannot be used, and what a client gets when that fails too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from app_support import BODY, App, app, error_of

from deck.testing.fake_llama import Received, Reply, refuse, say
from deck.testing.frames import done, finish, role, tool, usage

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = [{"type": "function", "function": {"name": "read_note", "parameters": SCHEMA}}]
GOOD = ("read_note", '{"path":"a.md"}')
UNKNOWN = ("delete_all", "{}")
NOT_JSON = ("read_note", '{"path": a.md}')
NOT_ITS_SCHEMA = ("read_note", '{"file":"a.md"}')
UNREADABLE = refuse(500, "The model produced output that does not match the expected peg-native format")
IGNORED, CHANGED = "x-athena-compatibility-ignored", "x-athena-compatibility-changed"


def calling(name: str, arguments: str) -> Reply:
    steps = (role(), tool(0, "abcdefghi", name, arguments), finish("tool_calls"), usage(10, 5), done())
    return Reply(steps=steps)


class Model:
    """A model that gives these answers, one after another."""

    def __init__(self) -> None:
        self.answers: list[Reply] = []
        self.asked: list[dict[str, Any]] = []

    def __call__(self, received: Received) -> Reply:
        self.asked.append(received.json())
        return self.answers.pop(0)

    def gives(self, *answers: tuple[str, str] | Reply) -> None:
        self.asked.clear()
        self.answers = [answer if isinstance(answer, Reply) else calling(*answer) for answer in answers]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[App, Model]]:
    model = Model()
    off = {"off": 'id = "off"\nretry_calls = false\n{server}'}
    with app(tmp_path_factory.mktemp("correction"), model, profiles=off) as running:
        yield running, model


def ask(running: App, model: str = "m1", **more: Any) -> httpx.Response:
    return running.chat(json={**BODY, "model": model, "tools": TOOLS, **more})


def message(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["choices"][0]["message"]
    return found


def calls(answer: httpx.Response) -> list[tuple[str, str]]:
    found = message(answer).get("tool_calls", [])
    return [(call["function"]["name"], call["function"]["arguments"]) for call in found]


def counted(running: App, what: str) -> int:
    exposition = running.deck.metrics.exposition()[0].decode()
    line = next(line for line in exposition.splitlines() if f'model="m1",what="{what}"' in line)
    return int(float(line.rsplit(" ", 1)[1]))


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (UNKNOWN, "There is no tool named 'delete_all'"),
        (NOT_JSON, "The arguments of read_note are not a JSON object"),
        (NOT_ITS_SCHEMA, "The arguments of read_note do not fit its schema at /: required"),
        (UNREADABLE, "Your answer was not in the form of a call of a tool"),
    ],
    ids=["unknown", "no JSON", "not its schema", "unreadable"],
)
def test_the_model_is_told_what_was_wrong_and_tries_once_more(
    played: tuple[App, Model], first: tuple[str, str] | Reply, said: str
) -> None:
    running, model = played
    model.gives(first, GOOD)
    answer = ask(running)
    assert calls(answer) == [GOOD]
    assert answer.json()["choices"][0]["finish_reason"] == "tool_calls"
    assert answer.headers[CHANGED] == "tools>retried"
    assert IGNORED not in answer.headers
    before, again = model.asked
    assert again["messages"][0]["content"].startswith(before["messages"][0]["content"])
    assert f"{said}. Try again: call one of the tools read_note" in again["messages"][-1]["content"]
    assert again["tools"] == before["tools"]


def test_what_the_model_wrote_is_shown_to_it(played: tuple[App, Model]) -> None:
    running, model = played
    model.gives(UNKNOWN, GOOD)
    ask(running)
    assert model.asked[1]["messages"][-2] == {"role": "assistant", "content": "delete_all({})"}


def test_an_answer_in_text_is_as_good(played: tuple[App, Model]) -> None:
    running, model = played
    model.gives(UNKNOWN, say("I cannot."))
    answer = ask(running)
    assert message(answer)["content"] == "I cannot."
    assert answer.json()["choices"][0]["finish_reason"] == "stop"


def test_an_answer_in_text_that_the_limit_cut_says_so(played: tuple[App, Model]) -> None:
    running, model = played
    model.gives(UNKNOWN, say("I can", reason="length"))
    answer = ask(running, max_tokens=5)
    assert message(answer)["content"] == "I can"
    assert answer.json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("call", [UNKNOWN, NOT_JSON], ids=["unknown", "no JSON"])
def test_a_call_that_nobody_can_act_on_is_text_in_the_end(played: tuple[App, Model], call: tuple[str, str]) -> None:
    running, model = played
    model.gives(call, call)
    answer = ask(running)
    assert len(model.asked) == 2
    assert message(answer)["content"] == f"{call[0]}({call[1]})"
    assert calls(answer) == []
    assert answer.json()["choices"][0]["finish_reason"] == "stop"
    assert "tools" in answer.headers[IGNORED].split(", ")


def test_a_call_beside_its_schema_is_delivered_in_the_end_and_listed(played: tuple[App, Model]) -> None:
    running, model = played
    model.gives(NOT_ITS_SCHEMA, NOT_ITS_SCHEMA)
    answer = ask(running)
    assert calls(answer) == [NOT_ITS_SCHEMA]
    assert "tools" in answer.headers[IGNORED].split(", ")


def test_an_answer_that_stays_unreadable_is_the_error_that_it_was(played: tuple[App, Model]) -> None:
    running, model = played
    model.gives(UNREADABLE, UNREADABLE)
    answer = ask(running)
    assert "does not match the expected" in error_of(answer, 502)["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert len(model.asked) == 2


def test_another_failure_is_not_retried(played: tuple[App, Model]) -> None:
    running, model = played
    model.gives(refuse(500, "the moon is in the way"))
    error_of(ask(running), 502)
    assert len(model.asked) == 1


def test_both_answers_count_as_used(played: tuple[App, Model]) -> None:
    running, model = played
    model.gives(UNKNOWN, GOOD)
    used = ask(running).json()["usage"]
    assert (used["prompt_tokens"], used["completion_tokens"], used["total_tokens"]) == (20, 10, 30)


def test_a_profile_may_switch_it_off(played: tuple[App, Model]) -> None:
    running, model = played
    model.gives(UNKNOWN)
    assert calls(ask(running, "off")) == [UNKNOWN]
    assert len(model.asked) == 1


def test_a_stream_is_never_retried(played: tuple[App, Model]) -> None:
    running, model = played
    model.gives(UNKNOWN)
    answer = ask(running, stream=True)
    assert "delete_all" in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")
    assert len(model.asked) == 1


def test_a_call_cut_by_the_limit_is_not_retried(played: tuple[App, Model]) -> None:
    running, model = played
    steps = (role(), tool(0, "abcdefghi", "read_note", '{"pa'), finish("length"), usage(10, 5), done())
    model.gives(Reply(steps=steps))
    answer = ask(running, max_tokens=5)
    assert message(answer)["content"] == 'read_note({"pa'
    assert answer.headers[CHANGED] == "tool_calls>content"
    assert len(model.asked) == 1
    before = counted(running, "cut_call")
    model.gives(Reply(steps=steps))
    assert ask(running, max_tokens=5, stream=True).text.endswith("data: [DONE]\n\n")
    assert counted(running, "cut_call") == before + 1 == 2


def test_what_was_asked_for_again_is_counted(played: tuple[App, Model]) -> None:
    running, model = played
    before = counted(running, "retried_call")
    model.gives(UNKNOWN, GOOD)
    ask(running)
    assert counted(running, "retried_call") == before + 1


@pytest.mark.parametrize("wire", ["messages", "responses"])
def test_it_works_on_every_wire(played: tuple[App, Model], wire: str) -> None:
    running, model = played
    model.gives(UNKNOWN, GOOD)
    function: dict[str, Any] = {"name": "read_note"}
    body: dict[str, Any]
    if wire == "messages":
        body = {"messages": BODY["messages"], "tools": [{**function, "input_schema": SCHEMA}]}
    else:
        body = {"input": "hi", "tools": [{"type": "function", **function, "parameters": SCHEMA}]}
    answer = running.send("POST", f"/v1/{wire}", json={"model": "m1", **body})
    assert answer.status_code == 200, answer.text
    parts: Sequence[dict[str, Any]] = answer.json()["content" if wire == "messages" else "output"]
    [call] = [part for part in parts if part["type"] in ("tool_use", "function_call")]
    assert json.dumps(call).count("a.md") == 1
    assert "tools>retried" in answer.headers[CHANGED]
