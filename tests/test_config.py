"""How Deck is set, and which source wins."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from deck.config import ConfigError, load_config


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "deck.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


def test_the_defaults() -> None:
    config = load_config(None, {"HOME": "/home/x"})
    assert (config.host, config.port, config.body_limit) == ("127.0.0.1", 8484, 32 * 1024 * 1024)
    assert (config.body_timeout, config.heartbeat, config.queue_limit, config.queue_wait) == (30, 10, 64, 300)
    assert (config.drain, config.stop_grace, config.log_level, config.compatibility) == (30, 5, "info", "strict")
    assert config.state == Path("/home/x/.local/state/deck")
    assert load_config(None, {"XDG_STATE_HOME": "/s"}).state == Path("/s/deck")
    assert load_config(None, {"XDG_STATE_HOME": "relative", "HOME": "/h"}).state == Path("/h/.local/state/deck")


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = _file(tmp_path, 'host = "1.1.1.1"\nport = 1\nlog_level = "error"\nqueue_wait = "1m"')
    environ = {"DECK_HOST": "2.2.2.2", "DECK_PORT": "2"}
    config = load_config(file, environ, {"host": "3.3.3.3", "port": None})
    assert (config.host, config.port, config.log_level, config.queue_wait) == ("3.3.3.3", 2, "error", 60)


def test_every_variable_is_read() -> None:
    environ = {
        "DECK_HOST": "::1",
        "DECK_PORT": "99",
        "DECK_PROFILES": os.pathsep.join(["/a", "/b"]),
        "DECK_STATE": "/s",
        "DECK_LLAMA_SERVER": "/bin/llama-server",
        "DECK_LOG_LEVEL": "DEBUG",
        "DECK_TOKEN": "secret-token",
    }
    config = load_config(None, environ)
    assert (config.host, config.port, config.state, config.log_level) == ("::1", 99, Path("/s"), "debug")
    assert config.profiles == (Path("/a"), Path("/b"))
    assert config.llama_server == "/bin/llama-server"
    assert config.warnings == ()
    assert "secret-token" not in repr(config)


def test_a_file_is_found_by_variable_or_in_the_working_directory(tmp_path: Path) -> None:
    file = _file(tmp_path, "port = 5")
    assert load_config(None, {"DECK_CONFIG": str(file)}).port == 5
    assert load_config(None, {}).port == 8484
    _file(tmp_path / "cwd", "port = 6")
    assert load_config(None, {}).port == 6
    assert load_config(file, {}).port == 5


def test_paths_in_a_file_lie_under_its_directory(tmp_path: Path) -> None:
    file = _file(tmp_path, 'profiles = ["models"]\nstate = "state"\nllama_server = "bin/llama-server"')
    config = load_config(file, {})
    assert config.profiles == (tmp_path / "models",)
    assert config.state == tmp_path / "state"
    assert config.llama_server == str(tmp_path / "bin" / "llama-server")
    assert load_config(None, {}, {"profiles": [Path("here")]}).profiles == (tmp_path / "cwd" / "here",)


def test_an_unknown_variable_is_warned_of() -> None:
    config = load_config(None, {"DECK_PROT": "1", "OTHER": "1"})
    assert config.warnings == ("DECK_PROT is set but Deck knows no such variable (did you mean 'DECK_PORT'?)",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "deck.toml: prot: unknown key (did you mean 'port'?)"),
        ("public_metrics = true", "deck.toml: public_metrics: unknown key (did you mean 'admin.public_metrics'?)"),
        ('port = "1"', "deck.toml: port: must be a valid integer"),
        ("warnings = []", "deck.toml: warnings: unknown key"),
        ("port = ", "(at end of document)"),
        ("profiles = 3", "deck.toml: profiles: "),
    ],
)
def test_a_mistake_in_the_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(_file(tmp_path, text), {})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"DECK_PORT": "x"}, "DECK_PORT: 'x' is not a whole number"),
        ({"DECK_PORT": "99999"}, "DECK_PORT: port: "),
        ({"DECK_LOG_LEVEL": "loud"}, "DECK_LOG_LEVEL: log_level: must be 'debug'"),
        ({"DECK_CONFIG": "/nowhere/deck.toml"}, "/nowhere/deck.toml: cannot be read"),
    ],
)
def test_a_mistake_in_the_environment_is_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, environ)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("overrides", [{"port": -1}, {"nonsense": 1}])
def test_a_mistake_of_the_command_line_is_named(overrides: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(overrides))):
        load_config(None, {}, overrides)


def test_hosts_of_images_are_checked(tmp_path: Path) -> None:
    text = (
        '[media]\nallow = ["Images.Example.org", "*.example.net:8443"]\nallow_private = ["10.0.0.1"]\nmax_bytes = "2MB"'
    )
    media = load_config(_file(tmp_path, text), {}).media
    assert media.allow == ("images.example.org", "*.example.net:8443")
    assert (media.allow_private, media.max_bytes, media.timeout) == (("10.0.0.1",), 2_000_000, 10)
    assert load_config(None, {}).media.allow == ()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('allow = ["https://example.org"]', r"media.allow.*'https://example.org' is no host; write"),
        ('allow_private = ["*"]', r"media.allow_private.*name the hosts"),
        ('allow_private = ["*:8080"]', r"media.allow_private.*name the hosts"),
        ('alow = ["example.org"]', r"alow.*allow"),
        ("max_bytes = 0", "media.max_bytes"),
        ('timeout = "0"', "media.timeout"),
        ('allow = "example.org"', "media.allow"),
    ],
)
def test_a_wrong_table_of_images_is_named(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)deck\.toml.*{fault}"):
        load_config(_file(tmp_path, f"[media]\n{text}"), {})
