"""Which conversation an exchange belongs to, for servers elsewhere that each have a cache of their own."""

from __future__ import annotations

from hashlib import blake2b

from deck.canon.request import ChatRequest, Message, Text
from deck.exchange import Exchange

# Who sends one of these means all requests of one session by it.
_HINTS = ("x-claude-code-session-id", "session-id", "x-session-affinity")
_BEGINNING = 4096


def affinity_of(exchange: Exchange) -> str | None:
    """Return the key of the exchange's conversation in its principal's own namespace, None = it has none.

    It is the session that the client names, else how the conversation begins, which stays as it goes on.
    """
    name = exchange.principal.name
    for hint in _HINTS:
        session = exchange.headers.get(hint)
        if session:
            return f"{name}\0{session}"
    assert exchange.parsed is not None
    request = exchange.parsed.request
    beginning = _beginning(request.messages) if isinstance(request, ChatRequest) else str(request.prompt)[:_BEGINNING]
    digest = blake2b(beginning.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return f"{name}\0{digest}" if beginning else None


def _beginning(messages: tuple[Message, ...]) -> str:
    """Return the beginning of what the system and the user first said."""
    texts = []
    for message in messages:
        texts += [part.text[:_BEGINNING] for part in message.parts if isinstance(part, Text)]
        if message.role == "user":
            break
    return "\0".join(texts)
