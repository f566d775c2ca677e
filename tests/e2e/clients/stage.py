"""Where a client is run: directories of its own, Deck behind a tap, a fake llama-server, and nothing else in reach."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec

import pytest
from e2e.clients.play import Turn, play
from e2e.clients.tap import Exchange, Outside, Tap
from e2e.clients.terminal import Terminal
from e2e.live import ROOT, LiveDeck

from deck.testing.fake_llama import FakeLlama, Received

P = ParamSpec("P")
PROGRAMS = ROOT / "build" / "clients" / "node_modules" / ".bin"
MODEL = "my-model"
# A model that Codex knows by this name gets other tools from it than one that it does not know.
KNOWN = "gpt-5.5"
SECONDS = 120.0
PROFILE = """
id = "{model}"
aliases = ["{known}"]
[server]
url = "http://127.0.0.1:{port}"
ctx_size = 32768
[capabilities]
tools = true
reasoning = true
context = 32768
"""


@dataclass
class Ran:
    """How a client ended."""

    code: int
    out: str
    err: str


@dataclass
class Stage:
    """All that stands around one run of a client."""

    deck: LiveDeck
    fake: FakeLlama
    tap: Tap
    outside: Outside
    home: Path
    work: Path

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The chat requests with tools that reached the model."""
        return [body for body in (chat.json() for chat in self.fake.chats) if body.get("tools")]

    def write(self, name: str, text: str) -> Path:
        """Put a file where the client works."""
        path = self.work / name
        path.write_text(text)
        return path

    def posts(self, path: str) -> list[Exchange]:
        """Return what the client posted to a path."""
        return [item for item in self.tap.exchanges() if item.method == "POST" and item.path == path]

    def holds(self, path: str, count: int, check: Callable[[bytes], Any], outside: Collection[str] = ()) -> None:
        """Assert what every good run has in common.

        All that the client asked was answered well, `count` times at `path` by whole streams, each request of the
        conversation only added to the one before, and nobody wanted anything of the world outside, but for the hosts
        (`name:port`) that nothing keeps the client from.
        """
        exchanges = self.tap.exchanges()
        assert [item.status for item in exchanges] == [200] * len(exchanges)
        posts = self.posts(path)
        assert len(posts) == count, [(item.target, item.status, item.body[-300:], item.answer[-300:]) for item in posts]
        for post in posts:
            assert post.answer_headers["content-type"] == "text/event-stream"
            assert check(post.answer).error is None
        grows(self.bodies)
        unwanted = set(self.outside.wanted) - {f"CONNECT {host} HTTP/1.1" for host in outside}
        assert unwanted == set(), self.outside.wanted

    async def run(self, program: str, *arguments: str, **environment: str) -> Ran:
        """Run a client without a terminal, to its end.

        Raises:
            TimeoutError: it took too long; it has been ended.
        """
        nothing, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
        async with self._started(program, arguments, environment, (nothing, pipe, pipe)) as process:
            out, err = await process.communicate()
        assert process.returncode is not None
        return Ran(process.returncode, out.decode(), err.decode())

    async def show(self, program: str, *arguments: str, until: Callable[[], object], **environment: str) -> None:
        """Run a client on a terminal until a claim holds, and end it.

        Raises:
            TimeoutError: it never held, with what was drawn; the client has been ended.
        """
        with Terminal() as terminal:
            try:
                async with self._started(program, arguments, environment, (terminal.inner,) * 3):
                    while not until():
                        await asyncio.sleep(0.01)
            except TimeoutError as error:
                raise TimeoutError(terminal.drawn[-3000:]) from error

    def answered(self, path: str, said: bytes) -> bool:
        """Tell whether all that was asked at a path is answered to the end, the last time with these words."""
        posts = [post for post in self.posts(path) if post.is_whole]
        return len(posts) == len(self.fake.chats) and any(said in post.answer for post in posts)

    @asynccontextmanager
    async def _started(
        self, program: str, arguments: Sequence[str], environment: Mapping[str, str], files: tuple[int, int, int]
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """Start a client in a session of its own, which ends with the block or after `SECONDS`."""
        away = {name: self.outside.url for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")}
        near = {"NO_PROXY": "127.0.0.1", "PATH": os.environ["PATH"], "HOME": str(self.home), "TERM": "xterm"}
        process = await asyncio.create_subprocess_exec(
            PROGRAMS / program,
            *arguments,
            stdin=files[0],
            stdout=files[1],
            stderr=files[2],
            env=away | near | environment,
            cwd=self.work,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(SECONDS):
                yield process
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and so has all of its group
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            for survivor in living_in(self.home):  # a daemon in a session of its own
                with contextlib.suppress(ProcessLookupError):
                    os.kill(survivor, signal.SIGKILL)


@dataclass
class Theatre:
    """A Deck whose model is whatever the test puts at a port."""

    deck: LiveDeck
    port: int

    def stage(self, tmp: Path, *turns: Turn) -> AbstractAsyncContextManager[Stage]:
        """Set a stage on which the model takes these turns, one after each round of tools."""
        return self.acting(tmp, play(*turns))

    @asynccontextmanager
    async def acting(self, tmp: Path, script: Turn) -> AsyncIterator[Stage]:
        """Set a stage on which the model does as a function says."""
        home, work = tmp / "home", tmp / "work"
        home.mkdir()
        work.mkdir()
        fake = FakeLlama(script, port=self.port, n_ctx=32768, routes=ROUTES)
        async with fake, Tap(self.deck.port) as tap, Outside() as outside:
            yield Stage(self.deck, fake, tap, outside, home, work)


def bounded(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an asynchronous test within a deadline, which a client that hangs reaches first."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            async with asyncio.timeout(SECONDS + 20):
                await test(*args, **kwargs)

        asyncio.run(main())

    return run


def needs(program: str) -> pytest.MarkDecorator:
    """Mark the tests of a client, which are skipped where it is not installed."""
    reason = f"{program} is not installed; `make clients` does it, where npm is"
    return pytest.mark.skipif(not (PROGRAMS / program).exists(), reason=reason)


def profile(port: int) -> str:
    return PROFILE.format(model=MODEL, known=KNOWN, port=port)


def living_in(home: Path) -> list[int]:
    """Return the ids of the processes whose home this is, where the system tells."""
    found, mark = [], f"HOME={home}".encode()
    for place in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has just ended, or is somebody else's
            if mark in place.read_bytes().split(b"\0"):
                found.append(int(place.parent.name))
    return found


def notes(exchange: Exchange, kind: str) -> list[str]:
    """Return the paths that a header of the answer lists; `kind` is Ignored or Changed."""
    shown = exchange.answer_headers.get(f"x-athena-compatibility-{kind.lower()}", "")
    return shown.split(", ") if shown else []


def grows(bodies: Sequence[Mapping[str, Any]]) -> None:
    """Assert that each request only adds to the one before, or the model would read everything anew."""
    for earlier, later in itertools.pairwise(bodies):
        assert later["tools"] == earlier["tools"]
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]


def _words(request: Received) -> dict[str, Any]:
    return {"tokens": list(range(len(str(request.json()["content"]).split())))}


def _length(request: Received) -> dict[str, Any]:
    return {"object": "response.input_tokens", "input_tokens": len(json.dumps(request.json())) // 4}


ROUTES = {"/tokenize": _words, "/v1/chat/completions/input_tokens": _length}
