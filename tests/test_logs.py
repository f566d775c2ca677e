"""Log lines: their form, and that no secret gets into one."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from deck import logs
from deck.contracts import ExchangeRecord, Observer

CANARY = "deck-Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFyYmF"
RECORD = ExchangeRecord(
    id="req_1",
    surface="chat",
    model="demo",
    principal="laptop",
    outcome="ok",
    status=200,
    stream=True,
    duration=2.00001,
    queued=0.02,
    first_token=0.3,
    prompt_tokens=100,
    completion_tokens=20,
    cached_tokens=0,
    finish="stop",
    notes=(("ignored", "metadata"), ("changed", "max_tokens")),
)
_LOGGERS = ("", "deck", "uvicorn", "uvicorn.error", "uvicorn.access")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """A stream that everything is logged to; afterwards all loggers are as they were."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(item.level, list(item.handlers), item.propagate, item.disabled) for item in loggers]
    found = io.StringIO()
    logs.configure("info", found)
    yield found
    for item, (level, handlers, propagate, disabled) in zip(loggers, before, strict=True):
        item.setLevel(level)
        item.handlers[:] = handlers
        item.propagate, item.disabled = propagate, disabled


def pairs(line: str) -> dict[str, str]:
    found = re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)', line)
    return {name: json.loads(value) if value.startswith('"') else value for name, value in found}


def test_an_exchange_is_one_line(stream: io.StringIO) -> None:
    log = logs.ExchangeLog()
    assert isinstance(log, Observer)
    log.observe(RECORD)
    line = stream.getvalue()
    assert line.count("\n") == 1
    found = pairs(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found.pop("at"))
    assert found == {
        "level": "info",
        "logger": "deck.exchange",
        "event": "exchange",
        "id": "req_1",
        "surface": "chat",
        "model": "demo",
        "principal": "laptop",
        "outcome": "ok",
        "status": "200",
        "stream": "true",
        "lane": "continuous",
        "duration": "2.0000",
        "queued": "0.0200",
        "first_token": "0.3000",
        "prompt_tokens": "100",
        "completion_tokens": "20",
        "cached_tokens": "0",
        "finish": "stop",
        "notes": "2",
    }


def test_what_is_not_known_of_an_exchange_is_left_out(stream: io.StringIO) -> None:
    logs.ExchangeLog().observe(
        dataclasses.replace(RECORD, model="", principal="", first_token=None, finish=None, lane="")
    )
    found = pairs(stream.getvalue())
    assert not {"model", "principal", "first_token", "finish", "lane"} & set(found)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"id": "req_0123456789abcdef01234567"},
        {"id": f"my {CANARY}", "finish": None, "first_token": None},
        {"id": "req_hunter2canaryhunter2cana", "model": "", "principal": "", "status": 404, "stream": False},
        {"model": "hunter2canary", "prompt_tokens": None, "completion_tokens": None, "cached_tokens": None},
        {"outcome": "client gone", "duration": 0.00004, "queued": 1e-9, "notes": ()},
        {"left_lane": "static"},
        {"replica": "http://a:8080"},
        {"replica": "http://a:8080/hunter2canary", "retries": 2},
        {"surface": "embeddings", "lane": ""},
        {"notes": (("changed", "rescued_call"), ("changed", "rescued_call"), ("changed", "cut_call"))},
    ],
)
def test_an_exchange_is_written_as_any_event_is(changes: dict[str, Any]) -> None:
    record = dataclasses.replace(RECORD, **changes)
    lines = logs.LineFormatter(["hunter2canary"])
    made = {"name": "deck.exchange", "levelname": "INFO", "msg": "exchange", "created": 1.25}
    event = logging.makeLogRecord({**made, "fields": logs.fields_of(record)})
    assert lines.exchange(record, 1.25) == lines.format(event) + "\n"
    assert "canary" not in lines.exchange(record, 1.25)


def test_exchanges_are_gathered_and_written_before_any_other_line(stream: io.StringIO) -> None:
    async def run() -> None:
        logs.ExchangeLog().observe(RECORD)
        logs.ExchangeLog().observe(dataclasses.replace(RECORD, id="req_2"))
        assert stream.getvalue() == ""
        logging.getLogger("deck.test").info("third")
        assert [pairs(line)["event"] for line in stream.getvalue().splitlines()] == ["exchange", "exchange", "third"]
        logs.ExchangeLog().observe(RECORD)
        async with asyncio.timeout(10):
            while stream.getvalue().count("\n") < 4:
                await asyncio.sleep(0)
        for _ in range(1000):
            logs.ExchangeLog().observe(RECORD)
        assert stream.getvalue().count("\n") > 4 + 512, "only so many are held back"

    asyncio.run(run())
    logs.release()
    assert stream.getvalue().count("\n") == 1004


def test_an_exchange_below_the_level_costs_nothing(stream: io.StringIO) -> None:
    logs.configure("warning", stream)
    logs.ExchangeLog().observe(RECORD)
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    "text",
    [
        CANARY,
        f"token {CANARY}.",
        f"Authorization: Bearer {CANARY}",
        "authorization: bearer CANARY-1",
        "BEARER CANARY-1",
        "Basic CANARY-1=",
        "Authorization: CANARY-1",
        "Proxy-Authorization: Token CANARY-1",
        "x-api-key: CANARY-1",
        "X-API-KEY=CANARY-1",
        "api-key: 'CANARY-1'",
        "https://host/path?api_key=CANARY-1&x=1",
        '{"api_key": "CANARY-1"}',
        '{"apikey":"CANARY-1"}',
        '{"password": "CANARY-1"}',
        "access_token=CANARY-1",
        "DECK_TOKEN=CANARY-1",
        repr([(b"authorization", b"Bearer CANARY-1"), (b"x-api-key", b"CANARY-1")]),
        repr({"Authorization": "Bearer CANARY-1", "api-key": "CANARY-1"}),
        "sk-ant-api03-CANARY-1-abcdefgh",
        "sk-proj-CANARY-1abcdefghij",
        "hf_CANARYabcdefghijkl",
    ],
)
def test_whatever_looks_like_a_secret_is_removed(stream: io.StringIO, text: str) -> None:
    log = logging.getLogger("deck.test")
    log.warning("sent %s", text)
    log.warning("sent", extra={"fields": {"header": text}})
    try:
        raise ValueError(text)
    except ValueError:
        log.exception("failed")
    shown = stream.getvalue()
    assert "CANARY" not in shown
    assert CANARY[5:] not in shown
    assert shown.count("[redacted]") >= 3
    assert shown.count("\n") == 3


@pytest.mark.parametrize(
    "text",
    [
        "deck-family-echo is loaded",
        "max_tokens=12, tokens: 4",
        "no valid token: make one with deck token create",
        "api_key_env belongs to url",
        "the monkey: ok",
        "basically fine",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    assert logs.redact(text) == text


def test_a_secret_that_looks_like_nothing_is_removed_if_it_is_named(stream: io.StringIO) -> None:
    logs.configure("info", stream, secrets=["hunter2 canary", ""])
    logging.getLogger("deck.test").info("got hunter2 canary here")
    assert "hunter2" not in stream.getvalue()
    assert "got [redacted] here" in stream.getvalue()


def test_a_client_cannot_write_lines_of_its_own(stream: io.StringIO) -> None:
    logging.getLogger("deck.test").info("no model named %s", "x\nlevel=error event=forged \x1b[31m\u2028")
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert line.isascii()
    assert "\x1b" not in line
    assert pairs(line)["level"] == "info"


def test_an_exception_is_part_of_its_line(stream: io.StringIO) -> None:
    try:
        raise KeyError("gone")
    except KeyError:
        logging.getLogger("deck.test").exception("failed")
    assert stream.getvalue().count("\n") == 1
    assert "KeyError: 'gone'" in pairs(stream.getvalue())["exception"]


def test_uvicorn_writes_the_same_lines_and_no_access_log(stream: io.StringIO) -> None:
    logging.getLogger("uvicorn.error").info("Started server process [%d]", 7)
    logging.getLogger("uvicorn.access").info('127.0.0.1 - "POST /v1/x?key=CANARY HTTP/1.1" 200')
    assert stream.getvalue().count("\n") == 1
    assert pairs(stream.getvalue())["event"] == "Started server process [7]"
    assert "CANARY" not in stream.getvalue()


def test_of_other_libraries_only_warnings_are_logged(stream: io.StringIO) -> None:
    logging.getLogger("httpx").info("HTTP Request: POST http://x")
    assert stream.getvalue() == ""
    logging.getLogger("asyncio").error("Task exception was never retrieved")
    assert pairs(stream.getvalue())["logger"] == "asyncio"


def test_configuring_again_replaces_the_first(stream: io.StringIO) -> None:
    second = io.StringIO()
    logs.configure("debug", second)
    logging.getLogger("deck.test").debug("once")
    assert stream.getvalue() == ""
    assert second.getvalue().count("\n") == 1


def test_what_was_found_in_a_models_text_is_in_the_line(stream: io.StringIO) -> None:
    found = (("changed", "rescued_call"), ("changed", "leaked_thinking"), ("ignored", "metadata"))
    logs.ExchangeLog().observe(dataclasses.replace(RECORD, notes=found))
    logs.ExchangeLog().observe(RECORD)
    first, second = stream.getvalue().splitlines()
    assert (pairs(first)["rescued_call"], pairs(first)["leaked_thinking"]) == ("1", "1")
    assert "rescued" not in pairs(second)
