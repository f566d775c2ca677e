"""What goes wrong in operations: a backend that dies in mid-sound, clients that leave, uploads that are too much."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.live import LiveDeck, children, free_port, is_alive, live_deck
from e2e.live import until as until_sync
from faults.support import SOON, Rig, bounded, configured, leave, until, within

from deck.testing.fake_llama import Act, FakeLlama, Reply

SPEECH, TRANSCRIPTIONS, IMAGES = "/v1/audio/speech", "/v1/audio/transcriptions", "/v1/images/generations"
SOUND = {"content-type": "audio/mpeg"}
WHOLE = Reply(steps=[b"whole"], headers=SOUND)
LIMIT = 1 << 20


def far(name: str, kind: str, port: int) -> str:
    url = f"http://127.0.0.1:{port}"
    return f'id = "{name}"\nkind = "{kind}"\n[server]\nurl = "{url}"\nparallel = 1\nstall_timeout = "400ms"\n'


def near(name: str) -> str:
    command = [sys.executable, "-m", "deck.testing.fake_backend", "--port", "{port}"]
    return f'id = "{name}"\nkind = "speech"\n[server]\ncommand = {json.dumps(command)}\nhealth = "/health"\n'


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    tmp, port = tmp_path_factory.mktemp("operations"), free_port()
    profiles = {
        "far": far("far", "speech", port),
        "ears": far("ears", "transcription", port),
        "eyes": far("eyes", "image", port),
        "near": near("near"),
    }
    settings = configured(tmp, body_limit=LIMIT, heartbeat="50ms")
    with live_deck(tmp, *settings, profiles=profiles) as deck:
        yield Rig(deck, port)


def fake(rig: Rig, path: str, *replies: Any) -> FakeLlama:
    """A backend that answers a path with these, the last for all that follow."""
    left = list(replies)
    return FakeLlama(port=rig.port, routes={path: lambda request: left.pop(0) if len(left) > 1 else left[0]})


def speak(client: httpx.AsyncClient, text: str = "hi", model: str = "far") -> Any:
    return client.post(SPEECH, json={"model": model, "input": text, "voice": "x"})


def stream(client: httpx.AsyncClient, text: str = "hi", model: str = "far") -> Any:
    return client.stream("POST", SPEECH, json={"model": model, "input": text, "voice": "x"})


def listed(deck: LiveDeck, surface: str) -> list[dict[str, str]]:
    """Return the log's lines of an operation's exchanges."""
    lines = [line for line in deck.logged().splitlines() if f"surface={surface} " in line]
    return [dict(pair.partition("=")[::2] for pair in line.split() if "=" in pair) for line in lines]


async def logged(rig: Rig, surface: str, outcome: str) -> dict[str, str]:
    found = await until(lambda: [line for line in listed(rig.deck, surface) if line["outcome"] == outcome])
    return dict(found[-1])


async def heard(client: httpx.AsyncClient, text: str = "hi", model: str = "far") -> tuple[bytes, bool]:
    """Return the sound that came, and whether it came whole."""
    got = b""
    try:
        async with stream(client, text, model) as answer:
            assert answer.status_code == 200
            async for chunk in answer.aiter_raw():
                got += chunk
    except httpx.RemoteProtocolError:
        return got, False
    return got, True


@pytest.mark.parametrize("act", [Act.CLOSE, Act.RESET, Act.STALL], ids=lambda act: act.name.lower())
@bounded
async def test_sound_that_breaks_off_is_no_whole_answer(rig: Rig, act: Act) -> None:
    async with fake(rig, SPEECH, Reply(steps=[b"half", act], headers=SOUND), WHOLE), rig.client() as client:
        assert await heard(client) == (b"half", False)
        assert await heard(client) == (b"whole", True)
    kind = "upstream_timeout" if act is Act.STALL else "upstream"
    assert (await logged(rig, "speech", kind))["status"] in ("502", "504")
    assert "did not answer to the end" not in rig.deck.logged()


@bounded
async def test_sound_of_announced_length_that_breaks_off(rig: Rig) -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.readline()).startswith(b"POST"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ncontent-length: 10\r\n\r\nhalf")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(half, "127.0.0.1", rig.port)
    async with server, rig.client() as client, stream(client) as answer:
        assert answer.headers["content-length"] == "10"
        with pytest.raises(httpx.RemoteProtocolError):
            await answer.aread()


@bounded
async def test_sound_that_breaks_before_its_first_byte_has_a_status(rig: Rig) -> None:
    async with fake(rig, SPEECH, Reply(steps=[Act.CLOSE], headers=SOUND), WHOLE), rig.client() as client:
        answer = await speak(client)
        assert answer.status_code == 502
        assert answer.json()["error"]["code"] == "upstream_error"
        assert (await speak(client)).content == b"whole"


@bounded
async def test_a_client_of_http_1_0_sees_a_reset(rig: Rig) -> None:
    """It knows no chunks: the end of the connection alone would look like the end of the sound."""
    async with fake(rig, SPEECH, Reply(steps=[b"half", Act.CLOSE], headers=SOUND)):
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.deck.port)
        body = json.dumps({"model": "far", "input": "hi", "voice": "x"}).encode()
        head = (
            f"POST {SPEECH} HTTP/1.0\r\nauthorization: Bearer {rig.deck.token}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        with pytest.raises(ConnectionResetError):
            await reader.read(-1)
        writer.close()


@bounded
async def test_a_backend_that_dies_in_mid_sound_is_started_again(rig: Rig) -> None:
    async with rig.client() as client:
        assert await heard(client, "die", "near") == (b"die", False)
        assert await heard(client, "hi", "near") == (b"hihihi", True)
    assert "broke off" in rig.deck.logged() or "ended by itself" in rig.deck.logged()


@bounded
async def test_a_client_that_leaves_in_mid_sound_frees_the_slot(rig: Rig) -> None:
    half = Reply(steps=[b"half", Act.STALL], headers=SOUND)
    async with fake(rig, SPEECH, half, WHOLE) as backend, rig.client() as client:
        async with stream(client) as answer:
            assert await anext(answer.aiter_raw()) == b"half"
        await within(backend.of(SPEECH)[0].left.wait())
        assert (await speak(client)).content == b"whole"


@bounded
async def test_a_client_that_reads_nothing_holds_the_backend_back(rig: Rig) -> None:
    sent = 0

    def endless(request: Any) -> Reply:
        class Steps(list[Any]):
            def __iter__(self) -> Iterator[Any]:
                nonlocal sent
                for _ in range(2000):
                    sent += 1
                    yield b"x" * 60_000

        return Reply(steps=Steps(), headers=SOUND)

    async with FakeLlama(port=rig.port, routes={SPEECH: endless}) as backend, rig.client() as client:
        async with stream(client) as answer:
            await anext(answer.aiter_raw())
            seen = -1
            while sent != seen:  # until nothing moves any more in the time that others take
                seen = sent
                for _ in range(5):
                    assert (await client.get("/v1/models")).status_code == 200
            assert sent < 400, "what nobody reads is held somewhere"
        await within(backend.of(SPEECH)[0].left.wait())


@bounded
async def test_a_client_that_leaves_while_the_backend_thinks(rig: Rig) -> None:
    thinking = Reply(before_headers=asyncio.Event(), headers=SOUND)
    async with fake(rig, SPEECH, thinking, WHOLE) as backend, rig.client() as client:
        asking = asyncio.ensure_future(speak(client))
        received = await backend.got(SPEECH)
        await leave(asking)
        await within(received.left.wait())
        assert (await speak(client)).content == b"whole"


def form(size: int) -> tuple[bytes, bytes]:
    """Return the head of a transcription's request and the beginning of its form, whose file has so many bytes."""
    begin = (
        b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nears\r\n'
        b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    )
    length = len(begin) + size + len(b"\r\n--b--\r\n")
    head = f"POST {TRANSCRIPTIONS} HTTP/1.1\r\nhost: deck\r\ncontent-length: {length}\r\n"
    return head.encode() + b"content-type: multipart/form-data; boundary=b\r\n", begin


@bounded
async def test_a_client_that_leaves_in_mid_upload_has_asked_for_nothing(rig: Rig) -> None:
    head, begin = form(500_000)
    before = len(listed(rig.deck, "transcriptions"))
    async with fake(rig, TRANSCRIPTIONS, {"text": "x"}) as backend:
        _, writer = await asyncio.open_connection("127.0.0.1", rig.deck.port)
        writer.write(head + f"authorization: Bearer {rig.deck.token}\r\n\r\n".encode() + begin + b"x" * 100_000)
        await writer.drain()
        writer.close()
        await until(lambda: len(listed(rig.deck, "transcriptions")) > before, SOON * 5)
        assert listed(rig.deck, "transcriptions")[-1]["outcome"] == "client_gone"
        assert backend.of(TRANSCRIPTIONS) == []


@bounded
async def test_an_upload_that_is_too_large_is_refused_at_its_head_or_at_the_limit(rig: Rig) -> None:
    async with fake(rig, TRANSCRIPTIONS, {"text": "x"}) as backend, rig.client() as client:
        files = {"file": ("a.wav", b"x" * (LIMIT + 1))}
        answer = await client.post(TRANSCRIPTIONS, data={"model": "ears"}, files=files)
        assert answer.status_code == 413
        assert "1 MiB" in answer.json()["error"]["message"]

        async def pieces() -> Any:
            yield form(0)[1]
            for _ in range(2 * LIMIT // 50_000):
                yield b"x" * 50_000

        headers = {"content-type": "multipart/form-data; boundary=b"}
        assert (await client.post(TRANSCRIPTIONS, content=pieces(), headers=headers)).status_code == 413
        files = {"file": ("a.wav", b"x" * (LIMIT - 1000))}
        assert (await client.post(TRANSCRIPTIONS, data={"model": "ears"}, files=files)).json() == {"text": "x"}
        assert len(backend.of(TRANSCRIPTIONS)) == 1


@bounded
async def test_a_form_that_is_garbage_reaches_nobody(rig: Rig) -> None:
    async with fake(rig, TRANSCRIPTIONS, {"text": "x"}) as backend, rig.client() as client:
        headers = {"content-type": "multipart/form-data; boundary=b"}
        for content in (b"", b"\x00" * 1000, form(5)[1] + b"cut", b"--b\r\n" + b"a" * 100_000, b"--b--\r\nmore"):
            answer = await client.post(TRANSCRIPTIONS, content=content, headers=headers)
            assert answer.status_code == 400, content[:20]
            assert "multipart" in answer.json()["error"]["message"]
        assert backend.of(TRANSCRIPTIONS) == []


@bounded
async def test_a_backend_that_refuses_in_mid_upload_is_heard(rig: Rig) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readline()
        if first.startswith(b"POST"):
            body = b'{"error": {"message": "the file is too long for me"}}'
            writer.write(
                b"HTTP/1.1 413 Too Large\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                % (len(body), body)
            )
            await writer.drain()
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", rig.port)
    async with server, rig.client() as client:
        files = {"file": ("a.wav", b"x" * (LIMIT - 1000))}
        answer = await client.post(TRANSCRIPTIONS, data={"model": "ears"}, files=files)
        assert answer.status_code in (413, 502)
        if answer.status_code == 413:
            assert "too long for me" in answer.json()["error"]["message"]


@bounded
async def test_events_get_signs_of_life_while_nothing_comes(rig: Rig) -> None:
    gate = asyncio.Event()
    done = b'data: {"type":"image_generation.completed"}\n\n'
    async with fake(rig, IMAGES, Reply(before_headers=gate, steps=[done])), rig.client() as client:
        asked = {"model": "eyes", "prompt": "x", "stream": True}
        async with client.stream("POST", IMAGES, json=asked) as answer:
            got = b""
            async for chunk in answer.aiter_raw():
                got += chunk
                if got.count(b": alive\n\n") == 2:
                    gate.set()
        assert got.replace(b": alive\n\n", b"") == done


@bounded
async def test_events_that_stall_end_in_an_error(rig: Rig) -> None:
    partial = b'data: {"type":"image_generation.partial_image"}\n\n'
    async with fake(rig, IMAGES, Reply(steps=[partial, Act.STALL])), rig.client() as client:
        answer = await client.post(IMAGES, json={"model": "eyes", "prompt": "x", "stream": True})
        last = answer.content.strip().rpartition(b"\n\n")[2]
        assert last.startswith(b"event: error\ndata: ")
        assert json.loads(last.partition(b"data: ")[2])["error"]["code"] == "timeout"


def test_a_backend_ends_with_a_deck_that_is_killed(tmp_path: Path) -> None:
    with live_deck(tmp_path, profiles={"near": near("near")}) as deck:
        with deck.client() as client:
            assert client.post(SPEECH, json={"model": "near", "input": "hi", "voice": "x"}).content == b"hihihi"
        (child,) = children(deck.process.pid)
        deck.process.send_signal(signal.SIGKILL)
        until_sync(lambda: not is_alive(child), what="the backend's end")


def test_a_deck_that_stops_cuts_the_sound_that_still_runs(tmp_path: Path) -> None:
    settings = configured(tmp_path, drain="200ms")
    with live_deck(tmp_path, *settings, profiles={"near": near("near")}) as deck, deck.client() as client:
        with client.stream("POST", SPEECH, json={"model": "near", "input": "stall", "voice": "x"}) as answer:
            chunks = answer.iter_raw()
            assert next(chunks) == b"stall"
            deck.process.send_signal(signal.SIGTERM)
            with pytest.raises(httpx.RemoteProtocolError):
                next(chunks)
        assert deck.process.wait(20) == 0
