"""A broken connection in words: no name of an exception, no address."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import httpx
import pytest
from app_support import BODY, app

from deck.testing.fake_llama import say
from deck.upstream.breaks import told_break

CUT = "broke off: it closed the connection in the middle of its answer"
SILENT = "broke off: it closed the connection without an answer"


def caused(exc: httpx.HTTPError, cause: BaseException) -> httpx.HTTPError:
    exc.__cause__ = cause
    return exc


@pytest.mark.parametrize(
    ("exc", "words"),
    [
        (
            httpx.RemoteProtocolError("peer closed connection without sending complete message body (no last chunk)"),
            CUT,
        ),
        (httpx.RemoteProtocolError("peer closed connection inside the response head"), CUT),
        (httpx.RemoteProtocolError("server disconnected without sending a response"), SILENT),
        (httpx.RemoteProtocolError("the server closed the connection before the request was sent"), SILENT),
        (httpx.RemoteProtocolError("bad chunk"), "broke off: it sent no good HTTP: bad chunk"),
        (httpx.ReadError("the connection broke: [Errno 104]"), "broke off: the connection to it broke"),
        (httpx.WriteError("x"), "broke off: it closed the connection while it was being asked"),
        (httpx.ConnectTimeout("no connection to '/run/x.sock' within 5 s"), "cannot be connected to in time"),
        (httpx.ConnectError("the transport is closed"), "cannot be connected to"),
        (
            caused(httpx.ConnectError("cannot connect to '/run/x.sock'"), FileNotFoundError(2, "No such file")),
            "cannot be connected to: No such file or directory",
        ),
        (
            caused(httpx.ConnectError("x"), OSError(111, "Connect call failed ('10.0.0.1', 80)")),
            "cannot be connected to: Connection refused",
        ),
        (
            caused(httpx.ConnectError("x"), socket.gaierror(-2, "Name or service not known")),
            "cannot be connected to: Name or service not known",
        ),
        (
            caused(httpx.ConnectError("x"), ssl.SSLError(1, "certificate verify failed")),
            "cannot be connected to: certificate verify failed",
        ),
        (httpx.LocalProtocolError("the host is not ASCII"), "could not be asked: the host is not ASCII"),
    ],
    ids=lambda item: item if isinstance(item, str) else type(item).__name__,
)
def test_it_is_told_in_words(exc: httpx.HTTPError, words: str) -> None:
    assert told_break(exc) == words


def test_where_a_server_is_that_broke_stands_in_the_log_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A client learns what happened; its operator also where."""
    with app(tmp_path, lambda received: say("Hello")) as deck:
        assert deck.chat(json=BODY).status_code == 200
        url = deck.fake.url
        deck.runner.run(deck.fake.stop())
        answer = deck.chat(json=BODY)
        assert answer.status_code == 503
        assert str(deck.fake.port) not in answer.text
        assert f"model m1: the llama-server at {url} cannot be connected to: " in caplog.text
