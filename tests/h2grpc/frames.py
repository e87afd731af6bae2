"""Frames of HTTP/2 and messages of gRPC, packed and read by hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 1
END_HEADERS = 4
PADDED = 8
PRIORITY_FLAG = 0x20
RESERVED_BIT = 1 << 31
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR, SETTINGS_TIMEOUT, STREAM_CLOSED = range(6)
FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, CONNECT_ERROR, ENHANCE_YOUR_CALM = range(6, 12)
UNARY = "/test.Echo/Unary"
STREAM = "/test.Echo/Stream"
Fields = Sequence[tuple[str | bytes, str | bytes]]


def frame(frame_type: int, flags: int = 0, stream_id: int = 0, payload: bytes = b"") -> bytes:
    """RFC 9113 section 4.1."""
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", frame_type, flags, stream_id) + payload


def data(stream_id: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return frame(DATA, flags, stream_id, payload)


def headers(stream_id: int, block: bytes, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream_id, block)


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", code, value) for code, value in pairs))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, struct.pack(">I", increment))


def rst_stream(stream_id: int, code: int = CANCEL) -> bytes:
    return frame(RST_STREAM, 0, stream_id, struct.pack(">I", code))


def message(body: bytes, flag: int = 0) -> bytes:
    """A length-prefixed message."""
    return struct.pack(">BI", flag, len(body)) + body


def literal(name: str | bytes, value: str | bytes, form: int = 0x00) -> bytes:
    """RFC 7541 section 6.2, with a literal name: 0x00 without indexing, 0x40 with, 0x10 never."""
    return bytes((form,)) + _string(name) + _string(value)


def _string(text: str | bytes) -> bytes:
    octets = text.encode() if isinstance(text, str) else text
    length = len(octets)
    if length < 127:
        return bytes((length,)) + octets
    length -= 127
    out = bytearray((127,))
    while length > 127:
        out.append(0x80 | length & 0x7F)
        length >>= 7
    return bytes(out) + bytes((length,)) + octets


def block(fields: Fields, form: int = 0x00) -> bytes:
    return b"".join(literal(name, value, form) for name, value in fields)


def request(path: str = UNARY, *extra: tuple[str | bytes, str | bytes], method: str = "POST") -> Fields:
    return [
        (":method", method),
        (":scheme", "http"),
        (":path", path),
        (":authority", "test"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        *extra,
    ]


OPENING = PREFACE + settings()
REQUEST_BLOCK = block(request())
STREAM_BLOCK = block(request(STREAM))


def unary(stream_id: int, body: bytes = b"hello") -> bytes:
    """A whole unary request."""
    return headers(stream_id, REQUEST_BLOCK) + data(stream_id, message(body), END_STREAM)


@dataclass(frozen=True)
class Frame:
    """A frame the server sent."""

    type: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def code(self) -> int:
        """The error code of a GOAWAY or RST_STREAM frame."""
        at = {GOAWAY: 4, RST_STREAM: 0}[self.type]
        return int.from_bytes(self.payload[at : at + 4], "big")


def parse(octets: bytes) -> list[Frame]:
    """Whole frames only."""
    frames = []
    at = 0
    while at < len(octets):
        length = int.from_bytes(octets[at : at + 3], "big")
        kind, flags, stream_id = struct.unpack_from(">BBI", octets, at + 3)
        payload = octets[at + 9 : at + 9 + length]
        assert len(payload) == length, "the server sent half a frame"
        frames.append(Frame(kind, flags, stream_id, payload))
        at += 9 + length
    return frames


def with_reserved_bit(octets: bytes) -> bytes:
    """The same frames with the reserved bit of their stream identifier set, which means nothing to a receiver.

    It takes every frame of ours off the fast path.
    """
    return b"".join(frame(one.type, one.flags, one.stream_id | RESERVED_BIT, one.payload) for one in parse(octets))
