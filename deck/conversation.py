"""Which exchanges belong to one conversation: what the client says of its session, and how the request begins.

Everything here is pure. A session alone does not tell: a title or a subagent goes under the same one, with another
system prompt or other tools. What stays the same over the turns of a conversation is what its prompt begins with, and
that is also what llama-server can have in its cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Protocol

from deck.canon.request import (
    Audio,
    ChatRequest,
    Image,
    Part,
    Reasoning,
    Request,
    Text,
    TextRequest,
    ToolCall,
    ToolResult,
)
from deck.canon.value import value

# Of the agents and chat programs that say it: the first that is there counts.
_SESSIONS = (
    b"x-claude-code-session-id",
    b"session-id",
    b"session_id",
    b"conversation_id",
    b"x-session-affinity",
    b"x-session-id",
    b"x-opencode-session-id",
    b"x-openwebui-chat-id",
)
_AGENT = b"x-claude-code-agent-id"
SESSION_HEADERS = frozenset(_SESSIONS)
_CACHE_KEYS = ("prompt_cache_key", "promptCacheKey")
# A user is no session; Claude Code writes both into one.
_METADATA = ("session_id", "sessionId", "user_id")
_MOST_HINT = 4096
_MOST_TEXT = 64 * 1024
# Of a raw prompt: what grows behind it is the conversation.
_RAW = 256
_NO_TOOLS = b"-"


@value(frozen=True, slots=True)
class Beginning:
    """Digests of how a request begins: `head` of its system prompt and tools, `whole` with its first words.

    `tail_size` is the characters behind the head.
    """

    head: bytes
    whole: bytes
    tail_size: int = 0


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


def session_of_headers(headers: Mapping[bytes, bytes]) -> str:
    """Return what the headers, by lower-case name, say of the session, "" = nothing."""
    found = next((headers[name] for name in _SESSIONS if headers.get(name)), b"")
    if found and (agent := headers.get(_AGENT)):
        found += b"/" + agent
    return found[:_MOST_HINT].decode("latin-1")


def session_of_body(body: Mapping[str, Any]) -> str:
    """Return what a client's body says of the session, "" = nothing."""
    for name in _CACHE_KEYS:
        if type(found := body.get(name)) is str and found:
            return found[:_MOST_HINT]
    metadata = body.get("metadata")
    if type(metadata) is dict:
        for name in _METADATA:
            if type(found := metadata.get(name)) is str and found and (name != "user_id" or "session" in found):
                return found[:_MOST_HINT]
    return ""


def beginning_of(request: Request, principal: str, session: str) -> Beginning:
    """Return how a request begins; what is alike for two principals is not alike here."""
    digest = sha256()
    if isinstance(request, TextRequest):
        _feed(digest, principal, session, str(request.prompt[:_RAW]))
        return Beginning(b"", digest.digest())
    first = 0
    for message in request.messages:
        if message.role not in ("system", "developer"):
            break
        first += 1
        _feed(digest, message.role, *_texts(message.parts))
    if request.tools:
        _feed(digest, "\n".join([tool.name for tool in request.tools]))
    digest.update(_NO_TOOLS)
    head = digest.digest()
    if first < len(request.messages):
        _feed(digest, *_texts(request.messages[first].parts))
    _feed(digest, principal, session)
    tail = 0
    for message in request.messages[first:]:
        for part in message.parts:
            tail += len(part.text) if type(part) is Text else _size(part)
    return Beginning(head, digest.digest(), tail)


def goes_on(request: Request) -> bool:
    """Tell whether a request belongs to a conversation that will go on: it has tools, or has been answered before."""
    if isinstance(request, TextRequest):
        return False
    return bool(request.tools) or any(message.role == "assistant" for message in request.messages)


def results_at_end(request: Request) -> tuple[str, ...]:
    """Return the ids of the calls whose results are all that follows the last answer; none = something else does."""
    if not isinstance(request, ChatRequest):
        return ()
    found: list[str] = []
    for message in reversed(request.messages):
        if message.role == "assistant":
            return tuple(found)
        for part in message.parts:
            if not isinstance(part, ToolResult):
                return ()
            found.append(part.id)
    return ()


def _texts(parts: Iterable[Part]) -> Iterable[str]:
    for part in parts:
        if isinstance(part, Text):
            yield part.text
        elif isinstance(part, Image):
            yield part.url
        elif isinstance(part, Audio):
            yield part.data


def _size(part: Part) -> int:
    match part:
        case Text() | Reasoning():
            return len(part.text)
        case ToolCall():
            return len(part.arguments)
        case ToolResult():
            return sum([_size(inner) for inner in part.parts])
        case _:
            return 0  # the head's share of the body then holds it, which makes no difference worth knowing


def _feed(digest: _Digest, *texts: str) -> None:
    for text in texts:
        shown = text[:_MOST_TEXT].encode("utf-8", "surrogatepass")
        digest.update(b"%d:%d:" % (len(text), len(shown)))
        digest.update(shown)
