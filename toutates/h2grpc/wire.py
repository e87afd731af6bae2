"""The constants that every call is read and answered with, copied for each thread.

On free-threaded Python threads that use the same object write the same reference count, and its cache line moves
between their cores: 20 to 40 ns each time. A dozen shared constants made a request cost 15 % more with two workers than
with one. So each worker has its own copies. Small integers need none, because their references are not counted.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from toutates.h2grpc.frames import END_HEADERS, END_STREAM, FRAME_HEAD, HEADERS
from toutates.h2grpc.headers import OK_HEADERS, OK_TRAILERS

__all__ = ["MESSAGE_HEAD_SIZE", "Wire"]

#: The head of a DATA frame, and the prefix of the message in it: length and type, flags, stream, compressed, size.
_MESSAGE_HEAD: Final = Struct(">IBIBI")
MESSAGE_HEAD_SIZE: Final = _MESSAGE_HEAD.size
#: A whole unary response around its message: HEADERS, the head of one DATA frame and the message prefix; then trailers.
_RESPONSE_HEAD: Final = Struct(f">5sI{len(OK_HEADERS)}sIBIBI")
_RESPONSE_TAIL: Final = Struct(f">5sI{len(OK_TRAILERS)}s")


class Wire:
    """One thread's copies, made in that thread.

    Attributes:
        unpack_frame_head: of ``frames.FRAME_HEAD``, from a buffer and an offset.
        unpack_message_head: length << 8 | type, flags, stream, compressed, size: a DATA frame that begins a message.
        pack_response_head: ``headers_head``, stream, ``ok_headers``, length << 8 (DATA is 0), flags, stream,
            compressed, size.
        pack_message_head: what ``unpack_message_head`` returns.
        headers_head: length, type and flags of the HEADERS that begins a response.
        ok_headers: its block.
        pack_response_tail: ``trailers_head``, stream, ``ok_trailers``.
        trailers_head: length, type and flags of the HEADERS that ends a response.
        ok_trailers: its block, status OK.
    """

    __slots__ = (
        "headers_head",
        "ok_headers",
        "ok_trailers",
        "pack_message_head",
        "pack_response_head",
        "pack_response_tail",
        "trailers_head",
        "unpack_frame_head",
        "unpack_message_head",
    )

    def __init__(self) -> None:
        self.unpack_frame_head = FRAME_HEAD.unpack_from
        self.unpack_message_head = _MESSAGE_HEAD.unpack_from
        self.pack_message_head = _MESSAGE_HEAD.pack
        self.pack_response_head = _RESPONSE_HEAD.pack
        self.pack_response_tail = _RESPONSE_TAIL.pack
        self.headers_head = FRAME_HEAD.pack(len(OK_HEADERS) << 8 | HEADERS, END_HEADERS, 0)[:5]
        self.trailers_head = FRAME_HEAD.pack(len(OK_TRAILERS) << 8 | HEADERS, END_HEADERS | END_STREAM, 0)[:5]
        self.ok_headers = _copy(OK_HEADERS)
        self.ok_trailers = _copy(OK_TRAILERS)


def _copy(constant: bytes) -> bytes:
    """The same bytes in an object of their own; ``bytes(constant)`` and a whole slice would be the constant."""
    return bytes(bytearray(constant))
