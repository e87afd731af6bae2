"""How much a connection is read, and sent, at once."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from toutates.h2grpc import Limits
from toutates.h2grpc.budget import MemoryBudget
from toutates.net import GrpcService, Worker
from toutates.net import transport as module
from toutates.net.transport import LARGE_READ_BYTES, READ_BYTES, READ_NS, SMALL_READ_BYTES, Transport


@pytest.fixture
def transport() -> Iterator[Transport]:
    """A transport over a real socket."""
    ours, theirs = socket.socketpair()
    with theirs, select.epoll() as epoll:
        service = GrpcService(Worker("test", Limits()), {})
        service.start(None)  # type: ignore[arg-type]
        transport = Transport(ours, service, "test", epoll, 1_000, MemoryBudget(2**30), 0)
        yield transport
        transport.close()


def test_reads_grow_while_their_frames_are_handled_fast(transport: Transport) -> None:
    assert transport.read_bytes == READ_BYTES
    sizes = []
    for _ in range(8):
        transport.fit_reads(READ_NS // 10)
        sizes.append(transport.read_bytes)
    assert sizes == [2**n * READ_BYTES for n in range(1, 6)] + [LARGE_READ_BYTES] * 3


def test_reads_shrink_while_their_frames_hold_others_up(transport: Transport) -> None:
    transport.fit_reads(READ_NS + 1)
    assert transport.read_bytes == READ_BYTES // 2
    for _ in range(5):
        transport.fit_reads(READ_NS * 10)
    assert transport.read_bytes == SMALL_READ_BYTES
    transport.fit_reads(READ_NS // 10)
    assert transport.read_bytes == 2 * SMALL_READ_BYTES


def test_reads_that_are_full_are_timed_whatever_their_size(transport: Transport) -> None:
    for took_ns in (READ_NS * 10, READ_NS * 10, 0, 0, 0):
        assert transport.timed_bytes == transport.read_bytes
        transport.fit_reads(took_ns)


def test_a_turn_to_send_ends_also_where_the_peer_takes_everything(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_SENT_BYTES", 2_500)
    for _ in range(7):
        transport.unsent.append(memoryview(bytes(1_000)))
        transport.unsent_bytes += 1_000
    left = []
    for _ in range(4):
        assert transport.send_unsent()
        left.append(transport.unsent_bytes)
        assert bool(transport._mask & module.EPOLLOUT) is bool(transport.unsent)
    assert left == [4_500, 2_000, 0, 0]
    assert transport.sent_bytes == 7_000
