"""Responses of the HTTP thread. Clients are told not to cache them, and not to guess their type."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from typing import Final, NamedTuple

from toutates.http1 import Refused, encode_fields

__all__ = ["CommonFields", "Response", "page_response", "refusal", "text_response"]

_COMMON: Final = encode_fields(
    {
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-resource-policy": "same-origin",
    }
)
NO_SCRIPTS: Final = "default-src 'none'; frame-ancestors 'none'"


class CommonFields:
    """The header fields that every response has, with the date of the second. Used in one thread."""

    def __init__(self) -> None:
        self._second = 0
        self._fields = b""

    def __call__(self) -> bytes:
        """The fields, as they are sent."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._fields = _COMMON + encode_fields({"date": formatdate(second, usegmt=True)})
        return self._fields


class Response(NamedTuple):
    """What a request is answered.

    Attributes:
        status: of HTTP.
        fields: header fields beside the common ones, as they are sent.
        body: in full.
    """

    status: int
    fields: bytes
    body: bytes


def text_response(
    body: str | bytes,
    *,
    status: int = 200,
    content_type: str = "text/plain; charset=utf-8",
    fields: bytes = b"",
) -> Response:
    """A response that no browser takes for a page; ``fields`` are further ones, as they are sent."""
    body = body.encode() if isinstance(body, str) else body
    return Response(status, _fields(content_type, NO_SCRIPTS) + fields, body)


def page_response(html: bytes, policy: str) -> Response:
    """A page with its Content-Security-Policy."""
    return Response(200, _fields("text/html; charset=utf-8", policy), html)


def refusal(status: int, text: str, fields: Mapping[str, str] | None = None) -> Refused:
    """An error for the peer, to be raised; ``text`` without the end of its line."""
    return Refused(status, text, encode_fields({"content-security-policy": NO_SCRIPTS, **(fields or {})}))


@lru_cache(maxsize=16)
def _fields(content_type: str, policy: str) -> bytes:
    return encode_fields({"content-security-policy": policy, "content-type": content_type})
