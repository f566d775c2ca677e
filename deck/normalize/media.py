"""Images and sound as clients send them: inline in base64, and URLs where the operator lets Deck fetch them."""

from __future__ import annotations

import binascii
import re

from deck.canon.request import Audio, Image
from deck.errors import invalid
from deck.normalize.report import Report

# What llama-server decodes of what it is sent inline (tools/mtmd); WebP in its newer builds.
_IMAGE = re.compile(r"data:image/(?:png|jpeg|jpg|gif|webp|bmp);base64,", re.IGNORECASE)
_AUDIO = re.compile(r"data:(?:audio/[\w.+-]+)?;base64,", re.IGNORECASE)
_LONGEST_HEAD = 64
_REMOTE = ("http://", "https://")


def is_remote(url: str) -> bool:
    """Tell whether somebody would have to fetch what is at a URL over HTTP."""
    return url[:8].lower().startswith(_REMOTE)


def image_of_url(url: str, path: str, *, remote: bool) -> Image:
    """Return the image at a client's URL; `remote` says that http(s) is allowed, to be fetched later.

    Raises:
        DeckError: it is no URL of an image that may be passed on.
    """
    if is_remote(url):
        if remote:
            return Image(url, path)
        message = f"{path}: only data: URLs are accepted; Deck fetches from hosts that its operator lists in [media]"
        raise invalid(message, path, "unsupported_value")
    head = _IMAGE.match(url, 0, _LONGEST_HEAD)
    if head is None:
        expected = "expected data:image/…;base64,… of PNG, JPEG, GIF, WebP or BMP"
        raise invalid(f"{path}: {expected}", path, "unsupported_value")
    if not is_base64(url[head.end() :]):
        raise invalid(f"{path}: what stands behind 'base64,' is not base64, or has line breaks", path, "invalid_value")
    return Image(url, path)


def audio_of(data: str, kind: str, path: str, report: Report) -> Audio:
    """Return sound that a client sent as base64; a `data:` URL counts as the base64 in it.

    Raises:
        DeckError: it is no base64. llama-server would take a URL here, and fetch it.
    """
    head = _AUDIO.match(data, 0, _LONGEST_HEAD)
    if head is not None:
        report.changed(path, "a data: URL is read as the base64 in it", shown=f"{path}:data>base64")
        data = data[head.end() :]
    if not is_base64(data):
        raise invalid(f"{path}: expected the sound itself in base64, without line breaks", path, "invalid_value")
    return Audio(data, kind)


def is_base64(text: str) -> bool:
    """Tell whether a text is base64 of something, in the usual alphabet; the padding may be missing.

    llama-server would stop at the first other character and fail on what it has got until then.
    """
    padding = "=" * (-len(text) % 4)
    if not text.isascii() or (padding and text.endswith("=")):
        return False
    try:
        return bool(binascii.a2b_base64(text + padding, strict_mode=True))
    except binascii.Error:
        return False


def image_kind(content: bytes) -> str | None:
    """Return the media type of an image by its first bytes, None = none that llama-server reads."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if content.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if content[:4] == b"RIFF" and content[8:12] == b"WEBP" else None
