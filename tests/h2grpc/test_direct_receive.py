"""Large messages are received straight into their memory: the same events and the same output as the ordinary way."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.h2grpc.frames import (
    CANCEL,
    END_HEADERS,
    END_STREAM,
    OPENING,
    PADDED,
    PING,
    REQUEST_BLOCK,
    STREAM_BLOCK,
    WINDOW_UPDATE,
    block,
    data,
    frame,
    headers,
    message,
    request,
    rst_stream,
    unary,
    window_update,
)
from tests.h2grpc.support import Server, connected, describe, elements, exchange, small_is_large
from toutates.h2grpc import Call, Limits, direct_receive, message_memory
from toutates.h2grpc.message_memory import BEHIND, IDLE_NS, LARGEST_SPARE_BYTES, POOL_BYTES, MemoryPool, MessageMemory
from toutates.h2grpc.shared import Shared

#: Windows that a few messages of some KiB use up.
LIMITS = Limits(stream_window=65_535, connection_window=65_535, max_message_size=50_000)
CONTENT = random.Random(1).randbytes(300_000)


@pytest.fixture(autouse=True)
def _small_is_large() -> Iterator[None]:
    with small_is_large():
        yield


def upload(
    stream_id: int, size: int, frames: list[int], *, end: bool = True, block: bytes = REQUEST_BLOCK
) -> list[bytes]:
    """A request in frames of these lengths, the last one again and again."""
    octets = message(CONTENT[stream_id : stream_id + size])
    out = [headers(stream_id, block)]
    at, lengths = 0, iter(frames)
    length = frames[0]
    while at < len(octets):
        length = next(lengths, length)
        out.append(data(stream_id, octets[at : at + length], END_STREAM if end and at + length >= len(octets) else 0))
        at += length
    return out


def outcome(
    octets: bytes, cuts: list[int], *, directly: bool, handed_in: bool = False, gives_back: bool = False
) -> tuple[object, bytes]:
    """What comes of these bytes, cut so: received directly or not; then put into views, or handed in all the same."""
    server = Server(LIMITS, directly=not handed_in, gives_back=gives_back)
    ends = sorted({cut % (len(octets) + 1) for cut in cuts} | {len(octets)})
    with pytest.MonkeyPatch.context() as patch:
        if not directly:
            patch.setattr(direct_receive, "LEAST_MISSING", 2**40)
        for start, end in zip([0, *ends], ends, strict=False):
            if end > start:
                server.receive(octets[start:end])
    connection = server.connection
    sent = server.sent()
    assert connection.held.held_bytes == sum(call.held_bytes for call in connection.streams.values())
    # A call that is over before anyone could answer is handed on or not, as the reads fall.
    return describe(event for event in server.events if not isinstance(event, Call) or event.open), sent


def receives_directly(server: Server) -> bool:
    return server.connection.direct


SIZES = st.lists(
    st.sampled_from([1, 9, 64, 100, 500, 1_000, 1_024, 2_000, 3_000, 8_000, 16_384]), min_size=1, max_size=4
)
PIECES = st.one_of(
    st.builds(lambda size, frames, end: ("upload", size, frames, end), st.integers(900, 55_000), SIZES, st.booleans()),
    st.sampled_from(
        [("ping",), ("credit",), ("reset",), ("padded",), ("small",), ("trailers",), ("odd",), ("stream",)]
    ),
)


def frames_of(parts: list[tuple[object, ...]]) -> list[list[bytes]]:
    """The frames of each of several requests and others."""
    queues: list[list[bytes]] = []
    stream_id = -1
    for part in parts:
        if part[0] in ("upload", "small", "padded", "stream"):
            stream_id += 2
        at = max(stream_id, 1)
        if part[0] == "upload":
            queues.append(upload(at, part[1], part[2], end=bool(part[3])))  # type: ignore[arg-type]
        elif part[0] == "small":
            queues.append([unary(at)])
        elif part[0] == "padded":
            octets = message(CONTENT[:3_000])
            queues.append(
                [
                    headers(at, REQUEST_BLOCK),
                    data(at, octets[:1_000]),
                    data(at, b"\4" + octets[1_000:] + bytes(4), PADDED | END_STREAM),
                ]
            )
        elif part[0] == "stream":
            queues.append([headers(at, STREAM_BLOCK), data(at, message(CONTENT[:5_000])), data(at, b"", END_STREAM)])
        elif part[0] == "trailers":
            queues.append([headers(at, block([("x-a", "b")]), END_STREAM | END_HEADERS)])
        else:
            other = {
                "ping": frame(PING, 0, 0, bytes(8)),
                "credit": window_update(0, 1),
                "reset": rst_stream(at, CANCEL),
            }
            queues.append([other.get(str(part[0]), frame(99, 0, at, b"what?"))])
    return queues


def in_turn(parts: list[tuple[object, ...]]) -> list[bytes]:
    """Requests and others, one after the other, behind what opens a connection."""
    return [OPENING, *map(b"".join, frames_of(parts))]


def session(parts: list[tuple[object, ...]], order: random.Random) -> bytes:
    """Frames of several requests, mixed with others."""
    queues = frames_of(parts)
    out = [OPENING]
    opened: list[list[bytes]] = []
    while queues or opened:
        # Streams open in the order of their numbers; the frames of those that are open mix.
        if queues and (not opened or order.random() < 0.2):
            queue = queues.pop(0)
            out.append(queue.pop(0))
            if queue:
                opened.append(queue)
            continue
        queue = order.choice(opened)
        count = order.choice((1, 1, 3, 50))
        out += queue[:count]
        del queue[:count]
        if not queue:
            opened.remove(queue)
    return b"".join(out)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(PIECES, min_size=1, max_size=6),
    st.randoms(use_true_random=False),
    st.lists(st.integers(0, 10**6), max_size=30),
)
def test_direct_and_ordinary_make_the_same_of_the_same_bytes(
    parts: list[tuple[object, ...]], order: random.Random, cuts: list[int]
) -> None:
    octets = session(parts, order)
    whole = outcome(octets, [], directly=False)
    assert outcome(octets, cuts, directly=False) == whole
    assert outcome(octets, cuts, directly=True) == whole
    assert outcome(octets, cuts, directly=True, handed_in=True) == whole


SMALL_PIECES = st.one_of(
    st.builds(
        lambda size, length, end: ("upload", size, [length], end),
        st.integers(1_100, 6_000),
        st.sampled_from([300, 1_000, 1_500, 3_000, 6_100]),
        st.booleans(),
    ),
    st.sampled_from([("ping",), ("credit",), ("reset",), ("padded",), ("small",), ("odd",), ("stream",)]),
)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), SMALL_PIECES), min_size=1, max_size=4),
    st.lists(st.sampled_from([0, 0, 700, 800, 200, 150, 130, 5]), min_size=24, max_size=24),
    st.lists(st.integers(0, 10**5), max_size=3),
)
def test_requests_that_are_foreseen_make_the_same_as_others(
    runs: list[tuple[int, tuple[object, ...]]], inner: list[int], cuts: list[int]
) -> None:
    """Requests that are alike, and then others, one after the other; reads end with them, or within, or anywhere."""
    requests = in_turn([part for count, part in runs for _ in range(count)])
    octets = b"".join(requests)
    ends = list(accumulate(map(len, requests)))
    within = [end + count for end, count in zip(ends, [700, 700, 700, *inner], strict=False)]
    whole = outcome(octets, [], directly=False)
    assert outcome(octets, [*ends, *within], directly=True, gives_back=True) == whole
    assert outcome(octets, [*ends, *within, *cuts], directly=True, gives_back=True) == whole
    assert outcome(octets, [*ends, *within, *cuts], directly=True, handed_in=True, gives_back=True) == whole


@pytest.mark.parametrize(
    "third",
    [
        upload(9, 5_000, [1_500]),
        upload(9, 5_001, [1_500]),
        upload(9, 5_000, [4_000]),
        upload(9, 5_000, [1_500, 1_400]),
        upload(9, 30_000, [1_500]),
        [window_update(0, 9), *upload(9, 5_000, [1_500])],
        [unary(9)],
        upload(9, 5_000, [1_500], block=block(request("/test.Echo/Unary", ("x-a", "another")))),
        [*upload(9, 5_000, [1_500])[:3], rst_stream(9), unary(11)],
        [headers(9, REQUEST_BLOCK), headers(11, REQUEST_BLOCK), data(11, message(CONTENT[:3_000]), END_STREAM)],
        [headers(9, REQUEST_BLOCK), data(9, message(CONTENT[:5_000])[:4_000]), frame(99, 0, 0, bytes(3_000))],
        [headers(9, STREAM_BLOCK), data(9, message(CONTENT[:5_000])[:4_000])],
        [data(7, bytes(4_000))],
    ],
)
def test_a_request_that_is_not_as_foreseen_is_read_all_the_same(third: list[bytes]) -> None:
    alike = [b"".join(upload(at, 5_000, [1_500])) for at in (1, 3, 5, 7)]
    last = b"".join(third)
    octets = OPENING + b"".join(alike) + last + unary(13)
    whole = outcome(octets, [], directly=False)
    ends = list(accumulate(map(len, [OPENING, *alike])))
    # Each of the first three comes in two reads, and the fourth as it was foreseen.
    ends += [end + 700 for end in ends[:3]]
    ends.sort()
    for cut in [*range(0, len(last), 301), *range(1, 210, 13)]:
        assert outcome(octets, [*ends, ends[-1] + cut], directly=True, gives_back=True) == whole


def test_once_two_requests_were_alike_the_next_is_received_by_one_read() -> None:
    server = Server.opened(LIMITS)
    server.gives_back = True
    requests = [b"".join(upload(at, 9_000, [1_800])) for at in (1, 3, 5, 7)]
    server.receive(requests[0])
    assert not receives_directly(server)
    server.receive(requests[1][:1_000])
    server.receive(requests[1][1_000:])
    server.receive(requests[2][:1_000])
    server.receive(requests[2][1_000:])
    assert receives_directly(server)
    views = server.connection.views()
    assert sum(map(len, views)) == len(requests[3])
    del views
    server.receive(requests[3])
    assert [call.message for call in server.events if isinstance(call, Call)] == [
        CONTENT[at : at + 9_000] for at in (1, 3, 5, 7)
    ]
    assert server.pool.lent == 0
    server.connection.connection_lost()
    assert not receives_directly(server)


def test_a_request_that_has_the_window_opened_again_is_taken_as_it_was_foreseen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server.opened(LIMITS)
    server.gives_back = True
    requests = [b"".join(upload(at, 9_000, [1_800])) for at in range(1, 31, 2)]
    for octets in requests[:3]:
        server.receive(octets[:1_000])
        server.receive(octets[1_000:])
    server.sent()
    monkeypatch.setattr(direct_receive.DirectReceive, "take", None)  # where the others go
    updates = 0
    for octets in requests[3:]:
        server.receive(octets)
        updates += sum(frame.type == WINDOW_UPDATE for frame in server.frames())
    assert [call.message for call in server.events if isinstance(call, Call)] == [
        CONTENT[at : at + 9_000] for at in range(1, 31, 2)
    ]
    assert updates >= 3


def test_requests_that_go_on_being_alike_are_received_by_an_array_that_is_kept() -> None:
    server = Server.opened(LIMITS)
    server.gives_back = True
    requests = [b"".join(upload(at, 9_000, [1_800])) for at in range(1, 41, 2)]
    for octets in requests[:3]:
        server.receive(octets[:1_000])
        server.receive(octets[1_000:])
    assert server.connection.vector() is None
    for octets in requests[3:10]:
        server.receive(octets)
    assert server.vectors == 6  # the two before were foreseen too, and had it made
    known = server.connection.vector()
    assert known is not None
    views = server.connection.views()
    assert [(ctypes.addressof(first_byte(view)), len(view)) for view in views] == elements(known)
    assert sum(size for _, size in elements(known)) == len(requests[10])
    del views
    # What is not as foreseen, and what comes in two reads, is read all the same.
    for octets in (requests[10][:500], requests[10][500:], requests[11][:4_000], requests[11][4_000:], *requests[12:]):
        server.receive(octets)
    assert [call.message for call in server.events if isinstance(call, Call)] == [
        CONTENT[at : at + 9_000] for at in range(1, 41, 2)
    ]
    assert server.pool.lent == 0


def first_byte(view: Any) -> ctypes.c_char:
    return ctypes.c_char.from_buffer(view)


def test_an_array_is_forgotten_with_where_its_memory_was() -> None:
    pool = Shared().pool
    server = Server.opened(LIMITS, shared=Shared(pool=pool))
    server.gives_back = True
    for at in range(1, 21, 2):
        octets = b"".join(upload(at, 9_000, [1_800]))
        server.receive(octets[:1_000])
        server.receive(octets[1_000:])
    assert server.connection.vector() is not None
    memory = pool.take(10_000_000)
    assert memory is not None
    pool.returned(memory)
    pool.give_back(memory)
    assert server.connection.vector() is None
    for at in range(21, 41, 2):
        server.receive(b"".join(upload(at, 9_000, [1_800])))
    assert [call.message for call in server.events if isinstance(call, Call)] == [
        CONTENT[at : at + 9_000] for at in range(1, 41, 2)
    ]


@pytest.mark.parametrize("sizes", [[1_000, 1_000, 300, 1_000], [500, 20, 2_000], [2_500, 2_500, 2_200, 1_000]])
def test_a_request_that_ends_in_the_middle_of_its_message_is_refused_wherever_reads_end(sizes: list[int]) -> None:
    octets, frames, at = message(CONTENT[:9_000]), [OPENING, headers(1, REQUEST_BLOCK)], 0
    for number, size in enumerate(sizes):
        frames.append(data(1, octets[at : at + size], END_STREAM if number == 2 else 0))
        at += size
    sent = b"".join(frames[:5]) + unary(3)
    whole = outcome(sent, [], directly=False)
    assert b"the request ended in the middle of a message" in whole[1]
    assert outcome(sent, list(range(len(sent))), directly=True) == whole
    for cut in range(1, len(sent), 11):
        assert outcome(sent, [cut], directly=True) == whole
        assert outcome(sent, [cut, cut + 700], directly=True) == whole
    closed = b"".join(frames)
    whole = outcome(closed, [], directly=False)
    for cut in range(1, len(closed), 51):
        assert outcome(closed, [cut, cut + 300], directly=True) == whole


@pytest.mark.parametrize("frames", [[3_000], [1_000], [500, 1_000, 700], [16_384], [10, 20_000]])
def test_a_large_message_does_not_care_about_single_bytes(frames: list[int]) -> None:
    octets = OPENING + b"".join(upload(1, 3_500, frames)) + unary(3) + b"".join(upload(5, 2_000, frames))
    whole = outcome(octets, [], directly=False)
    assert outcome(octets, list(range(len(octets))), directly=True) == whole
    for cut in range(1, len(octets), 7):
        assert outcome(octets, [cut], directly=True) == whole


def test_a_message_whose_call_expires_meanwhile_is_dropped_to_the_end_of_its_frame() -> None:
    server = Server.opened(LIMITS)
    [head, *frames] = upload(1, 9_000, [4_000], block=block(request("/test.Echo/Unary", ("grpc-timeout", "1S"))))
    server.receive(head + frames[0][:1_500])
    assert receives_directly(server)
    server.connection.expire(2 * 10**9)
    [headers_sent, reset] = server.frames()
    assert headers_sent.stream_id == reset.stream_id == 1
    assert server.connection.held_bytes == 0
    assert server.connection.awaits_request
    assert server.receive(frames[0][1_500:] + b"".join(frames[1:]) + unary(3)) != []
    assert not receives_directly(server)
    assert [event.stream_id for event in server.events if isinstance(event, Call)] == [3]


def test_a_connection_that_is_lost_in_the_middle_of_a_message_leaves_nothing() -> None:
    server = Server.opened(LIMITS)
    server.receive(b"".join(upload(1, 9_000, [4_000]))[:6_000])
    assert receives_directly(server)
    assert server.budget.used > 0
    server.connection.connection_lost()
    assert not receives_directly(server)
    assert (server.budget.used, server.connection.held_bytes) == (0, 0)
    assert server.pool.lent == 0


def test_a_reset_in_the_middle_gives_the_memory_to_the_next_message() -> None:
    server = Server.opened(LIMITS)
    server.receive(b"".join(upload(1, 9_000, [4_000])[:3]) + rst_stream(1))
    assert server.pool.lent == 0
    kept = server.pool.kept_bytes
    assert kept > 0
    octets = b"".join(upload(3, 8_000, [4_000]))
    server.receive(octets[:5_000])
    assert server.pool.kept_bytes == kept
    server.receive(octets[5_000:])
    assert server.pool.kept_bytes == 0
    [call] = server.events
    assert isinstance(call, Call)
    assert call.message == CONTENT[3:8_003]


def test_a_length_reserves_no_memory() -> None:
    server = Server.opened(Limits())
    head = headers(1, REQUEST_BLOCK) + (2**20).to_bytes(3, "big") + b"\0\0\0\0\0\1" + b"\0\x7f\xff\xff\xff"
    server.receive(head + bytes(20_000))
    assert receives_directly(server)
    assert sum(map(len, server.connection.views())) < 100_000
    assert server.budget.used < 100_000


def test_what_a_connection_may_hold_is_checked_while_a_message_comes() -> None:
    server = Server.opened(Limits(max_buffered_bytes=50_000))
    octets = b"".join(upload(1, 200_000, [16_384]))
    for at in range(0, len(octets), 5_000):
        server.receive(octets[at : at + 5_000])
    assert server.limit_hits == {"connection_buffer": 1}
    assert server.connection.held_bytes == server.budget.used == 0
    assert server.alive


def test_only_so_many_incomplete_messages_have_memory_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_memory, "MOST_LENT", 2)
    server = Server.opened(LIMITS)
    for stream_id in (1, 3, 5):
        server.receive(headers(stream_id, REQUEST_BLOCK) + data(stream_id, message(CONTENT[:3_000])[:1_500]))
    assert server.pool.lent == 2
    for stream_id in (5, 3, 1):
        server.receive(data(stream_id, message(CONTENT[:3_000])[1_500:], END_STREAM))
    calls = [event for event in server.events if isinstance(event, Call)]
    assert [(call.stream_id, call.message) for call in calls] == [(at, CONTENT[:3_000]) for at in (5, 3, 1)]
    assert server.pool.lent == 0


def test_memory_that_somebody_reads_is_not_used_again() -> None:
    pool = Shared().pool
    memory = pool.take(10_000)
    assert memory is not None
    with memoryview(memory) as view:
        pool.give_back(memory)
        assert pool.kept_bytes == 10_000 + BEHIND
        assert pool.take(10_000) is not memory
        assert len(view) == 10_000 + BEHIND
    assert pool.take(5_000) is memory
    pool.give_back(memory)
    assert pool.take(20_000) is memory
    assert memory.capacity == 20_000 + BEHIND


def test_a_pool_keeps_so_much_and_no_huge_pieces() -> None:
    pool = MemoryPool(2 * LARGEST_SPARE_BYTES)
    for size in (LARGEST_SPARE_BYTES + 1, LARGEST_SPARE_BYTES, LARGEST_SPARE_BYTES, LARGEST_SPARE_BYTES):
        pool.give_back(MessageMemory(size))
    assert pool.kept_bytes == 2 * LARGEST_SPARE_BYTES


def test_a_pool_keeps_nothing_once_no_message_has_come_for_a_while() -> None:
    pool = Shared().pool
    lent = pool.take(10_000)
    memory = pool.take(20_000)
    assert lent is not None
    assert memory is not None
    pool.returned(memory)
    pool.give_back(memory)
    assert pool.take(20_000) is memory
    pool.give_back(MessageMemory(30_000))
    now_ns = 10**12
    pool.trim(now_ns)
    assert pool.kept_bytes == 50_000 + BEHIND
    pool.trim(now_ns + IDLE_NS - 1)
    assert pool.kept_bytes == 50_000 + BEHIND
    pool.trim(now_ns + IDLE_NS)
    assert pool.kept_bytes == 20_000 + BEHIND  # of the message that is still to come
    pool.returned(memory)
    pool.returned(lent)
    assert (pool.kept_bytes, pool.lent) == (0, 0)


def test_messages_that_only_begin_hold_no_more_of_large_ones_before_them_than_a_pool_keeps() -> None:
    """A message may get memory that a larger one has filled; what it holds of that is not seen by its length."""
    pool = Shared().pool
    begun: list[MessageMemory] = []
    for _ in range(10):
        whole = pool.take(LARGEST_SPARE_BYTES)
        assert whole is not None
        pool.returned(whole)
        pool.give_back(whole)
        begins = pool.take(65_536)
        assert begins is not None
        begun.append(begins)
    assert sum(memory.capacity for memory in begun) <= POOL_BYTES + 10 * 65_536
    assert pool.kept_bytes <= POOL_BYTES
    for memory in begun:
        pool.returned(memory)
    assert pool.lent == 0


def test_memory_reads_like_bytes() -> None:
    memory = MessageMemory(10)
    memory[:] = b"0123456789"
    assert memory.startswith(b"234", 2)
    assert not memory.startswith(b"9a", 9)
    assert (memory[1], memory[2:4], memory[-1:]) == (ord("1"), b"23", b"9")


@pytest.mark.parametrize("window", [65_535, 100_000, 1_000_000])
def test_a_large_answer_goes_out_in_the_largest_frames_within_the_windows(window: int) -> None:
    client, server = connected(initial_window=window)
    stream_id = client.unary(b"ask")
    exchange(client, server, answer=False)
    [call] = server.events
    assert isinstance(call, Call)
    call.reply(memoryview(CONTENT))
    frames = server.frames()
    sizes = [len(one.payload) for one in frames if one.type == 0]
    whole = min(window, 65_535, len(CONTENT) + 5)
    assert sum(sizes) == whole
    assert max(sizes) == 16_384
    assert len(sizes) <= -(-whole // 16_384) + 1
    client.take(b"".join(frame(one.type, one.flags, one.stream_id, one.payload) for one in frames))
    exchange(client, server)
    assert client.responses[stream_id].messages == [CONTENT]
