"""Plain HTTP/2 on a worker: its handler is that of HTTP/1.1, and each request ends by itself."""

from __future__ import annotations

import gzip
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e.wire import Answer, Client
from tests.h2grpc.frames import PREFACE
from tests.http1.support import request
from tests.net.protocols import EchoHandler
from tests.net.running import Running, running
from tests.waiting import PATIENCE_S
from toutates.h2grpc import Limits
from toutates.net import GrpcService, Worker
from toutates.net.connection import Service
from toutates.net.first_bytes import ByFirstBytes
from toutates.net.http1.call import HttpCall
from toutates.net.http1.service import HttpService
from toutates.net.http2.plain import PlainHttp


@contextmanager
def serving(limits: Limits | None = None, **more: Any) -> Iterator[tuple[Running, EchoHandler]]:
    """A worker as on the port of REST, and what answers its requests."""
    handler = EchoHandler()

    def serve(worker: Worker, grpc: GrpcService) -> Service:
        http = HttpService(worker, handler)
        return ByFirstBytes(grpc.beside(PlainHttp(worker, handler)), http, http)

    with running(limits, serve=serve, **more) as server:
        yield server, handler


@contextmanager
def connected(server: Running) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sock


@contextmanager
def client_of(server: Running) -> Iterator[Client]:
    with connected(server) as sock:
        yield Client(sock)


def start(client: Client, path: str, body: bytes | None = b"", coding: str = "") -> int:
    """Send a request; None for its head alone."""
    stream_id = client.start(path, [("content-type", "text/x"), ("te", ""), ("content-encoding", coding)])
    if body is not None:
        client.send(stream_id, body)
    return stream_id


def ask(client: Client, path: str, body: bytes = b"", coding: str = "") -> tuple[str, bytes]:
    answer = client.answer(start(client, path, body, coding))
    return answer.headers[":status"], answer.data


def reply(server: Running, call: HttpCall, body: bytes) -> None:
    server.worker.call_soon(lambda: call.reply(200, b"", body))


def held_bytes(server: Running) -> int:
    transports = server.worker.transports
    return server.call(lambda: sum(transport.connection.held_bytes for transport in transports.open.values()))


# --- which protocol --------------------------------------------------------------------------------------------------


def test_a_preface_that_comes_byte_by_byte() -> None:
    with serving() as (server, _), connected(server) as sock:
        for octet in PREFACE[:-1]:
            sock.sendall(bytes([octet]))
        sock.sendall(PREFACE[-1:])
        assert sock.recv(9)[3] == 4  # SETTINGS


@pytest.mark.parametrize(
    ("octets", "begins"),
    [
        (request(target="/x"), b"HTTP/1.1 200 OK"),
        (b"PRINT / HTTP/1.1\r\nhost: a\r\n\r\n", b"HTTP/1.1 200 OK"),
        (b"PRI * HTTP/2.0\r\n\r\nXX", b"HTTP/1.1 505"),
        (b"\x16\x03\x01\x00\x05hello", b"\x15\x03\x01"),  # an alert of TLS
        (b"\0\0\0 nonsense\r\n\r\n", b"HTTP/1.1 400"),
    ],
)
def test_what_is_no_preface_is_answered_as_its_port_speaks(octets: bytes, begins: bytes) -> None:
    with serving() as (server, _), connected(server) as sock:
        sock.sendall(octets)
        came = b""
        while len(came) < len(begins):
            came += sock.recv(65_536)
        assert came.startswith(begins)


def test_who_says_nothing_may_be_silent_and_who_begins_a_preface_may_not() -> None:
    limits = Limits(handshake_timeout_s=0.2, stall_timeout_s=0.4)
    with serving(limits) as (server, _), connected(server) as silent, connected(server) as slow:
        slow.sendall(PREFACE[:10])
        assert slow.recv(65_536) == b""
        silent.sendall(request(target="/x"))
        assert silent.recv(65_536).startswith(b"HTTP/1.1 200 OK")


# --- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 65_000, 300_000, 4_000_000])
def test_bodies_come_back(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    with serving() as (server, _), client_of(server) as client:
        for _ in range(2):
            assert ask(client, "/path", body) == ("200", body or b"/path")
        assert (
            server.call(lambda: sum(one.connection.held_bytes for one in server.worker.transports.open.values())) == 0
        )


def test_answers_do_not_wait_for_each_other() -> None:
    with serving() as (server, handler), client_of(server) as client:
        first = start(client, "/hold")
        server.until(lambda: handler.held)
        assert ask(client, "/second") == ("200", b"/second")
        assert client.call("/test.Echo/Unary", b"third").data[5:] == b"third"
        reply(server, handler.held[0], b"at last")
        assert client.answer(first).data == b"at last"


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/bug", "500", b"internal error"),
        ("/memory", "500", b"the server is out of memory"),
        ("/refused", "500", b"not so"),
        ("/nothing", "404", b"nothing here"),
    ],
)
def test_what_a_handler_raises_ends_its_request_alone(path: str, status: str, text: bytes) -> None:
    with serving() as (server, handler), client_of(server) as client:
        held = start(client, "/hold")
        assert ask(client, path, b"body") == (status, text)
        reply(server, handler.held[0], b"still there")
        assert client.answer(held).data == b"still there"


def test_a_reset_closes_the_request() -> None:
    with serving() as (server, handler), client_of(server) as client:
        stream_id = start(client, "/hold")
        server.until(lambda: handler.held)
        assert handler.held[0].open
        client.connection.reset_stream(stream_id)
        client.flush()
        server.until(lambda: not handler.held[0].open)
        reply(server, handler.held[0], b"nobody reads it")
        assert ask(client, "/next") == ("200", b"/next")


def test_a_connection_that_is_lost_closes_its_requests() -> None:
    with serving() as (server, handler):
        with client_of(server) as client:
            start(client, "/hold")
            server.until(lambda: handler.held)
        server.until(lambda: not handler.held[0].open and handler.held[0].link is None)
        reply(server, handler.held[0], b"nobody reads it")


def test_what_a_handler_keeps_beyond_the_bound_ends_its_request_alone() -> None:
    with serving(Limits(max_buffered_bytes=1_000_000)) as (server, handler), client_of(server) as client:
        first, second = start(client, "/hold"), start(client, "/hold")
        server.until(lambda: len(handler.held) == 2)
        server.call(lambda: handler.held[0].hold(900_000))
        server.call(lambda: handler.held[1].hold(900_000))
        refused = client.answer(second)
        assert refused.headers[":status"] == "500"  # as this handler says it
        assert b"bytes of requests under way" in refused.data
        server.call(lambda: handler.held[0].hold(-900_000))
        reply(server, handler.held[0], b"fine")
        assert client.answer(first).data == b"fine"
        assert held_bytes(server) == 0


def test_an_answer_that_fails_in_its_middle_is_reset_and_the_others_go_on() -> None:
    with serving(Limits(max_buffered_bytes=1_000_000)) as (server, handler), client_of(server) as client:
        failed = client.answer(start(client, "/begun"))
        assert (failed.headers[":status"], failed.data, failed.reset) == ("200", b"a part", 2)  # INTERNAL_ERROR
        stream_id = start(client, "/hold")
        server.until(lambda: handler.held)
        server.call(lambda: handler.held[0].begin(200))
        server.call(lambda: handler.held[0].hold(2_000_000))
        assert client.answer(stream_id).reset == 2
        assert not handler.held[0].open
        assert ask(client, "/next") == ("200", b"/next")
        assert held_bytes(server) == 0


# --- compressed bodies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 10, 100_000, 4_000_000])
def test_compressed_bodies(size: int) -> None:
    with serving() as (server, _), client_of(server) as client:
        body = bytes(size)
        assert ask(client, "/x", gzip.compress(body), "gzip") == ("200", body or b"/x")


def test_compressed_bodies_that_are_too_large_or_broken() -> None:
    with serving() as (server, _), client_of(server) as client:
        bomb = gzip.compress(bytes(64_000_000))
        assert ask(client, "/x", bomb, "gzip") == ("413", b"the request's body has more than 4194304 bytes")
        for octets in (b"no gzip", gzip.compress(bytes(100_000))[:-10], gzip.compress(bytes(3_000_000))[:-10]):
            assert ask(client, "/x", octets, "gzip")[0] == "400"
        assert ask(client, "/x", b"x", "br")[0] == "415"
        assert ask(client, "/next") == ("200", b"/next")


def test_the_account_is_asked_before_each_piece_of_what_a_body_becomes() -> None:
    with serving(buffer_bytes=1_000_000) as (server, _), client_of(server) as client:
        status, text = ask(client, "/x", gzip.compress(bytes(4_000_000)), "gzip")
        assert (status, b"holds too much" in text) == ("503", True)
        assert server.worker.limit_hits["server_buffer"] == 1
        assert ask(client, "/x", gzip.compress(bytes(800_000)), "gzip") == ("200", bytes(800_000))
        body = random.Random(1).randbytes(400_000)  # what has come, which is counted, is not asked for again
        assert ask(client, "/x", gzip.compress(body), "gzip") == ("200", body)
        server.until(lambda: server.worker.budget.used == 0)


def test_whoever_leaves_while_a_body_is_decompressed_is_not_answered() -> None:
    with serving() as (server, _), client_of(server) as client:
        answers: list[Answer] = []
        for _ in range(20):
            stream_id = start(client, "/x", gzip.compress(bytes(4_000_000)), "gzip")
            client.connection.reset_stream(stream_id)
            client.flush()
            answers.append(client.answers[stream_id])
        assert ask(client, "/next") == ("200", b"/next")
        assert not any(answer.data for answer in answers)


# --- time ------------------------------------------------------------------------------------------------------------


def test_a_body_that_does_not_come_ends_the_connection() -> None:
    with serving(Limits(stall_timeout_s=0.3)) as (server, _), client_of(server) as client:
        stream_id = start(client, "/x", None)
        client.send(stream_id, b"a part", end=False)
        while client.receive():
            pass
        assert client.terminated is not None
        assert client.terminated.error_code == 11  # ENHANCE_YOUR_CALM


def test_an_old_connection_is_told_to_leave_and_its_requests_are_answered() -> None:
    with serving(Limits(max_age_s=0.2)) as (server, handler), client_of(server) as client:
        stream_id = start(client, "/hold")
        server.until(lambda: handler.held)
        server.until(lambda: server.worker.transports.leaving)
        reply(server, handler.held[0], b"at last")
        came = b""
        while octets := client.sock.recv(65_536):
            came += octets
        assert b"at last" in came
        assert stream_id == 1
