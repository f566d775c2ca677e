"""llama-server's chat stream as canonical events: the only place that knows where a part begins and ends.

Pure: bytes in, events out. It knows nothing of the client, of families, or of who reads the socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deck import json
from deck.canon.events import Event, Failed, Finish, FinishReason, PartKind, Progress, Start, Usage
from deck.errors import DeckError, ErrorKind
from deck.upstream.failures import MidAnswer, upstream_error
from deck.upstream.parts import Parts
from deck.upstream.sse import SSEDecoder, SSEError
from deck.upstream.toolcalls import ToolCalls

_CHAT_OBJECT = "chat.completion.chunk"
_TEXT_OBJECT = "text_completion"
_DONE = b"[DONE]"
# Members of an enumeration are dear to look up.
_STOP, _LENGTH, _TOOL_CALLS = FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS
_REASONS = {reason.value: reason for reason in (_STOP, _LENGTH, _TOOL_CALLS)}
_EXTRAS = frozenset({"usage", "timings", "prompt_progress", "__verbose"})
_EXCERPT = 40
_CONTENT = b'"content":'
# So often in a row what stood around a text may be kept without being of use; then no more is kept.
_VAIN = 8


class Decoder:
    """Decode one answer.

    The events obey the grammar of `deck.canon.events` whatever the upstream does, and do not depend on where the
    network cut the bytes. After `Finish` or `Failed` nothing more comes out.

    Args:
        seed: makes the ids of the tool calls; the same seed gives the same ids.
        prefill_only: nothing was asked for but the prompt's processing: no parts come out, and the answer ends in
            `FinishReason.LENGTH` with no completion tokens.
        raw: the answer continues a raw prompt: it is text alone, in the older route's frames.
        budget: the most tokens asked for, None = no limit: an answer that ends in `length` below it filled the
            context. 0, the default, tells nothing.
    """

    def __init__(self, *, seed: str, prefill_only: bool = False, raw: bool = False, budget: int | None = 0) -> None:
        self.finished = False
        self._prefill_only = prefill_only
        self._raw = raw
        self._object = _TEXT_OBJECT if raw else _CHAT_OBJECT
        self._budget = budget
        self._sse = SSEDecoder()
        self._parts = Parts()
        self._seed = seed
        self._calls: ToolCalls | None = None
        self._is_started = False
        self._reason: FinishReason | None = None
        self._usage: Usage | None = None
        self._timings: Mapping[str, Any] | None = None
        self._stop_sequence: str | None = None
        self._before = self._after = b""
        self._latest = ""
        self._in_vain = 0

    @property
    def cut_call(self) -> str:
        """The name of the call that a token limit cut, "" if none was."""
        return self._calls.cut if self._calls is not None else ""

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that `chunk` completes."""
        if self.finished:
            return []
        try:
            self._payloads(self._sse.feed(chunk))
        except SSEError as error:
            self._payloads(error.payloads)
            self._fail(_broken(f"llama-server sent {error}"))
        events, self._parts.events = self._parts.events, []
        return events

    def end(self) -> list[Event]:
        """Return what follows from the upstream having closed the stream.

        llama-server ends with `[DONE]`. Without it an answer counts as whole if it gave its reason to finish, else as
        cut; a frame that lacks only its blank line counts if it parses.
        """
        self._payloads([payload for payload in self._sse.end() if payload == _DONE or _object(payload) is not None])
        if not self.finished and self._reason is not None:
            self._payloads([_DONE])
        if not self.finished:
            self._fail(_cut())
        events, self._parts.events = self._parts.events, []
        return events

    def _payloads(self, payloads: list[bytes]) -> None:
        try:
            for payload in payloads:
                if self.finished:
                    return
                if payload == _DONE:
                    self._finish()
                elif not (self._before and self._is_alike(payload)):
                    self._payload(payload)
        except DeckError as error:
            self._fail(error)

    def _payload(self, payload: bytes) -> None:
        try:
            chunk = json.loads(payload)
        except ValueError:
            chunk = None
        if type(chunk) is not dict:
            self._oddity(payload)
            return
        choices = chunk.get("choices")
        has_extras = not _EXTRAS.isdisjoint(chunk)
        if not has_extras and self._is_started and self._is_more_text(chunk, choices):
            self._remember(payload)
            return
        if chunk.get("error"):
            raise upstream_error(200, chunk)
        if chunk.get("object", self._object) != self._object or not (
            type(choices) is list or (choices is None and has_extras)
        ):
            raise _garbage(payload)
        if not self._is_started:
            self._start(chunk)
        if has_extras:
            self._take_extras(chunk)
        for choice in choices or ():
            if type(choice) is not dict:
                raise _garbage(payload)
            if not choice.get("index"):
                self._choice(choice, payload)
        self._parts.timings = None

    def _is_alike(self, payload: bytes) -> bool:
        """Take a chunk that differs from one before in nothing but its text: only that is read, as JSON by itself."""
        before, after = self._before, self._after
        if self._parts.kind != "text" or not (payload.startswith(before) and payload.endswith(after)):
            return False
        try:
            text = json.loads(payload[len(before) : len(payload) - len(after)])
        except ValueError:
            return False
        if type(text) is not str:
            return False
        if text:
            self._parts.delta(text)
        self._in_vain = 0
        return True

    def _remember(self, payload: bytes) -> None:
        """Keep what stands around the text that was read last, unless it cannot be told where that is."""
        self._in_vain += 1
        if self._in_vain > _VAIN or payload.count(_CONTENT) != 1:
            return
        before, middle, rest = payload.partition(_CONTENT)
        literal = json.dumps(self._latest)
        if rest.startswith(literal):
            self._before, self._after = before + middle, rest[len(literal) :]

    def _is_more_text(self, chunk: dict[str, Any], choices: Any) -> bool:
        """Take the usual chunk, which is nothing but more of the text that is open; False = it is another one."""
        if type(choices) is not list or len(choices) != 1 or self._parts.kind != "text":
            return False
        [choice] = choices
        if type(choice) is not dict or "error" in chunk or chunk.get("object") != self._object:
            return False
        delta = choice.get("delta")
        if type(delta) is not dict or len(delta) != 1 or choice.get("finish_reason") is not None:
            return False
        text = delta.get("content")
        if type(text) is not str or choice.get("logprobs") or choice.get("index"):
            return False
        self._latest = text
        if text:
            self._parts.delta(text)
        return True

    def _oddity(self, payload: bytes) -> None:
        """Take a payload that is no object: blank, `[DONE]` with blanks about it, or garbage."""
        bare = payload.strip()
        if bare == _DONE:
            self._finish()
        elif bare:
            raise _garbage(payload)

    def _start(self, chunk: Mapping[str, Any]) -> None:
        self._is_started = True
        model, fingerprint = chunk.get("model"), chunk.get("system_fingerprint")
        self._parts.events.append(
            Start(model if isinstance(model, str) else "", fingerprint if isinstance(fingerprint, str) else None)
        )

    def _choice(self, choice: Mapping[str, Any], payload: bytes) -> None:
        reason = choice.get("finish_reason")
        if not self._prefill_only:
            logprobs = choice.get("logprobs")
            if logprobs:
                self._parts.logprobs += _entries(logprobs)
            if reason:
                self._parts.timings = None  # they are the whole answer's, and `Finish` carries them
            delta = choice.get("delta")
            if self._raw:
                if text := choice.get("text"):
                    self._text("text", text, payload)
            elif delta:
                if type(delta) is not dict:
                    raise _garbage(payload)
                self._delta(delta, payload)
        if reason:
            self._take_reason(reason)

    def _delta(self, delta: Mapping[str, Any], payload: bytes) -> None:
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        text = delta.get("content")
        calls = delta.get("tool_calls")
        if thought:
            self._text("reasoning", thought, payload)
        if text:
            self._text("text", text, payload)
        if calls:
            if type(calls) is not list or not all(type(entry) is dict for entry in calls):
                raise _garbage(payload)
            if self._calls is None:
                self._calls = ToolCalls(self._seed, self._parts)
            for entry in calls:
                self._calls.feed(entry)

    def _text(self, kind: PartKind, text: object, payload: bytes) -> None:
        if type(text) is not str:
            raise _garbage(payload)
        parts = self._parts
        if parts.kind != kind:
            if self._calls is not None:
                self._calls.close()
            parts.open(kind)
        parts.delta(text)

    def _take_reason(self, reason: object) -> None:
        if self._reason is None:
            self._reason = _REASONS.get(reason) if isinstance(reason, str) else None
            if self._reason is None:
                raise _broken(f"llama-server ended the answer with {str(reason)[:_EXCERPT]!r}")

    def _take_extras(self, chunk: Mapping[str, Any]) -> None:
        usage, timings = chunk.get("usage"), chunk.get("timings")
        if type(usage) is dict and usage:
            self._usage = _measured(usage)
        if type(timings) is dict and timings:
            self._timings = self._parts.timings = timings
        progress, verbose = chunk.get("prompt_progress"), chunk.get("__verbose")
        if type(progress) is dict and progress:
            self._parts.events.append(Progress("prompt", progress))
        if type(verbose) is dict:
            word = verbose.get("stopping_word")
            if type(word) is str and word and verbose.get("stop_type") == "word":
                self._stop_sequence = word

    def _finish(self) -> None:
        if not self._is_started:
            raise _cut()
        calls = self._calls
        if calls is not None:
            calls.finish(is_cut=self._reason is _LENGTH)
        self._parts.finish()
        usage = self._usage or _counted(self._timings or {})
        reason = self._reason or _STOP
        if reason is _STOP or reason is _TOOL_CALLS:
            reason = _TOOL_CALLS if calls is not None and calls.count else _STOP
        if self._prefill_only:
            reason, usage = _LENGTH, Usage(usage.prompt, 0, usage.cached)
        elif reason is _LENGTH and usage.completion and _is_below(usage.completion, self._budget):
            reason = FinishReason.CONTEXT
        stop_sequence = None if self._prefill_only else self._stop_sequence
        self._parts.events.append(Finish(reason, usage, stop_sequence, self._timings))
        self.finished = True

    def _fail(self, error: DeckError) -> None:
        if not self.finished:
            self.finished = True
            self._parts.events.append(Failed(error))


def _is_below(completion: int, budget: int | None) -> bool:
    return budget is None or completion < budget


def _object(payload: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(payload)
    except ValueError:
        return None
    return value if type(value) is dict else None


def _measured(usage: Mapping[str, Any]) -> Usage:
    prompt, completion = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    return Usage(
        _count(usage, "prompt_tokens") or 0,
        _count(usage, "completion_tokens") or 0,
        _count(prompt, "cached_tokens") if type(prompt) is dict else None,
        _count(completion, "reasoning_tokens") if type(completion) is dict else None,
    )


def _entries(logprobs: object) -> tuple[Mapping[str, Any], ...]:
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return tuple(entry for entry in content if isinstance(entry, dict)) if isinstance(content, list) else ()


def _count(values: Mapping[str, Any], name: str) -> int | None:
    value = values.get(name)
    return value if type(value) is int and value >= 0 else None


def _counted(timings: Mapping[str, Any]) -> Usage:
    """Return usage by what llama-server measured; its `prompt_n` leaves cached tokens out."""
    cached = _count(timings, "cache_n")
    prompt = (_count(timings, "prompt_n") or 0) + (cached or 0)
    return Usage(prompt, _count(timings, "predicted_n") or 0, cached)


def _broken(message: str) -> DeckError:
    return DeckError(ErrorKind.UPSTREAM, message, code="upstream_error")


def _cut() -> DeckError:
    error = _broken("the upstream ended the stream before the answer was complete")
    error.__cause__ = MidAnswer()
    return error


def _garbage(payload: bytes) -> DeckError:
    head = "".join(letter for letter in payload[: 4 * _EXCERPT].decode(errors="ignore") if letter.isprintable())
    size = len(payload)
    return _broken(
        f"llama-server sent something that is no chunk of an answer: {size} bytes that begin with {head[:_EXCERPT]!r}"
    )
