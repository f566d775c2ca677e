"""Images by URL: what is fetched and what is not, against a web server on loopback; no name is ever looked up."""

from __future__ import annotations

import asyncio
import base64
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from app_support import App, app, error_of
from web_site import GIF, PNG, Site, listener, respond, site

from deck.api import ChatRequest, DeckError, Image, Message, Text, ToolResult
from deck.config import MediaSettings
from deck.media import ImageFetcher
from deck.testing.fake_llama import Received, Reply, say
from deck.testing.frames import done, finish, role, tool
from deck.upstream.transport import Transport

PATH = "messages[0].content[0].image_url.url"
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture
def run() -> Run:
    def running(main: Coroutine[Any, Any, None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(20):
                await main

        asyncio.run(bounded())

    return running


def fetcher(
    *, allow: Sequence[str] = (), private: Sequence[str] = (), most_in_all: int = 1 << 20, **options: Any
) -> ImageFetcher:
    transport, resolve = options.pop("transport", None), options.pop("resolve", nowhere)
    settings = MediaSettings(allow=tuple(allow), allow_private=tuple(private), **options)
    return ImageFetcher(settings, most_in_all=most_in_all, resolve=resolve, transport=transport)


async def nowhere(host: str, port: int) -> list[str]:
    raise socket.gaierror(f"{host}:{port} is not to be looked up")


def answering(*addresses: str) -> Callable[[str, int], Coroutine[Any, Any, list[str]]]:
    async def resolve(host: str, port: int) -> list[str]:
        return list(addresses)

    return resolve


def request(*urls: str) -> ChatRequest:
    parts = tuple(Image(url, f"messages[0].content[{place}].image_url.url") for place, url in enumerate(urls))
    return ChatRequest(model="m1", messages=(Message("user", (*parts, Text("look")), "messages[0]"),))


def urls_of(asked: Any) -> list[str]:
    return [part.url for part in asked.messages[0].parts if isinstance(part, Image)]


def data(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


async def refused(images: ImageFetcher, asked: ChatRequest) -> DeckError:
    with pytest.raises(DeckError) as caught:
        await images.fetch(asked)
    assert caught.value.kind.status == 400
    assert caught.value.param is not None
    assert caught.value.message.startswith(caught.value.param)
    return caught.value


def test_an_image_takes_the_place_of_its_url(run: Run) -> None:
    async def main() -> None:
        async with site() as web:
            images = fetcher(private=[f"127.0.0.1:{web.port}"])
            inline = data(GIF, "image/gif")
            asked = await images.fetch(request(f"http://127.0.0.1:{web.port}/a.png?b=c", inline))
            assert urls_of(asked) == [data(PNG), inline]
            assert asked.messages[0].parts[2] == Text("look")
            head = web.heads[0].lower()
            assert head.startswith("get /a.png?b=c http/1.1\r\n")
            assert f"\r\nhost: 127.0.0.1:{web.port}\r\n" in head
            assert not {"authorization", "cookie", "referer", "x-request-id"} & {
                line.partition(":")[0] for line in head.split("\r\n")
            }

    run(main())


def test_the_type_is_what_the_bytes_say(run: Run) -> None:
    async def main() -> None:
        async with site() as web:
            web.default = respond(GIF, "image/png; charset=binary")
            images = fetcher(private=[f"127.0.0.1:{web.port}"])
            assert urls_of(await images.fetch(request(f"http://127.0.0.1:{web.port}/"))) == [data(GIF, "image/gif")]

    run(main())


def test_one_url_is_fetched_once_and_images_in_tool_results_too(run: Run) -> None:
    async def main() -> None:
        async with site() as web:
            images = fetcher(private=[f"127.0.0.1:{web.port}"])
            one, other = (f"http://127.0.0.1:{web.port}/{name}" for name in "ab")
            result = ToolResult("123456789", (Text("seen"), Image(other, "x"), Image(one, "y")))
            asked = request(one, one)
            asked = ChatRequest(model="m1", messages=(*asked.messages, Message("tool", (result,), "messages[1]")))
            found: Any = await images.fetch(asked)
            assert urls_of(found) == [data(PNG)] * 2
            assert [part.url for part in found.messages[1].parts[0].parts[1:]] == [data(PNG)] * 2
            assert sorted(web.paths) == ["/a", "/b"]

    run(main())


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            respond(status="302 Found", extra="location: http://10.0.0.1/secret"),
            "redirects to 'http://10.0.0.1/secret'",
        ),
        (respond(status="301 Moved Permanently"), "redirects"),
        (respond(status="404 Not Found"), "status 404"),
        (respond(status="206 Partial Content"), "status 206"),
        (respond(kind="text/html"), "'text/html'"),
        (respond(kind="image/svg+xml"), "'image/svg"),
        (respond(kind=""), "no content type"),
        (respond(b"<html>", "image/png"), "is no PNG"),
        (respond(b"", "image/png"), "is no PNG"),
        (respond(extra="content-encoding: gzip"), "content coding"),
        (respond(length=5000), "larger than"),
        (respond(PNG + bytes(5000)), "larger than"),
        (respond(PNG + bytes(5000), length=-1), "larger than"),
        (respond(length=len(PNG) + 1), "no whole answer"),
        (b"HTTP/1.1 200 OK\r\n", "no whole answer"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "no whole answer"),
        (b"", "no whole answer"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000, "no whole answer"),
    ],
)
def test_what_is_no_image(run: Run, answer: bytes, why: str) -> None:
    async def main() -> None:
        async with site() as web:
            web.default = answer
            images = fetcher(private=[f"127.0.0.1:{web.port}"], max_bytes=4096)
            error = await refused(images, request(f"http://127.0.0.1:{web.port}/"))
            assert why in error.message
            assert (error.param, error.code) == (PATH, "invalid_image_url")
            assert len(web.heads) == 1

    run(main())


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\n", respond(length=999)], ids=["nothing", "head", "body"])
def test_a_host_that_stalls_is_given_up(run: Run, begun: bytes) -> None:
    async def main() -> None:
        async with site() as web:
            web.default, web.stalled_after = None, begun
            images = fetcher(private=[f"127.0.0.1:{web.port}"], timeout="100ms")
            error = await refused(images, request(f"http://127.0.0.1:{web.port}/"))
            assert "not fetched within 0.1 s" in error.message
            await web.left.wait()

    run(main())


def test_the_time_of_a_name_that_is_not_found_counts(run: Run) -> None:
    async def never(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    async def main() -> None:
        images = fetcher(allow=["a.example"], timeout="50ms", resolve=never)
        assert "not fetched within" in (await refused(images, request("https://a.example/"))).message

    run(main())


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["::1"], ["::ffff:127.0.0.1"], ["169.254.169.254"], ["fe80::1%1"]],
)
def test_a_name_that_leads_inside_is_not_followed(run: Run, addresses: list[str]) -> None:
    """All addresses count, so that none that is checked stands in for one that is used."""

    async def main() -> None:
        async with site() as web:
            images = fetcher(allow=[f"a.example:{web.port}", "*"], resolve=answering(*addresses))
            error = await refused(images, request(f"http://a.example:{web.port}/"))
            assert "not on the public internet" in error.message
            assert addresses[0] not in error.message, "what Deck's resolver sees is not the client's business"
            assert not web.heads

    run(main())


@pytest.mark.parametrize("url", ["http://127.0.0.1/", "http://[::1]/", "http://169.254.169.254/latest/", "http://0/"])
def test_an_address_in_the_url_is_checked_as_well(run: Run, url: str) -> None:
    async def main() -> None:
        await refused(fetcher(allow=["*"], resolve=answering("0.0.0.0")), request(url))

    run(main())


def test_a_private_host_is_still_not_a_link_or_a_multicast_group(run: Run) -> None:
    async def main() -> None:
        for address in ("169.254.169.254", "224.0.0.1", "0.0.0.0", "::"):
            images = fetcher(private=["a.example"], resolve=answering(address))
            assert "not on the public internet" in (await refused(images, request("http://a.example/"))).message

    run(main())


def test_the_checked_address_is_the_one_that_is_used(run: Run) -> None:
    """The name has no other address than the one that the check saw, and is asked for once."""
    asked: list[str] = []

    async def once(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    async def main() -> None:
        async with site() as web:
            images = fetcher(private=[f"images.invalid:{web.port}"], resolve=once)
            found = await images.fetch(request(f"http://images.invalid:{web.port}/a"))
            assert urls_of(found) == [data(PNG)]
            assert f"host: images.invalid:{web.port}\r\n" in web.heads[0]
            assert asked == ["images.invalid"]

    run(main())


def test_the_next_address_is_tried_when_one_takes_no_connections(run: Run) -> None:
    async def main() -> None:
        async with site() as web:
            images = fetcher(private=[f"images.invalid:{web.port}"], resolve=answering("127.0.0.2", "127.0.0.1"))
            assert urls_of(await images.fetch(request(f"http://images.invalid:{web.port}/"))) == [data(PNG)]

    run(main())


def test_a_host_that_is_not_there(run: Run) -> None:
    async def main() -> None:
        sock = listener()
        port = sock.getsockname()[1]
        sock.close()
        error = await refused(fetcher(private=[f"127.0.0.1:{port}"]), request(f"http://127.0.0.1:{port}/"))
        assert "no connection" in error.message
        error = await refused(fetcher(allow=["a.example"]), request("https://a.example/"))
        assert "has no address" in error.message

    run(main())


def test_many_images_are_fetched_a_few_at_a_time_and_bounded_in_all(run: Run) -> None:
    async def main() -> None:
        async with site() as web:
            where = f"http://127.0.0.1:{web.port}"
            images = fetcher(private=[f"127.0.0.1:{web.port}"])
            asked = await images.fetch(request(*(f"{where}/{number}" for number in range(16))))
            assert urls_of(asked) == [data(PNG)] * 16
            assert web.most_at_once <= 4
            error = await refused(images, request(*(f"{where}/{number}" for number in range(17))))
            assert "at most 16" in error.message
            assert len(web.heads) == 16, "what is too many is refused before any is fetched"
            small = fetcher(private=[f"127.0.0.1:{web.port}"], most_in_all=len(PNG) * 2 + 1)
            assert urls_of(await small.fetch(request(f"{where}/1", f"{where}/2"))) == [data(PNG)] * 2
            await refused(small, request(f"{where}/1", f"{where}/2", f"{where}/3"))

    run(main())


def test_one_failure_ends_the_others(run: Run) -> None:
    async def main() -> None:
        async with site() as web:
            web.pages = {"/slow": None, "/bad": respond(status="404 Not Found")}
            images = fetcher(private=[f"127.0.0.1:{web.port}"])
            where = f"http://127.0.0.1:{web.port}"
            error = await refused(images, request(f"{where}/slow", f"{where}/bad"))
            assert error.param == "messages[0].content[1].image_url.url"
            await web.left.wait()

    run(main())


def test_who_is_cancelled_leaves_nothing_behind(run: Run) -> None:
    async def main() -> None:
        async with site() as web:
            web.default = None
            images = fetcher(private=[f"127.0.0.1:{web.port}"])
            task = asyncio.ensure_future(images.fetch(request(f"http://127.0.0.1:{web.port}/")))
            await web.came.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()
            await web.left.wait()

    run(main())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command")
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=images.invalid", "-addext", "subjectAltName=DNS:images.invalid", "-days", "2"]
    command += ["-keyout", str(file), "-out", f"{file}.crt"]
    subprocess.run(command, check=True, capture_output=True)
    file.write_text(file.read_text("ascii") + Path(f"{file}.crt").read_text("ascii"), "ascii")
    return file


def test_tls_verifies_the_name_and_not_the_address(run: Run, certificate: Path) -> None:
    async def main() -> None:
        listening = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        listening.load_cert_chain(certificate)
        trusting = ssl.create_default_context(cafile=f"{certificate}.crt")
        async with site(tls=listening) as web, Transport(ssl_context=trusting) as transport:
            options = {"private": [f"*.invalid:{web.port}"], "resolve": answering("127.0.0.1"), "transport": transport}
            images = fetcher(**options)
            assert urls_of(await images.fetch(request(f"https://images.invalid:{web.port}/"))) == [data(PNG)]
            error = await refused(images, request(f"https://other.invalid:{web.port}/"))
            assert "certificate" in error.message
            assert len(web.heads) == 1

    run(main())


# The whole way


def seen(received: Received) -> Reply:
    return say("I see.")


def vision(has: bool) -> dict[str, Any]:
    props = {"modalities": {"vision": has, "audio": False}, "default_generation_settings": {"n_ctx": 4096}}
    return {"/props": {**props, "total_slots": 1}}


BLIND = 'id = "blind"\n{server}\n[capabilities]\nvision = false\n'


class Rig:
    """A Deck that may fetch from one web server."""

    def __init__(self, deck: App, web: Site) -> None:
        self.deck = deck
        self.web = web

    def look(self, url: str, model: str = "m1", **fields: Any) -> Any:
        part = {"type": "image_url", "image_url": {"url": url}}
        body = {"model": model, "messages": [{"role": "user", "content": [part]}], **fields}
        return self.deck.chat(json=body)


@pytest.fixture
def rig(tmp_path: Path, has_vision: bool) -> Iterator[Rig]:
    sock = listener()
    media = MediaSettings(allow_private=(f"127.0.0.1:{sock.getsockname()[1]}",))
    with app(tmp_path, seen, profiles={"blind": BLIND}, routes=vision(has_vision), media=media) as deck:
        serving = site(sock)
        web = deck.runner.run(serving.__aenter__())
        yield Rig(deck, web)
        deck.runner.run(serving.__aexit__(None, None, None))


@pytest.fixture
def has_vision() -> bool:
    return True


@pytest.mark.parametrize("stream", [True, False])
def test_llama_server_gets_the_image_and_never_the_url(rig: Rig, stream: bool) -> None:
    reply = rig.look(f"http://127.0.0.1:{rig.web.port}/a.png", stream=stream)
    assert reply.status_code == 200, reply.text
    [sent] = rig.deck.upstream()
    assert sent["messages"][0]["content"] == [{"type": "image_url", "image_url": {"url": data(PNG)}}]
    assert str(rig.web.port) not in str(sent)


def test_a_second_try_of_a_call_fetches_nothing_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline, fetched = rig.deck.deck.pipeline, list[ChatRequest]()
    fetch = pipeline._images.fetch

    async def counted(asked: ChatRequest) -> ChatRequest:
        fetched.append(asked)
        return await fetch(asked)

    monkeypatch.setattr(pipeline._images, "fetch", counted)
    answers = [
        Reply(steps=[role(), tool(0, "abcdefghi", "nothing", "{}"), finish("tool_calls"), done()]),
        say("I see."),
    ]
    rig.deck.fake._script = lambda received: answers.pop(0)
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    reply = rig.look(f"http://127.0.0.1:{rig.web.port}/a.png", tools=tools)
    assert reply.status_code == 200, reply.text
    assert len(rig.deck.upstream()) == 2
    assert len(fetched) == 1


def test_a_failure_is_the_clients_error_and_reaches_no_llama_server(rig: Rig) -> None:
    rig.web.default = respond(status="404 Not Found")
    for stream in (True, False):
        error = error_of(rig.look(f"http://127.0.0.1:{rig.web.port}/a.png", stream=stream), 400)
        assert error["param"] == PATH
    assert rig.deck.fake.requests == [], "nothing was started for it"


def test_another_host_is_refused_naming_the_remedy(rig: Rig) -> None:
    error = error_of(rig.look("https://images.example.org/a.png"), 400)
    assert "'images.example.org'" in error["message"]
    assert "[media] allow" in error["message"]
    assert error["param"] == PATH
    assert rig.deck.fake.requests == []


def test_a_model_without_vision_is_told_before_anything_is_fetched(rig: Rig) -> None:
    error = error_of(rig.look(f"http://127.0.0.1:{rig.web.port}/a.png", model="blind"), 400)
    assert "takes no images" in error["message"]
    assert rig.web.heads == []
    assert rig.deck.fake.requests == []


@pytest.mark.parametrize("has_vision", [False])
def test_what_a_running_server_says_of_itself_counts_before_anything_is_fetched(rig: Rig) -> None:
    assert rig.deck.chat().status_code == 200
    error = error_of(rig.look(f"http://127.0.0.1:{rig.web.port}/a.png"), 400)
    assert "takes no images" in error["message"]
    assert rig.web.heads == []


def test_a_dry_run_fetches_nothing(rig: Rig) -> None:
    part = {"type": "image_url", "image_url": {"url": f"http://127.0.0.1:{rig.web.port}/a.png"}}
    body = {"model": "m1", "messages": [{"role": "user", "content": [part]}]}
    assert rig.deck.send("POST", "/deck/explain", json=body).status_code == 200
    assert rig.web.heads == []


def test_by_default_no_url_is_followed(tmp_path: Path) -> None:
    with app(tmp_path, seen) as deck:
        part = {"type": "image_url", "image_url": {"url": "https://images.example.org/a.png"}}
        body = {"model": "m1", "messages": [{"role": "user", "content": [part]}]}
        error = error_of(deck.chat(json=body), 400)
        assert error["param"] == PATH
        assert "[media]" in error["message"]
        assert deck.fake.requests == []
