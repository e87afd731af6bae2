"""One header field, checked by RFC 9113 section 8.2 when it is made.

The dynamic table holds these objects, so a field that a client sends by its index is not made and checked again.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

__all__ = ["FIELD_BYTES", "TIMEOUT", "HeaderField", "Pair", "complaint"]

#: Bytes that a field takes at most beside those that it counts for (``HeaderField.size``), as objects: itself, its
#: name, its value, its stand-in, and its place in a header list.
FIELD_BYTES: Final = 160

#: Name and value.
Pair: TypeAlias = tuple[bytes, bytes]

#: Stands in for every well-formed ``grpc-timeout``.
TIMEOUT: Final[Pair] = (b"grpc-timeout", b"1S")
#: Stands in for every well-formed field that the verdict on a request does not depend on, such as custom metadata.
_OTHER: Final[Pair] = (b"x", b"")

#: RFC 9113 section 8.2.2
_CONNECTION_SPECIFIC = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"))
#: The fields that the verdict on a request depends on, beside its pseudo-header fields.
_DECISIVE = _CONNECTION_SPECIFIC.union(
    (b"content-length", b"content-type", b"grpc-accept-encoding", b"grpc-encoding", b"host", b"te")
)

#: RFC 9113 section 8.2.1: lower-case tokens; a colon only as the first character (pseudo-header fields).
_REGULAR_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_NAME = re.compile(rb":?" + _REGULAR_NAME.pattern)
_VALUE = re.compile(rb"(?![ \t])[^\x00\r\n]*(?<![ \t])")
#: Of fields that verdicts do not depend on, which may have blanks around: clients of gRPC send them, and the gRPC
#: specification has servers strip them ("Requests"), where RFC 9113 section 8.2.1 has the request malformed.
_LENIENT_VALUE = re.compile(rb"[^\x00\r\n]*")


class HeaderField:
    """A field of a header list. Header lists and the dynamic table share it, so it is never changed.

    Attributes:
        name: as received.
        value: as received.
        size: bytes that the field counts for, by RFC 7541 section 4.1.
        stand_in: a field for which a request gets the same verdict: this field itself, one constant for every
            well-formed ``grpc-timeout``, or another one for all fields that verdicts do not depend on. So calls that
            differ only in their deadlines and metadata have the same stand-ins.
    """

    __slots__ = ("name", "size", "stand_in", "value")

    def __init__(self, name: bytes, value: bytes) -> None:
        self.name = name
        self.value = value
        self.size = len(name) + len(value) + 32
        if name in _DECISIVE or not (_REGULAR_NAME.fullmatch(name) and _LENIENT_VALUE.fullmatch(value)):
            self.stand_in: Pair = (name, value)
        elif name == b"grpc-timeout":
            self.stand_in = TIMEOUT
        else:
            self.stand_in = _OTHER

    @property
    def text(self) -> bytes:
        """The value without the blanks around it."""
        return self.value.strip(b" \t")


def complaint(field: Pair) -> str:
    """Why a request or trailer section must not have this field; "" if it may."""
    name, value = field
    if not _NAME.fullmatch(name):
        return f"invalid field name {name[:64]!r}"
    strict = name in _DECISIVE or name.startswith(b":")
    if not (_VALUE if strict else _LENIENT_VALUE).fullmatch(value):
        return f"invalid value of field {name[:64]!r}"
    if name in _CONNECTION_SPECIFIC:
        return f"connection-specific field {name.decode()!r}"
    if name == b"te" and value.lower() != b"trailers":  # a keyword, so in any case (RFC 9110 section 10.1.4)
        return "te is not 'trailers'"
    return ""
