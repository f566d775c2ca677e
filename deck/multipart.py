"""multipart/form-data (RFC 7578), read strictly out of a whole body and written anew around the same bytes.

Knows boundaries and the heads of parts. Does not know any field. What is passed on has heads that are written here, so
that nobody behind Deck can read a part's name or kind in another way than Deck did; contents are never copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from deck.canon.value import value
from deck.errors import DeckError, ErrorKind, invalid

MOST_PARTS = 256
_MOST_HEAD = 8 * 1024
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,\-./:=?]{1,70}")
_PARAMETER = re.compile(
    rb';[ \t]*([A-Za-z*]+)=(?:"((?:[^"\\\x00-\x1f\x7f]|\\[^\x00-\x1f\x7f])*)"|([^\s";\\\x00-\x1f]+))[ \t]*'
)
_TYPE = re.compile(rb"[!-~][ -~]{0,254}")
_IDENTITY = (b"binary", b"8bit", b"7bit")
_END = (b"", b"\r\n")
_SHOWN = 60


@value(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of a body: the form's name, and of a file its name and type as they were written.

    `content` is a view of the body, not a copy.
    """

    name: str
    content: memoryview
    filename: bytes | None = None
    kind: bytes | None = None


def boundary_of(content_type: str) -> bytes:
    """Return the boundary that a Content-Type names.

    Raises:
        DeckError: `UNSUPPORTED_MEDIA` for another type, `INVALID_REQUEST` without a usable boundary.
    """
    kind, _, parameters = content_type.partition(";")
    if kind.strip().lower() != "multipart/form-data":
        shown = kind.strip()[:100]
        raise DeckError(
            ErrorKind.UNSUPPORTED_MEDIA, f"Content-Type {shown!r} is not supported; send multipart/form-data"
        )
    found = [item.partition("=") for item in parameters.split(";")]
    named = [text.strip() for name, _, text in found if name.strip().lower() == "boundary"]
    if len(named) != 1:
        raise invalid("Content-Type names no boundary, or several; send multipart/form-data; boundary=…")
    boundary = named[0][1:-1] if len(named[0]) > 1 and named[0][0] == named[0][-1] == '"' else named[0]
    if not _BOUNDARY.fullmatch(boundary):
        raise invalid(f"Content-Type names a boundary that may not be one: {boundary[:_SHOWN]!r}")
    return boundary.encode("ascii")


def content_type_of(boundary: bytes) -> bytes:
    """Return the Content-Type of a body with this boundary."""
    return b'multipart/form-data; boundary="%b"' % boundary


def sections_of(body: bytes, boundary: bytes) -> list[Section]:
    """Return the parts of a body in their order.

    Raises:
        DeckError: `INVALID_REQUEST`: it is not what the boundary says, is cut, or has too many parts.
    """
    delimiter = b"--" + boundary
    between, view = b"\r\n" + delimiter, memoryview(body)
    if not body.startswith(delimiter):
        raise _broken("it does not begin with the boundary that Content-Type names")
    found: list[Section] = []
    at = len(delimiter)
    while not body.startswith(b"--", at):
        if len(found) == MOST_PARTS:
            raise _broken(f"it has more than {MOST_PARTS} parts")
        if not body.startswith(b"\r\n", at):
            raise _broken(f"its part {len(found) + 1} does not begin with a line of its own")
        begin = body.find(b"\r\n\r\n", at, at + _MOST_HEAD)
        if begin < 0:
            raise _broken(f"the head of its part {len(found) + 1} does not end within {_MOST_HEAD} bytes")
        end = body.find(between, begin + 4)
        if end < 0:
            raise _broken("it ends before its last boundary: it was cut")
        found.append(_section(body[at + 2 : begin], view[begin + 4 : end], len(found) + 1))
        at = end + len(between)
    if body[at + 2 :] not in _END:
        raise _broken("something follows its last boundary")
    return found


def _section(head: bytes, content: memoryview, number: int) -> Section:
    disposition, kind = b"", None
    seen: set[bytes] = set()
    for line in head.split(b"\r\n"):
        name, colon, text = line.partition(b":")
        name, text = name.lower(), text.strip(b" \t")
        if not colon or name in seen:
            raise _broken(f"part {number} has a header without a colon, or one twice")
        seen.add(name)
        match name:
            case b"content-disposition":
                disposition = text
            case b"content-type":
                kind = text
            case b"content-transfer-encoding" if text.lower() in _IDENTITY:
                pass
            case b"content-length":
                pass  # the boundary says it
            case _:
                shown = name[:_SHOWN].decode("latin-1")
                raise _broken(f"part {number} has the header {shown!r}; send Content-Disposition and Content-Type")
    if kind is not None and not _TYPE.fullmatch(kind):
        raise _broken(f"part {number} has a malformed Content-Type")
    field, filename = _disposition(disposition, number)
    return Section(name=field, content=content, filename=filename, kind=kind)


def _disposition(text: bytes, number: int) -> tuple[str, bytes | None]:
    kind, semicolon, _ = text.partition(b";")
    fault = _broken(f'part {number} needs `Content-Disposition: form-data; name="…"`')
    if kind.strip().lower() != b"form-data" or not semicolon:
        raise fault
    at, found = len(kind), dict[bytes, bytes]()
    while at < len(text):
        match = _PARAMETER.match(text, at)
        if match is None or match[1].lower() in found:
            raise fault
        found[match[1].lower()] = match[2] if match[2] is not None else match[3]
        at = match.end()
    # A client that sends `filename*` sends `filename` as well, and this form has no use for the former (RFC 7578, 4.2).
    found.pop(b"filename*", None)
    if not found.get(b"name") or not found.keys() <= {b"name", b"filename"}:
        raise fault
    try:
        return found[b"name"].decode(), found.get(b"filename")
    except UnicodeDecodeError:
        raise fault from None


def pieces_of(sections: Iterable[Section], boundary: bytes) -> Sequence[bytes | memoryview]:
    """Return a body of these parts, to be sent one piece after the other."""
    pieces: list[bytes | memoryview] = []
    for section in sections:
        head = b'--%b\r\ncontent-disposition: form-data; name="%b"' % (boundary, section.name.encode())
        if section.filename is not None:
            head += b'; filename="%b"' % section.filename
        if section.kind is not None:
            head += b"\r\ncontent-type: %b" % section.kind
        pieces += (head + b"\r\n\r\n", section.content, b"\r\n")
    pieces.append(b"--%b--\r\n" % boundary)
    return pieces


def _broken(why: str) -> DeckError:
    return invalid(f"the body is not valid multipart/form-data: {why}")
