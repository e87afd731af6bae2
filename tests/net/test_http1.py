"""HTTP/1.1 on a worker: answers in order, and every way in which a connection ends."""

from __future__ import annotations

import gzip
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from typing import Any

import pytest

from tests.h2grpc.frames import OPENING
from tests.http1.support import request
from tests.net.protocols import EchoHandler
from tests.net.running import HOUR_NS, HOUR_S, BlockingClient, RawClient, Running, running
from tests.net.test_services import TextClient, answer
from tests.waiting import PATIENCE_S
from toutates.h2grpc import Limits
from toutates.net import GrpcService, Listening, Worker, accepting, closing
from toutates.net.connection import SILENCE_S, Service
from toutates.net.first_bytes import ByFirstBytes
from toutates.net.http1.call import HttpCall
from toutates.net.http1.service import MAX_PIPELINED, HttpService


@contextmanager
def serving(
    limits: Limits | None = None, *, half_close: bool = False, **more: Any
) -> Iterator[tuple[Running, EchoHandler]]:
    """A worker that speaks HTTP/1.1 and gRPC on one port, and what answers its requests."""
    handler = EchoHandler()

    def serve(worker: Worker, grpc: GrpcService) -> Service:
        return ByFirstBytes(grpc, HttpService(worker, handler, half_close=half_close), grpc)

    with running(limits, serve=serve, **more) as server:
        yield server, handler


def reply(server: Running, call: HttpCall, body: bytes) -> None:
    server.worker.call_soon(lambda: call.reply(200, b"", body))


def test_answers_keep_the_order_of_the_requests() -> None:
    with serving() as (server, handler), TextClient(server, b"") as client:
        client.sock.sendall(request(target="/hold") + request(target="/2") + request(target="/hold"))
        server.until(lambda: len(handler.held) == 2)
        reply(server, handler.held[1], b"three")
        reply(server, handler.held[0], b"one")
        client.expect(answer(b"one") + answer(b"/2") + answer(b"three"))


def test_a_flood_of_requests_is_not_read_while_answers_wait() -> None:
    count = 1_000_000
    with serving() as (server, handler), TextClient(server, b"") as client, TextClient(server, b"") as other:
        client.sock.settimeout(0.5)
        flood = memoryview(request(target="/hold") + request(target="/x") * count)
        sent = 0
        try:
            while sent < len(flood):
                sent += client.sock.send(flood[sent:])
        except TimeoutError:
            pass
        assert sent < len(flood)
        (state, _) = sorted(
            server.call(lambda: server.worker.connection_states(2)), key=lambda one: -one.received_bytes
        )
        assert state.received_bytes < 3_000_000
        assert state.open_calls <= MAX_PIPELINED
        other.sock.sendall(request(target="/fine"))
        other.expect(answer(b"/fine"))
        client.sock.settimeout(PATIENCE_S)
        reply(server, handler.held[0], b"first")
        client.expect(answer(b"first") + answer(b"/x") * (MAX_PIPELINED + 10))


class LargeAnswers(EchoHandler):
    """Answers every request at once, with much."""

    def handle(self, call: HttpCall) -> None:
        call.reply(200, b"", bytes(20_000))


def test_requests_that_have_come_wait_while_their_peer_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toutates.net.turns.TURN_NS", 10**10)  # a fast machine: time is not what ends a turn
    count = 2_000

    def serve(worker: Worker, grpc: GrpcService) -> Service:
        return HttpService(worker, LargeAnswers())

    with (
        running(Limits(max_unsent_bytes=100_000), serve=serve) as server,
        TextClient(server, b"", receive_buffer=10_000) as client,
    ):
        client.sock.sendall(request(target="/x") * count)
        server.until(lambda: server.worker.transports.open)
        (transport,) = server.call(lambda: list(server.worker.transports.open.values()))
        server.until(lambda: transport.congested)
        server.rounds()
        # the limit, the answers of the requests that had been read by then, and the requests that were not
        assert server.call(lambda: transport.unsent_bytes + transport.connection.held_bytes) < 2_000_000
        for _ in range(count):
            client.expect(answer(bytes(20_000)))
        client.sock.sendall(request(target="/x"))
        client.expect(answer(bytes(20_000)))


@pytest.mark.parametrize(
    ("target", "status", "body"),
    [
        ("/nothing", b"404 Not Found", b"nothing here"),
        ("/refused", b"500 Internal Server Error", b"not so"),
        ("/bug", b"500 Internal Server Error", b"internal error"),
        ("/memory", b"500 Internal Server Error", b"the server is out of memory"),
    ],
)
def test_errors_are_answers_and_the_connection_goes_on(target: str, status: bytes, body: bytes) -> None:
    with serving() as (server, _), TextClient(server, request(target=target) + request(target="/next")) as client:
        client.expect(b"HTTP/1.1 " + status)
        server.until(lambda: True)
        assert body + answer(b"/next") in client.sock.recv(10_000) + answer(b"")


def test_an_answer_that_fails_in_its_middle_ends_with_the_connection() -> None:
    octets = request(target="/begun") + request(target="/next")
    with serving() as (server, _), TextClient(server, octets) as client:
        came = b""
        while part := client.sock.recv(10_000):
            came += part
    assert came.count(b"HTTP/1.1 ") == 1
    assert came.endswith(b"\r\n\r\n6\r\na part\r\n")


def test_one_connection_too_many_is_answered_503() -> None:
    def serve(worker: Worker, grpc: GrpcService) -> Service:
        return HttpService(worker, EchoHandler())

    with running(max_connections=1, serve=serve) as server, TextClient(server, request(target="/a")) as client:
        client.expect(answer(b"/a"))
        with TextClient(server, b"") as one_too_many:
            told = one_too_many.rest()
        assert told.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"connection: close\r\n" in told
        assert told.endswith(b"too many connections")
        assert server.worker.limit_hits["connections"] == 1


@pytest.mark.parametrize("start", [b"GET /a HT", request("POST", body=b"whole")[:-1]], ids=["head", "body"])
def test_a_slow_request_is_timed_out_and_others_are_not(start: bytes) -> None:
    with (
        serving(Limits(stall_timeout_s=0.2)) as (server, handler),
        TextClient(server, request(target="/hold")) as waiting,
        TextClient(server, start) as slow,
    ):
        assert slow.rest().startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        reply(server, handler.held[0], b"late")
        waiting.expect(answer(b"late"))


def test_a_client_that_waits_long_for_its_answer_is_not_taken_for_dead() -> None:
    limits = Limits(keepalive_time_s=0.1, keepalive_timeout_s=0.1)
    with serving(limits) as (server, handler):
        with server.asleep():
            waiting = TextClient(server, request(target="/hold"))
            idle = TextClient(server, request(target="/idle"))
        with waiting, idle:
            idle.expect(answer(b"/idle", kept_s=5))
            server.until(lambda: server.worker.limit_hits["keepalive_timeout"] == 1)
            server.keep_house(SILENCE_S + 1)
            assert idle.rest() == b""
            server.until(lambda: server.worker.connections == 1)
            reply(server, handler.held[0], b"at last")
            waiting.expect(answer(b"at last", kept_s=5))


def test_nobody_is_answered_who_has_left() -> None:
    with serving() as (server, handler):
        with TextClient(server, request(target="/hold")) as client:
            server.until(lambda: handler.held)
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        server.until(lambda: not server.worker.connections)
        (call,) = handler.held
        assert not call.open
        assert call.link is None
        server.call(lambda: call.reply(200, b"", b"to nobody"))


def test_a_drain_answers_what_has_begun_and_says_that_it_is_the_last() -> None:
    with (
        serving() as (server, handler),
        TextClient(server, request(target="/hold")) as waiting,
        TextClient(server, request(target="/idle")) as idle,
        RawClient(server, OPENING),
    ):
        server.until(lambda: handler.held)
        idle.expect(answer(b"/idle"))
        server.drain(PATIENCE_S)
        assert idle.rest() == b""
        reply(server, handler.held[0], b"done")
        assert waiting.rest() == answer(b"done", last=True)


def test_a_drain_waits_for_one_more_request_of_clients_that_were_there_lately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "GOODBYE_NS", HOUR_NS)
    with (
        serving() as (server, _),
        TextClient(server, request(target="/a")) as lately,
        TextClient(server, request(target="/b")) as long_ago,
    ):
        lately.expect(answer(b"/a"))
        long_ago.expect(answer(b"/b"))
        name = ":".join(map(str, long_ago.sock.getsockname()))

        def pretend() -> None:
            for one in server.worker.transports.open.values():
                one.last_read_ns -= closing.LATELY_NS if one.peer == name else 0

        server.call(pretend)
        server.drain(2 * HOUR_S)
        assert long_ago.rest() == b""
        lately.sock.sendall(request(target="/next"))
        assert lately.rest() == answer(b"/next", last=True)
        server.join()


def test_a_client_whose_requests_have_no_end_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "GOODBYE_NS", HOUR_NS // 36_000)
    with serving() as (server, _), TextClient(server, b"") as client, ThreadPoolExecutor(1) as pool:

        def flood() -> None:
            one = request(target="/" + "x" * 100)
            at = 0
            with suppress(OSError):
                while True:  # never with the end of a request
                    client.sock.sendall((one * 3)[at : at + len(one) + 7])
                    at = (at + 7) % len(one)

        def read() -> None:
            with suppress(OSError):
                while client.sock.recv(65_536):
                    pass

        reading = threading.Thread(target=read)
        reading.start()
        flooding = pool.submit(flood)
        server.until(lambda: sum(one.received_bytes for one in server.worker.connection_states(1)) > 10_000)
        server.drain(HOUR_S)
        server.join()
        flooding.result(PATIENCE_S)
        reading.join(PATIENCE_S)


@pytest.mark.parametrize("shared", [False, True])
def test_connections_that_wait_in_the_kernel_are_accepted_at_the_end_and_answered(shared: bool) -> None:
    with serving() as (server, _), ExitStack() as stack:
        with server.asleep():
            server.worker.call_soon(lambda: server.worker.drain(PATIENCE_S, shared=shared))
            clients = [stack.enter_context(TextClient(server, request())) for _ in range(100)]
        assert [client.rest() for client in clients] == [answer(b"/", last=True)] * 100
        server.join()


def test_handshakes_that_begin_while_a_shared_port_is_left_end_with_another_listener(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accepting, "HANDSHAKES_NS", HOUR_NS)
    with serving() as (server, _), ExitStack() as stack:
        first = stack.enter_context(socket.create_server(("127.0.0.1", 0), reuse_port=True))
        other = stack.enter_context(socket.create_server(first.getsockname(), reuse_port=True))
        first.setblocking(False)
        other.settimeout(PATIENCE_S)
        server.call(lambda: server.worker.listen(Listening(first, server.service)))
        server.call(lambda: server.worker.drain(HOUR_S, shared=True))
        clients = [stack.enter_context(socket.socket()) for _ in range(20)]
        for client in clients:
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.connect(other.getsockname())
        server.rounds()
        assert server.worker.connections == 0
        server.drain(0.0)
        server.join()
        for _ in clients:  # those that the kernel would have given to the first one repeat their first packet
            stack.enter_context(other.accept()[0])


def test_before_a_stop_answers_say_that_they_are_the_last() -> None:
    with (
        serving() as (server, handler),
        TextClient(server, request(target="/a")) as client,
        TextClient(server, request(target="/hold")) as waiting,
        BlockingClient(server.port) as grpc,
    ):
        client.expect(answer(b"/a"))
        server.until(lambda: handler.held)
        server.call(server.worker.announce_end)
        client.sock.sendall(request(target="/b"))
        assert client.rest() == answer(b"/b", last=True)
        reply(server, handler.held[0], b"done")
        assert waiting.rest() == answer(b"done", last=True)
        with TextClient(server, request(target="/new")) as new:
            assert new.rest() == answer(b"/new", last=True)
        assert grpc.unary(b"x").messages == [b"x"]  # its peer is told when the server stops


def test_bytes_that_a_handler_keeps_are_counted_and_no_more_is_read_while_they_are_many() -> None:
    limits = Limits(max_unsent_bytes=500_000)
    with serving(limits) as (server, handler), TextClient(server, request(target="/hold")) as client:
        server.until(lambda: handler.held)
        (call,) = handler.held
        server.call(lambda: call.hold(1_000_000))
        held = server.call(lambda: [one.connection.held_bytes for one in server.worker.transports.open.values()])
        assert held[0] >= 1_000_000
        (state,) = server.call(lambda: server.worker.connection_states(1))
        client.sock.sendall(request(target="/next"))
        server.rounds()
        assert server.call(lambda: server.worker.connection_states(1))[0].received_bytes == state.received_bytes
        server.call(lambda: call.hold(-1_000_000))
        reply(server, call, b"one")
        client.expect(answer(b"one") + answer(b"/next"))


def test_heads_are_counted_by_what_they_become_and_forgotten_while_nothing_is_asked() -> None:
    with serving(Limits(handshake_timeout_s=0.4), buffer_bytes=2**30) as (server, _), TextClient(server, b"") as client:

        def ask(number: int) -> None:
            fields = b"".join(b"x%03d: %d\r\n" % (at, number) for at in range(100))
            client.sock.sendall(b"GET /a HTTP/1.1\r\nhost: a\r\n" + fields + b"\r\n")
            client.expect(answer(b"/a"))

        numbers = count()
        while server.worker.budget.used < 50_000:
            ask(next(numbers))
        for number in range(30):
            ask(1_000 + number)
            assert server.worker.budget.used < 140_000
        server.until(lambda: server.worker.budget.used == 0)
        ask(1)
        assert server.worker.connections == 1


def test_the_account_is_asked_before_each_piece_of_what_a_body_becomes() -> None:
    with serving(buffer_bytes=1_000_000) as (server, _):
        for size, status in ((4_000_000, b"503"), (800_000, b"200")):
            body = gzip.compress(bytes(size))
            with TextClient(server, request("POST", body=body, content_encoding="gzip")) as client:
                assert client.sock.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 " + status
        assert server.worker.limit_hits["server_buffer"] == 1
        server.until(lambda: server.worker.budget.used == 0)


def test_a_connection_that_holds_too_much_goes() -> None:
    with serving(Limits(stall_timeout_s=0.4), buffer_bytes=500_000) as (server, _):
        with TextClient(server, b"") as large, TextClient(server, request(target="/small")) as small:
            with suppress(ConnectionError):  # it may be ended before it has sent all
                large.sock.sendall(request("POST", body=bytes(1_000_000))[:-1])
                assert large.sock.recv(10) == b""
            small.expect(answer(b"/small"))
            server.until(lambda: server.worker.connections == 1)
        assert server.worker.limit_hits["server_buffer"] == 1
