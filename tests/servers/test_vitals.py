"""Signs of life: of processes of this machine, and of loads that are played."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from deck.servers.vitals import LoadPulse, Vitals, vitals

_LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
_BURNS = "print(flush=True)\nwhile True: pass"
_PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_BURNS!r}])"


def still(**more: float) -> Vitals:
    values: dict[str, float] = {"cpu": 1.0, "resident": 1 << 20, "transferred": 0, **more}
    return Vitals(cpu=values["cpu"], resident=int(values["resident"]), transferred=int(values["transferred"]))


@_LINUX
@pytest.mark.parametrize("code", [_BURNS, _PARENT], ids=["itself", "its child"])
def test_what_a_process_or_its_child_burns_is_seen(code: str) -> None:
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            first = vitals(child.pid)
            assert first is not None
            assert first.resident > 1 << 20
            deadline = time.monotonic() + 20
            while True:
                now = vitals(child.pid)
                assert now is not None
                if now.cpu > first.cpu + 0.1:
                    break
                assert time.monotonic() < deadline
        finally:
            os.killpg(child.pid, 9)


@_LINUX
def test_a_stopped_process_takes_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        os.kill(child.pid, 19)
        before = vitals(child.pid)
        assert vitals(child.pid) == before
        child.kill()
    assert vitals(child.pid) is None


@pytest.mark.parametrize(
    ("seen", "written", "is_alive"),
    [
        (still(), 0, False),
        (still(cpu=1.01), 0, False),  # what the answers to `/health` take
        (still(cpu=1.05), 0, True),
        (still(resident=(1 << 20) + 4096), 0, False),
        (still(resident=2 << 20), 0, True),
        (still(transferred=8192), 0, True),
        (still(), 1, True),
        (None, 0, True),
    ],
)
def test_a_sign_of_life_begins_the_count_anew(seen: Vitals | None, written: int, is_alive: bool) -> None:
    pulse = LoadPulse(0.0)
    assert pulse.silent(1.0, still(), 0) == 0
    assert pulse.silent(2.0, seen, written) == (0.0 if is_alive else 1.0)


def test_silence_adds_up() -> None:
    pulse = LoadPulse(0.0)
    assert [pulse.silent(float(now), still(), 7) for now in (1, 2, 3, 9)] == [0, 1, 2, 8]


def test_a_time_in_which_nobody_looked_does_not_count() -> None:
    pulse = LoadPulse(0.0)
    assert [pulse.silent(float(now), still(), 7) for now in (1, 2, 500, 501)] == [0, 1, 0, 1]


def test_where_nothing_can_be_seen_no_load_is_still() -> None:
    pulse = LoadPulse(0.0)
    assert [pulse.silent(float(now), None, 7) for now in (1, 100, 1000)] == [0, 0, 0]
