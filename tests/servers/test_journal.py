"""What a server printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from deck.servers.journal import Journal, telling_line


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_any_slicing_keeps_the_same_lines(step: int, tmp_path: Path) -> None:
    printed = b"one\ntwo secret-key\r\n\nthree \xff\nfour"
    journal = Journal(tmp_path / "x.log", keep=3, secret="secret-key")
    for start in range(0, len(printed), step):
        journal.write(printed[start : start + step])
    journal.close()
    assert journal.tail == ("two [key]", "three �", "four")
    assert (tmp_path / "x.log").read_bytes() == b"one\ntwo [key]\n\nthree \xff\nfour\n"


def test_the_file_is_rotated_by_size_and_private(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "x.log", keep=1, file_bytes=100)
    for number in range(100):
        journal.write(b"%09d\n" % number)
    journal.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["x.log", "x.log.1", "x.log.2"]
    assert all(path.stat().st_size <= 120 for path in tmp_path.iterdir())
    assert (tmp_path / "x.log").read_text(encoding="utf-8").endswith("000000099\n")
    assert (tmp_path / "x.log").stat().st_mode & 0o077 == 0


def test_an_endless_line_takes_no_memory(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "x.log", keep=2)
    for _ in range(100):
        journal.write(b"x" * 1000)
    journal.close()
    assert sum(map(len, journal.tail)) <= 2 * 4096


@pytest.mark.parametrize("at", [*range(4096 - 45, 4096 + 2), 2 * 4096 - 20])
@pytest.mark.parametrize("step", [1000, 1 << 20])
def test_a_secret_in_a_long_line_is_kept_nowhere(tmp_path: Path, at: int, step: int) -> None:
    secret = "".join(chr(65 + number % 26) for number in range(43))
    printed = b"." * at + secret.encode() + b"-" * 5000
    journal = Journal(tmp_path / "x.log", keep=20, secret=secret)
    for start in range(0, len(printed), step):
        journal.write(printed[start : start + step])
    journal.close()
    kept = [journal.path.read_text(encoding="utf-8").replace("\n", ""), "".join(journal.tail)]
    assert kept == ["." * at + "[key]" + "-" * 5000] * 2


def test_a_file_that_cannot_be_written_loses_no_line_in_memory(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "missing" / "x.log", keep=2)
    journal.write(b"said\n")
    journal.close()
    assert journal.tail == ("said",)


def test_a_new_file_that_cannot_be_made_loses_no_line_in_memory(tmp_path: Path) -> None:
    directory = tmp_path / "logs"
    directory.mkdir()
    journal = Journal(directory / "x.log", keep=3, file_bytes=10)
    journal.write(b"longer than a file may be\n")
    directory.rename(tmp_path / "away")
    journal.write(b"said\nand said\n")
    journal.close()
    assert journal.tail == ("longer than a file may be", "said", "and said")


LOAD = (
    "0.00.010.000 I srv    load_model: loading model 'm.gguf'",
    "0.00.012.000 E llama_model_load: error loading model: unknown model architecture: 'xyz'",
    "0.00.012.100 E llama_model_load_from_file_impl: failed to load model",
    "0.00.013.000 I srv  operator(): cleaning up before exit...",
    "0.00.014.000 E main: exiting due to model loading error",
)


@pytest.mark.parametrize(
    ("lines", "telling"),
    [
        (LOAD, "llama_model_load: error loading model: unknown model architecture: 'xyz'"),
        (("warn", "error: invalid argument: --foo", "usage:"), "error: invalid argument: --foo"),
        (("started", "went away"), "went away"),
        ((), None),
    ],
)
def test_the_line_that_tells_most_is_found(lines: tuple[str, ...], telling: str | None) -> None:
    assert telling_line(lines) == telling
