"""Windows, both ways (RFC 9113 section 5.2 and 6.9)."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu_time import least_cpu_s, lines_run
from tests.h2grpc.frames import (
    ACK,
    DATA,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    HEADERS,
    REFUSED_STREAM,
    REQUEST_BLOCK,
    RST_STREAM,
    SETTINGS,
    STREAM_BLOCK,
    WINDOW_UPDATE,
    Frame,
    block,
    data,
    headers,
    message,
    request,
    rst_stream,
    settings,
    unary,
    window_update,
)
from tests.h2grpc.support import Server, connected, exchange, split_messages
from toutates.h2grpc import Call, Limits, MessageReceived, Status
from toutates.h2grpc.output import Output
from toutates.h2grpc.windows import Windows

HUNDRED_MB = 100_000_000


def sizes(frames: list[Frame], stream_id: int | None = None) -> list[int]:
    return [len(f.payload) for f in frames if f.type == DATA and stream_id in (None, f.stream_id)]


def credits(frames: list[Frame]) -> list[tuple[int, int]]:
    return [(f.stream_id, int.from_bytes(f.payload, "big")) for f in frames if f.type == WINDOW_UPDATE]


@given(
    st.integers(100, 70_000),
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 3_000), st.integers(1, 3_000)), max_size=30),
)
def test_frames_that_are_taken_together_open_the_window_as_they_do_one_by_one(
    connection_window: int, spent: int, runs: list[tuple[int, int, int]]
) -> None:
    made = [Windows(Limits(connection_window=max(connection_window, 65_535)), Output([])) for _ in range(2)]
    together, alone = made
    for windows in made:
        windows.take(spent)
    for count, length, last in runs:
        if count * length + last > together.low:
            continue
        together.take_frames(count, length, last)
        for size in [length] * count + [last]:
            alone.take(size)
        assert together.receive == alone.receive
        assert together._output.pieces == alone._output.pieces


# --- sending ---------------------------------------------------------------------------------------------------------


def test_server_sends_no_more_than_the_streams_window_and_goes_on_with_credit() -> None:
    server = Server.opened(None, (4, 100))
    server.call(unary(1)).reply(bytes(1_000))
    first = server.frames()
    assert [f.type for f in first] == [HEADERS, DATA]
    assert sizes(first) == [100]
    server.receive(window_update(1, 1))
    assert sizes(server.frames()) == [1]
    server.receive(window_update(1, 5_000))
    rest = server.frames()
    assert [f.type for f in rest] == [DATA, HEADERS]
    assert sizes(rest) == [904]
    assert rest[-1].flags & END_STREAM
    assert server.connection.open_calls == 0


def test_small_answers_use_up_the_connections_window_too() -> None:
    server = Server.opened()
    for stream_id in (1, 3, 5, 7, 9):
        server.call(unary(stream_id)).reply(bytes(15_000))
    assert sum(sizes(server.frames())) == 65_535
    server.receive(window_update(0, 100_000))
    assert sum(sizes(server.frames())) == 5 * 15_005 - 65_535


def test_server_sends_no_more_than_the_connections_window() -> None:
    server = Server.opened(None, (4, 1_000_000))
    server.call(unary(1)).reply(bytes(100_000))
    assert sum(sizes(server.frames())) == 65_535
    server.receive(window_update(1, 100_000))
    assert server.sent() == b""
    server.receive(window_update(0, 10))
    assert sizes(server.frames()) == [10]
    server.receive(window_update(0, 100_000))
    assert sum(sizes(server.frames())) == 100_005 - 65_545


@pytest.mark.parametrize("size", [16_384, 20_000, 2**24 - 1])
def test_server_cuts_data_at_the_peers_frame_size(size: int) -> None:
    server = Server.opened(None, (4, 2**31 - 1), (5, size))
    server.receive(window_update(0, 2**31 - 1 - 65_535))
    server.call(unary(1)).reply(bytes(20_000_000))
    found = sizes(server.frames())
    assert max(found) == size
    assert sum(found) == 20_000_005


def test_server_takes_the_short_way_only_within_the_peers_frame_size() -> None:
    for length, frames in ((16_379, 1), (16_380, 2)):
        server = Server.opened()
        server.call(unary(1)).reply(bytes(length))
        assert len(sizes(server.frames())) == frames


def test_new_initial_window_applies_to_streams_that_exist_and_to_later_ones() -> None:
    server = Server.opened(None, (4, 100))
    server.call(unary(1)).reply(bytes(1_000))
    server.frames()
    server.receive(settings((4, 150)))
    assert [(f.type, f.flags, len(f.payload)) for f in server.frames()] == [(SETTINGS, ACK, 0), (DATA, 0, 50)]
    server.call(unary(3)).reply(bytes(1_000))
    assert sizes(server.frames()) == [150]


def test_server_acknowledges_settings_before_it_sends_by_them() -> None:
    """C-core's BDP probing raises windows in mid-stream, and holds the server to the old until it has the ACK."""
    server = Server.opened(None, (4, 20_000))
    server.receive(window_update(0, 2**30))
    server.call(unary(1)).reply(bytes(200_000))
    server.frames()
    server.receive(settings((4, 10), (5, 100_000), (4, 150_000)))
    ack, *frames = server.frames()
    assert (ack.type, ack.flags) == (SETTINGS, ACK)
    assert sizes(frames) == [100_000, 30_000]


def test_window_may_become_negative_and_has_to_be_paid_back() -> None:
    server = Server.opened(None, (4, 100))
    server.call(unary(1)).reply(bytes(1_000))
    server.receive(settings((4, 10)))
    server.frames()
    server.receive(window_update(1, 90))
    assert server.sent() == b""
    server.receive(window_update(1, 1))
    assert sizes(server.frames()) == [1]
    # An idle stream's window becomes negative too.
    call = server.call(unary(3))
    server.receive(settings((4, 0)))
    call.reply(b"")
    assert sizes(server.frames()) == []
    server.receive(settings((4, 5)))
    assert sizes(server.frames()) == [5]


def test_empty_message_needs_window_for_its_prefix_only() -> None:
    server = Server.opened(None, (4, 0))
    server.call(unary(1)).reply(b"")
    assert [f.type for f in server.frames()] == [HEADERS]
    server.receive(window_update(1, 5))
    assert [f.type for f in server.frames()] == [DATA, HEADERS]


def test_errors_need_no_window() -> None:
    server = Server.opened(None, (4, 0))
    server.call(unary(1)).fail(Status.INTERNAL, "text")
    (answer,) = server.frames()
    assert answer.type == HEADERS
    assert answer.flags & END_STREAM


def test_error_drops_what_still_waits_for_window() -> None:
    server = Server.opened(None, (4, 10))
    call = server.call(headers(1, STREAM_BLOCK))
    server.connection.responder.send_headers(call)
    server.connection.responder.send_message(call, [bytes(100)])
    server.frames()
    call.fail(Status.ABORTED, "enough")
    trailers, reset = server.frames()
    assert (trailers.type, reset.type, reset.code) == (HEADERS, RST_STREAM, 0)
    assert server.connection.awaits_window == 0
    assert not server.connection.queue.blocked


def test_blocked_streams_share_the_connections_credit_fairly() -> None:
    server = Server.opened(None, (4, 2**31 - 1))
    calls = [server.call(unary(n)) for n in (1, 3, 5, 7)]
    server.receive(window_update(0, 2**31 - 1 - 65_535))
    server.receive(settings((4, 2**31 - 1)))
    server.connection.windows.send = 0
    for call in calls:
        call.reply(bytes(1_000_000))
    server.frames()
    received = dict.fromkeys((1, 3, 5, 7), 0)
    for credit in (1, 10, 100_000, 5, 300_000, 16_384, 16_384, 16_384):
        server.receive(window_update(0, credit))
        frames = server.frames()
        assert sum(sizes(frames)) == credit, "all of the credit is used"
        for frame in frames:
            received[frame.stream_id] += len(frame.payload)
        assert max(received.values()) - min(received.values()) <= 4 * 16_384, received


def test_small_answer_does_not_wait_for_the_large_one_before_it() -> None:
    server = Server.opened(None, (4, 2**31 - 1))
    large, small = server.receive(unary(1) + unary(3))
    assert isinstance(large, Call)
    assert isinstance(small, Call)
    large.reply(bytes(10_000_000))
    small.reply(b"small")
    server.frames()
    server.receive(window_update(0, 40_000))
    assert [f.type for f in server.frames() if f.stream_id == 3] == [DATA, HEADERS]


@pytest.mark.parametrize("streams", [100, 10_000])
def test_streams_blocked_by_their_own_window_cost_the_connections_updates_nothing(streams: int) -> None:
    server = Server.opened(None, (4, 0))
    for stream_id in range(1, 2 * streams, 2):
        server.call(unary(stream_id)).reply(b"m")
    server.frames()
    assert not server.connection.queue.blocked
    assert lines_run(lambda: server.receive(window_update(0, 1) * 100)) < 5_000  # as many however many streams wait
    server.receive(window_update(1, 6))
    assert [f.stream_id for f in server.frames()] == [1, 1]


def test_streams_that_new_windows_leave_without_room_or_have_nothing_to_send_do_not_wait_for_the_connection() -> None:
    server = Server.opened(None, (4, 10))
    server.call(unary(1)).reply(bytes(100))
    drained: list[bool] = []
    server.call(headers(3, STREAM_BLOCK)).on_drained = lambda: drained.append(True)
    server.receive(settings((4, 5)) + settings((4, 9)))
    server.frames()
    assert not server.connection.queue.blocked
    assert not drained


def test_cancelled_streams_leave_the_queue() -> None:
    server = Server.opened(None, (4, 2**31 - 1))
    for stream_id in (1, 3):
        server.call(unary(stream_id)).reply(bytes(100_000))
    server.frames()
    server.receive(rst_stream(1))
    assert server.connection.awaits_window == 100_005
    server.receive(window_update(0, 10**6))
    assert {f.stream_id for f in server.frames()} == {3}
    assert server.connection.awaits_window == 0
    assert server.connection.open_calls == 0


def test_server_refuses_streams_while_the_peer_leaves_too_much_queued() -> None:
    server = Server.opened(Limits(max_queued_bytes=1_000), (4, 0))
    server.receive(unary(1))
    server.call(unary(3)).reply(bytes(2_000))
    server.frames()
    for stream_id in (5, 7):
        server.receive(headers(stream_id, REQUEST_BLOCK))
    assert [f.code for f in server.frames() if f.type == RST_STREAM] == [REFUSED_STREAM] * 2
    server.receive(window_update(3, 5_000))
    assert isinstance(server.receive(unary(9))[0], Call)


# --- header blocks ---------------------------------------------------------------------------------------------------


def test_server_tells_a_peer_that_shrank_the_header_table_once() -> None:
    """The h2 client checks it: its decoder refuses a block without the update."""
    client, server = connected()
    client.unary(b"before")
    exchange(client, server)
    client.h2.update_settings({1: 0})
    exchange(client, server)
    for body in (b"one", b"two"):
        stream_id = client.unary(body)
        exchange(client, server)
        assert client.responses[stream_id].messages == [body]
        assert client.responses[stream_id].status == 0


@pytest.mark.parametrize("values", [(0,), (4_095,), (0, 4_096), (100, 65_536)])
def test_table_size_update_comes_first_in_the_next_block_only(values: tuple[int, ...]) -> None:
    server = Server.opened(None, *[(1, value) for value in values])
    server.call(unary(1)).reply(b"")
    one, _, two = server.frames()
    assert one.payload[0] == 0x20
    assert two.payload[0] != 0x20
    server.call(unary(3)).reply(b"")
    assert [f.payload[0] for f in server.frames() if f.type == HEADERS] == [0x88, 0x00]


def test_table_that_grew_takes_no_update() -> None:
    server = Server.opened(None, (1, 65_536))
    server.call(unary(1)).reply(b"")
    assert server.frames()[0].payload[0] == 0x88


def test_header_block_above_the_peers_frame_size_is_continued() -> None:
    client, server = connected()
    stream_id = client.open()
    client.h2.send_data(stream_id, message(b"x"), end_stream=True)
    (call,) = server.receive(client.h2.data_to_send())
    assert isinstance(call, Call)
    value = "v" * 50_000
    client.h2.max_inbound_frame_size = 16_384
    client.h2.decoder.max_header_list_size = 100_000
    call.reply(b"x", [("x-large", value)], [("x-trailing", "t" * 40_000)])
    client.take(server.sent())
    response = client.responses[stream_id]
    assert response.headers[b"x-large"] == value.encode()
    assert response.trailers[b"x-trailing"] == b"t" * 40_000
    assert response.messages == [b"x"]


# --- receiving -------------------------------------------------------------------------------------------------------

SMALL = Limits(stream_window=65_535, connection_window=65_535, max_frame_size=16_384)


def test_connections_credit_returns_at_half_of_the_window() -> None:
    server = Server.opened(SMALL)
    server.receive(unary(1, bytes(16_000)) + unary(3, bytes(16_000)))
    assert credits(server.frames()) == []
    server.receive(unary(5, bytes(16_000)))
    assert credits(server.frames()) == [(0, 3 * 16_005)]


def test_credit_for_data_that_is_ignored_returns_too() -> None:
    server = Server.opened(SMALL)
    server.receive(headers(1, block(request("/test.Echo/Nothing"))))
    server.frames()
    for _ in range(100):
        server.receive(data(1, bytes(16_000)))
    assert sum(increment for _, increment in credits(server.frames())) >= 100 * 16_000 - 65_535


def test_streams_credit_returns_while_its_message_is_incomplete() -> None:
    server = Server.opened(SMALL)
    server.receive(headers(1, REQUEST_BLOCK) + data(1, message(bytes(10**6))[:16_000]) + data(1, bytes(16_000)))
    assert credits(server.frames()) == []
    server.receive(data(1, bytes(16_000)))
    assert credits(server.frames()) == [(0, 48_000), (1, 48_000)]


def test_streams_credit_waits_for_the_handler() -> None:
    server = Server.opened(SMALL)
    call = server.call(headers(1, STREAM_BLOCK))
    for _ in range(4):
        server.receive(data(1, message(bytes(15_000))))
    assert [stream for stream, _ in credits(server.frames())] == [0]
    for _ in range(2):
        server.connection.message_read(call, 15_000)
    assert server.sent() == b""
    server.connection.message_read(call, 15_000)
    assert credits(server.frames()) == [(1, 3 * 15_005)]
    server.connection.message_read(call, 15_000)
    server.receive(data(1, b"", END_STREAM))
    server.connection.message_read(call, 0)
    assert server.sent() == b"", "a peer that has ended the stream needs no credit"


def test_messages_of_no_bytes_take_credit_as_well() -> None:
    """Otherwise a peer could pile up messages without bound before a slow handler."""
    server = Server.opened(SMALL)
    server.receive(headers(1, STREAM_BLOCK))
    for _ in range(100):
        server.receive(data(1, message(b"") * 1_000))
    assert FLOW_CONTROL_ERROR in [f.code for f in server.frames() if f.type == RST_STREAM]
    assert sum(isinstance(event, MessageReceived) for event in server.events) <= 65_535 / 5


def test_credit_is_never_returned_for_streams_that_are_over() -> None:
    server = Server.opened(SMALL)
    call = server.call(headers(1, STREAM_BLOCK))
    server.receive(data(1, message(bytes(15_000))) + rst_stream(1))
    server.frames()
    server.connection.message_read(call, 15_000)
    assert server.sent() == b""


# --- much data -------------------------------------------------------------------------------------------------------


def test_hundred_megabytes_pass_both_ways_through_windows_of_64_kib() -> None:
    """A client without flow control of its own mind: 16 KiB frames, 64 KiB windows, credit for each frame."""
    server = Server.opened(Limits(stream_window=65_535, connection_window=65_535))
    body = bytes(range(256)) * (HUNDRED_MB // 256)
    octets = memoryview(message(body))
    server.receive(headers(1, REQUEST_BLOCK))
    window = {0: 65_535, 1: 65_535}
    at = 0
    while at < len(octets):
        size = min(window[0], window[1], 16_384, len(octets) - at)
        assert size, "the server stopped giving credit"
        for stream_id in window:
            window[stream_id] -= size
        last = at + size == len(octets)
        server.receive(data(1, bytes(octets[at : at + size]), END_STREAM if last else 0))
        at += size
        for stream_id, increment in credits(server.frames()) if server.connection.has_output else ():
            window[stream_id] += increment
    (call,) = server.events
    assert isinstance(call, Call)
    assert call.message == body
    call.reply(call.message)
    received = bytearray()
    frames = server.frames()
    while True:
        size = 0
        for frame in frames:
            if frame.type == DATA:
                received += frame.payload
                size += len(frame.payload)
        if frames[-1].flags & END_STREAM:
            break
        assert size, "the server stopped sending"
        server.receive(window_update(0, size) + window_update(1, size))
        frames = server.frames()
    assert list(split_messages(bytes(received))) == [(0, body)]
    assert server.connection.open_calls == 0


def test_h2_client_with_64_kib_windows_gets_and_sends_megabytes() -> None:
    client, server = connected(Limits(stream_window=65_535, connection_window=65_535))
    body = bytes(range(251)) * 12_000
    stream_id = client.open()
    octets = memoryview(message(body))
    while octets:
        room = min(client.h2.local_flow_control_window(stream_id), client.h2.max_outbound_frame_size, len(octets))
        client.h2.send_data(stream_id, octets[:room].tobytes(), end_stream=room == len(octets))
        octets = octets[room:]
        exchange(client, server)
    assert client.responses[stream_id].messages == [body]
    assert client.responses[stream_id].ended


def test_several_large_answers_arrive_whole_at_an_h2_client_with_small_windows() -> None:
    client, server = connected(initial_window=1_000)
    streams = [client.open() for _ in range(5)]
    for number, stream_id in enumerate(streams):
        client.h2.send_data(stream_id, message(bytes([number])), end_stream=True)
    for event in server.receive(client.h2.data_to_send()):
        assert isinstance(event, Call)
        event.reply(event.message * 200_000)
    exchange(client, server)
    for number, stream_id in enumerate(streams):
        assert client.responses[stream_id].messages == [bytes([number]) * 200_000]
        assert client.responses[stream_id].ended


def receive_in_pieces(octets: bytes, size: int) -> None:
    """A new server gets these frames of one call, so many bytes at a time."""
    server = Server.opened(Limits(max_frame_size=2**24 - 1, stream_window=2**30, connection_window=2**30))
    for at in range(0, len(octets), size):
        server.receive(octets[at : at + size])
    assert len(server.events) == 1


def tiny_frames(count: int) -> bytes:
    """A call whose message comes in frames of one byte."""
    return headers(1, REQUEST_BLOCK) + data(1, message(bytes(count))[:5]) + data(1, b"x") * count + data(1, b"", 1)


def test_frames_in_tiny_pieces_are_linear_work() -> None:
    few, many = (lines_run(partial(receive_in_pieces, unary(1, bytes(size)), 16)) for size in (100_000, 400_000))
    assert many <= 4.2 * few


def test_tiny_frames_are_linear_work() -> None:
    few, many = (lines_run(partial(receive_in_pieces, tiny_frames(count), 65_536)) for count in (500, 8_000))
    assert many <= 16 * few


@pytest.mark.alone  # what is copied anew for each piece takes time, but no more lines
def test_frames_in_tiny_pieces_cost_linear_time() -> None:
    few, many = (unary(1, bytes(size)) for size in (100_000, 1_600_000))
    few_s = least_cpu_s(lambda: receive_in_pieces(few, 16))
    assert least_cpu_s(lambda: receive_in_pieces(many, 16)) < 40 * max(few_s, 0.001)


@pytest.mark.alone
def test_huge_number_of_tiny_frames_costs_linear_time() -> None:
    few, many = (tiny_frames(count) for count in (2_500, 40_000))
    few_s = least_cpu_s(lambda: receive_in_pieces(few, 65_536))
    assert least_cpu_s(lambda: receive_in_pieces(many, 65_536)) < 40 * max(few_s, 0.001)
