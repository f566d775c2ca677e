"""A llama-server without a model that does what the last message tells it to, as a process of the system.

`python tests/scripted_llama.py -m any.gguf --host x.sock …` takes llama-server's own flags, as the fake does. The last
text of a request is read word by word: `words 12 pace 20` says twelve words with 20 ms between two; see `_DEEDS` for
what else may go wrong. What it does not understand it answers as the fake does.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deck.testing.fake_llama import Act, FakeLlama, Received, Reply, Step, refuse
from deck.testing.frames import content, done, finish, role, text, text_end, tool, usage

ROOT = Path(__file__).parents[1]
_CHAT = "/v1/chat/completions"


@dataclass(slots=True)
class Task:
    """What a request asks for; times in milliseconds."""

    words: int = 3
    pace: int = 0
    prefill: int = 0
    deeds: list[str] = field(default_factory=list)


def task_of(said: str) -> Task:
    """Read a text; numbers follow the word that they belong to."""
    task = Task()
    words = iter(said.split())
    for word in words:
        if word in ("words", "pace", "prefill"):
            setattr(task, word, int(next(words, "0")))
        elif word in _DEEDS or word in _REPLIES or word in ("call", "echo", "die"):
            task.deeds.append(word)
    return task


_DEEDS: dict[str, Step] = {
    "crash": Act.EXIT,
    "stall": Act.STALL,
    "close": Act.CLOSE,
    "reset": Act.RESET,
    "garbage": b"data: {half\n\n",
}
_REPLIES: dict[str, Callable[[], Reply]] = {
    "internal": lambda: refuse(500, "GPU lost"),
    "busy": lambda: refuse(503, "Loading model", "unavailable_error"),
    "empty": lambda: Reply(status=400),
    "page": lambda: Reply(status=500, steps=[b"<html>oops</html>"]),
}


class Script:
    """Answers by what it is told; `first` is what happens to the first request of the process instead."""

    def __init__(self, first: str = "") -> None:
        self._first = first

    def __call__(self, request: Received) -> Reply:
        """Return the reply to one request."""
        body = request.json()
        said, self._first = self._first or last_text(body), ""
        task = task_of(said)
        if "die" in task.deeds:
            os._exit(134)
        for deed in task.deeds:
            if deed in _REPLIES:
                return _REPLIES[deed]()
        is_chat = request.path == _CHAT
        if "echo" in task.deeds:
            return Reply(steps=_framed(is_chat, [hashlib.sha256(last_text(body).encode()).hexdigest()], None))
        act = next((_DEEDS[deed] for deed in task.deeds if deed in _DEEDS), None)
        name = _tool_name(body) if "call" in task.deeds else None
        steps = _called(name, act) if name else _framed(is_chat, [f"w{n} " for n in range(task.words)], act)
        return Reply(steps=_paced(steps, task.pace), before_headers=_after(task.prefill))


def last_text(body: dict[str, Any]) -> str:
    """Return the text of the last message, or the prompt."""
    if "prompt" in body:
        return str(body["prompt"])
    found = body["messages"][-1].get("content") or ""
    return found if isinstance(found, str) else " ".join(part.get("text", "") for part in found)


def _tool_name(body: dict[str, Any]) -> str | None:
    tools = body.get("tools") or []
    return str(tools[0]["function"]["name"]) if tools else None


def _framed(is_chat: bool, words: Sequence[str], act: Step | None) -> list[Step]:
    """Return the frames of an answer; what goes wrong does so after its first half."""
    make = content if is_chat else text
    frames: list[Step] = [*([role()] if is_chat else []), *(make(word) for word in words)]
    if act is not None:
        return [*frames[: len(frames) // 2 + 1], act]
    end = [finish(), usage(10, len(words))] if is_chat else [text_end(10, len(words))]
    return [*frames, *end, done()]


def _called(name: str, act: Step | None) -> list[Step]:
    begun: list[Step] = [role(), tool(0, "a1", name, '{"path":')]
    if act is not None:
        return [*begun, act]
    return [*begun, tool(0, None, None, '"a"}'), finish("tool_calls"), usage(10, 5), done()]


def _paced(steps: Sequence[Step], pace: int) -> Sequence[Step]:
    if not pace:
        return steps
    return [item for number, step in enumerate(steps) for item in _apart(step, number * pace)]


def _apart(step: Step, after: int) -> Iterator[Step]:
    gate = _after(after)
    if gate is not None:
        yield gate
    yield step


def _after(milliseconds: int) -> asyncio.Event | None:
    """Return an event that is set when a time is over, None for no time."""
    if not milliseconds:
        return None
    gate = asyncio.Event()
    asyncio.get_running_loop().call_later(milliseconds / 1000, gate.set)
    return gate


def script(directory: Path, *arguments: str, before: str = "", is_wrapped: bool = False) -> Path:
    """Write a program that runs this as a llama-server.

    Args:
        directory: where it is written.
        arguments: always among its own.
        before: lines of shell that go first.
        is_wrapped: the shell stays, and the server is its child.
    """
    path = directory / "scripted-llama-server"
    run = f'{"" if is_wrapped else "exec "}{sys.executable} {__file__} "$@" {" ".join(arguments)}'
    path.write_text(f"#!/bin/sh\nexport PYTHONPATH={ROOT}\n{before}\n{run}\n")
    path.chmod(0o755)
    return path


async def _run(options: argparse.Namespace) -> None:
    slots = max(options.parallel, 1)
    fake = FakeLlama(
        Script(options.first),
        host=options.host,
        unhealthy=options.unhealthy,
        api_key=os.environ.get("LLAMA_API_KEY"),
        alias=options.alias,
        n_ctx=options.ctx_size // slots,
        slots=slots,
        routes={"/tokenize": {"tokens": [1, 2, 3]}, "/v1/chat/completions/input_tokens": {"input_tokens": 7}},
    )
    asked_to_stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: options.deaf or asked_to_stop.set())
    async with fake:
        print(f"main: server is listening on {options.host}", file=sys.stderr, flush=True)
        await asked_to_stop.wait()


def main() -> int:
    """Run until SIGTERM."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("-m", "--model")
    parser.add_argument("--alias", default="any")
    parser.add_argument("-c", "--ctx-size", type=int, default=4096)
    parser.add_argument("-np", "--parallel", type=int, default=1)
    parser.add_argument("--host", required=True)
    parser.add_argument("--first", default="", help="what the first request gets, whatever it says")
    parser.add_argument("--unhealthy", type=int, default=0, help="how many times /health answers 503 first")
    parser.add_argument("--deaf", action="store_true", help="ignore SIGTERM")
    options, _ = parser.parse_known_args()
    asyncio.run(_run(options))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
