"""Operations on the real engine with the tiny model, which can embed when it is told to."""

from __future__ import annotations

import base64
import importlib.util
import math
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from e2e.live import ROOT, LiveDeck, live_deck

MODEL = ROOT / "profiles" / "tiny-chat" / "tiny-chat.gguf"
DIMENSIONS, VOCABULARY = 128, 1088

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed"),
]


def profile(name: str, *args: str, kind: str = "chat", more: str = "") -> str:
    listed = ", ".join(f'"{item}"' for item in args)
    server = f'[server]\nmodel = "{MODEL}"\nctx_size = 4096\nparallel = 2\nargs = [{listed}]\n'
    return f'id = "{name}"\nkind = "{kind}"\n{server}{more}'


@pytest.fixture(scope="module")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDeck]:
    tmp = tmp_path_factory.mktemp("operations")
    (tmp / "deck.toml").write_text('[scheduler]\nmemory = "4GiB"\n')
    profiles = {
        "embedder": profile("embedder", "--pooling", "mean", kind="embedding"),
        "both": profile("both", "--embeddings", "--pooling", "last"),
        "ranker": profile("ranker", kind="rerank"),
    }
    with live_deck(tmp, "--config", str(tmp / "deck.toml"), profiles=profiles) as running:
        yield running


@pytest.fixture
def client(deck: LiveDeck) -> Iterator[httpx.Client]:
    with deck.client() as found:
        yield found


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()["error"]
    return found


def vector(item: Any) -> list[float]:
    if isinstance(item, str):
        raw = base64.b64decode(item)
        return list(struct.unpack(f"<{len(raw) // 4}f", raw))
    return list(item)


def length(item: list[float]) -> float:
    return math.sqrt(sum(each * each for each in item))


def embed(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/embeddings", json={"model": "embedder", **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_one_text(client: httpx.Client) -> None:
    found = embed(client, input="Hello")
    assert (found["object"], found["model"]) == ("list", "embedder")
    assert found["usage"] == {"prompt_tokens": 1, "total_tokens": 1}
    (item,) = found["data"]
    assert (item["object"], item["index"]) == ("embedding", 0)
    assert len(item["embedding"]) == DIMENSIONS
    assert length(item["embedding"]) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("sent", "count", "tokens"),
    [(["Hello", "Hello Hello"], 2, None), ([1, 2, 3], 1, 3), ([[1, 2], [3]], 2, 3), (["x"], 1, None)],
)
def test_several_texts_and_tokens(client: httpx.Client, sent: Any, count: int, tokens: int | None) -> None:
    found = embed(client, input=sent)
    assert [item["index"] for item in found["data"]] == list(range(count))
    if tokens is not None:
        assert found["usage"]["prompt_tokens"] == tokens


def test_base64_is_the_same_vector(client: httpx.Client) -> None:
    plain = embed(client, input="Hello", encoding_format="float")["data"][0]["embedding"]
    packed = embed(client, input="Hello", encoding_format="base64")["data"][0]["embedding"]
    assert vector(packed) == pytest.approx(plain, abs=1e-6)


def test_the_sdk_reads_them(deck: LiveDeck) -> None:
    """It asks for base64 unless it is told otherwise, and decodes it."""
    sdk = openai.OpenAI(base_url=f"{deck.base}/v1", api_key=deck.token, max_retries=0)
    found = sdk.embeddings.create(model="embedder", input=["Hello", "word"], user="anna")
    assert [len(item.embedding) for item in found.data] == [DIMENSIONS, DIMENSIONS]
    assert found.usage.prompt_tokens > 0
    sdk.close()


def test_the_dimensions_that_the_model_has_are_accepted_and_no_others(client: httpx.Client) -> None:
    assert len(embed(client, input="x", dimensions=DIMENSIONS)["data"][0]["embedding"]) == DIMENSIONS
    error = error_of(client.post("/v1/embeddings", json={"model": "embedder", "input": "x", "dimensions": 64}), 400)
    assert error["param"] == "dimensions"
    assert "128" in error["message"]


def test_an_input_may_be_as_long_as_a_slot_and_no_longer(client: httpx.Client) -> None:
    found = embed(client, input="word " * 1000)
    assert found["usage"]["prompt_tokens"] == 2000
    error = error_of(client.post("/v1/embeddings", json={"model": "embedder", "input": "word " * 3000}), 400)
    assert "too large" in error["message"]


@pytest.mark.parametrize(("sent", "param"), [([VOCABULARY], "input[0]"), ([[1], [-1]], "input[1][0]")])
def test_tokens_that_the_model_does_not_have(client: httpx.Client, sent: Any, param: str) -> None:
    error = error_of(client.post("/v1/embeddings", json={"model": "embedder", "input": sent}), 400)
    assert error["param"] == param
    assert "1087" in error["message"]


def test_normalisation(client: httpx.Client) -> None:
    raw = embed(client, input="Hello", embd_normalize=-1)["data"][0]["embedding"]
    assert length(raw) > 1.5
    assert embed(client, input="Hello", embd_normalize=2)


def test_a_chat_model_embeds_if_it_is_launched_for_it(client: httpx.Client) -> None:
    answer = client.post("/v1/embeddings", json={"model": "both", "input": "Hello"})
    assert answer.status_code == 200, answer.text
    chat = {"model": "both", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    assert client.post("/v1/chat/completions", json=chat).status_code == 200
    error = error_of(client.post("/v1/embeddings", json={"model": "tiny-chat", "input": "Hello"}), 404)
    assert "--embeddings" in error["message"]
    assert error["param"] == "model"


def test_an_embedding_model_does_not_chat(client: httpx.Client) -> None:
    chat = {"model": "embedder", "messages": [{"role": "user", "content": "Hello"}]}
    error = error_of(client.post("/v1/chat/completions", json=chat), 404)
    assert "embedding" in error["message"]
    assert "/v1/embeddings" in error["message"]


def test_reranking(client: httpx.Client) -> None:
    """The tiny model ranks nothing in truth, but llama-server's way of asking it is the real one."""
    body = {"model": "ranker", "query": "Hello", "documents": ["Hello", {"text": "a story"}], "return_documents": True}
    answer = client.post("/v1/rerank", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["model"] == "ranker"
    assert answer.headers["x-athena-compatibility-changed"] == "documents[]>documents[].text"
    results = found["results"]
    assert {item["index"]: item["document"]["text"] for item in results} == {0: "Hello", 1: "a story"}
    scores = [item["relevance_score"] for item in results]
    assert scores == sorted(scores, reverse=True)
    best = client.post("/reranking", json={**body, "top_n": 1, "return_documents": False}).raise_for_status().json()
    assert [set(item) for item in best["results"]] == [{"index", "relevance_score"}]


def test_reranking_in_the_form_of_tei(client: httpx.Client) -> None:
    body = {"model": "ranker", "query": "Hello", "texts": ["Hello", "a story"], "return_text": True}
    found = client.post("/rerank", json=body).raise_for_status().json()
    assert {item["index"]: item["text"] for item in found} == {0: "Hello", 1: "a story"}
    assert all(set(item) == {"index", "score", "text"} for item in found)


def test_tokens_and_back(client: httpx.Client) -> None:
    body = {"model": "tiny-chat", "content": "Hello <|im_end|>", "with_pieces": True}
    pieces = client.post("/tokenize", json=body).raise_for_status().json()["tokens"]
    assert [item["piece"] for item in pieces] == ["Hello", " ", "<|im_end|>"]
    ids = [item["id"] for item in pieces]
    back = client.post("/v1/detokenize", json={"model": "tiny-chat", "tokens": ids})
    assert back.raise_for_status().json() == {"content": "Hello <|im_end|>"}
    mixed = client.post("/tokenize", json={"model": "tiny-chat", "content": ["Hello", 5]}).raise_for_status().json()
    assert mixed == {"tokens": [ids[0], 5]}


@pytest.mark.parametrize(("path", "name"), [("/detokenize", "tokens"), ("/tokenize", "content")])
def test_no_such_token(client: httpx.Client, path: str, name: str) -> None:
    error = error_of(client.post(path, json={"model": "tiny-chat", name: [VOCABULARY]}), 400)
    assert error["param"] == f"{name}[0]"


def test_the_template_is_applied_as_chat_would(client: httpx.Client) -> None:
    body = {
        "model": "tiny-chat",
        "messages": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"}],
    }
    answer = client.post("/apply-template", json={**body, "metadata": {"a": "b"}})
    assert answer.status_code == 200, answer.text
    assert answer.json()["prompt"] == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert answer.headers["x-athena-compatibility-ignored"] == "metadata"
    error = error_of(client.post("/apply-template", json={**body, "mesages": []}), 400)
    assert error["param"] == "mesages"


def test_infilling_needs_a_model_that_knows_how(client: httpx.Client) -> None:
    body = {"model": "tiny-chat", "input_prefix": "def f(", "input_suffix": "):\n", "n_predict": 4}
    error = error_of(client.post("/infill", json=body), 400)
    assert "Infill is not supported by this model" in error["message"]


def test_what_ran_is_counted(deck: LiveDeck, client: httpx.Client) -> None:
    embed(client, input=[1, 2, 3])
    shown = client.get("/v1/stats").raise_for_status().json()
    assert shown["requests"]["by_surface"]["embeddings"] >= 1
    assert "embeddings" not in shown["routes"]
    assert shown["models"]["embedder"]["prompt"] >= 3
