"""Large bodies are received into memory of their own, which the driver hands in."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.http1.support import Driven, answer, body_of, conversation, cuts, hand_in, in_memory, request
from toutates.h2grpc.message_memory import ALIGNMENT, GROWTH, MOST_LENT, LargeMessage, MemoryPool, MessageMemory
from toutates.http1 import Connection, Limits, Receiving

LIMITS = Limits(large_body_size=40)
BODY = random.Random(3).randbytes(60)
CONTENT = random.Random(4).randbytes(1_000_000)

MIXED = (
    request("POST", "/a", BODY)
    + request("POST", "/b", BODY[:39])
    + request("POST", "/c", BODY, expect="100-continue")
    + request("POST", "/d", b"3c\r\n" + BODY + b"\r\n0\r\n\r\n", transfer_encoding="chunked")
    + request("POST", "/e", BODY, connection="close")
    + request("POST", "/f", BODY)
)


@pytest.mark.parametrize("direct", [False, True])
def test_requests_are_the_same_however_their_bytes_are_cut(direct: bool) -> None:
    expected = conversation([MIXED])
    assert [target for _, target, _ in expected[0]] == ["/a", "/b", "/c", "/d", "/e"]
    pool = MemoryPool()
    for pieces in cuts(MIXED):
        connection = in_memory(pool, LIMITS)
        assert conversation(pieces, connection, direct=direct) == expected
        assert (connection.held_bytes, pool.lent) == (0, 0)


def foreseeing(pool: MemoryPool, whole: bytes) -> Driven:
    """A connection that has had some requests like this one, and foresees the next."""
    connection = Driven(pool, LIMITS)
    for _ in range(3):
        found, _ = conversation([whole[:-30], whole[-30:]], connection, direct=True)
        assert len(found) == 1
    assert connection.driver.head_bytes == len(whole) - len(BODY)
    assert connection.driver.next_bytes == len(whole)
    return connection


NEXT = (
    request("POST", "/a", BODY[::-1])
    + request("POST", "/a", BODY)
    + request("POST", "/b", BODY)
    + request("POST", "/a", BODY)
    + request("GET", "/c")
    + request("POST", "/a", BODY, connection="close")
    + request("POST", "/a", BODY)
)


def test_behind_requests_that_were_alike_others_are_the_same_however_their_bytes_are_cut() -> None:
    expected = conversation([NEXT])
    assert [target for _, target, _ in expected[0]] == ["/a", "/a", "/b", "/a", "/c", "/a"]
    pool = MemoryPool()
    for pieces in cuts(NEXT):
        connection = foreseeing(pool, request("POST", "/a", BODY))
        assert conversation(pieces, connection, direct=True) == expected
        assert (connection.held_bytes, pool.lent) == (0, 0)


def test_a_request_like_those_before_it_comes_as_a_whole_into_the_same_memory() -> None:
    pool = MemoryPool()
    whole = request("POST", "/a", BODY)
    connection = foreseeing(pool, whole)
    memory = connection.memory
    for number in range(3):
        body = bytes([number]) * len(BODY)
        [one] = hand_in(connection, request("POST", "/a", body), direct=True)
        assert body_of(one) == body
        assert connection.memory is memory
        assert connection.foreseen == number + 1
        answer(one)
        connection.take_output()


def test_what_looks_like_the_last_small_request_is_a_part_of_the_body_in_which_it_is() -> None:
    small = request()
    body = BODY[len(small) :] + small
    whole = request("POST", "/a", body)
    connection = foreseeing(MemoryPool(), request("POST", "/a", BODY))
    for _ in range(2):
        assert [target for _, target, _ in conversation([small], connection)[0]] == ["/"]
    connection.driver.direct = True  # as it is where a read brings the end of a large request and small ones
    assert hand_in(connection, whole[: -len(small)], direct=True) == []
    assert connection.http.direct
    [one] = hand_in(connection, small, direct=False)
    assert (one.head.target, body_of(one)) == ("/a", body)


def test_only_requests_with_the_same_head_are_foreseen() -> None:
    connection = Driven(MemoryPool(), LIMITS)
    for number in range(6):
        whole = request("POST", f"/{number}", BODY)
        conversation([whole[:-30], whole[-30:]], connection, direct=True)
        assert not connection.driver.head_bytes


def test_what_comes_in_place_of_a_foreseen_request_is_not_foreseen_again_soon() -> None:
    whole = request("POST", "/a", BODY)
    connection = foreseeing(MemoryPool(), whole)
    assert connection.driver.foreseen_bytes(whole[: len(whole) - len(BODY)]) == len(whole)
    other = request("POST", "/b", BODY)
    assert not connection.driver.foreseen_bytes(other[: len(other) - len(BODY)])
    [[(_, target, body)], _] = conversation([other], connection, direct=True)
    assert (target, body) == ("/b", BODY)
    for _ in range(4):
        conversation([whole[:-30], whole[-30:]], connection, direct=True)
        assert not connection.driver.head_bytes


def test_nothing_is_foreseen_while_answers_are_due_for_as_many_requests_as_may_wait() -> None:
    whole = request("POST", "/a", BODY)
    connection = foreseeing(MemoryPool(), whole)
    found = [one for _ in range(LIMITS.max_pipelined) for one in hand_in(connection, whole, direct=True)]
    assert len(found) == LIMITS.max_pipelined
    assert not connection.driver.head_bytes
    assert connection.views() == []


@pytest.mark.parametrize("ending", ["connection_lost", "receive_end"])
def test_memory_of_a_foreseen_body_that_is_never_whole_is_given_back(ending: str) -> None:
    pool = MemoryPool()
    whole = request("POST", "/a", BODY)
    connection = foreseeing(pool, whole)
    assert hand_in(connection, whole[:-1], direct=True) == []
    assert (pool.lent, connection.driver.awaited_bytes) == (1, 1)
    getattr(connection.driver if ending == "connection_lost" else connection, ending)()
    assert (pool.lent, connection.views(), connection.driver.head_bytes) == (0, [], 0)


def begun(pool: MemoryPool, octets: bytes, limits: Limits | None = None) -> Connection:
    connection = in_memory(pool, limits or Limits())
    assert connection.receive(octets) == []
    return connection


def test_a_large_body_is_memory_that_can_be_read_like_bytes() -> None:
    pool = MemoryPool()
    pool.give_back(MessageMemory(2_000_000))
    whole = request("POST", body=CONTENT)
    connection = begun(pool, whole[:16_384])
    [one] = hand_in(connection, whole[16_384:], direct=True)
    body: Any = one.body
    assert isinstance(body, MessageMemory)
    assert len(body) == len(CONTENT)
    assert body.capacity == 2_000_000
    assert body_of(one) == CONTENT
    assert body.startswith(CONTENT[:100])
    assert not body.startswith(CONTENT[1:100])
    assert (body.start + one.head.aligned_at) % ALIGNMENT == 0


def test_memory_grows_with_what_has_come() -> None:
    pool = MemoryPool()
    whole = request("POST", body=CONTENT)
    connection = begun(pool, whole[:10_000])
    assert connection.held_bytes <= GROWTH * 10_000
    assert connection.awaited_bytes == len(whole) - 10_000
    assert sum(map(len, connection.views())) < GROWTH * 10_000


@pytest.mark.parametrize("used_before", [False, True])
def test_memory_that_grows_while_somebody_else_has_a_view_of_it_moves(used_before: bool) -> None:
    pool = MemoryPool()
    if used_before:
        spare = pool.take_whole(40_000)
        assert spare is not None
        pool.give_back(spare)
    message = LargeMessage.begin(pool, len(CONTENT), 10_000)
    assert message is not None
    message.add(CONTENT[:10_000])
    view = message.room()  # as a profiler has it, that holds the frames of a worker
    message.add(CONTENT[10_000:])
    assert pool.lent == 1
    memory = message.take()
    assert memory[: len(memory)] == CONTENT
    # The old memory is used again once nobody has a view of it.
    assert (pool.lent, pool.kept_bytes) == (0, 40_001)
    assert pool.next_one(40_000) is None
    view.release()
    assert pool.next_one(40_000) is not None
    assert pool.take_whole(40_000) is not None
    assert (pool.lent, pool.kept_bytes) == (0, 0)


def test_spare_memory_that_is_too_small_and_that_somebody_else_has_a_view_of_moves() -> None:
    pool = MemoryPool()
    spare = pool.take_whole(40_000)
    assert spare is not None
    pool.give_back(spare)
    with memoryview(spare):
        message = LargeMessage.begin(pool, len(CONTENT), len(CONTENT))
        assert message is not None
        message.add(CONTENT)
        assert (pool.lent, pool.kept_bytes) == (1, 40_001)
        memory = message.take()
        assert memory[: len(memory)] == CONTENT
        assert (pool.lent, pool.kept_bytes) == (0, 40_001)


@pytest.mark.parametrize("ending", ["lose", "time_out", "receive_end"])
def test_memory_of_a_body_that_is_never_whole_is_given_back(ending: str) -> None:
    pool = MemoryPool()
    connection = begun(pool, request("POST", body=CONTENT)[:500_000])
    assert pool.lent == 1
    getattr(connection, ending)()
    assert (pool.lent, connection.direct, connection.views(), connection.awaited_bytes) == (0, False, [], 0)
    assert connection.receiving is Receiving.ENDED


def test_a_body_that_has_begun_is_whole_before_a_drain_is() -> None:
    pool = MemoryPool()
    whole = request("POST", body=CONTENT)
    connection = begun(pool, whole[:500_000])
    connection.drain()
    [one] = hand_in(connection, whole[500_000:], direct=True)
    answer(one)
    assert connection.finished


def test_without_memory_a_body_comes_as_any_other() -> None:
    pool = MemoryPool()
    pool.lent = MOST_LENT
    whole = request("POST", body=CONTENT)
    connection = begun(pool, whole[:500_000])
    assert not connection.direct
    [one] = connection.receive(whole[500_000:])
    assert one.body == CONTENT


def test_bodies_have_no_memory_of_their_own_unless_their_head_allows_it() -> None:
    connection = Connection(Limits())
    assert connection.receive(request("POST", body=CONTENT)[:500_000]) == []
    assert not connection.direct


def test_large_answers_are_sent_from_where_they_lie() -> None:
    connection = Connection(Limits())
    for octets in (request(), request(connection="close")):
        [one] = connection.receive(octets)
        connection.answers.reply(one, (b"\r\n", memoryview(CONTENT)), len(CONTENT))
        assert connection.answers.bulky
        *head, body = connection.take_output()
        assert isinstance(body, memoryview)
        assert body.obj is CONTENT
        assert b"".join(head).endswith(b"\r\n\r\n")
