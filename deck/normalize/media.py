"""URLs of images as clients send them: data URLs, and http(s) ones where the operator lets Deck fetch them."""

from __future__ import annotations

import re

from deck.canon.request import Image
from deck.errors import invalid

_DATA_URL = re.compile(r"data:image/[A-Za-z0-9.+-]+;base64,[A-Za-z0-9+/]+={0,2}")
_REMOTE = ("http://", "https://")


def image_of_url(url: str, path: str, *, remote: bool) -> Image:
    """Return the image at a client's URL; `remote` says that http(s) is allowed, to be fetched later.

    Raises:
        DeckError: it is no URL of an image that may be passed on.
    """
    if remote and url.lower().startswith(_REMOTE):
        return Image(url)
    if not url.startswith("data:"):
        message = f"{path}: only data: URLs are accepted; Deck fetches no client's URL"
        raise invalid(message, path, "unsupported_value")
    if not _DATA_URL.fullmatch(url):
        raise invalid(f"{path}: expected data:image/…;base64,… without line breaks", path, "unsupported_value")
    return Image(url)
