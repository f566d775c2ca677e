"""Why a llama-server ended while it started: what stays so until somebody changes something, and what may pass.

Reads an exit status and what was printed. All of llama-server's own failures have status 1, so that its words are the
only evidence; what they do not prove counts as passing. Does not know what is done about either.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """Words that only a lasting failure has, and what its operator can do."""

    words: re.Pattern[str]
    remedy: str


def _cause(remedy: str, *words: str) -> Cause:
    return Cause(re.compile("|".join(words)), remedy)


# The first row of which any line has the words decides.
LASTING = (
    _cause(
        "correct the arguments of the server",
        r"error: invalid argument: ",
        r"error while handling (?:argument|environment variable) ",
        r"error: unknown value for ",
        r"error: --model is required",
        r"the argument has been removed",
        r"the embedded engine cannot honour ",
        r"^error: '-[^']*' needs ",
    ),
    _cause(
        "the program cannot run here: install another llama-server",
        r"error while loading shared libraries",
        r"^error: cannot run '",
        r"version `GLIBC\w*_[\d.]+' not found",
    ),
    _cause(
        "the file is damaged or not whole: download it anew",
        r"is not within the file bounds",
        r"corrupted model: ",
        r"exceeds remaining file size",
        r"invalid magic characters: ",
        r"bad GGUF version: ",
        r"tensor '[^']*' has invalid data",
    ),
    _cause(
        "this llama-server does not know such a model: use a newer one, or another file",
        r"un(?:known|supported) model architecture: '",
        r"unknown pre-tokenizer type: '",
        r"unknown tokenizer: '",
        r"but this software only supports up to version",
        r"GGUFv1 is no longer supported",
        r"has invalid ggml type \d",
    ),
    _cause(
        "the file does not hold what this llama-server needs: use another one, or a newer llama-server",
        r"key not found in model: ",
        r"missing tensor '",
        r"tensor '[^']*' (?:not found|has wrong shape|is duplicated)",
        r"wrong number of tensors; expected",
        r"cannot find tokenizer (?:merges|vocab) in model file",
        r"key \S+ has wrong (?:type|array length)",
    ),
    _cause(
        "all parts of the model must lie beside each other, and the first is named",
        r"invalid split (?:file|count)",
        r"illegal split file idx",
        r"failed to load GGUF split from ",
    ),
    _cause("the projector's file is none, or not of this model", r"Failed to load CLIP model from "),
    _cause(
        "correct the chat template", r"chat template parsing error", r"failed to (?:initialize|parse) chat template"
    ),
    _cause(
        "correct the name of the file, or who may read it",
        r"(?:failed to open|cannot (?:open|read)) .*(?:No such file or directory|Permission denied|Is a directory)",
    ),
)
# What may be otherwise in a moment, whatever else was printed about it.
_PASSING = re.compile(
    r"out of memory|cannot allocate memory|(?:failed|unable) to allocate|malloc failed|bad_alloc|couldn't bind"
    r"|address (?:already )?in use|HTTP server error|failed to download|timed? ?out|could not resolve"
    r"|too many open files|input/output error|no space left|resource temporarily unavailable"
    r"|device (?:or resource )?(?:busy|lost)",
    re.IGNORECASE,
)
# A processor that lacks an instruction lacks it tomorrow as well.
_OTHER_PROCESSOR = "the program was built for another processor: install another llama-server"


def lasting(status: int, lines: Sequence[str]) -> str | None:
    """Return what to do about a start that fails in the same way until that is done, None = the failure may pass.

    Args:
        status: of the process; below 0 = the signal that ended it.
        lines: the last that it printed.
    """
    if status == -signal.SIGILL:
        return _OTHER_PROCESSOR
    if status <= 0 or any(_PASSING.search(line) for line in lines):
        return None
    return next((cause.remedy for cause in LASTING if any(cause.words.search(line) for line in lines)), None)
