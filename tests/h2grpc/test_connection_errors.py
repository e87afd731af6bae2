"""Every stream and connection error of RFC 9113 that a server must detect, section by section as h2spec walks them."""

from __future__ import annotations

import struct

import pytest

from tests.h2grpc.frames import (
    ACK,
    CANCEL,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    OPENING,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PRIORITY_FLAG,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    REQUEST_BLOCK,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    block,
    data,
    frame,
    headers,
    literal,
    message,
    parse,
    request,
    rst_stream,
    settings,
    unary,
    window_update,
    with_reserved_bit,
)
from tests.h2grpc.support import Server
from toutates.h2grpc import Call, CallCancelled, ConnectionTerminated, Limits, Status, StreamOpened

OPEN_1 = headers(1, REQUEST_BLOCK)
ENDED_1 = headers(1, REQUEST_BLOCK, END_HEADERS) + data(1, message(b"m"), END_STREAM)
WINDOW_100 = Limits(stream_window=65_535, connection_window=65_535, max_frame_size=2**24 - 1)
TRAILERS = block([("x-checksum", "1")])


def without(*names: str) -> bytes:
    return block([(name, value) for name, value in request() if name not in names])


def with_field(name: str | bytes, value: str | bytes) -> bytes:
    return block([*request(), (name, value)])


CONNECTION_ERRORS = {
    # section 3.4
    "3.4 first frame is not SETTINGS": (PREFACE + frame(PING, 0, 0, bytes(8)), PROTOCOL_ERROR),
    "3.4 first frame is a SETTINGS ACK": (PREFACE + frame(SETTINGS, ACK), PROTOCOL_ERROR),
    "3.4 first frame is WINDOW_UPDATE": (PREFACE + window_update(0, 1), PROTOCOL_ERROR),
    "3.4 first frame is of an unknown type": (PREFACE + frame(0x16), PROTOCOL_ERROR),
    "3.4 invalid preface": (b"INVALID CONNECTION PREFACE\r\n\r\n", PROTOCOL_ERROR),
    "3.4 preface with a wrong end": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\r", PROTOCOL_ERROR),
    # section 4.2
    "4.2 DATA beyond SETTINGS_MAX_FRAME_SIZE": (
        OPENING + OPEN_1 + data(1, bytes(Limits().max_frame_size + 1)),
        FRAME_SIZE_ERROR,
    ),
    "4.2 HEADERS beyond SETTINGS_MAX_FRAME_SIZE": (
        OPENING + headers(1, bytes(Limits().max_frame_size + 1)),
        FRAME_SIZE_ERROR,
    ),
    "4.2 SETTINGS beyond SETTINGS_MAX_FRAME_SIZE": (
        OPENING + frame(SETTINGS, 0, 0, bytes(Limits().max_frame_size + 2)),
        FRAME_SIZE_ERROR,
    ),
    "4.2 unknown type beyond SETTINGS_MAX_FRAME_SIZE": (
        OPENING + frame(99, 0, 0, bytes(Limits().max_frame_size + 1)),
        FRAME_SIZE_ERROR,
    ),
    # section 4.3
    "4.3 invalid field block": (OPENING + headers(1, b"\xff\xff\xff\xff\xff\xff"), COMPRESSION_ERROR),
    "4.3 index beyond the table": (OPENING + headers(1, b"\xbe"), COMPRESSION_ERROR),
    "4.3 index zero": (OPENING + headers(1, b"\x80"), COMPRESSION_ERROR),
    "4.3 cut-off literal": (OPENING + headers(1, REQUEST_BLOCK[:-1]), COMPRESSION_ERROR),
    "4.3 invalid Huffman code": (OPENING + headers(1, b"\x00\x84\xff\xff\xff\xff\x01a"), COMPRESSION_ERROR),
    "4.3 invalid block in a trailer section": (OPENING + OPEN_1 + headers(1, b"\x80", 5), COMPRESSION_ERROR),
    "4.3 invalid block on a stream that was reset": (
        OPENING + OPEN_1 + rst_stream(1) + headers(1, b"\x80", 5),
        COMPRESSION_ERROR,
    ),
    "7541 4.2 table size update at the end of a block": (
        OPENING + headers(1, REQUEST_BLOCK + b"\x20"),
        COMPRESSION_ERROR,
    ),
    "7541 6.3 table size update beyond the maximum": (
        OPENING + headers(1, b"\x3f\xe2\x1f" + REQUEST_BLOCK),
        COMPRESSION_ERROR,
    ),
    "4.3 block interrupted by DATA": (OPENING + headers(1, REQUEST_BLOCK, 0) + data(1), PROTOCOL_ERROR),
    "4.3 block interrupted by DATA that completes a request": (
        OPENING + OPEN_1 + headers(3, REQUEST_BLOCK, 0) + data(1, message(b"m"), END_STREAM),
        PROTOCOL_ERROR,
    ),
    "4.3 block interrupted by WINDOW_UPDATE": (
        OPENING + headers(1, REQUEST_BLOCK, 0) + window_update(0, 1),
        PROTOCOL_ERROR,
    ),
    "4.3 block interrupted by a block that is remembered": (
        OPENING + OPEN_1 + headers(5, REQUEST_BLOCK, 0) + headers(3, REQUEST_BLOCK),
        PROTOCOL_ERROR,
    ),
    "4.3 block interrupted by PRIORITY": (
        OPENING + headers(1, REQUEST_BLOCK, 0) + frame(PRIORITY, 0, 1, bytes(5)),
        PROTOCOL_ERROR,
    ),
    "4.3 block interrupted by another stream's HEADERS": (
        OPENING + headers(1, REQUEST_BLOCK, 0) + headers(3, REQUEST_BLOCK),
        PROTOCOL_ERROR,
    ),
    "5.5 block interrupted by an unknown frame": (
        OPENING + headers(1, REQUEST_BLOCK, 0) + frame(0x16, 0, 0, b"x"),
        PROTOCOL_ERROR,
    ),
    # section 5.1: idle and closed streams
    "5.1 idle: DATA": (OPENING + data(1, b"x", END_STREAM), PROTOCOL_ERROR),
    "5.1 idle: RST_STREAM": (OPENING + rst_stream(1), PROTOCOL_ERROR),
    "5.1 idle: WINDOW_UPDATE": (OPENING + window_update(1, 100), PROTOCOL_ERROR),
    "5.1 idle: WINDOW_UPDATE of a later stream": (OPENING + OPEN_1 + window_update(3, 100), PROTOCOL_ERROR),
    "5.1 idle: WINDOW_UPDATE of a server's stream": (OPENING + OPEN_1 + window_update(2, 100), PROTOCOL_ERROR),
    "5.1 idle: WINDOW_UPDATE of a server's stream below the last": (
        OPENING + headers(3, REQUEST_BLOCK) + window_update(2, 100),
        PROTOCOL_ERROR,
    ),
    "5.1 idle: CONTINUATION": (OPENING + frame(CONTINUATION, END_HEADERS, 1, REQUEST_BLOCK), PROTOCOL_ERROR),
    # section 5.1.1
    "5.1.1 even stream identifier": (OPENING + headers(2, REQUEST_BLOCK), PROTOCOL_ERROR),
    "5.1.1 even stream identifier below the last": (
        OPENING + headers(5, REQUEST_BLOCK) + headers(2, REQUEST_BLOCK),
        PROTOCOL_ERROR,
    ),
    "5.1.1 smaller stream identifier": (
        OPENING + headers(5, REQUEST_BLOCK) + headers(3, REQUEST_BLOCK),
        PROTOCOL_ERROR,
    ),
    "5.1.1 first stream identifier skipped": (
        OPENING + headers(3, REQUEST_BLOCK) + headers(1, REQUEST_BLOCK),
        PROTOCOL_ERROR,
    ),
    # section 6.1
    "6.1 DATA on stream 0": (OPENING + data(0, b"x"), PROTOCOL_ERROR),
    "6.1 padding as long as the payload": (OPENING + OPEN_1 + data(1, b"\x05test1"[:5], PADDED), PROTOCOL_ERROR),
    "6.1 padding without a length": (OPENING + OPEN_1 + data(1, b"", PADDED), PROTOCOL_ERROR),
    # section 6.2
    "6.2 HEADERS on stream 0": (OPENING + headers(0, REQUEST_BLOCK), PROTOCOL_ERROR),
    "6.2 padding longer than the block": (
        OPENING + headers(1, b"\xff" + REQUEST_BLOCK, END_HEADERS | PADDED),
        PROTOCOL_ERROR,
    ),
    "6.2 priority cut off": (OPENING + headers(1, bytes(4), END_HEADERS | PRIORITY_FLAG), FRAME_SIZE_ERROR),
    # section 6.3
    "6.3 PRIORITY on stream 0": (OPENING + frame(PRIORITY, 0, 0, bytes(5)), PROTOCOL_ERROR),
    "6.3 PRIORITY of 4 bytes on an idle stream": (OPENING + frame(PRIORITY, 0, 1, bytes(4)), FRAME_SIZE_ERROR),
    # section 6.4
    "6.4 RST_STREAM on stream 0": (OPENING + rst_stream(0), PROTOCOL_ERROR),
    "6.4 RST_STREAM of 3 bytes": (OPENING + OPEN_1 + frame(RST_STREAM, 0, 1, bytes(3)), FRAME_SIZE_ERROR),
    # section 6.5
    "6.5 SETTINGS ACK with a payload": (OPENING + frame(SETTINGS, ACK, 0, bytes(6)), FRAME_SIZE_ERROR),
    "6.5 SETTINGS on a stream": (OPENING + frame(SETTINGS, 0, 1, bytes(6)), PROTOCOL_ERROR),
    "6.5 SETTINGS of 3 bytes": (OPENING + frame(SETTINGS, 0, 0, bytes(3)), FRAME_SIZE_ERROR),
    "6.5.2 ENABLE_PUSH of 2": (OPENING + settings((2, 2)), PROTOCOL_ERROR),
    "6.5.2 INITIAL_WINDOW_SIZE of 2^31": (OPENING + settings((4, 2**31)), FLOW_CONTROL_ERROR),
    "6.5.2 MAX_FRAME_SIZE of 16383": (OPENING + settings((5, 16_383)), PROTOCOL_ERROR),
    "6.5.2 MAX_FRAME_SIZE of 2^24": (OPENING + settings((5, 2**24)), PROTOCOL_ERROR),
    "6.5.2 in the first SETTINGS": (PREFACE + settings((5, 1)), PROTOCOL_ERROR),
    # section 6.6
    "6.6 PUSH_PROMISE": (
        OPENING + OPEN_1 + frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + REQUEST_BLOCK),
        PROTOCOL_ERROR,
    ),
    "6.6 PUSH_PROMISE on stream 0": (OPENING + frame(PUSH_PROMISE, END_HEADERS, 0, bytes(4)), PROTOCOL_ERROR),
    # section 6.7
    "6.7 PING on a stream": (OPENING + frame(PING, 0, 1, bytes(8)), PROTOCOL_ERROR),
    "6.7 PING of 6 bytes": (OPENING + frame(PING, 0, 0, bytes(6)), FRAME_SIZE_ERROR),
    "6.7 PING ACK of 9 bytes": (OPENING + frame(PING, ACK, 0, bytes(9)), FRAME_SIZE_ERROR),
    # section 6.8
    "6.8 GOAWAY on a stream": (OPENING + frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL_ERROR),
    "6.8 GOAWAY of 7 bytes": (OPENING + frame(GOAWAY, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
    # section 6.9
    "6.9 WINDOW_UPDATE of 0 for the connection": (OPENING + window_update(0, 0), PROTOCOL_ERROR),
    "6.9 WINDOW_UPDATE of 3 bytes": (OPENING + frame(WINDOW_UPDATE, 0, 0, bytes(3)), FRAME_SIZE_ERROR),
    "6.9 WINDOW_UPDATE of 5 bytes on a stream": (
        OPENING + OPEN_1 + frame(WINDOW_UPDATE, 0, 1, bytes(5)),
        FRAME_SIZE_ERROR,
    ),
    "6.9.1 connection window above 2^31-1": (
        OPENING + window_update(0, 2**31 - 1) + window_update(0, 2**31 - 1),
        FLOW_CONTROL_ERROR,
    ),
    "6.9.2 initial window overflows a stream's": (
        OPENING + OPEN_1 + window_update(1, 2**31 - 1 - 65_535) + settings((4, 65_536)),
        FLOW_CONTROL_ERROR,
    ),
    # section 6.10
    "6.10 CONTINUATION on stream 0": (OPENING + frame(CONTINUATION, END_HEADERS, 0, b""), PROTOCOL_ERROR),
    "6.10 CONTINUATION after END_HEADERS": (
        OPENING + OPEN_1 + frame(CONTINUATION, END_HEADERS, 1, b""),
        PROTOCOL_ERROR,
    ),
    "6.10 CONTINUATION of another stream": (
        OPENING + headers(1, REQUEST_BLOCK, 0) + frame(CONTINUATION, END_HEADERS, 3, b""),
        PROTOCOL_ERROR,
    ),
    "6.10 CONTINUATION after DATA": (OPENING + OPEN_1 + data(1, b"x") + frame(CONTINUATION, 4, 1, b""), PROTOCOL_ERROR),
    # our limits
    "limit: CONTINUATIONs": (
        OPENING + headers(1, REQUEST_BLOCK, 0) + frame(CONTINUATION, 0, 1, b"") * 17,
        ENHANCE_YOUR_CALM,
    ),
    "limit: header block in one frame": (
        OPENING + headers(1, b"\x82" * 16_000 + bytes(2)) + headers(3, bytes(32_769 - 9)),
        ENHANCE_YOUR_CALM,
    ),
    "limit: header block in many frames": (
        OPENING + headers(1, bytes(20_000), 0) + frame(CONTINUATION, END_HEADERS, 1, bytes(20_000)),
        ENHANCE_YOUR_CALM,
    ),
    "limit: header list, far above": (OPENING + headers(1, b"\x82" * 1_000), ENHANCE_YOUR_CALM),
}


@pytest.mark.parametrize("case", CONNECTION_ERRORS)
def test_server_ends_the_connection_for(case: str) -> None:
    octets, code = CONNECTION_ERRORS[case]
    server = Server()
    events = server.receive(octets)
    last = events[-1]
    assert isinstance(last, ConnectionTerminated)
    assert last.code == code, last.text
    *before, goaway = server.frames()
    assert (goaway.type, goaway.stream_id, goaway.code) == (GOAWAY, 0, code)
    assert before[0].type == SETTINGS, "the server's preface comes first, whatever follows"
    assert server.connection.closed
    assert server.connection.open_calls == 0
    assert server.receive(unary(101)) == []
    assert server.sent() == b""


STREAM_ERRORS = {
    # section 5.1
    "5.1 half-closed (remote): DATA": (ENDED_1 + data(1, b"x"), STREAM_CLOSED),
    "5.1 half-closed (remote): a whole message again": (ENDED_1 + data(1, message(b"m"), END_STREAM), STREAM_CLOSED),
    "5.1 half-closed (remote): HEADERS": (ENDED_1 + headers(1, TRAILERS, 5), STREAM_CLOSED),
    "5.1 reset by the peer: DATA": (OPEN_1 + rst_stream(1) + data(1, b"x"), STREAM_CLOSED),
    "5.1 reset by the peer: HEADERS": (OPEN_1 + rst_stream(1) + headers(1, TRAILERS, 5), STREAM_CLOSED),
    # section 6
    "6.3 PRIORITY of 4 bytes": (OPEN_1 + frame(PRIORITY, 0, 1, bytes(4)), FRAME_SIZE_ERROR),
    "6.9 WINDOW_UPDATE of 0": (OPEN_1 + window_update(1, 0), PROTOCOL_ERROR),
    "6.9.1 window above 2^31-1": (OPEN_1 + window_update(1, 2**31 - 1) * 2, FLOW_CONTROL_ERROR),
    # section 8.1
    "8.1 second HEADERS without END_STREAM": (OPEN_1 + headers(1, TRAILERS), PROTOCOL_ERROR),
    "8.1 pseudo-header field in the trailers": (OPEN_1 + headers(1, block([(":method", "POST")]), 5), PROTOCOL_ERROR),
    "8.1.1 content-length above DATA": (
        headers(1, with_field("content-length", "7")) + data(1, message(b"m"), END_STREAM),
        PROTOCOL_ERROR,
    ),
    "8.1.1 content-length above DATA, several frames": (
        headers(1, with_field("content-length", "7")) + data(1, b"\0\0\0") + data(1, b"\0\1m", END_STREAM),
        PROTOCOL_ERROR,
    ),
    "8.1.1 content-length below DATA": (
        headers(1, with_field("content-length", "5")) + data(1, message(b"m"), END_STREAM),
        PROTOCOL_ERROR,
    ),
    "8.1.1 content-length without DATA": (headers(1, with_field("content-length", "1"), 5), PROTOCOL_ERROR),
    "8.1.1 content-length above DATA before trailers": (
        headers(1, with_field("content-length", "7")) + data(1, message(b"m")) + headers(1, TRAILERS, 5),
        PROTOCOL_ERROR,
    ),
    "8.1.1 content-length is no number": (headers(1, with_field("content-length", "+5")), PROTOCOL_ERROR),
    "8.1.1 content-length of 5,000 digits": (headers(1, with_field("content-length", "9" * 5_000)), PROTOCOL_ERROR),
    "8.1.1 content-length twice": (
        headers(1, block([*request(), ("content-length", "6"), ("content-length", "7")])),
        PROTOCOL_ERROR,
    ),
    # section 8.2
    "8.2.1 upper-case name": (headers(1, with_field("X-TEST", "ok")), PROTOCOL_ERROR),
    "8.2.1 upper-case name in the trailers": (OPEN_1 + headers(1, literal("X-TEST", "1"), 5), PROTOCOL_ERROR),
    "8.2.1 empty name": (headers(1, with_field("", "ok")), PROTOCOL_ERROR),
    "8.2.1 space in a name": (headers(1, with_field("x test", "ok")), PROTOCOL_ERROR),
    "8.2.1 NUL in a value": (headers(1, with_field("x-test", "a\0b")), PROTOCOL_ERROR),
    "8.2.1 CR LF in a value": (headers(1, with_field("x-test", "a\r\nb")), PROTOCOL_ERROR),
    "8.2.1 value begins with a space": (headers(1, with_field("te", " trailers")), PROTOCOL_ERROR),
    "8.2.1 value ends with a tab": (headers(1, with_field("content-length", "5\t")), PROTOCOL_ERROR),
    "8.2.2 connection": (headers(1, with_field("connection", "keep-alive")), PROTOCOL_ERROR),
    "8.2.2 transfer-encoding": (headers(1, with_field("transfer-encoding", "chunked")), PROTOCOL_ERROR),
    "8.2.2 te other than trailers": (headers(1, with_field("te", "trailers, deflate")), PROTOCOL_ERROR),
    # section 8.3
    "8.3 unknown pseudo-header field": (headers(1, block([(":test", "ok"), *request()])), PROTOCOL_ERROR),
    "8.3 response's pseudo-header field": (headers(1, block([(":status", "200"), *request()])), PROTOCOL_ERROR),
    "8.3 pseudo-header field after a regular one": (
        headers(1, block([("x-test", "ok"), *request()])),
        PROTOCOL_ERROR,
    ),
    "8.3.1 no :method": (headers(1, without(":method")), PROTOCOL_ERROR),
    "8.3.1 no :scheme": (headers(1, without(":scheme")), PROTOCOL_ERROR),
    "8.3.1 no :path": (headers(1, without(":path")), PROTOCOL_ERROR),
    "8.3.1 empty :path": (headers(1, block([(":path", ""), *request()[:2], *request()[3:]])), PROTOCOL_ERROR),
    "8.3.1 :method twice": (headers(1, block([(":method", "POST"), *request()])), PROTOCOL_ERROR),
    "8.3.1 :path twice": (headers(1, block([(":path", "/"), *request()])), PROTOCOL_ERROR),
    "8.5 CONNECT": (headers(1, block([(":method", "CONNECT"), (":authority", "a:1")])), PROTOCOL_ERROR),
    "empty block": (headers(1, b""), PROTOCOL_ERROR),
}


@pytest.mark.parametrize("case", STREAM_ERRORS)
@pytest.mark.parametrize("fast", [True, False], ids=["plain", "off the fast path"])
def test_server_resets_the_stream_for(case: str, fast: bool) -> None:
    octets, code = STREAM_ERRORS[case]
    server = Server.opened()
    server.receive(octets if fast else with_reserved_bit(octets))
    (reset,) = (frame for frame in server.frames() if frame.type == RST_STREAM)
    assert (reset.stream_id, reset.code) == (1, code)
    assert server.connection.open_calls == 0
    assert server.alive
    # What the peer sent before it could know about the reset is ignored.
    assert server.receive(data(1, b"late") + window_update(1, 5) + rst_stream(1)) == []
    assert server.receive(headers(1, TRAILERS, 5)) == []
    assert server.sent() == b""
    (call,) = server.receive(unary(3))
    assert isinstance(call, Call)


def test_server_refuses_streams_above_the_concurrency_limit() -> None:
    server = Server.opened(Limits(max_concurrent_streams=2))
    server.receive(headers(1, REQUEST_BLOCK) + headers(3, REQUEST_BLOCK) + headers(5, REQUEST_BLOCK))
    assert [(f.type, f.stream_id, f.code) for f in server.frames()] == [(RST_STREAM, 5, REFUSED_STREAM)]
    server.receive(rst_stream(1))
    assert isinstance(server.receive(unary(7))[0], Call)


def test_server_ends_the_connection_for_frames_on_a_stream_that_both_sides_ended() -> None:
    for late in (data(1, b"x"), data(1, b"x", END_STREAM), headers(1, TRAILERS, 5)):
        server = Server.opened()
        server.call(unary(1)).reply(b"")
        server.sent()
        server.receive(late)
        assert server.frames()[-1].code == STREAM_CLOSED
        assert server.connection.closed


def test_server_ignores_credit_and_resets_of_a_stream_that_both_sides_ended() -> None:
    server = Server.opened()
    server.call(unary(1)).reply(b"")
    server.sent()
    for late in (window_update(1, 5), window_update(1, 0), rst_stream(1), frame(PRIORITY, 0, 1, bytes(5))):
        server.receive(late)
        server.receive(with_reserved_bit(late))
        assert server.sent() == b""
    assert server.alive


@pytest.mark.parametrize("case", ["connection", "stream"])
def test_server_detects_data_beyond_the_window_it_gave(case: str) -> None:
    if case == "connection":
        limits = Limits(stream_window=200_000, connection_window=65_535, max_frame_size=2**24 - 1)
    else:
        limits = Limits(stream_window=65_535, connection_window=1_000_000, max_frame_size=2**24 - 1)
    for octets in (data(1, bytes(65_536)), data(1, message(bytes(65_531)), END_STREAM), data(1, bytes(65_536), PADDED)):
        server = Server.opened(limits)
        server.receive(headers(1, REQUEST_BLOCK) + octets)
        (fault,) = (f for f in server.frames() if f.type in (RST_STREAM, GOAWAY))
        assert fault.code == FLOW_CONTROL_ERROR
        assert fault.type == (GOAWAY if case == "connection" else RST_STREAM)


def test_server_counts_padding_before_a_short_message_against_the_streams_window() -> None:
    server = Server.opened(Limits(stream_window=65_535, connection_window=10**6, max_frame_size=10**6))
    padding = data(1, b"\xff" + bytes(255), PADDED)
    server.receive(headers(1, REQUEST_BLOCK) + padding * 100 + data(1, message(bytes(65_530)), END_STREAM))
    assert [(f.type, f.code) for f in server.frames() if f.type == RST_STREAM] == [(RST_STREAM, FLOW_CONTROL_ERROR)]


def test_server_tells_a_streams_handler_of_the_reset() -> None:
    server = Server.opened()
    events = server.receive(headers(1, block(request("/test.Echo/Stream"))) + rst_stream(1))
    assert [type(event) for event in events] == [StreamOpened, CallCancelled]
    events = server.receive(headers(3, block(request("/test.Echo/Stream"))) + window_update(3, 0))
    assert [type(event) for event in events] == [StreamOpened, CallCancelled]


def test_server_ignores_what_the_rfc_tells_it_to_ignore() -> None:
    """Unknown types, flags, settings and error codes; the reserved bit; PRIORITY anywhere, also of itself."""
    server = Server.opened()
    server.receive(
        frame(0x16, 0xFF, 7, b"unknown")
        + settings((0x99, 1), (0xFE03, 1), (3, 0), (6, 1))
        + frame(SETTINGS, ACK)
        + frame(SETTINGS, 0xFE)
        + frame(PING, 0xFE, 0, bytes(8))
        + frame(PING, ACK, 0, bytes(8))
        + frame(PRIORITY, 0, 1, struct.pack(">IB", 1, 255))
        + frame(PRIORITY, 0, 8, bytes(5))
        + frame(GOAWAY, 0, 0, struct.pack(">II", 0, 99) + b"debug")
        + headers(1, struct.pack(">IB", 1, 7) + REQUEST_BLOCK, END_HEADERS | PRIORITY_FLAG | 0xC0 | 0x12)
        + frame(DATA, 0xF6, 1, message(b"")[:2])
        + rst_stream(1, 0xFFFF)
    )
    assert not server.connection.closed
    assert all(f.type in (SETTINGS, PING) and f.flags == ACK for f in server.frames())
    assert isinstance(server.receive(unary(3))[0], Call)


def test_server_takes_padding_and_priority_off_a_request() -> None:
    server = Server.opened()
    padded = b"\x09" + struct.pack(">IB", 0, 7) + REQUEST_BLOCK + bytes(9)
    call = server.call(
        headers(1, padded, END_HEADERS | PADDED | PRIORITY_FLAG)
        + data(1, b"\x03" + message(b"hello") + bytes(3), PADDED | END_STREAM)
    )
    assert call.message == b"hello"
    # The whole payload may be padding, and the padding may be of length 0.
    call = server.call(
        headers(3, b"\x00" + REQUEST_BLOCK, END_HEADERS | PADDED)
        + data(3, b"\x02\0\0", PADDED)
        + data(3, b"\x00" + message(b"again"), PADDED | END_STREAM)
    )
    assert call.message == b"again"


def test_server_reads_a_header_block_from_continuations() -> None:
    pieces = [REQUEST_BLOCK[at : at + 20] for at in range(0, len(REQUEST_BLOCK), 20)]
    octets = headers(1, pieces[0], 0)
    for piece in pieces[1:]:
        octets += frame(CONTINUATION, 0, 1, piece)
    octets += frame(CONTINUATION, END_HEADERS, 1, b"") + data(1, message(b"x"), END_STREAM)
    assert Server.opened().call(octets).message == b"x"
    # END_STREAM of the HEADERS frame counts once the block is whole.
    server = Server.opened()
    server.receive(frame(HEADERS, END_STREAM, 1, REQUEST_BLOCK[:9]) + frame(CONTINUATION, 4, 1, REQUEST_BLOCK[9:]))
    assert server.connection.open_calls == 0
    (answer,) = server.frames()
    assert answer.type == HEADERS


def test_number_of_continuations_is_limited_and_none_may_be_allowed() -> None:
    octets = headers(1, REQUEST_BLOCK[:9], 0) + frame(CONTINUATION, END_HEADERS, 1, REQUEST_BLOCK[9:])
    server = Server.opened(Limits(max_continuations=1))
    server.receive(octets)
    assert server.connection.open_calls == 1
    server = Server.opened(Limits(max_continuations=0))
    server.receive(octets)
    assert server.frames()[-1].code == ENHANCE_YOUR_CALM


def test_server_forgets_how_old_streams_ended_without_harm_to_a_slow_peer() -> None:
    """Frames still in flight for a stream that was answered early long ago must not end the connection."""
    server = Server.opened(Limits(closed_stream_memory=4))
    unknown = block(request("/test.Echo/Nothing"))
    for stream_id in range(1, 41, 2):
        server.receive(headers(stream_id, unknown))
    for stream_id in range(1, 41, 2):
        server.receive(data(stream_id, message(b"late"), END_STREAM))
    assert not server.connection.closed
    assert server.connection.table.remembered_resets == 4
    assert [f.code for f in server.frames() if f.type == RST_STREAM] == [0] * 20


def test_server_answers_a_ping_with_its_payload_and_ahead_of_blocked_data() -> None:
    server = Server.opened(None, (4, 10))
    server.call(unary(1, bytes(1_000))).reply(bytes(1_000))
    server.receive(frame(PING, 0, 0, b"12345678"))
    last = server.frames()[-1]
    assert (last.type, last.flags, last.payload) == (PING, ACK, b"12345678")


def test_server_sends_its_settings_first_and_acknowledges_each_of_the_peers() -> None:
    limits = Limits(max_concurrent_streams=7, max_frame_size=20_000, stream_window=70_000, connection_window=100_000)
    server = Server(limits)
    server.receive(OPENING + settings((4, 100)) + settings())
    first, credit, *acks = server.frames()
    pairs = dict(struct.iter_unpack(">HI", first.payload))
    assert (first.type, first.flags) == (SETTINGS, 0)
    assert pairs == {3: 7, 4: 70_000, 5: 20_000, 6: limits.max_header_list_size}
    assert (credit.type, credit.stream_id, credit.payload) == (WINDOW_UPDATE, 0, struct.pack(">I", 100_000 - 65_535))
    assert [(f.type, f.flags, f.payload) for f in acks] == [(SETTINGS, ACK, b"")] * 3
    small = Server(Limits(connection_window=65_535))
    small.receive(OPENING)
    assert WINDOW_UPDATE not in [f.type for f in small.frames()]


def test_server_says_which_stream_was_the_last() -> None:
    server = Server.opened()
    server.receive(unary(1) + unary(3) + headers(0, b""))
    goaway = parse(server.sent())[-1]
    assert goaway.payload[:4] == b"\0\0\0\3"
    assert server.connection.open_calls == 0


def test_calls_of_a_dead_connection_take_their_answers_in_silence() -> None:
    server = Server.opened()
    call, other = (event for event in server.receive(unary(1) + unary(3)) if isinstance(event, Call))
    server.receive(frame(PING, 0, 0, b""))
    server.sent()
    call.reply(b"late")
    other.fail(Status.INTERNAL, "late")
    assert not call.open
    assert server.sent() == b""
    lost = Server.opened()
    call = lost.call(unary(1))
    lost.connection.connection_lost()
    call.reply(b"late", [("a", "b")], [("c", "d")])
    call.responder.reply(call, [b"late"], 4)
    assert lost.sent() == b""
    assert lost.receive(unary(3)) == []


def test_cancelled_call_takes_its_answer_in_silence() -> None:
    server = Server.opened()
    call = server.call(unary(1))
    server.receive(rst_stream(1, CANCEL))
    call.reply(b"late")
    assert server.sent() == b""
    assert server.alive
