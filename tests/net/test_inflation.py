"""Large compressed requests are decompressed beside the worker, which serves others meanwhile."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.h2grpc.frames import END_STREAM, HEADERS, block, data, headers, message, request, rst_stream
from tests.net.running import RawClient, running
from tests.waiting import PATIENCE_S
from toutates.h2grpc import GrpcError
from toutates.h2grpc.events import InflationDue
from toutates.h2grpc.messages import SMALL_BYTES
from toutates.net.grpc import inflation

LARGE = bytes(SMALL_BYTES) + b"x"
DEFLATED = block(request("/test.Echo/Hold", ("grpc-encoding", "deflate")))


def compressed(stream_id: int, body: bytes) -> bytes:
    return headers(stream_id, DEFLATED) + data(stream_id, message(body, 1), END_STREAM)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "test-side"]


class Gate:
    """Holds the thread back before each message; ``begun`` has the messages that it has come to."""

    def __init__(self) -> None:
        self.begun: list[InflationDue] = []
        self._permits = threading.Semaphore(0)

    def inflate(self, due: InflationDue) -> bytes | GrpcError:
        self.begun.append(due)
        assert self._permits.acquire(timeout=PATIENCE_S)
        return real_inflate(due)

    def open(self, count: int) -> None:
        for _ in range(count):
            self._permits.release()


real_inflate = inflation.inflate


@contextmanager
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(inflation, "inflate", gate.inflate)
    try:
        yield gate
    finally:
        gate.open(100)


def test_large_requests_are_decompressed_in_a_thread_that_ends_with_the_worker() -> None:
    with running() as server, RawClient(server) as client:
        client.send(compressed(1, zlib.compress(b"small")))
        server.until(lambda: len(server.held) == 1)
        assert not threads()
        client.send(compressed(3, zlib.compress(LARGE)))
        server.until(lambda: len(server.held) == 2)
        assert [call.context for call in server.held] == [b"small", LARGE]
        assert threads() == ["test-side"]
        assert server.call(lambda: server.service.shared.budget.used) == 0
    assert not threads()


def test_requests_that_are_broken_or_too_large_are_refused_with_a_reason() -> None:
    with running() as server, RawClient(server) as client:
        packed = zlib.compress(bytes(100_000_000))
        client.send(headers(1, DEFLATED))
        for at in range(0, len(packed) + 5, 16_384):
            client.send(
                data(1, message(packed, 1)[at : at + 16_384], END_STREAM if at + 16_384 >= len(packed) + 5 else 0)
            )
        assert b"larger than 67108864 bytes once decompressed" in trailers(client)
        client.send(compressed(3, zlib.compress(LARGE)[:-5]))
        assert b"cut-off deflate data" in trailers(client)


def test_the_account_is_asked_before_each_piece_of_what_a_message_becomes() -> None:
    with running(buffer_bytes=1_000_000) as server, RawClient(server) as client:
        client.send(compressed(1, zlib.compress(bytes(4_000_000))))
        assert b"1000000 is the most: none are left for what the message becomes" in trailers(client)
        assert server.worker.limit_hits["server_buffer"] == 1
        client.send(compressed(3, zlib.compress(bytes(600_000))))
        server.until(lambda: len(server.held) == 1)
        assert server.call(lambda: server.service.shared.budget.used) == 0


def test_the_account_is_asked_before_each_piece_of_what_a_message_of_a_stream_becomes() -> None:
    with running(buffer_bytes=1_000_000) as server, RawClient(server) as client:
        stream = block(request("/test.Echo/Stream", ("grpc-encoding", "deflate")))
        client.send(headers(1, stream) + data(1, message(zlib.compress(bytes(4_000_000)), 1), END_STREAM))
        assert b"1000000 is the most: none are left for what the message becomes" in trailers(client)
        assert server.worker.limit_hits["server_buffer"] == 1
        client.send(headers(3, stream) + data(3, message(zlib.compress(bytes(20_000)), 1), END_STREAM))
        assert b"grpc-status" in trailers(client)
        server.until(lambda: server.service.shared.budget.used == 0)


def trailers(client: RawClient) -> bytes:
    for frame in client:
        if frame.type == HEADERS and frame.flags & END_STREAM:
            return frame.payload
    raise AssertionError("the server closed the connection")


def test_others_are_served_meanwhile_and_connections_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as server, RawClient(server) as greedy, RawClient(server) as modest, gate(monkeypatch) as held:
        greedy.send(b"".join(compressed(stream_id, zlib.compress(LARGE)) for stream_id in (1, 3, 5)))
        server.until(lambda: len(held.begun) == 1)
        modest.send(compressed(1, zlib.compress(LARGE)))
        with server.client() as other:
            assert other.unary(b"x").messages == [b"x"]
        server.until(lambda: len(server.worker.side.waiting) == 2)
        held.open(4)
        server.until(lambda: len(server.held) == 4)
        connections = [due.call.responder for due in held.begun]
        assert [connection is connections[0] for connection in connections] == [True, True, False, True]


def test_what_nobody_waits_for_any_more_is_not_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as server, RawClient(server) as client, gate(monkeypatch) as held:
        client.send(compressed(1, zlib.compress(LARGE)) + compressed(3, zlib.compress(LARGE)))
        server.until(lambda: len(held.begun) == 1)
        client.send(rst_stream(3) + rst_stream(1))
        server.until(
            lambda: not sum(transport.connection.open_calls for transport in server.worker.transports.open.values())
        )
        held.open(100)
        client.send(compressed(5, zlib.compress(LARGE)))
        server.until(lambda: len(server.held) == 1)
        assert [due.call.stream_id for due in held.begun] == [1, 5]
