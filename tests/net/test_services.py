"""One worker serves connections of several protocols, by the same rules for all."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from tests.certificates import SERVER_NAME, client_context
from tests.h2grpc.frames import OPENING, message
from tests.http1.support import request
from tests.net.protocols import LARGE, ByFirstBytes, LineConnection
from tests.net.running import HOLD, BlockingClient, RawClient, Running, running
from tests.net.tls_support import server_context
from tests.waiting import PATIENCE_S
from toutates.h2grpc import Limits
from toutates.net.connection import SILENCE_S
from toutates.net.transport import Transport


@contextmanager
def serving(
    limits: Limits | None = None, *, max_connections: int = 100, tls: ssl.SSLContext | None = None
) -> Iterator[Running]:
    with running(limits, max_connections=max_connections, tls=tls, serve=ByFirstBytes) as server:
        yield server


class TextClient:
    """A client that sends bytes and reads what it expects."""

    def __init__(
        self, server: Running, start: bytes, *, tls: ssl.SSLContext | None = None, receive_buffer: int = 0
    ) -> None:
        self.sock = socket.socket()
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(("127.0.0.1", server.port))
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname=SERVER_NAME)
        self.sock.sendall(start)

    def __enter__(self) -> TextClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def expect(self, octets: bytes) -> None:
        """The next bytes from the server."""
        got = bytearray()
        while len(got) < len(octets) and (piece := self.sock.recv(len(octets) - len(got))):
            got += piece
        assert got == octets

    def rest(self) -> bytes:
        """What comes until the server closes the connection."""
        return b"".join(iter(lambda: self.sock.recv(1_048_576), b""))


def answer(body: bytes, *, last: bool = False, kept_s: int = 325) -> bytes:
    end = b"connection: close\r\n" if last else b"keep-alive: timeout=%d\r\n" % kept_s
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%b\r\n%b" % (len(body), end, body)


def lines_of(server: Running) -> list[LineConnection]:
    """Lines that the test is to answer."""
    return cast(ByFirstBytes, server.top).lines.held


def links(server: Running) -> list[Transport]:
    """Of the open connections."""
    return list(server.worker.transports.open.values())


@pytest.mark.parametrize("encrypted", [False, True], ids=["plaintext", "TLS"])
def test_three_protocols_are_served_by_one_worker_on_one_port(encrypted: bool, tmp_path: Path) -> None:
    server_tls = server_context(tmp_path) if encrypted else None
    tls = client_context() if encrypted else None
    with (
        serving(tls=server_tls) as server,
        BlockingClient(server.port, tls=tls) as grpc,
        TextClient(server, b"he", tls=tls) as lines,
        TextClient(server, request(target="/one"), tls=tls) as http,
    ):
        lines.sock.sendall(b"llo\nworld\nhold\n")
        lines.expect(b"HELLO\nWORLD\n")
        http.expect(answer(b"/one"))
        http.sock.sendall(request("POST", body=b"two") + request("PUT", body=b"three", connection="close"))
        assert http.rest() == answer(b"two") + answer(b"three", last=True)
        assert grpc.unary(b"x").messages == [b"x"]
        assert grpc.unary(b"y", "/test.Echo/Stream").messages == [b"y"]
        http.sock.close()
        server.until(lambda: server.worker.connections == 2)
        server.worker.call_soon(lambda: lines_of(server).pop().answer(b"held"))
        lines.expect(b"held\n")
        assert [state.tls for state in server.call(lambda: server.worker.connection_states(9))] == [encrypted] * 2


def test_requests_that_had_to_wait_for_answers_are_served_in_order() -> None:
    targets = [b"/%d" % number for number in range(2_000)]
    with serving() as server, TextClient(server, b"") as http:
        http.sock.sendall(b"".join(request(target=target.decode()) for target in targets))
        http.expect(b"".join(answer(target) for target in targets))


def test_drain_answers_what_has_begun_in_every_protocol() -> None:
    with (
        serving() as server,
        RawClient(server, OPENING + HOLD) as grpc,
        TextClient(server, b"hold\n") as lines,
        TextClient(server, request("POST", body=b"whole")[:-1]) as http,
        TextClient(server, b"?") as undecided,
    ):
        server.until(lambda: server.held and lines_of(server) and server.worker.connections == 4)
        server.until(lambda: all(state.received_bytes for state in server.worker.connection_states(4)))
        server.drain(PATIENCE_S)
        assert undecided.rest() == b""
        lines.expect(b"leave: server is shutting down\n")
        http.sock.sendall(b"e")
        assert http.rest() == answer(b"whole", last=True)
        server.worker.call_soon(lambda: lines_of(server).pop().answer(b"at last"))
        assert lines.rest() == b"at last\n"
        server.worker.call_soon(lambda: server.held.pop().reply(b"answered"))
        assert grpc.body() == message(b"answered")
        server.join()
        assert server.cut_off == 0


def test_limits_hold_for_every_protocol(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "toutates.net")
    with serving(max_connections=4) as server, TextClient(server, b"fine\n") as good:
        good.expect(b"FINE\n")
        with (
            TextClient(server, b"?") as silent,
            TextClient(server, b"GET / HT") as slow,
            TextClient(server, b"slow") as line,
        ):
            server.until(lambda: server.worker.connections == 4)
            with TextClient(server, b"") as one_too_many:
                assert one_too_many.rest() == b""
            server.until(lambda: sum(link.connection.awaits_request for link in links(server)) == 2)
            server.keep_house()
            server.keep_house(Limits().stall_timeout_s + 1)
            assert silent.rest() == b""
            assert slow.rest().startswith(b"HTTP/1.1 408 ")
            assert line.rest() == b""
        with TextClient(server, b"x" * 2_000) as long:
            assert long.rest() == b""
        assert "the line is too long" in caplog.text
        hits = server.worker.limit_hits
        assert (hits["handshake_timeout"], hits["stall_timeout"], hits["connections"]) == (1, 2, 1)
        good.sock.sendall(b"still\n")
        good.expect(b"STILL\n")


def test_idle_connections_of_every_protocol_are_told_to_leave() -> None:
    with serving(Limits(max_idle_s=0.2)) as server:
        with server.asleep():
            lines, http = TextClient(server, b"one\n"), TextClient(server, request())
            silent = TextClient(server, request())
        with lines, http, silent:
            assert lines.rest() == b"ONE\nleave: the connection is idle\n"
            http.expect(answer(b"/", kept_s=5))
            server.until(lambda: server.worker.limit_hits["connection_idle"] == 3)
            http.sock.sendall(request(target="/next"))
            assert http.rest() == answer(b"/next", last=True)
            server.keep_house(SILENCE_S - 1)
            assert server.worker.connections
            server.keep_house(SILENCE_S + 1)
            assert silent.rest() == answer(b"/", kept_s=5)


@pytest.mark.parametrize("encrypted", [False, True], ids=["plaintext", "TLS"])
def test_slow_reader_is_not_read_and_costs_no_neighbour(encrypted: bool, tmp_path: Path) -> None:
    count, line = 300, b"large".ljust(900)
    tls = client_context() if encrypted else None
    with (
        serving(Limits(max_unsent_bytes=65_536), tls=server_context(tmp_path) if encrypted else None) as server,
        TextClient(server, b"", tls=tls, receive_buffer=4_096) as slow,
        BlockingClient(server.port, tls=tls) as grpc,
    ):
        slow.sock.sendall((line + b"\n") * count)
        server.until(lambda: any(link.congested for link in server.worker.transports.open.values()))
        assert grpc.unary(b"x").messages == [b"x"]
        assert server.call(lambda: max(state.received_bytes for state in server.worker.connection_states(2))) < 100_000
        slow.expect((bytes(LARGE) + b"\n") * count)


def test_bug_of_a_connection_costs_that_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as server, TextClient(server, b"good\n") as neighbour, server.client() as grpc:
        neighbour.expect(b"GOOD\n")
        with TextClient(server, b"well\nbug\n") as victim:
            assert victim.rest() == b""
        neighbour.sock.sendall(b"fine\n")
        neighbour.expect(b"FINE\n")
        assert grpc.unary(b"x").messages == [b"x"]
        server.until(lambda: server.worker.connections == 2)
        assert "a bug of the line protocol" in caplog.text
