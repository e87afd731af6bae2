from __future__ import annotations

import random
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu_time import least_cpu_s, lines_run
from tests.h2grpc.frames import message
from toutates.h2grpc import Allowance, GrpcError, LimitExceeded, Status
from toutates.h2grpc.messages import SMALL_BYTES, Inflater, MessageAssembler, compress, decompress


def assembler_of(encoding: str, max_size: int) -> MessageAssembler:
    return MessageAssembler(encoding, max_size, lambda data: decompress(data, encoding, max_size), 100)


def feed_all(assembler: MessageAssembler, octets: bytes, size: int) -> list[bytes]:
    messages = []
    for at in range(0, len(octets), size):
        messages += assembler.feed(memoryview(octets)[at : at + size])
    return messages


@given(st.lists(st.binary(max_size=50), max_size=10), st.integers(1, 60))
def test_assembler_gives_the_same_messages_however_they_are_cut(bodies: list[bytes], size: int) -> None:
    assembler = assembler_of("identity", 100)
    assert feed_all(assembler, b"".join(message(body) for body in bodies), size) == bodies
    assert assembler.pending_bytes == 0


def test_assembler_takes_so_many_messages_at_once() -> None:
    assembler = assembler_of("identity", 100)
    for _ in range(2):
        assert len(assembler.feed(memoryview(message(b"m") * 100))) == 100
    with pytest.raises(LimitExceeded, match="one DATA frame has more than 100 messages") as caught:
        assembler.feed(memoryview(message(b"m") * 101))
    assert caught.value.limit == "messages"


def test_assembler_counts_what_it_holds_of_an_unfinished_message() -> None:
    assembler = assembler_of("identity", 100)
    assert assembler.feed(memoryview(message(b"whole") + message(b"half")[:7])) == [b"whole"]
    assert assembler.pending_bytes == 9


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_assembler_decompresses_what_is_flagged_and_nothing_else(encoding: str) -> None:
    wbits = {"gzip": 31, "deflate": 15}[encoding]
    packed = zlib.compress(b"x" * 1_000, wbits=wbits)
    assembler = assembler_of(encoding, 1_000)
    assert assembler.feed(memoryview(message(packed, 1) + message(b"plain"))) == [b"x" * 1_000, b"plain"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("body", [b"", b"a", bytes(100_000)])
def test_compressed_messages_come_back(encoding: str, body: bytes) -> None:
    packed = compress(body, encoding)
    assert decompress(packed, encoding, 100_000) == body
    assert zlib.decompress(packed, wbits=47) == body


@pytest.mark.parametrize(
    ("octets", "encoding", "status", "text"),
    [
        (message(b"", 2), "identity", Status.INTERNAL, "flag 2"),
        (message(b"x" * 101), "identity", Status.RESOURCE_EXHAUSTED, r"larger than max \(101 vs. 100\)"),
        (message(b"x", 1), "identity", Status.INTERNAL, "names no grpc-encoding"),
        (message(b"not gzip", 1), "gzip", Status.INTERNAL, "not valid gzip"),
        (message(zlib.compress(b"x" * 99, wbits=31)[:-1], 1), "gzip", Status.INTERNAL, "cut-off gzip"),
        (message(zlib.compress(b"x" * 99)[:-1], 1), "deflate", Status.INTERNAL, "cut-off deflate"),
        (message(b"", 1), "gzip", Status.INTERNAL, "cut-off gzip"),
        (message(zlib.compress(bytes(101), wbits=31), 1), "gzip", Status.RESOURCE_EXHAUSTED, "larger than 100 bytes"),
        (message(zlib.compress(bytes(9_999), wbits=31), 1), "gzip", Status.RESOURCE_EXHAUSTED, "larger than 100 bytes"),
    ],
)
def test_assembler_refuses(octets: bytes, encoding: str, status: Status, text: str) -> None:
    with pytest.raises(GrpcError, match=text) as caught:
        assembler_of(encoding, 100).feed(memoryview(octets))
    assert caught.value.status is status


def test_assembler_refuses_an_oversized_message_at_its_prefix() -> None:
    with pytest.raises(GrpcError, match="larger than max"):
        assembler_of("identity", 100).feed(memoryview(message(bytes(101))[:5]))


def test_message_of_exactly_the_limit_is_accepted_before_and_after_decompression() -> None:
    assert assembler_of("identity", 100).feed(memoryview(message(bytes(100)))) == [bytes(100)]
    packed = zlib.compress(bytes(100_000), wbits=31)
    assert assembler_of("gzip", 100_000).feed(memoryview(message(packed, 1))) == [bytes(100_000)]


def test_bomb_costs_the_limit_and_not_its_size() -> None:
    bomb = zlib.compress(bytes(200_000_000), 9, wbits=31)
    assert len(bomb) < 200_000
    tracemalloc.start()
    with pytest.raises(GrpcError, match="once decompressed"):
        decompress(bomb, "gzip", 1_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_tiny_pieces_of_a_large_message_are_linear_work() -> None:
    def lines(size: int) -> int:
        octets = message(bytes(size))
        return lines_run(lambda: feed_all(assembler_of("identity", size), octets, 16))

    assert lines(800_000) <= 8 * lines(100_000)


@pytest.mark.alone  # what is copied anew for each piece takes time, but no more lines
def test_tiny_pieces_of_a_large_message_cost_linear_time() -> None:
    def seconds(size: int) -> float:
        octets = message(bytes(size))
        return least_cpu_s(lambda: feed_all(assembler_of("identity", size), octets, 16))

    assert seconds(1_600_000) < 40 * max(seconds(100_000), 0.001)


def test_inflation_is_charged_by_the_bytes_that_come_of_it() -> None:
    inflater = Inflater(Allowance(burst=100, per_second=10, per_call=0))
    body = random.Random(1).randbytes(30_000)
    packed = zlib.compress(body)
    for _ in range(3):
        assert inflater.inflate(packed, "deflate", 10**6, 0) == body
    with pytest.raises(LimitExceeded, match="more than the server has time for") as info:
        inflater.inflate(packed, "deflate", 10**6, 0)
    assert info.value.limit == "inflation"
    assert inflater.inflate(packed, "deflate", 10**6, 10**10) == body
    with pytest.raises(LimitExceeded, match="larger than 1000 bytes once decompressed") as info:
        inflater.inflate(packed, "deflate", 1_000, 10**10)
    assert info.value.limit == "decompressed_size"


def test_small_messages_are_inflated_at_once_until_the_allowance_is_used_up() -> None:
    inflater = Inflater(Allowance(burst=100, per_second=10, per_call=0))
    small, large = zlib.compress(bytes(50_000)), zlib.compress(bytes(SMALL_BYTES + 1))
    assert inflater.inflate_small(small, "deflate", 10**6, 0) == bytes(50_000)
    assert inflater.inflate_small(small, "deflate", 10**6, 0) == bytes(50_000)
    assert inflater.inflate_small(small, "deflate", 10**6, 0) is None
    assert Inflater(Allowance(10_000, 0, 0)).inflate_small(large, "deflate", 10**6, 0) is None
    with pytest.raises(GrpcError, match="not valid deflate data"):
        inflater.inflate_small(b"nonsense", "deflate", 10**6, 10**10)
