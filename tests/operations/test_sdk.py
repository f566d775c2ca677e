"""The official SDK against a Deck that starts a server of its own for each kind."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator

import openai
import pytest
from e2e.live import LiveDeck, children, live_deck

KINDS = ("speech", "transcription", "image", "embedding")


def profile(kind: str) -> str:
    place = "--socket" if kind == "speech" else "--port"
    placeholder = "{socket}" if kind == "speech" else "{port}"
    command = [sys.executable, "-m", "deck.testing.fake_backend", place, placeholder]
    return (
        f'id = "a-{kind}"\nkind = "{kind}"\n[server]\ncommand = {json.dumps(command)}\n'
        f'health = "/health"\nmemory = "64MiB"\nmodel_name = "their-{kind}"\n'
    )


@pytest.fixture(scope="module")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDeck]:
    tmp = tmp_path_factory.mktemp("sdk")
    (tmp / "deck.toml").write_text('[scheduler]\nmemory = "1GiB"\n')
    profiles = {kind: profile(kind) for kind in KINDS}
    with live_deck(tmp, "--config", str(tmp / "deck.toml"), profiles=profiles) as running:
        yield running


@pytest.fixture
def sdk(deck: LiveDeck) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{deck.base}/v1", api_key=deck.token, max_retries=0, timeout=30) as client:
        yield client


def test_embeddings(sdk: openai.OpenAI) -> None:
    found = sdk.embeddings.create(model="a-embedding", input=["one", "three"])
    assert [item.embedding for item in found.data] == [[3.0] * 4, [5.0] * 4]
    assert found.model == "a-embedding"


def test_speech(sdk: openai.OpenAI) -> None:
    found = sdk.audio.speech.create(model="a-speech", voice="alloy", input="hello ", response_format="wav")
    assert found.content == b"hello hello hello "
    assert found.response.headers["content-type"] == "audio/wav"
    with sdk.audio.speech.with_streaming_response.create(model="a-speech", voice="x", input="hi" * 50_000) as streamed:
        assert b"".join(streamed.iter_bytes()) == b"hi" * 150_000


def test_speech_as_events(sdk: openai.OpenAI) -> None:
    found = sdk.audio.speech.create(model="a-speech", voice="alloy", input="hello", stream_format="sse")
    frames = [json.loads(frame.partition("data: ")[2]) for frame in found.text.strip().split("\n\n")]
    assert [frame["type"] for frame in frames] == ["speech.audio.delta", "speech.audio.done"]
    assert base64.b64decode(frames[0]["audio"]) == b"hello"


def test_transcription(sdk: openai.OpenAI) -> None:
    sound = bytes(range(256)) * 1000
    found = sdk.audio.transcriptions.create(
        model="a-transcription",
        file=("a.wav", sound),
        language="de",
        temperature=0.5,
        timestamp_granularities=["word"],
        chunking_strategy={"type": "server_vad", "threshold": 0.5},
        include=["logprobs"],
    )
    assert found.text == f"file:{len(sound)}"
    fields = (found.model_extra or {})["fields"]
    assert fields["model"] == "their-transcription"
    assert (fields["language"], fields["temperature"]) == ("de", "0.5")
    assert (
        sdk.audio.transcriptions.create(model="a-transcription", file=("a.wav", sound), response_format="text")
        == f"file:{len(sound)}"
    )


def test_transcription_as_events(sdk: openai.OpenAI) -> None:
    events = list(sdk.audio.transcriptions.create(model="a-transcription", file=("a.wav", b"RIFF"), stream=True))
    assert [event.type for event in events] == ["transcript.text.delta", "transcript.text.done"]


def test_images(sdk: openai.OpenAI) -> None:
    found = sdk.images.generate(model="a-image", prompt="a cat", n=2, size="256x256")
    assert [base64.b64decode(item.b64_json or "") for item in found.data or []] == [b"PNG a cat"] * 2
    assert found.usage is not None
    assert found.usage.output_tokens == 11


def test_images_as_events(sdk: openai.OpenAI) -> None:
    events = list(sdk.images.generate(model="a-image", prompt="a cat", stream=True, partial_images=1))
    assert [event.type for event in events] == ["image_generation.partial_image", "image_generation.completed"]
    edited = list(sdk.images.edit(model="a-image", prompt="a dog", image=("a.png", b"PNG"), stream=True))
    assert [event.type for event in edited] == ["image_edit.partial_image", "image_edit.completed"]


def test_edits(sdk: openai.OpenAI) -> None:
    pictures = [("a.png", b"A", "image/png"), ("b.png", b"B", "image/png")]
    found = sdk.images.edit(model="a-image", prompt="join them", image=pictures, mask=("m.png", b"M"))
    assert [base64.b64decode(item.b64_json or "") for item in found.data or []] == [b"PNG join them"]


def test_errors_are_the_sdks_own(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="/v1/audio/speech"):
        sdk.embeddings.create(model="a-speech", input="x")
    with pytest.raises(openai.BadRequestError, match="speed"):
        sdk.audio.speech.create(model="a-speech", voice="alloy", input="hello", speed=9)


def test_each_server_is_a_process_that_ends_with_deck(deck: LiveDeck, sdk: openai.OpenAI) -> None:
    sdk.embeddings.create(model="a-embedding", input="x")
    with deck.client() as client:
        listed = {item["id"]: item for item in client.get("/deck/servers").json()["servers"]}
        assert listed["a-embedding"]["state"] == "ready"
        assert listed["a-embedding"]["memory"] > 1_000_000
        lines = client.get("/deck/servers/a-embedding/log").json()["lines"]
    assert "listening" in lines
    assert children(deck.process.pid)
