"""Clients of HTTP/1.1 that end their side behind their last request, as ``nc -N`` does.

They have left, unless the server expects such clients (``--http-half-close``): then they are answered first.
"""

from __future__ import annotations

import itertools
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.certificates import SERVER_NAME, client_context
from tests.h2grpc.frames import OPENING
from tests.http1.support import request, statuses
from tests.net.running import HOLD, RawClient, Running
from tests.net.test_http1 import reply, serving
from tests.net.test_services import TextClient, answer
from tests.net.tls_support import server_context
from tests.waiting import PATIENCE_S
from toutates.h2grpc import Limits
from toutates.net.http1.service import MAX_PIPELINED


@pytest.fixture(params=["plaintext", "TLS"])
def contexts(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """Of the server and of its clients."""
    if request.param == "plaintext":
        return None, None
    return server_context(tmp_path), client_context(alpn=("http/1.1",))


Contexts = tuple[ssl.SSLContext | None, ssl.SSLContext | None]


@contextmanager
def ended(
    server: Running, octets: bytes, context: ssl.SSLContext | None, receive_buffer: int = 0
) -> Iterator[TextClient]:
    """A client that sends no more than this. With TLS there is no close_notify, as Python's client has it."""
    with TextClient(server, octets, tls=context, receive_buffer=receive_buffer) as client:
        socket.socket.shutdown(client.sock, socket.SHUT_WR)
        yield client


def gone(server: Running) -> None:
    server.until(lambda: not server.worker.transports.open)


def test_requests_are_answered_and_then_the_connection_ends(contexts: Contexts) -> None:
    with serving(half_close=True, tls=contexts[0]) as (server, handler):
        octets = request(target="/hold") + request(target="/2") + request(target="/3")
        with ended(server, octets, contexts[1]) as client:
            server.until(lambda: handler.held)
            server.until(lambda: [one.peer_ended for one in server.worker.transports.open.values()] == [True])
            reply(server, handler.held[0], b"at last")
            assert client.rest() == answer(b"at last") + answer(b"/2") + answer(b"/3")
            gone(server)


def test_more_requests_than_may_wait_are_answered_all_the_same(contexts: Contexts) -> None:
    more = MAX_PIPELINED + 20
    octets = request(target="/hold") + request(target="/x") * more
    with serving(half_close=True, tls=contexts[0]) as (server, handler), ended(server, octets, contexts[1]) as client:
        server.until(lambda: handler.held)
        reply(server, handler.held[0], b"first")
        assert statuses(client.rest()) == [200] * (more + 1)
        gone(server)


@pytest.mark.parametrize("start", [b"GET /a HT", request("POST", body=b"whole")[:-1]], ids=["head", "body"])
def test_a_request_that_is_not_whole_is_told_so(contexts: Contexts, start: bytes) -> None:
    with (
        serving(half_close=True, tls=contexts[0]) as (server, _),
        ended(server, request(target="/a") + start, contexts[1]) as client,
    ):
        text = client.rest()
        assert statuses(text) == [200, 400]
        assert b"the request ends too early" in text
        gone(server)


@pytest.mark.parametrize("octets", [b"", b"GET", request(target="/a")], ids=["nothing", "no head", "idle"])
def test_one_that_waits_for_nothing_is_closed_at_once(contexts: Contexts, octets: bytes) -> None:
    with (
        serving(half_close=True, tls=contexts[0]) as (server, _),
        TextClient(server, octets, tls=contexts[1]) as client,
    ):
        if octets.endswith(b"\r\n\r\n"):
            client.expect(answer(b"/a"))
        socket.socket.shutdown(client.sock, socket.SHUT_WR)
        gone(server)  # it lingers for nobody
        assert client.rest() == b""


def test_a_large_answer_reaches_a_slow_reader_whole(contexts: Contexts) -> None:
    body = b"x" * 1_048_576
    with (
        serving(half_close=True, tls=contexts[0]) as (server, _),
        ended(server, request("POST", body=body), contexts[1], 4_096) as client,
    ):
        assert client.rest().endswith(b"\r\n\r\n" + body)
        gone(server)


def test_one_that_reads_nothing_is_not_waited_for_forever(contexts: Contexts) -> None:
    body = b"x" * 1_048_576
    with (
        serving(half_close=True, tls=contexts[0]) as (server, _),
        ended(server, request("POST", body=body) * 8, contexts[1], 4_096),
    ):
        server.until(lambda: any(one.unsent_bytes for one in server.worker.transports.open.values()))
        for times in itertools.count():  # until one in which it has read nothing
            server.keep_house(times * Limits().stall_timeout_s)
            if not server.worker.transports.open:
                break
        assert server.worker.limit_hits["stall_timeout"] == 1


def test_one_that_has_left_for_good_is_let_go_of_with_its_first_answer() -> None:
    with serving(half_close=True) as (server, handler):
        with ended(server, request(target="/hold") * 3, None):
            server.until(lambda: len(handler.held) == 3)
        server.rounds()
        reply(server, handler.held[0], b"to nobody")  # which its system answers with a reset
        gone(server)
        assert not any(call.open for call in handler.held)


def test_a_reset_behind_the_end_is_noticed() -> None:
    with serving(half_close=True) as (server, handler):
        with ended(server, request(target="/hold"), None) as client:
            server.until(lambda: handler.held)
            server.rounds()
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone(server)
        assert not handler.held[0].open


def test_its_socket_is_not_asked_in_each_round_though_it_is_ready_for_good() -> None:
    with serving(half_close=True) as (server, handler), ended(server, request(target="/hold"), None):
        server.until(lambda: handler.held)
        server.until(lambda: [one.peer_ended for one in server.worker.transports.open.values()] == [True])
        assert server.call(lambda: server.worker._epoll.poll(0)) == []
        reply(server, handler.held[0], b"done")
        gone(server)


def test_a_drain_waits_for_its_answer() -> None:
    with serving(half_close=True) as (server, handler), ended(server, request(target="/hold"), None) as client:
        server.until(lambda: handler.held)
        server.rounds()
        server.worker.call_soon(lambda: server.worker.drain(10))
        server.rounds()
        reply(server, handler.held[0], b"done")
        assert client.rest() == answer(b"done", last=True)


def test_what_a_peer_has_asked_for_that_ends_its_side_is_over(contexts: Contexts) -> None:
    with serving(tls=contexts[0]) as (server, handler):
        octets = request(target="/hold") + request(target="/2") + request(target="/hold")
        with ended(server, octets, contexts[1]) as client:
            server.until(lambda: len(handler.held) == 2)
            gone(server)
            assert not any(call.open for call in handler.held)
            assert client.rest() == b""
            reply(server, handler.held[0], b"to nobody")
            server.rounds()


def test_so_are_requests_that_wait_to_be_read(contexts: Contexts) -> None:
    octets = request(target="/hold") * (MAX_PIPELINED + 20)
    with serving(tls=contexts[0]) as (server, handler), ended(server, octets, contexts[1]):
        server.until(lambda: handler.held)
        gone(server)
        assert len(handler.held) <= MAX_PIPELINED
        assert not any(call.open for call in handler.held)


def test_complete_answers_reach_one_that_ends_its_side(contexts: Contexts) -> None:
    body = b"x" * 1_048_576
    with (
        serving(Limits(max_unsent_bytes=16_777_216), tls=contexts[0]) as (server, handler),
        TextClient(server, request("POST", body=body) * 8, tls=contexts[1], receive_buffer=4_096) as client,
    ):
        server.until(lambda: any(one.unsent_bytes for one in server.worker.transports.open.values()))
        client.sock.sendall(request(target="/hold"))
        server.until(lambda: handler.held)
        socket.socket.shutdown(client.sock, socket.SHUT_WR)
        server.until(lambda: not handler.held[0].open)
        assert statuses(client.rest()) == [200] * 8
        gone(server)


def test_close_notify_in_the_read_of_the_requests_is_such_an_end(tmp_path: Path) -> None:
    with serving(half_close=True, tls=server_context(tmp_path)) as (server, handler):
        sock = socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = client_context(alpn=("http/1.1",)).wrap_bio(incoming, outgoing, server_hostname=SERVER_NAME)
        with sock:
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    sock.sendall(outgoing.read())
                    incoming.write(sock.recv(65_536))
            tls.write(request(target="/hold") + request(target="/2"))
            with pytest.raises(ssl.SSLWantReadError):
                tls.unwrap()
            sock.sendall(outgoing.read())
            server.until(lambda: handler.held)
            server.rounds()
            reply(server, handler.held[0], b"late")
            # This client's OpenSSL does not read any more, so that what comes is counted.
            received = len(b"".join(iter(lambda: sock.recv(65_536), b"")))
            assert received > len(answer(b"late") + answer(b"/2"))
        gone(server)


def test_a_peer_of_grpc_that_ends_its_side_has_left() -> None:
    with serving() as (server, _), RawClient(server, OPENING + HOLD) as client:
        server.until(lambda: server.held)
        client.sock.shutdown(socket.SHUT_WR)
        gone(server)
        assert not server.held[0].open


@pytest.mark.parametrize("resets", [False, True])
def test_what_a_peer_of_grpc_sent_that_has_left_meanwhile_is_not_read(resets: bool) -> None:
    with serving() as (server, _), RawClient(server, OPENING + HOLD):
        server.until(lambda: server.held)
        with server.asleep(), RawClient(server, OPENING + HOLD) as client:
            if resets:
                client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.until(lambda: len(server.worker.transports.open) == 1)
        server.rounds()
        assert len(server.held) == 1
