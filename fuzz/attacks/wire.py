"""Frames, header blocks and requests packed by hand, so that they can be as wrong as an attack needs them.

Sources: RFC 9113 section 4.1 (frames), RFC 7541 sections 5 and 6 (header blocks), protobuf's encoding guide.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

__all__ = [
    "ACK",
    "END_HEADERS",
    "END_STREAM",
    "INFER",
    "MAX_WINDOW",
    "PREFACE",
    "Code",
    "Kind",
    "block",
    "field",
    "frame",
    "framed",
    "greeting",
    "header_integer",
    "infer_message",
    "literal",
    "request_block",
    "settings",
    "unary",
    "varint",
    "window_update",
]

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
END_STREAM: Final = 1
ACK: Final = 1
END_HEADERS: Final = 4
MAX_WINDOW: Final = 2**31 - 1
INFER: Final = "/inference.GRPCInferenceService/ModelInfer"


class Kind(IntEnum):
    """Frame types."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Code(IntEnum):
    """Error codes."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


# --- frames ----------------------------------------------------------------------------------------------------------


def frame(kind: int, flags: int = 0, stream_id: int = 0, payload: bytes = b"") -> bytes:
    """A frame, whatever its kind."""
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream_id) + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    """SETTINGS of (identifier, value)."""
    return frame(Kind.SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def window_update(stream_id: int, increment: int) -> bytes:
    """WINDOW_UPDATE."""
    return frame(Kind.WINDOW_UPDATE, 0, stream_id, struct.pack(">I", increment))


def greeting(stream_window: int = MAX_WINDOW, connection_window: int = MAX_WINDOW) -> bytes:
    """What a client says first: the preface, SETTINGS, and the connection's window if that is above the default."""
    initial_window_size = 4
    out = PREFACE + settings((initial_window_size, stream_window))
    return out + window_update(0, connection_window - 65_535) if connection_window > 65_535 else out


# --- header blocks ---------------------------------------------------------------------------------------------------


def header_integer(value: int, prefix_bits: int, first: int) -> bytes:
    """An integer whose first octet has ``first`` above a prefix of so many bits."""
    full = (1 << prefix_bits) - 1
    if value < full:
        return bytes((first | value,))
    value -= full
    out = bytearray((first | full,))
    while value > 127:
        out.append(0x80 | value & 0x7F)
        value >>= 7
    return bytes(out) + bytes((value,))


def literal(name: str | bytes, value: str | bytes, form: int = 0x00) -> bytes:
    """A field with a literal name: form 0x00 without indexing, 0x40 with, 0x10 never."""
    return bytes((form,)) + _string(name) + _string(value)


def _string(text: str | bytes) -> bytes:
    octets = text.encode() if isinstance(text, str) else text
    return header_integer(len(octets), 7, 0) + octets


def block(fields: Sequence[tuple[str | bytes, str | bytes]], form: int = 0x00) -> bytes:
    """A header block of literals."""
    return b"".join(literal(name, value, form) for name, value in fields)


def request_block(path: str = INFER, *extra: tuple[str | bytes, str | bytes]) -> bytes:
    """The header block of a gRPC request."""
    return block(
        [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "test"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *extra,
        ]
    )


# --- requests --------------------------------------------------------------------------------------------------------


def framed(message: bytes, flag: int = 0) -> bytes:
    """A message with gRPC's prefix."""
    return struct.pack(">BI", flag, len(message)) + message


def unary(stream_id: int, header_block: bytes, body: bytes) -> bytes:
    """A whole request; ``body`` fits into frames of 16 KiB or is cut into them."""
    pieces = [body[at : at + 16_384] for at in range(0, len(body), 16_384)] or [b""]
    out = [frame(Kind.HEADERS, END_HEADERS, stream_id, header_block)]
    out += [frame(Kind.DATA, 0, stream_id, piece) for piece in pieces[:-1]]
    out.append(frame(Kind.DATA, END_STREAM, stream_id, pieces[-1]))
    return b"".join(out)


def varint(value: int) -> bytes:
    """A protobuf varint; negative numbers as int64."""
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:
        out.append(0x80 | value & 0x7F)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def infer_message(
    model: str, shape: Sequence[int], raw: bytes, datatype: str = "INT32", name: str = "INPUT", rest: bytes = b""
) -> bytes:
    """A ModelInferRequest of one input; ``rest`` are further fields."""
    packed_shape = b"".join(map(varint, shape))
    tensor = field(1, name.encode()) + field(2, datatype.encode()) + field(3, packed_shape)
    return field(1, model.encode()) + rest + field(5, tensor) + field(7, raw)
