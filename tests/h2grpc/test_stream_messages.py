"""Messages of streams whose handler does the flow control: found whole in the frame loop, unread until it says so."""

from __future__ import annotations

import struct

import pytest

from tests.h2grpc.frames import (
    END_STREAM,
    FLOW_CONTROL_ERROR,
    RST_STREAM,
    WINDOW_UPDATE,
    Frame,
    block,
    data,
    headers,
    message,
    request,
    rst_stream,
    with_reserved_bit,
)
from tests.h2grpc.support import FLOW, Server, describe
from toutates.h2grpc import Call, Limits, MessageReceived, RequestEnded
from toutates.h2grpc.budget import MESSAGE_BYTES

OPEN = headers(1, block(request(FLOW)))


def messages_of(server: Server, octets: bytes) -> list[MessageReceived]:
    return [event for event in server.receive(octets) if isinstance(event, MessageReceived)]


def read(server: Server, received: MessageReceived) -> None:
    server.connection.take_message(received)


def call_of(server: Server) -> Call:
    call = server.connection.streams[1]
    assert isinstance(call, Call)
    return call


@pytest.mark.parametrize("change", [bytes, with_reserved_bit])
def test_messages_are_the_same_however_they_are_found(change: type[bytes]) -> None:
    octets = data(1, message(b"one")) + data(1, message(b"") + message(b"two") + message(b"thr")[:4])
    octets += data(1, message(b"thr")[4:]) + data(1, message(b"four")) + data(1, message(b"five"), END_STREAM)
    bodies = [b"one", b"", b"two", b"thr", b"four", b"five"]
    expected: list[tuple[object, ...]] = [("message", 1, body) for body in bodies]
    expected.append(("RequestEnded", 1))
    server = Server.opened()
    server.receive(OPEN)
    assert describe(server.receive(change(octets))) == expected
    for size in (1, 2, 7, 20):
        server = Server.opened()
        server.receive(OPEN)
        events = [
            event for at in range(0, len(octets), size) for event in server.receive(change(octets)[at : at + size])
        ]
        assert describe(events) == expected


def test_what_the_loop_leaves_out_is_refused_as_ever() -> None:
    for wrong, code in ((b"\x02\0\0\0\0", 13), (b"\x01\0\0\0\0", 13)):
        server = Server.opened()
        server.receive(OPEN)
        server.receive(data(1, wrong))
        assert b"grpc-status" in server.sent(), code
    server = Server.opened(Limits(max_message_size=10))
    server.receive(OPEN + data(1, message(bytes(11))))
    assert server.limit_hits["message_size"] == 1


def test_the_window_of_messages_comes_back_when_they_are_read_and_not_before() -> None:
    server = Server.opened(Limits(stream_window=65_535))
    server.receive(OPEN)
    server.sent()
    received = [one for _ in range(6) for one in messages_of(server, data(1, message(bytes(9_995))))]
    for one in received:
        server.connection.keep_message(one)
    assert [frame for frame in server.frames() if frame.type == WINDOW_UPDATE and frame.stream_id] == []
    for one in received[:3]:
        read(server, one)
    assert server.frames() == []  # less than half of it would come back
    read(server, received[3])
    assert server.frames() == [Frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 40_000))]
    # The peer has 5,535 and 40,000 bytes left.
    server.receive(data(1, message(bytes(45_530))))
    server.receive(data(1, message(b"")))
    assert Frame(RST_STREAM, 0, 1, struct.pack(">I", FLOW_CONTROL_ERROR)) in server.frames()


def test_messages_that_are_handled_with_their_read_give_their_window_back_once_half_of_it_is_gone() -> None:
    server = Server.opened(Limits(stream_window=65_535))
    server.receive(OPEN)
    server.sent()
    for _ in range(4):
        assert not server.frames()
        [received] = messages_of(server, data(1, message(bytes(9_995))))
        read(server, received)
    assert server.frames() == [Frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 40_000))]


def test_messages_that_are_not_taken_and_answers_that_are_kept_count() -> None:
    server = Server.opened()
    one, two, three = messages_of(server, OPEN + b"".join(data(1, message(bytes(95))) for _ in range(3)))
    assert server.budget.used == 0  # nobody keeps them for longer than their read, as yet
    read(server, one)
    for later in (two, three):
        server.connection.keep_message(later)
    call = call_of(server)
    server.connection.keep(call, 1_000)
    assert server.budget.used == 1_000 + 2 * (100 + MESSAGE_BYTES)
    read(server, two)
    assert server.budget.used == 1_000 + 100 + MESSAGE_BYTES
    server.connection.keep(call, 0)
    read(server, three)
    assert server.budget.used == 0
    server.connection.keep(call, 500)
    server.receive(rst_stream(1))
    assert server.budget.used == 0


def test_a_call_that_keeps_more_than_its_connection_may_ends() -> None:
    server = Server.opened(Limits(max_buffered_bytes=1_000))
    server.receive(OPEN)
    server.connection.keep(call_of(server), 1_001)
    assert server.limit_hits["connection_buffer"] == 1
    assert not server.connection.streams
    assert server.budget.used == 0


def test_one_frame_may_have_as_many_messages_as_fit_but_for_tiny_ones() -> None:
    server = Server.opened()
    server.receive(OPEN)
    many = b"".join([message(bytes(95))] * 10_000)
    assert len(messages_of(server, data(1, many))) == 10_000
    server.receive(data(1, message(b"") * 20_000))
    assert server.limit_hits["messages"] == 1


def test_a_frame_after_the_end_of_the_call_makes_no_message() -> None:
    server = Server.opened()
    server.receive(OPEN + data(1, message(b"one"), END_STREAM))
    assert isinstance(server.events[-1], RequestEnded)
    assert not messages_of(server, data(1, message(b"two")))
    server = Server.opened()
    server.receive(OPEN)
    call_of(server).fail(5, "gone")  # type: ignore[arg-type]
    assert not messages_of(server, data(1, message(b"two")))
