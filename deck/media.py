"""Images that a client names by URL: Deck fetches them itself, under the operator's rules; llama-server never does.

Knows where it may go and what an image is. Does not know any wire: each image says where the client wrote it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import httpx

from deck import __version__
from deck.canon.request import ChatRequest, Image, Message, Part, Request, ToolResult
from deck.config import MediaSettings
from deck.errors import DeckError, invalid
from deck.hosts import Place, address_of, is_private, is_public, matches, place_of_url
from deck.normalize.media import image_kind, is_remote
from deck.upstream.transport import RawResponse, Target, TimeLimits, Transport

_MOST_IMAGES = 16
_AT_ONCE = 16
_AT_ONCE_FOR_ONE = 4
_SHOWN = 200
_TYPES = frozenset({"image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp"})
_HEADERS = (
    (b"accept", b"image/png, image/jpeg, image/gif, image/webp"),
    (b"accept-encoding", b"identity"),
    (b"user-agent", f"deck/{__version__}".encode()),
    (b"connection", b"close"),
)
# One deadline bounds the whole of a fetch, so none of its phases needs its own.
_NO_LIMITS = TimeLimits(pool=None, connect=None, write=None)

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class ImageFetcher:
    """Puts images in the place of their URLs.

    Args:
        settings: `[media]`.
        most_in_all: bytes that the images of one request may have together.
        resolve: looks a host up; all its addresses, the best first.
        transport: how to connect; one of its own if not given.
    """

    def __init__(
        self,
        settings: MediaSettings,
        *,
        most_in_all: int,
        resolve: Resolve | None = None,
        transport: Transport | None = None,
    ) -> None:
        self._settings = settings
        self.is_on = bool(settings.allow or settings.allow_private)
        self._most_in_all = most_in_all
        self._resolve = resolve or _look_up
        self._transport = transport or Transport(max_idle_per_target=0, high_water=64 * 1024)
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def aclose(self) -> None:
        """Abort what is being fetched."""
        await self._transport.aclose()

    def check(self, request: Request) -> bool:
        """Return whether there is anything to fetch, after checking all that needs no fetching.

        Raises:
            DeckError: a URL that may not be fetched, or too many of them.
        """
        urls = set()
        for image in _remote_images(request) if self.is_on else ():
            self._place(image)
            urls.add(image.url)
            if len(urls) > _MOST_IMAGES:
                raise invalid(f"{image.path}: Deck fetches at most {_MOST_IMAGES} images of one request", image.path)
        return bool(urls)

    async def fetch(self, request: Request) -> Request:
        """Return the request with each image as a `data:` URL; the same URL is fetched once.

        Raises:
            DeckError: an image cannot be had; names where the client wrote it.
        """
        if not isinstance(request, ChatRequest) or not self.check(request):
            return request
        images = {image.url: image for image in reversed(list(_remote_images(request)))}
        batch = _Batch(self, self._most_in_all)
        found: dict[str, str] = {}

        async def put(image: Image) -> None:
            found[image.url] = await batch.fetch(image, self._place(image))

        error: DeckError | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for image in images.values():
                    group.create_task(put(image))
        except* DeckError as failed:
            error = _first(failed)
        if error is not None:
            raise error
        return replace(request, messages=tuple(_with(message, found) for message in request.messages))

    def _place(self, image: Image) -> Place:
        try:
            place = place_of_url(image.url)
        except ValueError as exc:
            raise invalid(f"{image.path}: {exc}", image.path, "invalid_image_url") from exc
        if not self._may_be_private(place) and not any(matches(item, place) for item in self._settings.allow):
            where = place.host if place.has_usual_port else f"{place.host}:{place.port}"
            message = (
                f"{image.path}: Deck may not fetch from {where[:_SHOWN]!r}; send the image as a data: URL, "
                f"or let the operator list the host in [media] allow"
            )
            raise invalid(message, image.path, "unsupported_value")
        return place

    def _may_be_private(self, place: Place) -> bool:
        return any(matches(item, place) for item in self._settings.allow_private)

    async def addresses(self, place: Place) -> list[str]:
        """Return the addresses of a host, all of them checked.

        Raises:
            ValueError: there are none, or Deck may not connect to one of them.
        """
        literal = address_of(place.host)
        try:
            texts = [place.host] if literal else list(await self._resolve(place.host, place.port))
        except OSError:
            texts = []
        if not texts:
            raise ValueError(f"the host {place.host!r} has no address")
        may_be_private = self._may_be_private(place)
        for text in texts:
            address = address_of(text)
            if address is None or not (is_public(address) or (may_be_private and is_private(address))):
                raise ValueError(
                    f"the host {place.host!r} is not on the public internet; "
                    "the operator may list it in [media] allow_private"
                )
        return texts

    async def image(self, place: Place, most: int) -> tuple[str, bytes]:
        """Return the type and the bytes of what is at a place.

        Raises:
            ValueError: it cannot be had, or is no image; the message says why.
        """
        async with self._slots:
            try:
                async with asyncio.timeout(self._settings.timeout):
                    addresses = await self.addresses(place)
                    return await self._ask(place, addresses, min(most, self._settings.max_bytes))
            except TimeoutError:
                raise ValueError(f"not fetched within {self._settings.timeout:g} s") from None

    async def _ask(self, place: Place, addresses: Sequence[str], most: int) -> tuple[str, bytes]:
        for address in addresses:
            target = Target(host=place.host, port=place.port, tls=place.tls, address=address)
            try:
                response = await self._transport.send(target, "GET", place.target, _HEADERS, limits=_NO_LIMITS)
                async with contextlib.aclosing(response):
                    _check_head(response, most)
                    content = await _read(response, most)
            except httpx.ConnectError:
                continue
            except (httpx.TransportError, httpx.LocalProtocolError) as exc:
                raise ValueError(f"the host {place.host!r} sent no whole answer") from exc
            kind = image_kind(content)
            if kind is None:
                raise ValueError("what the host sent is no PNG, JPEG, GIF or WebP image, whatever it calls it")
            return kind, content
        raise ValueError(f"no connection to the host {place.host!r}, or its certificate is not valid")


class _Batch:
    """The images of one request: so many at once, so many bytes together."""

    def __init__(self, fetcher: ImageFetcher, most: int) -> None:
        self._fetcher = fetcher
        self._left = most
        self._slots = asyncio.Semaphore(_AT_ONCE_FOR_ONE)

    async def fetch(self, image: Image, place: Place) -> str:
        async with self._slots:
            try:
                kind, content = await self._fetcher.image(place, self._left)
                self._left -= len(content)
                if self._left < 0:
                    raise ValueError("the images of this request are too large together")
            except ValueError as exc:
                raise invalid(f"{image.path}: {exc}", image.path, "invalid_image_url") from exc
        return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _check_head(response: RawResponse, most: int) -> None:
    if 300 <= response.status < 400:
        where = (response.header(b"location") or b"").decode("ascii", "replace")[:_SHOWN]
        raise ValueError(f"the host redirects to {where!r}; Deck follows no redirects, so send the last URL")
    if response.status != 200:
        raise ValueError(f"the host answered with status {response.status}")
    named = (response.header(b"content-type") or b"").decode("latin-1").partition(";")[0].strip().lower()
    if named not in _TYPES:
        raise ValueError(f"the host sent {named[:_SHOWN] or 'no content type'!r}, not an image that models read")
    if (response.header(b"content-encoding") or b"identity").lower() != b"identity":
        raise ValueError("the host sent the image under a content coding, which nobody asked for")
    length = response.header(b"content-length")
    if length is not None and int(length) > most:
        raise _too_large(most)


async def _read(response: RawResponse, most: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while chunk := await response.next_chunk():
        size += len(chunk)
        if size > most:
            raise _too_large(most)
        parts.append(chunk)
    return b"".join(parts)


def _too_large(most: int) -> ValueError:
    return ValueError(f"the image is larger than the {most} bytes that are left for it")


async def _look_up(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(item[4][0]) for item in found))


def _remote_images(request: Request) -> Iterator[Image]:
    for message in request.messages if isinstance(request, ChatRequest) else ():
        for part in message.parts:
            for inner in part.parts if isinstance(part, ToolResult) else (part,):
                if isinstance(inner, Image) and is_remote(inner.url):
                    yield inner


def _with(message: Message, found: Mapping[str, str]) -> Message:
    return replace(message, parts=tuple(_replaced(part, found) for part in message.parts))


def _replaced(part: Part, found: Mapping[str, str]) -> Part:
    match part:
        case Image():
            return _image(part, found)
        case ToolResult(parts=parts):
            inner = (_image(item, found) if isinstance(item, Image) else item for item in parts)
            return replace(part, parts=tuple(inner))
        case _:
            return part


def _image(image: Image, found: Mapping[str, str]) -> Image:
    return replace(image, url=found.get(image.url, image.url))


def _first(group: BaseExceptionGroup[DeckError]) -> DeckError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
