"""The table of stream states, walked by real frames; and the fast path against it."""

from __future__ import annotations

import runpy
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.h2grpc.frames import (
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    REQUEST_BLOCK,
    RST_STREAM,
    STREAM_BLOCK,
    block,
    data,
    frame,
    headers,
    message,
    request,
    rst_stream,
    window_update,
    with_reserved_bit,
)
from tests.h2grpc.support import Server, describe
from toutates.h2grpc import Call, Limits, Status
from toutates.h2grpc.frames import ErrorCodes
from toutates.h2grpc.streams import TRANSITIONS, Action, Input, State

TRAILERS = headers(1, block([("x-checksum", "1")]), END_HEADERS | END_STREAM)
UNKNOWN = block(request("/test.Echo/Nothing"))

#: How the peer brings stream 1 into a state; a whole request is answered on the way to CLOSED.
WAYS: dict[State, bytes] = {
    State.IDLE: b"",
    State.OPEN: headers(1, REQUEST_BLOCK),
    State.HALF_CLOSED_REMOTE: headers(1, REQUEST_BLOCK) + data(1, message(b"m"), END_STREAM),
    State.CLOSED: headers(1, REQUEST_BLOCK) + data(1, message(b"m"), END_STREAM),
    State.WE_RESET: headers(1, UNKNOWN),
    State.PEER_RESET: headers(1, REQUEST_BLOCK) + rst_stream(1),
}
FRAMES: dict[Input, bytes] = {
    Input.RECV_HEADERS: TRAILERS,
    Input.RECV_DATA: data(1, message(b"m")[:3]),
    Input.RECV_RST_STREAM: rst_stream(1),
    Input.RECV_WINDOW_UPDATE: window_update(1, 1),
}


def in_state(state: State, fast: bool) -> Server:
    server = Server.opened()
    events = server.receive(WAYS[state] if fast else with_reserved_bit(WAYS[state]))
    if state is State.CLOSED:
        (call,) = events
        assert isinstance(call, Call)
        call.reply(b"")
    server.sent()
    assert server.connection.table.state(1) == state
    return server


@pytest.mark.parametrize("fast", [True, False], ids=["plain", "off the fast path"])
@pytest.mark.parametrize(("state", "stream_input"), list(product(WAYS, FRAMES)))
def test_peers_frame_does_what_the_table_says(state: State, stream_input: Input, fast: bool) -> None:
    action, after = TRANSITIONS[state][stream_input]
    server = in_state(state, fast)
    octets = (
        headers(1, REQUEST_BLOCK) if (state, stream_input) == (State.IDLE, Input.RECV_HEADERS) else FRAMES[stream_input]
    )
    server.receive(octets if fast else with_reserved_bit(octets))
    faults = [(f.type, f.code) for f in server.frames() if f.type in (RST_STREAM, GOAWAY)]
    expected = {
        Action.ACCEPT: [],
        Action.IGNORE: [],
        Action.STREAM_CLOSED_ERROR: [(RST_STREAM, ErrorCodes.STREAM_CLOSED)],
        Action.CONNECTION_STREAM_CLOSED: [(GOAWAY, ErrorCodes.STREAM_CLOSED)],
        Action.CONNECTION_PROTOCOL_ERROR: [(GOAWAY, ErrorCodes.PROTOCOL_ERROR)],
    }[action]
    assert faults == expected
    if server.connection.closed:
        return
    if (state, stream_input) == (State.OPEN, Input.RECV_HEADERS):
        after = State.CLOSED  # the trailers ended a request without a message, which was answered at once
    assert server.connection.table.state(1) == after


def test_table_has_a_row_for_every_state_and_input() -> None:
    assert len(TRANSITIONS) == len(State)
    assert all(len(row) == len(Input) for row in TRANSITIONS)


def test_server_resets_a_stream_that_it_answered_early_before_the_peer_can_do_anything() -> None:
    """HALF_CLOSED_LOCAL is never the state of a stream between two frames of the peer."""
    for answer in ("fail", "finish"):
        server = Server.opened()
        call = server.call(headers(1, STREAM_BLOCK))
        if answer == "fail":
            server.connection.responder.finish(call)
        else:
            call.fail(Status.INTERNAL, "text")
        assert call.state == State.HALF_CLOSED_LOCAL
        assert server.connection.table.state(1) == State.WE_RESET
        reset = server.frames()[-1]
        assert (reset.type, reset.code) == (RST_STREAM, 0)


def test_sent_end_of_stream_does_what_the_table_says() -> None:
    server = in_state(State.OPEN, True)
    server.receive(data(1, message(b"m"), END_STREAM))
    (call,) = server.events
    assert isinstance(call, Call)
    call.reply(b"")
    after = TRANSITIONS[State.HALF_CLOSED_REMOTE][Input.SEND_END_STREAM]
    assert (Action.ACCEPT, server.connection.table.state(1)) == after


def test_sent_reset_does_what_the_table_says() -> None:
    for state in (State.OPEN, State.HALF_CLOSED_REMOTE):
        server = in_state(state, True)
        server.receive(window_update(1, 0))
        assert TRANSITIONS[state][Input.SEND_RST_STREAM] == (Action.ACCEPT, server.connection.table.state(1))


# --- the fast path ---------------------------------------------------------------------------------------------------

STREAMS = st.sampled_from([1, 3, 5, 7, 9])
BLOCKS = st.sampled_from(
    [
        REQUEST_BLOCK,
        REQUEST_BLOCK,
        REQUEST_BLOCK,
        STREAM_BLOCK,
        UNKNOWN,
        block(request("/test.Echo/Unary", ("grpc-timeout", "1S"))),
        block(request("/test.Echo/Unary", ("content-length", "6"))),
        block(request("/test.Echo/Unary", ("grpc-encoding", "gzip"))),
        block(request("/test.Echo/Unary", ("x-id", "1")), form=0x40),
        block(request(method="GET")),
    ]
)
PAYLOADS = st.sampled_from(
    [
        b"",
        message(b""),
        message(b"m"),
        message(b"m")[:4],
        b"m",
        message(b"m") * 2,
        message(b"m", 1),
        message(b"m" * 300),
    ]
)
CLIENT_FRAMES = st.one_of(
    st.builds(headers, STREAMS, BLOCKS, st.sampled_from([4, 4, 4, 5])),
    st.builds(data, STREAMS, PAYLOADS, st.sampled_from([0, 1, 1])),
    st.builds(window_update, st.sampled_from([0, 1, 3, 5, 7]), st.sampled_from([0, 1, 1_000, 2**31 - 1])),
    st.builds(rst_stream, STREAMS),
    st.just(frame(6, 0, 0, bytes(8))),
)
SESSION = st.lists(CLIENT_FRAMES, max_size=25)


def answered(octets_of_frames: list[bytes], limits: Limits, answers: list[int]) -> tuple[object, bytes]:
    """Events and output of a session; its unary calls are answered after as many frames as ``answers`` says."""
    server = Server.opened(limits, (4, 200))
    out = b""
    waiting: list[tuple[int, Call]] = []
    for at, octets in enumerate(octets_of_frames):
        for event in server.receive(octets):
            if isinstance(event, Call):
                waiting.append((at + answers[len(waiting) % len(answers)], event))
        for due, call in waiting:
            if due == at:
                call.reply(call.message)
        out += server.sent()
    return describe(server.events), out


@settings(max_examples=150, deadline=None)
@given(SESSION, st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_fast_path_agrees_with_the_table(session: list[bytes], answers: list[int]) -> None:
    limits = Limits(max_concurrent_streams=3)
    opening = [headers(1, REQUEST_BLOCK) + data(1, message(b"first"), END_STREAM)]  # puts the block into the memory
    session = opening + [octets for octets in session if octets]
    slow = [with_reserved_bit(octets) for octets in session]
    assert answered(session, limits, answers) == answered(slow, limits, answers)


def test_the_page_in_the_docs_is_drawn_from_the_table() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    draw = runpy.run_path(str(docs / "streams.py"))
    assert (docs / "streams.md").read_text() == draw["page"](), "run python docs/streams.py"
