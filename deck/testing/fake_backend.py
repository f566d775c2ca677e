"""A server without a model that speaks OpenAI's API for sound, images and vectors: for tests of Deck and of plugins.

`python -m deck.testing.fake_backend --port 8080` is what a profile's `command` may start. What it answers tells what it
was sent: speech is the text itself as bytes, a transcript names the file's size and the form's fields.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import signal
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from deck.multipart import boundary_of, sections_of
from deck.testing.fake_llama import Act, FakeLlama, Received, Reply

_DIMENSIONS = 4
_FORMATS = {"mp3": "audio/mpeg", "wav": "audio/wav", "pcm": "audio/pcm", "opus": "audio/ogg"}


def speech(request: Received) -> Reply:
    """Say the text: it is the sound. `die` in it ends the process in mid-answer, `stall` stays silent."""
    body = request.json()
    if body.get("stream_format") == "sse":
        audio = base64.b64encode(body["input"].encode()).decode()
        frames = [_event({"type": "speech.audio.delta", "audio": audio}), _event({"type": "speech.audio.done"})]
        return Reply(steps=frames)
    sound = body["input"].encode()
    act = {"die": Act.EXIT, "stall": Act.STALL, "cut": Act.CLOSE}.get(body["input"])
    steps: list[bytes | Act] = [sound, act] if act is not None else [sound] * 3
    return Reply(steps=steps, headers={"content-type": _FORMATS[body.get("response_format", "mp3")]})


def transcription(request: Received) -> Any:
    """Tell what the form held."""
    sections = sections_of(request.body, boundary_of(request.headers["content-type"]))
    fields = {item.name: str(item.content, "utf-8") for item in sections if item.filename is None}
    text = " ".join(f"{item.name}:{len(item.content)}" for item in sections if item.filename is not None)
    usage = {"type": "tokens", "input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
    if fields.get("stream") == "true":
        done = {"type": "transcript.text.done", "text": text, "usage": usage}
        return Reply(steps=[_event({"type": "transcript.text.delta", "delta": text}), _event(done)])
    if fields.get("response_format") in ("text", "srt", "vtt"):
        return Reply(steps=[text.encode()], headers={"content-type": "text/plain; charset=utf-8"})
    return {"text": text, "usage": usage, "fields": fields}


def images(request: Received) -> Any:
    """Answer as many one-pixel pictures as were asked for, or one of them by events."""
    if request.headers["content-type"].startswith("multipart/"):
        sections = sections_of(request.body, boundary_of(request.headers["content-type"]))
        body: Mapping[str, Any] = {item.name: str(item.content, "latin-1") for item in sections}
        kind = "image_edit"
    else:
        body, kind = request.json(), "image_generation"
    picture = base64.b64encode(b"PNG " + str(body["prompt"]).encode()).decode()
    usage = {"input_tokens": 5, "output_tokens": 11, "total_tokens": 16, "input_tokens_details": {}}
    shared = {"b64_json": picture, "created_at": 1, "size": "256x256", "quality": "low"}
    shared |= {"background": "opaque", "output_format": "png"}
    if body.get("stream") in (True, "true"):
        partial = {"type": f"{kind}.partial_image", "partial_image_index": 0, **shared}
        return Reply(steps=[_event(partial), _event({"type": f"{kind}.completed", "usage": usage, **shared})])
    return {"created": 1, "data": [{"b64_json": picture}] * int(body.get("n", 1)), "usage": usage}


def embeddings(request: Received) -> Any:
    """Answer vectors that say how long each text is."""
    body = request.json()
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    vectors = [[float(len(text))] * _DIMENSIONS for text in texts]
    if body.get("encoding_format") == "base64":
        data: list[Any] = [base64.b64encode(struct.pack(f"<{_DIMENSIONS}f", *vector)).decode() for vector in vectors]
    else:
        data = vectors
    found = [{"object": "embedding", "index": at, "embedding": item} for at, item in enumerate(data)]
    return {"object": "list", "model": body["model"], "data": found, "usage": {"prompt_tokens": 1, "total_tokens": 1}}


ROUTES: Mapping[str, Any] = {
    "/v1/audio/speech": speech,
    "/v1/audio/transcriptions": transcription,
    "/v1/images/generations": images,
    "/v1/images/edits": images,
    "/v1/embeddings": embeddings,
}


def _event(value: Mapping[str, Any]) -> bytes:
    return f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode()


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a process, until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m deck.testing.fake_backend", allow_abbrev=False)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--port", type=int)
    where.add_argument("--socket", help="a path that ends in .sock")
    parser.add_argument("--key-variable", help="the environment variable that holds the key to ask for")
    parser.add_argument("--unhealthy", type=int, default=0, help="how many times /health answers 503 first")
    parser.add_argument("--fail", action="store_true", help="say why and exit with status 3")
    options = parser.parse_args(argv)
    if options.fail:
        print("error: no such voice file", file=sys.stderr, flush=True)
        return 3
    asyncio.run(_run(options))
    return 0


async def _run(options: argparse.Namespace) -> None:
    key = os.environ[options.key_variable] if options.key_variable else None
    fake = FakeLlama(
        host=options.socket or "127.0.0.1",
        port=options.port or 0,
        api_key=key,
        unhealthy=options.unhealthy,
        routes=ROUTES,
    )
    asked_to_stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked_to_stop.set)
    async with fake:
        print("listening", flush=True)
        await asked_to_stop.wait()


if __name__ == "__main__":
    raise SystemExit(main())
