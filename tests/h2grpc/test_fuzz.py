"""Whatever the peer sends: nothing is raised, and no call is open once the connection has ended."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.h2grpc.support import OPENING, Server, describe, frame, parse, with_reserved_bit
from tests.h2grpc.test_connection_errors import CONNECTION_ERRORS, STREAM_ERRORS
from tests.h2grpc.test_connection_splitting import SESSIONS
from toutates.h2grpc import Call, CallCancelled, ConnectionTerminated, Limits, Status, StreamOpened

LIMITS = Limits(
    max_frame_size=16_384,
    max_message_size=20_000,
    max_header_block_size=5_000,
    max_header_list_size=2_000,
    max_concurrent_streams=5,
    closed_stream_memory=3,
    header_memory_entries=3,
)
CORPUS = [
    *SESSIONS.values(),
    *(octets for octets, _ in CONNECTION_ERRORS.values()),
    *(OPENING + octets for octets, _ in STREAM_ERRORS.values()),
]


def drive(chunks: list[bytes], chance: random.Random) -> Server:
    """Receive, answer some calls in one way or another, expire some; check what must hold at every step."""
    server = Server(LIMITS, "gzip")
    waiting: list[Call] = []
    cancelled: set[Call] = set()
    for chunk in chunks:
        for event in server.receive(chunk):
            if isinstance(event, Call):
                waiting.append(event)
            elif isinstance(event, StreamOpened):
                waiting.append(event.call)
            elif isinstance(event, CallCancelled):
                cancelled.add(event.call)
        for call in waiting:
            answer = chance.randrange(8)
            if answer == 0:
                call.reply(bytes(chance.choice([0, 10, 100_000])))
            elif answer == 1:
                call.fail(Status.INTERNAL, "text")
            elif answer == 2:
                server.connection.send_headers(call)
                server.connection.send_message(call, [b"message"])
            elif answer == 3:
                server.connection.finish(call)
        if chance.random() < 0.2:
            server.now_ns += 10**9
            server.connection.expire(server.now_ns)
        connection = server.connection
        sent = server.sent()
        if not sent.startswith((b"HTTP/1.1", b"\x15\x03")):  # for those who speak HTTP/1, or TLS
            parse(sent)
        assert connection._queued_bytes == sum(call.outbox_bytes for call in connection.streams.values())
        assert all(call.stream_id in connection.streams for call in connection._blocked)
        assert len(connection.streams) <= LIMITS.max_concurrent_streams
        assert len(connection._reset) <= LIMITS.closed_stream_memory
        if connection.closed:
            assert not connection.streams
            assert isinstance(server.events[-1], ConnectionTerminated)
            assert not any(call.open for call in waiting)
            streams = {event.call for event in server.events if isinstance(event, StreamOpened)}
            assert all(not call.open for call in streams)
            break
    server.connection.connection_lost()
    assert not server.connection.streams
    assert not server.connection._blocked
    assert server.connection._queued_bytes == 0
    return server


FRAMES = st.builds(
    frame,
    st.one_of(st.integers(0, 10), st.integers(0, 255)),
    st.one_of(st.sampled_from([0, 1, 4, 5, 8, 9, 0x2D]), st.integers(0, 255)),
    st.one_of(st.integers(0, 9), st.integers(0, 2**32 - 1)),
    st.one_of(st.binary(max_size=64), st.sampled_from([bytes(4), bytes(8), b"\0\0\0\1", b"\0\0\0\0\0", bytes(6)])),
)


@settings(max_examples=500, deadline=None)
@given(st.lists(FRAMES, max_size=30), st.randoms(use_true_random=False))
def test_random_frames_raise_nothing(frames: list[bytes], chance: random.Random) -> None:
    drive([OPENING, *frames], chance)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.randoms(use_true_random=False))
def test_random_bytes_raise_nothing(octets: bytes, chance: random.Random) -> None:
    drive([octets[at : at + 9] for at in range(0, len(octets), 9)], chance)


@settings(max_examples=600, deadline=None)
@given(
    st.lists(st.sampled_from(CORPUS), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(["flip", "drop", "double", "insert"])), max_size=6),
    st.randoms(use_true_random=False),
)
def test_mutated_sessions_raise_nothing(
    sessions: list[bytes], mutations: list[tuple[int, str]], chance: random.Random
) -> None:
    octets = bytearray(sessions[0] + b"".join(session.removeprefix(OPENING) for session in sessions[1:]))
    for at, kind in mutations:
        at %= len(octets) or 1
        if kind == "flip":
            octets[at : at + 1] = bytes((chance.randrange(256),))
        elif kind == "drop":
            del octets[at : at + chance.randrange(1, 20)]
        elif kind == "double":
            octets[at:at] = octets[at : at + 30]
        else:
            octets[at:at] = chance.randbytes(chance.randrange(1, 9))
    size = chance.choice([1 + len(octets), 100, 17])
    drive([bytes(octets[at : at + size]) for at in range(0, len(octets), size)], chance)


@settings(max_examples=300, deadline=None)
@given(st.lists(FRAMES, max_size=30))
def test_random_frames_do_the_same_off_the_fast_path(frames: list[bytes]) -> None:
    def outcome(sent: list[bytes]) -> tuple[object, bytes]:
        server = Server.opened(LIMITS)
        for octets in sent:
            server.receive(octets)
        return describe(server.events), server.sent()

    assert outcome(frames) == outcome([with_reserved_bit(octets) for octets in frames])
