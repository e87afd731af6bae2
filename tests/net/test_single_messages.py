"""Streaming calls whose messages are handled one by one, without a task, over real sockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tests.h2grpc.frames import (
    DATA,
    END_STREAM,
    HEADERS,
    RST_STREAM,
    block,
    data,
    headers,
    message,
    request,
    rst_stream,
    unary,
    window_update,
)
from tests.net.running import WIDE, RawClient, running
from toutates.api.grpc.statuses import STATUSES
from toutates.h2grpc import Call, GrpcError, Limits, Method, Status
from toutates.h2grpc.budget import MESSAGE_BYTES
from toutates.net import GrpcService, turns
from toutates.net.grpc import service as module
from toutates.system.errors import InvalidRequest

METHOD = "/test.Own/Messages"
OPEN = headers(1, block(request(METHOD)))


def own(handle: Callable[[Call, bytes], None]) -> Method:
    return Method(METHOD, message=lambda received: handle(received.call, received.message))


def echo(call: Call, body: bytes) -> None:
    call.send(body)


def frames_to_the_end(client: RawClient) -> list[tuple[int, bytes]]:
    """(type, payload) of what comes on stream 1 until it ends."""
    out = []
    for frame in client:
        if frame.stream_id == 1 and frame.type in (DATA, HEADERS, RST_STREAM):
            out.append((frame.type, frame.payload))
            if frame.type == RST_STREAM or frame.flags & END_STREAM:
                break
    return out


def test_each_message_is_handled_as_it_comes_and_takes_no_task() -> None:
    with running(None, own(echo)) as server, RawClient(server) as client:
        client.send(OPEN)
        for number in range(200):
            client.send(data(1, message(b"%d" % number)))
            assert client.until(DATA).payload == message(b"%d" % number)
        assert not server.call(lambda: server.service.streams)
        assert server.call(lambda: server.service.shared.budget.used) == 0
        client.send(data(1, message(b"last"), END_STREAM))
        assert client.until(DATA).payload == message(b"last")
        assert b"grpc-status" in client.until(HEADERS).payload


def test_a_call_without_messages_ends_well() -> None:
    with running(None, own(echo)) as server, RawClient(server) as client:
        client.send(headers(1, block(request(METHOD)), 4 | END_STREAM))
        assert [kind for kind, _ in frames_to_the_end(client)] == [HEADERS, HEADERS]


def test_the_window_of_a_message_comes_back() -> None:
    with running(Limits(stream_window=65_535), own(echo)) as server, RawClient(server, WIDE) as client:
        client.send(OPEN)
        for _ in range(20):
            client.send(data(1, message(bytes(16_379))))
            client.until(DATA)
        client.send(rst_stream(1))


def _raise(call: Call, body: bytes) -> None:
    call.send(b"one")
    raise RuntimeError("not for the caller")


def _raise_grpc(call: Call, body: bytes) -> None:
    raise GrpcError(Status.ABORTED, "aborted by its handler", [("x-why", "so")])


def _raise_strange_metadata(call: Call, body: bytes) -> None:
    raise GrpcError(Status.ABORTED, "text", [("Not A Name", "so")])


def _raise_request_error(call: Call, body: bytes) -> None:
    raise InvalidRequest("not this one")


def _run_out_of_memory(call: Call, body: bytes) -> None:
    raise MemoryError


@pytest.mark.parametrize(
    ("handler", "status", "text"),
    [
        (_raise, 13, b"internal error"),
        (_raise_grpc, 10, b"aborted by its handler"),
        (_raise_strange_metadata, 13, b"internal error"),
        (_raise_request_error, 3, b"not this one"),
        (_run_out_of_memory, 8, b"out of memory"),
    ],
)
def test_a_handler_that_raises_ends_its_call_only(
    handler: Callable[[Call, bytes], None], status: int, text: bytes
) -> None:
    with (
        running(
            None, own(handler), serve=lambda worker, grpc: GrpcService(worker, grpc.methods, "", STATUSES)
        ) as server,
        RawClient(server) as client,
    ):
        client.send(OPEN + data(1, message(b"m")) + data(1, message(b"n"), END_STREAM))
        kind, payload = frames_to_the_end(client)[-1]
        assert kind == HEADERS
        assert b"%d" % status in payload
        assert text in payload
        client.send(unary(3))
        assert client.until(DATA).payload == message(b"hello")


def test_a_caller_who_reads_no_answer_is_refused_further_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNREAD_BYTES", 100_000)
    handled: list[bytes] = []

    def answer(call: Call, body: bytes) -> None:
        handled.append(body)
        call.send(bytes(50_000))

    with running(None, own(answer)) as server, RawClient(server) as client:
        # The client gives no window beyond the protocol's 65,535 bytes.
        client.send(OPEN + b"".join(data(1, message(b"%d" % number)) for number in range(20)))
        assert b"unread" in frames_to_the_end(client)[-1][1]
        assert handled == [b"0", b"1", b"2", b"3"]  # 200,020 bytes, of which 65,535 were sent
        assert server.worker.limit_hits["unread_responses"] == 1
        assert server.call(lambda: server.service.shared.budget.used) == 0


def test_the_answers_of_many_calls_of_one_connection_are_bounded_together() -> None:
    limits = Limits(max_queued_bytes=200_000)
    with running(limits, own(lambda call, body: call.send(bytes(50_000)))) as server, RawClient(server) as client:
        numbers = range(1, 41, 2)
        client.send(b"".join(headers(number, block(request(METHOD))) for number in numbers))
        client.send(b"".join(data(number, message(b"m")) for number in numbers))
        server.until(lambda: server.worker.limit_hits["unread_responses"] > 10)
        [transport] = server.call(lambda: list(server.worker.transports.open.values()))
        assert server.call(lambda: transport.connection.awaits_window) <= 250_005
        client.send(window_update(0, 1_000_000))
        client.send(b"".join(rst_stream(number) for number in numbers))


def test_a_caller_who_leaves_the_socket_unread_is_refused_further_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_NS", 0)  # the rest of a read waits for the next round after each 16 messages
    handled: list[bytes] = []

    def answer(call: Call, body: bytes) -> None:
        handled.append(body)
        call.send(bytes(1_000_000))

    with running(None, own(answer)) as server, RawClient(server, WIDE, receive_buffer=4_096) as client:
        client.send(OPEN + data(1, message(b"m") * 200))
        server.until(lambda: server.worker.limit_hits["unread_responses"] == 1)
        assert len(handled) <= 2 * turns.EVENTS_AT_ONCE


def test_what_arrives_after_the_end_of_a_call_is_ignored() -> None:
    handled: list[bytes] = []

    def refuse(call: Call, body: bytes) -> None:
        handled.append(body)
        call.fail(Status.NOT_FOUND, "no")

    with running(None, own(refuse)) as server, RawClient(server) as client:
        client.send(OPEN + data(1, message(b"1") + message(b"2") + message(b"3"), END_STREAM))
        frames_to_the_end(client)
        assert handled == [b"1"]
        assert server.call(lambda: server.service.shared.budget.used) == 0


def test_messages_without_end_leave_others_their_turn() -> None:
    """A flood's messages are handled in turns of some milliseconds; what they are is counted while they wait."""
    begun = threading.Event()
    handled: list[int] = []
    waited: list[int] = []

    def slow(call: Call, body: bytes) -> None:
        begun.set()
        handled.append(len(handled))
        waited.append(server.service.shared.budget.used)
        _spend_a_millisecond()

    with running(None, own(slow)) as server, RawClient(server) as flood, RawClient(server) as other:
        flood.send(OPEN + data(1, message(b"m") * 1_000) * 2)
        assert begun.wait(120)
        other.send(unary(1))
        assert other.until(DATA).payload == message(b"hello")
        assert len(handled) < 2_000
        assert waited[0] >= 1_900 * MESSAGE_BYTES
        flood.send(data(1, b"", END_STREAM))
        flood.until(HEADERS)


def _spend_a_millisecond() -> None:
    ends = time.monotonic_ns() + 1_000_000
    while time.monotonic_ns() < ends:
        pass
