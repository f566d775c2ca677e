"""A probe's result in the profile's file, and what it does there."""

from __future__ import annotations

import datetime
import io
import os
import stat
import tomllib
from pathlib import Path

import pytest
from probe_support import only
from rich.console import Console

from deck.loading import StartError
from deck.probe import Finding, Value
from deck.probe_result import Result, show, with_measured, write
from deck.profile import ProfileError, load_profile

MINE = """\
# mine
id = "m"          # the name

[capabilities]
# I know better.
tools = false

# The makers say so.
[defaults]
temperature = 1.0
[server]   # where
url = "http://127.0.0.1:9"
"""
DAY = datetime.date(2026, 11, 30)


def result(path: Path, *values: tuple[str, Value], build: str | None = "b1", at: datetime.date = DAY) -> Result:
    findings = [
        Finding(measure=only(name)[0], value=value, remark="because [it] did", seconds=1.23) for name, value in values
    ]
    return Result(profile=load_profile(path, {}), family="generic", build=build, at=at, findings=findings)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m.toml"
    path.write_text(MINE, encoding="utf-8")
    return path


def test_every_line_of_the_owner_stays(file: Path) -> None:
    assert write(result(file, ("text", True), ("tools", None), ("context", 4096), ("speed", 12.5))) == file
    text = file.read_text(encoding="utf-8")
    assert text.startswith(MINE)
    table = tomllib.loads(text.removeprefix(MINE))["capabilities"]["measured"]
    assert table == {
        "at": DAY,
        "of": "http://127.0.0.1:9",
        "build": "b1",
        "text": True,
        "context": 4096,
        "speed": 12.5,
    }


def test_a_name_outside_the_first_plane_of_unicode_is_toml(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text('id = "m"\n[server]\nmodel = "m\N{GRINNING FACE}.gguf"\n', encoding="utf-8")
    write(result(path, ("text", True)))
    assert (
        tomllib.loads(path.read_text(encoding="utf-8"))["capabilities"]["measured"]["of"] == "m\N{GRINNING FACE}.gguf"
    )


def test_a_second_result_replaces_the_first_whole(file: Path) -> None:
    write(result(file, ("text", True), ("vision", True)))
    write(result(file, ("text", False), build=None, at=datetime.date(2027, 1, 2)))
    text = file.read_text(encoding="utf-8")
    assert text.startswith(MINE)
    assert text.count("Written by `deck probe`") == 1
    assert tomllib.loads(text)["capabilities"]["measured"] == {
        "at": datetime.date(2027, 1, 2),
        "of": "http://127.0.0.1:9",
        "text": False,
    }
    once = text
    write(result(file, ("text", False), build=None, at=datetime.date(2027, 1, 2)))
    assert file.read_text(encoding="utf-8") == once


def test_what_stands_behind_the_table_and_remarks_in_it_stay(file: Path) -> None:
    write(result(file, ("text", True)))
    more = "# tried at night\n\n# mine too\n[force]\ntop_k = 3\n"
    file.write_text(file.read_text(encoding="utf-8") + more, encoding="utf-8")
    write(result(file, ("tools", True)))
    text = file.read_text(encoding="utf-8")
    assert "# tried at night\n# mine too\n[force]\ntop_k = 3\n" in text
    assert load_profile(file).force == {"top_k": 3}
    assert load_profile(file).can("tools") is False


@pytest.mark.parametrize("table", ["capabilities = { tools = true }\n", "[capabilities]\nmeasured = {}\n"])
def test_a_table_that_cannot_take_more_is_left_and_the_text_is_handed_out(tmp_path: Path, table: str) -> None:
    file = tmp_path / "m.toml"
    server = '[server]\nurl = "http://127.0.0.1:9"\n'
    good = 'id = "m"\n' + (table + server if table.startswith("c") else server)
    file.write_text(good, encoding="utf-8")
    made = result(file, ("text", True))
    before = 'id = "m"\n' + (table + server if table.startswith("c") else server + table)
    file.write_text(before, encoding="utf-8")
    with pytest.raises(StartError, match=r"cannot be edited safely.*\n.*\n\[capabilities.measured\]\nat = 2026-11-30"):
        write(made)
    assert file.read_text(encoding="utf-8") == before


@pytest.mark.parametrize("start", ["\ufeff", ""], ids=["mark", "none"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_line_ends_and_a_byte_order_mark_stay(tmp_path: Path, start: str, end: str) -> None:
    file = tmp_path / "m.toml"
    before = (start + MINE.replace("\n", end)).encode()
    file.write_bytes(before)
    write(result(file, ("text", True)))
    after = file.read_bytes()
    assert after.startswith(before)
    assert after.count(b"\n") == after.count(end.encode())
    assert load_profile(file).measured is not None


def test_dotted_keys_and_strings_that_look_like_tables(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    lines = [
        'id = "m"',
        "capabilities.vision = true",
        "[server]",
        'hf = "o/r"',
        'args = ["""',
        "[capabilities.x]",
        '"""]',
    ]
    before = "\n".join(lines) + "\n"
    file.write_text(before, encoding="utf-8")
    write(result(file, ("text", True)))
    assert file.read_text(encoding="utf-8").startswith(before)
    profile = load_profile(file)
    assert (profile.can("vision"), profile.server.args) == (True, ("[capabilities.x]\n",))


def test_mode_and_link_stay_and_nothing_is_left_beside(file: Path, tmp_path: Path) -> None:
    file.chmod(0o640)
    link = tmp_path / "linked" / "l.toml"
    link.parent.mkdir()
    link.symlink_to(file)
    write(result(link, ("text", True)))
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert "measured" in file.read_text(encoding="utf-8")
    assert sorted(os.listdir(tmp_path)) == ["linked", "m.toml"]
    assert os.listdir(link.parent) == ["l.toml"]


def test_a_file_that_is_gone_is_named_and_the_text_handed_out(file: Path) -> None:
    made = result(file, ("text", True))
    file.unlink()
    with pytest.raises(StartError, match=r"m\.toml cannot be written: No such file.*\n.*\n\[capabilities.measured\]"):
        write(made)


def test_the_text_of_a_profile_without_capabilities() -> None:
    assert with_measured('id = "m"\n', "[capabilities.measured]\n") == 'id = "m"\n\n[capabilities.measured]\n'


class TestEffect:
    def profile(self, tmp: Path, text: str, of: str = "o/r:q4") -> Path:
        path = tmp / "p.toml"
        table = f'[capabilities.measured]\nat = 2026-11-30\nof = "{of}"\n'
        path.write_text(f'id = "p"\n[server]\nhf = "o/r:q4"\n{table}{text}', encoding="utf-8")
        return path

    def test_measured_counts_where_nothing_is_declared(self, tmp_path: Path) -> None:
        path = self.profile(tmp_path, "tools = false\nvision = true\n[capabilities]\nvision = false\n")
        profile = load_profile(path)
        assert (profile.can("tools"), profile.can("vision"), profile.can("audio")) == (False, False, None)

    def test_what_was_measured_of_another_model_counts_no_more(self, tmp_path: Path) -> None:
        profile = load_profile(self.profile(tmp_path, "tools = false\n", of="o/r:q8"))
        assert profile.can("tools") is None
        assert profile.measured is None

    @pytest.mark.parametrize("text", ["tools = 1\n", "tolls = true\n", "context = 0\n", "speed = -1.0\n"])
    def test_a_wrong_key_or_value_is_an_error(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(ProfileError, match=r"p\.toml: capabilities\.measured\."):
            load_profile(self.profile(tmp_path, text))

    @pytest.mark.parametrize(
        ("server", "serves"),
        [('model = "sub/x.gguf"', "x.gguf"), ('hf = "o/r"', "o/r"), ('url = "http://h:1/p"', "http://h:1/p")],
    )
    def test_what_a_profile_serves(self, tmp_path: Path, server: str, serves: str) -> None:
        path = tmp_path / "p.toml"
        path.write_text(f'id = "p"\n[server]\n{server}\n', encoding="utf-8")
        assert load_profile(path).serves == serves


def test_the_table_shows_each_finding(file: Path) -> None:
    out = io.StringIO()
    values: tuple[tuple[str, Value], ...] = (("text", True), ("tools", False), ("audio", None), ("speed", 12.5))
    show(result(file, *values), Console(file=out, width=120))
    rows = {line.split("│")[1].strip(): line for line in out.getvalue().splitlines() if "│" in line}
    assert [rows[title].split("│")[2].strip() for title in ("answers in text", "calls a tool", "audio")] == [
        "yes",
        "no",
        "?",
    ]
    assert "12.5" in rows["writes, tokens a second"]
    assert "because [it] did" in rows["audio"], "remarks are no markup"
    assert "2026-11-30" in out.getvalue().splitlines()[0]
