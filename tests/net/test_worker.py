"""A worker over real sockets."""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest
import trio
import trio.testing

from tests.h2grpc.frames import (
    ACK,
    DATA,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    OPENING,
    PING,
    PREFACE,
    SETTINGS,
    STREAM,
    STREAM_BLOCK,
    block,
    data,
    frame,
    headers,
    message,
    parse,
    request,
    rst_stream,
    settings,
    unary,
)
from tests.net.running import HOLD, HOUR_S, WIDE, RawClient, Running, running
from tests.waiting import PATIENCE_S, wait_until
from toutates.h2grpc import Call, GrpcError, Limits, Method, Status, method_table
from toutates.h2grpc.stream import NEVER
from toutates.net import GrpcService, Listening, ServerStream, Worker
from toutates.net.worker import LINGER_S, MOST_INLINE_NS
from toutates.system.inline_time import INLINE_TIME, NO_BOUND_NS


def reset(sock: socket.socket) -> None:
    """Close a socket the hard way: the peer gets a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def read_all(sock: socket.socket) -> bytes:
    pieces = []
    while piece := sock.recv(65_536):
        pieces.append(piece)
    return b"".join(pieces)


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)


# --- requests --------------------------------------------------------------------------------------------------------


def test_worker_answers_unary_calls() -> None:
    with running() as server, server.client() as client:
        for body in (b"", b"hello", bytes(100_000)):
            response = client.unary(body)
            assert (response.messages, response.status) == ([body], 0)


def test_worker_answers_many_connections_at_once() -> None:
    with running() as server:
        clients = [server.client() for _ in range(60)]
        for _ in range(3):
            waiting = [(client, client.start(b"%d" % n)) for n, client in enumerate(clients)]
            for number, (client, response) in enumerate(waiting):
                assert client.wait(response).messages == [b"%d" % number]
        assert server.call(lambda: server.worker.connections) == 60
        for client in clients:
            client.close()
        server.until(lambda: server.worker.connections == 0)


def test_worker_passes_ten_megabytes_through_windows_of_64_kib() -> None:
    """Each window takes turns of threads, which are slow beside others: a hundred megabytes would take a minute."""
    limits = Limits(stream_window=65_535, connection_window=65_535)
    body = bytes(range(250)) * 40_000
    with running(limits) as server, socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as sock:
        # The h2 client's own cost would be seconds; frames packed by hand, with credit for each byte, are quick.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        octets = memoryview(message(body))
        credit = {0: 65_535, 1: 65_535}
        more = threading.Condition()
        received = bytearray()

        def read() -> None:
            held = b""
            while True:
                held += sock.recv(1_048_576)
                at = 0
                size = 0
                while len(held) - at >= 9:
                    length = int.from_bytes(held[at : at + 3], "big")
                    if len(held) - at < 9 + length:
                        break
                    kind, flags, stream_id = struct.unpack_from(">BBI", held, at + 3)
                    payload = held[at + 9 : at + 9 + length]
                    at += 9 + length
                    if kind == 8:
                        with more:
                            credit[stream_id] += int.from_bytes(payload, "big")
                            more.notify()
                    elif kind == 0:
                        received.extend(payload)
                        size += length
                    elif kind == 1 and flags & 1:
                        return
                held = held[at:]
                if size:
                    update = struct.pack(">I", size)
                    sock.sendall(b"\0\0\4\10\0\0\0\0\0" + update + b"\0\0\4\10\0\0\0\0\1" + update)

        reader = threading.Thread(target=read)
        reader.start()
        sock.sendall(OPENING + unary(1)[: -len(data(1, message(b"hello")))])
        at = 0
        while at < len(octets):
            with more:
                assert more.wait_for(lambda: min(credit.values()) > 0, PATIENCE_S)
                size = min(*credit.values(), 16_384, len(octets) - at)
                for stream_id in credit:
                    credit[stream_id] -= size
            last = at + size == len(octets)
            sock.sendall(data(1, bytes(octets[at : at + size]), 1 if last else 0))
            at += size
        reader.join(PATIENCE_S)
        assert not reader.is_alive()
        assert received == octets


def test_worker_compresses_responses_where_client_and_method_agree() -> None:
    with running(response_encoding="gzip") as server, server.client() as client:
        accept = ("grpc-accept-encoding", "identity,gzip")
        response = client.unary(bytes(10_000), "/test.Echo/Compressible", accept)
        assert response.headers[b"grpc-encoding"] == b"gzip"
        assert len(response.data) < 1_000
        assert b"grpc-encoding" not in client.unary(bytes(10_000), "/test.Echo/Unary", accept).headers


def test_worker_answers_http1_with_a_text_also_when_the_request_has_a_large_body() -> None:
    with running() as server:
        for body in (b"", bytes(3_000_000)):
            with connect(server) as sock:
                sock.sendall(b"POST /v2/health HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body))
                server.until(lambda: server.worker.transports.closing)
                sock.sendall(body)
                answer = read_all(sock)
                assert answer.startswith(b"HTTP/1.1 400 ")
                assert answer.endswith(b"not HTTP/1.\n")


def test_worker_sends_its_goodbye_to_a_peer_that_breaks_the_protocol_and_keeps_talking() -> None:
    with running() as server, connect(server) as sock:
        sock.sendall(OPENING + data(0))
        for _ in range(20):
            sock.sendall(unary(1, bytes(30_000)))
        frames = parse(read_all(sock))
        assert (frames[-1].type, frames[-1].code) == (GOAWAY, 1)


# --- handlers --------------------------------------------------------------------------------------------------------


def test_failing_handler_is_internal_and_says_nothing_to_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    with running() as server, server.client() as client:
        response = client.unary(b"", "/test.Echo/Raise")
        assert (response.status, response.text) == (Status.INTERNAL, "internal error")
        assert "not for the caller's eyes" in caplog.text
        response = client.unary(b"", "/test.Echo/RaiseGrpc")
        assert (response.status, response.text, response.headers[b"x-why"]) == (5, "no such thing", b"because")
        assert client.unary(b"still there").messages == [b"still there"]


def _bad_metadata(call: Call) -> None:
    raise GrpcError(Status.NOT_FOUND, "text", [("Bad Name", "x")])


def _bad_answer(call: Call) -> None:
    call.reply(b"", [("x-a", "\n")])


async def _bad_stream(stream: ServerStream) -> None:
    raise GrpcError(Status.NOT_FOUND, "text", [("bad-bin", "x")])


def test_handlers_mistake_in_metadata_is_internal_and_leaves_the_worker_alive() -> None:
    more = [
        Method("/test.Bad/Error", unary=_bad_metadata),
        Method("/test.Bad/Answer", unary=_bad_answer),
        Method("/test.Bad/Stream", stream=_bad_stream),
    ]
    with running(None, *more) as server, server.client() as client:
        for name in ("Error", "Answer", "Stream"):
            assert client.unary(b"", f"/test.Bad/{name}").status == Status.INTERNAL


def test_call_may_be_answered_later_from_another_thread() -> None:
    with running() as server, server.client() as client:
        response = client.start(b"question", "/test.Echo/Hold")
        server.until(lambda: server.held)
        (call,) = server.held
        server.worker.call_soon(lambda: call.reply(b"answer"))
        assert client.wait(response).messages == [b"answer"]


def test_call_whose_client_has_left_is_answered_in_silence() -> None:
    with running() as server:
        for leave in (lambda c: c.sock.close(), lambda c: reset(c.sock)):
            client = server.client()
            client.start(b"", "/test.Echo/Hold")
            server.until(lambda: server.held)
            leave(client)
            client.close()
            server.until(lambda: server.worker.connections == 0)
            call = server.held.pop()
            assert not call.open
            server.call(lambda call=call: call.reply(b"late"))  # type: ignore[misc]


def test_client_that_leaves_in_the_middle_of_a_request_leaves_nothing_behind() -> None:
    with running() as server:
        for end in (30, 100, len(OPENING + unary(1)) - 1):
            with connect(server) as sock:
                sock.sendall((OPENING + unary(1))[:end])
        server.until(lambda: server.worker.connections == 0)


def test_round_end_runs_once_for_all_requests_of_a_round_and_before_their_answers_are_sent() -> None:
    rounds: list[int] = []
    waiting: list[Call] = []

    def answer() -> None:
        rounds.append(len(waiting))
        while waiting:
            waiting.pop().reply(b"")

    def batch(call: Call) -> None:
        waiting.append(call)
        if len(waiting) == 1:
            server.worker.at_round_end(answer)

    with running(None, Method("/test.Echo/Batch", unary=batch)) as server, server.client() as client:
        streams = [client.client.unary(b"", "/test.Echo/Batch") for _ in range(20)]
        client.flush()
        for stream_id in streams:
            client.wait(client.client.responses[stream_id])
        assert sum(rounds) == 20
        assert max(rounds) > 1


def test_each_round_has_time_for_inline_runs_and_all_callbacks_of_a_round_share_it() -> None:
    left: list[int] = []

    def spend() -> None:
        left.append(INLINE_TIME.left_ns)
        INLINE_TIME.left_ns -= 1

    def twice(call: Call) -> None:
        spend()
        server.worker.at_round_end(spend)
        call.reply(b"")

    with running(None, Method("/test.Echo/Twice", unary=twice)) as server, server.client() as client:
        for _ in range(3):
            client.unary(b"", "/test.Echo/Twice")
    assert left == [MOST_INLINE_NS, MOST_INLINE_NS - 1] * 3


def test_callbacks_that_a_rounds_end_has_no_time_for_run_in_order_in_the_next_rounds_without_more_time_for_inline_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toutates.net.worker.ROUND_END_NS", 0)
    ran: list[tuple[int, int]] = []
    rounds: list[int] = []
    left: list[int] = []
    over = threading.Event()

    def callback(number: int) -> None:
        ran.append((number, INLINE_TIME.left_ns))
        rounds.append(server.worker.now_ns)
        INLINE_TIME.left_ns -= 1
        if number == 0:
            server.worker.at_round_end(partial(callback, 5))
        if number == 5:
            over.set()

    def ask(call: Call) -> None:
        for number in range(5):
            server.worker.at_round_end(partial(callback, number))
        call.reply(b"")

    def look(call: Call) -> None:
        left.append(INLINE_TIME.left_ns)
        call.reply(b"")

    methods = Method("/test.Echo/Ask", unary=ask), Method("/test.Echo/Look", unary=look)
    with running(None, *methods) as server, server.client() as client:
        client.unary(b"", "/test.Echo/Ask")
        assert over.wait(PATIENCE_S)  # nothing else has to wake the worker
        client.unary(b"", "/test.Echo/Look")
    assert ran == [(number, MOST_INLINE_NS - number) for number in range(6)]
    assert len(set(rounds)) == 6
    assert left == [MOST_INLINE_NS]


def test_nothing_is_left_of_a_rounds_end_whose_last_callback_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toutates.net.worker.ROUND_END_NS", 10_000_000)
    left: list[int] = []

    def take_long() -> None:
        until_ns = time.monotonic_ns() + 10_000_000
        while time.monotonic_ns() < until_ns:
            pass

    def ask(call: Call) -> None:
        left.append(INLINE_TIME.left_ns)
        INLINE_TIME.left_ns = 0
        server.worker.at_round_end(partial(call.reply, b""))
        server.worker.at_round_end(take_long)

    with running(None, Method("/test.Echo/Ask", unary=ask)) as server, server.client() as client:
        for _ in range(3):
            client.unary(b"", "/test.Echo/Ask")
    assert left == [MOST_INLINE_NS] * 3


def test_callbacks_run_in_one_round_where_its_end_has_time_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toutates.net.worker.ROUND_END_NS", 10**12)
    rounds: list[int] = []

    def ask(call: Call) -> None:
        for _ in range(100):
            server.worker.at_round_end(lambda: rounds.append(server.worker.now_ns))
        server.worker.at_round_end(partial(call.reply, b""))

    with running(None, Method("/test.Echo/Ask", unary=ask)) as server, server.client() as client:
        client.unary(b"", "/test.Echo/Ask")
    assert len(rounds) == 100
    assert len(set(rounds)) == 1


def test_failing_callbacks_leave_the_worker_alive(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("callback's fault")

    with running() as server, server.client() as client:
        server.worker.call_soon(fail)
        server.call(lambda: server.worker.at_round_end(fail))
        assert client.unary(b"x").messages == [b"x"]
        assert caplog.text.count("callback failed") == 2


def test_what_is_asked_for_at_the_end_of_rounds_is_done_before_the_worker_closes() -> None:
    left = [20_000]

    def go_on() -> None:
        left[0] -= 1
        if left[0]:
            server.worker.at_round_end(go_on)

    def begin() -> None:
        go_on()
        server.worker.drain(0.0)

    with running() as server:
        server.worker.call_soon(begin)
    assert left == [0]


# --- deadlines -------------------------------------------------------------------------------------------------------


def test_call_nobody_answers_expires() -> None:
    with running() as server, server.client() as client:
        started = time.monotonic()
        late = client.start(b"", "/test.Echo/Hold", ("grpc-timeout", "120m"))
        soon = client.unary(b"", "/test.Echo/Hold", ("grpc-timeout", "30m"))
        assert (soon.status, soon.text) == (Status.DEADLINE_EXCEEDED, "Deadline Exceeded")
        assert time.monotonic() - started >= 0.03
        assert client.wait(late).status == Status.DEADLINE_EXCEEDED
        assert time.monotonic() - started >= 0.12
        server.until(lambda: not server.worker.transports.timed)


def test_a_worker_that_was_kept_from_the_cpu_wakes_up_for_the_next_deadline_all_the_same() -> None:
    with running() as server, server.client() as client:
        held = client.start(b"", "/test.Echo/Hold", ("grpc-timeout", "20S"))
        server.until(lambda: server.held)

        def sleep_of_the_worker() -> int:
            server.worker.schedule.next_ns = NEVER
            server.worker.deadlines.tick(time.monotonic_ns() - 10**9)  # as if this took a second
            return server.worker.schedule.next_ns - time.monotonic_ns()

        assert server.call(sleep_of_the_worker) <= 20 * 10**9
        server.expire()
        assert client.wait(held).status == Status.DEADLINE_EXCEEDED


def test_deadlines_of_many_connections_cost_little() -> None:
    with running() as server:
        clients = [server.client() for _ in range(80)]
        waiting = []
        for number, client in enumerate(clients):
            waiting.append(client.start(b"", "/test.Echo/Hold", ("grpc-timeout", f"{20 + number}m")))
        for client, response in zip(clients, waiting, strict=True):
            assert client.wait(response).status == Status.DEADLINE_EXCEEDED
            client.close()


def test_connection_that_ends_with_calls_that_have_deadlines_is_forgotten() -> None:
    with running() as server, connect(server) as sock:
        sock.sendall(OPENING + headers(1, block(request(STREAM, ("grpc-timeout", "100H")))) + data(0))
        read_all(sock)
        server.until(lambda: server.worker.connections == 0)
        assert not server.call(lambda: server.worker.transports.timed)


# --- limits ----------------------------------------------------------------------------------------------------------


def test_connections_above_the_limit_are_turned_away_and_those_below_it_are_not() -> None:
    with running(max_connections=2) as server:
        clients = [server.client(), server.client()]
        for client in clients:
            assert client.unary(b"in").messages == [b"in"]
        for _ in range(3):
            with connect(server) as sock:
                frames = parse(read_all(sock))
                assert [frames[0].type, frames[-1].type] == [SETTINGS, GOAWAY]
                assert b"too many connections" in frames[-1].payload
        clients.pop().close()
        server.until(lambda: server.worker.connections == 1)
        with server.client() as client:
            assert client.unary(b"in").messages == [b"in"]
        clients.pop().close()


def test_refused_connections_that_linger_do_not_count() -> None:
    with running(max_connections=1) as server:
        client = server.client()
        client.unary(b"")
        refused = [connect(server) for _ in range(3)]
        server.until(lambda: server.worker.connections == 4)
        client.close()
        server.until(lambda: server.worker.connections == 3)
        with server.client() as client:
            assert client.unary(b"in").messages == [b"in"]
        for sock in refused:
            sock.close()


def test_closing_connection_is_dropped_when_its_peer_lingers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toutates.net.closing.CLOSE_LINGER_NS", 20_000_000)
    with running() as server, connect(server) as sock:
        sock.sendall(OPENING)
        server.until(lambda: server.worker.connections == 1)
        sock.sendall(data(0))
        server.until(lambda: server.worker.connections == 0)


def test_worker_stops_reading_a_peer_that_reads_too_slowly_and_goes_on_once_it_reads() -> None:
    limits = Limits(max_unsent_bytes=100_000, connection_window=2**31 - 1)
    count = 1_000
    requests = b"".join(unary(n, bytes(30_000)) for n in range(1, 2 * count, 2))
    with running(limits) as server, RawClient(server, WIDE, receive_buffer=10_000) as client:
        sender = threading.Thread(target=client.send, args=(requests,))
        sender.start()
        server.until(lambda: server.worker.transports.open)
        (transport,) = server.call(lambda: list(server.worker.transports.open.values()))
        server.until(lambda: transport.congested)
        server.rounds()
        assert sender.is_alive(), "the worker should have stopped reading"
        assert transport.congested
        assert transport.unsent_bytes < 5_000_000
        with server.client() as other:
            assert other.unary(b"others are served").messages == [b"others are served"]
        for _ in range(count):
            assert len(client.until(DATA).payload) == 30_005
        sender.join(PATIENCE_S)
        assert not sender.is_alive()
        server.until(lambda: not transport.congested)


def test_accepting_pauses_when_there_are_no_file_descriptors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("toutates.net.accepting.ACCEPT_PAUSE_NS", 20_000_000)
    faults = [errno.EMFILE, errno.ENFILE, errno.ECONNABORTED]
    attempts: list[float] = []

    class Listener(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            attempts.append(time.monotonic())
            if faults:
                raise OSError(faults.pop(0), "no more")
            return super().accept()

    with running() as server, server.client() as client:
        client.unary(b"")

        def swap() -> None:
            acceptor = server.worker.acceptor
            _, old = acceptor.listeners.popitem()
            acceptor.epoll.unregister(old.socket.fileno())
            acceptor.listen(Listening(Listener(fileno=old.socket.detach()), old.service))

        server.call(swap)
        with server.client() as other:
            assert other.unary(b"in the end").messages == [b"in the end"]
        assert caplog.text.count("accepting pauses") == 2
        assert attempts[1] - attempts[0] >= 0.02
        assert attempts[2] - attempts[1] >= 0.02


def test_descriptors_that_are_kept_back_are_no_connections(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("toutates.net.accepting.ACCEPT_PAUSE_NS", 20_000_000)
    with running() as server, server.client() as client:
        client.unary(b"")
        acceptor = server.worker.acceptor
        server.call(lambda: setattr(acceptor, "most_fd", 0))
        with connect(server) as sock:
            assert read_all(sock) == b""
        assert client.unary(b"those that are there go on").messages
        server.call(lambda: setattr(acceptor, "most_fd", 2**31))
        with server.client() as other:
            assert other.unary(b"in the end").messages == [b"in the end"]
        assert server.worker.limit_hits["file_descriptors"] == 1
        assert "the file descriptors that are left are kept back" in caplog.text


def test_connection_that_the_system_cannot_watch_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with running() as server:
        monkeypatch.setattr("toutates.net.worker.Transport", refuse)
        with connect(server) as sock:
            assert read_all(sock) == b""
        monkeypatch.undo()
        with server.client() as client:
            assert client.unary(b"in").messages == [b"in"]


# --- the end ---------------------------------------------------------------------------------------------------------


def test_drain_stops_accepting_says_goodbye_and_answers_what_is_under_way() -> None:
    with running() as server, RawClient(server) as client:
        client.send(HOLD)
        server.until(lambda: server.held)
        server.drain(HOUR_S)
        assert client.until(GOAWAY).payload[:4] == b"\x7f\xff\xff\xff"
        with pytest.raises(ConnectionRefusedError):
            connect(server)
        client.send(unary(3))  # crossed the GOAWAY
        client.send(frame(PING, ACK, 0, client.until(PING).payload))
        assert client.until(GOAWAY).payload[:4] == b"\0\0\0\3"
        client.send(unary(5))  # too late
        server.worker.call_soon(lambda: server.held[0].reply(b"answer"))
        frames = [one for one in client if one.type in (DATA, HEADERS)]
        assert [one.stream_id for one in frames if one.flags & END_STREAM] in ([1], [3, 1])
        server.join()
        assert server.cut_off == 0


def test_drain_is_complete_at_once_when_nobody_is_connected() -> None:
    with running() as server:
        server.drain(HOUR_S)
        server.join()


def test_drain_does_not_wait_for_peers_that_are_idle_or_silent() -> None:
    with running() as server:
        with RawClient(server) as idle, RawClient(server, b"") as silent, RawClient(server, OPENING[:10]) as half:
            server.until(lambda: server.worker.connections == 3)
            server.drain(1.0)
            for client in (idle, silent, half):
                frames = list(client)
                assert frames[0].type == SETTINGS
                assert frames[-1].type == GOAWAY
        server.join()
        assert server.cut_off == 0


def test_drain_ends_when_the_last_call_is_cancelled() -> None:
    with running() as server, RawClient(server) as client:
        client.send(HOLD)
        server.until(lambda: server.held)
        server.drain(HOUR_S)
        client.send(frame(PING, ACK, 0, client.until(PING).payload))
        client.until(GOAWAY)
        client.send(rst_stream(1))
        assert list(client) == []
        server.join()
        assert server.cut_off == 0


def test_drain_counts_the_calls_it_cuts_off_after_the_grace() -> None:
    with running() as server, server.client() as client:
        for _ in range(3):
            client.start(b"", "/test.Echo/Hold")
        stream_id = client.client.open("/test.Echo/Stream")
        client.flush()
        server.until(lambda: len(server.held) == 3 and server.service.streams)
        started = time.monotonic()
        server.drain(0.2)
        server.drain(HOUR_S)
        server.join()
        assert time.monotonic() - started >= 0.2
        assert server.cut_off == 4
        assert server.streams_ended == ["cancelled"]
        assert not any(call.open for call in server.held)
        assert stream_id


def test_drain_may_be_cut_short() -> None:
    with running() as server, RawClient(server) as client:
        client.send(HOLD)
        server.until(lambda: server.held)
        server.drain(HOUR_S)
        client.until(GOAWAY)
        server.drain(0.0)
        server.join()
        assert server.cut_off == 1


def test_drain_lets_a_streaming_call_finish() -> None:
    with running() as server, RawClient(server) as client:
        client.send(headers(1, STREAM_BLOCK) + data(1, message(b"one")))
        assert client.until(DATA).payload == message(b"one")
        server.drain(HOUR_S)
        client.send(frame(PING, ACK, 0, client.until(PING).payload))
        client.until(GOAWAY)
        client.send(data(1, message(b"two"), END_STREAM))
        assert client.body() == message(b"two")
        server.join()
        assert (server.cut_off, server.streams_ended) == (0, ["finished"])


def test_drain_sends_a_large_answer_to_a_slow_reader_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toutates.net.closing.CLOSE_LINGER_NS", 50_000_000)
    with running() as server, RawClient(server, WIDE, receive_buffer=10_000) as client:
        client.send(HOLD)
        server.until(lambda: server.held)
        server.drain(HOUR_S)
        client.send(frame(PING, ACK, 0, client.until(PING).payload))
        server.worker.call_soon(lambda: server.held[0].reply(bytes(30_000_000)))
        (transport,) = server.worker.transports.open.values()
        server.until(lambda: transport.unsent)
        # longer than a closing connection may linger
        server.call(lambda: server.worker.closing.tick(time.monotonic_ns() + 200_000_000))
        assert client.body() == message(bytes(30_000_000))
        server.join()
        assert server.cut_off == 0


def test_drain_may_be_asked_for_by_a_task_while_the_worker_sleeps() -> None:
    async def main() -> int:
        worker = Worker("test", Limits())
        service = GrpcService(worker, {})
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        results: list[int] = []

        async def run() -> None:
            results.append(await worker.run(Listening(listener, service)))

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                await trio.testing.wait_all_tasks_blocked()
                worker.drain(HOUR_S)
        return results[0]

    assert trio.run(main) == 0


def test_cancelled_worker_closes_everything() -> None:
    before = len(os.listdir("/proc/self/fd"))
    ended: list[str] = []
    streaming, holding = trio.Event(), trio.Event()

    async def stream_handler(stream: ServerStream) -> None:
        streaming.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.append("stream")

    held: list[Call] = []

    def hold(call: Call) -> None:
        held.append(call)
        holding.set()

    worker = Worker("test", Limits())
    methods = [Method("/test.Echo/Stream", stream=stream_handler), Method("/test.Echo/Unary", unary=hold)]
    service = GrpcService(worker, method_table(methods))
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    port = listener.getsockname()[1]

    async def main() -> None:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                await nursery.start(worker.run, Listening(listener, service))
                client = await trio.open_tcp_stream("127.0.0.1", port)
                await client.send_all(OPENING + headers(1, STREAM_BLOCK) + unary(3))
                await streaming.wait()
                await holding.wait()
                nursery.cancel_scope.cancel()
            await client.aclose()

    trio.run(main)
    assert INLINE_TIME.left_ns == NO_BOUND_NS  # this thread has no rounds any more
    assert ended == ["stream"]
    assert not held[0].open
    assert not worker.transports.open
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)  # free-threaded Python closes some a moment later
    held[0].reply(b"late")
    worker.call_soon(lambda: ended.append("never"))
    assert ended == ["stream"]


# --- call_soon -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("linger_s", [0.0, LINGER_S], ids=["asleep in Trio", "lingering"])
def test_callback_wakes_a_sleeping_worker_every_time(linger_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toutates.net.worker.LINGER_S", linger_s)
    with running() as server:
        for number in range(1_500):
            done = threading.Event()
            server.worker.call_soon(done.set)
            assert done.wait(PATIENCE_S), f"callback {number} was slept through"


def test_callbacks_of_many_threads_all_run_in_the_order_of_each_thread() -> None:
    with running() as server:
        ran: list[tuple[int, int]] = []

        def thread(name: int) -> None:
            for number in range(2_000):
                server.worker.call_soon(lambda number=number: ran.append((name, number)))  # type: ignore[misc]

        threads = [threading.Thread(target=thread, args=(n,)) for n in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        server.until(lambda: len(ran) == 8_000)
        for name in range(4):
            assert [number for thread_name, number in ran if thread_name == name] == list(range(2_000))


def test_callbacks_asked_for_while_the_worker_ends_do_no_harm() -> None:
    for _ in range(10):
        with running() as server:
            stop = threading.Event()

            def spam(server: Running = server, stop: threading.Event = stop) -> None:
                while not stop.is_set():
                    server.worker.call_soon(lambda: None)

            spammer = threading.Thread(target=spam)
            spammer.start()
            server.drain(0.0)
            server.join()
            stop.set()
            spammer.join()


def test_callback_answers_requests_that_wait_for_it_while_others_come_in() -> None:
    """Executors and sockets wake the worker at once: no answer may be forgotten."""
    with running() as server, server.client() as client, server.client() as busy:
        for number in range(300):
            waiting = client.start(b"%d" % number, "/test.Echo/Hold")
            busy.start(b"x")
            server.until(lambda: server.held)
            call = server.held.pop()
            server.worker.call_soon(lambda call=call: call.reply(call.context))  # type: ignore[misc]
            assert client.wait(waiting).messages == [b"%d" % number]


@pytest.fixture(autouse=True)
def _info_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, "toutates.net"):
        yield


def test_worker_logs_why_a_connection_ended(caplog: pytest.LogCaptureFixture) -> None:
    with running() as server, connect(server) as sock:
        sock.sendall(OPENING + data(0))
        read_all(sock)
        assert "DATA on stream 0 (PROTOCOL_ERROR)" in caplog.text


# --- limits of time and memory ---------------------------------------------------------------------------------------


def ended(client: RawClient) -> tuple[int, bytes]:
    """Code and debug data of the GOAWAY with which the server ended the connection."""
    goaway = [one for one in client if one.type == GOAWAY][-1]
    return goaway.code, goaway.payload[8:]


def test_handshake_that_does_not_come_ends_the_connection_and_others_go_on() -> None:
    with running() as server, RawClient(server) as good:
        good.until(SETTINGS)
        with RawClient(server, PREFACE[:5]) as slow:
            server.until(lambda: server.worker.connections == 2)
            server.keep_house(Limits().handshake_timeout_s)
            assert ended(slow) == (ENHANCE_YOUR_CALM, b"the connection preface did not come in time")
        assert server.worker.limit_hits["handshake_timeout"] == 1
        good.send(unary(1))
        assert good.until(DATA).payload == message(b"hello")


def test_request_that_does_not_go_on_and_response_that_is_not_read_end_their_connections() -> None:
    limits = Limits(stall_timeout_s=0.2)
    with running(limits) as server, RawClient(server) as slow, RawClient(server) as deaf, RawClient(server) as good:
        slow.send(headers(1, block(request())))
        deaf.send(settings((4, 0)) + unary(1))
        assert ended(slow) == (ENHANCE_YOUR_CALM, b"the rest of a request did not come in time")
        assert ended(deaf) == (ENHANCE_YOUR_CALM, b"responses were not read in time")
        assert server.worker.limit_hits["stall_timeout"] == 2
        good.send(unary(1))
        assert good.until(DATA).payload == message(b"hello")


def test_silent_connection_is_pinged_again_and_again_while_it_answers() -> None:
    with running(Limits(keepalive_time_s=0.1)) as server, RawClient(server) as client:
        for _ in range(6):
            client.send(frame(PING, ACK, 0, client.until(PING).payload))
        assert server.call(lambda: server.worker.connections) == 1


def test_silent_connection_that_does_not_answer_is_closed() -> None:
    with running(Limits(keepalive_time_s=0.1, keepalive_timeout_s=0.2)) as server, RawClient(server) as dead:
        assert [one.type for one in dead][-1] == PING  # then the server closed it
        assert server.worker.limit_hits["keepalive_timeout"] == 1


@pytest.mark.parametrize("limits", [Limits(max_idle_s=0.2), Limits(max_age_s=0.2)], ids=["idle", "old"])
def test_idle_and_old_connections_are_told_to_leave_without_an_error(limits: Limits) -> None:
    with running(limits) as server, RawClient(server) as client:
        goaways = [one for one in client if one.type == GOAWAY]
        assert [one.code for one in goaways] == [0, 0]
        idle = limits.max_idle_s == 0.2
        why = b"the connection is idle" if idle else b"the connection has reached its maximum age"
        assert {one.payload[8:] for one in goaways} == {why}
        name = "connection_idle" if idle else "connection_age"
        assert server.worker.limit_hits[name] == 1
        with server.asleep():
            again = RawClient(server, OPENING + unary(1))
        with again:
            assert again.until(DATA).payload == message(b"hello")


def test_old_connection_ends_its_calls_first_and_is_cut_off_after_its_grace() -> None:
    started = time.monotonic()
    with running(Limits(max_age_s=0.2, max_age_grace_s=0.5)) as server:
        with server.asleep():  # its call begins before the connection is old
            client = RawClient(server, OPENING + HOLD)
        with client:
            assert ended(client) == (ENHANCE_YOUR_CALM, b"calls did not end in time on an old connection")
        assert time.monotonic() - started >= 0.6
        assert server.worker.limit_hits["connection_age_grace"] == 1


def test_connection_that_leaves_most_unread_is_dropped_when_memory_runs_out() -> None:
    limits = Limits(stall_timeout_s=0.2)  # so that visits are frequent
    large = Method("/test.Echo/Large", unary=lambda call: call.reply(bytes(16_000_000)))
    ask = headers(1, block(request("/test.Echo/Large"))) + data(1, message(b""), END_STREAM)
    with running(limits, large, buffer_bytes=3_000_000) as server, RawClient(server) as good:
        with RawClient(server, WIDE, receive_buffer=4_096) as deaf:
            deaf.send(ask)
            server.until(lambda: server.worker.limit_hits["server_buffer"] == 1)
        good.send(unary(1))
        assert good.until(DATA).payload == message(b"hello")


def test_call_that_is_reset_in_the_same_read_is_not_begun() -> None:
    with running() as server, RawClient(server) as client:
        cancelled = HOLD + rst_stream(1)
        client.send(cancelled + unary(3))
        assert client.until(DATA).stream_id == 3
        assert server.call(lambda: len(server.held)) == 0
