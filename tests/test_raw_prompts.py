"""Raw prompts on the common path: steps and profiles shape them, families never do, and dry runs show it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from app_support import App, app, error_of
from raw_plugin import POINTS

from deck import cli
from deck.testing.fake_llama import say_text

BODY: dict[str, Any] = {"model": "m1", "prompt": "Once"}


def ask(deck: App, **fields: Any) -> Any:
    return deck.send("POST", "/v1/completions", json={**BODY, **fields})


def test_a_step_that_knows_raw_prompts_shapes_them(tmp_path: Path) -> None:
    with app(tmp_path, [say_text("x")], points=POINTS) as deck:
        answer = ask(deck, temperature=1.5)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-athena-compatibility-changed"] == "temperature>1"
        assert deck.fake.asked[0].json()["temperature"] == 1


def test_no_family_touches_them(tmp_path: Path) -> None:
    with app(tmp_path, [say_text("x")], points=POINTS) as deck:
        assert ask(deck).json()["choices"][0]["text"] == "x"
        assert not {"top_k", "min_p"} & set(deck.fake.asked[0].json())


@pytest.mark.parametrize(
    ("seed", "words"),
    [(1, "'careless' failed on this request: AttributeError"), (2, "'changeling' made a ChatRequest of a TextRequest")],
)
def test_a_step_made_for_conversations_is_named_and_reaches_no_server(tmp_path: Path, seed: int, words: str) -> None:
    with app(tmp_path, [say_text("x")], points=POINTS) as deck:
        assert words in error_of(ask(deck, seed=seed), 500)["message"]
        assert deck.fake.asked == []
        assert ask(deck, seed=3).status_code == 200


def test_a_dry_run_shows_a_raw_prompt(tmp_path: Path) -> None:
    with app(tmp_path, points=POINTS) as deck:
        headers = {"x-deck-surface": "completions"}
        body = {**BODY, "rep_pen": 1.1, "tfs": 1, "temperature": 2}
        shown = deck.send("POST", "/deck/explain", json=body, headers=headers).json()
        assert shown["route"] == "/v1/completions"
        assert shown["family"] == {"name": None, "why": "a raw prompt has no template"}
        assert shown["canonical"]["prompt"] == "Once"
        assert shown["upstream"] == {
            "prompt": "Once",
            "stream": True,
            "stream_options": {"include_usage": True},
            "repeat_penalty": 1.1,
            "temperature": 1,
        }
        assert [note["path"] for note in shown["notes"]] == ["rep_pen", "tfs", "temperature"]
        assert deck.fake.requests == []
        error = error_of(deck.send("POST", "/deck/explain", json={**BODY, "echo": True}, headers=headers), 400)
        assert error["param"] == "echo"


def test_the_command_line_shows_a_raw_prompt_of_token_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    (profiles / "m1.toml").write_text('id = "m1"\n[server]\nurl = "http://127.0.0.1:1"\n', encoding="utf-8")
    file = tmp_path / "request.json"
    file.write_text(json.dumps({**BODY, "prompt": [[1, 2]], "max_new_tokens": 5}), encoding="utf-8")
    arguments = ["--profiles", str(profiles), "--state", str(tmp_path / "state"), "--surface", "completions"]
    assert cli.main(["explain", *arguments, str(file)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["upstream"]["prompt"], shown["upstream"]["max_tokens"]) == ([1, 2], 5)
    file.write_text(json.dumps({"model": "m1", "messages": []}), encoding="utf-8")
    assert cli.main(["explain", *arguments, str(file)]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["param"] == "messages"


def test_what_a_profile_declares_counts_for_raw_prompts_too(tmp_path: Path) -> None:
    profile = 'id = "p"\n{server}[capabilities]\njson_schema = false\n'
    with app(tmp_path, [say_text("x")], profiles={"p": profile}) as deck:
        error = error_of(ask(deck, model="p", json_schema={"type": "object"}), 400)
        assert error["param"] == "json_schema"
        assert ask(deck, model="p", grammar='root ::= "x"').status_code == 200
