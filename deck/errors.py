"""The one exception and what kinds of it exist.

Knows statuses; knows no wire: each surface renders every kind in its own envelope.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class ErrorKind(Enum):
    """What went wrong, as one closed set; `status` is the HTTP status before the first byte."""

    INVALID_REQUEST = ("invalid_request", 400)
    CONTEXT_LENGTH = ("context_length", 400)
    AUTHENTICATION = ("authentication", 401)
    PERMISSION = ("permission", 403)
    NOT_FOUND = ("not_found", 404)
    MODEL_NOT_FOUND = ("model_not_found", 404)
    METHOD_NOT_ALLOWED = ("method_not_allowed", 405)
    REQUEST_TIMEOUT = ("request_timeout", 408)
    TOO_LARGE = ("too_large", 413)
    UNSUPPORTED_MEDIA = ("unsupported_media", 415)
    UPGRADE_REQUIRED = ("upgrade_required", 426)
    RATE_LIMIT = ("rate_limit", 429)
    HEADERS_TOO_LARGE = ("headers_too_large", 431)
    INTERNAL = ("internal", 500)
    UPSTREAM = ("upstream", 502)
    UNAVAILABLE = ("unavailable", 503)
    UPSTREAM_TIMEOUT = ("upstream_timeout", 504)

    def __init__(self, label: str, status: int) -> None:
        self.label = label
        self.status = status


@dataclass(frozen=True, slots=True)
class Overrun:
    """The tokens of what does not fit: of the prompt, of the context, and of the answer that was asked for.

    `budget` is None where the prompt alone does not fit; `is_estimate` says that no tokenizer has counted the prompt.
    """

    prompt: int
    context: int
    budget: int | None = None
    is_estimate: bool = False


class DeckError(Exception):
    """A failure that a client or an operator is told about.

    Args:
        kind: decides the status and, per surface, the type.
        message: names the thing and the remedy.
        param: the client's own path of the field at fault, as `messages[2].content`.
        code: a slug of the OpenAI error vocabulary, as `unknown_parameter`.
        retry_after: seconds after which the same request may succeed.
        limits: for `CONTEXT_LENGTH`, the tokens that do not fit, where known; each wire words them.
        should_retry: an explicit answer for clients that retry by themselves (header `x-should-retry`).
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        limits: Overrun | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.limits = limits
        self.should_retry = should_retry

    def __repr__(self) -> str:
        return f"DeckError({self.kind.name}, {self.message!r}, param={self.param!r}, code={self.code!r})"


class NotRunError(DeckError):
    """A server was not even run: what was found wrong before costs nothing to look for again."""


class UnheardError(DeckError):
    """A server had ended by itself before it heard of an exchange: the next run of it may be asked instead."""


def invalid(message: str, param: str | None = None, code: str | None = None) -> DeckError:
    """Build the error for a field that the client must change."""
    return DeckError(ErrorKind.INVALID_REQUEST, message, param=param, code=code)


def overflow(overrun: Overrun, *, of: str = "messages", said: str = "") -> DeckError:
    """Build the error for what does not fit the context, in the words that clients of OpenAI's wires know.

    Args:
        overrun: the numbers.
        of: what the prompt is to the client, `messages` or `prompt`.
        said: what else is known of it.
    """
    prompt, context, budget = overrun.prompt, overrun.context, overrun.budget
    if budget is None and prompt > context:
        what = f"your {of} resulted in {prompt} tokens. Please reduce the length of the {of}."
    else:
        budget = budget or 1  # an answer has one token at least
        parts = f"({prompt} in the {of}, {budget} in the completion)"
        what = f"you requested {prompt + budget} tokens {parts}. Please reduce the length of the {of} or completion."
    estimated = " The model is not loaded: this is the least that it can be." if overrun.is_estimate else ""
    message = f"This model's maximum context length is {context} tokens. However, {what}{estimated}"
    message += f" ({said})" if said else ""
    return DeckError(ErrorKind.CONTEXT_LENGTH, message, code="context_length_exceeded", limits=overrun)


_OF_THE_HOST = (ErrorKind.INTERNAL, ErrorKind.UPSTREAM, ErrorKind.UNAVAILABLE, ErrorKind.UPSTREAM_TIMEOUT)
# What stands where in a path: a name's own letters, and what may stand between two of them in a directory's name.
_LETTERS = r"""[^\s'"/:;,()<>|]"""
_BETWEEN = r"[ ,()]"
# After a file's name, a fraction or a choice of two words there is no more of a path.
_NO_MORE = r"(?<!\.[A-Za-z]{2})(?<!\.[A-Za-z]{3})(?<!\.[A-Za-z]{4})(?<!\.[A-Za-z]{5})"
_NO_STEP = rf"(?!\d+/\d+(?!{_LETTERS}|/)|and/or\b)"
_DIRECTORY = rf"\(*{_LETTERS}++(?:{_NO_MORE}{_BETWEEN}++{_NO_STEP}{_LETTERS}++)*+\)*+/++"
# URLs with a host are left as they are. Paths are absolute and of two steps at least; the routes of the API are none.
_PATH = re.compile(
    r"""\b(?!file:)[A-Za-z][\w+.-]*://[^\s/'"][^\s'"<>]*"""
    rf"""|(?:(?<![\w/:.\]])|(?<=://)|(?<=:)(?!//)|(?<=file://localhost))/++(?!v1/(?!\S*\.\.))"""
    rf"""(?:(?<=['"]/)[^'"\n]*/([^'"/\n]+)(?=['"])|(?:{_DIRECTORY})+({_LETTERS}+))"""
)


def hide_paths(text: str) -> str:
    """Return a text in which only the last steps of the host's paths are left."""
    return _PATH.sub(_last_step, text)


def _last_step(found: re.Match[str]) -> str:
    last = found[1] or found[2]
    return f"…/{last}" if last else found[0]


def without_paths(error: DeckError) -> DeckError:
    """Return the error as a client may see it who does not operate the host: of the host's paths, their last steps."""
    return _saying(error, hide_paths(error.message) if error.kind in _OF_THE_HOST else error.message)


def without_models(error: DeckError, hidden: Iterable[str]) -> DeckError:
    """Return the error as a client may see it who may not know of some models: what they do stays told."""
    message = error.message
    if error.kind is ErrorKind.UNAVAILABLE:
        for name in hidden:
            message = message.replace(repr(name), "another model")
    return _saying(error, message)


def _saying(error: DeckError, message: str) -> DeckError:
    if message == error.message:
        return error
    shown = DeckError(
        error.kind,
        message,
        param=error.param,
        code=error.code,
        retry_after=error.retry_after,
        limits=error.limits,
        should_retry=error.should_retry,
    )
    shown.__cause__ = error.__cause__  # what it says of the server stays so
    return shown
