"""What the client of a conversation has to say: header lists, payloads and settings, both right and wrong."""

from __future__ import annotations

from typing import Final

from tests.h2grpc.frames import STREAM, UNARY, Fields, message, request
from toutates.h2grpc import Limits

__all__ = [
    "FIELDS",
    "LARGEST",
    "LARGEST_FRAME",
    "LIMITS",
    "MALFORMED",
    "PAYLOADS",
    "SETTINGS_VALUES",
    "UNDECODABLE",
    "USUAL",
]

LARGEST_FRAME: Final = 65_536
LIMITS = Limits(
    max_frame_size=LARGEST_FRAME,
    stream_window=65_535,
    connection_window=80_000,
    max_message_size=100_000,
    max_header_block_size=5_000,
    max_header_list_size=2_000,
    max_concurrent_streams=6,
    closed_stream_memory=1_000,
    header_memory_entries=5,
)
LARGEST: Final = 2**31 - 1

#: Header lists by what is special about them.
FIELDS: Final = {
    "request": request(),
    "request of a stream": request(STREAM),
    "request with metadata": request(UNARY, ("x-note", "a"), ("x-note", "b"), ("x-data-bin", "AAE")),
    "request with a deadline": request(UNARY, ("grpc-timeout", "1S")),
    "request with a bad deadline": request(UNARY, ("grpc-timeout", "soon")),
    "request of an unknown method": request("/nowhere"),
    "request of another kind": request("/", method="GET"),
    "request of five bytes": request(UNARY, ("content-length", "5")),
    "request of a large list": request(UNARY, ("x-large", "v" * 2_000)),
    "request of a huge list": request(UNARY, ("x-large", "v" * 4_000)),
    "request without :authority": [field for field in request() if field[0] != ":authority"],
    "request of another host": request(UNARY, ("host", "elsewhere")),
    "request with a name that is no token": request(UNARY, ("x(y)", "")),
    "request with TE in capitals": [*request()[:-1], ("te", "Trailers")],
    "request to CONNECT": [(":method", "CONNECT"), (":authority", "test")],
    "trailers": [("x-checksum", "1")],
}
#: What RFC 9113 section 8 calls malformed.
MALFORMED: Final[tuple[Fields, ...]] = (
    [],
    request()[1:],
    [*request()[:2], *request()[3:]],
    request(""),
    request(UNARY, (":path", UNARY)),
    request(UNARY, (":scheme", "http")),
    [*request()[:2], (":path", UNARY), (":path", UNARY), *request()[3:]],
    [(":unknown", ""), *request()],
    [(":status", "200"), *request()],
    request(UNARY, ("X-Upper", "")),
    request(UNARY, ("", "")),
    request(UNARY, ("x y", "")),
    request(UNARY, ("x:y", "")),
    request(UNARY, (b"x-\xff", "")),
    request(UNARY, ("x", "a\r\nb")),
    request(UNARY, ("x", "a\0b")),
    request(UNARY, ("x", " a")),
    request(UNARY, ("x", "a\t")),
    request(UNARY, ("connection", "close")),
    request(UNARY, ("transfer-encoding", "chunked")),
    request(UNARY, ("te", "gzip")),
    request(UNARY, ("content-length", "five")),
    request(UNARY, ("content-length", "5"), ("content-length", "6")),
)
UNDECODABLE: Final = (
    b"\x80",
    b"\xff\xff\xff\xff\xff\xff\xff",
    b"\x00\x05a",
    b"\x82\x20",
    b"\xbf\xff\x7f",
    b"\x00\x81\x00\x00",
)
#: What DATA frames hold.
PAYLOADS: Final = {
    "a message": message(b"hello"),
    "an empty message": message(b""),
    "half a message": message(b"hello")[:7],
    "rubbish": b"hello",
    "nothing": b"",
    "much": bytes(LARGEST_FRAME // 2),
}
#: (label, identifier, value) of one setting.
SETTINGS_VALUES: Final = (
    ("", 4, 0),
    ("", 4, 10),
    ("", 4, 65_535),
    ("", 4, 1_000_000),
    ("", 4, LARGEST),
    ("", 5, 16_384),
    ("", 5, 20_000),
    ("", 5, 2**24 - 1),
    ("", 1, 0),
    ("", 1, 4_096),
    ("", 1, 100_000),
    ("", 2, 0),
    ("", 3, 0),
    ("", 6, 0),
    ("", 6, 2**32 - 1),
    ("", 99, 2**32 - 1),
    (" of an illegal value", 4, LARGEST + 1),
    (" of an illegal value", 5, 16_383),
    (" of an illegal value", 5, 2**24),
    (" of an illegal value", 2, 2),
    (" of an extension", 8, 2),
)

#: The header lists that clients send nearly always.
USUAL: Final = ("request", "request of a stream", "request with metadata", "request with a deadline")
