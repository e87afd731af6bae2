"""One header field, checked by RFC 9113 section 8.2 when it is made.

The dynamic table holds these objects, so a field that a client sends by its index is not made and checked again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

__all__ = ["FIELD_BYTES", "TIMEOUT", "HeaderField", "Pair", "complaint", "make_field", "text_of", "texts_of"]

#: Bytes that a field takes at most beside those that it counts for (``HeaderField``), as objects: itself, its
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


#: A field of a header list: name and value as received; the bytes that it counts for, by RFC 7541 section 4.1; and its
#: stand-in, a field for which a request gets the same verdict: this field itself, one constant for every well-formed
#: ``grpc-timeout``, or another one for all fields that verdicts do not depend on. So calls that differ only in their
#: deadlines and metadata have the same stand-ins.
#:
#: A plain tuple, because strangers have the server keep millions of them: Python's garbage collector looks at a tuple
#: of bytes, numbers and such tuples once, and never again, and at an object of a class each time.
HeaderField: TypeAlias = tuple[bytes, bytes, int, Pair]


def make_field(name: bytes, value: bytes) -> HeaderField:
    """A field with this name and value."""
    if name in _DECISIVE or not (_REGULAR_NAME.fullmatch(name) and _LENIENT_VALUE.fullmatch(value)):
        stand_in = name, value
    elif name == b"grpc-timeout":
        stand_in = TIMEOUT
    else:
        stand_in = _OTHER
    return name, value, len(name) + len(value) + 32, stand_in


def text_of(field: HeaderField) -> bytes:
    """The value without the blanks around it."""
    return field[1].strip(b" \t")


def texts_of(fields: Iterable[HeaderField], name: bytes) -> list[bytes]:
    """The same of all fields with a name."""
    return [text_of(field) for field in fields if field[0] == name]


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
