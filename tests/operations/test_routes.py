"""Operations through a whole Deck: what the backend gets, what the client gets, and what is refused before either."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import httpx
import pytest
from app_support import BODY, App, app, error_of
from web_site import listener, site

from deck.config import MediaSettings
from deck.contracts import ExchangeRecord
from deck.multipart import boundary_of, sections_of
from deck.testing.fake_llama import Act, Received, Reply

VECTOR = {"object": "embedding", "index": 0, "embedding": [0.25, -0.5]}
EMBEDDED = {"object": "list", "model": "theirs", "usage": {"prompt_tokens": 3, "total_tokens": 3}, "data": [VECTOR]}
RANKED = {
    "object": "list",
    "model": "theirs",
    "usage": {"prompt_tokens": 5, "total_tokens": 5},
    "results": [{"index": 1, "relevance_score": 2.5}, {"index": 0, "relevance_score": -1.0}],
}
IMAGES = {"created": 1, "data": [{"b64_json": "aGk="}], "usage": {"input_tokens": 2, "output_tokens": 9}}
SOUND = b"ID3\x00\xff\r\n\r\n--x" * 1000
WAV = ("a.wav", b"RIFF\x00\r\n--\xff", "audio/wav")

EVENTS = (
    b'event: transcript.text.delta\ndata: {"type":"transcript.text.delta","delta":"He"}\n\n',
    b': a comment\n\nid: 7\ndata: {"type":"transcript.text.done","text":"He","model":"theirs",'
    b'"usage":{"input_tokens":4,"output_tokens":1}}\n\n',
)


def sound(request: Received) -> Reply:
    return Reply(steps=[SOUND[:5000], SOUND[5000:]], headers={"content-type": "audio/mpeg"})


def transcribed(request: Received) -> Any:
    sections = form(request)
    if sections.get("stream") == [b"true"]:
        return Reply(steps=EVENTS, slice_at=7)
    if sections.get("response_format") == [b"text"]:
        return Reply(steps=[b"Hello\n"], headers={"content-type": "text/plain; charset=utf-8"})
    return {"text": "Hello", "model": "theirs"}


def form(request: Received) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for item in sections_of(request.body, boundary_of(request.headers["content-type"])):
        found.setdefault(item.name, []).append(bytes(item.content))
    return found


ROUTES: Mapping[str, Any] = {
    "/v1/embeddings": EMBEDDED,
    "/v1/rerank": lambda request: json.loads(json.dumps(RANKED)),
    "/v1/images/generations": IMAGES,
    "/v1/images/edits": IMAGES,
    "/v1/audio/speech": sound,
    "/v1/audio/transcriptions": transcribed,
    "/tokenize": {"tokens": [1, 2]},
    "/detokenize": {"content": "ab"},
    "/apply-template": {"prompt": "<hi>"},
    "/infill": {"content": "x", "model": "theirs", "tokens_evaluated": 6, "tokens_predicted": 2, "stop": True},
}

KINDS = {
    "e": 'id = "e"\naliases = ["text-embedding-3-small"]\nkind = "embedding"\n{server}model_name = "their/name"\n',
    "r": 'id = "r"\nkind = "rerank"\n{server}',
    "s": 'id = "s"\nkind = "speech"\n{server}fields = ["lang_code", "volume"]\n',
    "t": 'id = "t"\nkind = "transcription"\n{server}fields = ["vad_filter"]\n',
    "i": 'id = "i"\nkind = "image"\ncompatibility = "lenient"\n{server}fields = ["seed", "steps"]\n',
}

LEAST: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"json": {"model": "e", "input": "hi"}},
    "/v1/rerank": {"json": {"model": "r", "query": "q", "documents": ["a", "b"]}},
    "/v1/reranking": {"json": {"model": "r", "query": "q", "documents": ["a", "b"]}},
    "/v1/audio/speech": {"json": {"model": "s", "input": "hi", "voice": "alloy"}},
    "/v1/audio/transcriptions": {"data": {"model": "t"}, "files": {"file": WAV}},
    "/v1/images/generations": {"json": {"model": "i", "prompt": "a cat"}},
    "/v1/images/edits": {"data": {"model": "i", "prompt": "a cat"}, "files": {"image": ("a.png", b"PNG", "image/png")}},
    "/v1/tokenize": {"json": {"model": "m1", "content": "hi"}},
    "/v1/detokenize": {"json": {"model": "m1", "tokens": [1, 2]}},
    "/v1/apply-template": {"json": BODY},
    "/v1/infill": {"json": {"model": "m1", "input_prefix": "a", "input_suffix": "b"}},
}


class Kept:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.records: list[ExchangeRecord] = []

    def observe(self, record: ExchangeRecord) -> None:
        self.records.append(record)


@pytest.fixture
def deck(tmp_path: Path) -> Iterator[App]:
    with app(tmp_path, profiles=KINDS, routes=ROUTES) as running:
        yield running


@pytest.fixture
def kept(deck: App) -> Kept:
    found = Kept()
    deck.deck.endpoint._observers = [*deck.deck.endpoint._observers, found]
    return found


def post(deck: App, path: str, **options: Any) -> httpx.Response:
    return deck.send("POST", path, **options)


def sent(deck: App, path: str) -> Received:
    """Return the last request of a path that reached the backend."""
    return deck.fake.of(path)[-1]


def test_every_route_of_every_operation_is_tried_here(deck: App) -> None:
    assert set(LEAST) == {f"/v1{path}" for path in deck.deck.plugins.operation_routes}


@pytest.mark.parametrize("path", LEAST)
def test_the_least_request_is_answered_with_or_without_v1(deck: App, path: str) -> None:
    for shown in (path, path.removeprefix("/v1"), f"/v1{path}/"):
        answer = post(deck, shown, **LEAST[path])
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-request-id"]
        assert "x-athena-compatibility-ignored" not in answer.headers


@pytest.mark.parametrize("path", LEAST)
def test_no_token_no_wrong_method_and_no_other_body(deck: App, path: str) -> None:
    error_of(post(deck, path, token=None, **LEAST[path]), 401)
    answer = deck.send("GET", path)
    assert answer.headers["allow"] == "POST"
    error_of(answer, 405)
    if "json" in LEAST[path]:
        error_of(post(deck, path, data={"model": "m1"}, files={"file": WAV}), 415)
        error_of(post(deck, path, content=b"{"), 400)
    else:
        assert "multipart/form-data" in error_of(post(deck, path, json={"model": "m1"}), 415)["message"]
    assert deck.fake.requests == []


def with_model(path: str, model: str | None) -> dict[str, Any]:
    options = {name: dict(item) for name, item in LEAST[path].items()}
    fields = options["json" if "json" in options else "data"]
    fields.pop("model")
    return (
        options if model is None else {**options, "json" if "json" in options else "data": {**fields, "model": model}}
    )


@pytest.mark.parametrize("path", LEAST)
def test_the_model(deck: App, path: str) -> None:
    error = error_of(post(deck, path, **with_model(path, None)), 400)
    assert (error["param"], error["code"]) == ("model", "missing_required_parameter")
    error = error_of(post(deck, path, **with_model(path, "nobody")), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    serving = deck.deck.plugins.operation_routes[path.removeprefix("/v1")].kinds
    other = "i" if "image" not in serving else "s"
    error = error_of(post(deck, path, **with_model(path, other)), 404)
    assert error["code"] == "model_not_found"
    kind, route = {"i": ("image", "/v1/images/generations"), "s": ("speech", "/v1/audio/speech")}[other]
    assert kind in error["message"]
    assert route in error["message"]
    _, token = deck.tokens.create("guest", models=["m2"])
    assert error_of(post(deck, path, token=token, **LEAST[path]), 403)["param"] == "model"
    hidden = error_of(post(deck, path, token=token, **with_model(path, other)), 404)
    assert f"kind {kind}" not in hidden["message"]
    assert deck.fake.requests == []


def test_a_chat_route_names_the_route_of_another_kind(deck: App) -> None:
    for model, route in (("e", "/v1/embeddings"), ("r", "/v1/rerank"), ("t", "/v1/audio/transcriptions")):
        error = error_of(deck.chat(json={**BODY, "model": model}), 404)
        assert route in error["message"]


@pytest.mark.parametrize("path", LEAST)
def test_an_unknown_field_is_refused_or_listed(deck: App, path: str) -> None:
    options = {name: dict(item) for name, item in LEAST[path].items()}
    fields = options["json" if "json" in options else "data"]
    fields["frobnicate"] = "x"
    answer = post(deck, path, **options)
    if fields["model"] == "i":
        assert answer.status_code == 200
        assert answer.headers["x-athena-compatibility-ignored"] == "frobnicate"
        assert b"frobnicate" not in sent(deck, path).body
        return
    assert error_of(answer, 400)["param"] == "frobnicate"
    assert deck.fake.requests == []


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
    assert answer.headers["x-athena-compatibility-ignored"] == "metadata"
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
        ("/detokenize", {"tokens": [True]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ],
    ids=str,
)
def test_what_llama_server_would_misread(deck: App, path: str, fields: dict[str, Any], param: str) -> None:
    assert error_of(post(deck, path, json={"model": "m1", **fields}), 400)["param"] == param
    assert deck.fake.of(path) == []


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


def test_a_stream_that_breaks_before_its_first_byte_has_a_status(tmp_path: Path) -> None:
    error_of(stream_of(tmp_path, Act.CLOSE), 502)


# What Deck says of them


def test_capabilities_list_them(deck: App) -> None:
    shown = deck.send("GET", "/v1/capabilities").json()
    assert set(shown["operations"]) == set(deck.deck.plugins.operations)
    embeddings = shown["operations"]["embeddings"]
    assert embeddings["routes"] == ["POST /v1/embeddings"]
    assert "embedding" in embeddings["kinds"]
    assert embeddings["fields"]["encoding_format"]["accepts"]
    assert shown["operations"]["apply-template"]["fields_of"] == "chat"
    assert shown["operations"]["transcriptions"]["body"] == "multipart"
    assert "/v1/embeddings" not in shown["not_implemented"]
    assert "/v1/audio/translations" in shown["not_implemented"]


def test_they_take_no_lane_and_are_counted(deck: App) -> None:
    assert post(deck, "/v1/embeddings", **LEAST["/v1/embeddings"]).status_code == 200
    exposition = deck.send("GET", "/metrics").text
    assert 'deck_requests_total{outcome="ok",status="200",stream="false",surface="embeddings"} 1' in exposition
    assert 'deck_route_requests_total{lane="continuous",surface="chat"}' in exposition
    assert 'deck_route_requests_total{lane="continuous",surface="embeddings"}' not in exposition


def test_the_lists_of_models_stay_apart(deck: App) -> None:
    assert [item["id"] for item in deck.send("GET", "/v1/models").json()["data"]] == ["m1", "m2"]
    for path, name in (("/v1/embeddings/models", "e"), ("/v1/rerank/models", "r"), ("/v1/images/models", "i")):
        assert [item["id"] for item in deck.send("GET", path).json()["data"]] == [name]


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
