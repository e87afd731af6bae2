"""Fields of protobuf messages, written by hand."""

from __future__ import annotations


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field_of(number: int, *content: bytes) -> bytes:
    """A length-delimited field."""
    joined = b"".join(content)
    return varint(number << 3 | 2) + varint(len(joined)) + joined
