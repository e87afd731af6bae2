"""Who may use what only the machine's own users may: /debug, unless ``--debug-endpoints`` opens it to all.

A connection from the machine itself is not enough. A browser on it makes requests for any page that it shows: to names
that a page's owner lets point here ("DNS rebinding"), and to ours from foreign pages. And a proxy on the machine passes
on requests of others. What these requests say of themselves tells them from those of the machine's users.
"""

from __future__ import annotations

from collections.abc import Mapping

from toutates.system.address import is_loopback, names_loopback

__all__ = ["is_local_request"]

#: Headers with which proxies say for whom they ask.
_PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


def is_local_request(peer: str | None, headers: Mapping[str, str]) -> bool:
    """Whether a request comes from this machine, and is addressed to it.

    Args:
        peer: the IP address at the other end.
        headers: of the request, by lower-case name.
    """
    if peer is None or not is_loopback(peer):
        return False
    return names_loopback(headers.get("host", "")) and not any(name in headers for name in _PROXY_HEADERS)
