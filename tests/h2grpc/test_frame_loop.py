"""The short way through the frame loop: what is nearly a plain unary call is treated as by the table of states."""

from __future__ import annotations

import pytest

from tests.h2grpc.frames import (
    END_HEADERS,
    END_STREAM,
    PADDED,
    PRIORITY_FLAG,
    REQUEST_BLOCK,
    STREAM_BLOCK,
    UNARY,
    block,
    data,
    frame,
    headers,
    message,
    request,
    rst_stream,
    unary,
    window_update,
    with_reserved_bit,
)
from tests.h2grpc.support import Server, describe
from toutates.h2grpc import Call, Limits
from toutates.h2grpc.receiver import Receiver

#: A connection whose second request takes the short way: its first stream has number 1, the next one 2 more.
LIMITS = Limits(
    max_concurrent_streams=3,
    max_message_size=80_000,
    max_frame_size=200_000,
    stream_window=90_000,
    connection_window=65_535,
    max_header_block_size=400,
)


def announcing(length: int) -> bytes:
    return headers(3, block(request(UNARY, ("content-length", str(length)))))


WHOLE = headers(3, REQUEST_BLOCK)
SESSIONS = {
    "plain": [WHOLE, data(3, message(b"m"), END_STREAM)],
    "empty": [WHOLE, data(3, message(b""), END_STREAM)],
    "two calls": [WHOLE, data(3, message(b"m"), END_STREAM), unary(5)],
    "not ended": [WHOLE, data(3, message(b"m"))],
    "not ended, then ended": [WHOLE, data(3, message(b"m")), data(3, b"", END_STREAM)],
    "padded": [WHOLE, data(3, b"\x02" + message(b"m") + b"\0\0", PADDED | END_STREAM)],
    "priority": [headers(3, bytes(5) + REQUEST_BLOCK, END_HEADERS | PRIORITY_FLAG), data(3, message(b"m"), END_STREAM)],
    "no message": [WHOLE, data(3, b"", END_STREAM)],
    "no data": [headers(3, REQUEST_BLOCK, END_HEADERS | END_STREAM)],
    "less than a prefix": [WHOLE, data(3, b"\0\0", END_STREAM)],
    "cut off": [WHOLE, data(3, message(b"mm")[:-1], END_STREAM)],
    "too much": [WHOLE, data(3, message(b"m") + b"\0", END_STREAM)],
    "two messages": [WHOLE, data(3, message(b"m") * 2, END_STREAM)],
    "two frames": [WHOLE, data(3, message(b"mm")[:6]), data(3, b"m", END_STREAM)],
    "marked compressed": [WHOLE, data(3, message(b"m", 1), END_STREAM)],
    "right length": [announcing(6), data(3, message(b"m"), END_STREAM)],
    "wrong length": [announcing(7), data(3, message(b"m"), END_STREAM)],
    "another stream's data": [WHOLE, data(1, message(b"m"), END_STREAM), data(3, message(b"m"), END_STREAM)],
    "data of no stream": [WHOLE, data(5, message(b"m"), END_STREAM)],
    "something between": [WHOLE, frame(6, 0, 0, b"12345678"), data(3, message(b"m"), END_STREAM)],
    "data that looks like a message": [WHOLE, window_update(3, 1), data(3, message(b"m"), END_STREAM)],
    "data after the end": [WHOLE, data(3, message(b"m"), END_STREAM), data(3, message(b"m"), END_STREAM)],
    "largest message": [WHOLE, data(3, message(bytes(60_000)), END_STREAM)],
    "over the connection's window": [WHOLE, data(3, message(bytes(65_531)), END_STREAM)],
    "over the message limit": [WHOLE, data(3, message(bytes(80_001)), END_STREAM)],
    "over the frame limit": [WHOLE, data(3, message(bytes(200_001)), END_STREAM), unary(5)],
    "a stream": [headers(3, STREAM_BLOCK), data(3, message(b"m"), END_STREAM)],
    "no method": [headers(3, block(request("/a/b"))), data(3, message(b"m"), END_STREAM)],
    "malformed": [headers(3, block([("a", "b")])), unary(5)],
    "a block that is too large": [headers(3, block(request(UNARY, ("a", "b" * 400)))), unary(5)],
    "a deadline": [headers(3, block(request(UNARY, ("grpc-timeout", "1S")))), data(3, message(b"m"), END_STREAM)],
    "a number left out": [unary(7), unary(5)],
    "a number twice": [WHOLE, WHOLE, unary(5)],
    "a server's number": [unary(4)],
    "number 0": [headers(0, REQUEST_BLOCK), unary(3)],
    "too many streams": [headers(number, REQUEST_BLOCK) for number in (3, 5, 7, 9)] + [rst_stream(3), unary(11)],
    "credit": [WHOLE, window_update(3, 5), window_update(0, 5), data(3, message(b"m"), END_STREAM)],
    "no credit for the stream": [WHOLE, window_update(3, 0)],
    "no credit for the connection": [WHOLE, window_update(0, 0)],
    "too much credit for the stream": [WHOLE, window_update(3, 2**31 - 1)],
    "too much credit for the connection": [WHOLE, window_update(0, 2**31 - 1)],
    "as much credit as may be": [WHOLE, window_update(3, 2**31 - 1 - 65_535), window_update(0, 2**31 - 1 - 65_535)],
    "credit in 3 bytes": [WHOLE, frame(8, 0, 3, b"\0\0\1")],
    "credit for a closed stream": [window_update(1, 1), unary(3)],
    "no credit for a closed stream": [window_update(1, 0), unary(3)],
    "credit for a stream to come": [window_update(5, 1), unary(3)],
    "credit for a server's stream": [window_update(2, 1), unary(3)],
}


def outcome(reads: list[bytes]) -> tuple[object, bytes, int]:
    """Events, output and receive window of a session whose first call, on stream 1, has been answered."""
    server = Server.opened(LIMITS)
    server.call(with_reserved_bit(unary(1))).reply(b"answer")
    for octets in reads:
        server.receive(octets)
    for event in server.events:
        if isinstance(event, Call):
            event.reply(event.message[:100])
    return describe(server.events), server.sent(), server.connection.windows.receive


@pytest.mark.parametrize("name", SESSIONS)
def test_server_treats_frames_alike_on_the_short_way_and_on_the_long_one(name: str) -> None:
    for reads in (SESSIONS[name], [b"".join(SESSIONS[name])]):
        assert outcome(reads) == outcome([with_reserved_bit(octets) for octets in reads])


def test_plain_calls_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server.opened()
    server.call(unary(1)).reply(b"answer")
    monkeypatch.delattr(Receiver, "receive")
    timed = headers(5, block(request(UNARY, ("grpc-timeout", "1S"), ("content-length", "6"))))
    whole = unary(3) + timed + data(5, message(b"m"), END_STREAM) + unary(7, bytes(16_379))
    for octets in (whole, headers(9, REQUEST_BLOCK), data(9, message(b"m"), END_STREAM)):
        server.receive(octets)
    server.receive(window_update(3, 1) + window_update(0, 1) + window_update(1, 1) + window_update(9, 2**31 - 65_536))
    calls = [event for event in server.events if isinstance(event, Call)]
    assert [call.stream_id for call in calls] == [1, 3, 5, 7, 9]
    assert calls[2].deadline_ns == server.connection.deadlines.next_ns == 10**9
