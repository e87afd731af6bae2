"""No call of a connection takes long: what is left goes on with ``go_on``, in order."""

from __future__ import annotations

import pytest

from tests.cpu_time import lines_run
from tests.h2grpc.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PRIORITY_FLAG,
    REQUEST_BLOCK,
    STREAM_BLOCK,
    block,
    data,
    frame,
    headers,
    message,
    request,
    rst_stream,
    settings,
    unary,
    window_update,
)
from tests.h2grpc.support import Server
from toutates.h2grpc import Allowance, Call, CallCancelled, Event, Limits, ServerConnection, frame_loop
from toutates.h2grpc.connection import ENDED_AT_ONCE
from toutates.h2grpc.frame_loop import BYTES_AT_ONCE, DECODING_BYTES, SLOW_FRAME_BYTES, STREAM_BYTES, FrameLoop
from toutates.h2grpc.responder import FRAMES_AT_ONCE


def many(count: int, first: int = 1) -> bytes:
    """So many unary requests."""
    return b"".join(unary(first + 2 * number) for number in range(count))


def pieces(connection: ServerConnection, octets: bytes) -> list[list[Event]]:
    """The events of one read, turn by turn."""
    out = [connection.receive_data(octets, 0)]
    while connection.behind:
        out.append(connection.go_on(0))
    return out


def test_a_large_read_of_small_frames_is_handled_in_pieces_and_in_order() -> None:
    server = Server.opened()
    octets = many(12_000)
    turns = pieces(server.connection, octets)
    assert len(turns) > len(octets) // BYTES_AT_ONCE
    assert max(map(len, turns)) <= BYTES_AT_ONCE // len(unary(1)) + 1
    calls = [event for events in turns for event in events]
    assert [call.stream_id for call in calls if isinstance(call, Call)] == list(range(1, 24_000, 2))
    assert server.alive


@pytest.mark.parametrize(
    ("octets", "most"),
    [
        (frame(0xFA), BYTES_AT_ONCE // SLOW_FRAME_BYTES),
        (rst_stream(1), BYTES_AT_ONCE // SLOW_FRAME_BYTES),
        (window_update(0, 1), BYTES_AT_ONCE // 13),
    ],
    ids=["unknown", "resets", "credit"],
)
def test_frames_off_the_short_way_count_for_more(octets: bytes, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generous = Allowance(1_000_000, 0, 0)
    server = Server.opened(Limits(other_frames=generous, resets=generous))
    server.receive(unary(1))
    taken: list[int] = []
    original = FrameLoop.walk
    unread = server.connection.unread

    def walk(self: FrameLoop, octets: bytes, at: int, now_ns: int, events: list[Event]) -> int:
        behind = original(self, octets, at, now_ns, events)
        taken.append((unread.rest_at if unread.rest else len(octets)) - at)
        return behind

    monkeypatch.setattr(FrameLoop, "walk", walk)
    assert pieces(server.connection, octets * 20_000)
    assert sum(taken) == len(octets) * 20_000
    assert max(taken) // len(octets) <= most + 1


def test_settings_count_for_every_stream_that_they_change() -> None:
    server = Server.opened(Limits(settings=Allowance(1_000_000, 0, 0)))
    assert len(pieces(server.connection, settings((4, 1)) * 100)) == 1
    pieces(server.connection, many(20_000))
    assert server.connection.open_calls == 20_000
    turns = pieces(server.connection, b"".join(settings((4, 70_000 + number)) for number in range(20)))
    a_turns = -(-BYTES_AT_ONCE // (20_000 * STREAM_BYTES))
    assert len(turns) == -(-20 // a_turns) > 5


@pytest.mark.parametrize("priority", [b"", bytes(5)], ids=["short way", "long way"])
def test_header_blocks_that_have_to_be_decoded_count_for_more(priority: bytes) -> None:
    server = Server.opened()
    octets = b"".join(
        headers(
            stream_id,
            priority + block(request("/test.Echo/Unary", ("x-number", str(stream_id)))),
            END_HEADERS | (PRIORITY_FLAG if priority else 0),
        )
        + data(stream_id, message(b""), END_STREAM)
        for stream_id in range(1, 2_000, 2)
    )
    turns = pieces(server.connection, octets)
    assert len(turns) >= len(octets) * DECODING_BYTES // 2 // BYTES_AT_ONCE
    assert sum(map(len, turns)) == 1_000


def test_reads_of_large_frames_are_handled_in_few_pieces() -> None:
    server = Server.opened(Limits(stream_window=2**30, connection_window=2**30))
    upload = message(bytes(1_000_000))
    frames = b"".join(data(1, upload[at : at + 32_768]) for at in range(0, 983_040, 32_768))
    turns = pieces(server.connection, headers(1, REQUEST_BLOCK) + frames)
    assert len(turns) <= len(frames) // BYTES_AT_ONCE + 1


def test_data_that_come_before_their_turn_wait_behind_the_others() -> None:
    server = Server.opened()
    first = server.connection.receive_data(many(4_000), 0)
    assert server.connection.held_bytes >= 60_000
    rest = pieces(server.connection, many(10, 8_001))
    assert len(rest) > 1
    events = [event for turn in (first, *rest) for event in turn]
    assert [call.stream_id for call in events if isinstance(call, Call)] == list(range(1, 8_021, 2))


def test_resets_of_one_read_cost_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reset used to look for its call among all of the read's calls."""
    monkeypatch.setattr(frame_loop, "BYTES_AT_ONCE", 2**30)
    generous = Allowance(1_000_000, 0, 0)
    lines = []
    for count in (250, 2_000):
        octets = many(count) + b"".join(rst_stream(stream_id) for stream_id in range(1, 2 * count, 2))

        def receive(octets: bytes = octets) -> None:
            assert pieces(Server.opened(Limits(resets=generous)).connection, octets) == [[]]

        lines.append(lines_run(receive) / count)
    assert lines[1] <= lines[0], "a reset costs more the more calls there are"


def test_ending_a_connection_with_many_calls_takes_several_pieces() -> None:
    server = Server.opened()
    server.receive(b"".join(headers(stream_id, STREAM_BLOCK) for stream_id in range(1, 8_000, 2)))
    calls = list(server.connection.streams.values())
    ends = [server.connection.connection_lost()]
    while server.connection.behind:
        assert server.connection.open_calls
        ends.append(server.connection.go_on(0))
    assert max(map(len, ends)) <= ENDED_AT_ONCE
    cancelled = [event.call for events in ends for event in events if isinstance(event, CallCancelled)]
    assert sorted(call.stream_id for call in cancelled) == [call.stream_id for call in calls]
    assert not any(call.open for call in calls)
    assert server.connection.held_bytes == 0


def test_calls_that_wait_for_their_end_are_not_answered() -> None:
    server = Server.opened()
    server.receive(many(2_000))
    calls = [event for event in server.events if isinstance(event, Call)]
    server.connection.connection_lost()
    left = [call for call in calls if call.open]
    assert left
    for answer in (
        lambda call: call.reply(b""),
        lambda call: call.reply(b"", [("x-a", "b")]),
        lambda call: call.fail(3, "text"),
        lambda call: server.connection.responder.send_message(call, [b""]),
        lambda call: server.connection.responder.finish(call),
    ):
        answer(left.pop())
    assert server.sent() == b""


def test_many_calls_whose_deadline_has_passed_fail_in_several_pieces() -> None:
    server = Server.opened()
    timed = block(request("/test.Echo/Unary", ("grpc-timeout", "1S")))
    server.receive(
        b"".join(
            headers(stream_id, timed) + data(stream_id, message(b""), END_STREAM) for stream_id in range(1, 4_000, 2)
        )
    )
    server.sent()
    server.connection.expire(2 * 10**9)
    turns = 1
    assert len([one for one in server.frames() if one.type == HEADERS]) == ENDED_AT_ONCE
    while server.connection.behind:
        server.connection.go_on(2 * 10**9)
        turns += 1
    assert turns == -(-2_000 // ENDED_AT_ONCE)
    assert not server.connection.streams


@pytest.mark.parametrize(
    ("of_peer", "credit"),
    [
        ([(4, 2**20)], window_update(0, 2**30)),
        ([(4, 0)], window_update(0, 2**30) + settings((4, 100_000))),
    ],
    ids=["of the connection", "of all streams"],
)
def test_answers_that_new_window_lets_go_are_sent_in_several_pieces(
    of_peer: list[tuple[int, int]], credit: bytes
) -> None:
    server = Server.opened(None, *of_peer)
    for call in [event for turn in pieces(server.connection, many(3_000)) for event in turn if isinstance(event, Call)]:
        call.reply(b"x" * 60)
    server.sent()
    waiting = len(server.connection.streams)
    assert waiting > 2 * FRAMES_AT_ONCE
    server.connection.receive_data(credit + many(1, 6_001) + window_update(0, 1) * 3, 0)
    sent = []
    while server.connection.behind:
        sent.append([one.stream_id for one in server.frames() if one.type == DATA])
        assert len(sent[-1]) <= FRAMES_AT_ONCE
        server.connection.go_on(0)
    sent.append([one.stream_id for one in server.frames() if one.type == DATA])
    in_order = [stream_id for turn in sent for stream_id in turn]
    assert in_order == list(range(6_001 - 2 * waiting, 6_001, 2))
    assert list(server.connection.streams) == [6_001]
    assert server.connection.awaits_window == 0


def test_a_large_answer_that_new_window_lets_go_is_sent_in_several_pieces() -> None:
    server = Server.opened(None, (4, 1))
    call = server.call(unary(1))
    call.reply(bytes(20_000_000))
    server.receive(window_update(0, 2**30))
    server.sent()
    server.connection.receive_data(window_update(1, 2**30), 0)
    turns = []
    while True:
        turns.append([one.payload for one in server.frames() if one.type == DATA])
        if not server.connection.behind:
            break
        server.connection.go_on(0)
    assert max(map(len, turns)) <= FRAMES_AT_ONCE
    assert len(turns) > 1
    assert sum(len(payload) for turn in turns for payload in turn) == 20_000_000 + 5 - 1
    assert not server.connection.streams
