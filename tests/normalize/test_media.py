"""What clients send inline, and what they may not."""

from __future__ import annotations

import base64

import pytest

from deck.api import DeckError, Report, audio_of, image_of_url
from deck.normalize.media import image_kind, is_base64

PNG = "iVBORw0KGgo="


@pytest.mark.parametrize("kind", ["png", "jpeg", "jpg", "gif", "webp", "bmp", "PNG"])
def test_images_that_llama_server_decodes(kind: str) -> None:
    url = f"data:image/{kind};base64,{PNG}"
    image = image_of_url(url, "messages[0].content[0].image_url.url", remote=False)
    assert (image.url, image.path) == (url, "messages[0].content[0].image_url.url")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "data:,hello",
        "data:image/svg+xml;base64,PHN2Zz4=",
        "data:image/avif;base64,AAAA",
        "data:text/html;base64,AAAA",
        f"data:image/png,{PNG}",
        "data:image/png;base64,",
        "data:image/png;base64,a b=",
        "data:image/png;base64,aaaa\naaaa",
        "data:image/png;base64,aaaaa",
        "data:image/png;base64,aa=a",
        "data:image/png;base64,aaa==",
        "data:image/png;base64,a-_a",
        "data:image/png;base64,aaaé",
        f"data:image/png;base64,data:image/png;base64,{PNG}",
        PNG,
        "file:///etc/hostname",
        "ftp://example.org/a.png",
        "//example.org/a.png",
    ],
)
@pytest.mark.parametrize("remote", [True, False])
def test_other_urls_are_refused_naming_the_part(url: str, remote: bool) -> None:
    with pytest.raises(DeckError) as caught:
        image_of_url(url, "messages[3].content[1].image_url.url", remote=remote)
    assert caught.value.param == "messages[3].content[1].image_url.url"
    assert caught.value.kind.status == 400


@pytest.mark.parametrize("url", ["https://example.org/a.png", "HTTP://example.org/a.png"])
def test_a_remote_image_is_for_the_operator_to_allow(url: str) -> None:
    assert image_of_url(url, "x", remote=True).url == url
    with pytest.raises(DeckError, match=r"\[media\]"):
        image_of_url(url, "x", remote=False)


@pytest.mark.parametrize("size", range(1, 12))
def test_base64_with_and_without_padding(size: int) -> None:
    text = base64.b64encode(bytes(range(size))).decode()
    assert is_base64(text)
    assert is_base64(text.rstrip("="))
    assert not is_base64(text + "=")


def test_sound() -> None:
    report = Report()
    assert audio_of("UklGRg==", "wav", "x", report).data == "UklGRg=="
    assert report.notes == ()
    for head in ("data:audio/wav;base64,", "data:;base64,"):
        assert audio_of(head + "UklGRg==", "wav", "x", report).data == "UklGRg=="
    assert [note.shown for note in report.notes] == ["x:data>base64"] * 2


@pytest.mark.parametrize("data", ["https://example.org/a.wav", "file:///a.wav", "Ukl GRg==", "", "data:text/plain,a"])
def test_sound_that_llama_server_would_fetch_or_cut_is_refused(data: str) -> None:
    with pytest.raises(DeckError) as caught:
        audio_of(data, "wav", "messages[0].content[0].input_audio.data", Report())
    assert caught.value.param == "messages[0].content[0].input_audio.data"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\x89PNG\r\n\x1a\nrest", "image/png"),
        (b"\xff\xd8\xff\xe0rest", "image/jpeg"),
        (b"GIF87arest", "image/gif"),
        (b"GIF89arest", "image/gif"),
        (b"RIFF\x10\x00\x00\x00WEBPVP8 ", "image/webp"),
        (b"RIFF\x10\x00\x00\x00WAVEfmt ", None),
        (b"<svg xmlns=", None),
        (b"\x89PN", None),
        (b"", None),
    ],
)
def test_images_by_their_first_bytes(content: bytes, kind: str | None) -> None:
    assert image_kind(content) == kind
