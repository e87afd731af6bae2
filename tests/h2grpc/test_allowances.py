"""Token buckets, and the floods that they end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.h2grpc.frames import (
    CONTINUATION,
    DATA,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    REQUEST_BLOCK,
    SETTINGS,
    STREAM_BLOCK,
    UNARY,
    data,
    frame,
    headers,
    message,
    rst_stream,
    settings,
    unary,
    window_update,
)
from tests.h2grpc.support import Server
from toutates.h2grpc import (
    Allowance,
    Call,
    CallRefused,
    ConnectionTerminated,
    GrpcError,
    HeaderField,
    Limits,
    Method,
    Status,
    method_table,
)
from toutates.h2grpc.allowances import Meter

SECOND = 10**9


def allowed(meter: Meter, now_ns: int, work: int) -> int:
    """How many frames the meter lets through."""
    frames = 0
    while meter.take(now_ns, work):
        frames += 1
    return frames


def test_meter_starts_full_and_fills_with_time_and_work_up_to_the_burst() -> None:
    meter = Meter(Allowance(burst=10, per_second=2, per_call=0.5), 5 * SECOND, 100)
    assert allowed(meter, 5 * SECOND, 100) == 10
    meter = Meter(Allowance(burst=10, per_second=2, per_call=0.5), 5 * SECOND, 100)
    for _ in range(10):
        assert meter.take(5 * SECOND, 100)
    assert allowed(meter, 7 * SECOND, 104) == 2 * 2 + 4 // 2
    assert meter.take(7 * SECOND, 1_000)
    assert allowed(meter, 1_000 * SECOND, 1_000) == 10


@pytest.mark.parametrize("wrong", [(0, 1, 1), (1, -1, 1), (1, 1, -0.1)])
def test_allowances_that_make_no_sense_are_refused(wrong: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match="must have a burst of 1 or more, and no negative rate"):
        Allowance(*wrong)


FEW = Allowance(burst=5, per_second=1, per_call=0)
LIMITS = Limits(
    resets=FEW, pings=FEW, settings=FEW, empty_frames=FEW, window_updates=FEW, other_frames=FEW, max_continuations=16
)


def rapid_reset(number: int) -> bytes:
    """CVE-2023-44487."""
    return unary(2 * number + 1) + rst_stream(2 * number + 1)


def made_to_reset(number: int) -> bytes:
    """CVE-2025-8671: DATA after the end makes us reset the stream."""
    return unary(2 * number + 1) + data(2 * number + 1, b"more")


def made_to_refuse(number: int) -> bytes:
    return headers(2 * number + 1, b"\x82")  # a request without all that it has to have


def empty_data(number: int) -> bytes:
    return (headers(1, REQUEST_BLOCK) if number == 0 else b"") + data(1, b"")


def padded_data(number: int) -> bytes:
    return (headers(1, REQUEST_BLOCK) if number == 0 else b"") + data(1, b"\x03\x00\x00\x00", PADDED)


FLOODS: list[tuple[str, Callable[[int], bytes]]] = [
    ("resets", rapid_reset),
    ("resets", made_to_reset),
    ("resets", made_to_refuse),
    ("pings", lambda number: frame(PING, 0, 0, b"12345678")),
    ("pings", lambda number: frame(PING, 1, 0, b"12345678")),
    ("settings", lambda number: settings((4, 65_535 + number))),
    ("settings", lambda number: frame(SETTINGS, 1)),
    ("empty_frames", empty_data),
    ("empty_frames", padded_data),
    ("other_frames", lambda number: frame(PRIORITY, 0, 1, bytes(5))),
    ("other_frames", lambda number: frame(GOAWAY, 0, 0, bytes(8))),
    ("other_frames", lambda number: frame(0x42, 0, 0, b"?")),
]


@pytest.mark.parametrize(("limit", "attack"), FLOODS)
def test_flood_ends_the_connection_and_is_counted(limit: str, attack: Callable[[int], bytes]) -> None:
    used = 1 if limit == "settings" else 0  # the handshake's
    server = Server.opened(LIMITS)
    for number in range(5 - used):
        server.receive(attack(number))
    assert server.limit_hits == {}
    events = server.receive(attack(5 - used))
    assert isinstance(events[-1], ConnectionTerminated)
    goaway = server.frames()[-1]
    assert (goaway.type, goaway.code) == (GOAWAY, ENHANCE_YOUR_CALM)
    assert b"too many" in goaway.payload
    assert server.limit_hits == {limit: 1}


@pytest.mark.parametrize(("limit", "attack"), FLOODS)
def test_the_same_frames_at_a_bearable_rate_are_served(limit: str, attack: Callable[[int], bytes]) -> None:
    server = Server.opened(LIMITS)
    for number in range(20):
        server.now_ns += SECOND
        server.receive(attack(number))
    assert server.limit_hits == {}
    assert server.alive


def test_window_updates_for_responses_that_wait_are_bounded_by_what_they_let_us_send() -> None:
    """CVE-2019-9511, data dribble: each makes a frame of one byte."""
    limits = replace(LIMITS, window_updates=Allowance(burst=5, per_second=0, per_call=1))
    server = Server.opened(limits, (4, 0))
    server.call(unary(1)).reply(bytes(100_000))
    server.frames()
    for _ in range(5):
        server.receive(window_update(1, 1))
        assert [(f.type, len(f.payload)) for f in server.frames()] == [(DATA, 1)]
    assert isinstance(server.receive(window_update(1, 1))[-1], ConnectionTerminated)

    reader = Server.opened(limits, (4, 0))
    reader.call(unary(1)).reply(bytes(60_000))
    for _ in range(58):
        reader.receive(window_update(1, 1_024))
    assert reader.limit_hits == {}
    assert reader.alive


def test_a_client_that_makes_calls_may_cancel_one_of_two_and_ping_for_each() -> None:
    server = Server.opened(replace(Limits(), resets=Allowance(5, 0, 0.5), pings=Allowance(5, 0, 1)))
    for number in range(0, 1_000, 2):
        server.call(unary(2 * number + 1)).reply(b"answer")
        server.receive(rapid_reset(number + 1) + 2 * frame(PING, 0, 0, b"12345678"))
    assert server.limit_hits == {}
    assert server.alive


def test_settings_in_one_frame_are_bounded() -> None:
    server = Server.opened(Limits(max_settings=4))
    server.receive(settings(*[(4, 65_535)] * 4))
    assert server.alive
    (event,) = server.receive(settings(*[(4, 65_535)] * 5))
    assert isinstance(event, ConnectionTerminated)
    assert event.text == "SETTINGS frame with 5 settings, at most 4"
    assert server.limit_hits == {"settings": 1}


def test_other_limits_are_counted_too() -> None:
    def hits(limits: Limits, *octets: bytes) -> dict[str, int]:
        server = Server.opened(limits)
        for piece in octets:
            server.receive(piece)
        return dict(server.limit_hits)

    block = REQUEST_BLOCK
    assert hits(Limits(max_concurrent_streams=1), unary(1) + unary(3)) == {"streams": 1}
    assert hits(Limits(), frame(DATA, 0, 1, bytes(Limits().max_frame_size + 1))) == {"frame_size": 1}
    assert hits(Limits(max_header_block_size=100), headers(1, block)) == {"header_block_size": 1}
    assert hits(Limits(max_header_list_size=100), unary(1)) == {"header_list_size": 1}
    assert hits(Limits(max_header_list_size=30), unary(1)) == {"header_list_size": 1}
    pieces = frame(HEADERS, 0, 1, b"") + 3 * frame(CONTINUATION, 0, 1, b"")
    assert hits(Limits(max_continuations=2), pieces) == {"continuations": 1}
    big = headers(1, block) + data(1, message(bytes(200)), END_STREAM)
    assert hits(Limits(max_message_size=100), big) == {"message_size": 1}
    five = data(1, message(b"m") * 5)
    for opening in (headers(1, block), headers(1, STREAM_BLOCK)):
        assert hits(Limits(max_messages=4), opening + five) == {"messages": 1}
    assert hits(Limits(max_messages=5), headers(1, STREAM_BLOCK) + five + five) == {}


def test_reset_of_a_call_frees_what_was_held_of_it() -> None:
    server = Server.opened()
    server.receive(headers(1, REQUEST_BLOCK) + data(1, message(bytes(1_000))[:500]))
    assert server.budget.used == 1_005
    server.receive(rst_stream(1))
    assert server.budget.used == 0


def test_settings_cost_more_where_many_streams_are_open() -> None:
    server = Server.opened()
    server.receive(b"".join(headers(2 * number + 1, REQUEST_BLOCK) for number in range(20_480)))
    changes = 0
    while not server.receive(settings((4, 65_535 + changes))):
        changes += 1
    assert server.limit_hits == {"settings": 1}
    assert changes == 9  # of 100, each for 11, the handshake's for one


# --- refused calls ---------------------------------------------------------------------------------------------------


def test_a_refusal_is_asked_for_again_with_each_call_and_a_connection_has_so_many_of_them() -> None:
    asked: list[Sequence[HeaderField]] = []
    lets_in = False

    def guard(fields: Sequence[HeaderField]) -> GrpcError | None:
        asked.append(fields)
        return None if lets_in else CallRefused(Status.UNAUTHENTICATED, "who are you?")

    def answer(call: Call) -> None:
        raise AssertionError("a connection calls no handler")

    methods = method_table([Method(UNARY, unary=answer, guard=guard)])
    server = Server.opened(Limits(resets=Allowance(burst=45, per_second=0, per_call=0)), methods=methods)
    assert server.receive(unary(1)) == []
    lets_in = True
    assert [event.__class__ for event in server.receive(unary(3) + unary(5))] == [Call, Call]
    assert len(asked) == 2  # what is let in is remembered
    lets_in = False
    server.connection.header_reader.memory.clear()
    events: list[object] = []
    for number in range(4):
        events += server.receive(unary(7 + 2 * number))
    assert [event.__class__ for event in events] == [ConnectionTerminated]
    assert len(asked) == 6
    assert server.limit_hits["resets"] == 1


def test_a_refusal_that_was_dear_to_find_out_counts_for_more() -> None:
    def guard(fields: Sequence[HeaderField]) -> GrpcError | None:
        return CallRefused(Status.UNAUTHENTICATED, "who are you?", cost=100)

    methods = method_table([Method(UNARY, unary=lambda call: None, guard=guard)])
    server = Server.opened(Limits(resets=Allowance(burst=250, per_second=0, per_call=0)), methods=methods)
    assert [server.receive(unary(number)) for number in (1, 3)] == [[], []]
    assert [event.__class__ for event in server.receive(unary(5))] == [ConnectionTerminated]
