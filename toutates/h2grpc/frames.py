"""The layout of HTTP/2 frames (RFC 9113 section 4 and 6): constants, and packing of the frames a server sends.

Frames are read in ``frame_loop.FrameLoop``, without a function call per frame, which would cost more than the frame.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

from h2.errors import ErrorCodes
from h2.settings import SettingCodes

__all__ = [
    "ACK",
    "CONTINUATION",
    "DATA",
    "DEFAULT_HEADER_TABLE_SIZE",
    "DEFAULT_MAX_FRAME_SIZE",
    "DEFAULT_WINDOW",
    "END_HEADERS",
    "END_STREAM",
    "FRAME_HEAD",
    "FRAME_HEAD_SIZE",
    "GOAWAY",
    "HEADERS",
    "LARGEST_MAX_FRAME_SIZE",
    "MAX_STREAM_ID",
    "MAX_WINDOW",
    "PADDED",
    "PING",
    "PREFACE",
    "PRIORITY",
    "PRIORITY_FLAG",
    "PUSH_PROMISE",
    "RST_STREAM",
    "SETTINGS",
    "UINT32",
    "WINDOW_UPDATE",
    "ErrorCodes",
    "FrameType",
    "SettingCodes",
    "pack_frame",
    "pack_goaway",
    "pack_rst_stream",
    "pack_settings",
    "pack_window_update",
]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

FRAME_HEAD_SIZE = 9
#: (length << 8 | type, flags, stream id with its reserved bit): ``length`` has 24 bits and shares a word with ``type``.
FRAME_HEAD = Struct(">IBI")
UINT32 = Struct(">I")

DEFAULT_WINDOW = 65_535
MAX_WINDOW = 2**31 - 1
MAX_STREAM_ID = 2**31 - 1
DEFAULT_MAX_FRAME_SIZE = 16_384
DEFAULT_HEADER_TABLE_SIZE = 4_096
LARGEST_MAX_FRAME_SIZE = 16_777_215


class FrameType(IntEnum):
    """Frame types of RFC 9113 section 6, for messages and tests; the connection compares plain ints."""

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


DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY_FLAG = 0x20


def pack_frame(frame_type: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One whole frame; the caller keeps ``payload`` within the peer's SETTINGS_MAX_FRAME_SIZE."""
    return FRAME_HEAD.pack(len(payload) << 8 | frame_type, flags, stream_id) + payload


def pack_settings(settings: dict[int, int]) -> bytes:
    """A SETTINGS frame with the given identifiers and values (RFC 9113 section 6.5)."""
    payload = b"".join(code.to_bytes(2, "big") + value.to_bytes(4, "big") for code, value in settings.items())
    return pack_frame(SETTINGS, 0, 0, payload)


def pack_rst_stream(stream_id: int, code: int) -> bytes:
    """A RST_STREAM frame (RFC 9113 section 6.4)."""
    return pack_frame(RST_STREAM, 0, stream_id, UINT32.pack(code))


def pack_window_update(stream_id: int, increment: int) -> bytes:
    """A WINDOW_UPDATE frame; stream 0 is the connection's window (RFC 9113 section 6.9)."""
    return pack_frame(WINDOW_UPDATE, 0, stream_id, UINT32.pack(increment))


def pack_goaway(last_stream_id: int, code: int, debug: str = "") -> bytes:
    """A GOAWAY frame with a text for people who debug the peer (RFC 9113 section 6.8)."""
    payload = UINT32.pack(last_stream_id) + UINT32.pack(code) + debug.encode()[:1024]
    return pack_frame(GOAWAY, 0, 0, payload)
