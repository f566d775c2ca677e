"""The canonical request: what a client asked, in one shape, whatever wire it came by.

Unset is absence: `sampling` and `extra` hold only what someone set. Scalar names follow llama-server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from deck.canon.value import value

Json = Any  # a decoded JSON value: the one place where a type cannot be narrower

Role = Literal["system", "developer", "user", "assistant", "tool"]


@value(frozen=True, slots=True)
class Text:
    """A piece of text."""

    text: str


@value(frozen=True, slots=True)
class Image:
    """An image as a base64 `data:` URL, or one that Deck is yet to fetch; `path` is where the client wrote it."""

    url: str
    path: str = field(default="", compare=False)


@value(frozen=True, slots=True)
class Audio:
    """Sound as base64 `data` and its container, `wav` or `mp3`."""

    data: str
    format: str


@value(frozen=True, slots=True)
class Reasoning:
    """Thinking text that an assistant turn carried; a signature is opaque and means nothing to Deck."""

    text: str
    signature: str | None = None


@value(frozen=True, slots=True)
class ToolCall:
    """A call the assistant made; `arguments` is the raw JSON string, `id` nine alphanumerics."""

    id: str
    name: str
    arguments: str


@value(frozen=True, slots=True)
class ToolResult:
    """The client's answer to the call with the same `id`."""

    id: str
    parts: tuple[Text | Image, ...]
    is_error: bool = False


Part = Text | Image | Audio | Reasoning | ToolCall | ToolResult


@value(frozen=True, slots=True)
class Message:
    """One turn; `origin` is where it stood in the client's request, as `messages[2]`, for notes and errors."""

    role: Role
    parts: tuple[Part, ...]
    origin: str = ""


@value(frozen=True, slots=True)
class Tool:
    """A function the model may call; `parameters` is a JSON Schema, None = takes nothing.

    `path` is where the client wrote the schema, `strict_path` where it asked that calls hold to the schema, if it did.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Json] | None = None
    path: str = "tools"
    strict_path: str | None = None


@value(frozen=True, slots=True)
class ToolChoice:
    """Whether the model may, must or must not call; `names` narrows which tools are offered."""

    mode: Literal["auto", "none", "required"]
    names: tuple[str, ...] | None = None


@value(frozen=True, slots=True)
class Output:
    """What the answer must look like: a JSON Schema, any JSON object, or a GBNF grammar.

    `path` is where the client asked for it, `strict_path` where it asked that the answer hold to it, if it did, and
    `schema_path` where the schema itself stands, if that is not `path`.
    """

    kind: Literal["json_object", "json_schema", "grammar"]
    schema: Mapping[str, Json] | None = None
    name: str | None = None
    grammar: str | None = None
    path: str = "response_format"
    strict_path: str | None = None
    schema_path: str | None = None


@value(frozen=True, slots=True)
class ReasoningSetting:
    """How to think; None = the model's own default.

    `path` is where the client asked for an effort, `asked` all the places where it asked for thinking, if told apart.
    """

    enabled: bool | None = None
    effort: str | None = None
    budget: int | None = None
    preserve: bool | None = None
    path: str = "reasoning_effort"
    asked: tuple[str, ...] = ()


UNSET_REASONING = ReasoningSetting()


@value(frozen=True, slots=True)
class ChatRequest:
    """A conversation to continue.

    `sampling` holds llama-server sampler fields, `extra` other llama-server fields from the allow-table.
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    sampling: Mapping[str, Json] = field(default_factory=dict)
    output: Output | None = None
    reasoning: ReasoningSetting = UNSET_REASONING
    logprobs: int | None = None
    stream: bool = False
    extra: Mapping[str, Json] = field(default_factory=dict)
    template_kwargs: Mapping[str, Json] = field(default_factory=dict)

    def with_messages(self, messages: tuple[Message, ...]) -> ChatRequest:
        """Return the same request for other turns."""
        return ChatRequest(
            self.model,
            messages,
            self.tools,
            self.tool_choice,
            self.parallel_tool_calls,
            self.sampling,
            self.output,
            self.reasoning,
            self.logprobs,
            self.stream,
            self.extra,
            self.template_kwargs,
        )

    @property
    def is_prefill_only(self) -> bool:
        """True for an explicit budget of zero: the prompt is processed, nothing may be answered."""
        return self.sampling.get("max_tokens") == 0


@value(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """A raw prompt to continue, as text or as ids of the model's own tokens; no template is applied to it."""

    model: str
    prompt: str | tuple[int, ...]
    sampling: Mapping[str, Json] = field(default_factory=dict)
    output: Output | None = None
    logprobs: int | None = None
    stream: bool = False
    extra: Mapping[str, Json] = field(default_factory=dict)

    @property
    def is_prefill_only(self) -> bool:
        """True for an explicit budget of zero: the prompt is processed, nothing may be answered."""
        return self.sampling.get("max_tokens") == 0


Request = ChatRequest | TextRequest


def are_texts(messages: tuple[Message, ...]) -> bool:
    """Tell whether each turn is one text: then there is nothing in them to fetch, to pair or to refuse."""
    for message in messages:
        parts = message.parts
        if len(parts) != 1 or type(parts[0]) is not Text or message.role == "tool":
            return False
    return True


def has_kind(request: ChatRequest, kind: type[Image] | type[Audio]) -> str | None:
    """Return the origin of the first message that carries a part of `kind`, searching tool results too."""
    for message in request.messages:
        for part in message.parts:
            inner: tuple[Part, ...] = part.parts if isinstance(part, ToolResult) else (part,)
            if any(isinstance(item, kind) for item in inner):
                return message.origin
    return None
