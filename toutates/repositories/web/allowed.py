"""URLs that begin as an operator allows: what will be requested is compared, and never what was written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

__all__ = ["AllowedUrls", "PlainUrl", "plain_url"]

_MOST: Final = 2_048
_HOST: Final = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|[0-9a-f:.]*:[0-9a-f:.]*")
_PORTS: Final = {"http": 80, "https": 443}
#: How often a part of a path may be encoded again, for servers that decode it as often.
_MOST_DECODED: Final = 3


class PlainUrl(NamedTuple):
    """A URL in the one way in which it is requested and compared.

    Attributes:
        origin: scheme, host and port; the port only where it is not the scheme's.
        path: as it is requested, of segments that no server takes for a way up.
        query: with its question mark; "" for none.
    """

    origin: str
    path: str
    query: str

    def __str__(self) -> str:
        return f"{self.origin}{self.path}{self.query}"

    def begins_with(self, other: PlainUrl) -> bool:
        """Whether it lies where another one says, however the letters of both are encoded."""
        return self.origin == other.origin and unquote(self.path).startswith(unquote(other.path))


def plain_url(text: str) -> PlainUrl:
    """Read a URL of http, https or file.

    Raises:
        ValueError: it is none, or servers could read it differently; says why.
    """
    if len(text) > _MOST or not text.isascii() or not text.isprintable() or any(one in text for one in ' \\<>"'):
        raise ValueError("it has characters that no URL has, or too many")
    parts = urlsplit(text)
    if "@" in parts.netloc:
        raise ValueError("it has a user name")
    origin = f"{parts.scheme}://"
    if parts.scheme in _PORTS:
        host = (parts.hostname or "").removesuffix(".")
        if not _HOST.fullmatch(host):
            raise ValueError("it has no host")
        origin += f"[{host}]" if ":" in host else host
        origin += f":{parts.port}" if parts.port not in (None, _PORTS[parts.scheme]) else ""
    elif parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ValueError("it is not one of http, https or this machine's files")
    path = parts.path or "/"
    _check_path(path)
    return PlainUrl(origin, path, f"?{parts.query}" if parts.query and parts.scheme in _PORTS else "")


def _check_path(path: str) -> None:
    """See that a path leads down only, also for servers that decode it more than once, or pass over parameters."""
    slashes = path.count("/")
    for _ in range(_MOST_DECODED):
        steps = [segment.partition(";")[0].rstrip() for segment in path.split("/")]
        if "." in steps or ".." in steps or "\\" in path or "\0" in path or path.count("/") != slashes:
            raise ValueError("its path is relative")
        if "\ufffd" in path or not path.isprintable():
            raise ValueError("its path has bytes that servers read differently")
        before, path = path, unquote(path)
        if path == before:
            return
    raise ValueError("its path is encoded again and again")


class AllowedUrls:
    """What may be requested.

    Args:
        beginnings: of URLs.

    Raises:
        ValueError: one of them is none.
    """

    def __init__(self, beginnings: Sequence[str]) -> None:
        self._beginnings = [plain_url(one) for one in beginnings]

    def plain(self, text: str) -> PlainUrl:
        """A URL that is allowed, as it is to be requested.

        Raises:
            ValueError: it is not.
        """
        url = plain_url(text)
        if not any(url.begins_with(one) for one in self._beginnings):
            raise ValueError("it is not allowed")
        return url
