"""What the tests of operations share: a backend of every kind, its models, and the least request of each route."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
from app_support import BODY, App

from deck.contracts import ExchangeRecord
from deck.multipart import boundary_of, sections_of
from deck.testing.fake_llama import Received, Reply

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


def post(deck: App, path: str, **options: Any) -> httpx.Response:
    return deck.send("POST", path, **options)


def sent(deck: App, path: str) -> Received:
    """Return the last request of a path that reached the backend."""
    return deck.fake.of(path)[-1]
