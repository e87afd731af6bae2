"""What every call needs to be read and answered, in copies that one thread has for itself.

On free-threaded Python the threads that refer to an object share its reference count, and a count that two cores write
at once travels between their caches: 20 to 40 ns each time, for a constant as for anything else. A dozen constants on
the way of a request made it 15 % dearer with two workers than with one. So each worker makes its own, and small
integers, whose references nobody counts, stand for the rest.
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
    """See the module. Made in the thread that uses it.

    Attributes:
        unpack_frame_head: of ``frames.FRAME_HEAD``, from a buffer and an offset.
        unpack_message_head: length << 8 | type, flags, stream, compressed, size: a DATA frame that begins a message.
        pack_response_head: ``headers_head``, stream, ``ok_headers``, length << 8 (DATA is 0), flags, stream,
            compressed, size.
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
        "pack_response_head",
        "pack_response_tail",
        "trailers_head",
        "unpack_frame_head",
        "unpack_message_head",
    )

    def __init__(self) -> None:
        self.unpack_frame_head = FRAME_HEAD.unpack_from
        self.unpack_message_head = _MESSAGE_HEAD.unpack_from
        self.pack_response_head = _RESPONSE_HEAD.pack
        self.pack_response_tail = _RESPONSE_TAIL.pack
        self.headers_head = FRAME_HEAD.pack(len(OK_HEADERS) << 8 | HEADERS, END_HEADERS, 0)[:5]
        self.trailers_head = FRAME_HEAD.pack(len(OK_TRAILERS) << 8 | HEADERS, END_HEADERS | END_STREAM, 0)[:5]
        self.ok_headers = _copy(OK_HEADERS)
        self.ok_trailers = _copy(OK_TRAILERS)


def _copy(constant: bytes) -> bytes:
    """The same bytes in an object of their own; ``bytes(constant)`` and a whole slice would be the constant."""
    return bytes(bytearray(constant))
