"""A worker that speaks TLS over real sockets."""

from __future__ import annotations

import gc
import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.certificates import SERVER_NAME, client_context, issue
from tests.h2grpc.frames import (
    DATA,
    GOAWAY,
    HEADERS,
    OPENING,
    PING,
    SETTINGS,
    STREAM,
    Frame,
    block,
    data,
    frame,
    headers,
    message,
    parse,
    request,
    unary,
)
from tests.net.running import HOUR_S, WIDE, BlockingClient, RawClient, Running, running
from tests.net.tls_support import server_context
from tests.waiting import PATIENCE_S
from toutates.h2grpc import Call, Limits, Method
from toutates.net import ServerStream, tls_transport
from toutates.net.tls_transport import CHUNK_BYTES, MOST_CHUNKS, TlsTransport
from toutates.net.transport import Transport

LARGE = bytes(range(250)) * 100_000
#: Of a client that takes little; with less than a few records the kernel sends in drops.
SMALL_BUFFER = 100_000


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    return server_context(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    return server_context(tmp_path_factory.mktemp("certificates"), mutual=True)


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)


def client_of(server: Running, context: ssl.SSLContext | None = None) -> BlockingClient:
    return BlockingClient(server.port, tls=context or client_context())


def raw_client_of(server: Running, octets: bytes = OPENING, receive_buffer: int | None = None) -> RawClient:
    return RawClient(server, octets, receive_buffer=receive_buffer, tls=client_context())


def read_all(sock: socket.socket) -> bytes:
    pieces = []
    while piece := sock.recv(65_536):
        pieces.append(piece)
    return b"".join(pieces)


def transport_of(server: Running) -> TlsTransport:
    """The one connection's, once it has shaken hands."""
    found: list[Transport] = []

    def find() -> bool:
        found[:] = server.worker.transports.open.values()
        return len(found) == 1 and found[0].established

    server.until(find)
    assert isinstance(found[0], TlsTransport)
    return found[0]


class HandMade:
    """A client that decides which bytes travel together."""

    def __init__(self, server: Running, receive_buffer: int | None) -> None:
        self.sock = socket.socket()
        if receive_buffer is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(("127.0.0.1", server.port))
        self.incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = client_context().wrap_bio(self.incoming, self._outgoing, server_hostname=SERVER_NAME)

    def send(self) -> None:
        """Send what has gathered, at once."""
        self.sock.sendall(self._outgoing.read())

    def shake_hands(self) -> None:
        """Except for sending the client's last message."""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.send()
                self.incoming.write(self.sock.recv(65_536))
            else:
                return

    def close_tls(self) -> None:
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.unwrap()

    def read_to_end(self) -> bytes:
        """Everything up to the server's close_notify, which has to come."""
        pieces: list[bytes] = []
        while True:
            try:
                piece = self.tls.read(65_536)
            except ssl.SSLWantReadError:
                octets = self.sock.recv(65_536)
                assert octets, "the server closed the connection without close_notify"
                self.incoming.write(octets)
                continue
            except ssl.SSLZeroReturnError:
                piece = b""
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)


@contextmanager
def hand_made(server: Running, receive_buffer: int | None = None) -> Iterator[HandMade]:
    client = HandMade(server, receive_buffer)
    try:
        yield client
    finally:
        client.sock.close()


# --- calls -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_worker_answers_calls_over_tls(tls: ssl.SSLContext, version: ssl.TLSVersion) -> None:
    context = client_context()
    context.minimum_version = context.maximum_version = version
    with running(tls=tls) as server, client_of(server, context) as client:
        for body in (b"", b"hello", bytes(100_000), LARGE[:3_000_000]):
            response = client.unary(body)
            assert (response.messages, response.status) == ([body], 0)
        response = client.unary(b"streamed", STREAM)
        assert (response.messages, response.status) == ([b"streamed"], 0)


def test_worker_answers_many_connections_at_once(tls: ssl.SSLContext) -> None:
    with running(tls=tls) as server:
        clients = [client_of(server) for _ in range(30)]
        for _ in range(3):
            waiting = [(client, client.start(b"%d" % n)) for n, client in enumerate(clients)]
            for number, (client, response) in enumerate(waiting):
                assert client.wait(response).messages == [b"%d" % number]
        for client in clients:
            client.close()
        server.until(lambda: server.worker.connections == 0)


def transports() -> list[TlsTransport]:
    return [thing for thing in gc.get_objects() if type(thing) is TlsTransport]


def test_closed_connections_leave_nothing_to_the_garbage_collector(tls: ssl.SSLContext) -> None:
    others = transports()  # of tests before, which may go at any time
    with running(tls=tls) as server:
        with client_of(server) as client:
            client.unary(b"x")
            gc.collect()
            gc.disable()
        try:
            server.until(lambda: server.worker.connections == 0)
            server.call(lambda: None)  # so that the loop's own variables have gone on
            with connect(server):
                server.until(lambda: server.worker.connections == 1)
            server.until(lambda: server.worker.connections == 0)
            assert len([one for one in transports() if one not in others]) <= 1  # the loop's last one
        finally:
            gc.enable()


# --- backpressure ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [2, MOST_CHUNKS])
def test_a_large_answer_is_encrypted_as_its_reader_takes_it_and_arrives_whole(
    tls: ssl.SSLContext, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_transport, "MOST_CHUNKS", chunks)
    with (
        running(None, Method("/test.Large/Get", unary=lambda call: call.reply(LARGE)), tls=tls) as server,
        raw_client_of(server, WIDE, receive_buffer=SMALL_BUFFER) as client,
    ):
        client.until(SETTINGS)
        transport = transport_of(server)
        client.send(headers(1, block(request("/test.Large/Get"))) + data(1, message(b""), 1))
        server.until(lambda: transport.unsent_bytes > 0)
        waiting = server.call(lambda: transport.unsent_bytes)
        assert len(LARGE) - 6_000_000 < waiting < len(LARGE) + 100_000, "what the kernel has not taken is counted"
        assert server.call(lambda: len(transport.ciphertext)) < CHUNK_BYTES + 1_000
        with client_of(server) as other:
            assert other.unary(b"others are served").messages == [b"others are served"]
        received = bytearray()
        for one in client:
            if one.type == DATA:
                received += one.payload
            elif one.type == HEADERS and one.flags & 1:
                break
        assert received == message(LARGE)
        server.until(lambda: transport.unsent_bytes == 0)
        assert not server.call(lambda: transport.unsent)


def test_worker_stops_reading_a_peer_that_reads_too_slowly_and_goes_on_once_it_reads(tls: ssl.SSLContext) -> None:
    limits = Limits(max_unsent_bytes=100_000, connection_window=2**31 - 1)
    count = 1_000
    with running(limits, tls=tls) as server, hand_made(server, SMALL_BUFFER) as client:
        client.shake_hands()
        # One side of the client's TLS at a time: first all is encrypted, then all is read.
        client.tls.write(WIDE)
        for number in range(1, 2 * count, 2):
            client.tls.write(unary(number, bytes(30_000)))
        sender = threading.Thread(target=client.send)
        sender.start()
        transport = transport_of(server)
        server.until(lambda: transport.congested)
        server.rounds()
        assert sender.is_alive(), "the worker should have stopped reading"
        assert server.call(lambda: transport.congested)
        assert server.call(lambda: transport.unsent_bytes) < 5_000_000
        received = 0
        while received < count * 30_005:
            try:
                received += len(client.tls.read(65_536))
            except ssl.SSLWantReadError:
                client.incoming.write(client.sock.recv(65_536))
        sender.join(PATIENCE_S)
        assert not sender.is_alive()
        server.until(lambda: not transport.congested)


def test_a_stream_waits_for_a_slow_reader_and_goes_on(tls: ssl.SSLContext) -> None:
    sent: list[int] = []

    async def flood(stream: ServerStream) -> None:
        for number in range(1_000):
            await stream.send(bytes(50_000))
            sent.append(number)

    method = Method("/test.Large/Flood", stream=flood)
    with (
        running(Limits(max_unsent_bytes=100_000), method, tls=tls) as server,
        raw_client_of(server, WIDE, receive_buffer=SMALL_BUFFER) as client,
    ):
        client.send(headers(1, block(request("/test.Large/Flood"))) + data(1, b"", 1))
        transport = transport_of(server)
        server.until(lambda: transport.congested)
        server.rounds()
        assert len(sent) < 1_000
        assert sum(len(one.payload) for one in _until_trailers(client)) == 1_000 * 50_005


def _until_trailers(client: RawClient) -> Iterator[Frame]:
    for one in client:
        if one.type == HEADERS and one.flags & 1:
            return
        if one.type == DATA:
            yield one


# --- the end of a connection -----------------------------------------------------------------------------------------


def test_a_request_that_comes_with_close_notify_is_answered_and_the_connection_closed(tls: ssl.SSLContext) -> None:
    with running(tls=tls) as server, hand_made(server) as client:
        client.shake_hands()
        client.tls.write(OPENING + unary(1, b"one and only"))
        client.close_tls()
        client.send()  # all in one segment, with the handshake's last message
        answer = client.read_to_end()
        assert message(b"one and only") in answer
        server.until(lambda: server.worker.connections == 0)


def test_close_notify_alone_closes_the_connection(tls: ssl.SSLContext) -> None:
    with running(tls=tls) as server, hand_made(server) as client:
        client.shake_hands()
        client.tls.write(OPENING)
        client.send()
        transport_of(server)
        client.close_tls()
        client.send()
        client.read_to_end()
        server.until(lambda: server.worker.connections == 0)


@pytest.mark.parametrize("end", ["before the handshake", "in the handshake", "after it"])
def test_a_client_that_leaves_without_close_notify_leaves_nothing_behind(
    tls: ssl.SSLContext, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with running(tls=tls) as server:
        with hand_made(server) as client:
            if end == "in the handshake":
                client.shake_hands()
            elif end == "after it":
                client.shake_hands()
                client.tls.write(OPENING + unary(1)[:30])
                client.send()
                transport_of(server)
            else:
                server.until(lambda: server.worker.connections == 1)
        server.until(lambda: server.worker.connections == 0)
    texts = ends(caplog)
    assert len(texts) == (end == "in the handshake")
    assert all("the client left without a word; it may not trust" in text for text in texts)


def test_a_broken_record_ends_the_connection_with_an_alert_and_its_streams(
    tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with running(tls=tls) as server, hand_made(server) as client:
        client.shake_hands()
        client.tls.write(OPENING + headers(1, block(request(STREAM))))
        client.tls.write(headers(3, block(request("/test.Echo/Hold"))) + data(3, message(b""), 1))
        client.send()
        server.until(lambda: server.held)
        client.sock.sendall(b"\x17\x03\x03\0\x20" + bytes(32))
        for _ in range(20):
            client.sock.sendall(bytes(30_000))  # the peer that goes on talking must get the alert all the same
        with pytest.raises(ssl.SSLError, match=r"(?i)bad record mac"):
            client.read_to_end()
        server.until(lambda: server.streams_ended == ["cancelled"])
        [call] = server.held
        assert not call.open
        server.call(lambda: call.reply(b"late"))
        client.sock.close()
        server.until(lambda: server.worker.connections == 0)
    [text] = [record.getMessage() for record in caplog.records]
    assert "ended: TLS failed: decryption failed or bad record mac (PROTOCOL_ERROR)" in text


def test_drain_says_goodbye_over_tls_and_ends_with_close_notify(tls: ssl.SSLContext) -> None:
    with running(tls=tls) as server, hand_made(server) as client:
        client.shake_hands()
        client.tls.write(OPENING + unary(1))
        client.send()
        transport_of(server)
        server.drain(20.0)
        frames = parse(client.read_to_end())
        assert [one.type for one in frames if one.type in (GOAWAY, PING)] == [GOAWAY, PING, GOAWAY]
        client.sock.close()
        server.join()


@pytest.mark.parametrize("begun", [False, True])
def test_drain_does_not_wait_for_a_client_that_does_not_shake_hands(tls: ssl.SSLContext, begun: bool) -> None:
    with running(tls=tls) as server, connect(server) as sock:
        if begun:
            sock.sendall(b"\x16\x03\x01")
        server.until(lambda: server.worker.connections == 1)
        server.drain(HOUR_S)
        server.join()
        assert server.cut_off == 0
        assert sock.recv(100) == b""


def test_connections_above_the_limit_are_told_so_over_tls(tls: ssl.SSLContext) -> None:
    with running(max_connections=1, tls=tls) as server, client_of(server) as client:
        assert client.unary(b"in").messages == [b"in"]
        with hand_made(server) as other:
            other.shake_hands()
            other.send()
            frames = parse(other.read_to_end())
            assert [frames[0].type, frames[-1].type] == [SETTINGS, GOAWAY]
            assert b"too many connections" in frames[-1].payload


# --- a new certificate -----------------------------------------------------------------------------------------------


def test_new_connections_use_a_new_context_and_old_ones_keep_theirs(tls: ssl.SSLContext, tmp_path: Path) -> None:
    def serial(client: BlockingClient) -> object:
        assert isinstance(client.sock, ssl.SSLSocket)
        return (client.sock.getpeercert() or {})["serialNumber"]

    with running(tls=tls) as server, client_of(server) as old, hand_made(server) as in_between:
        in_between.send()
        server.call(lambda: server.worker.use_tls(server_context(tmp_path)))
        in_between.shake_hands()
        with client_of(server) as new:
            assert serial(new) != serial(old)
            assert new.unary(b"new").messages == [b"new"]
            assert old.unary(b"old").messages == [b"old"]


# --- refusals --------------------------------------------------------------------------------------------------------


def ends(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Why connections ended, as the log has it."""
    return [record.getMessage().partition(" ended: ")[2] for record in caplog.records if record.levelno >= logging.INFO]


@pytest.mark.parametrize("body", [b"", bytes(3_000_000)])
def test_plaintext_http_1_on_a_tls_port_gets_a_text(
    tls: ssl.SSLContext, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with running(tls=tls) as server, connect(server) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body))
        sock.sendall(body)
        answer = read_all(sock)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.endswith(b"not plain HTTP.\n")
    assert ends(caplog) == ["plaintext HTTP/1 on a TLS port (HTTP_1_1_REQUIRED)"]


def test_plaintext_http_2_on_a_tls_port_is_closed(tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with running(tls=tls) as server, RawClient(server, OPENING + unary(1)) as client:
        assert list(client) == []
    assert ends(caplog) == ["plaintext HTTP/2 on a TLS port (INADEQUATE_SECURITY)"]


def test_mutual_tls_tells_a_client_of_tls_1_3_that_talks_on_what_it_lacks(
    mutual: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with running(tls=mutual) as server, hand_made(server) as client:
        client.shake_hands()  # of which the client thinks that it went well
        client.tls.write(OPENING)
        for number in range(1, 100, 2):
            client.tls.write(unary(number, bytes(30_000)))
        client.send()
        with pytest.raises(ssl.SSLError, match="certificate required"):
            client.read_to_end()
    assert ends(caplog) == ["TLS handshake failed: peer did not return a certificate (PROTOCOL_ERROR)"]


def test_mutual_tls_lets_in_a_client_with_a_certificate(mutual: ssl.SSLContext, tmp_path: Path) -> None:
    with running(tls=mutual) as server, client_of(server, client_context(issue(tmp_path))) as client:
        assert client.unary(b"in").messages == [b"in"]


def test_tls_on_a_plaintext_port_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with running() as server:
        with connect(server) as sock, pytest.raises(ssl.SSLError, match=r"(?i)alert handshake failure"):
            client_context().wrap_socket(sock, server_hostname=SERVER_NAME)
        with server.client() as client:
            assert client.unary(b"in").messages == [b"in"]
    assert ends(caplog) == ["TLS handshake on a plaintext port (PROTOCOL_ERROR)"]


def test_handshakes_of_garbage_cost_the_others_nothing(tls: ssl.SSLContext) -> None:
    def hold(call: Call) -> None:
        call.reply(call.message)

    with running(None, Method("/test.Echo/Other", unary=hold), tls=tls) as server, client_of(server) as client:
        for number in range(60):
            with connect(server) as sock:
                sock.sendall(b"\x16\x03\x01\x02\0\1\0\1\xfc\x03\x03" + bytes([number]) * 506)
                sock.settimeout(PATIENCE_S)
                assert read_all(sock)[:1] == b"\x15"
            assert client.unary(b"x", "/test.Echo/Other").messages == [b"x"]
        assert client.unary(frame(PING)).status == 0
