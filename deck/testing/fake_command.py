"""The fake llama-server as a process, as a supervisor would run llama-server: its command line."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from deck.testing.fake_llama import CHAT, Act, FakeLlama, Reply, say, say_text

_PIECE = 4000


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a process, as a supervisor would run llama-server; flags that it does not know are ignored."""
    parser = argparse.ArgumentParser(prog="python -m deck.testing.fake_llama", allow_abbrev=False)
    parser.add_argument("-m", "--model", default="fake.gguf")
    parser.add_argument("-a", "--alias")
    parser.add_argument("-c", "--ctx-size", type=int, default=4096)
    parser.add_argument("-np", "--parallel", type=int, default=1)
    parser.add_argument("--host", default="127.0.0.1", help="an address, or a path that ends in .sock")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--api-key", default=os.environ.get("LLAMA_API_KEY"))
    parser.add_argument("--fake-text", default="Hello from nobody .", help="its words are the deltas of every answer")
    parser.add_argument("--fake-long", type=int, default=0, help="bytes of every answer, instead of its text")
    parser.add_argument("--fake-unhealthy", type=int, default=0, help="how many times /health answers 503 first")
    parser.add_argument("--fake-exit", type=int, help="fail as a load does: say so and exit with this code")
    parser.add_argument("--fake-says", help="what it prints first")
    parser.add_argument("--fake-crash", action="store_true", help="crash in the middle of the first answer")
    parser.add_argument("--fake-poison", help="crash when a request holds this")
    parser.add_argument("--fake-shy", action="store_true", help="crash when it is asked what it is")
    parser.add_argument("--fake-stall", action="store_true", help="never end an answer")
    parser.add_argument("--fake-dots", action="store_true", help="print a dot each time that /health answers 503")
    parser.add_argument("--fake-busy", action="store_true", help="take processor time all the while")
    parser.add_argument("--fake-heir", type=int, help="leave a process that holds its output open for so many seconds")
    parser.add_argument("--fake-deaf", action="store_true", help="ignore SIGTERM")
    options, _ = parser.parse_known_args(argv)
    if options.fake_says is not None:
        print(options.fake_says, file=sys.stderr, flush=True)
    if options.fake_heir is not None:
        script = f"import time; time.sleep({options.fake_heir})"
        subprocess.Popen([sys.executable, "-S", "-c", script], start_new_session=True)
    if options.fake_exit is not None:
        print(
            f"failed to load model '{options.model}'\nexiting due to model loading error", file=sys.stderr, flush=True
        )
        return int(options.fake_exit)
    asyncio.run(_run(options))
    return 0


def _burn() -> None:
    while True:
        sum(range(1000))


async def _run(options: argparse.Namespace) -> None:
    pieces = ["x" * _PIECE] * (options.fake_long // _PIECE) or [f"{word} " for word in options.fake_text.split()]
    reply, plain = say(*pieces), say_text(*pieces)
    if options.fake_crash or options.fake_stall:
        act = Act.EXIT if options.fake_crash else Act.STALL
        reply = Reply(steps=(*reply.steps[:2], act))
        plain = Reply(steps=(*plain.steps[:1], act))
    fake = FakeLlama(
        lambda request: reply if request.path == CHAT else plain,
        host=options.host,
        port=options.port,
        unhealthy=options.fake_unhealthy,
        api_key=options.api_key,
        alias=options.alias or Path(options.model).stem,
        n_ctx=options.ctx_size // max(options.parallel, 1),
        slots=max(options.parallel, 1),
        has_dots=options.fake_dots,
        poison=options.fake_poison.encode() if options.fake_poison else None,
        routes={
            "/tokenize": lambda request: {"tokens": list(range(len(request.json()["content"].split())))},
            **({"/props": Reply(steps=[Act.EXIT])} if options.fake_shy else {}),
        },
    )
    if options.fake_busy:
        threading.Thread(target=_burn, daemon=True).start()
    asked_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, (lambda: None) if options.fake_deaf else asked_to_stop.set)
    loop.add_signal_handler(signal.SIGINT, asked_to_stop.set)
    async with fake:
        where = fake.socket or fake.url
        print(f"main: model loaded\nmain: server is listening on {where}", file=sys.stderr, flush=True)
        await asked_to_stop.wait()
