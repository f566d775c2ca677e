"""Forms: read strictly, written anew around the same bytes, refused when they are anything else."""

from __future__ import annotations

import contextlib
import email.parser
import email.policy

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deck.errors import DeckError, ErrorKind
from deck.multipart import MOST_PARTS, Section, boundary_of, content_type_of, pieces_of, sections_of

B = b"xYzZy"


def part(head: str, content: bytes = b"x") -> bytes:
    return b"--" + B + b"\r\n" + head.encode() + b"\r\n\r\n" + content + b"\r\n"


def field(name: str, content: bytes = b"x", more: str = "") -> bytes:
    return part(f'Content-Disposition: form-data; name="{name}"{more}', content)


END = b"--" + B + b"--\r\n"


def shown(sections: list[Section]) -> list[tuple[str, bytes, bytes | None, bytes | None]]:
    return [(item.name, bytes(item.content), item.filename, item.kind) for item in sections]


def test_fields_and_files() -> None:
    body = (
        field("model", b"m1")
        + part(
            'content-disposition: form-data; name="file"; filename="a b.wav"\r\nContent-Type: audio/wav', b"\x00\r\n--"
        )
        + part("Content-Disposition:form-data;name=plain;filename=x.txt\r\nContent-Transfer-Encoding: binary", b"")
        + END
    )
    assert shown(sections_of(body, B)) == [
        ("model", b"m1", None, None),
        ("file", b"\x00\r\n--", b"a b.wav", b"audio/wav"),
        ("plain", b"", b"x.txt", None),
    ]


@pytest.mark.parametrize("body", [END, END[:-2]])
def test_a_form_may_be_empty_and_its_last_line_may_lack_its_end(body: bytes) -> None:
    assert sections_of(body, B) == []


@given(
    st.lists(
        st.tuples(
            st.text("abcXYZ[]_-.09", min_size=1, max_size=12),
            st.binary(max_size=80),
            st.none() | st.text('ab ä.\\"%;=', max_size=8),
        ),
        max_size=6,
    )
)
def test_what_is_written_is_what_was_read(parts: list[tuple[str, bytes, str | None]]) -> None:
    sections = [
        Section(
            name=name,
            content=memoryview(content),
            filename=None if filename is None else filename.replace("\\", "\\\\").replace('"', '\\"').encode(),
        )
        for name, content, filename in parts
    ]
    boundary = b"a-boundary-that-stands-in-no-content-0123456789"
    body = b"".join(bytes(piece) for piece in pieces_of(sections, boundary))
    assert shown(sections_of(body, boundary)) == shown(sections)


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4))
def test_what_is_written_is_read_alike_by_others(contents: list[bytes]) -> None:
    """The standard library's reader of messages, which is not Deck's."""
    boundary = b"another-boundary-0123456789"
    sections = [Section(name=f"n{at}", content=memoryview(item), filename=b"f") for at, item in enumerate(contents)]
    head = b"Content-Type: " + content_type_of(boundary) + b"\r\n\r\n"
    body = head + b"".join(bytes(piece) for piece in pieces_of(sections, boundary))
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(body)
    read = list(message.iter_parts())
    assert [item.get_param("name", header="content-disposition") for item in read] == [item.name for item in sections]


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_read(body: bytes) -> None:
    for content in (body, b"--" + B + body, field("a", body), field("a", body) + END):
        with contextlib.suppress(DeckError):
            assert len(sections_of(content, B)) <= 2


GARBAGE = {
    "empty": b"",
    "no boundary": b'{"model": "m"}',
    "another boundary": field("a").replace(B, b"other") + END,
    "a preamble": b"hello\r\n" + field("a") + END,
    "an epilogue": field("a") + END + b"more",
    "cut in a head": field("a")[:30],
    "cut in a content": field("a", b"x" * 50)[:-20],
    "cut before the last boundary": field("a"),
    "cut in the last boundary": field("a") + END[:-3],
    "no disposition": part("Content-Type: text/plain") + END,
    "no name": part("Content-Disposition: form-data") + END,
    "an empty name": field("") + END,
    "two names": part('Content-Disposition: form-data; name="a"; name="b"') + END,
    "two dispositions": part('Content-Disposition: form-data; name="a"\r\nContent-Disposition: form-data; name="b"')
    + END,
    "another disposition": part('Content-Disposition: attachment; name="a"') + END,
    "an unknown parameter": part('Content-Disposition: form-data; name="a"; size=3') + END,
    "a folded head": part('Content-Disposition: form-data;\r\n name="a"') + END,
    "an unclosed quote": part('Content-Disposition: form-data; name="a') + END,
    "a coding": part('Content-Disposition: form-data; name="a"\r\nContent-Transfer-Encoding: base64') + END,
    "another header": part('Content-Disposition: form-data; name="a"\r\nX-Odd: 1') + END,
    "a name that is not UTF-8": b"--" + B + b'\r\nContent-Disposition: form-data; name="\xff"\r\n\r\nx\r\n' + END,
    "a head without end": b"--" + B + b"\r\n" + b"A" * 20_000,
    "bare line feeds": field("a").replace(b"\r\n", b"\n") + END,
    "text behind a boundary": field("a") + b"--" + B + b"zzz\r\n",
    "too many parts": field("a") * (MOST_PARTS + 1) + END,
}


@pytest.mark.parametrize("body", GARBAGE.values(), ids=GARBAGE)
def test_each_fault_is_told(body: bytes) -> None:
    with pytest.raises(DeckError, match="not valid multipart/form-data") as caught:
        sections_of(body, B)
    assert caught.value.kind is ErrorKind.INVALID_REQUEST


@pytest.mark.parametrize(
    ("sent", "boundary"),
    [
        ("multipart/form-data; boundary=abc", b"abc"),
        ('Multipart/Form-Data;charset=utf-8; BOUNDARY="a b"'.replace(" b", "=b"), b"a=b"),
        (
            "multipart/form-data; boundary=----WebKitFormBoundary7MA4YWxkTrZu0gW",
            b"----WebKitFormBoundary7MA4YWxkTrZu0gW",
        ),
    ],
)
def test_boundaries(sent: str, boundary: bytes) -> None:
    assert boundary_of(sent) == boundary
    assert boundary_of(content_type_of(boundary).decode()) == boundary


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        ("", ErrorKind.UNSUPPORTED_MEDIA),
        ("application/json", ErrorKind.UNSUPPORTED_MEDIA),
        ("multipart/mixed; boundary=a", ErrorKind.UNSUPPORTED_MEDIA),
        ("multipart/form-data", ErrorKind.INVALID_REQUEST),
        ("multipart/form-data; boundary=", ErrorKind.INVALID_REQUEST),
        ("multipart/form-data; boundary=a; boundary=b", ErrorKind.INVALID_REQUEST),
        ("multipart/form-data; boundary=" + "a" * 71, ErrorKind.INVALID_REQUEST),
        ('multipart/form-data; boundary="a\\"b"', ErrorKind.INVALID_REQUEST),
        ("multipart/form-data; boundary=ä", ErrorKind.INVALID_REQUEST),
    ],
)
def test_no_boundary(sent: str, kind: ErrorKind) -> None:
    with pytest.raises(DeckError) as caught:
        boundary_of(sent)
    assert caught.value.kind is kind


def test_a_real_clients_form() -> None:
    request = httpx.Request(
        "POST",
        "http://h",
        data={"model": "m", "include[]": ["a", "b"]},
        files={"file": ("ä.wav", b"RIFF", "audio/wav")},
    )
    request.read()
    found = shown(sections_of(request.content, boundary_of(request.headers["content-type"])))
    assert [(name, content) for name, content, *_ in found] == [
        ("model", b"m"),
        ("include[]", b"a"),
        ("include[]", b"b"),
        ("file", b"RIFF"),
    ]
