"""What goes over the wire: request heads, every framing of answers, TLS."""

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from upstream.test_transport_server import (
    BODY,
    FRAMINGS,
    OK,
    SLICES,
    Peer,
    Run,
    answering,
    chunked,
    every_loop,
    get,
    post,
    run_on,
    serving,
)

from deck.upstream.transport import Target, Transport

run = every_loop


@pytest.mark.parametrize("step", SLICES)
@pytest.mark.parametrize("framing", FRAMINGS)
def test_any_slicing_gives_the_same_answer(run: Run, framing: str, step: int) -> None:
    async def main() -> None:
        handler = answering(FRAMINGS[framing], step=step, close=framing == "close")
        async with serving(handler) as server, Transport() as transport:
            for _ in range(2):
                response = await post(transport, server)
                assert response.status == 200
                assert [value for name, value in response.headers if name == b"x-many"] == [b"1", b"2"]
                assert response.header(b"x-empty") == b""
                assert response.header(b"x-trailer") is None
                assert await response.read() == BODY
                assert await response.next_chunk() == b""
            await server.until(lambda: framing != "close" or server.ended == 2)
            assert server.connections == (2 if framing == "close" else 1)
            assert transport.stats == ((0, 0) if framing == "close" else (1, 0))

    run(main())


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    st.sampled_from(["length", "chunked", "close"]),
    st.lists(st.integers(1, 60), min_size=1, max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_arbitrary_bodies_survive_arbitrary_cuts(parts: list[bytes], framing: str, cuts: list[int]) -> None:
    body = b"".join(parts)
    head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"
    wire = {
        "length": head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body),
        "chunked": head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body, 13),
        "close": head + b"\r\n" + body,
    }[framing]

    async def handler(peer: Peer) -> None:
        await peer.request()
        rest, turn = wire, 0
        while rest:
            cut = cuts[turn % len(cuts)]
            await peer.send(rest[:cut], cut)
            await asyncio.sleep(0)
            rest, turn = rest[cut:], turn + 1

    async def main() -> None:
        async with serving(handler) as server, Transport() as transport:
            assert await get(transport, server) == (200, body)

    run_on(uvloop.new_event_loop, main())


def test_request_head_and_body_arrive_as_sent(run: Run) -> None:
    async def main() -> None:
        async with serving(answering(OK)) as server, Transport() as transport:
            await (await post(transport, server, b"x" * 300_000)).read()
            await get(transport, server)
            await (
                await transport.send(server.target, "POST", "/e", [(b"Host", b"h"), (b"Content-Length", b"9")])
            ).read()
            assert server.connections == 1
            posted, got, empty = server.requests
            assert (posted.method, posted.path, posted.body) == (b"POST", b"/p", b"x" * 300_000)
            assert posted.get(b"host") == [server.target.authority.encode()]
            assert posted.get(b"x-a") == [b"b"]
            assert got.get(b"content-length") == []
            assert (empty.get(b"host"), empty.get(b"content-length")) == ([b"h"], [b"0"])

    run(main())


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\nContent-Length: 7\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n"),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ],
)
def test_answers_without_body_end_at_once_and_keep_the_connection(run: Run, method: str, answer: bytes) -> None:
    async def main() -> None:
        async with serving(answering(answer)) as server, Transport() as transport:
            for _ in range(3):
                response = await transport.send(server.target, method, "/", [])
                assert await response.read() == b""
            assert (server.connections, len(server.requests)) == (1, 3)

    run(main())


@pytest.mark.parametrize("step", SLICES)
def test_interim_answers_are_skipped(run: Run, step: int) -> None:
    interim = b"HTTP/1.1 100 Continue\r\nX-I: 1\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"

    async def main() -> None:
        async with serving(answering(interim + OK, step=step)) as server, Transport() as transport:
            for _ in range(2):
                response = await post(transport, server)
                assert (response.status, response.headers) == (200, [(b"content-length", b"2")])
                assert await response.read() == b"ok"
            assert server.connections == 1

    run(main())


@pytest.mark.parametrize("uds", [False, True])
def test_ten_megabytes_both_ways(run: Run, uds: bool, tmp_path: Path) -> None:
    big = bytes(range(250)) * 40_000

    async def handler(peer: Peer) -> None:
        for _ in range(2):
            request = await peer.request()
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(request.body))
            await peer.send(request.body)
        await peer.closed()

    async def main() -> None:
        async with serving(handler, tmp_path / "s" if uds else None) as server, Transport() as transport:
            for _ in range(2):
                assert await (await post(transport, server, big)).read() == big
            assert server.connections == 1

    run(main())


@pytest.mark.parametrize(
    "bad", ["\r\nX: y", "a\r\nX: y", "a\rb", "a\nb", "a\0b", "\r\n", "a\r\n\r\nGET / HTTP/1.1\r\nA: b"]
)
@pytest.mark.parametrize("place", ["name", "value", "path", "method", "host"])
def test_line_breaks_and_nulls_are_refused_before_connecting(bad: str, place: str) -> None:
    parts = {"name": "x", "value": "y", "path": "/", "method": "GET", "host": "h"} | {place: bad}

    async def main() -> None:
        async with Transport() as transport:
            with pytest.raises(httpx.LocalProtocolError):
                await transport.send(
                    Target(host=parts["host"], port=1),
                    parts["method"],
                    parts["path"],
                    [(parts["name"].encode(), parts["value"].encode())],
                )

    run_on(asyncio.new_event_loop, main())


@pytest.mark.parametrize(
    ("method", "path", "name", "value"),
    [
        ("GET", "/a b", b"x", b"y"),
        ("GET", "", b"x", b"y"),
        ("GET", "/ü", b"x", b"y"),
        ("G T", "/", b"x", b"y"),
        ("", "/", b"x", b"y"),
        ("GET", "/", b"", b"y"),
        ("GET", "/", b"x y", b"z"),
        ("GET", "/", b"x\xff", b"z"),
    ],
)
def test_malformed_request_lines_and_names_are_refused(method: str, path: str, name: bytes, value: bytes) -> None:
    async def main() -> None:
        async with Transport() as transport:
            with pytest.raises(httpx.LocalProtocolError):
                await transport.send(Target(port=1), method, path, [(name, value)])

    run_on(asyncio.new_event_loop, main())


def test_unusual_but_lawful_values_pass(run: Run) -> None:
    async def main() -> None:
        async with serving(answering(OK)) as server, Transport() as transport:
            headers = [(b"x-a", b""), (b"x-b", "ü\t: x".encode()), (b"!#$%&'*+-.^_`|~9", b"z")]
            await (await transport.send(server.target, "GET", "/a?b=%0D%0A", headers)).read()
            assert server.requests[0].headers[1:] == headers

    run(main())


@pytest.mark.parametrize(
    ("target", "authority"),
    [
        (Target(port=8080), "127.0.0.1:8080"),
        (Target(host="::1", port=8080), "[::1]:8080"),
        (Target(host="a.example", port=80), "a.example"),
        (Target(host="a.example", port=443, tls=True), "a.example"),
        (Target(host="a.example", port=80, tls=True), "a.example:80"),
        (Target(uds="/run/x"), "localhost"),
    ],
)
def test_authority(target: Target, authority: str) -> None:
    assert target.authority == authority


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command")
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
    command += ["-keyout", str(file), "-out", str(file) + ".crt"]
    subprocess.run(command, check=True, capture_output=True)
    file.write_text(
        file.read_text(encoding="ascii") + Path(f"{file}.crt").read_text(encoding="ascii"), encoding="ascii"
    )
    return file


def test_tls_is_verified_pooled_and_aborts_at_once(run: Run, certificate: Path) -> None:
    async def handler(peer: Peer) -> None:
        for _ in range(2):
            request = await peer.request()
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(request.body) + request.body)
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\nhello")
        await peer.closed()

    async def main() -> None:
        listening = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        listening.load_cert_chain(certificate)
        trusting = ssl.create_default_context(cafile=f"{certificate}.crt")
        async with serving(handler, tls=listening) as server, Transport(ssl_context=trusting) as transport:
            async with Transport() as distrusting:
                with pytest.raises(httpx.ConnectError, match="certificate"):
                    await get(distrusting, server)
            for body in (b"x", b"y" * 3_000_000):
                assert await (await post(transport, server, body)).read() == body
            assert (server.connections, transport.stats) == (1, (1, 0))
            response = await post(transport, server)
            assert await response.next_chunk() == b"hello"
            response.close()
            await server.until(lambda: server.ended == 1)

    run(main())
