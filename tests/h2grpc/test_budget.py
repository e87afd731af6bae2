"""What is held for slow peers: of requests that are not whole yet, and of responses that nobody reads."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.h2grpc.frames import (
    DATA,
    END_STREAM,
    HEADERS,
    REQUEST_BLOCK,
    RST_STREAM,
    STREAM_BLOCK,
    UNARY,
    block,
    data,
    headers,
    message,
    request,
    rst_stream,
    unary,
    window_update,
    with_reserved_bit,
)
from tests.h2grpc.support import COMPRESSIBLE, MESSAGES, Server
from toutates.h2grpc import Allowance, Call, CallCancelled, Limits, MessageReceived, Method, StreamOpened
from toutates.h2grpc.budget import CALL_BYTES, MESSAGE_BYTES, TASK_BYTES, UNCOUNTED_CALLS
from toutates.h2grpc.events import InflationDue
from toutates.h2grpc.shared import Shared


def statuses(server: Server) -> list[tuple[int, bytes]]:
    """(stream, block) of the trailers that the server sent."""
    return [(f.stream_id, f.payload) for f in server.frames() if f.type == HEADERS and f.flags & END_STREAM]


def started(stream_id: int, size: int, sent: int) -> bytes:
    """A request of ``size`` bytes of which ``sent`` are here."""
    body = message(bytes(size))[:sent]
    return headers(stream_id, REQUEST_BLOCK) + b"".join(
        data(stream_id, body[at : at + 30_000]) for at in range(0, sent, 30_000)
    )


def test_requests_under_way_are_counted_until_they_are_whole() -> None:
    server = Server.opened()
    budget = server.budget
    server.receive(started(1, 50_000, 40_000))
    assert (budget.used, server.connection.held_bytes) == (50_005, 50_005 + CALL_BYTES)  # what it will take
    assert server.connection.awaits_request
    server.call(data(1, bytes(10_005), END_STREAM)).reply(b"answer")
    assert (budget.used, server.connection.held_bytes) == (0, 0)
    assert not server.connection.awaits_request


def test_peer_owes_the_rest_of_a_request_from_its_first_byte_on() -> None:
    for begun in (unary(3)[:5], headers(3, REQUEST_BLOCK, 0), headers(3, REQUEST_BLOCK)):
        server = Server.opened()
        server.call(unary(1))
        assert not server.connection.awaits_request
        server.receive(begun)
        assert server.connection.awaits_request


@pytest.mark.parametrize("end", ["reset", "loss", "deadline"])
def test_requests_that_never_become_whole_are_given_back(end: str) -> None:
    server = Server.opened()
    timed = headers(1, block(request(UNARY, ("grpc-timeout", "1S"))))
    server.receive(timed + data(1, message(bytes(9_000))[:5_000]))
    assert server.budget.used == 9_005
    if end == "reset":
        server.receive(rst_stream(1))
    elif end == "loss":
        server.connection.connection_lost()
    else:
        server.connection.expire(2 * 10**9)
    assert server.budget.used == 0
    assert server.connection.held_bytes == 0


def test_connection_that_uploads_too_much_at_once_loses_the_call_and_lives() -> None:
    server = Server.opened(Limits(max_buffered_bytes=100_000))
    server.receive(started(1, 90_000, 80_000))
    assert statuses(server) == []
    server.receive(started(3, 90_000, 30_000))
    [(stream_id, trailers)] = statuses(server)
    assert stream_id == 3
    assert b"the connection has 180010 bytes of requests under way, and 100000 is the most" in trailers
    assert server.limit_hits == {"connection_buffer": 1}
    assert server.budget.used == 90_005
    call = server.call(data(1, bytes(10_005), END_STREAM))
    assert call.end - call.start == 90_000
    assert server.alive


def two_connections(limit: int) -> tuple[Server, Server]:
    """Servers whose connections share a budget, but not the counts of limits."""
    first = Shared(limit)
    second = Shared(limit)
    second.budget = first.budget
    return Server.opened(shared=first), Server.opened(shared=second)


def test_server_that_holds_too_much_refuses_large_requests_of_all_connections_but_no_small_ones() -> None:
    one, other = two_connections(200_000)
    one.receive(started(1, 2_000_000, 90_000))
    other.receive(started(1, 2_000_000, 30_000))
    [(_, trailers)] = statuses(other)
    assert b"the server holds 239970 bytes for slow peers, and 200000 is the most" in trailers
    assert other.limit_hits == {"server_buffer": 1}
    one.receive(data(1, bytes(9_000)))
    one.call(unary(3)).reply(b"answer")
    other.call(unary(3)).reply(b"answer")
    assert len(statuses(other)) == len(statuses(one)) == 1


def test_responses_that_wait_for_window_are_counted_and_refused_when_there_is_no_memory_for_them() -> None:
    one, other = two_connections(100_000)
    one.call(unary(1)).reply(bytes(90_000))
    assert one.connection.awaits_window == 90_005 - 65_535
    assert one.budget.used == 90_005 - 65_535
    other.call(unary(1)).reply(bytes(190_000))
    frames = other.frames()
    assert sum(len(f.payload) for f in frames if f.type == DATA) == 65_535
    assert (frames[-1].type, frames[-1].flags & END_STREAM) == (HEADERS, END_STREAM)
    assert b"bytes for slow peers" in frames[-1].payload
    assert other.limit_hits == {"server_buffer": 1}
    one.receive(window_update(1, 10**6) + window_update(0, 10**6))
    assert one.budget.used == 0
    assert other.budget is one.budget


def test_messages_of_streams_are_counted_until_their_handler_has_them() -> None:
    server = Server.opened()
    call = server.call(headers(1, STREAM_BLOCK))
    server.receive(data(1, message(bytes(995))) + data(1, message(bytes(995)) + b"\0"))
    assert server.budget.used == TASK_BYTES + 2 * MESSAGE_BYTES + 2_001
    server.connection.message_read(call, 995)
    assert server.budget.used == TASK_BYTES + MESSAGE_BYTES + 1_001
    assert not server.connection.awaits_request  # a stream may be silent as long as it likes
    server.receive(rst_stream(1))
    assert server.budget.used == 0


def test_decompressed_size_is_bounded_apart_from_the_size_as_sent() -> None:
    limits = Limits(max_message_size=100_000, max_decompressed_size=50_000)
    compressed = block(request(COMPRESSIBLE, ("grpc-encoding", "deflate")))
    for size, refused in ((50_000, False), (50_001, True)):
        server = Server.opened(limits)
        server.receive(headers(1, compressed) + data(1, message(zlib.compress(bytes(size)), 1), END_STREAM))
        assert bool(statuses(server)) is refused
        assert server.limit_hits == ({"decompressed_size": 1} if refused else {})
    server = Server.opened(limits)
    assert server.call(unary(1, bytes(20_000))).end


def test_requests_beyond_what_a_worker_inflates_are_inflated_elsewhere_and_counted_meanwhile() -> None:
    limits = Limits(inflation=Allowance(burst=1_500, per_second=1, per_call=0))
    compressed = block(request(COMPRESSIBLE, ("grpc-encoding", "deflate")))
    packed = zlib.compress(bytes(1_000_000))
    server = Server.opened(limits)
    [due] = server.connection.receive_data(headers(1, compressed) + data(1, message(packed, 1), END_STREAM), 0)
    assert isinstance(due, InflationDue)
    assert (due.message, due.encoding) == (packed, "deflate")
    assert server.budget.used == len(packed)
    [call] = server.connection.inflated(due.call, bytes(1_000_000))
    assert isinstance(call, Call)
    assert call.message == bytes(1_000_000)
    assert server.budget.used == 0
    server.receive(rst_stream(1))
    assert not server.connection.inflated(due.call, bytes(1_000_000))  # too late for its caller


def test_a_message_that_is_whole_is_counted_until_the_request_has_ended() -> None:
    server = Server.opened()
    server.receive(headers(1, REQUEST_BLOCK) + data(1, message(bytes(9_000))))
    assert server.budget.used == 9_000
    assert server.call(data(1, b"", END_STREAM)).end == 9_000
    assert server.budget.used == 0


def test_frames_and_header_blocks_that_are_not_whole_are_counted() -> None:
    for begun in (data(1, bytes(9_000))[:5_009], headers(1, bytes(5_000), 0), headers(1, bytes(5_000))[:5_000]):
        server = Server.opened()
        for at in range(0, len(begun), 7):
            server.receive(begun[at : at + 7])
        assert 4_990 < server.budget.used < 5_020
        server.connection.connection_lost()
        assert server.budget.used == 0


def opened(count: int, first: int = 1) -> bytes:
    """Calls that are begun and left at that."""
    return b"".join(headers(stream_id, REQUEST_BLOCK) for stream_id in range(first, first + 2 * count, 2))


def test_records_of_open_calls_are_counted_and_given_back() -> None:
    server = Server.opened()
    budget = server.budget
    server.receive(opened(UNCOUNTED_CALLS))
    assert budget.used == 0
    server.receive(opened(100, 2 * UNCOUNTED_CALLS + 1))
    assert budget.used == budget.call_bytes == (UNCOUNTED_CALLS + 100) * CALL_BYTES
    server.receive(b"".join(rst_stream(stream_id) for stream_id in range(1, 101, 2)))
    assert budget.used == (UNCOUNTED_CALLS + 50) * CALL_BYTES
    server.connection.connection_lost()
    assert (budget.used, budget.call_bytes) == (0, 0)


def test_open_calls_fill_half_of_the_memory_and_every_connection_may_have_a_few() -> None:
    one, other = two_connections(400 * CALL_BYTES)
    one.receive(opened(300))
    refused = [f for f in one.frames() if f.type == RST_STREAM]
    assert len(refused) == 100
    assert one.limit_hits["server_buffer"] == 100
    other.receive(opened(UNCOUNTED_CALLS + 10))
    assert len([f for f in other.frames() if f.type == RST_STREAM]) == 10
    other.receive(rst_stream(1) + started(2 * UNCOUNTED_CALLS + 21, 50_000, 50_000))  # half is there for requests
    assert other.budget.used == 200 * CALL_BYTES + 50_005
    one.receive(b"".join(rst_stream(stream_id) for stream_id in range(1, 301, 2)))
    other.receive(opened(10, 2 * UNCOUNTED_CALLS + 23))
    assert not [f for f in other.frames() if f.type == RST_STREAM]


def test_streaming_calls_are_refused_when_there_is_no_memory_for_their_tasks() -> None:
    server = Server.opened(shared=Shared(5 * TASK_BYTES))
    server.receive(b"".join(headers(stream_id, STREAM_BLOCK) for stream_id in (1, 3, 5)))
    [(stream_id, trailers)] = statuses(server)
    assert stream_id == 5
    assert b"for open calls" in trailers
    assert len([event for event in server.events if isinstance(event, StreamOpened)]) == 2
    server.receive(rst_stream(1))
    assert server.budget.used == TASK_BYTES
    server.receive(headers(7, STREAM_BLOCK))
    assert not statuses(server)


@pytest.mark.parametrize("octets", [lambda one: one, with_reserved_bit], ids=["frame_loop", "receiver"])
def test_streaming_calls_whose_messages_are_handled_one_by_one_have_no_task(octets: Callable[[bytes], bytes]) -> None:
    server = Server.opened(shared=Shared(5 * TASK_BYTES))
    for stream_id in range(1, 41, 2):
        assert not server.receive(octets(headers(stream_id, block(request(MESSAGES)))))
    assert server.budget.used == 0
    [event] = server.receive(data(39, message(b"one") + b"\0"))
    assert isinstance(event, MessageReceived)
    assert server.budget.used == MESSAGE_BYTES + 9
    server.connection.message_read(event.call, 3)
    assert server.budget.used == 1
    [event] = server.receive(rst_stream(39))
    assert isinstance(event, CallCancelled)
    assert server.budget.used == 0


@pytest.mark.parametrize(
    ("limits", "size", "limit"),
    [(Limits(), 100, ""), (Limits(), 101, "message_size"), (Limits(max_message_size=50), 51, "message_size")],
)
def test_a_method_may_take_smaller_messages_than_the_connection(limits: Limits, size: int, limit: str) -> None:
    server = Server.opened(limits)
    server.receive(headers(1, block(request(MESSAGES))) + data(1, message(bytes(size))[:6]))
    assert dict(server.limit_hits) == ({limit: 1} if limit else {})
    assert (server.budget.used == 0) == bool(limit)


def test_a_compressed_message_is_no_larger_than_its_method_takes() -> None:
    server = Server.opened()
    server.receive(headers(1, block(request(MESSAGES, ("grpc-encoding", "gzip")))))
    [event] = server.receive(data(1, message(zlib.compress(bytes(100), wbits=31), 1)))
    assert isinstance(event, MessageReceived)
    assert event.message == bytes(100)
    server.receive(data(1, message(zlib.compress(bytes(101), wbits=31), 1)))
    assert dict(server.limit_hits) == {"decompressed_size": 1}


@pytest.mark.parametrize("names", [(), ("unary", "stream"), ("stream", "message"), ("unary", "stream", "message")])
def test_a_method_has_one_handler(names: tuple[str, ...]) -> None:
    handlers: dict[str, Any] = dict.fromkeys(names, print)
    with pytest.raises(ValueError, match="/a/b: give either a unary, a stream or a message handler"):
        Method("/a/b", **handlers)


def test_a_response_that_waits_keeps_no_more_than_itself() -> None:
    """A view of a batch's output would keep what others were answered with, uncounted."""
    server = Server.opened()
    batch = bytearray(10_000_000)
    call = server.call(unary(1))
    call.responder.reply(call, [memoryview(batch)[:200_000]], 200_000)
    server.frames()
    assert server.budget.used == 200_005 - 65_535
    assert sys.getrefcount(batch) <= 2


def crumbs(number: int) -> bytes:
    """A header block of many small fields, unlike all others; as objects they take many times its bytes."""
    return block(request(UNARY, *((b"x%03d" % at, b"%d" % (at % 10)) for at in range(300)), ("number", str(number))))


def test_header_blocks_are_counted_by_what_they_become_and_forgotten_while_nothing_is_asked() -> None:
    server = Server.opened()
    for stream_id in range(1, 401, 2):
        few = block(request(UNARY, *((b"x%02d" % at, b"%d" % stream_id) for at in range(40))))
        for octets in (few, crumbs(stream_id)):
            server.receive(headers(2 * stream_id + (octets is not few) * 2 - 1, octets))
        server.receive(rst_stream(2 * stream_id - 1) + rst_stream(2 * stream_id + 1))
        assert server.budget.used <= 200_000
    assert server.budget.used == server.connection.held_bytes
    assert server.budget.used >= 12 * len(few)
    server.connection.trim()
    assert (server.budget.used, server.connection.held_bytes) == (0, 0)
    server.call(unary(2_001))
    server.receive(headers(2_003, block(request(UNARY, *((b"y%02d" % at, b"1") for at in range(99))), 0x40)))
    server.receive(rst_stream(2_003))
    server.connection.trim()
    assert 4_000 < server.budget.used < 30_000  # the table, which the peer relies on
    server.connection.connection_lost()
    assert server.budget.used == 0


def test_header_fields_of_open_calls_are_counted_and_take_half_of_the_memory_at_most() -> None:
    one, other = two_connections(1_000_000)
    for number in range(30):
        one.receive(headers(2 * number + 1, crumbs(number)))
    refused = [f for f in one.frames() if f.type == RST_STREAM]
    assert len(refused) == 23
    assert one.limit_hits["server_buffer"] == len(refused)
    assert 400_000 < one.budget.call_bytes <= 500_000
    other.call(unary(1)).reply(b"answer")
    call = one.call(data(1, message(b"hello"), END_STREAM))
    before = one.budget.used
    call.reply(b"answer")
    assert before - one.budget.used > 40_000
    one.receive(b"".join(rst_stream(2 * number + 1) for number in range(1, 30)))
    one.connection.trim()
    assert (one.budget.used, one.budget.call_bytes) == (0, 0)
    one.receive(headers(101, crumbs(50)))
    one.connection.connection_lost()
    assert (one.budget.used, one.budget.call_bytes) == (0, 0)
