"""Where Deck may fetch from: URLs, patterns and addresses, as tables."""

from __future__ import annotations

import ipaddress

import pytest

from deck.hosts import is_private, is_public, matches, place_of_url, read_pattern

PUBLIC = ["93.184.216.34", "1.1.1.1", "2606:4700:4700::1111", "::ffff:1.1.1.1", "2002:101:101::1", "64:ff9b::1.1.1.1"]
PRIVATE = [
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "127.0.0.1",
    "127.255.255.254",
    "100.64.0.1",
    "::1",
    "fc00::1",
    "fd12:3456::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:7f00:1",
    "2002:7f00:1::1",
    "2002:a00:1::1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::10.0.0.1",
]
NOBODYS = [
    "0.0.0.0",
    "0.1.2.3",
    "169.254.169.254",
    "169.254.0.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "fe80::1",
    "fe80::1%eth0",
    "ff02::1",
    "::ffff:169.254.169.254",
    "::ffff:0.0.0.0",
    "64:ff9b::169.254.169.254",
    "2002:a9fe:a9fe::1",
]
# Neither a host of the public internet nor certainly one of the operator's own: never public.
UNCLEAR = [
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "::7f00:1",
    "64:ff9b:1::7f00:1",
    "100::1",
    "2001:2::1",
    "2001:db8::1",
    "fec0::1",
    "5f00::1",
    "2001:0:7f00:1::1",
]


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))
    assert not is_private(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", PRIVATE)
def test_private_addresses(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))
    assert is_private(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", NOBODYS)
def test_addresses_that_are_never_connected_to(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))
    assert not is_private(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", UNCLEAR)
def test_addresses_that_are_not_public(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "target"),
    [
        ("https://images.example.org/a.png", "images.example.org", 443, True, "/a.png"),
        ("HTTP://Images.Example.ORG", "images.example.org", 80, False, "/"),
        ("https://example.org:8443/a?b=c&d=%20#there", "example.org", 8443, True, "/a?b=c&d=%20"),
        ("http://[2606:4700::1]:81/x", "2606:4700::1", 81, False, "/x"),
        ("http://10.0.0.1?x", "10.0.0.1", 80, False, "/?x"),
    ],
)
def test_urls(url: str, host: str, port: int, tls: bool, target: str) -> None:
    place = place_of_url(url)
    assert (place.host, place.port, place.tls, place.target) == (host, port, tls, target)


@pytest.mark.parametrize(
    "url",
    [
        "https://",
        "https:///a.png",
        "ftp://example.org/a",
        "file:///etc/hostname",
        "https://user@example.org/a",
        "https://user:secret@example.org/a",
        "https://example.org\\@evil.example/a",
        "https://example.org /a",
        "https://example.org/\r\nhost: evil.example",
        "https://example.org/a\tb",
        "https://bücher.example/a",
        "https://example.org:0/a",
        "https://example.org:70000/a",
        "https://example.org:x/a",
        "https://[::1/a",
        "https://[fe80::1%25eth0]/a",
        "https://[v1.x]/a",
        "https://exam_ple!.org/a",
        "https://-/a",
        "https://example.org/" + "a" * 9000,
    ],
)
def test_what_is_no_url_to_follow(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        place_of_url(url)


@pytest.mark.parametrize(
    ("pattern", "url"),
    [
        ("images.example.org", "https://images.example.org/a"),
        ("IMAGES.example.org", "http://images.EXAMPLE.org/a"),
        ("*.example.org", "https://a.b.example.org/"),
        ("*", "https://anything.example/"),
        ("example.org:8443", "https://example.org:8443/"),
        ("*:8443", "http://example.org:8443/"),
        ("example.org:80", "http://example.org/"),
        ("10.0.0.1", "http://10.0.0.1/"),
        ("[::1]:8080", "http://[::1]:8080/"),
    ],
)
def test_patterns_that_match(pattern: str, url: str) -> None:
    assert matches(read_pattern(pattern), place_of_url(url))


@pytest.mark.parametrize(
    ("pattern", "url"),
    [
        ("images.example.org", "https://example.org/"),
        ("example.org", "https://images.example.org/"),
        ("example.org", "https://example.org.evil.example/"),
        ("*.example.org", "https://example.org/"),
        ("*.example.org", "https://evilexample.org/"),
        ("example.org", "https://example.org:8443/"),
        ("example.org", "http://example.org:443/"),
        ("*", "http://example.org:22/"),
        ("example.org:8443", "https://example.org/"),
        ("127.0.0.1", "http://127.1/"),
    ],
)
def test_patterns_that_do_not(pattern: str, url: str) -> None:
    assert not matches(read_pattern(pattern), place_of_url(url))


@pytest.mark.parametrize(
    "text", ["", "https://example.org", "example.org/a", "exa mple", "*example.org", "a.*.org", "x:0", "x:99999", "::1"]
)
def test_what_is_no_pattern(text: str) -> None:
    with pytest.raises(ValueError, match="is no host; write"):
        read_pattern(text)
