"""Which redirects are followed: to https, and never from the internet into a private network."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final
from urllib.parse import urljoin, urlsplit

__all__ = ["MAX_REDIRECTS", "followed", "origin"]

MAX_REDIRECTS: Final = 5
#: Addresses that a gateway between IPv6 and IPv4 makes of those of IPv4 (RFC 6052 §2.1).
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a URL: what credentials are for.

    Raises:
        ValueError: it has no host, or no port that is one.
    """
    parts = urlsplit(url)
    if not parts.hostname:
        raise ValueError("it has no host")
    return parts.scheme, parts.hostname.lower(), parts.port or (443 if parts.scheme == "https" else 80)


def followed(url: str, location: str, *, by_proxy: bool) -> str:
    """The URL that a redirect leads to. Blocks while names are looked up.

    Args:
        url: that was asked for.
        location: as the answer has it.
        by_proxy: whether a proxy makes the connections, which knows names that this machine may not.

    Raises:
        ValueError: it is not followed; says why.
    """
    target = urljoin(url, location)
    scheme, host, port = origin(target)
    here, own_host, own_port = origin(url)
    if scheme != "https" and (scheme, here) != ("http", "http"):
        raise ValueError(f"it redirects from {here} to {scheme}")
    if "@" in urlsplit(target).netloc:
        raise ValueError("it redirects to a URL with a user name")
    if (host, port) != (own_host, own_port) and _is_inside(host, by_proxy) and not _is_inside(own_host, by_proxy):
        raise ValueError(f"it redirects to a private address, {host}")
    return target


def _is_inside(host: str, by_proxy: bool) -> bool:
    """Whether a host has any address that is not of the internet."""
    try:
        return not _is_global(host)
    except ValueError:
        pass
    if by_proxy:
        return host == "localhost" or host.endswith(".localhost")
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False  # connecting to it will say so
    return any(not _is_global(str(entry[4][0]).partition("%")[0]) for entry in found)


def _is_global(text: str) -> bool:
    """Whether an address is of the internet, and the address of IPv4, too, that it may stand for."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return inner.is_global
    return address.is_global
