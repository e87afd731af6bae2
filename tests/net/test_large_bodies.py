"""A worker receives large bodies of HTTP/1.1 into memory of their own, and sends large answers from where they lie."""

from __future__ import annotations

import random
import socket
import ssl
import struct

import pytest

from tests.certificates import client_context
from tests.h2grpc.frames import unary
from tests.http1.support import request
from tests.net.protocols import EchoHandler, view_of
from tests.net.running import HOUR_NS, WIDE, RawClient, Running, running
from tests.net.test_http1 import serving
from tests.net.test_services import TextClient, answer
from tests.net.tls_support import server_context
from toutates.h2grpc import Limits, message_memory
from toutates.h2grpc.message_memory import MessageMemory
from toutates.net import GrpcService, Worker
from toutates.net.connection import Service
from toutates.net.http1.call import HttpCall
from toutates.net.http1.service import HttpService
from toutates.net.transport import Transport

CONTENT = random.Random(5).randbytes(3_000_000)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    return server_context(tmp_path_factory.mktemp("certificates"))


def nothing_is_lent(server: Running) -> bool:
    return server.call(lambda: server.worker.message_memory.lent) == 0


@pytest.mark.parametrize("tls", [False, True])
def test_large_bodies_come_whole(tls: bool, context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_memory, "IDLE_NS", HOUR_NS)
    sizes = [70_000, 1_048_576, 3_000_000, 100_001, 65_536, 10]
    with (
        serving(tls=context if tls else None) as (server, _),
        TextClient(server, b"", tls=client_context() if tls else None) as client,
    ):
        for size in sizes:
            client.sock.sendall(request("POST", body=CONTENT[:size]))
            client.expect(answer(CONTENT[:size]))
        client.sock.settimeout(120)
        few = sizes[:2]
        client.sock.sendall(b"".join(request("POST", body=CONTENT[:size]) for size in few))
        client.expect(b"".join(answer(CONTENT[:size]) for size in few))
        assert nothing_is_lent(server)
        memory = server.worker.message_memory
        assert server.call(lambda: memory.kept_bytes) >= 3_000_000


class Keeper(EchoHandler):
    """Keeps views of the bodies, and their memory in view."""

    def __init__(self) -> None:
        super().__init__()
        self.views: list[memoryview] = []
        self.kinds: list[type] = []

    def handle(self, call: HttpCall) -> None:
        self.kinds.append(call.body.__class__)
        self.views.append(view_of(call.body))
        call.reply(200, b"", b"kept")


def test_memory_that_is_still_read_is_not_used_again() -> None:
    keeper = Keeper()

    def serve(worker: Worker, grpc: GrpcService) -> Service:
        return HttpService(worker, keeper)

    with running(serve=serve) as server, TextClient(server, b"") as client:
        for number in range(4):
            client.sock.sendall(request("POST", body=bytes([number]) * 1_000_000))
            client.expect(answer(b"kept"))
        assert keeper.kinds == [MessageMemory] * 4
        assert [view[0] + view[-1] for view in keeper.views] == [0, 2, 4, 6]
        keeper.views.clear()


def test_requests_after_uploads_that_are_reset_in_the_middle_are_answered() -> None:
    with serving() as (server, _):
        for _ in range(20):
            with TextClient(server, request("POST", body=CONTENT)[:1_500_000]) as client:
                server.until(lambda: server.worker.message_memory.lent)
                client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            server.until(lambda: not server.worker.connections)
            assert nothing_is_lent(server)
        with TextClient(server, request("POST", body=CONTENT)) as client:
            client.expect(answer(CONTENT))


def test_a_large_body_on_one_connection_holds_up_no_other() -> None:
    with (
        serving() as (server, _),
        TextClient(server, request("POST", body=CONTENT)[:-1]) as slow,
        TextClient(server, request(target="/quick")) as other,
        RawClient(server, WIDE + unary(1)),
    ):
        other.expect(answer(b"/quick"))
        slow.sock.sendall(CONTENT[-1:])
        slow.expect(answer(CONTENT))


class LargeAnswers(EchoHandler):
    """Answers with a part of CONTENT, as of a batch's output."""

    def handle(self, call: HttpCall) -> None:
        size = int(call.head.path[1:])
        parts = (b"content-length: %d\r\n\r\n" % size, memoryview(CONTENT)[:size])
        call.responder.reply(call, parts, size)


@pytest.mark.parametrize("tls", [False, True])
def test_a_slow_reader_keeps_a_large_answer_once_and_of_a_batch_its_part(tls: bool, context: ssl.SSLContext) -> None:
    def serve(worker: Worker, grpc: GrpcService) -> Service:
        return HttpService(worker, LargeAnswers())

    def the_transport() -> Transport:
        [transport] = server.worker.transports.open.values()
        return transport

    with (
        running(Limits(max_unsent_bytes=100_000), serve=serve, tls=context if tls else None) as server,
        TextClient(server, b"", receive_buffer=10_000, tls=client_context() if tls else None) as client,
    ):
        server.until(lambda: server.worker.connections == 1 and the_transport().established)
        server.call(lambda: the_transport().sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 50_000))
        for size, whole in ((3_000_000, True), (1_000_000, True), (600_000, False)):
            client.sock.sendall(request(target=f"/{size}"))
            server.until(lambda: the_transport().unsent_bytes > 0)
            server.rounds()
            kept = server.call(lambda: [view.obj for view in the_transport().unsent if len(view) > 1_000])
            assert all((one is CONTENT) is whole for one in kept)
            assert server.call(lambda: the_transport().connection.held_bytes) == 0
            assert server.call(lambda: the_transport().unsent_bytes) <= size + 1_000
            status, _, fields = answer(CONTENT[:size]).partition(b"\r\n")
            length, kept_alive, rest = fields.split(b"\r\n", 2)
            client.expect(
                b"\r\n".join((status, kept_alive, length, rest))
            )  # an answer in parts has its own fields last
