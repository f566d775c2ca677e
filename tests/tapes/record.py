"""Record a tape from a running llama-server, or write the events of tapes that have bytes.

    python tests/tapes/record.py --url http://127.0.0.1:8080 --name plain-text --request request.json
    python tests/tapes/record.py --events [name ...]

The events are what the decoder makes of the bytes today: read them before you keep them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
sys.path[:0] = [str(ROOT.parent), str(ROOT.parents[1])]

from tapes.tapefile import line_of, load, play  # noqa: E402 - a script finds its tree by itself


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="where llama-server listens")
    parser.add_argument("--name", help="the new tape's directory")
    parser.add_argument("--request", type=argparse.FileType("rb"), help="request as JSON; `stream` is set for you")
    parser.add_argument("--raw", action="store_true", help="the request is a raw prompt")
    parser.add_argument("--note", default="", help="what the tape shows")
    parser.add_argument("--events", nargs="*", metavar="NAME", help="write events.jsonl of these tapes, or of all")
    options = parser.parse_args(argv)
    if options.events is None and not (options.url and options.name and options.request):
        parser.error("give --url, --name and --request, or --events")
    if options.url:
        record(options.url, options.name, json.load(options.request), options.note, raw=options.raw)
    names = options.events or ([options.name] if options.name else [path.parent.name for path in _recorded()])
    for name in names:
        write_events(ROOT / name)
    return 0


def record(url: str, name: str, request: dict[str, Any], note: str, *, raw: bool = False) -> None:
    """Write the bytes of one answer and where they came from."""
    request = {**request, "stream": True, "stream_options": {"include_usage": True}}
    data = _fetch(f"{url}/v1/{'completions' if raw else 'chat/completions'}", request)
    props = json.loads(_fetch(f"{url}/props"))
    folder = ROOT / name
    folder.mkdir(exist_ok=True)
    (folder / "upstream.sse").write_bytes(data)
    today = datetime.datetime.now(tz=datetime.UTC).date()
    origin = f"recorded from llama-server {props['build_info']}, model {props['model_alias']}, {today}"
    lines = [
        f"origin = {json.dumps(origin)}",
        f"note = {json.dumps(note)}",
        f"request = {json.dumps(json.dumps(request))}",
        *(["raw = true"] if raw else []),
    ]
    (folder / "meta.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_events(folder: Path) -> None:
    """Write what the decoder makes of the bytes."""
    tape = load(folder)
    lines = [line_of(event) for event in play(tape.decoder(), [tape.data])]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _recorded() -> list[Path]:
    return sorted(ROOT.glob("*/upstream.sse"))


def _fetch(url: str, body: dict[str, Any] | None = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        read: bytes = reply.read()
    return read


if __name__ == "__main__":
    raise SystemExit(main())
