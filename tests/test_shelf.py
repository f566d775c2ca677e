"""The profiles that come with Deck: sound, sourced, and nobody's until somebody enables them."""

from __future__ import annotations

import io
import tomllib
from pathlib import Path
from typing import Any

import pytest

from deck import cli, loading
from deck.catalog import Catalog, shelf, shipped_dir
from deck.config import Config, load_config
from deck.loading import profile_fault
from deck.plugins import Plugins
from deck.profile import Profile, load_profile
from deck.servers.command import setting_faults

SHELF = shipped_dir() / "models"
FILES = sorted(SHELF.glob("*.toml"))
PLUGINS = Plugins(Config())
BROKEN = 'id = "m"\n[server]\nhf = "org/repo"\nargs = ["--port", "1"]\n[defaults]\ntemprature = 1\n'


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for an operator's profiles, not yet made; nothing else is set."""
    for name in ("DECK_CONFIG", "DECK_PROFILES", "DECK_STATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "profiles"


@pytest.fixture
def generic_shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shelf of one model of a family that is always there."""
    shipped = tmp_path / "shipped"
    (shipped / "models").mkdir(parents=True)
    text = '# why\nid = "m1"\nfamily = "generic"\naliases = ["one"]\n[server]\nhf = "org/repo:q4"\nctx_size = 4096\n'
    (shipped / "models" / "m1.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(loading, "shipped_dir", lambda: shipped)
    return shipped


def test_a_fresh_install_serves_the_demo_model_alone(operator: Path) -> None:
    _, catalog = loading.load(load_config(None, {}, {"state": operator}))
    assert [profile.id for profile in catalog.profiles] == ["tiny-chat"]


def test_there_are_enough_and_all_of_them_fit_beside_each_other() -> None:
    assert len(FILES) >= 22
    assert len(Catalog.load([shipped_dir(), SHELF]).profiles) == len(FILES) + 1
    assert {profile.id for profile in shelf(shipped_dir()).profiles} == {path.stem for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
class TestEach:
    def profile(self, path: Path) -> Profile:
        return load_profile(path, {})

    def test_it_would_start_but_for_the_download(self, path: Path) -> None:
        profile = self.profile(path)
        if profile.family not in PLUGINS.families and set(PLUGINS.families) == {"generic"}:
            profile = profile.model_copy(update={"family": "generic"})
        assert profile_fault(profile, PLUGINS) is None
        assert setting_faults(profile) == []

    def test_its_family_is_there(self, path: Path) -> None:
        if set(PLUGINS.families) == {"generic"}:
            pytest.skip("no family but the generic one is installed")
        assert self.profile(path).family in PLUGINS.families

    def test_it_names_where_the_model_and_its_facts_come_from(self, path: Path) -> None:
        profile, text = self.profile(path), path.read_text(encoding="utf-8")
        assert profile.server.hf is not None
        assert profile.family is not None
        assert profile.description is not None
        assert "https://" in "\n".join(text.splitlines()[:3])
        for table in ("capabilities", "defaults"):
            before, found, _ = text.partition(f"[{table}]\n")
            assert not found or before.splitlines()[-1].startswith("# "), f"[{table}] says not by whom"
        assert max(len(line) for line in text.splitlines()) <= 120

    def test_it_takes_no_name_of_a_vendor(self, path: Path) -> None:
        assert [name for name in self.profile(path).aliases if name.startswith(("claude", "gpt", "o1", "o3"))] == []

    def test_a_slot_has_room_for_a_coding_agent_or_is_all_the_model_has(self, path: Path) -> None:
        server = self.profile(path).server
        assert server.ctx_size is not None
        text = path.read_text(encoding="utf-8")
        assert server.ctx_size // server.parallel >= 32768 or "# All that the model knows" in text


def test_available_shows_each_and_which_are_enabled(
    operator: Path, generic_shelf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["profiles", "available"]) == 0
    assert capsys.readouterr().out == "m1  org/repo:q4  4096 tokens\n"
    assert cli.main(["profiles", "enable", "m1", "--profiles", str(operator)]) == 0
    capsys.readouterr()
    assert cli.main(["profiles", "--profiles", str(operator), "available"]) == 0
    assert "(enabled)" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["m1", "one"])
def test_enable_copies_the_file_whole_and_it_is_served(
    operator: Path, generic_shelf: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert cli.main(["profiles", "enable", name, "--profiles", str(operator)]) == 0
    shown = capsys.readouterr().out
    assert f"m1: {operator}/m1.toml" in shown
    assert f"--profiles {operator}" in shown
    assert (operator / "m1.toml").read_text() == (generic_shelf / "models" / "m1.toml").read_text()
    assert cli.main(["profiles", "--profiles", str(operator)]) == 0
    assert "m1  [chat]  family generic" in capsys.readouterr().out


def test_a_full_disk_leaves_no_half_of_a_profile(
    operator: Path, generic_shelf: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    opened = Path.open

    def open_(self: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        file = opened(self, mode, *args, **options)
        if mode == "x":
            file.close()
            return Full()
        return file

    monkeypatch.setattr(Path, "open", open_)
    assert cli.main(["profiles", "enable", "m1", "--profiles", str(operator)]) == 1
    assert "cannot be written: No space left on device" in capsys.readouterr().err
    assert list(operator.iterdir()) == []


def test_a_model_is_enabled_once(operator: Path, generic_shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    operator.mkdir()
    mine = 'id = "m1"\n[server]\nurl = "http://127.0.0.1:9"\n'
    (operator / "other.toml").write_text(mine, encoding="utf-8")
    assert cli.main(["profiles", "enable", "m1", "--profiles", str(operator)]) == 1
    assert "is enabled already" in capsys.readouterr().err
    assert [path.name for path in operator.iterdir()] == ["other.toml"]


def test_what_does_not_fit_beside_the_others_leaves_nothing(
    operator: Path, generic_shelf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    operator.mkdir()
    mine = 'id = "mine"\naliases = ["one"]\n[server]\nurl = "http://127.0.0.1:9"\n'
    (operator / "mine.toml").write_text(mine, encoding="utf-8")
    assert cli.main(["profiles", "enable", "m1", "--profiles", str(operator)]) == 1
    assert "'one' is already an alias" in capsys.readouterr().err
    assert [path.name for path in operator.iterdir()] == ["mine.toml"]


def test_enable_tells_what_is_missing(operator: Path, generic_shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profiles", "enable", "m11", "--profiles", str(operator)]) == 1
    assert "no profile named 'm11' comes with Deck (did you mean 'm1'?)" in capsys.readouterr().err
    assert cli.main(["profiles", "enable", "m1"]) == 1
    assert "--profiles DIR" in capsys.readouterr().err
    assert not operator.exists()


def test_check_looks_at_what_is_not_enabled_too(
    operator: Path, generic_shelf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    operator.mkdir()
    (operator / "r.toml").write_text('id = "r"\n[server]\nurl = "http://127.0.0.1:9"\n', encoding="utf-8")
    assert cli.main(["check", "--profiles", str(operator), "--state", str(operator / "state")]) == 0
    assert "ok       profiles not enabled: 1" in capsys.readouterr().out
    (generic_shelf / "models" / "m1.toml").write_text(BROKEN, encoding="utf-8")
    assert cli.main(["check", "--profiles", str(operator), "--state", str(operator / "state")]) == 1
    shown = capsys.readouterr().out
    assert "temprature (did you mean 'temperature'?)" in shown
    assert "--port may not be in [server] args" in shown


def test_check_says_what_would_be_downloaded(
    operator: Path, generic_shelf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["profiles", "enable", "m1", "--profiles", str(operator)])
    cli.main(["check", "--profiles", str(operator), "--state", str(operator / "state")])
    assert "llama-server downloads org/repo:q4" in capsys.readouterr().out


def test_the_files_are_plain_toml_with_comments() -> None:
    for path in FILES:
        assert tomllib.loads(path.read_text(encoding="utf-8"))["id"] == path.stem
