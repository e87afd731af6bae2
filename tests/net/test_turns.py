"""No connection holds the others up: what takes longer than its turn goes on later, in order, and can be cancelled."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, suppress

import pytest

from tests.h2grpc.frames import (
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PROTOCOL_ERROR,
    REQUEST_BLOCK,
    Frame,
    block,
    data,
    headers,
    message,
    request,
    rst_stream,
    unary,
)
from tests.net.running import WIDE, RawClient, Running, running
from tests.waiting import wait_until
from toutates.h2grpc import Call, Limits, Method
from toutates.net import turns

SLOW = "/test.Echo/Slow"
SOON = "/test.Echo/Soon"
SOON_BLOCK = block(request(SOON))


@pytest.fixture(autouse=True)
def large_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection's first read is as large as those of one that has sent much."""
    monkeypatch.setattr("toutates.net.transport.READ_BYTES", 262_144)


def test_neighbour_is_served_while_a_connection_has_dear_calls_and_answers_come_in_order() -> None:
    order: list[int] = []
    asked: list[int] = []  # how many dear calls there had been when the neighbour asked
    waited: list[int] = []  # and how many more when it was served

    def slow(call: Call) -> None:
        order.append(call.stream_id)
        if len(asked) == len(waited):
            neighbour.send(headers(2 * len(asked) + 1, SOON_BLOCK) + data(2 * len(asked) + 1, message(b""), END_STREAM))
            asked.append(len(order))
        until_ns = time.monotonic_ns() + 1_000_000
        while time.monotonic_ns() < until_ns:
            pass
        call.reply(b"")

    def soon(call: Call) -> None:
        waited.append(len(order) - asked[-1])
        call.reply(b"")

    count = 300
    with running(None, Method(SLOW, unary=slow), Method(SOON, unary=soon)) as server, RawClient(server, WIDE) as dear:
        with RawClient(server, WIDE) as neighbour:
            server.until(lambda: server.worker.connections == 2)
            dear.send(slow_calls(count))
            assert [one.stream_id for one in frames(dear, HEADERS, 2 * count)][::2] == list(range(1, 2 * count, 2))
            server.until(lambda: len(waited) == len(asked))
        assert order == list(range(1, 2 * count, 2))
        # A millisecond each: a turn ends when the clock is read. The request may come just after a look at the sockets.
        assert max(waited) <= 3 * turns.EVENTS_AT_ONCE, waited
        assert len(waited) >= 5
        server.until(lambda: not server.worker.transports.behind)
        dear.send(unary(2 * count + 1))  # it is read again
        assert dear.until(DATA).payload == message(b"hello")


def frames(client: RawClient, kind: int, count: int) -> list[Frame]:
    """The next frames of a kind."""
    return [client.until(kind) for _ in range(count)]


class Gate:
    """A method whose first call takes as long as the test likes."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.served: list[int] = []

    def serve(self, call: Call) -> None:
        self.served.append(call.stream_id)
        if len(self.served) == 1:
            self.entered.set()
            assert self.opened.wait(120)
        call.reply(b"")


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn is over after the fewest events that it may have."""
    monkeypatch.setattr("toutates.net.turns.TURN_NS", 0)


def send_together(server: Running, client: RawClient, octets: bytes) -> None:
    """Send what the worker gets by one read, however slow the client is."""
    assert len(octets) < 65_536, "it has to fit the window of a connection that has just begun"
    server.until(lambda: server.worker.connections)
    with server.asleep():
        client.send(octets)
        wait_until(client.has_arrived)


def slow_calls(count: int, *fields: tuple[str, str]) -> bytes:
    dear = block(request(SLOW, *fields))
    return b"".join(
        headers(stream_id, dear) + data(stream_id, message(b""), END_STREAM) for stream_id in range(1, 2 * count, 2)
    )


@pytest.mark.usefixtures("short_turns")
def test_calls_left_over_from_a_turn_that_expire_are_not_begun() -> None:
    gate = Gate()
    with running(None, Method(SLOW, unary=gate.serve)) as server, RawClient(server, WIDE) as client:
        send_together(server, client, slow_calls(400, ("grpc-timeout", "10M")))
        assert gate.entered.wait(120)
        server.expire()
        gate.opened.set()
        expired = [one for one in frames(client, HEADERS, 400) if b"grpc-message" in one.payload]
        assert len(expired) > 300
        assert len(gate.served) < 100


@pytest.mark.usefixtures("short_turns")
def test_the_events_of_large_reads_are_timed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toutates.net.turns.CLOSELY_TIMED_BYTES", 0)
    gate = Gate()
    with running(None, Method(SLOW, unary=gate.serve)) as server, RawClient(server, WIDE) as client:
        send_together(server, client, slow_calls(turns.EVENTS_AT_ONCE, ("grpc-timeout", "10M")))
        assert gate.entered.wait(120)
        server.expire()
        gate.opened.set()
        expired = [one for one in frames(client, HEADERS, 12) if b"grpc-message" in one.payload]
        assert len(expired) > 8
        assert len(gate.served) < 4


@pytest.mark.usefixtures("short_turns")
def test_calls_left_over_from_a_turn_that_are_reset_are_not_begun() -> None:
    gate = Gate()
    gate.opened.set()
    with running(None, Method(SLOW, unary=gate.serve)) as server, RawClient(server, WIDE) as client:
        resets = b"".join(rst_stream(stream_id) for stream_id in range(1, 700, 2))
        send_together(server, client, slow_calls(350) + resets + unary(701))
        while client.until(DATA).stream_id != 701:
            pass
        assert len(gate.served) < 100


@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize("end", ["close", "violation"])
def test_calls_left_over_when_their_connection_ends_are_not_begun(end: str) -> None:
    gate = Gate()
    with running(None, Method(SLOW, unary=gate.serve)) as server:
        with RawClient(server, WIDE) as client:
            send_together(server, client, slow_calls(400) + (data(0) if end == "violation" else b""))
            assert gate.entered.wait(120)
            if end == "violation":
                gate.opened.set()
                assert [one.code for one in client if one.type == GOAWAY] == [PROTOCOL_ERROR]
        if end == "close":
            (transport,) = server.worker.transports.open.values()
            server.worker.call_soon(lambda: server.worker.closing.drop(transport))
            gate.opened.set()
        server.until(lambda: not server.worker.transports.behind and not server.worker.connections)
        assert len(gate.served) < 100


@pytest.mark.usefixtures("short_turns")
def test_drain_answers_calls_left_over_from_a_turn() -> None:
    gate = Gate()
    with running(None, Method(SLOW, unary=gate.serve)) as server, RawClient(server, WIDE) as client:
        send_together(server, client, slow_calls(100))
        assert gate.entered.wait(120)
        server.drain(20.0)
        gate.opened.set()
        seen = list(client)
        assert sum(one.type == DATA for one in seen) == 100
        server.join()
        assert server.cut_off == 0


@pytest.mark.usefixtures("short_turns")
def test_streams_left_over_that_are_reset_do_not_begin() -> None:
    gate = Gate()
    with running(None, Method(SLOW, unary=gate.serve)) as server, RawClient(server, WIDE) as client:
        timed = block(request("/test.Echo/Stream", ("grpc-timeout", "10M")))
        streams = b"".join(
            headers(stream_id, timed) + data(stream_id, message(b"x")) for stream_id in range(201, 261, 2)
        )
        send_together(server, client, slow_calls(100) + streams)
        assert gate.entered.wait(120)
        server.expire()
        gate.opened.set()
        server.until(
            lambda: len(gate.served) == 100 and not server.worker.transports.behind and not server.service.streams
        )
        client.send(unary(301))
        while client.until(DATA).stream_id != 301:
            pass


def test_memory_of_connections_that_end_with_many_calls_is_given_back_beside_others() -> None:
    calls = b"".join(headers(stream_id, REQUEST_BLOCK) for stream_id in range(1, 40_000, 2))
    limits = Limits(stall_timeout_s=0.4)
    with running(limits, buffer_bytes=8 * 2**20) as server, server.client() as neighbour:
        clients = [RawClient(server) for _ in range(6)]  # each holds about 20 MiB
        for client in clients:
            with suppress(ConnectionError):  # it may be ended before it has sent all
                client.send(calls)
        server.until(lambda: server.worker.connections == 1)
        server.until(lambda: not server.worker.transports.behind)
        assert neighbour.unary(b"x").messages == [b"x"]
        for client in clients:
            client.sock.close()


def test_dear_connections_have_a_share_of_each_round_together_and_a_cheap_one_is_served_in_between() -> None:
    dear_calls = 0

    def slow(call: Call) -> None:
        nonlocal dear_calls
        dear_calls += 1
        until_ns = time.monotonic_ns() + turns.CATCH_UP_NS
        while time.monotonic_ns() < until_ns:
            pass
        call.reply(b"")

    soon = Method(SOON, unary=lambda call: call.reply(b""))
    with running(None, Method(SLOW, unary=slow), soon) as server, ExitStack() as stack:
        crowd = [stack.enter_context(RawClient(server, WIDE)) for _ in range(16)]
        neighbour = stack.enter_context(RawClient(server, WIDE))
        server.until(lambda: server.worker.connections == len(crowd) + 1)
        for client in crowd:
            client.send(slow_calls(1))
            threading.Thread(target=ask_again_and_again, args=(client,), daemon=True).start()
        wait_until(lambda: dear_calls >= 2 * len(crowd))  # by now it is known which are dear
        beside: list[int] = []
        for stream_id in range(1, 24, 2):
            before = dear_calls
            neighbour.send(headers(stream_id, SOON_BLOCK) + data(stream_id, message(b""), END_STREAM))
            neighbour.until(DATA)
            beside.append(dear_calls - before)
        # One or two of them in each round, where a round had all of them.
        assert sorted(beside)[len(beside) // 2] <= len(crowd) // 2, beside


def ask_again_and_again(client: RawClient) -> None:
    """Make one dear call after the other."""
    with suppress(OSError, AssertionError):
        for stream_id in range(3, 10_000, 2):
            client.until(DATA)
            client.send(headers(stream_id, block(request(SLOW))) + data(stream_id, message(b""), END_STREAM))
