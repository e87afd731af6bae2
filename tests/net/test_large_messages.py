"""A worker receives large messages straight into their memory, and holds nobody up meanwhile."""

from __future__ import annotations

import random
import ssl
import threading
import time

import pytest

from tests.certificates import client_context
from tests.h2grpc.frames import (
    END_STREAM,
    HEADERS,
    PING,
    REQUEST_BLOCK,
    block,
    data,
    frame,
    headers,
    message,
    request,
    rst_stream,
    unary,
)
from tests.net.running import HOUR_NS, WIDE, BlockingClient, RawClient, Running, running
from tests.net.tls_support import server_context
from tests.waiting import PATIENCE_S
from toutates.h2grpc import Limits, message_memory
from toutates.net import turns
from toutates.net.transport import Transport

CONTENT = random.Random(2).randbytes(3_000_000)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    return server_context(tmp_path_factory.mktemp("certificates"))


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("frame_bytes", [16_384, 300_000, 1_048_576])
def test_large_messages_come_whole(tls: bool, frame_bytes: int, context: ssl.SSLContext) -> None:
    sizes = [70_000, 1_048_576, 3_000_000, 100_001, 65_536]
    with running(tls=context if tls else None) as server:

        def ask() -> None:
            with BlockingClient(server.port, tls=client_context() if tls else None) as client:
                client.client.h2.max_outbound_frame_size = frame_bytes
                for size in sizes:
                    response = client.unary(CONTENT[:size])
                    assert response.messages == [CONTENT[:size]]

        threads = [threading.Thread(target=ask) for _ in range(3)]
        failed: list[object] = []
        hook, threading.excepthook = threading.excepthook, failed.append
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_S)
        finally:
            threading.excepthook = hook
        assert not failed
        assert server.call(lambda: server.service.shared.pool.lent) == 0
        assert server.call(lambda: server.service.shared.budget.used) == 0


def the_transport(server: Running) -> Transport:
    [transport] = server.worker.transports.open.values()
    return transport


def test_a_message_that_stops_to_come_holds_up_nothing_else_on_its_connection() -> None:
    """The epoll tells of a message that comes fast only when much of it is there; not for long, if no more comes."""
    with running() as server, RawClient(server, WIDE) as client:
        octets = message(CONTENT[:1_500_000])
        begun = headers(1, REQUEST_BLOCK) + b"".join(
            data(1, octets[at : at + 16_384]) for at in range(0, 1_000_000, 16_384)
        )
        client.sock.sendall(begun)
        server.until(lambda: server.worker.transports.open)
        server.until(lambda: the_transport(server).received_bytes >= len(begun) + len(WIDE))
        client.sock.sendall(frame(PING, 0, 0, b"are you?"))
        assert client.until(PING).payload == b"are you?"
        sent = -(-1_000_000 // 16_384) * 16_384
        client.sock.sendall(data(1, octets[sent:], END_STREAM) + unary(3))
        missing = {1, 3}
        for one in client:
            if one.type == HEADERS and one.flags & END_STREAM:
                missing.remove(one.stream_id)
            if not missing:
                break
        assert not server.call(lambda: server.worker.transports.awaiting)
        assert server.call(lambda: the_transport(server).awaited_bytes) == 1


def test_requests_beside_a_message_that_is_reset_in_the_middle_are_answered() -> None:
    with running() as server, RawClient(server, WIDE) as client:
        octets = message(CONTENT[:1_000_000])
        for stream_id in range(1, 40, 4):
            client.sock.sendall(
                headers(stream_id, REQUEST_BLOCK)
                + b"".join(data(stream_id, octets[at : at + 16_384]) for at in range(0, 500_000, 16_384))
                + rst_stream(stream_id)
                + unary(stream_id + 2)
            )
        missing = set(range(3, 40, 4))
        for one in client:
            if one.type == HEADERS and one.flags & END_STREAM:
                missing.remove(one.stream_id)
            if not missing:
                break
        assert server.call(lambda: server.service.shared.pool.lent) == 0
        assert server.call(lambda: server.service.shared.budget.used) == 0


def test_memory_of_large_messages_goes_back_once_no_more_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_memory, "IDLE_NS", HOUR_NS)
    with running(Limits(keepalive_time_s=0.2)) as server, BlockingClient(server.port) as client:
        for _ in range(3):
            assert client.unary(CONTENT[:1_000_000]).messages == [CONTENT[:1_000_000]]
        assert server.call(lambda: server.service.shared.pool.kept_bytes) >= 1_000_000
        monkeypatch.setattr(message_memory, "IDLE_NS", 100_000_000)
        server.until(lambda: not server.service.shared.pool.kept_bytes)
        assert client.unary(CONTENT[:1_000_000]).messages == [CONTENT[:1_000_000]]


@pytest.mark.parametrize("tls", [False, True])
def test_no_more_is_awaited_of_a_message_than_comes(
    tls: bool, context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "AWAIT_NS", 3_600_000_000_000)
    with (
        running(tls=context if tls else None) as server,
        BlockingClient(server.port, tls=client_context() if tls else None) as client,
    ):
        for size in (1_048_576, 1_000_000, 300_000, 3_000_000):
            for _ in range(3):
                assert client.unary(CONTENT[:size]).messages == [CONTENT[:size]]
        assert not server.call(lambda: server.worker.transports.awaiting)


def upload(stream_id: int, size: int) -> bytes:
    """A request, in frames as most clients send them."""
    octets = message(CONTENT[stream_id : stream_id + size])
    return headers(stream_id, REQUEST_BLOCK) + b"".join(
        data(stream_id, octets[at : at + 16_384], END_STREAM if at + 16_384 >= len(octets) else 0)
        for at in range(0, len(octets), 16_384)
    )


def finish(client: RawClient, *stream_ids: int) -> None:
    """Read until these are answered."""
    missing = set(stream_ids)
    while missing:
        answer = client.until(HEADERS)
        if answer.flags & END_STREAM:
            missing.remove(answer.stream_id)


def until_foreseen(server: Running, client: RawClient) -> int:
    """Send large requests that are alike until the next one is foreseen; returns its stream."""
    for stream_id in range(1, 201, 2):
        client.sock.sendall(upload(stream_id, 1_000_000))
        finish(client, stream_id)
        if server.call(lambda: the_transport(server).connection.head_bytes):
            return stream_id + 2
    raise AssertionError("no request is foreseen")


def test_what_is_not_like_the_large_requests_before_it_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "AWAIT_NS", 3_600_000_000_000)
    with running() as server, RawClient(server, WIDE) as client:
        at = until_foreseen(server, client)
        client.sock.sendall(unary(at))
        finish(client, at)
        client.sock.sendall(upload(at + 2, 1_000_000))
        finish(client, at + 2)
        client.sock.sendall(upload(at + 4, 300_000) + unary(at + 6))
        finish(client, at + 4, at + 6)
        client.sock.sendall(frame(PING, 0, 0, b"are you?"))
        assert client.until(PING).payload == b"are you?"
        assert not server.call(lambda: server.worker.transports.awaiting)


def test_the_beginning_of_a_request_like_the_last_ones_is_read_soon_if_no_more_comes() -> None:
    with running() as server, RawClient(server, WIDE) as client:
        at = until_foreseen(server, client)
        before = server.call(lambda: the_transport(server).received_bytes)
        next_one = upload(at, 1_000_000)
        client.sock.sendall(next_one[:200_000])
        server.until(lambda: the_transport(server).received_bytes >= before + 200_000)
        client.sock.sendall(next_one[200_000:])
        finish(client, at)
        assert server.call(lambda: server.service.shared.pool.lent) == 0


def wait_patiently(monkeypatch: pytest.MonkeyPatch, await_ns: int = HOUR_NS) -> None:
    """Have large requests come soon one after the other, however slow this machine is, and waited for so long."""
    monkeypatch.setattr(turns, "AWAIT_NS", await_ns)
    monkeypatch.setattr(turns, "SOON_NS", HOUR_NS)


def until_awaited(server: Running, client: RawClient, first: int = 1) -> int:
    """Send large requests that are alike until the next one is waited for ahead; returns its stream."""
    for stream_id in range(first, first + 400, 2):
        client.sock.sendall(upload(stream_id, 1_000_000))
        finish(client, stream_id)
        if server.call(lambda: the_transport(server).awaited_bytes) >= 1_000_000:
            return stream_id + 2
    raise AssertionError("no request is waited for before it begins")


def test_the_next_of_many_large_requests_is_told_of_once_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_patiently(monkeypatch)
    with running() as server, RawClient(server, WIDE) as client:
        at = until_awaited(server, client)
        for stream_id in range(at, at + 8, 2):
            assert list(server.call(lambda: server.worker.transports.awaiting)) == [the_transport(server)]
            client.sock.sendall(upload(stream_id, 1_000_000))
            finish(client, stream_id)
        assert server.call(lambda: server.service.shared.pool.lent) == 0
        # What is not the request that is waited for is read when as much has come, and nothing is waited for then.
        client.sock.sendall(unary(at + 8) + upload(at + 10, 1_000_000))
        finish(client, at + 8, at + 10)
        client.sock.sendall(unary(at + 12))
        finish(client, at + 12)


def test_what_comes_in_place_of_a_large_request_is_read_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_patiently(monkeypatch, 500_000_000)
    with running() as server, RawClient(server, WIDE) as client:
        at = until_awaited(server, client)
        client.sock.sendall(unary(at))
        finish(client, at)
        transport = the_transport(server)
        assert server.call(lambda: transport.alike) <= 0
        assert server.call(lambda: transport.awaited_bytes) == 1
        assert not server.call(lambda: server.worker.transports.awaiting)
        client.sock.sendall(upload(at + 2, 1_000_000))
        finish(client, at + 2)


def test_the_next_large_request_is_waited_for_on_while_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_patiently(monkeypatch)
    looks: list[bytes] = []
    peek = Transport.peek

    def noted(transport: Transport, count: int) -> bytes:
        looks.append(peek(transport, count))
        return looks[-1]

    with running() as server, RawClient(server, WIDE) as client:
        at = until_awaited(server, client)
        transport = the_transport(server)
        monkeypatch.setattr(Transport, "peek", noted)
        monkeypatch.setattr(turns, "AWAIT_NS", 1_000_000)
        server.call(lambda: server.worker._turns.tick(time.monotonic_ns()))  # from here on there is a look each ms
        server.until(lambda: len(looks) > 3)
        assert not any(looks)
        assert server.call(lambda: transport.awaited_bytes) >= 1_000_000
        monkeypatch.setattr(turns, "AWAIT_NS", HOUR_NS)
        # A look that was due may see it begin, so that one request more is needed.
        at = until_awaited(server, client, at)
        monkeypatch.setattr(turns, "SOON_NS", 0)
        monkeypatch.setattr(turns, "AWAIT_NS", 1_000_000)
        server.call(lambda: server.worker._turns.tick(time.monotonic_ns()))
        server.until(lambda: not server.worker.transports.awaiting)
        assert server.call(lambda: transport.awaited_bytes) == 1
        client.sock.sendall(unary(at))
        finish(client, at)


def test_of_a_large_request_that_begins_and_stops_what_there_is_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_patiently(monkeypatch)
    with running() as server, RawClient(server, WIDE) as client:
        at = until_awaited(server, client)
        before = server.call(lambda: the_transport(server).received_bytes)
        octets = upload(at, 1_000_000)
        client.sock.sendall(octets[:500_000])
        monkeypatch.setattr(turns, "AWAIT_NS", 20_000_000)
        server.call(lambda: server.worker._turns.tick(time.monotonic_ns()))
        server.until(lambda: the_transport(server).received_bytes >= before + 500_000)
        client.sock.sendall(octets[500_000:])
        finish(client, at)
        assert server.call(lambda: server.service.shared.pool.lent) == 0


def test_a_client_that_leaves_while_its_next_request_is_waited_for_is_gone_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait_patiently(monkeypatch)
    with running() as server:
        with RawClient(server, WIDE) as client:
            at = until_awaited(server, client)
            client.sock.sendall(upload(at, 1_000_000)[:500_000])
        server.until(lambda: not server.worker.transports.open)
        assert not server.call(lambda: server.worker.transports.awaiting)
        assert server.call(lambda: server.service.shared.pool.lent) == 0


def frames_of(octets: bytes, frame_bytes: int = 16_384) -> bytes:
    """DATA of stream 1, which these end."""
    return b"".join(
        data(1, octets[at : at + frame_bytes], END_STREAM if at + frame_bytes >= len(octets) else 0)
        for at in range(0, len(octets), frame_bytes)
    )


@pytest.mark.parametrize("frame_bytes", [16_384, 900_000])
def test_a_message_whose_deadline_passes_while_it_comes_is_answered_and_the_rest_dropped(frame_bytes: int) -> None:
    frames = frames_of(message(CONTENT[:2_000_000]), frame_bytes)
    with running() as server, RawClient(server, WIDE) as client:
        head = headers(1, block(request("/test.Echo/Unary", ("grpc-timeout", "50m"))))
        client.sock.sendall(head + frames[:500_000])
        refusal = client.until(HEADERS)
        assert refusal.stream_id == 1
        assert refusal.flags & END_STREAM
        assert server.call(lambda: server.service.shared.pool.lent) == 0
        client.sock.sendall(frames[500_000:] + unary(3))
        assert client.until(HEADERS).stream_id == 3
        server.until(lambda: server.service.shared.budget.used == 0)


@pytest.mark.parametrize("tls", [False, True])
def test_a_message_that_ends_early_is_refused_and_leaves_nothing(tls: bool, context: ssl.SSLContext) -> None:
    with (
        running(tls=context if tls else None) as server,
        RawClient(server, WIDE, tls=client_context() if tls else None) as client,
    ):
        client.sock.sendall(headers(1, REQUEST_BLOCK) + frames_of(message(CONTENT)[:1_000_000]) + unary(3))
        refusal = client.until(HEADERS)
        assert refusal.stream_id == 1
        assert refusal.flags & END_STREAM
        assert client.until(HEADERS).stream_id == 3
        assert server.call(lambda: server.service.shared.pool.lent) == 0
        server.until(lambda: server.service.shared.budget.used == 0)
