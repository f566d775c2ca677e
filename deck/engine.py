"""The embedded engine: llama.cpp's own HTTP server out of the optional package `xllamacpp`, as a process of its own.

`python -m deck.engine -m model.gguf --port 8080` takes llama-server's flag names. A flag it cannot honour is refused,
never ignored. It stands alone: it knows nothing of the rest of Deck, and it imports `xllamacpp` only once the command
line and the model file have been found good.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

_PACKAGE = "xllamacpp"
_STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
_PR_SET_PDEATHSIG = 1
_LOG_SECONDS = 0.3
_PARENT_POLL_SECONDS = 0.5
_PROBE_SECONDS = 2.0
_SOCKET_PATH_BYTES = 107 if sys.platform == "linux" else 103  # sizeof(sun_path) less the closing zero


class EngineError(Exception):
    """The engine cannot start; the message names the cause and, where there is one, the remedy."""


def available() -> bool:
    """Tell whether the embedded engine can run here, without importing it."""
    return importlib.util.find_spec(_PACKAGE) is not None


def _whole(text: str) -> int:
    number = int(text, 10)
    if not -(1 << 31) <= number < 1 << 32:
        raise ValueError("it does not fit 32 bits")
    return number


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _lines(text: str) -> list[str]:
    return [line.strip() for line in _file(text).splitlines() if line.strip()]


def _file(text: str) -> str:
    try:
        return Path(text).read_text(encoding="utf-8")
    except OSError as exc:
        raise ValueError(f"a readable file ({exc.strerror})") from exc


def _template_values(text: str) -> dict[str, str]:
    """Read a JSON object; llama.cpp keeps each of its values as JSON text."""
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("a JSON object")
    return {key: json.dumps(value) for key, value in values.items()}


def _folder(text: str) -> str:
    if not Path(text).is_dir():
        raise ValueError("an existing folder")
    return text if text.endswith(os.sep) else text + os.sep


def _one_of(**names: object) -> Callable[[str], object]:
    """Return a reader that accepts these words only; `_` in a name stands for `-`."""
    words = {name.rstrip("_").replace("_", "-"): value for name, value in names.items()}

    def read(text: str) -> object:
        if text not in words:
            raise ValueError("one of " + ", ".join(words))
        return words[text]

    return read


_REASONING_FORMAT = _one_of(
    none="COMMON_REASONING_FORMAT_NONE",
    auto="COMMON_REASONING_FORMAT_AUTO",
    deepseek="COMMON_REASONING_FORMAT_DEEPSEEK",
    deepseek_legacy="COMMON_REASONING_FORMAT_DEEPSEEK_LEGACY",
)
_POOLING = _one_of(
    none="LLAMA_POOLING_TYPE_NONE",
    mean="LLAMA_POOLING_TYPE_MEAN",
    cls="LLAMA_POOLING_TYPE_CLS",
    last="LLAMA_POOLING_TYPE_LAST",
    rank="LLAMA_POOLING_TYPE_RANK",
)


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of the command line and the attribute of `xllamacpp.CommonParams` it sets.

    Args:
        names: Every spelling, llama-server's own.
        target: Dotted attribute of `CommonParams`; a target that starts with `@` is the engine's own.
        read: Turns the flag's value into the attribute's; `None` means that the flag takes no value.
        value: What a flag without a value sets.
        repeats: The flag may be given several times and its values add up.
        also: Further attributes that the flag sets, with their values.
        expects: What a good value is, for the message about a bad one.
    """

    names: tuple[str, ...]
    target: str
    read: Callable[[str], object] | None = None
    value: object = True
    repeats: bool = False
    also: tuple[tuple[str, object], ...] = ()
    expects: str = "another value"


def _number(target: str, *names: str) -> Flag:
    return Flag(names, target, read=_whole, expects="a whole number")


FLAGS: tuple[Flag, ...] = (
    Flag(("-m", "--model"), "model.path", read=str),
    Flag(("--host",), "hostnames", read=lambda text: [text]),
    _number("port", "--port"),
    Flag(("-a", "--alias"), "model_alias", read=_words, repeats=True),
    Flag(("--api-key",), "api_keys", read=_words, repeats=True),
    Flag(("--api-key-file",), "api_keys", read=_lines, repeats=True),
    Flag(("--api-prefix",), "api_prefix", read=str),
    _number("n_ctx", "-c", "--ctx-size"),
    _number("n_parallel", "-np", "--parallel"),
    Flag(("-kvu", "--kv-unified"), "kv_unified"),
    Flag(("-no-kvu", "--no-kv-unified"), "kv_unified", value=False),
    _number("cpuparams.n_threads", "-t", "--threads"),
    _number("cpuparams_batch.n_threads", "-tb", "--threads-batch"),
    _number("n_threads_http", "--threads-http"),
    _number("n_batch", "-b", "--batch-size"),
    _number("n_ubatch", "-ub", "--ubatch-size"),
    _number("n_predict", "-n", "--predict", "--n-predict"),
    _number("cache_ram_mib", "-cram", "--cache-ram"),
    Flag(("--jinja",), "use_jinja"),
    Flag(("--no-jinja",), "use_jinja", value=False),
    Flag(("--chat-template",), "chat_template", read=str),
    Flag(("--chat-template-file",), "chat_template", read=_file),
    Flag(("--chat-template-kwargs",), "default_template_kwargs", read=_template_values, expects="a JSON object"),
    Flag(("--reasoning-format",), "reasoning_format", read=_REASONING_FORMAT),
    Flag(("-rea", "--reasoning"), "enable_reasoning", read=_one_of(on=1, off=0, auto=-1)),
    Flag(("--prefill-assistant",), "prefill_assistant"),
    Flag(("--no-prefill-assistant",), "prefill_assistant", value=False),
    Flag(("--metrics",), "endpoint_metrics"),
    Flag(("--slots",), "endpoint_slots"),
    Flag(("--no-slots",), "endpoint_slots", value=False),
    Flag(("--props",), "endpoint_props"),
    Flag(("--slot-save-path",), "slot_save_path", read=_folder),
    Flag(("--embedding", "--embeddings"), "embedding"),
    Flag(("--pooling",), "pooling_type", read=_POOLING),
    Flag(("--rerank", "--reranking"), "embedding", also=(("pooling_type", "LLAMA_POOLING_TYPE_RANK"),)),
    Flag(("-mm", "--mmproj"), "mmproj.path", read=str),
    Flag(("--no-webui", "--no-ui"), "ui", value=False),
    Flag(("-lv", "--verbosity", "--log-verbosity"), "verbosity", read=_whole, expects="a whole number"),
    Flag(("--warmup",), "warmup"),
    Flag(("--no-warmup",), "warmup", value=False),
    Flag(("--parent-death",), "@parent_death"),
    Flag(("--parent-pid",), "@parent_pid", read=_whole, expects="a process id"),
)
_BY_NAME: Mapping[str, Flag] = {name: flag for flag in FLAGS for name in flag.names}

# These attributes are enumerations of the binding; the flags above hold the names of their members.
ENUMERATIONS: Mapping[str, str] = {
    "reasoning_format": "common_reasoning_format",
    "pooling_type": "llama_pooling_type",
}

# One thread by default: ggml's threads spin while they wait for each other, so a second one on a busy machine costs
# more than it gives. The context is divided over the slots unless the KV cache is shared on request.
_DEFAULTS: Mapping[str, object] = {
    "hostnames": ["127.0.0.1"],
    "port": 8080,
    "n_parallel": 1,
    "kv_unified": False,
    "cpuparams.n_threads": 1,
}


@dataclass(frozen=True, slots=True)
class Launch:
    """A command line that was understood in full."""

    model: Path
    host: str
    params: dict[str, object] = field(default_factory=dict)
    parent_pid: int | None = None

    @property
    def is_unix(self) -> bool:
        """Whether the server listens on a UNIX socket; llama.cpp takes a host that ends in `.sock` for one."""
        return self.host.endswith(".sock")


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Launch:
    """Read the command line; refuse every flag that cannot be honoured.

    Raises:
        EngineError: A flag is unknown or its value is no good, or there is no model.
    """
    given: dict[str, object] = {}
    if key := environ.get("LLAMA_API_KEY"):
        given["api_keys"] = _words(key)
    rest = iter(argv)
    for name in rest:
        flag = _flag(name)
        if flag is None:
            raise _refusal(name)
        value = flag.value if flag.read is None else _value(flag, flag.read, name, next(rest, None))
        if flag.repeats and isinstance(value, list):
            known = given.get(flag.target)
            value = [*(known if isinstance(known, list) else []), *value]
        given.update({flag.target: value, **dict(flag.also)})
    return _launch(given)


def asks_help(argv: Sequence[str]) -> bool:
    """Tell whether `--help` stands among the flags, as llama-server takes it; a value is no flag.

    Raises:
        EngineError: A flag before it is unknown.
    """
    rest = iter(argv)
    for name in rest:
        if name in ("-h", "--help"):
            return True
        flag = _flag(name)
        if flag is None:
            raise _refusal(name)
        if flag.read is not None:
            next(rest, None)
    return False


def _flag(name: str) -> Flag | None:
    return _BY_NAME.get(name.replace("_", "-") if name.startswith("--") else name)  # as llama-server does


def _refusal(name: str) -> EngineError:
    return EngineError(
        f"the embedded engine cannot honour {name!r}: install llama-server and set [server] binary "
        "(or DECK_LLAMA_SERVER)"
    )


def _value(flag: Flag, read: Callable[[str], object], name: str, text: str | None) -> object:
    if text is None:
        raise EngineError(f"{name!r} needs a value")
    try:
        return read(text)
    except json.JSONDecodeError as exc:
        raise EngineError(f"{name!r} needs {flag.expects}: {exc}") from exc
    except ValueError as exc:
        wanted = flag.expects if read is _whole else exc
        raise EngineError(f"{name!r} needs {wanted}, not {text!r}") from exc


def _launch(given: dict[str, object]) -> Launch:
    model = given.get("model.path")
    if not isinstance(model, str):
        raise EngineError("no model: name a GGUF file with '-m'")
    params = {**_DEFAULTS, **{target: value for target, value in given.items() if not target.startswith("@")}}
    params.setdefault("cpuparams_batch.n_threads", params["cpuparams.n_threads"])
    aliases = params.get("model_alias")
    if isinstance(aliases, list):
        params["model_alias"] = set(aliases)
    hosts = params["hostnames"]
    pid = given.get("@parent_pid")
    if "@parent_death" not in given:
        pid = None
    elif pid is None:
        pid = os.getppid()
    return Launch(
        model=Path(model),
        host=str(hosts[0]) if isinstance(hosts, list) else "",
        params=params,
        parent_pid=pid if isinstance(pid, int) else None,
    )


def check_gguf(path: Path) -> None:
    """Raise unless the file is there and starts as a GGUF file does."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as exc:
        raise EngineError(f"cannot read the model file {str(path)!r}: {exc.strerror}") from exc
    if magic != b"GGUF":
        raise EngineError(f"the model file {str(path)!r} is not a GGUF file")


def clear_socket(path: str) -> None:
    """Remove a socket file that a dead server left behind, and only such a file."""
    if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
        raise EngineError(f"the socket path {path!r} is longer than {_SOCKET_PATH_BYTES} bytes")
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as exc:
        raise EngineError(f"cannot use the socket path {path!r}: {exc.strerror}") from exc
    if not stat.S_ISSOCK(mode):
        raise EngineError(f"{path!r} is in the way: it is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            Path(path).unlink(missing_ok=True)
            return
        except OSError as exc:
            raise EngineError(f"cannot tell whether a server listens on {path!r}: {exc}") from exc
    raise EngineError(f"another server listens on {path!r}")


def die_with_parent(parent_pid: int) -> None:
    """Have the system send SIGTERM when the parent ends; leave at once when it has ended already.

    On Linux the signal comes when the *thread* that started this process ends, so start it from one that lives on.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    else:
        threading.Thread(target=_watch_parent, args=(parent_pid,), daemon=True).start()
    if os.getppid() != parent_pid:
        os._exit(0)


def _watch_parent(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_PARENT_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def serve(launch: Launch) -> NoReturn:
    """Load the model, serve until SIGTERM or SIGINT, and end the process."""
    # Threads inherit the mask: with the signals blocked here, none of the library's threads can take them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    if launch.parent_pid is not None:
        die_with_parent(launch.parent_pid)
    if launch.is_unix:
        clear_socket(launch.host)
        os.umask(0o077)
    _server, address = _load(launch)  # it runs for as long as the object lives
    print("listening on", address, flush=True)
    signal.sigwait(_STOP_SIGNALS)
    if launch.is_unix:
        Path(launch.host).unlink(missing_ok=True)
    # To delete the server would wait for every open stream to notice, up to half a minute and with the interpreter
    # locked. Nothing is left to save, so the system closes the connections.
    os._exit(0)


def _load(launch: Launch) -> tuple[object, str]:
    """Start the server; a SIGTERM or SIGINT meanwhile ends the process at once, as it does by default (status -15)."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    loaded = threading.Event()
    bystander = threading.Thread(target=_take_signals_until, args=(loaded,), daemon=True)
    bystander.start()
    try:
        return _start(launch)
    finally:
        loaded.set()
        bystander.join()


def _take_signals_until(loaded: threading.Event) -> None:
    """Be the one thread that takes the signals: the thread that loads holds the interpreter for as long as it takes."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
    loaded.wait()


def _start(launch: Launch) -> tuple[object, str]:
    """Start the server, wait until the model is loaded, and return it with its address."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    for target, value in launch.params.items():
        owner: object = params
        *path, name = target.split(".")
        for step in path:
            owner = getattr(owner, step)
        kind = ENUMERATIONS.get(target)
        try:
            setattr(owner, name, getattr(getattr(xllamacpp, kind), str(value)) if kind else value)
        except OverflowError as exc:
            raise EngineError(f"{value!r} is more than the engine takes for {name!r}") from exc
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as exc:
        # llama.cpp's log is written by a thread of its own, which nobody waits for at the end of the process.
        time.sleep(_LOG_SECONDS)
        where = launch.host if launch.is_unix else f"{launch.host}:{launch.params['port']}"
        raise EngineError(
            f"llama.cpp could not serve {str(launch.model)!r} on {where}; the log above says why"
        ) from exc
    return server, launch.host if launch.is_unix else str(server.listening_address)


def describe() -> str:
    """List the flags."""
    lines = ["usage: python -m deck.engine -m MODEL.gguf [flag ...]", "", "llama-server's flags that are honoured:"]
    lines += [f"  {', '.join(flag.names)}{'' if flag.read is None else ' VALUE'}" for flag in FLAGS]
    return "\n".join([*lines, "", "LLAMA_API_KEY in the environment adds an API key."])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the engine; return the exit status when it could not start."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        if asks_help(arguments):
            print(describe())
            return 0
        launch = parse(arguments, os.environ)
        check_gguf(launch.model)
        if "mmproj.path" in launch.params:
            check_gguf(Path(str(launch.params["mmproj.path"])))
        if not available():
            raise EngineError(f"the embedded engine needs {_PACKAGE}: pip install 'deck-router[engine]'")
        serve(launch)
    except EngineError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
