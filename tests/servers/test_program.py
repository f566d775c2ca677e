"""The life of a server that is no llama-server: the same as a llama-server's."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from deck.config import Config
from deck.contracts import ServerState
from deck.errors import DeckError
from deck.profile import Profile, ProfileError, ServerSettings, load_profile
from deck.servers import LocalLauncher, check_profile
from deck.servers.program import Program
from deck.servers.remote import Remote

PYTHON = sys.executable
MODULE = ("-m", "deck.testing.fake_backend")
Make = Callable[..., Profile]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def profile(*arguments: str, **keys: Any) -> Profile:
        settings = ServerSettings(command=(PYTHON, *MODULE, *arguments), **keys)
        return Profile(id="voice", kind="speech", server=settings, source=tmp_path / "voice.toml")

    return profile


def run(work: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await work

    asyncio.run(main())


async def says(server: Program, text: str = "hi", *, key: str | None = None) -> httpx.Response:
    address = server.address
    transport = httpx.AsyncHTTPTransport(uds=address.uds) if address.uds else httpx.AsyncHTTPTransport()
    base = "http://localhost" if address.uds else f"http://127.0.0.1:{address.port}"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(transport=transport, base_url=base, headers=headers) as client:
        return await client.post("/v1/audio/speech", json={"model": "voice", "input": text, "voice": "x"})


@pytest.mark.parametrize("place", ["--port={port}", "--socket={socket}"])
@pytest.mark.parametrize("health", [None, "/health"])
def test_it_serves_and_stops_and_leaves_nothing(config: Config, make: Make, place: str, health: str | None) -> None:
    async def main() -> None:
        server = LocalLauncher(config).launch(make(place, health=health))
        assert isinstance(server, Program)
        await server.start()
        try:
            assert server.state is ServerState.READY
            assert server.key is None
            assert server.memory()
            assert (await says(server)).content == b"hihihi"
            pid = server.pid
            assert pid is not None
            assert os.getpgid(pid) == pid
        finally:
            await server.stop(grace=5)
        assert server.state is ServerState.STOPPED
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        if server.address.uds:
            assert not Path(server.address.uds).exists()

    run(main())


def test_what_it_printed_of_clients_is_told_to_no_other(config: Config, tmp_path: Path) -> None:
    """Of a failed start its lines are the reason; once it serves they may be what somebody sent."""

    async def main() -> None:
        listens = "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1])))"
        code = f"{listens}; print('a secret of A', flush=True)"
        for more, is_told in (("; sys.exit(3)", True), ("; [s.accept() for _ in iter(int, 1)]", False)):
            command = (PYTHON, "-c", code + more, "{port}")
            settings = ServerSettings(command=command, health="/health" if is_told else None, load_timeout=20)
            server = Program(Profile(id="voice", kind="speech", server=settings, source=tmp_path / "v.toml"), config)
            if is_told:
                with pytest.raises(DeckError, match="a secret of A"):
                    await server.start()
                continue
            await server.start()
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
            await server.wait_ended()
            assert server.reason == "killed by signal 9; see `deck logs voice`"
            assert server.log is not None
            assert "a secret of A" in server.log.read_text()

    run(main())


def test_it_is_ready_when_its_health_says_so(config: Config, make: Make) -> None:
    async def main() -> None:
        server = Program(make("--port={port}", "--unhealthy=3", health="/health"), config)
        await server.start()
        assert "listening" in server.log.read_text() if server.log else False
        await server.stop(grace=5)
        never = Program(make("--port={port}", "--unhealthy=100000", health="/health", load_timeout="800ms"), config)
        with pytest.raises(DeckError, match=r"was not ready after 0\.8 s"):
            await never.start()
        assert never.state is ServerState.FAILED
        assert never.pid is None

    run(main())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("health", [None, "/health"])
def test_whoever_else_listens_on_its_port_is_neither_taken_for_it_nor_asked(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, health: str | None
) -> None:
    async def main() -> None:
        asked: list[object] = []

        def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(writer.get_extra_info("peername"))
            writer.close()

        async with await asyncio.start_server(note, "127.0.0.1", 0) as stranger:
            port = stranger.sockets[0].getsockname()[1]
            monkeypatch.setattr("deck.servers.program.free_port", lambda: port)
            command = (PYTHON, "-c", "import time; time.sleep(60)", "{port}")
            settings = ServerSettings(command=command, health=health, load_timeout=1)
            server = Program(Profile(id="voice", kind="speech", server=settings, source=tmp_path / "v.toml"), config)
            with pytest.raises(DeckError, match=f"does not itself listen on port {port}"):
                await server.start()
            assert server.state is ServerState.FAILED
            assert asked == []

    run(main())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_load_without_a_sign_of_life_is_given_up(config: Config, tmp_path: Path) -> None:
    async def main() -> None:
        command = (PYTHON, "-c", "import time; time.sleep(60)", "{port}")
        settings = ServerSettings(command=command, load_stall=1, load_timeout=25)
        server = Program(Profile(id="voice", kind="speech", server=settings, source=tmp_path / "v.toml"), config)
        with pytest.raises(DeckError, match=r"hung: for 1 s it printed nothing.*see \[server\] load_stall"):
            await server.start()
        assert server.pid is None

    run(main())


def test_it_gets_a_key_only_where_it_says_in_which_variable(config: Config, make: Make) -> None:
    async def main() -> None:
        server = Program(make("--port={port}", "--key-variable=VOICE_KEY", api_key_env="VOICE_KEY"), config)
        await server.start()
        try:
            assert server.key
            assert (await says(server)).status_code == 401
            assert (await says(server, key=server.key)).status_code == 200
            shown = subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(server.pid)], capture_output=True, check=True)
            assert server.key.encode() not in shown.stdout
        finally:
            await server.stop(grace=5)

    run(main())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_its_environment_is_scrubbed(config: Config, make: Make) -> None:
    async def main() -> None:
        environ = {**os.environ, "DECK_TOKEN": "secret", "SOME_SECRET": "x"}
        server = Program(make("--port={port}", env={"VOICES": "all"}), config, environ)
        await server.start()
        try:
            seen = Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")
            names = {item.partition(b"=")[0].decode() for item in seen if item}
            assert {"PATH", "VOICES"} <= names
            assert not names & {"DECK_TOKEN", "SOME_SECRET", "LLAMA_API_KEY"}
        finally:
            await server.stop(grace=5)

    run(main())


def test_one_that_ends_says_why(config: Config, make: Make) -> None:
    async def main() -> None:
        server = Program(make("--port={port}", "--fail"), config)
        with pytest.raises(DeckError, match="exited with status 3: error: no such voice file") as caught:
            await server.start()
        assert caught.value.should_retry is None
        assert server.state is ServerState.FAILED

    run(main())


def test_a_program_that_is_not_there_is_found_before_serving(config: Config, tmp_path: Path) -> None:
    for name in ("no-such-program", "./no-such-program", "./file"):
        (tmp_path / "file").write_text("x")
        settings = ServerSettings(command=(name, "{port}"))
        profile = Profile(id="voice", kind="speech", server=settings, source=tmp_path / "voice.toml")
        (fault,) = check_profile(profile, config)
        assert name in fault
        assert "[server] command" in fault

        async def main(profile: Profile = profile) -> None:
            with pytest.raises(DeckError, match="not there or not executable") as caught:
                await Program(profile, config).start()
            assert caught.value.should_retry is False

        run(main())


def test_a_program_beside_its_profile(config: Config, tmp_path: Path) -> None:
    script = tmp_path / "voice.sh"
    script.write_text(f'#!/bin/sh\nexec {PYTHON} -m deck.testing.fake_backend --port "$1"\n')
    script.chmod(0o755)
    settings = ServerSettings(command=("./voice.sh", "{port}"))
    profile = Profile(id="voice", kind="speech", server=settings, source=tmp_path / "voice.toml")
    assert check_profile(profile, config) == []

    async def main() -> None:
        server = Program(profile, config)
        await server.start()
        assert (await says(server)).status_code == 200
        await server.stop(grace=5)

    run(main())


FAULTS = {
    'command = ["x"]': "needs {port} or {socket}",
    'command = ["x", "{port}", "{socket}"]': "needs {port} or {socket}",
    'command = ["x", "{port}", "{model}"]': "no other {word}",
    'command = ["x", "{port}"]\nurl = "http://h"': "exactly one of model, hf, url, urls and command",
    'command = ["x", "{port}"]\nargs = ["-v"]': "args: for a llama-server only",
    'command = ["x", "{port}"]\nctx_size = 5': "ctx_size: for a llama-server only",
    'model = "x.gguf"': "llama-server serves no speech",
    'command = ["x", "{port}"]\nparallel = 0': "parallel must be at least 1",
}


@pytest.mark.parametrize(("text", "said"), FAULTS.items(), ids=FAULTS)
def test_a_profile_that_cannot_be_meant(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "voice.toml"
    file.write_text(f'id = "voice"\nkind = "speech"\n[server]\n{text}\n')
    with pytest.raises(ProfileError) as caught:
        load_profile(file)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("chat", 'command = ["x", "{port}"]', "a chat model is served by llama-server"),
        ("chat", 'model = "x"\nhealth = "/h"', "server.health: only for a server that is no llama-server"),
        ("embedding", 'url = "http://h"\nfields = ["x"]', "server.fields: only for"),
        ("embedding", 'model = "x"\nmodel_name = "y"', "server.model_name: a llama-server that Deck starts"),
        ("speech", 'url = "http://h"\nhealth = "health"', "server.health"),
    ],
)
def test_keys_that_mean_nothing_there(tmp_path: Path, kind: str, text: str, said: str) -> None:
    file = tmp_path / "voice.toml"
    file.write_text(f'id = "voice"\nkind = "{kind}"\n[server]\n{text}\n')
    with pytest.raises(ProfileError) as caught:
        load_profile(file)
    assert said in str(caught.value)


def test_variables_are_expanded_and_braces_stay(tmp_path: Path) -> None:
    file = tmp_path / "voice.toml"
    command = """["x", "--voices=${VOICES}", '--json={"a": {}}', "{port}"]"""
    file.write_text(f'id = "voice"\nkind = "speech"\n[server]\ncommand = {command}\n')
    profile = load_profile(file, {"VOICES": "/v"})
    assert profile.server.command == ("x", "--voices=/v", '--json={"a": {}}', "{port}")
    assert (profile.serves, profile.backend, profile.is_foreign) == ("x", "server", True)


def test_one_that_runs_elsewhere(config: Config, make: Make) -> None:
    async def main() -> None:
        running = Program(make("--port={port}"), config)
        await running.start()
        try:
            for health in (None, "/health"):
                url = f"http://127.0.0.1:{running.address.port}"
                settings = ServerSettings(url=url, health=health)
                server = Remote(Profile(id="far", kind="speech", server=settings))
                await server.start()
                assert server.state is ServerState.READY
            settings = ServerSettings(url=url, health="/nothing")
            with pytest.raises(DeckError, match=r"\[server\] health does not answer 200"):
                await Remote(Profile(id="far", kind="speech", server=settings)).start()
        finally:
            await running.stop(grace=5)
        settings = ServerSettings(url=url)
        with pytest.raises(DeckError, match="nobody listens"):
            await Remote(Profile(id="far", kind="speech", server=settings)).start()

    run(main())
