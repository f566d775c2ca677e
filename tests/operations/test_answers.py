"""What a client gets of what a backend answers, well or badly."""

from __future__ import annotations

import json
import textwrap
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import httpx
import pytest
from app_support import App, app, error_of
from operations_support import IMAGES, KINDS, LEAST, ROUTES, Kept, post

from deck.testing.fake_llama import Act, Reply

# What the backend answers

BAD: dict[str, tuple[Any, int, str]] = {
    "no json": (Reply(steps=[b"<html>"], headers={"content-type": "application/json"}), 502, "no JSON"),
    "html": (Reply(steps=[b"<html>"], headers={"content-type": "text/html"}), 502, "text/html"),
    "events unasked": (Reply(steps=[b"data: {}\n\n"]), 502, "text/event-stream"),
    "an error with 200": ({"error": {"message": "no such voice", "code": 400}}, 400, "no such voice"),
    "the clients fault": (Reply(status=400, steps=[b'{"error": {"message": "bad size"}}']), 400, "bad size"),
    "busy": (Reply(status=503, steps=[b'{"error": "loading"}']), 503, "loading"),
    "not supported": (Reply(status=501, steps=[b'{"error": {"message": "not here"}}']), 400, "not here"),
    "a refused key": (Reply(status=401, steps=[b"{}"]), 502, "refused Deck's key"),
    "broken": (Reply(status=500, steps=[b"oops"]), 502, "oops"),
    "gone behind its head": (Reply(steps=[Act.RESET], headers={"content-type": "application/json"}), 502, "broke off"),
    "cut": (Reply(steps=[b'{"data": [', Act.CLOSE], headers={"content-type": "application/json"}), 502, "broke off"),
}


@pytest.mark.parametrize(("reply", "status", "said"), BAD.values(), ids=BAD)
def test_what_a_backend_answers_badly(tmp_path: Path, reply: Any, status: int, said: str) -> None:
    with app(tmp_path, profiles=KINDS, routes={"/v1/images/generations": reply}) as running:
        error = error_of(post(running, "/v1/images/generations", **LEAST["/v1/images/generations"]), status)
        assert said in error["message"]
        assert "llama-server" not in error["message"]
        assert running.deck.board.running("i") == 0


def test_a_page_is_no_sound(tmp_path: Path) -> None:
    page = Reply(steps=[b"<html>"], headers={"content-type": "text/html; charset=utf-8"})
    with app(tmp_path, profiles=KINDS, routes={"/v1/audio/speech": page}) as running:
        assert "text/html" in error_of(post(running, "/v1/audio/speech", **LEAST["/v1/audio/speech"]), 502)["message"]


def test_a_backend_that_does_not_stream_is_reported(deck: App) -> None:
    answer = post(deck, "/v1/images/generations", json={"model": "i", "prompt": "x", "stream": True})
    assert answer.json() == IMAGES
    assert answer.headers["x-athena-compatibility-ignored"] == "stream"


def stream_of(tmp_path: Path, *steps: Any) -> httpx.Response:
    with app(tmp_path, profiles=KINDS, routes={"/v1/images/generations": Reply(steps=steps)}) as running:
        return post(running, "/v1/images/generations", json={"model": "i", "prompt": "x", "stream": True})


PARTIAL = (
    b'event: image_generation.partial_image\ndata: {"type":"image_generation.partial_image","b64_json":"aGk="}\n\n'
)
COMPLETED = b'data: {"type":"image_generation.completed","b64_json":"aGk="}\n\n'


@pytest.mark.parametrize(
    "steps",
    [
        [PARTIAL, Act.CLOSE],
        [PARTIAL, b'data: {"type":"image_generation.comp', Act.CLOSE],
        [PARTIAL, b'data: {"type":"image_generation.comp'],
        [PARTIAL],
        [PARTIAL, PARTIAL[:20]],
        [PARTIAL, b"data: " + b"x" * (17 << 20)],
    ],
    ids=["cut", "cut in a frame", "ends in a frame", "ends early", "ends in a name", "a frame too large"],
)
def test_a_stream_that_breaks_ends_in_an_error(tmp_path: Path, steps: list[Any]) -> None:
    answer = stream_of(tmp_path, *steps)
    assert answer.status_code == 200
    assert answer.content.startswith(PARTIAL)
    last = answer.content.rstrip().rpartition(b"\n\n")[2].decode()
    assert last.startswith("event: error\ndata: ")
    error = json.loads(last.partition("data: ")[2])["error"]
    assert error["type"] == "server_error"
    assert b"generation.comp" not in answer.content


@pytest.mark.parametrize(
    "steps",
    [[PARTIAL, COMPLETED], [PARTIAL, b"data: [DONE]\n\n"], [COMPLETED[:-2]], [PARTIAL, b"data: [DONE]"]],
    ids=str,
)
def test_a_stream_that_ends_well(tmp_path: Path, steps: list[bytes]) -> None:
    assert stream_of(tmp_path, *steps).content.rstrip() == b"".join(steps).rstrip()


def test_an_error_event_of_the_backend_is_passed_on(tmp_path: Path) -> None:
    frame = b'event: error\ndata: {"error":{"message":"out of paint"}}\n\n'
    assert stream_of(tmp_path, PARTIAL, frame).content == PARTIAL + frame


@pytest.mark.parametrize(
    "error",
    [{"message": "no /srv/secret/state", "type": "server_error"}, "no /srv/secret/state"],
    ids=["object", "text"],
)
def test_an_error_event_tells_paths_to_operators_alone(tmp_path: Path, error: Any) -> None:
    frame = b'event: error\ndata: {"error": %b, "id": 7}\n\n' % json.dumps(error).encode()
    body = {"model": "i", "prompt": "x", "stream": True}
    with app(tmp_path, profiles=KINDS, routes={"/v1/images/generations": Reply(steps=[PARTIAL, frame])}) as running:
        _, plain = running.tokens.create("plain")
        assert post(running, "/v1/images/generations", json=body).content == PARTIAL + frame
        shown = post(running, "/v1/images/generations", json=body, token=plain).content
    told = json.loads(shown.removeprefix(PARTIAL).partition(b"data: ")[2])
    assert shown.startswith(PARTIAL + b"event: error\n")
    assert told == {"error": json.loads(json.dumps(error).replace("/srv/secret/", "…/")), "id": 7}


@pytest.mark.parametrize(
    "frame",
    [
        b'data: {"type":"error","message":"no /srv/secret/state"}\n\n',
        b"event: error\ndata: no /srv/secret/state \xff\n\n",
        b'error: {"message":"no /srv/secret/state"}\n\n',
    ],
)
def test_errors_of_other_forms_tell_no_paths_either(tmp_path: Path, frame: bytes) -> None:
    body = {"model": "i", "prompt": "x", "stream": True}
    reply = Reply(steps=[frame, COMPLETED])
    with app(tmp_path, profiles=KINDS, routes={"/v1/images/generations": reply}) as running:
        _, plain = running.tokens.create("plain")
        assert post(running, "/v1/images/generations", json=body).content == frame + COMPLETED
        shown = post(running, "/v1/images/generations", json=body, token=plain).content
    assert shown == frame.replace(b"/srv/secret/", "…/".encode()) + COMPLETED


@pytest.mark.parametrize("last", [COMPLETED, b"data: [DONE]\n\n"])
@pytest.mark.parametrize("end", [Act.CLOSE, Act.RESET, Act.STALL, b'data: {"type":', b"data: " + b"x" * (17 << 20)])
def test_what_breaks_behind_the_last_event_is_no_part_of_the_answer(tmp_path: Path, last: bytes, end: Any) -> None:
    reply = Reply(steps=[PARTIAL + last, end])
    patient = {"p": 'id = "p"\nkind = "image"\n{server}stall_timeout = "1h"\n'}
    with app(tmp_path, profiles=patient, routes={"/v1/images/generations": reply}) as running:
        found = Kept()
        running.deck.endpoint._observers = [*running.deck.endpoint._observers, found]
        body = {"model": "p", "prompt": "x", "stream": True}
        assert post(running, "/v1/images/generations", json=body).content == PARTIAL + last
        assert [record.outcome for record in found.records] == ["ok"]
        assert running.deck.board.running("p") == 0


def test_a_stream_ends_with_the_last_of_several_images(tmp_path: Path) -> None:
    """What comes behind the first is no rest: it may take its time, and is missed if it breaks."""
    body = {"model": "i", "prompt": "x", "stream": True, "n": 2}
    reply = Reply(steps=[COMPLETED, Act.CLOSE])
    with app(tmp_path, profiles=KINDS, routes={"/v1/images/generations": reply}) as running:
        answer = post(running, "/v1/images/generations", json=body).content
    assert answer.startswith(COMPLETED + b"event: error")
    with app(
        tmp_path / "x", profiles=KINDS, routes={"/v1/images/generations": Reply(steps=[COMPLETED * 2, Act.CLOSE])}
    ) as running:
        assert post(running, "/v1/images/generations", json=body).content == COMPLETED * 2


def test_a_stream_that_breaks_before_its_first_byte_has_a_status(tmp_path: Path) -> None:
    error_of(stream_of(tmp_path, Act.CLOSE), 502)


FAULTY = """
    from deck.api import Asked, Field, Operation, Table, hookimpl, string

    def fail(*arguments):
        raise ZeroDivisionError("oops")

    @hookimpl
    def deck_register_operations(config):
        return [
            Operation(
                name=name,
                title=name,
                paths=(f"/{name}",),
                kinds={"image": frozenset()},
                route="/v1/images/generations",
                tables={"": Table("x", [Field.mapped("model", string())])},
                render_error=lambda error: {"error": {"message": error.message}},
                **{name: fail},
            )
            for name in ("read", "check", "render")
        ]
"""


@pytest.mark.parametrize("name", ["read", "check", "render"])
def test_an_operation_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "faulty_operations.py").write_text(textwrap.dedent(FAULTY))
    monkeypatch.syspath_prepend(str(tmp_path))
    points = [
        EntryPoint("openai_chat", "deck_plugins.surfaces.openai_chat", "deck"),
        EntryPoint("generic", "deck_plugins.families.generic", "deck"),
        EntryPoint("faulty", "faulty_operations", "deck"),
    ]
    with app(tmp_path, profiles=KINDS, routes=ROUTES, points=points) as running:
        answer = post(running, f"/{name}", json={"model": "i"})
        assert answer.status_code == 500
        assert f"the plugin '{name}' failed on this request: ZeroDivisionError" in answer.json()["error"]["message"]
        assert running.deck.board.running("i") == 0
