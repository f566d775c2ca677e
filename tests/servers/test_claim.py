"""Whose sockets are whose, and what a dead Deck left."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deck.servers.claim import Claim
from deck.servers.place import make_place

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs UNIX sockets and locks")

_LEAVES = """
import socket, sys
from pathlib import Path
from deck.servers.claim import Claim
claim = Claim(Path(sys.argv[1]))
for place in (claim.directory / claim.socket_name("any"), claim.temporary() / "x.sock"):
    socket.socket(socket.AF_UNIX).bind(str(place))
    print(place, flush=True)
sys.stdin.readline()
"""


def bound(path: Path) -> socket.socket:
    found = socket.socket(socket.AF_UNIX)
    found.bind(str(path))
    return found


def left_by(state: Path, *, is_alive: bool) -> tuple[subprocess.Popen[str], list[Path]]:
    """Return a process that claims a state directory and has made its files there."""
    root = Path(__file__).parents[2]
    child = subprocess.Popen(
        [sys.executable, "-c", _LEAVES, str(state)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert child.stdout is not None
    places = [Path(child.stdout.readline().strip()) for _ in range(2)]
    if not is_alive:
        end(child)
    return child, places


def end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait(10)
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()


def test_what_a_killed_deck_left_is_removed_of_any_model(tmp_path: Path) -> None:
    _, places = left_by(tmp_path, is_alive=False)
    assert all(place.exists() for place in places)
    claim = Claim(tmp_path)
    assert claim.sweep() == 4
    assert not any(place.exists() for place in places)
    assert not places[1].parent.exists()
    assert [path.name for path in claim.directory.iterdir()] == [f"{claim.id}.lock"]
    claim.release()
    assert list(claim.directory.iterdir()) == []


def test_what_a_running_deck_holds_is_left_alone_and_it_is_told_of(tmp_path: Path) -> None:
    """Though nobody listens on its sockets yet."""
    child, places = left_by(tmp_path, is_alive=True)
    try:
        claim = Claim(tmp_path)
        assert claim.others() == [child.pid]
        assert claim.sweep() == 0
        assert all(place.exists() for place in places)
        claim.release()
    finally:
        end(child)


def test_a_socket_without_an_owner_goes_if_nobody_listens(tmp_path: Path) -> None:
    claim = Claim(tmp_path)
    deserted = bound(claim.directory / "old-00000000.sock")
    deserted.close()
    with bound(claim.directory / "other-00000000.sock") as living:
        living.listen()
        assert claim.sweep() == 1
        assert (claim.directory / "other-00000000.sock").exists()
    claim.release()


def test_a_directory_that_no_deck_can_have_made_is_never_removed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "x.sock").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "0123abcd.lock").write_bytes(f"1\n{precious}\n/\n".encode())
    claim = Claim(tmp_path)
    assert claim.sweep() == 1
    assert (precious / "x.sock").exists()
    claim.release()


def test_a_place_is_named_by_its_owner(tmp_path: Path) -> None:
    claim = Claim(tmp_path)
    place = make_place("m/x", tmp_path, claim)
    assert place.address.uds is not None
    assert f"-{claim.id}" in place.address.uds
    long = tmp_path / ("x" * 90)
    far = Claim(long)
    place = make_place("m", long, far)
    assert place.address.uds is not None
    assert f"deck-{far.id}-" in place.address.uds
    bound(Path(place.address.uds)).close()
    place.release()
    assert not Path(place.address.uds).parent.exists()
    for each in (claim, far):
        each.release()


def test_a_lock_is_not_inherited(tmp_path: Path) -> None:
    """Or a llama-server that outlives its Deck would hold it."""
    claim = Claim(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False) as child:
        claim._file.close()  # type: ignore[union-attr]  # as the end of the process would
        other = Claim(tmp_path)
        # The child gives up what it inherited a moment after it has begun to run.
        deadline = time.monotonic() + 20
        while other.others():
            assert time.monotonic() < deadline
        other.release()
        assert child.poll() is None
        child.kill()


def test_a_lock_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(path: Path, other: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OSError, match="No space"):
        Claim(tmp_path)
    assert list((tmp_path / "run").iterdir()) == []


def test_a_lock_without_its_name_goes_once_nobody_can_be_making_it(tmp_path: Path) -> None:
    claim = Claim(tmp_path)
    old, new, held = (claim.directory / f"{name}.new" for name in ("old", "new", "held"))
    for path in (old, new, held):
        path.touch()
    for path in (old, held):
        os.utime(path, (1, 1))
    with held.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert claim.sweep() == 1
    assert sorted(claim.directory.glob("*.new")) == [held, new]
    claim.release()
