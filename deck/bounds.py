"""How many tokens a prompt takes at most and at least, from its bytes alone: no tokenizer is asked.

At most a token for each byte, since the tokens of every tokenizer that llama.cpp knows stand for one byte or more. At
least a token for each eight characters, which is half of what tokenizers make of ordinary text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from deck.canon.request import Audio, ChatRequest, Image, Request, Text, TextRequest, ToolResult
from deck.contracts import Facts

# What a template may write around messages where nobody knows it.
_TEMPLATE = 8192
# Tokens of the largest picture, whatever its bytes; and how many characters of a sound stand for no more than a token.
_PICTURE = 16384
_SOUND, _SOUND_CHARS = 1024, 64

_CHARS = 8
# Tokenizers have tokens for long runs of one character, of spaces above all.
_RUN = re.compile(r"(\S)\1{3,}")
# And for the marks of templates, each of which counts nothing here.
_MARK = re.compile(r"<[^<>\s]{1,40}>")


def most_tokens(request: Request, payload: bytes, facts: Facts) -> int:
    """Return an upper bound: the bytes that are sent, and those of the template, which is written around messages once.

    What JSON writes around each message is taken to be as long as what the template writes there.

    Args:
        request: as it is sent.
        payload: its encoded body.
        facts: of the server, for its template.
    """
    if isinstance(request, TextRequest):
        return len(request.prompt) if isinstance(request.prompt, tuple) else len(payload)
    size = len(payload) + (len(facts.template) if facts.template is not None else _TEMPLATE)
    if b'"image_url"' in payload or b'"input_audio"' in payload:
        size += sum(_of_medium(part) for part in _parts(request))
    return size


def least_tokens(request: Request, enough: int) -> int:
    """Return a lower bound on what the text of the prompt takes; media, tools and thoughts may go and count nothing.

    Args:
        request: as it is sent.
        enough: the bound is not made higher than this, so that its work is bounded.
    """
    if isinstance(request, TextRequest):
        if isinstance(request.prompt, tuple):
            return len(request.prompt)
        return _least(request.prompt, enough)
    found = 0
    for message in request.messages:
        for part in message.parts:
            inner = part.parts if isinstance(part, ToolResult) else (part,)
            for item in inner:
                # A template may leave out what an earlier answer thought, thoughts in its text included.
                if isinstance(item, Text) and not (message.role == "assistant" and "</think" in item.text):
                    found += _least(item.text, enough - found)
        if found >= enough:
            break
    return found


def _least(text: str, enough: int) -> int:
    # Spaces are left out altogether; of a longer text only as much is read as could be enough.
    kept = _MARK.sub("", "".join(text[: 4 * _CHARS * max(enough, 1)].split()))
    return min(len(_RUN.sub(r"\1", kept)) // _CHARS, max(enough, 0))


def _parts(request: ChatRequest) -> Iterator[Image | Audio]:
    for message in request.messages:
        for part in message.parts:
            for item in part.parts if isinstance(part, ToolResult) else (part,):
                if isinstance(item, Image | Audio):
                    yield item


def _of_medium(part: Image | Audio) -> int:
    """Return what a medium adds to the bound beyond its own bytes, which count already; often less than 0."""
    if isinstance(part, Image):
        return _PICTURE - len(part.url)
    return _SOUND + len(part.data) // _SOUND_CHARS - len(part.data)
