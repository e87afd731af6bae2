"""Requests that are no gRPC: bodies and answers as bytes of HTTP/2, with nothing of HTTP above them."""

from __future__ import annotations

from typing import Any

import pytest
from h2.settings import SettingCodes

from tests.h2grpc.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    NO_ERROR,
    PING,
    PROTOCOL_ERROR,
    RST_STREAM,
    WINDOW_UPDATE,
    Frame,
    block,
    data,
    headers,
    rst_stream,
    unary,
    window_update,
)
from tests.h2grpc.support import Judge, Server, describe
from toutates.h2grpc import Limits, PlainCall
from toutates.h2grpc.budget import CALL_BYTES
from toutates.h2grpc.headers import ResponseBlock, encode_block
from toutates.h2grpc.shared import Shared
from toutates.h2grpc.status import LimitExceeded

ANSWER = ResponseBlock([(b":status", b"200")])


def head(path: str = "/", *extra: tuple[str, str], method: str = "POST") -> bytes:
    pseudo = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "test")]
    return block([*pseudo, *extra])


def opened(limits: Limits | None = None, judge: Judge | None = None, shared: Shared | None = None) -> Server:
    return Server.opened(limits, admit=judge or Judge(), shared=shared)


def plain(server: Server, octets: bytes) -> PlainCall:
    [event] = server.receive(octets)
    assert isinstance(event, PlainCall)
    return event


def frames_of(server: Server, *kinds: int) -> list[Frame]:
    return [one for one in server.frames() if one.type in kinds]


def respond(server: Server, call: PlainCall, *parts: bytes) -> list[Frame]:
    server.sent()
    server.connection.responder.respond(call, ANSWER, parts, sum(map(len, parts)))
    return frames_of(server, HEADERS, DATA, RST_STREAM)


BODIES: list[tuple[str, bytes, bytes]] = [
    ("whole", headers(1, head()) + data(1, b"body", END_STREAM), b"body"),
    ("with its length", headers(1, head("/", ("content-length", "4"))) + data(1, b"body", END_STREAM), b"body"),
    ("in pieces", headers(1, head()) + data(1, b"bo") + data(1, b"dy", END_STREAM), b"body"),
    ("ended later", headers(1, head()) + data(1, b"body") + data(1, b"", END_STREAM), b"body"),
    ("empty", headers(1, head()) + data(1, b"", END_STREAM), b""),
    ("none", headers(1, head(), END_HEADERS | END_STREAM), b""),
    ("trailers", headers(1, head()) + data(1, b"body") + headers(1, block([("x", "y")]), 5), b"body"),
    ("padded", headers(1, head()) + data(1, b"\x02body\0\0", END_STREAM | 8), b"body"),
    (
        "in memory of its own",
        headers(1, head("/memory", ("content-length", "300001")))
        + b"".join(data(1, bytes([number]) * 30_000) for number in range(10))
        + data(1, b"x", END_STREAM),
        b"".join(bytes([number]) * 30_000 for number in range(10)) + b"x",
    ),
    (
        "in long frames",
        headers(1, head("/memory", ("content-length", "600000")))
        + data(1, bytes(range(256)) * 1_000 + bytes(44_000))
        + data(1, bytes(300_000), END_STREAM),
        bytes(range(256)) * 1_000 + bytes(344_000),
    ),
    ("large", headers(1, head("/large")) + data(1, bytes(9_000)) * 9 + data(1, b"x", END_STREAM), bytes(81_000) + b"x"),
]


@pytest.mark.parametrize(("octets", "body"), [one[1:] for one in BODIES], ids=[one[0] for one in BODIES])
def test_a_body_is_what_came_however_it_is_cut(octets: bytes, body: bytes) -> None:
    whole = opened()
    assert describe(whole.receive(octets + unary(3))) == [("plain", 1, body, None), ("unary", 3, b"hello")]
    assert whole.connection.held_bytes <= 2 * CALL_BYTES  # of the two calls
    for step in (1, 7, 100) if len(octets) < 1_000 else (1_000,):
        cut = opened()
        events = [event for at in range(0, len(octets), step) for event in cut.receive(octets[at : at + step])]
        assert describe(events) == [("plain", 1, body, None)]
        assert cut.connection.held_bytes <= CALL_BYTES


def memory_request(stream_id: int, size: int, *frames: int) -> bytes:
    sent = [data(stream_id, bytes(one)) for one in frames[:-1]] + [data(stream_id, bytes(frames[-1]), END_STREAM)]
    return headers(stream_id, head("/memory", ("content-length", str(size)))) + b"".join(sent)


def test_a_large_body_lies_where_its_tensor_is_aligned_and_its_memory_is_used_again() -> None:
    server = opened()
    server.gives_back = False
    for stream_id in (1, 3, 5):
        for at in range(0, len(octets := memory_request(stream_id, 200_000, *[16_384] * 12, 3_392)), 50_000):
            server.receive(octets[at : at + 50_000])
        call = server.events[-1]
        assert isinstance(call, PlainCall)
        memory: Any = call.buffer
        assert (memory.start + 100) % 64 == 0
        assert len(memory) == 200_000
        respond(server, call, b"y")
        call.buffer = b""
        server.pool.give_back(memory)
        assert server.connection.held_bytes == 0
    assert server.pool.lent == 0


@pytest.mark.parametrize(
    "octets",
    [
        memory_request(1, 200_000, 100_000, 100_001),
        memory_request(1, 200_000, 100_000, 90_000),
        memory_request(1, 200_000, 300_000),
        headers(1, head("/memory", ("content-length", "200000"))) + data(1, bytes(100_000)) + rst_stream(1),
    ],
)
@pytest.mark.parametrize("step", [10_000, 70_000, 1_000_000])
def test_a_large_body_that_is_never_whole_leaves_no_memory(octets: bytes, step: int) -> None:
    server = opened()
    for at in range(0, len(octets), step):
        assert server.receive(octets[at : at + step]) == []
    assert (server.pool.lent, server.connection.held_bytes, server.budget.used) == (0, 0, 0)
    assert server.alive


def test_large_bodies_are_counted_as_they_come() -> None:
    server = opened(Limits(max_buffered_bytes=1_000_000))
    events = []
    for number in range(1, 9, 2):
        octets = headers(number, head("/memory", ("content-length", "9000000"))) + data(number, bytes(400_000))
        for at in range(0, len(octets), 50_000):
            events += server.receive(octets[at : at + 50_000])
        if events:
            break
    assert describe(events) == [("plain", number, b"", "connection_buffer")]
    assert server.connection.held_bytes <= 1_100_000
    assert isinstance(events[0], PlainCall)
    respond(server, events[0], b"too much")
    assert server.receive(data(number, bytes(100_000))) == []
    assert server.alive


def test_a_head_is_judged_once_for_all_requests_with_the_same_octets() -> None:
    judge = Judge()
    server = opened(judge=judge)
    for number in range(1, 9, 2):
        respond(server, plain(server, headers(number, head("/a")) + data(number, b"x", END_STREAM)), b"y")
    assert judge.asked == [b"/a"]
    for number in range(9, 15, 2):
        respond(server, plain(server, headers(number, head("/dear", ("content-length", "9")))), b"no")
    assert judge.asked == [b"/a", *[b"/dear"] * 3]


def test_judgements_that_are_kept_are_few() -> None:
    judge = Judge()
    server = opened(judge=judge)
    for number in range(1_000):
        stream_id = 2 * number + 1
        respond(server, plain(server, headers(stream_id, head(f"/{number}")) + data(stream_id, b"", END_STREAM)), b"y")
    assert len(server.connection.header_reader.memory) <= 32


def test_answers_are_headers_and_data_that_ends_the_stream() -> None:
    server = opened()
    call = plain(server, headers(1, head()) + data(1, b"x", END_STREAM))
    assert respond(server, call, b"a", b"", b"bc") == [
        Frame(HEADERS, END_HEADERS, 1, ANSWER.octets),
        Frame(DATA, END_STREAM, 1, b"abc"),
    ]
    assert not call.open
    call = plain(server, headers(3, head(), END_HEADERS | END_STREAM))
    assert respond(server, call, b"") == [Frame(HEADERS, END_HEADERS | END_STREAM, 3, ANSWER.octets)]
    assert server.connection.open_calls == 0
    assert server.alive


def test_a_header_block_that_is_longer_than_a_frame() -> None:
    server = opened()
    call = plain(server, headers(1, head()) + data(1, b"x", END_STREAM))
    long = ResponseBlock([(b":status", b"200"), (b"x-long", bytes(40_000))])
    server.sent()
    server.connection.responder.respond(call, long, (b"abc",), 3)
    sent = server.frames()
    assert [one.type for one in sent] == [HEADERS, CONTINUATION, CONTINUATION, DATA]
    assert b"".join(one.payload for one in sent[:3]) == long.octets
    assert sent[3] == Frame(DATA, END_STREAM, 1, b"abc")


def test_an_answer_beyond_the_window_waits_for_it() -> None:
    server = Server.opened(None, (SettingCodes.INITIAL_WINDOW_SIZE, 10), admit=Judge())
    call = plain(server, headers(1, head()) + data(1, b"x", END_STREAM))
    ended: list[Any] = []
    call.on_closed = ended.append
    assert [one.payload for one in respond(server, call, bytes(15), b"end")][1:] == [bytes(10)]
    assert server.connection.awaits_window == 8
    assert ended == []
    server.receive(window_update(1, 100))
    assert frames_of(server, DATA) == [Frame(DATA, END_STREAM, 1, bytes(5) + b"end")]
    assert ended == [call]


def test_an_answer_in_pieces() -> None:
    server = Server.opened(None, (SettingCodes.INITIAL_WINDOW_SIZE, 4), admit=Judge())
    responder = server.connection.responder
    for stream_id, credit in ((1, 0), (3, 100)):
        call = plain(server, headers(stream_id, head(), END_HEADERS | END_STREAM))
        server.sent()
        responder.begin(call, ANSWER)
        responder.send_piece(call, b"abc")
        responder.send_piece(call, b"def")
        if credit:
            server.receive(window_update(stream_id, credit))
        responder.end_pieces(call)
        if not credit:
            server.receive(window_update(stream_id, 100))
        sent = frames_of(server, HEADERS, DATA)
        assert b"".join(one.payload for one in sent[1:]) == b"abcdef"
        assert [one.flags for one in sent][-1] == END_STREAM
        assert END_STREAM not in [one.flags for one in sent][:-1]
        assert server.connection.open_calls == 0


def test_an_answer_before_the_end_of_the_request_resets_it_without_an_error() -> None:
    server = opened()
    call = plain(server, headers(1, head("/refused", ("content-length", "20"))))
    assert call.head.plain.refusal == "no"
    assert server.receive(data(1, bytes(10))) == []  # dropped
    last = respond(server, call, b"no")[-1]
    assert (last.type, last.code) == (RST_STREAM, NO_ERROR)
    assert server.receive(data(1, bytes(10), END_STREAM)) == []
    assert server.alive


def test_a_refused_request_that_has_ended_is_told_once() -> None:
    server = opened()
    assert describe(server.receive(headers(1, head("/refused")) + data(1, b"x", END_STREAM))) == [
        ("plain", 1, b"", None)
    ]


def test_a_refused_request_of_unknown_length_is_told_at_its_end_or_once_it_is_long() -> None:
    server = opened()
    assert server.receive(headers(1, head("/refused")) + data(1, bytes(60_000))) == []
    assert server.connection.held_bytes <= CALL_BYTES
    assert describe(server.receive(data(1, b"", END_STREAM))) == [("plain", 1, b"", None)]
    assert server.receive(headers(3, head("/refused")) + data(3, bytes(60_000))) == []
    assert describe(server.receive(data(3, bytes(60_000)))) == [("plain", 3, b"", None)]
    assert server.receive(headers(5, head("/refused")) + data(5, b"x") + headers(5, head())) == []
    assert [one.code for one in frames_of(server, RST_STREAM)] == [PROTOCOL_ERROR]


def test_who_waits_is_told_to_go_on() -> None:
    server = opened()
    assert server.receive(headers(1, head("/continue"))) == []
    [interim] = frames_of(server, HEADERS)
    assert (interim.flags, interim.payload) == (END_HEADERS, encode_block([(b":status", b"100")]))
    assert describe(server.receive(data(1, b"x", END_STREAM))) == [("plain", 1, b"x", None)]


@pytest.mark.parametrize("step", [1, 1_000])
def test_a_body_above_its_bound_is_told_and_not_kept(step: int) -> None:
    server = opened()
    server.receive(headers(1, head()))
    events = [event for _ in range(0, 3_000, step) for event in server.receive(data(1, bytes(step)))]
    assert describe(events) == [("plain", 1, b"", "message_size")]
    assert server.connection.held_bytes <= CALL_BYTES
    [call] = events
    assert isinstance(call, PlainCall)
    respond(server, call, b"too much")
    assert server.alive


def test_bodies_are_counted_for_their_connection_and_for_the_server() -> None:
    shared = Shared(budget=100_000)
    server = opened(Limits(max_buffered_bytes=3_000), shared=shared)
    for number in range(1, 7, 2):
        assert server.receive(headers(number, head()) + data(number, bytes(900))) == []
    assert server.connection.held_bytes >= 2_700
    assert shared.budget.used >= 2_700
    assert describe(server.receive(headers(7, head()) + data(7, bytes(900)))) == [
        ("plain", 7, b"", "connection_buffer")
    ]
    server.receive(b"".join(rst_stream(number) for number in range(1, 9, 2)))
    assert shared.budget.used == 0
    other = opened(shared=shared)
    shared.budget.used += 100_001
    assert describe(other.receive(headers(1, head()) + data(1, bytes(9)))) == [("plain", 1, b"", "server_buffer")]


def test_what_a_handler_keeps_is_counted_until_the_answer_is_sent() -> None:
    server = opened(Limits(max_buffered_bytes=3_000))
    responder = server.connection.responder
    call = plain(server, headers(1, head()) + data(1, b"x", END_STREAM))
    responder.hold(call, 2_000)
    assert server.connection.held_bytes >= 2_000
    with pytest.raises(LimitExceeded):
        responder.hold(call, 4_000)
    respond(server, call, b"y")
    assert server.connection.held_bytes == 0


def test_a_reset_in_the_same_read_leaves_no_request() -> None:
    server = opened()
    assert server.receive(headers(1, head()) + data(1, b"x", END_STREAM) + rst_stream(1)) == []


def test_a_reset_closes_a_request_that_waits() -> None:
    server = opened()
    call = plain(server, headers(1, head()) + data(1, b"x", END_STREAM))
    ended: list[Any] = []
    call.on_closed = ended.append
    server.receive(rst_stream(1))
    assert (call.open, ended) == (False, [call])
    assert respond(server, call, b"late") == []


@pytest.mark.parametrize(
    "octets",
    [
        headers(1, head("/", ("content-length", "3"))) + data(1, b"1234", END_STREAM),
        headers(1, head("/", ("content-length", "5"))) + data(1, b"1234", END_STREAM),
        headers(1, head("/", ("content-length", "5"))) + data(1, b"1234") + headers(1, block([("x", "y")]), 5),
        headers(1, head("/", ("content-length", "1")), END_HEADERS | END_STREAM),
        headers(1, head("/", ("transfer-encoding", "chunked"))),
        headers(1, head(method="CONNECT")),
    ],
)
def test_what_is_malformed_is_reset_and_never_told(octets: bytes) -> None:
    server = opened()
    assert server.receive(octets) == []
    [reset] = frames_of(server, RST_STREAM)
    assert (reset.stream_id, reset.code) == (1, PROTOCOL_ERROR)
    assert server.alive


def test_refusals_that_cost_much_end_the_connection() -> None:
    server = opened()
    for number in range(1, 41, 2):
        for event in server.receive(headers(number, head("/dear", ("content-length", "9")))):
            if isinstance(event, PlainCall):
                respond(server, event, b"no")
        if server.connection.closed:
            break
    assert server.connection.closed
    assert number == 21  # ten of them
    assert server.limit_hits["resets"] == 1


def test_an_answer_that_is_too_much_for_the_server_resets_its_stream_alone() -> None:
    shared = Shared(budget=10_000)
    server = Server.opened(None, (SettingCodes.INITIAL_WINDOW_SIZE, 0), admit=Judge(), shared=shared)
    call = plain(server, headers(1, head(), END_HEADERS | END_STREAM))
    last = respond(server, call, bytes(20_000))[-1]
    assert (last.type, last.code) == (RST_STREAM, ENHANCE_YOUR_CALM)
    assert shared.budget.used == 0
    assert server.alive


def test_windows_are_given_back_for_a_body_that_is_dropped() -> None:
    server = opened(Limits(stream_window=65_535, connection_window=65_535))
    [call] = server.receive(headers(1, head("/refused", ("content-length", "1000000"))))
    for _ in range(20):
        server.receive(data(1, bytes(16_000)))
    updates = frames_of(server, WINDOW_UPDATE)
    assert sum(int.from_bytes(one.payload, "big") for one in updates if one.stream_id == 0) >= 20 * 16_000 - 65_535
    assert isinstance(call, PlainCall)
    assert server.alive


# --- the end


def goodbyes(server: Server) -> list[tuple[int, int]]:
    """The frames that are not of a stream: their types, and of GOAWAY the last stream that is answered."""
    return [
        (one.type, int.from_bytes(one.payload[:4], "big") if one.type == GOAWAY else 0)
        for one in server.frames()
        if one.type in (GOAWAY, PING)
    ]


def whole(stream_id: int) -> bytes:
    return headers(stream_id, head(), END_HEADERS | END_STREAM)


def answer(server: Server, call: PlainCall) -> None:
    server.connection.responder.respond(call, ANSWER, (b"body",), 4)
    server.connection.say_goodbye()


def test_a_malformed_request_is_no_call_of_grpc() -> None:
    server = opened()
    answer(server, plain(server, whole(1)))
    assert server.receive(headers(3, block([(":method", "GET")]))) == []
    assert [one.type for one in server.frames()][-1] == RST_STREAM
    server.connection.begin_shutdown()
    assert server.connection.told_by_answers


@pytest.mark.parametrize("announced", [False, True])
def test_one_goodbye_goes_with_the_answer_to_the_next_request(announced: bool) -> None:
    server = opened()
    connection = server.connection
    answer(server, plain(server, whole(1)))
    if announced:
        connection.announce_end()
    else:
        connection.begin_shutdown()
    connection.say_goodbye()
    assert goodbyes(server) == []
    assert connection.told_by_answers
    calls = [plain(server, whole(3)), plain(server, whole(5))]
    for call in calls:
        assert not connection.drained
        answer(server, call)
    *_, end, last = server.frames()
    assert (end.stream_id, end.flags & END_STREAM, last.type) == (5, END_STREAM, GOAWAY)
    assert int.from_bytes(last.payload[:4], "big") == 5
    assert connection.drained


def test_one_goodbye_goes_with_the_end_of_what_is_under_way() -> None:
    server = opened()
    call = plain(server, whole(1))
    server.connection.begin_shutdown()
    server.connection.responder.begin(call, ANSWER)
    server.connection.say_goodbye()
    assert goodbyes(server) == []
    server.connection.responder.send_piece(call, b"piece")
    server.connection.responder.end_pieces(call)
    server.connection.say_goodbye()
    assert goodbyes(server) == [(GOAWAY, 1)]


def test_one_goodbye_is_said_where_no_request_comes() -> None:
    server = opened()
    answer(server, plain(server, whole(1)))
    server.connection.begin_shutdown()
    server.connection.finish_shutdown()
    assert goodbyes(server) == [(GOAWAY, 1)]
    assert server.connection.drained


def test_calls_of_grpc_have_both_goodbyes() -> None:
    server = opened()
    answer(server, plain(server, whole(1)))
    server.connection.begin_shutdown()
    server.call(unary(3)).reply(b"")
    server.connection.say_goodbye()
    assert goodbyes(server) == [(GOAWAY, 2**31 - 1), (PING, 0)]
    assert not server.connection.told_by_answers
    mixed = opened()
    mixed.call(unary(1)).reply(b"")
    mixed.connection.announce_end()
    assert not mixed.connection.told_by_answers
    answer(mixed, plain(mixed, whole(3)))
    assert goodbyes(mixed) == []
    mixed.connection.begin_shutdown()
    assert goodbyes(mixed) == [(GOAWAY, 2**31 - 1), (PING, 0)]
