"""Whose a port is."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from deck.servers.listener import listens

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
_GRANDCHILD = """
import socket, subprocess, sys
held = socket.socket(); held.bind(("127.0.0.1", 0)); held.listen(); held.set_inheritable(True)
print(held.getsockname()[1], flush=True)
inner = subprocess.Popen([sys.executable, "-c", "input()"], close_fds=False)
held.close()
inner.wait()
"""


@pytest.mark.parametrize(("family", "host"), [("AF_INET", "127.0.0.1"), ("AF_INET", "0.0.0.0"), ("AF_INET6", "::")])
def test_ones_own_port_is_told_from_a_strangers(family: str, host: str) -> None:
    with socket.socket(getattr(socket, family)) as own:
        try:
            own.bind((host, 0))
        except OSError:
            pytest.skip("no such address here")
        port = own.getsockname()[1]
        assert listens(port, os.getpgrp()) is False, "bound is not listening"
        own.listen()
        assert listens(port, os.getpgrp()) is True
        with subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
        ) as stranger:
            assert listens(port, stranger.pid) is False
            stranger.communicate(b"\n")


def test_what_a_program_started_may_listen_for_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _GRANDCHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as outer:
        assert outer.stdout is not None
        port = int(outer.stdout.readline())
        assert listens(port, outer.pid) is True
        outer.communicate(b"\n")
    assert listens(port, outer.pid) is False
