"""Hosts that Deck may fetch from: patterns of names, the place that a URL names, and which addresses are public.

Knows texts and numbers. Resolves nothing and connects to nothing.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAME = r"[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?"
_HOST = re.compile(_NAME)
_PATTERN = re.compile(rf"(\*|(?:\*\.)?{_NAME}|\[[0-9a-f:.]+\])(?::(\d{{1,5}}))?")
_URL = re.compile(r"https?://[!-\[\]-~]+", re.IGNORECASE)
_LONGEST_URL = 8192
_PORTS = {"http": 80, "https": 443}
# RFC 6052 and RFC 8215: IPv4 addresses behind a translator, at its well-known prefix and at its local ones.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")
# What the standard library calls global, or did in some release, and what is not one host on the public internet.
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(text)
    for text in ("0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24", "fec0::/10", "2001::/23", "5f00::/16")
)
_SHARED = ipaddress.IPv4Network("100.64.0.0/10")
_THIS_NETWORK = ipaddress.IPv4Network("0.0.0.0/8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a URL names: a host and port, and `target`, the path and query to ask for."""

    host: str
    port: int
    tls: bool
    target: str

    @property
    def has_usual_port(self) -> bool:
        """Whether the port is its scheme's own."""
        return self.port == _PORTS["https" if self.tls else "http"]


def place_of_url(url: str) -> Place:
    """Return where an http(s) URL leads.

    Raises:
        ValueError: it is none that Deck follows; the message says why.
    """
    if len(url) > _LONGEST_URL or not _URL.fullmatch(url):
        raise ValueError("not an http(s) URL in ASCII, as RFC 3986 writes it")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("not a URL: its host or port cannot be read") from None
    if "@" in parts.netloc:
        raise ValueError("a URL with a user name or password is not followed")
    host, scheme = parts.hostname or "", parts.scheme.lower()
    is_literal = "[" in parts.netloc
    if not (address_of(host) is not None and "%" not in host if is_literal else _HOST.fullmatch(host)):
        raise ValueError("not a URL: its host is neither a name in ASCII nor an address")
    if port == 0:
        raise ValueError("not a URL: no host listens on port 0")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Place(host=host, port=port or _PORTS[scheme], tls=scheme == "https", target=target)


def read_pattern(text: str) -> str:
    """Return a pattern of hosts in its normal form.

    Raises:
        ValueError: it is none; the message says what one looks like.
    """
    found = _PATTERN.fullmatch(text.strip().lower())
    if found is None or not 0 < int(found[2] or 1) < 65536:
        raise ValueError(
            f'{text!r} is no host; write "images.example.org", "*.example.org", "host:8443", "[::1]:8080" or "*"'
        )
    return found[0]


def matches(pattern: str, place: Place) -> bool:
    """Tell whether a pattern covers a place; one without a port covers the schemes' own ports only."""
    found = _PATTERN.fullmatch(pattern)
    assert found is not None, "patterns were read before"
    host, port = found[1].strip("[]"), found[2]
    if not (place.has_usual_port if port is None else place.port == int(port)):
        return False
    if host == "*":
        return True
    return place.host.endswith(host[1:]) if host.startswith("*.") else place.host == host


def address_of(text: str) -> IPAddress | None:
    """Return an address, of any zone, that a text writes; None = it writes none."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def is_public(address: IPAddress) -> bool:
    """Tell whether an address is one host on the public internet; what is wrapped in another address counts."""
    if isinstance(address, ipaddress.IPv6Address) and address in _LOCAL_NAT64:
        return False
    address = _unwrapped(address)
    if any(address in network for network in _NOT_PUBLIC):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def is_private(address: IPAddress) -> bool:
    """Tell whether an address is this machine's, or of a network of the operator's own; never a link's."""
    address = _unwrapped(address)
    if address.is_link_local or address.is_multicast or address.is_unspecified or address in _THIS_NETWORK:
        return False
    if isinstance(address, ipaddress.IPv4Address) and address.is_reserved:
        return False
    return address.is_loopback or address.is_private or address in _SHARED


def _unwrapped(address: IPAddress) -> IPAddress:
    """Return the IPv4 address that an IPv6 address leads to: mapped, 6to4, Teredo or behind NAT64."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None) or address
