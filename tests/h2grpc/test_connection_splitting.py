"""The same bytes give the same events and the same output however they are cut."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.h2grpc.frames import (
    CONTINUATION,
    END_STREAM,
    OPENING,
    PADDED,
    PING,
    PREFACE,
    REQUEST_BLOCK,
    STREAM_BLOCK,
    block,
    data,
    frame,
    headers,
    message,
    request,
    rst_stream,
    unary,
    window_update,
)
from tests.h2grpc.support import Judge, Server, describe
from toutates.h2grpc import Limits


def plain_block(path: str) -> bytes:
    return block([(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test")])


PLAIN_BLOCK = plain_block("/")
GZIPPED = message(zlib.compress(b"x" * 10_000, wbits=31), flag=1)
SESSIONS = {
    "unary calls": OPENING + b"".join(unary(n, bytes([n]) * n) for n in range(1, 20, 2)),
    "a stream": OPENING
    + headers(1, STREAM_BLOCK)
    + data(1, message(b"a") + message(b"b")[:3])
    + data(1, message(b"b")[3:] + message(b"") * 3)
    + data(1, b"", END_STREAM),
    "compressed, padded, continued, cancelled": OPENING
    + headers(1, block(request("/test.Echo/Unary", ("grpc-encoding", "gzip"))))
    + data(1, GZIPPED, END_STREAM)
    + headers(3, REQUEST_BLOCK[:10], 0)
    + frame(CONTINUATION, 4, 3, REQUEST_BLOCK[10:])
    + data(3, b"\x04" + message(b"padded") + bytes(4), PADDED | END_STREAM)
    + headers(5, STREAM_BLOCK)
    + rst_stream(5)
    + window_update(0, 10)
    + frame(PING, 0, 0, b"pingpong"),
    "stream errors": OPENING + headers(1, b"") + headers(3, REQUEST_BLOCK) + window_update(3, 0) + data(3) + unary(5),
    "a connection error": OPENING + unary(1) + headers(3, STREAM_BLOCK) + data(0) + unary(5),
    "a large message": OPENING + headers(1, REQUEST_BLOCK) + data(1, message(bytes(30_000)), END_STREAM),
    "plain HTTP beside calls": OPENING
    + b"".join(headers(n, PLAIN_BLOCK) + data(n, bytes(n), END_STREAM) + unary(n + 2) for n in range(1, 20, 4))
    + headers(21, PLAIN_BLOCK)
    + data(21, b"in")
    + unary(23)
    + data(21, b" pieces", END_STREAM)
    + headers(25, plain_block("/refused"))
    + data(25, bytes(100), END_STREAM)
    + headers(27, plain_block("/continue"))
    + data(27, bytes(600))
    + data(27, bytes(600))
    + headers(29, PLAIN_BLOCK)
    + rst_stream(29)
    + headers(31, plain_block("/large"))
    + data(31, bytes(30_000), END_STREAM),
    "HTTP/1": b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
    "a long HTTP/1 path": b"GET /" + b"a" * 600 + b" HTTP/1.1\r\n\r\n",
    "garbage": b"\x00\x03\x01\x02\x00\x01\x00",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00",
    "garbage after a promising start": PREFACE[:-1] + b"\r",
    "an endless request line": b"GET /" + b"a" * 600 + b"b" * 600,
}
LIMITS = Limits(max_preface_bytes=1_000, stream_window=70_000, connection_window=70_000)


def outcome(chunks: list[bytes]) -> tuple[object, bytes]:
    server = Server(LIMITS, admit=Judge())
    for chunk in chunks:
        server.receive(chunk)
    return describe(server.events), server.sent()


@pytest.mark.parametrize("name", SESSIONS)
def test_server_does_not_care_about_single_bytes(name: str) -> None:
    octets = SESSIONS[name]
    assert outcome([octets[at : at + 1] for at in range(len(octets))]) == outcome([octets])


@pytest.mark.parametrize("name", SESSIONS)
def test_server_waits_for_the_rest_of_trailing_bytes(name: str) -> None:
    octets = SESSIONS[name]
    whole = outcome([octets])
    trailing = b"\0\0\6\0\1\0\0"
    assert outcome([octets + trailing]) == whole
    assert outcome([octets, trailing]) == whole


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(list(SESSIONS)), st.lists(st.integers(0, 40_000), max_size=12))
def test_server_does_not_care_about_cuts(name: str, cuts: list[int]) -> None:
    octets = SESSIONS[name]
    ends = sorted({cut % (len(octets) + 1) for cut in cuts} | {len(octets)})
    chunks = [octets[start:end] for start, end in zip([0, *ends], ends, strict=False) if end > start]
    assert outcome(chunks) == outcome([octets])
