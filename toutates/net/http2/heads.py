"""From a header list to the head of a request, as one of HTTP/1.1 would have it (RFC 9113 section 8.3.1)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from toutates.h2grpc.header_field import HeaderField, text_of
from toutates.http1 import Head, Limits, Refused
from toutates.http1.head import CHUNKED

__all__ = ["read_head", "unread_head"]

_METHOD: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET: Final = re.compile(rb"/[\x21-\x7e]*|\*")
#: As llhttp has it, which reads those of HTTP/1.1; HTTP/2 itself forbids less (RFC 9113 section 8.2.1).
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
#: Requests that have no body where they do not say its length.
_WITHOUT_BODY: Final = ("GET", "HEAD", "DELETE", "OPTIONS", "TRACE")


def read_head(fields: Sequence[HeaderField], size: int, limits: Limits) -> Head:
    """The head of a request, whose pseudo-header fields have been checked.

    Args:
        fields: the header list.
        size: of it, by RFC 9113 section 6.5.2.
        limits: of HTTP.

    Raises:
        Refused: it is none that is understood.
    """
    if size > limits.max_head_size:
        raise Refused(431, f"the request's header fields have more than {limits.max_head_size} bytes")
    if len(fields) > limits.max_fields:
        raise Refused(431, f"the request has more than {limits.max_fields} header fields")
    method = target = authority = b""
    texts: dict[str, str] = {}
    hosts = 0
    for field in fields:
        name, value = field[0], text_of(field)
        if name == b":method":
            method = value
        elif name == b":path":
            target = value
        elif name == b":authority":
            authority = value
        elif name != b":scheme":
            if not _VALUE.fullmatch(value):
                raise Refused(400, f"the value of header field {name.decode('latin-1')[:64]} has a control character")
            hosts += name == b"host"
            _add(texts, name.decode("latin-1"), value.decode("latin-1"))
    if not _METHOD.fullmatch(method):
        raise Refused(400, "the method is no token (RFC 9110 section 9.1)")
    if not _TARGET.fullmatch(target):
        raise Refused(400, "the path does not begin with '/' or has a character that it must not have")
    if hosts > 1 or not (hosts or authority):
        raise Refused(400, "a request names its host once, by :authority (RFC 9113 section 8.3.1)")
    if b"@" in authority or not _VALUE.fullmatch(authority):
        raise Refused(400, ":authority is a host and a port (RFC 9113 section 8.3.1)")
    texts.setdefault("host", authority.decode("latin-1"))
    verb = method.decode("ascii")
    names = tuple(texts)
    head = Head(verb, target.decode("ascii"), texts, http_1_0=False, keep_alive=True, names=names)
    if "content-length" not in texts and verb not in _WITHOUT_BODY:
        head.body_size = CHUNKED
        head.expects_continue = "expect" in texts
    return head


def unread_head(fields: Sequence[HeaderField], refusal: Refused) -> Head:
    """Stands for the head of a request that is refused as it came."""
    method = next(field[1] for field in fields if field[0] == b":method")
    head = Head("HEAD" if method == b"HEAD" else "", "", {}, http_1_0=False, keep_alive=True)
    head.refusal = refusal.anew()
    return head


def _add(texts: dict[str, str], name: str, value: str) -> None:
    """Add a field; values of one name are joined as RFC 9110 section 5.3 and RFC 9113 section 8.2.3 say."""
    if name not in texts:
        texts[name] = value
    elif name != "content-length":  # of which all are the same: that has been checked
        texts[name] += ("; " if name == "cookie" else ", ") + value
