"""What browsers may do here for the pages that they show: one rule for every door.

A browser sends what any page asks for, to this machine and its network too. What it says of the page tells such
requests from others: ``Origin``, which all of its POSTs have (Fetch Standard, section 3.1), and ``Sec-Fetch-Site``
(Fetch Metadata, section 2.4). A page whose owner lets its own name point here ("DNS rebinding") is of the same origin,
so the name that it asked for is looked at: nobody can point an address, ``localhost`` or a name of this server
elsewhere. Clients that are no browsers send neither field, and are not asked.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from toutates.system.address import host_of, is_address
from toutates.system.errors import Forbidden

__all__ = ["WebPages", "of_foreign_page"]

#: Types of bodies that a page may send anywhere without asking (Fetch Standard, "CORS-safelisted request-header").
_FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
_SITE: Final = "sec-fetch-site"
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


def of_foreign_page(fields: Mapping[str, str]) -> bool:
    """Whether a browser sent a request for a page of another origin, or because of one.

    Args:
        fields: its header fields, by lower-case name.
    """
    return fields.get(_SITE, "none") not in ("none", "same-origin")


class WebPages:
    """Which pages may change this server, and under which names it is asked. Any thread may ask, and ``add_name``.

    Args:
        origins: whose pages may (``--cors-origin``). "*" lets all of them read, and none of them change anything.
        hosts: further names of this server (``--allowed-hosts``).
        certificate_names: returns those that its certificate is for, which may begin with "*."; none without TLS.
    """

    def __init__(
        self,
        origins: Iterable[str] = (),
        hosts: Iterable[str] = (),
        certificate_names: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._origins = frozenset(origins) - {"*"}
        self._allowed = frozenset(hosts)
        self._names = self._allowed | {host_of(origin.partition("://")[2]) for origin in self._origins}
        self._names |= {socket.gethostname().lower()}
        self._certificate_names = certificate_names

    def add_name(self, name: str) -> None:
        """Let pages name this server so too; "", which Host fields without a name have, is none."""
        if name:
            self._names |= {name}

    def check_change(self, fields: Mapping[str, str]) -> None:
        """Refuse a request by which a foreign page would change the server.

        Args:
            fields: its header fields by lower-case name, ``host`` among them.

        Raises:
            Forbidden: it is refused, whatever its caller may do.
        """
        origin = fields.get("origin")
        if origin is None and _SITE not in fields:
            return
        host = fields.get("host", "")
        own = origin is None or _is_of(origin, host)
        if origin not in self._origins and (not own or of_foreign_page(fields)):
            raise Forbidden("a page of another origin may not change this server; --cors-origin names those that may")
        sent = fields.get("content-type", "").partition(";")[0].strip().lower()
        if sent in _FORMS:
            raise Forbidden(f"a page may not change this server by a form: send application/json, not {sent}")
        if origin is not None and not self._is_ours(host_of(host)):
            raise Forbidden(
                "a page may change this server only by an address or a name of its own, which the field 'Host' does "
                "not have; --allowed-hosts names others"
            )

    def check_host(self, fields: Mapping[str, str]) -> None:
        """Refuse a request from this machine under a name that may be a foreign page's.

        Args:
            fields: see ``check_change``.

        Raises:
            Forbidden: it is refused.
        """
        name = host_of(fields.get("host", ""))
        if not (_is_fixed(name) or name in self._allowed):
            raise Forbidden(
                "requests from this machine are answered here only where the field 'Host' is an address or localhost; "
                "--allowed-hosts names others, such as those of a proxy"
            )

    def _is_ours(self, name: str) -> bool:
        if _is_fixed(name) or name in self._names:
            return True
        any_label = "*." + name.partition(".")[2]
        return any(known.lower() in (name, any_label) for known in self._certificate_names())


def _is_fixed(name: str) -> bool:
    """Whether nobody can point a name elsewhere."""
    return name == "localhost" or is_address(name)


def _is_of(origin: str, host: str) -> bool:
    """Whether a page's origin is where it sends a request to."""
    scheme, _, place = origin.lower().partition("://")
    return bool(place) and place == host.lower().removesuffix(_DEFAULT_PORTS.get(scheme, " "))
