"""Counts the fields of a ModelInferRequest before it is parsed.

A field of two bytes costs up to 10 us to parse with the pure-Python protobuf of free-threaded Python, and 100 bytes of
memory with any: a message of some megabytes that is nothing but fields would hold its worker up for many seconds. A
request for a model of a thousand inputs has 9,000. So the fields are counted, in 0.2 us each, and only so far.

What tensors contain does not count: raw contents are one field each, and typed contents are the caller's data, whose
cost is in proportion to their bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from toutates.protocol.wire_format import read_varint
from toutates.system.errors import InvalidRequest

__all__ = ["MAX_FIELDS", "check_structure"]

#: Fields of a request on all levels, map entries and the bytes of packed shapes among them.
MAX_FIELDS: Final = 16_384

#: By tag, the fields inside a length-delimited field; None for packed numbers, of which each byte counts as a field.
_Fields: TypeAlias = Mapping[int, "_Fields | None"]


def _tag(number: int) -> int:
    return number << 3 | 2


_PARAMETER: Final[_Fields] = {_tag(2): {}}
_INPUT: Final[_Fields] = {_tag(3): None, _tag(4): _PARAMETER}
_OUTPUT: Final[_Fields] = {_tag(2): _PARAMETER}
_REQUEST: Final[_Fields] = {_tag(4): _PARAMETER, _tag(5): _INPUT, _tag(6): _OUTPUT}


def check_structure(buffer: bytes, at: int, end: int) -> None:
    """Check that the ModelInferRequest ``buffer[at:end]`` has no more than MAX_FIELDS fields.

    The count ends where the message is malformed: protobuf reads no further either, and refuses it.

    Raises:
        InvalidRequest: it has more.
    """
    try:
        left = _walk(buffer, at, end, _REQUEST, MAX_FIELDS)
    except IndexError:
        return
    if left < 0:
        raise InvalidRequest(
            f"the request has more than {MAX_FIELDS} fields and dimensions besides the contents of its tensors"
        )


def _walk(buffer: bytes, at: int, end: int, fields: _Fields, left: int) -> int:
    """Count the fields of one message; returns how many are left, below 0 as soon as there are too many."""
    while at < end and left >= 0:
        left -= 1
        tag, at = read_varint(buffer, at)
        kind = tag & 7
        if kind == 2:
            length, at = read_varint(buffer, at)
            if at + length > end:
                raise IndexError
            if tag in fields:
                inner = fields[tag]
                left = left - length if inner is None else _walk(buffer, at, at + length, inner, left)
            at += length
        elif kind == 0:
            _, at = read_varint(buffer, at)
        elif kind == 1:
            at += 8
        elif kind == 5:
            at += 4
        elif kind > 5:
            raise IndexError
        # The start and the end of a group are fields without content here, so that nesting takes no stack.
    return left
