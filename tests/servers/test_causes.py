"""Which failed starts will fail again: words of the embedded engine, seen, and of llama-server, from its source."""

from __future__ import annotations

import signal
from dataclasses import dataclass

import pytest

from deck.servers.causes import LASTING, lasting


@dataclass(frozen=True)
class Case:
    name: str
    lines: str
    remedy: str | None
    status: int = 1


_ENDS = "0.00.005.846 E srv          init: exiting due to model loading error"
CASES = (
    # Seen: xllamacpp 2026.10.
    Case(
        "truncated",
        "0.00.004.720 E llama_model_load: error loading model: tensor 'blk.1.ffn_up.weight' data is not within the file"
        f" bounds, model is corrupted or incomplete\n{_ENDS}",
        "damaged or not whole",
    ),
    Case(
        "truncated in its head",
        "0.00.004.403 E read: string length 2409 exceeds remaining file size 1289 bytes\n"
        f"0.00.004.404 E gguf_init_from_reader: failed to read key-value pairs\n{_ENDS}",
        "damaged or not whole",
    ),
    Case(
        "of a later version",
        "0.00.004.802 E gguf_init_from_reader: this GGUF file is version 4294967295 but this software only supports up"
        f" to version 3\n{_ENDS}",
        "does not know such a model",
    ),
    Case(
        "unknown architecture",
        f"0.00.005.925 E llama_model_load: error loading model: unknown model architecture: 'qwen9'\n{_ENDS}",
        "does not know such a model",
    ),
    Case(
        "missing tensor",
        "0.00.008.198 E llama_model_load: error loading model: check_tensor_dims: tensor 'blk.0.attn_q.weight'"
        f" not found\n{_ENDS}",
        "does not hold what",
    ),
    Case(
        "missing key",
        "0.00.006.275 E llama_model_load: error loading model: error loading model hyperparameters: key not found in"
        f" model: qwen2.block_count\n{_ENDS}",
        "does not hold what",
    ),
    Case(
        "template",
        f"0.00.187.049 E srv          init: init: chat template parsing error: std::exception\n{_ENDS}",
        "correct the chat template",
    ),
    Case(
        "projector",
        f"0.00.113.170 E mtmd_init_from_file: error: Failed to load CLIP model from tiny-chat.gguf\n\n{_ENDS}",
        "the projector's file",
    ),
    Case("value", "error: '-np' needs a whole number, not 'zero'", "correct the arguments"),
    Case("flag", "error: the embedded engine cannot honour '--no-such-flag': install llama-server", "correct the arg"),
    # llama-server's own wording.
    Case("server's flag", "error: invalid argument: --no-such-flag", "correct the arguments"),
    Case(
        "server's value",
        'error while handling argument "-np": error: invalid value for n_parallel\n\n\nusage:\n-np, --parallel N',
        "correct the arguments",
    ),
    Case("server's choice", "error: unknown value for --flash-attn: 'maybe'", "correct the arguments"),
    Case("pre-tokenizer", "error loading model vocabulary: unknown pre-tokenizer type: 'new'", "does not know such"),
    Case("quantisation", "gguf_init: tensor 'a' has invalid ggml type 99. should be in [0, 42)", "does not know such"),
    Case("shape", "error loading model: check_tensor_dims: tensor 'a' has wrong shape; expected 1, got 2", "not hold"),
    Case("split", "illegal split file idx: 1 (file: b), model must be loaded with the first split", "all parts"),
    Case("no file", "gguf_init_from_file: failed to open GGUF file 'a' (No such file or directory)", "correct the n"),
    Case(
        "library",
        "llama-server: error while loading shared libraries: libx.so.1: cannot open",
        "another llama",
        127,
    ),
    Case("no program", "error: cannot run '/bin/x': Exec format error", "another llama-server", 127),
    Case("processor", "", "another processor", -signal.SIGILL),
    # What passes, or is not proven to stay.
    Case("nothing", "", None),
    Case("no reason", f"failed to load model 'any.gguf'\n{_ENDS}", None),
    Case("crash", "GGML_ASSERT(n_embd > 0) failed", None, -signal.SIGABRT),
    Case("killed", "load_tensors: loading model tensors", None, -signal.SIGKILL),
    Case("status 0", "error: invalid argument: --x", None, 0),
    Case("no memory", "CUDA error: out of memory", None),
    Case(
        "no memory, in the model's words",
        "error loading model: unable to allocate CUDA0 buffer\nerror loading model: missing tensor 'x'",
        None,
    ),
    Case(
        "projector without memory",
        "alloc_buffer: allocating 900.00 MiB on device 0: cudaMalloc failed: out of memory\n"
        "Failed to load CLIP model from mm.gguf",
        None,
    ),
    Case("port", "srv start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 80", None),
    Case("download", "srv main: failed to download model: HTTP 503", None),
    Case("files", "failed to open a.gguf: Too many open files", None),
    Case("words of a prompt", "the user asked about an invalid argument", None),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_stays_is_told_from_what_may_pass(case: Case) -> None:
    found = lasting(case.status, case.lines.splitlines())
    assert (found is None) == (case.remedy is None), found
    assert found is None or (case.remedy or "") in found


def test_every_row_of_the_table_has_a_case() -> None:
    used = {lasting(case.status, case.lines.splitlines()) for case in CASES}
    assert [cause.remedy for cause in LASTING if cause.remedy not in used] == []
