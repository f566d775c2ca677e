"""Which profile a name leads to."""

from __future__ import annotations

from pathlib import Path

import pytest

from deck.catalog import Catalog, CatalogError, shipped_dir
from deck.profile import ProfileError


def _write(directory: Path, file: str, identity: str, aliases: str = "[]", kind: str = "chat") -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / file
    text = f'id = "{identity}"\naliases = {aliases}\nkind = "{kind}"\n[server]\nmodel = "x.gguf"\n'
    path.write_text(text, encoding="utf-8")
    return path


def test_names_are_resolved_and_it_is_said_how(tmp_path: Path) -> None:
    _write(tmp_path, "b.toml", "b", '["claude-sonnet-4-5"]')
    _write(tmp_path, "a.toml", "a", kind="embedding")
    (tmp_path / "notes.txt").write_text("no profile", encoding="utf-8")
    catalog = Catalog.load([tmp_path])
    assert [profile.id for profile in catalog.profiles] == ["a", "b"]
    assert [profile.id for profile in catalog.of_kind("chat")] == ["b"]
    for name, via in [
        ("b", "id"),
        ("claude-sonnet-4-5", "alias"),
        ("b[1m]", "suffix"),
        ("claude-sonnet-4-5[1m]", "suffix"),
    ]:
        match = catalog.resolve(name)
        assert match is not None
        assert (match.profile.id, match.via) == ("b", via)
    assert catalog.resolve("c") is None
    assert catalog.resolve("B") is None
    assert catalog.resolve("[1m]") is None


def test_a_higher_source_replaces_the_whole_profile(tmp_path: Path) -> None:
    low = _write(tmp_path / "low", "x.toml", "a", '["old"]')
    high = _write(tmp_path / "high", "y.toml", "a")
    catalog = Catalog.load([tmp_path / "low", tmp_path / "high"])
    match = catalog.resolve("a")
    assert match is not None
    assert match.profile.source == high
    assert catalog.shadows == {"a": (low,)}
    assert catalog.resolve("old") is None


def test_a_directory_given_twice_shadows_nothing(tmp_path: Path) -> None:
    _write(tmp_path, "x.toml", "a")
    assert Catalog.load([tmp_path, tmp_path]).shadows == {}


def test_an_id_twice_in_a_directory_names_both_files(tmp_path: Path) -> None:
    _write(tmp_path, "x.toml", "a")
    _write(tmp_path, "y.toml", "a")
    with pytest.raises(CatalogError, match=r"y\.toml: id: 'a' is already the id in .*x\.toml"):
        Catalog.load([tmp_path])


@pytest.mark.parametrize(("alias", "what"), [("a", "id"), ("shared", "alias")])
def test_a_clashing_alias_names_both_files(alias: str, what: str, tmp_path: Path) -> None:
    _write(tmp_path / "low", "x.toml", "a", '["shared"]')
    _write(tmp_path / "high", "y.toml", "b", f'["{alias}"]')
    with pytest.raises(CatalogError) as caught:
        Catalog.load([tmp_path / "low", tmp_path / "high"])
    assert f"{alias!r} is already an {what} in" in str(caught.value)
    assert "x.toml" in str(caught.value)
    assert "y.toml" in str(caught.value)


def test_a_missing_directory_or_a_broken_profile_is_named(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="nowhere: no such directory"):
        Catalog.load([tmp_path / "nowhere"])
    (tmp_path / "x.toml").write_text("id = 3", encoding="utf-8")
    with pytest.raises(ProfileError, match=r"x\.toml: "):
        Catalog.load([tmp_path])


def test_hidden_files_are_no_profiles(tmp_path: Path) -> None:
    """Editors keep locks and copies there; a lock is a link to nowhere."""
    (tmp_path / ".#x.toml").symlink_to("somebody@somewhere.1:2")
    (tmp_path / ".x.toml").write_text("id = 3", encoding="utf-8")
    assert Catalog.load([tmp_path]).profiles == ()


def test_the_shipped_profiles_load() -> None:
    catalog = Catalog.load([shipped_dir()])
    match = catalog.resolve("local-model")
    assert match is not None
    assert match.profile.id == "tiny-chat"
    server = match.profile.server
    assert (server.ctx_size or 0) // server.parallel >= 32768
