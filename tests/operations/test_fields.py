"""What the backend gets of each operation's fields, and what is refused before it gets anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from app_support import BODY, App, app, error_of
from operations_support import EMBEDDED, EVENTS, IMAGES, ROUTES, SOUND, WAV, Kept, form, post, sent
from web_site import listener, site

from deck.config import MediaSettings
from deck.testing.fake_llama import Reply

# Embeddings and ranks


def test_embeddings_reach_the_backend_under_its_own_name_and_come_back_under_the_clients(deck: App, kept: Kept) -> None:
    body = {"model": "text-embedding-3-small", "input": ["a", "b"], "encoding_format": "float", "user": "anna"}
    answer = post(deck, "/v1/embeddings?api-version=1", json=body)
    assert answer.json() == {**EMBEDDED, "model": "text-embedding-3-small"}
    assert answer.headers["x-athena-compatibility-ignored"] == "?api-version, user"
    assert sent(deck, "/v1/embeddings").json() == {
        "model": "their/name",
        "input": ["a", "b"],
        "encoding_format": "float",
    }
    (record,) = kept.records
    assert (record.surface, record.model, record.outcome, record.prompt_tokens) == ("embeddings", "e", "ok", 3)
    assert record.completion_tokens is None
    assert record.lane == ""
    assert not record.stream
    assert record.queued >= 0
    assert ("ignored", "user") in record.notes


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input[0]"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a", 1]}, "input"),
        ({"input": [1, 2.5]}, "input[0]"),
        ({"input": [[1, "a"]]}, "input[0][1]"),
        ({"input": [True]}, "input[0]"),
        ({"input": {"content": "x"}}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": None}, "input"),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "x", "dimensions": 0}, "dimensions"),
        ({"input": "x", "content": "y"}, "content"),
        ({"input": "x", "extra_body": {"input": "y"}}, "extra_body.input"),
        ({"input": "x", "extra_body": {"model": "y"}}, "extra_body.model"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_embeddings_that_cannot_be_made(deck: App, fields: dict[str, Any], param: str) -> None:
    assert error_of(post(deck, "/v1/embeddings", json={"model": "e", **fields}), 400)["param"] == param
    assert deck.fake.requests == []


def test_null_is_absence_and_extra_body_is_flattened(deck: App) -> None:
    body = {
        "model": "e",
        "input": "x",
        "encoding_format": None,
        "dimensions": None,
        "extra_body": {"embd_normalize": 0},
    }
    assert post(deck, "/v1/embeddings", json=body).status_code == 200
    assert sent(deck, "/v1/embeddings").json() == {"model": "their/name", "input": "x", "embd_normalize": 0}


def test_dimensions_are_held_against_the_answer_where_the_backend_says_nothing_of_itself(deck: App) -> None:
    assert post(deck, "/v1/embeddings", json={"model": "e", "input": "x", "dimensions": 2}).status_code == 200
    error = error_of(post(deck, "/v1/embeddings", json={"model": "e", "input": "x", "dimensions": 3}), 400)
    assert error["param"] == "dimensions"


def test_a_chat_model_that_is_not_launched_for_it_says_so(tmp_path: Path) -> None:
    local = 'id = "local"\n[server]\nhf = "org/model"\n'
    with app(tmp_path, profiles={"local": local}) as running:
        error = error_of(post(running, "/v1/embeddings", json={"model": "local", "input": "x"}), 404)
        assert "--embeddings" in error["message"]
        assert running.deck.board.states() == {}


def test_what_llama_server_alone_does_is_asked_of_no_other(tmp_path: Path) -> None:
    other = 'id = "other"\nkind = "embedding"\n[server]\ncommand = ["x", "{port}"]\n'
    with app(tmp_path, profiles={"other": other}) as running:
        error = error_of(post(running, "/tokenize", json={"model": "other", "content": "x"}), 404)
        assert "no llama-server" in error["message"]
        assert running.deck.board.states() == {}


def test_ranks_carry_the_documents_where_they_are_wanted(deck: App) -> None:
    body = {"model": "r", "query": "q", "documents": ["a", {"text": "b"}], "return_documents": True, "top_n": 2}
    answer = post(deck, "/v1/rerank", json=body)
    assert [item["document"]["text"] for item in answer.json()["results"]] == ["b", "a"]
    assert answer.json()["model"] == "r"
    assert sent(deck, "/v1/rerank").json() == {"model": "r", "query": "q", "documents": ["a", "b"], "top_n": 2}
    assert "document" not in post(deck, "/v1/rerank", json={**body, "return_documents": False}).text.replace(
        "documents", ""
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": "q"}, "documents"),
        ({"query": "q", "documents": ["a"], "texts": ["a"]}, "documents"),
        ({"query": "q", "documents": []}, "documents"),
        ({"query": "q", "documents": [1]}, "documents[0]"),
        ({"query": "q", "documents": [{"text": "a", "id": 1}]}, "documents[0].id"),
        ({"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
        ({"query": "q", "documents": ["a"], "return_text": True}, "return_text"),
        ({"query": "q", "texts": ["a"], "return_documents": True}, "return_documents"),
        ({"query": "q", "documents": ["a"], "max_tokens_per_doc": 5}, "max_tokens_per_doc"),
        ({"query": "", "documents": ["a"]}, "query"),
        ({"documents": ["a"]}, "query"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_ranks_that_cannot_be_made(deck: App, fields: dict[str, Any], param: str) -> None:
    assert error_of(post(deck, "/v1/rerank", json={"model": "r", **fields}), 400)["param"] == param
    assert deck.fake.requests == []


# Sound


def test_speech_is_passed_on_byte_by_byte(deck: App, kept: Kept) -> None:
    body = {"model": "s", "input": "hi", "voice": {"id": "v1"}, "speed": 2, "lang_code": "b", "volume": {"a": [1]}}
    answer = post(deck, "/v1/audio/speech", json=body)
    assert answer.content == SOUND
    assert answer.headers["content-type"] == "audio/mpeg"
    assert sent(deck, "/v1/audio/speech").json() == body
    assert (kept.records[0].surface, kept.records[0].outcome, kept.records[0].stream) == ("speech", "ok", False)
    assert kept.records[0].first_token is not None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"voice": "x"}, "input"),
        ({"input": "hi"}, "voice"),
        ({"input": "hi", "voice": ""}, "voice"),
        ({"input": "hi", "voice": {"id": "x", "more": 1}}, "voice"),
        ({"input": "hi", "voice": "x", "speed": 9}, "speed"),
        ({"input": "hi", "voice": "x", "response_format": "midi"}, "response_format"),
    ],
)
def test_speech_that_cannot_be_made(deck: App, fields: dict[str, Any], param: str) -> None:
    assert error_of(post(deck, "/v1/audio/speech", json={"model": "s", **fields}), 400)["param"] == param


def test_a_file_reaches_the_backend_unchanged(deck: App) -> None:
    data = {
        "model": "t",
        "language": "de",
        "temperature": "0.5",
        "timestamp_granularities[]": ["word", "segment"],
        "chunking_strategy[type]": "server_vad",
        "vad_filter": "yes",
        "stream": "False",
    }
    answer = post(deck, "/v1/audio/transcriptions", data=data, files={"file": WAV})
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"text": "Hello", "model": "t"}
    assert form(sent(deck, "/v1/audio/transcriptions")) == {
        "model": [b"t"],
        "language": [b"de"],
        "temperature": [b"0.5"],
        "timestamp_granularities[]": [b"word", b"segment"],
        "chunking_strategy[type]": [b"server_vad"],
        "vad_filter": [b"yes"],
        "stream": [b"false"],
        "file": [WAV[1]],
    }
    assert b'filename="a.wav"' in sent(deck, "/v1/audio/transcriptions").body


def test_text_is_an_answer_too(deck: App) -> None:
    data = {"model": "t", "response_format": "text"}
    answer = post(deck, "/v1/audio/transcriptions", data=data, files={"file": WAV})
    assert (answer.text, answer.headers["content-type"]) == ("Hello\n", "text/plain; charset=utf-8")


def test_events_are_passed_on_one_by_one(deck: App, kept: Kept) -> None:
    answer = post(deck, "/v1/audio/transcriptions", data={"model": "t", "stream": "true"}, files={"file": WAV})
    assert answer.headers["content-type"] == "text/event-stream"
    frames = answer.text.split("\n\n")
    assert frames[0] == EVENTS[0].decode().strip()
    assert frames[1] == ": a comment"
    assert frames[2].startswith("id: 7\ndata: ")
    assert json.loads(frames[2].partition("data: ")[2])["model"] == "t"
    assert frames[3:] == [""]
    (record,) = kept.records
    assert (record.outcome, record.stream, record.prompt_tokens, record.completion_tokens) == ("ok", True, 4, 1)


@pytest.mark.parametrize(
    ("data", "files", "param"),
    [
        ({"model": "t"}, {"nothing": WAV}, "nothing"),
        ({"model": "t", "file": "text"}, {"language": WAV}, "file"),
        ({"model": "t", "temperature": "hot"}, {"file": WAV}, "temperature"),
        ({"model": "t", "temperature": "9"}, {"file": WAV}, "temperature"),
        ({"model": "t", "stream": "maybe"}, {"file": WAV}, "stream"),
        ({"model": "t", "response_format": "xml"}, {"file": WAV}, "response_format"),
        ({"model": "t", "timestamp_granularities[]": "letter"}, {"file": WAV}, "timestamp_granularities[0]"),
        ({"model": ["t", "t"]}, {"file": WAV}, "model"),
        ({"model": "t", "user": "x"}, {"file": WAV}, "user"),
        ({"model": "t", "extra_body[language]": "de"}, {"file": WAV}, "extra_body[language]"),
        ({"model": "t", "extra_body": "{}"}, {"file": WAV}, "extra_body"),
    ],
    ids=str,
)
def test_forms_that_cannot_be_honoured(deck: App, data: Any, files: Any, param: str) -> None:
    assert error_of(post(deck, "/v1/audio/transcriptions", data=data, files=files), 400)["param"] == param
    assert deck.fake.requests == []


def test_llama_servers_transcription_reads_less(tmp_path: Path) -> None:
    """What it would leave out without a word is left out and listed."""
    own = 'id = "asr"\nkind = "transcription"\n[server]\nhf = "org/model"\n'
    with app(tmp_path, profiles={"asr": own}, routes=ROUTES) as running:
        from deck.exchange import Exchange
        from deck.forwarder import Forwarder
        from deck.tokens import Principal

        operation = running.deck.plugins.operations["transcriptions"]
        request = httpx.Request(
            "POST", "http://h", data={"model": "asr", "include[]": "logprobs", "prompt": "x"}, files={"file": WAV}
        )
        request.read()
        someone = Principal(name="x", models=None, admin=False, compatibility=None)
        exchange = Exchange(id="x", surface=operation, principal=someone, seed="", began=0.0)
        forwarder = Forwarder(running.deck.pipeline, running.deck.operations._forwarder._client)
        order = forwarder.prepare(exchange, operation, request.content, request.headers["content-type"])
        assert set(order.asked.fields) == {"file", "prompt"}
        assert [note.path for note in exchange.report.notes] == ["include"]


# Images


def test_images(deck: App, kept: Kept) -> None:
    body = {"model": "i", "prompt": "a cat", "size": "512x512", "seed": 5, "steps": 20, "user": "x", "n": 1}
    answer = post(deck, "/v1/images/generations", json=body)
    assert answer.json() == IMAGES
    assert answer.headers["x-athena-compatibility-ignored"] == "user"
    assert sent(deck, "/v1/images/generations").json() == {name: item for name, item in body.items() if name != "user"}
    assert (kept.records[0].prompt_tokens, kept.records[0].completion_tokens) == (2, 9)


def test_edits_of_several_images(deck: App) -> None:
    pictures = [("image[]", ("a.png", b"A", "image/png")), ("image[]", ("b.png", b"B", "image/png"))]
    data = {"model": "i", "prompt": "join", "user": "anna", "svg": '{"model": "x"}', "n": "2"}
    files = [*pictures, ("mask", ("m.png", b"M", "image/png"))]
    answer = post(deck, "/v1/images/edits", data=data, files=files)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-athena-compatibility-ignored"] == "user"
    assert form(sent(deck, "/v1/images/edits")) == {
        "model": [b"i"],
        "prompt": [b"join"],
        "svg": [b'{"model": "x"}'],
        "n": [b"2"],
        "image[]": [b"A", b"B"],
        "mask": [b"M"],
    }


# llama-server's own routes


def test_the_template_is_asked_for_what_chat_would_send(deck: App, kept: Kept) -> None:
    body = {**BODY, "temperature": 0.5, "max_completion_tokens": 3, "metadata": {"a": "b"}}
    answer = post(deck, "/apply-template", json=body)
    assert answer.json() == {"prompt": "<hi>"}
    deck.chat(json=body)
    assert sent(deck, "/apply-template").json() == deck.upstream()[-1]
    ignored = "max_completion_tokens, metadata, temperature"
    assert answer.headers["x-athena-compatibility-ignored"] == ignored, "nothing is generated"
    assert kept.records[0].surface == "apply-template"


def test_a_template_is_never_given_a_url_to_follow(tmp_path: Path) -> None:
    sock = listener()
    port = sock.getsockname()[1]
    routes = {"/props": {"modalities": {"vision": True}}, "/apply-template": {"prompt": "<hi>"}}
    media = MediaSettings(allow_private=(f"127.0.0.1:{port}",))
    part = {"type": "image_url", "image_url": {"url": f"http://127.0.0.1:{port}/a.png"}}
    body = {"model": "m1", "messages": [{"role": "user", "content": [part]}]}
    with app(tmp_path, routes=routes, media=media) as running:
        serving = site(sock)
        web = running.runner.run(serving.__aenter__())
        assert post(running, "/apply-template", json=body).status_code == 200
        running.runner.run(serving.__aexit__(None, None, None))
        assert web.paths == ["/a.png"]
        assert str(port).encode() not in sent(running, "/apply-template").body
        assert b"data:image/png;base64," in sent(running, "/apply-template").body


def test_infilling_follows_the_profile(tmp_path: Path) -> None:
    ruled = 'id = "ruled"\n{server}[defaults]\ntop_k = 7\n[force]\nmin_p = 0.1\n[limits]\nmax_tokens = 5\n'
    with app(tmp_path, profiles={"ruled": ruled}, routes=ROUTES) as running:
        body = {
            "model": "ruled",
            "input_prefix": "a",
            "input_suffix": "",
            "input_extra": [{"filename": "x.py", "text": "y", "time": 12}],
            "prompt": "p",
            "n_predict": 9,
            "stop": ["\n"],
            "id_slot": 0,
            "t_max_prompt_ms": 500,
            "response_fields": ["content"],
            "repeat_last_n": -1,
        }
        answer = post(running, "/infill", json=body)
        assert answer.status_code == 200, answer.text
        assert sent(running, "/infill").json() == {
            "model": "ruled",
            "input_prefix": "a",
            "input_suffix": "",
            "input_extra": [{"filename": "x.py", "text": "y"}],
            "prompt": "p",
            "max_tokens": 5,
            "min_p": 0.1,
            "top_k": 7,
            "stop": ["\n"],
            "repeat_last_n": 4096,
            "response_fields": ["content"],
            "stream": False,
        }
        assert answer.headers["x-athena-compatibility-ignored"] == "id_slot, t_max_prompt_ms"
        assert answer.headers["x-athena-compatibility-changed"] == "n_predict=9>5, n_predict>max_tokens"
        assert answer.json()["model"] == "ruled"


@pytest.mark.parametrize(("limit", "most"), [(50, 300), (None, 4096), (100_000, 4096)])
def test_infilling_promises_what_it_may_take(tmp_path: Path, limit: int | None, most: int) -> None:
    """Where slots share one pool, what generates must never take more of it than it was granted."""
    with app(tmp_path, routes={"/infill": Reply(steps=[b"data: [DONE]\n\n"])}) as running:
        board = running.deck.board
        promised: list[int] = []
        acquire = board.acquire

        async def watch(profile: Any, token: str = "", credit: int = 0, claim: Any = None) -> Any:
            promised.append(credit)
            return await acquire(profile, token, credit, claim)

        body = {"model": "m1", "input_prefix": "a" * 100, "input_suffix": "b", "stream": True}
        post(running, "/infill", json=body)  # so that it is loaded
        board.acquire = watch  # type: ignore[method-assign]  # to see what is promised
        post(running, "/infill", json=body | ({} if limit is None else {"n_predict": limit}))
        post(running, "/tokenize", json={"model": "m1", "content": "a"})
    assert promised[-1] == 0
    assert promised[0] == most if most == 4096 else 150 <= promised[0] <= most


def test_infilling_promises_all_where_the_limit_is_dropped(tmp_path: Path) -> None:
    dropped = 'id = "dropped"\ndrop = ["max_tokens"]\n{server}'
    bounded = dropped.replace('"dropped"', '"bounded"') + "[limits]\nmax_tokens = 7\n"
    with app(tmp_path, profiles={"dropped": dropped, "bounded": bounded}, routes=ROUTES) as running:
        board = running.deck.board
        promised: list[int] = []
        acquire = board.acquire

        async def watch(profile: Any, token: str = "", credit: int = 0, claim: Any = None) -> Any:
            promised.append(credit)
            return await acquire(profile, token, credit, claim)

        for model in ("dropped", "bounded"):
            body = {"model": model, "input_prefix": "a", "input_suffix": "b", "n_predict": 8}
            post(running, "/infill", json=body)  # so that it is loaded
            board.acquire = watch  # type: ignore[method-assign]  # to see what is promised
            post(running, "/infill", json=body)
            board.acquire = acquire  # type: ignore[method-assign]  # as it was
    assert promised[0] == 4096
    assert promised[1] < 200


def test_infilling_streams(tmp_path: Path) -> None:
    frames = [b'data: {"content":"x","stop":false}\n\n', b'data: {"content":"","stop":true,"tokens_evaluated":2}\n\n']
    with app(tmp_path, routes={"/infill": Reply(steps=frames)}) as running:
        body = {"model": "m1", "input_prefix": "a", "input_suffix": "b", "stream": True}
        assert post(running, "/infill", json=body).content == b"".join(frames)
        assert sent(running, "/infill").json()["stream"] is True


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/infill", {"input_prefix": "a"}, "input_suffix"),
        ("/infill", {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "x"}]}, "input_extra[0]"),
        (
            "/infill",
            {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "x", "a": 1}]},
            "input_extra[0].a",
        ),
        ("/infill", {"input_prefix": "a", "input_suffix": "b", "json_schema": {}}, "json_schema"),
        ("/infill", {"input_prefix": "a", "input_suffix": "b", "lora": []}, "lora"),
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": ["a", 1.5]}, "content[1]"),
        ("/tokenize", {}, "content"),
        ("/detokenize", {"tokens": "1"}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1, "a", 2]}, "tokens[1]"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ],
    ids=str,
)
def test_what_llama_server_would_misread(deck: App, path: str, fields: dict[str, Any], param: str) -> None:
    assert error_of(post(deck, path, json={"model": "m1", **fields}), 400)["param"] == param
    assert deck.fake.of(path) == []
