"""The parts of protobuf's wire format that are read and written without protobuf.

Source: "Encoding" in the Protocol Buffers documentation.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["field_head", "read_varint"]


class _Octets(Protocol):
    def __getitem__(self, index: int, /) -> int: ...


def read_varint(buffer: _Octets, at: int) -> tuple[int, int]:
    """The varint that begins at offset ``at``, and the offset of its end.

    Raises:
        IndexError: it is longer than ten bytes, or the buffer ends before it does.
    """
    value = buffer[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    for shift in range(7, 70, 7):
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise IndexError


def field_head(tag: int, length: int) -> bytes:
    """Tag and length of a length-delimited field.

    Args:
        tag: the field's number << 3 | 2, below 128.
        length: of its content, bytes.
    """
    head = bytearray([tag])
    while length >= 0x80:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head)
