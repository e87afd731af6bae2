"""The health check from outside, against our own worker and against what is no gRPC server at all."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import trio

from tests.ports import dead_port
from toutates.command.probe import probe
from toutates.h2grpc import Call, Limits, Method, Status, method_table
from toutates.net import GrpcService, Listening, Worker
from toutates.protocol.health_pb2 import HealthCheckResponse
from toutates.system.address import Address

CHECK = "/grpc.health.v1.Health/Check"
SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING


def address_of(sock: socket.socket) -> Address:
    host, port = sock.getsockname()[:2]
    return Address(host, port)


@contextmanager
def worker_with(*methods: Method) -> Iterator[Address]:
    """A worker of ours in a thread, for the length of a block."""
    worker = Worker("worker", Limits())
    service = GrpcService(worker, method_table(list(methods)))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        thread = threading.Thread(target=trio.run, args=(worker.run, Listening(listener, service)))
        thread.start()
        try:
            yield address_of(listener)
        finally:
            worker.call_soon(partial(worker.drain, 0))
            thread.join()


@contextmanager
def server_that(serve: Callable[[socket.socket], None]) -> Iterator[Address]:
    """A server of one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            sock, _ = listener.accept()
            with sock:
                serve(sock)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield address_of(listener)
        finally:
            thread.join()


def assert_set(done: threading.Event) -> None:
    assert done.wait(120)


def answering(message: bytes) -> Method:
    return Method(CHECK, unary=lambda call: call.reply(message))


@pytest.mark.parametrize(("status", "healthy"), [(SERVING, True), (NOT_SERVING, False)])
def test_the_servers_answer_is_the_probes(status: HealthCheckResponse.ServingStatus, healthy: bool) -> None:
    with worker_with(answering(HealthCheckResponse(status=status).SerializeToString())) as address:
        found = probe(address, 10)
    assert found == (healthy, f"{address}: {HealthCheckResponse.ServingStatus.Name(status)}")


@pytest.mark.parametrize("message", [b"\xff", b"\x08\x63"], ids=["no message", "no such status"])
def test_an_answer_that_cannot_be_read_is_not_healthy(message: bytes) -> None:
    with worker_with(answering(message)) as address:
        assert probe(address, 10) == (False, f"{address}: the health check's answer cannot be read")


def test_a_server_without_health_service_is_said_to_have_none() -> None:
    with worker_with() as address:
        healthy, text = probe(address, 10)
    assert not healthy
    assert "health check failed: " in text


def test_an_error_of_the_service_is_shown() -> None:
    def fail(call: Call) -> None:
        call.fail(Status.UNAVAILABLE, "no disk")

    with worker_with(Method(CHECK, unary=fail)) as address:
        assert probe(address, 10) == (False, f"{address}: the health check failed: no disk")


def test_a_dead_port_is_refused() -> None:
    with dead_port() as port:
        address = Address("127.0.0.1", port)
        assert probe(address, 10) == (False, f"{address}: Connection refused")


def test_a_host_that_does_not_exist_is_said_so() -> None:
    healthy, text = probe(Address("no-such-host.invalid", 1), 10)
    assert not healthy
    assert text.startswith("no-such-host.invalid:1: ")


def test_an_http_1_server_is_no_grpc_server() -> None:
    def serve(sock: socket.socket) -> None:
        sock.recv(65_536)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        sock.recv(65_536)

    with server_that(serve) as address:
        assert probe(address, 10) == (False, f"{address}: this is no gRPC server")


def test_a_server_that_closes_the_connection_is_said_to() -> None:
    def serve(sock: socket.socket) -> None:
        sock.recv(65_536)

    with server_that(serve) as address:
        assert probe(address, 10) == (
            False,
            f"{address}: the server closed the connection at once; if it speaks TLS, add --tls",
        )


def test_a_silent_server_costs_no_more_than_the_timeout() -> None:
    done = threading.Event()
    with server_that(lambda sock: assert_set(done)) as address:
        found = probe(address, 0.1)
        done.set()
    assert found == (False, f"{address}: no answer within 0.1 s")


def test_a_server_that_trickles_costs_no_more_than_the_timeout() -> None:
    done = threading.Event()

    def serve(sock: socket.socket) -> None:
        # PINGs without an end, each one an answer to the socket and none to the call.
        sock.sendall(b"\0\0\0\x04\0\0\0\0\0")
        while not done.wait(0.02):
            sock.sendall(b"\0\0\x08\x06\0\0\0\0\0" + bytes(8))

    with server_that(serve) as address:
        found = probe(address, 0.2)
        done.set()
    assert found == (False, f"{address}: no answer within 0.2 s")
