#!/usr/bin/env python3
"""How long Deck takes from its start to the first accepted request, and what it weighs idle."""

from __future__ import annotations

import contextlib
import http.client
import statistics
import sys
import time

from gateways import HERE, Bench, Gateway, polls, read_gateways
from processes import memory

_BODY = b'{"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}'
_RUNS = 5


def main() -> int:
    """Start Deck some times and print medians; return the exit status."""
    starts, sizes = [], []
    with Bench(is_pinned=False) as bench:
        bench.upstream()
        for _ in range(_RUNS):
            (deck,) = read_gateways(HERE / "gateways.json", ["deck"])
            began = time.monotonic()
            bench.start(deck)
            if not _is_served(deck):
                print("Deck did not answer", file=sys.stderr)
                return 1
            starts.append(time.monotonic() - began)
            assert deck.process is not None
            time.sleep(0.5)
            sizes.append((memory(deck.process.pid, "Rss"), memory(deck.process.pid)))
            deck.process.terminate()
            deck.process.wait(10)
    print(f"start to first answer: {statistics.median(starts):.2f} s (median of {_RUNS}; worst {max(starts):.2f} s)")
    print(f"idle: RSS {max(rss for rss, _ in sizes):.0f} MB, PSS {max(pss for _, pss in sizes):.0f} MB")
    return 0


def _is_served(gateway: Gateway) -> bool:
    """Return true once a chat request was answered with 200."""
    headers = dict(line.split(": ", 1) for line in gateway.headers) | {"Content-Type": "application/json"}
    for _ in polls(30, 0.005):
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=5)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("POST", "/v1/chat/completions", _BODY, headers)
            if connection.getresponse().status == 200:
                return True
    return False


if __name__ == "__main__":
    sys.exit(main())
