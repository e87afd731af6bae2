"""One header field, and what RFC 9113 section 8.2 asks of it, judged once when the field is made.

The dynamic table holds these, so a field that a client refers to by its index is neither made nor judged again.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

__all__ = ["TIMEOUT", "HeaderField", "Pair", "complaint"]

#: Name and value.
Pair: TypeAlias = tuple[bytes, bytes]

#: Stands in for every well-formed ``grpc-timeout``.
TIMEOUT: Final[Pair] = (b"grpc-timeout", b"1S")
#: Stands in for every well-formed field that no request is judged by, custom metadata above all.
_OTHER: Final[Pair] = (b"x", b"")

#: RFC 9113 section 8.2.2
_CONNECTION_SPECIFIC = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"))
#: What a request is judged by, beside its pseudo-header fields.
_DECISIVE = _CONNECTION_SPECIFIC.union(
    (b"content-length", b"content-type", b"grpc-accept-encoding", b"grpc-encoding", b"host", b"te")
)

#: RFC 9113 section 8.2.1: lower-case tokens; a colon only as the first character (pseudo-header fields).
_REGULAR_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_NAME = re.compile(rb":?" + _REGULAR_NAME.pattern)
_VALUE = re.compile(rb"(?![ \t])[^\x00\r\n]*(?<![ \t])")


class HeaderField:
    """A field of a header list. Shared by all that refer to it, so never changed.

    Attributes:
        name: as received.
        value: as received.
        size: bytes that the field counts for, by RFC 7541 section 4.1.
        stand_in: a field by which a request is judged in the same way: itself, or one constant for every well-formed
            ``grpc-timeout``, and one for all that requests are not judged by. So calls that differ in their deadlines
            and metadata have the same stand-ins.
    """

    __slots__ = ("name", "size", "stand_in", "value")

    def __init__(self, name: bytes, value: bytes) -> None:
        self.name = name
        self.value = value
        self.size = len(name) + len(value) + 32
        if name in _DECISIVE or not (_REGULAR_NAME.fullmatch(name) and _VALUE.fullmatch(value)):
            self.stand_in: Pair = (name, value)
        elif name == b"grpc-timeout":
            self.stand_in = TIMEOUT
        else:
            self.stand_in = _OTHER


def complaint(field: Pair) -> str:
    """Why no request or trailer section may have this field; "" when it may."""
    name, value = field
    if not _NAME.fullmatch(name):
        return f"invalid field name {name[:64]!r}"
    if not _VALUE.fullmatch(value):
        return f"invalid value of field {name[:64]!r}"
    if name in _CONNECTION_SPECIFIC:
        return f"connection-specific field {name.decode()!r}"
    if name == b"te" and value.lower() != b"trailers":  # a keyword, so in any case (RFC 9110 section 10.1.4)
        return "te is not 'trailers'"
    return ""
