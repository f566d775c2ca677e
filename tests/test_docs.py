"""The documents against the code: what the code has is described, and what is described leads somewhere."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import inspect
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from deck import cli, contracts, hookspecs
from deck.config import Config, LaneSettings
from deck.metrics import Metrics
from deck.settings import Table

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SHIPPED = ("deck", "plugins", "profiles", "docs", "tests", ".ci")
NOT_SHIPPED = {"__pycache__", "build", "node_modules"}
HOOKS = [name for name in vars(hookspecs) if name.startswith("deck_")]
PROTOCOLS = ("Surface", "Projector", "Family", "Filter", "Step", "Observer", "Launcher", "Server")


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def everything() -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def section(text: str, heading: str) -> str:
    """Return what stands under a heading, up to the next one of any level."""
    _, found, rest = text.partition(f"\n{heading}\n")
    assert found, f"no heading {heading!r}"
    return re.split(r"\n#+ ", rest, maxsplit=1)[0]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("deck_docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Generated pages


def test_generated_pages_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert generator().main(["--check"]) == 0, capsys.readouterr().err


def test_the_check_notices_a_stale_and_a_missing_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = generator()
    monkeypatch.setattr(module, "OUT", tmp_path)
    assert module.main(["--check"]) == 1
    assert list(tmp_path.iterdir()) == []
    assert module.main([]) == 0
    assert module.main(["--check"]) == 0
    for page in tmp_path.iterdir():
        page.write_text(page.read_text(encoding="utf-8") + "edited", encoding="utf-8")
    assert module.main(["--check"]) == 1


def test_generated_pages_say_so_at_their_top() -> None:
    for name in generator().PAGES:
        assert "generated" in "\n".join(read(f"surfaces/{name}.md").splitlines()[:6])


# Plugins


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_heading_with_its_arguments(hook: str) -> None:
    arguments = ", ".join(inspect.signature(getattr(hookspecs, hook)).parameters)
    assert section(read("plugins.md"), f"### `{hook}({arguments})`")


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_member_of_a_protocol_is_described(name: str) -> None:
    protocol = getattr(contracts, name)
    members = {member for member in vars(protocol) if not member.startswith("_")}
    members |= set(inspect.get_annotations(protocol))
    text = section(read("plugins.md"), f"### `{name}`")
    assert [member for member in sorted(members) if not re.search(rf"`{member}[`(]", text)] == []


# The command, its variables, its configuration, its metrics


def commands(parser: argparse.ArgumentParser, path: str) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield f"{path} {name}"
                yield from commands(child, f"{path} {name}")


def test_every_subcommand_is_in_the_documents() -> None:
    text = everything()
    found = list(commands(cli.parser(), "deck"))
    assert "deck token create" in found
    assert [command for command in found if f"`{command}" not in text] == []


def test_every_variable_is_in_the_operations_page() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "deck").rglob("*.py"))
    variables = set(re.findall(r"\bDECK_[A-Z_]*[A-Z]\b", sources))
    assert {"DECK_TOKEN", "DECK_HOST"} <= variables
    assert sorted(name for name in variables if f"`{name}`" not in read("operations.md")) == []


def test_every_key_of_the_configuration_is_in_the_operations_page() -> None:
    text = section(read("operations.md"), "## Configuration")
    keys = []
    for name, field in Config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Table):
            keys += [f"[{name}] {key}" for key in field.annotation.model_fields]
        elif name == "lanes":
            keys += [f"[lanes.<surface>] {key}" for key in LaneSettings.model_fields]
        elif not field.exclude:
            keys.append(name)
    assert [key for key in keys if f"`{key}`" not in text] == []
    written = re.findall(r"^\| `([a-z_.<>\[\] ]+)` \|", text, re.MULTILINE)
    assert [key for key in written if key not in keys] == []


def test_defaults_in_the_operations_page_are_the_real_ones() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", section(read("operations.md"), "## Configuration"), re.MULTILINE)
    written = {key: tomllib.loads(f"value = {value}")["value"] for key, value in rows if key in Config.model_fields}
    assert {"host", "port", "drain", "body_limit"} <= set(written)
    assert {key: getattr(Config(**{key: value}), key) for key, value in written.items()} == {
        key: getattr(Config(), key) for key in written
    }


def test_every_metric_is_in_the_operations_page() -> None:
    exposition, _ = Metrics(models=["m"], surfaces=["chat"], known_fields=frozenset()).exposition()
    declared = re.findall(r"^# TYPE (deck_\w+) ", exposition.decode(), re.MULTILINE)
    names = {name for name in declared if not name.endswith("_created")}
    text = section(read("operations.md"), "## Metrics")
    assert "deck_requests_total" in names
    assert sorted(name for name in names if f"`{name}`" not in text) == []


# Dependencies


def test_every_dependency_has_a_line() -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(item for extra in project["optional-dependencies"].values() for item in extra),
    ]
    names = {re.split(r"[^A-Za-z0-9_.-]", item, maxsplit=1)[0] for item in wanted}
    assert sorted(name for name in names if f"`{name}`" not in read("dependencies.md")) == []


# Every page


def test_links_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        text = re.sub(r"`[^`]*`", "", page.read_text(encoding="utf-8"))  # what stands in code is no link
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if (
                not target.startswith(("http://", "https://", "#"))
                and not (page.parent / target.partition("#")[0]).exists()
            ):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_page_is_linked_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT).as_posix() for page in sorted(DOCS.glob("*.md"))]
    assert [page for page in pages if f"({page})" not in text] == []


def test_snippets_parse() -> None:
    """A snippet that a reader copies must at least be well-formed."""
    parsers: dict[str, Callable[[str], object]] = {"json": json.loads, "toml": tomllib.loads, "python": ast.parse}
    broken = []
    for page in PAGES:
        for language, text in re.findall(r"```(\w+)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            try:
                parsers.get(language, str)(text)
            except (ValueError, SyntaxError) as exc:
                broken.append(f"{page.relative_to(ROOT)}: {exc}")
    assert broken == []


def test_nothing_shipped_names_the_machine_it_was_made_on() -> None:
    # Put together here, so that this file does not hold them.
    words = ["/wo" + "rk/", "../sha" + "red", "/ro" + "ot/", "/home/" + "user"]
    found = []
    for path in shipped():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {word}" for word in words if word in text]
    assert found == []


def shipped() -> Iterator[Path]:
    yield from (path for path in ROOT.iterdir() if path.suffix in (".md", ".toml") or path.name == "Makefile")
    for name in SHIPPED:
        for path in (ROOT / name).rglob("*"):
            if path.is_file() and not NOT_SHIPPED & set(path.relative_to(ROOT).parts):
                yield path
