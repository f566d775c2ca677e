"""Plugins add commands to `deck`."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest

from deck import cli, plugins


class _Hello:
    @staticmethod
    @plugins.hookspecs.hookimpl
    def deck_add_commands(subparsers: Any) -> None:
        command = subparsers.add_parser("hello", help="greet")
        command.set_defaults(run=lambda arguments: print("hello") or 7)


class _Point(importlib.metadata.EntryPoint):
    def load(self) -> Any:
        return _Hello


def test_a_plugins_command_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    point = _Point("hello", "hello:plugin", "deck")
    monkeypatch.setattr(plugins.importlib.metadata, "entry_points", lambda group: [point])
    assert cli.main(["hello"]) == 7
    assert capsys.readouterr().out == "hello\n"
