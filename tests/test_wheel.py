"""What the wheel holds: two import packages, every shipped profile, every plugin it declares."""

from __future__ import annotations

import configparser
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return zipfile.Path(built)


def files(wheel: zipfile.Path) -> list[str]:
    return [name for name in wheel.root.namelist() if not name.endswith("/")]


def test_the_top_level_is_two_packages(wheel: zipfile.Path) -> None:
    tops = {name.split("/", 1)[0] for name in files(wheel)}
    (info,) = [top for top in tops if top.endswith(".dist-info")]
    assert tops - {info} == {"deck", "deck_plugins"}


def test_every_shipped_profile_is_inside_the_package(wheel: zipfile.Path) -> None:
    shipped = {path.relative_to(ROOT / "profiles").as_posix() for path in (ROOT / "profiles").rglob("*.*")}
    prefix = "deck/_profiles/"
    packed = {name.removeprefix(prefix) for name in files(wheel) if name.startswith(prefix)}
    assert any(name.endswith(".toml") for name in shipped)
    assert packed == shipped


def test_packages_are_marked_as_typed(wheel: zipfile.Path) -> None:
    assert {"deck/py.typed", "deck_plugins/py.typed"} <= set(files(wheel))


def test_no_test_and_no_cache_is_packed(wheel: zipfile.Path) -> None:
    assert [name for name in files(wheel) if "__pycache__" in name or name.endswith((".pyc", ".sock"))] == []


def test_every_declared_plugin_is_in_the_wheel(wheel: zipfile.Path) -> None:
    (info,) = [name for name in files(wheel) if name.endswith(".dist-info/entry_points.txt")]
    declared = configparser.ConfigParser()
    declared.read_string(wheel.joinpath(info).read_text(encoding="utf-8"))
    for module in declared["deck"].values():
        path = module.replace(".", "/")
        assert {f"{path}.py", f"{path}/__init__.py"} & set(files(wheel)), module
