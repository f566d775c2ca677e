"""Profiles: what an operator may write, and what he is told of a mistake."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from deck.profile import Profile, ProfileError, ServerSettings, load_profile, unknown_sampling
from deck.settings import parse_duration, parse_size

Load = Callable[[str], Profile]
_WHOLE = """
id = "qwen/qwen3:30b"
family = "qwen"
aliases = ["gpt-4o", "claude-sonnet-4-5"]
kind = "chat"
description = "Qwen 3"
compatibility = "lenient"
template_kwargs = ["enable_thinking"]
drop = ["seed"]

[server]
model = "${MODELS}/qwen.gguf"
binary = "bin/llama-server"
ctx_size = 65536
parallel = 4
args = ["--mmproj", "${MODELS}/mm.gguf"]
env = { CUDA_VISIBLE_DEVICES = "1" }
ttl = "1h30m"
memory = "20GiB"
load_timeout = "2m"
stall_timeout = 90
log_lines = 5

[capabilities]
vision = true
context = 16384

[defaults]
temperature = 0.7
[force]
top_k = 20
stop = ["END"]
[limits]
max_tokens = 16384
temperature = 1.5
"""


@pytest.fixture
def load(tmp_path: Path) -> Load:
    path = tmp_path / "a.toml"

    def write_and_load(text: str) -> Profile:
        path.write_text(text, encoding="utf-8")
        return load_profile(path, {"MODELS": "gguf"})

    return write_and_load


def test_every_key_is_read(load: Load, tmp_path: Path) -> None:
    profile = load(_WHOLE)
    server = profile.server
    assert profile.source == tmp_path / "a.toml"
    assert server.model == tmp_path / "gguf" / "qwen.gguf"
    assert server.binary == str(tmp_path / "bin" / "llama-server")
    assert server.args == ("--mmproj", "gguf/mm.gguf")
    assert (server.ttl, server.memory, server.load_timeout, server.stall_timeout) == (5400, 20 * 1024**3, 120, 90)
    assert profile.capabilities.vision is True
    assert profile.capabilities.tools is None
    assert dict(profile.limits) == {"max_tokens": 16384, "temperature": 1.5}
    assert isinstance(profile.limits["max_tokens"], int)
    assert profile.force["stop"] == ["END"]


def test_the_defaults(load: Load) -> None:
    profile = load('id = "a"\n[server]\nmodel = "x.gguf"')
    server = profile.server
    assert (server.parallel, server.ttl, server.load_timeout, server.stall_timeout) == (1, 900, 600, 300)
    assert (profile.kind, profile.compatibility, profile.family) == ("chat", "strict", None)
    assert load('id = "a"\n[server]\nurl = "http://h:1/p/"').server.parallel == 0


def test_several_servers_are_told_from_one(load: Load) -> None:
    several = load('id = "a"\n[server]\nurls = ["http://${MODELS}:1/", "http://b:2/p"]')
    assert several.server.urls == several.server.addresses == ("http://gguf:1", "http://b:2/p")
    assert several.server.is_remote
    assert (several.server.parallel, several.server.health_interval) == (0, 5.0)
    assert several.serves == "http://gguf:1 http://b:2/p"
    assert load('id = "a"\n[server]\nurl = "http://h:1"').server.addresses == ("http://h:1",)
    assert load('id = "a"\n[server]\nmodel = "x"').server.addresses == ()


def test_a_profile_never_changes(load: Load) -> None:
    profile = load(_WHOLE)
    with pytest.raises(ValidationError):
        profile.id = "b"  # type: ignore[misc]  # the point of the test
    with pytest.raises(TypeError):
        profile.defaults["top_p"] = 1  # type: ignore[index]  # the point of the test
    assert "source" not in profile.model_dump(mode="json")


_LOCAL = '[server]\nmodel = "x"\n'
_ONE_OF = "exactly one of model, hf, url, urls and command is needed"
_FAULTS = {
    'id = "a"\nctx_size = 3\n' + _LOCAL: "ctx_size: unknown key (did you mean 'server.ctx_size'?)",
    'id = "a"\nalises = []\n' + _LOCAL: "alises: unknown key (did you mean 'aliases'?)",
    'id = "a"\nsource = "x"\n' + _LOCAL: "source: unknown key",
    'id = "a"\n' + _LOCAL + "paralel = 2": "server.paralel: unknown key (did you mean 'parallel'?)",
    'id = "a"\n' + _LOCAL + "parallel = 0": "server: parallel must be at least 1; 0 = no limit is for url only",
    'id = "a"\n' + _LOCAL + 'ctx_size = "5"': "server.ctx_size: must be a valid integer",
    'id = "a"\n' + _LOCAL + 'ttl = "3 weeks"': 'server.ttl: not a duration; write "30s", "15m", "1h30m" or "0"',
    'id = "a"\n' + _LOCAL + 'memory = "much"': "server.memory: not a size;",
    'id = "a"\n' + _LOCAL + 'api_key_env = "K"': "server: api_key_env belongs to url or command;",
    'id = "a"\n' + _LOCAL + 'hf = "o/r"': f"server: {_ONE_OF}, not model and hf",
    'id = "a"\n[server]': f"server: {_ONE_OF}, not none",
    'id = "a"': "server: is required",
    'id = "a"\nserver = 3': "server: must be a table",
    'id = "a"\n' + _LOCAL + 'args = "-fa"': 'server.args: must be a list, as ["…", "…"]',
    'id = "a"\n' + _LOCAL + '[hooks]\non_stop = "./a.sh"': 'hooks.on_stop: must be a list, as ["…", "…"]',
    'id = "a b"\n' + _LOCAL: "id: may hold letters, digits",
    'id = "a"\nkind = "chta"\n' + _LOCAL: "kind: must be 'chat', 'embedding', 'rerank', 'image'",
    'id = "a"\n' + _LOCAL + '[limits]\nmax_tokens = "5"': "limits.max_tokens: must be a number",
    'id = "a"\n' + _LOCAL + "[limits]\nmax_tokens = true": "limits.max_tokens: must be a number",
    'id = "a"\n' + _LOCAL + "[limits]\nmax_tokens = inf": "limits.max_tokens: must be a number",
    'id = "a"\n' + _LOCAL + '[capabilities]\nvision = "yes"': "capabilities.vision: must be a valid boolean",
    'id = "a"\n[server]\nmodel = "${NOPE}/x"': "server.model: the environment variable NOPE is not set",
    'id = "a"\n[server]\nhf = "just-a-name"': "server.hf: must be org/repo or org/repo:quant",
    'id = "a"\n[server]\nurl = "ftp://x"': "server.url: must be http://host:port or https://host:port",
    'id = "a"\n[server]\nurl = "http://u:p@x"': "server.url: must hold no user, query or fragment",
    'id = "a"\n[server]\nurl = "http://x:99999"': "server.url: Port out of range",
    'id = "a"\n[server]\nurl = "http://x"\nargs = ["-x"]': "server: args: not with url",
    'id = "a"\n[server]\nurls = ["http://x"]\nargs = ["-x"]': "server: args: not with urls",
    'id = "a"\n[server]\nurls = ["http://x", "ftp://y"]': "server.urls: must be http://host:port",
    'id = "a"\n[server]\nurls = ["http://x", "http://x/"]': "server.urls: http://x stands there twice",
    'id = "a"\n[server]\nurls = []': "server: exactly one of model, hf, url, urls and command is needed, not none",
    'id = "a"\n[server]\nurls = ["http://x"]\nurl = "http://x"': "not url and urls",
    'id = "a"\n[server]\nurls = ["http://${NOPE}"]': "server.urls.0: the environment variable NOPE is not set",
    'id = "a"\n' + _LOCAL + 'health_interval = "1s"': "server: health_interval belongs to url",
    'id = "a"\nfamily = \n': "(at line 2, column 10)",
    'id = "a"\n' + _LOCAL + 'args = ["-a\\u0000b"]': "server.args: may hold no NUL",
    'id = "a"\n' + _LOCAL + 'binary = "a\\u0000b"': "server.binary: may hold no NUL",
    'id = "a"\n[server]\nmodel = "a\\u0000b"': "server.model: may hold no NUL",
    'id = "a"\n[server]\ncommand = ["a\\u0000b", "{port}"]': "server.command: may hold no NUL",
    'id = "a"\n' + _LOCAL + 'env = { "A=B" = "x" }': "server.env: 'A=B' is no name of a variable",
    'id = "a"\n' + _LOCAL + 'env = { A = "x\\u0000" }': "server.env: may hold no NUL",
}


@pytest.mark.parametrize("text", _FAULTS, ids=range(len(_FAULTS)))
def test_a_mistake_names_the_file_the_key_and_the_remedy(text: str, load: Load, tmp_path: Path) -> None:
    with pytest.raises(ProfileError) as caught:
        load(text)
    assert str(caught.value).startswith(f"{tmp_path}/a.toml: ")
    assert _FAULTS[text] in str(caught.value)


def test_all_mistakes_are_told_at_once(load: Load) -> None:
    with pytest.raises(ProfileError) as caught:
        load('id = "a b"\nkind = "x"\n' + _LOCAL + "zzz = 1")
    assert len(str(caught.value).splitlines()) == 3


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"no\.toml: cannot be read: No such file"):
        load_profile(tmp_path / "no.toml")
    (tmp_path / "latin.toml").write_bytes(b'id = "\xe9"')
    with pytest.raises(ProfileError, match=r"latin\.toml: is not UTF-8 text, byte 6"):
        load_profile(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15m", 900), ("0", 0), ("1h30m", 5400), ("250ms", 0.25), ("1.5s", 1.5), ("2d", 172800), (30, 30), (0.5, 0.5)],
)
def test_durations(text: Any, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "15", "15 m", "-3s", "1h 30m", True, -1, float("inf"), float("nan"), None])
def test_what_is_no_duration(text: Any) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("20GiB", 20 * 1024**3), ("1.5 GB", 1_500_000_000), ("512MiB", 512 * 1024**2), ("7", 7), ("7B", 7), (7, 7)],
)
def test_sizes(text: Any, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "20XB", True, -1, 1.5, None])
def test_what_is_no_size(text: Any) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


def test_unknown_sampling_names_are_found_in_every_table(load: Load) -> None:
    text = 'id = "a"\ndrop = ["topk"]\n' + _LOCAL + "[defaults]\ntemprature = 1\ntop_k = 1\n[limits]\nzzz = 1"
    found = unknown_sampling(load(text), {"temperature", "top_k"})
    assert found == [
        "defaults.temprature (did you mean 'temperature'?)",
        "drop.topk (did you mean 'top_k'?)",
        "limits.zzz",
    ]


def test_a_secret_in_env_is_not_shown() -> None:
    settings = ServerSettings(model=Path("x"), env={"TOKEN": "hidden-value"})
    assert "hidden-value" not in repr(settings)


def test_whether_a_server_is_elsewhere_is_asked_in_one_way() -> None:
    """`url` is None for `urls` too."""
    sources = [path for path in (Path(__file__).parents[1] / "deck").rglob("*.py") if path.name != "profile.py"]
    found = [path.name for path in sources if re.search(r"\burl is (not )?None", path.read_text(encoding="utf-8"))]
    assert found == []
